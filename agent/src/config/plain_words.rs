//! A TOML parser's message in the words of a person who writes a configuration.

/// What is wrong, without the parser's terms.
pub(super) fn of(message: &str) -> &'static str {
    let found = WORDS.iter().find(|(part, _)| message.contains(part));
    found.map_or("this cannot be read as KEY = VALUE", |(_, words)| words)
}

/// Parts of the messages of the crates `toml` and `toml_parser`, the narrower before the wider.
const WORDS: [(&str, &str); 26] = [
    ("duplicate key", "this key is set twice"),
    (
        "key with no value",
        "a key must be followed by = and a value",
    ),
    (
        "missing assignment",
        "a key must be followed by = and a value",
    ),
    ("missing value", "the value is missing"),
    ("string values must be quoted", "text must stand in quotes"),
    (
        "invalid boolean",
        "the value must be true or false, in small letters",
    ),
    ("multi-line", "the three closing quotes are missing"),
    (
        "unclosed array table",
        "a heading that begins with [[ must end with ]]",
    ),
    (
        "unclosed table",
        "a heading that begins with [ must end with ]",
    ),
    ("unclosed inline table", "the closing } is missing"),
    ("unclosed array", "the closing ] is missing"),
    ("missing comma", "a comma is missing"),
    ("extra comma", "there is a comma too many"),
    ("extra", "there is an = too many"),
    ("`=` in array", "the closing ] is missing"),
    ("escape", "a backslash in quotes needs a second one"),
    ("unicode value", "a backslash in quotes needs a second one"),
    ("invalid basic string", "the closing quote is missing"),
    ("invalid literal string", "the closing quote is missing"),
    ("missing opening quote", "the opening quote is missing"),
    ("leading zero", "a number must not begin with 0"),
    (
        "carriage return",
        "the line ends are neither those of Unix nor those of Windows",
    ),
    ("recursion", "the values are nested too deeply"),
    ("invalid table", "this is no heading as in [[node]]"),
    ("key", "a key is made of letters, digits, - and _"),
    (
        "invalid",
        "the value cannot be read; text must stand in quotes",
    ),
];
