//! Command-line flags as Go's package `flag` reads them, and the variables that stand in for them.
//!
//! A flag is `-x` or `--x`, its value is behind `=` or the next word; a boolean one takes a value behind `=` alone. The
//! first word that is no flag ends them, and so does `--`. The last of several values counts, unless the flag collects them.
//! Error messages are Go's.

use std::collections::BTreeMap;

/// A flag that the program knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flag {
    /// Its name without hyphens.
    pub(super) name: &'static str,
    /// What its value must be.
    pub(super) kind: Kind,
    /// The value that it has where it is not given, as usage shows it; empty for none.
    pub(super) default: &'static str,
    /// What it does.
    pub(super) help: &'static str,
}

/// What a flag's value must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One of Go's words for true and false; without a value true.
    Bool,
    /// A whole number.
    Int,
    /// Any text.
    Text,
    /// Any text; each value counts.
    Texts,
}

/// Values of the flags that were given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Given {
    values: BTreeMap<&'static str, Vec<String>>,
    /// The words behind the last flag.
    rest: Vec<String>,
}

/// Why the words give no values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// `-h`, `-help`: usage is asked for.
    Help,
    /// A fault, in Go's words.
    Wrong(String),
}

impl Given {
    /// Reads the words behind the program's name.
    ///
    /// # Errors
    /// [`Stop`] with the first fault.
    pub(super) fn parse(words: &[String], flags: &[Flag]) -> Result<Given, Stop> {
        let mut given = Given::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let Some(written) = word.strip_prefix('-').filter(|rest| !rest.is_empty()) else {
                given.rest = std::iter::once(word).chain(words).cloned().collect();
                break;
            };
            if word == "--" {
                given.rest = words.cloned().collect();
                break;
            }
            let written = written.strip_prefix('-').unwrap_or(written);
            if written.is_empty() || written.starts_with(['-', '=']) {
                return Err(Stop::Wrong(format!("bad flag syntax: {word}")));
            }
            let (name, value) = match written.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (written, None),
            };
            let Some(flag) = flags.iter().find(|flag| flag.name == name) else {
                return Err(match name {
                    "h" | "help" => Stop::Help,
                    _ => Stop::Wrong(format!("flag provided but not defined: -{name}")),
                });
            };
            let value = match (value, flag.kind) {
                (Some(value), _) => value,
                (None, Kind::Bool) => "true".to_owned(),
                (None, _) => match words.next() {
                    Some(next) => next.clone(),
                    None => return Err(Stop::Wrong(format!("flag needs an argument: -{name}"))),
                },
            };
            if let Err(reason) = flag.accepts(&value) {
                let what = match flag.kind {
                    Kind::Bool => "boolean value",
                    _ => "value",
                };
                let of = match flag.kind {
                    Kind::Bool => "for",
                    _ => "for flag",
                };
                return Err(Stop::Wrong(format!(
                    "invalid {what} {value:?} {of} -{name}: {reason}"
                )));
            }
            given.values.entry(flag.name).or_default().push(value);
        }
        Ok(given)
    }

    /// A sentence on the words that are no flags, which Go ignores without a word; none where there are none.
    pub(super) fn ignored_words(&self) -> Option<String> {
        let first = self.rest.first()?;
        Some(format!(
            "ignored from {first:?} on: flags end at the first word that is none; give a boolean flag its value as in -ip-masq=true"
        ))
    }

    /// Takes the values of variables for the flags that were not given. `variable` gives the value of one, if it is set.
    /// Returns a sentence for each variable whose value does not suit: like flannel, the program goes on without it.
    pub(super) fn complete(
        &mut self,
        flags: &[Flag],
        prefix: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Vec<String> {
        let mut ignored = Vec::new();
        for flag in flags {
            if self.values.contains_key(flag.name) {
                continue;
            }
            let name = format!("{prefix}_{}", flag.name.to_uppercase().replace('-', "_"));
            let Some(value) = variable(&name).filter(|value| !value.is_empty()) else {
                continue;
            };
            match flag.accepts(&value) {
                Ok(()) => drop(self.values.insert(flag.name, vec![value])),
                Err(reason) => ignored.push((name, reason)),
            }
        }
        // Without the value: it may be a secret that stands in the wrong variable.
        let sentence = |(name, reason): (String, &str)| {
            format!(
                "the variable {name} is ignored, as by flannel: its value is none of a flag's ({reason})"
            )
        };
        ignored.into_iter().map(sentence).collect()
    }

    /// The value of a flag; none where it was not given or is empty.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        let values = self.values.get(name)?;
        values.last().filter(|value| !value.is_empty()).cloned()
    }

    /// Every value of a flag that collects them, without empty ones; none where none is left.
    pub(super) fn texts(&self, name: &str) -> Option<Vec<String>> {
        let values = self.values.get(name)?.iter();
        let kept: Vec<String> = values.filter(|value| !value.is_empty()).cloned().collect();
        (!kept.is_empty()).then_some(kept)
    }

    /// The value of a boolean flag, if it was given.
    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        bool_of(self.values.get(name)?.last()?)
    }

    /// The value of a flag that takes a number, if it was given.
    pub(super) fn number(&self, name: &str) -> Option<i64> {
        int_of(self.values.get(name)?.last()?)
    }
}

