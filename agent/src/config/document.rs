//! Reads a TOML document key by key, so that every error names its line.

use std::net::IpAddr;
use std::ops::Range;

use ipnet::IpNet;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::plain_words;
use super::subnet_range::parse_prefix;

/// A table of a document, with the document's text.
#[derive(Clone, Copy)]
pub(crate) struct TomlTable<'a> {
    text: &'a str,
    at: usize,
    entries: &'a DeTable<'a>,
}

/// A value and its key.
#[derive(Clone, Copy)]
pub(crate) struct TomlEntry<'a> {
    key: &'static str,
    text: &'a str,
    value: &'a Spanned<DeValue<'a>>,
}

/// A fault of a document and its line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct TomlError {
    /// Line, counted from 1.
    pub line: usize,
    /// What is wrong there.
    pub fault: TomlFault,
}

/// The faults of a document's form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TomlFault {
    /// Not TOML.
    #[error("not TOML: {0}")]
    Syntax(String),
    /// An unknown key.
    #[error("unknown key {key:?}{}", suggestion(.nearest, .known))]
    UnknownKey {
        /// The key.
        key: String,
        /// The most similar known key, if one is similar.
        nearest: Option<&'static str>,
        /// Every known key.
        known: &'static [&'static str],
    },
    /// A value of the wrong type.
    #[error("{key} must be {expected}, not {found}")]
    Type {
        /// The key.
        key: &'static str,
        /// The type it must have.
        expected: &'static str,
        /// The type it has.
        found: &'static str,
    },
    /// Text that is not an IP address.
    #[error("{key} must be an IP address, not {value:?}")]
    Address {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
    },
    /// Text that is not a prefix.
    #[error("{key} must be a prefix as in 10.244.1.0/24, not {value:?}")]
    Prefix {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
    },
    /// A prefix with host bits set: either the address or the length is a mistake.
    #[error(
        "{key} {written} has bits set after the prefix length: write {meant} or a longer length"
    )]
    HostBits {
        /// The key.
        key: &'static str,
        /// The prefix as written.
        written: IpNet,
        /// The prefix of that length, host bits zero.
        meant: IpNet,
    },
    /// A number out of range.
    #[error("{key} must be {least} to {most}")]
    Range {
        /// The key.
        key: &'static str,
        /// Least value accepted.
        least: u16,
        /// Greatest value accepted.
        most: u16,
    },
}

/// Parses `text` and passes its top-level table to `read`.
pub(crate) fn parse<T, E: From<TomlError>>(
    text: &str,
    read: impl FnOnce(TomlTable<'_>) -> Result<T, E>,
) -> Result<T, E> {
    let document = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        TomlError {
            line: line(text, at),
            fault: TomlFault::Syntax(syntax(text, at, error.message())),
        }
    })?;
    read(TomlTable {
        text,
        at: 0,
        entries: document.get_ref(),
    })
}

/// The text of a top-level key of a document that may have faults elsewhere.
pub(crate) fn text_despite_faults(text: &str, key: &str) -> Option<String> {
    let (document, _) = DeTable::parse_recoverable(text);
    let value = document.get_ref().get(key)?;
    value.get_ref().as_str().map(str::to_owned)
}

/// Whether a document that may have faults has this top-level key.
pub(crate) fn has_key_despite_faults(text: &str, key: &str) -> bool {
    let (document, _) = DeTable::parse_recoverable(text);
    document.get_ref().contains_key(key)
}

impl<'a> TomlTable<'a> {
    /// Byte offset of the table, for [`line`].
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Refuses the first key in the text that is not in `known`.
    pub(crate) fn only(&self, known: &'static [&'static str]) -> Result<(), TomlError> {
        let unknown = self
            .entries
            .keys()
            .filter(|key| !known.contains(&key.get_ref().as_ref()));
        match unknown.min_by_key(|key| key.span().start) {
            None => Ok(()),
            Some(key) => Err(TomlError {
                line: line(self.text, key.span().start),
                fault: TomlFault::UnknownKey {
                    key: key.get_ref().to_string(),
                    nearest: nearest(key.get_ref(), known.iter().copied()),
                    known,
                },
            }),
        }
    }

    pub(crate) fn entry(&self, key: &'static str) -> Option<TomlEntry<'a>> {
        self.entries.get(key).map(|value| TomlEntry {
            key,
            text: self.text,
            value,
        })
    }
}

