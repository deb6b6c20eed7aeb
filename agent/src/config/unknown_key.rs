//! Keys that mean nothing to us.

use std::fmt;

use super::document::nearest;

/// A key that flannel ignores, and we with it. Its `Display` is the key, and the one that was probably meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownKey {
    /// As written; one inside `Backend` as `Backend.KEY`.
    pub key: String,
    /// The known key nearest to it, where one is near.
    pub nearest: Option<&'static str>,
}

impl UnknownKey {
    pub(super) fn new(
        place: &str,
        key: &str,
        known: impl Iterator<Item = &'static str>,
    ) -> UnknownKey {
        UnknownKey {
            key: format!("{place}{key}"),
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