impl Flag {
    fn accepts(&self, value: &str) -> Result<(), &'static str> {
        let suits = match self.kind {
            Kind::Bool => bool_of(value).is_some(),
            Kind::Int => int_of(value).is_some(),
            Kind::Text | Kind::Texts => true,
        };
        suits.then_some(()).ok_or("parse error")
    }
}

/// What usage says of each flag, in the form of Go's `PrintDefaults`.
pub(super) fn usage(program: &str, flags: &[Flag]) -> String {
    let mut text = format!("Usage: {program} [OPTION]...\n");
    let mut sorted: Vec<&Flag> = flags.iter().collect();
    sorted.sort_by_key(|flag| flag.name);
    for Flag {
        name,
        kind,
        default,
        help,
    } in sorted
    {
        let value = match kind {
            Kind::Bool => "",
            Kind::Int => " int",
            Kind::Text => " string",
            Kind::Texts => " value",
        };
        let default = match (kind, *default) {
            (_, "" | "0" | "false") => String::new(),
            (Kind::Text, default) => format!(" (default {default:?})"),
            (_, default) => format!(" (default {default})"),
        };
        text.push_str(&format!("  -{name}{value}\n    \t{help}{default}\n"));
    }
    text
}

/// Go's `strconv.ParseBool`.
fn bool_of(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// Go's `strconv.ParseInt` with base 0, without its underscores.
fn int_of(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (digits, radix) = match lower.split_at_checked(2) {
        Some(("0x", rest)) => (rest, 16),
        Some(("0b", rest)) => (rest, 2),
        Some(("0o", rest)) => (rest, 8),
        _ => match lower.strip_prefix('0').filter(|rest| !rest.is_empty()) {
            Some(rest) => (rest, 8),
            None => (lower.as_str(), 10),
        },
    };
    // from_str_radix takes a second sign.
    if !digits.chars().all(|digit| digit.is_ascii_alphanumeric()) {
        return None;
    }
    i64::from_str_radix(digits, radix)
        .ok()
        .map(|value| sign * value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FLAGS: [Flag; 4] = [
        flag("masq", Kind::Bool),
        flag("port", Kind::Int),
        flag("file", Kind::Text),
        flag("iface", Kind::Texts),
    ];

    const fn flag(name: &'static str, kind: Kind) -> Flag {
        Flag {
            name,
            kind,
            default: "",
            help: "",
        }
    }

    fn parse(line: &str) -> Result<Given, Stop> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Given::parse(&words, &FLAGS)
    }

    #[test]
    fn words_that_go_ignores_are_named() {
        for (line, first) in [
            ("-masq", None),
            ("-masq -- ", None),
            ("status", Some("status")),
            ("-masq true -masq", Some("true")),
            ("-masq -- -x", Some("-x")),
            ("-", Some("-")),
        ] {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let said = Given::parse(&words, &FLAGS).unwrap().ignored_words();
            let expected = first.map(|first| format!("ignored from {first:?} on: "));
            match (said, expected) {
                (Some(said), Some(expected)) => assert!(said.starts_with(&expected), "{said}"),
                (said, expected) => assert_eq!(said, expected, "{line}"),
            }
        }
    }

    #[test]
    fn flags_are_written_as_go_writes_them() {
        for line in [
            "-masq -port 7 -file /x -iface a -iface b",
            "--masq --port=7 --file=/x --iface=a --iface b",
            "-masq=T -port=3 -port=0x7 -file y -file=/x -iface=a -iface=b rest -masq=0",
            "-masq=true -port +7 -file /x --iface a --iface b -- -port 9",
            "-masq=False -masq=1 -port=07 -file=/x -iface a -iface b - -port 9",
        ] {
            let given = parse(line).unwrap();
            assert_eq!(given.flag("masq"), Some(true), "{line}");
            assert_eq!(given.number("port"), Some(7), "{line}");
            assert_eq!(given.text("file").as_deref(), Some("/x"), "{line}");
            let ifaces = given.texts("iface").unwrap();
            assert_eq!(ifaces, ["a", "b"], "{line}");
        }
        // A value may look like a flag, hold an equals sign, or be empty.
        let given = parse("-file -masq -iface=a=b -iface=").unwrap();
        assert_eq!(given.text("file").as_deref(), Some("-masq"));
        assert_eq!(given.texts("iface"), Some(vec!["a=b".to_owned()]));
        assert_eq!(given.flag("masq"), None);
        assert_eq!(parse("-file= -iface=").unwrap().text("file"), None);
        // A boolean takes no next word, which ends the flags.
        let given = parse("-masq false -port 7").unwrap();
        assert_eq!(
            (given.flag("masq"), given.number("port")),
            (Some(true), None)
        );
    }

    #[test]
    fn faults_have_gos_words() {
        for (line, words) in [
            ("-x", "flag provided but not defined: -x"),
            ("--x=1", "flag provided but not defined: -x"),
            ("-file", "flag needs an argument: -file"),
            ("---file", "bad flag syntax: ---file"),
            ("-=x", "bad flag syntax: -=x"),
            (
                "-masq=yes",
                "invalid boolean value \"yes\" for -masq: parse error",
            ),
            (
                "-port seven",
                "invalid value \"seven\" for flag -port: parse error",
            ),
            (
                "-port=08",
                "invalid value \"08\" for flag -port: parse error",
            ),
        ] {
            assert_eq!(parse(line), Err(Stop::Wrong(words.to_owned())), "{line}");
        }
        for line in ["-h", "-help", "--help", "-port 1 -h"] {
            assert_eq!(parse(line), Err(Stop::Help));
        }
    }

    #[test]
    fn a_variable_stands_in_for_a_flag_that_is_not_given() {
        let mut given = parse("-port 7").unwrap();
        let variables = [
            ("P_PORT", "8"),
            ("P_FILE", "/x"),
            ("P_IFACE", "a,b"),
            ("P_MASQ", "yes"),
        ];
        let value = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let ignored = given.complete(&FLAGS, "P", value);
        assert_eq!(given.number("port"), Some(7));
        assert_eq!(given.text("file").as_deref(), Some("/x"));
        assert_eq!(given.texts("iface"), Some(vec!["a,b".to_owned()]));
        assert_eq!(given.flag("masq"), None);
        assert_eq!(ignored.len(), 1);
        assert!(ignored[0].contains("P_MASQ is ignored"), "{ignored:?}");
        assert!(!ignored[0].contains("yes"), "{ignored:?}");
    }

    proptest! {
        #[test]
        fn any_words_end(words in prop::collection::vec("-{0,3}[a-z=0-9]{0,6}", 0..6)) {
            let _ = Given::parse(&words, &FLAGS);
        }

        #[test]
        fn numbers_are_read_back(number in any::<i64>().prop_map(|n| n / 2)) {
            prop_assert_eq!(int_of(&number.to_string()), Some(number));
        }
    }
}