impl<'a> TomlEntry<'a> {
    /// Byte offset of the value, for [`line`].
    pub(crate) fn at(&self) -> usize {
        self.value.span().start
    }

    pub(crate) fn text(&self) -> Result<&'a str, TomlError> {
        self.value
            .get_ref()
            .as_str()
            .ok_or_else(|| self.mismatch("text in quotes"))
    }

    pub(crate) fn flag(&self) -> Result<bool, TomlError> {
        self.value
            .get_ref()
            .as_bool()
            .ok_or_else(|| self.mismatch("true or false"))
    }

    pub(crate) fn whole(&self, range: Range<u16>) -> Result<u16, TomlError> {
        let digits = self
            .value
            .get_ref()
            .as_integer()
            .ok_or_else(|| self.mismatch("a whole number"))?;
        let number = u16::from_str_radix(digits.as_str(), digits.radix()).ok();
        number
            .filter(|number| range.contains(number))
            .ok_or_else(|| {
                let most = range.end.saturating_sub(1);
                self.fault(TomlFault::Range {
                    key: self.key,
                    least: range.start,
                    most,
                })
            })
    }

    /// Text, or a number as written.
    pub(crate) fn text_or_digits(&self) -> Result<String, TomlError> {
        match self.value.get_ref().as_integer() {
            Some(digits) => Ok(digits.as_str().to_owned()),
            None => self.text().map(str::to_owned),
        }
    }

    pub(crate) fn address(&self) -> Result<IpAddr, TomlError> {
        let text = self.text()?;
        text.parse().map_err(|_| {
            self.fault(TomlFault::Address {
                key: self.key,
                value: text.to_owned(),
            })
        })
    }

    /// A prefix whose host bits are zero.
    pub(crate) fn prefix(&self) -> Result<IpNet, TomlError> {
        let (key, text) = (self.key, self.text()?);
        let value = || text.to_owned();
        let written = parse_prefix(text).ok_or_else(|| {
            self.fault(TomlFault::Prefix {
                key,
                value: value(),
            })
        })?;
        match written.trunc() {
            meant if meant == written => Ok(written),
            meant => Err(self.fault(TomlFault::HostBits {
                key,
                written,
                meant,
            })),
        }
    }

    /// The elements of a list. Each has its own line.
    pub(crate) fn list(&self) -> Result<impl Iterator<Item = TomlEntry<'a>>, TomlError> {
        let (key, text) = (self.key, self.text);
        let list = self
            .value
            .get_ref()
            .as_array()
            .ok_or_else(|| self.mismatch("a list in brackets"))?;
        Ok(list.iter().map(move |value| TomlEntry { key, text, value }))
    }

    pub(crate) fn table(&self) -> Result<TomlTable<'a>, TomlError> {
        let entries = self
            .value
            .get_ref()
            .as_table()
            .ok_or_else(|| self.mismatch("a table"))?;
        Ok(TomlTable {
            text: self.text,
            at: self.value.span().start,
            entries,
        })
    }

    fn fault(&self, fault: TomlFault) -> TomlError {
        TomlError {
            line: line(self.text, self.at()),
            fault,
        }
    }

    fn mismatch(&self, expected: &'static str) -> TomlError {
        let found = match self.value.get_ref() {
            DeValue::String(_) => "text",
            DeValue::Integer(_) | DeValue::Float(_) => "a number",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        self.fault(TomlFault::Type {
            key: self.key,
            expected,
            found,
        })
    }
}

/// The known key that is most similar to `key`, if it is similar enough to be a suggestion.
pub(super) fn nearest(
    key: &str,
    known: impl Iterator<Item = &'static str>,
) -> Option<&'static str> {
    // Comparing costs the product of the lengths, and an untrusted file may hold a key of any length.
    let key: String = key
        .chars()
        .take(64)
        .collect::<String>()
        .to_lowercase()
        .replace('_', "-");
    let scored = known.map(|name| (strsim::jaro_winkler(&key, &name.to_lowercase()), name));
    let best = scored.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (best.0 >= SIMILAR).then_some(best.1)
}

