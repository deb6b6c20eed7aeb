//! Unknown keys of a `net-conf.json`.

use std::fmt;

use super::document::nearest;

/// A key that flannel ignores, and so does Tartan. Its `Display` is the key and the most similar known key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownKey {
    /// As written; one inside `Backend` as `Backend.KEY`.
    pub key: String,
    /// The most similar known key, if one is similar.
    pub nearest: Option<&'static str>,
}

impl UnknownKey {
    pub(super) fn new(
        prefix: &str,
        key: &str,
        known: impl Iterator<Item = &'static str>,
    ) -> UnknownKey {
        UnknownKey {
            key: format!("{prefix}{key}"),
            nearest: nearest(key, known),
        }
    }
}

impl fmt::Display for UnknownKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        match self.nearest {
            Some(nearest) => write!(f, " (did you mean {nearest:?}?)"),
            None => Ok(()),
        }
    }
}