fn suggestion(nearest: &Option<&'static str>, known: &[&'static str]) -> String {
    match nearest {
        Some(nearest) => format!(", did you mean {nearest:?}?"),
        None => format!(", the known keys are {}", known.join(", ")),
    }
}

/// What is wrong at the byte at offset `at`, with its column, counted from 1 in characters, and the line itself.
fn syntax(text: &str, at: usize, message: &str) -> String {
    let before: Vec<u8> = text.bytes().take(at).collect();
    let before = String::from_utf8_lossy(&before);
    let column = before.lines().last().map_or(0, |line| line.chars().count());
    let column = if before.ends_with('\n') { 0 } else { column };
    let number = line(text, at);
    let shown = text
        .lines()
        .nth(number.saturating_sub(1))
        .unwrap_or_default();
    let shown: String = shown.trim().chars().take(LONGEST_SHOWN).collect();
    let rest = text.get(at..).and_then(|rest| rest.lines().next());
    let words = match rest.unwrap_or_default().trim().is_empty() {
        // The parser misses the quotes of a value that is not there.
        true if message.contains("must be quoted") => "the value is missing",
        _ => plain_words::of(message),
    };
    format!("{words}, at column {}: {shown}", column + 1)
}

/// The line of a top-level key's value.
pub(super) fn line_of(text: &str, key: &str) -> Option<usize> {
    let (document, _) = DeTable::parse_recoverable(text);
    let at = document.get_ref().get(key)?.span().start;
    Some(line(text, at))
}

/// The line, counted from 1, of the byte at offset `at`. Reads all text before it: for errors only.
pub(crate) fn line(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

/// Jaro-Winkler similarity at which a key becomes a suggestion: one typing error in a short word is above it,
/// another word below.
const SIMILAR: f64 = 0.8;
/// Characters of a line that a message repeats.
const LONGEST_SHOWN: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(text: &str, read: impl FnOnce(TomlTable<'_>) -> Result<(), TomlError>) -> String {
        parse(text, read).unwrap_err().to_string()
    }

    #[test]
    fn invalid_toml_is_refused_with_its_line() {
        let message = error_of("a = 1\nb = \n", |_| Ok(()));
        assert!(message.starts_with("line 2: not TOML: "), "{message}");
        let message = error_of("a = 1\n\na = 2\n", |_| Ok(()));
        assert!(message.starts_with("line 3: not TOML: "), "{message}");
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_most_similar_one() {
        let only = |table: TomlTable<'_>| table.only(&["node-name", "root"]);
        assert_eq!(
            error_of("\nnode_nam = 1", only),
            "line 2: unknown key \"node_nam\", did you mean \"node-name\"?"
        );
        assert_eq!(
            error_of("zzz = 1", only),
            "line 1: unknown key \"zzz\", the known keys are node-name, root"
        );
        let message = error_of("b = 1\na = 1", only);
        assert!(
            message.starts_with("line 1: unknown key \"b\""),
            "the first in the text: {message}"
        );
    }

    #[test]
    fn types_and_ranges_are_checked() {
        let flag = |table: TomlTable<'_>| table.entry("k").unwrap().flag().map(drop);
        assert_eq!(
            error_of("k = 1", flag),
            "line 1: k must be true or false, not a number"
        );
        let text = |table: TomlTable<'_>| table.entry("k").unwrap().text().map(drop);
        assert_eq!(
            error_of("k = []", text),
            "line 1: k must be text in quotes, not a list"
        );
        let whole = |table: TomlTable<'_>| table.entry("k").unwrap().whole(1..5).map(drop);
        for value in ["0", "5", "-1", "99999999999999999999"] {
            assert_eq!(
                error_of(&format!("k = {value}"), whole),
                "line 1: k must be 1 to 4"
            );
        }
        assert_eq!(
            error_of("k = 1.5", whole),
            "line 1: k must be a whole number, not a number"
        );
        assert!(parse("k = 0x4", whole).is_ok());
        let list = |table: TomlTable<'_>| {
            table
                .entry("k")
                .unwrap()
                .list()?
                .try_for_each(|item| item.table().map(drop))
        };
        assert_eq!(
            error_of("k = [\n {},\n 1]", list),
            "line 3: k must be a table, not a number"
        );
        assert_eq!(
            error_of("k = true", list),
            "line 1: k must be a list in brackets, not true or false"
        );
    }
}
