//! The descriptors kept, by name. The keeper holds them open and never reads them.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use thiserror::Error;

use super::channel::DESCRIPTORS_PER_MESSAGE;

/// Why a deposit was refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum TableError {
    /// A deposit carries exactly one descriptor.
    #[error("{count} descriptors came beside the deposit of {name:?}, not one")]
    Count {
        /// The name of the deposit.
        name: String,
        /// What came beside it.
        count: usize,
    },
    /// The name cannot be shown or is too long.
    #[error("a descriptor's name has 1 to {NAME_LIMIT} printable ASCII characters")]
    Name,
    /// Too many names.
    #[error("the keeper holds at most {ENTRY_LIMIT} descriptors; use fewer workers")]
    Full,
}

/// Name → descriptor, in order of the names.
#[derive(Debug, Default)]
pub struct DescriptorTable {
    entries: BTreeMap<String, OwnedFd>,
}

impl DescriptorTable {
    /// Keeps the descriptor of a deposit; an older one of that name is closed.
    ///
    /// # Errors
    /// Anything but one descriptor, an unprintable or overlong name, or a full table. Nothing is kept then.
    pub fn deposit(&mut self, name: String, descriptors: Vec<OwnedFd>) -> Result<(), TableError> {
        if name.is_empty() || name.len() > NAME_LIMIT || !name.bytes().all(|b| b.is_ascii_graphic())
        {
            return Err(TableError::Name);
        }
        let count = descriptors.len();
        let mut descriptors = descriptors.into_iter();
        let (Some(descriptor), None) = (descriptors.next(), descriptors.next()) else {
            return Err(TableError::Count { name, count });
        };
        if self.entries.len() >= ENTRY_LIMIT && !self.entries.contains_key(&name) {
            return Err(TableError::Full);
        }
        self.entries.insert(name, descriptor);
        Ok(())
    }

    /// Closes the copy of that name; says whether there was one.
    pub fn withdraw(&mut self, name: &str) -> bool {
        self.entries.remove(name).is_some()
    }

    /// The descriptor of that name.
    pub fn descriptor(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.entries.get(name).map(AsFd::as_fd)
    }

    /// All descriptors.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.entries.values().map(AsFd::as_fd)
    }

    /// Nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Names kept.
    pub fn names(&self) -> Vec<String> {
        self.entries.keys().cloned().collect()
    }

    /// The table in parts small enough for one message each; an empty table is one empty part.
    pub fn parts(&self) -> Vec<(Vec<String>, Vec<BorrowedFd<'_>>)> {
        let mut parts: Vec<(Vec<String>, Vec<BorrowedFd<'_>>)> = Vec::new();
        for (name, descriptor) in &self.entries {
            match parts.last_mut() {
                Some((names, descriptors)) if names.len() < DESCRIPTORS_PER_MESSAGE => {
                    names.push(name.clone());
                    descriptors.push(descriptor.as_fd());
                }
                _ => parts.push((vec![name.clone()], vec![descriptor.as_fd()])),
            }
        }
        if parts.is_empty() {
            parts.push((Vec::new(), Vec::new()));
        }
        parts
    }
}

const NAME_LIMIT: usize = 64;
pub(super) const ENTRY_LIMIT: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor() -> OwnedFd {
        tempfile::tempfile().unwrap().into()
    }

    #[test]
    fn a_later_deposit_replaces_and_a_withdrawal_closes() {
        let mut table = DescriptorTable::default();
        let (reader, writer) = std::io::pipe().unwrap();
        table.deposit("x".into(), vec![writer.into()]).unwrap();
        table.deposit("x".into(), vec![descriptor()]).unwrap();
        // The only writer is closed, so the pipe has ended.
        assert_eq!(std::io::read_to_string(reader).unwrap(), "");
        assert!(table.withdraw("x"));
        assert!(!table.withdraw("x"));
        assert!(table.is_empty());
    }

    #[test]
    fn wrong_deposits_change_nothing() {
        let mut table = DescriptorTable::default();
        assert_eq!(
            table.deposit(String::new(), vec![descriptor()]),
            Err(TableError::Name)
        );
        assert_eq!(
            table.deposit("a b".into(), vec![descriptor()]),
            Err(TableError::Name)
        );
        assert_eq!(
            table.deposit("n".repeat(65), vec![descriptor()]),
            Err(TableError::Name)
        );
        let none = table.deposit("a".into(), vec![]);
        assert_eq!(
            none,
            Err(TableError::Count {
                name: "a".into(),
                count: 0
            })
        );
        let two = table.deposit("a".into(), vec![descriptor(), descriptor()]);
        assert_eq!(
            two,
            Err(TableError::Count {
                name: "a".into(),
                count: 2
            })
        );
        assert!(table.is_empty());
    }

    #[test]
    fn the_table_is_bounded_and_goes_out_in_parts() {
        let mut table = DescriptorTable::default();
        assert_eq!(table.parts().len(), 1);
        let file = descriptor();
        for index in 0..DESCRIPTORS_PER_MESSAGE + 1 {
            table
                .deposit(format!("d{index}"), vec![file.try_clone().unwrap()])
                .unwrap();
        }
        let sizes: Vec<usize> = table.parts().iter().map(|(_, fds)| fds.len()).collect();
        assert_eq!(sizes, [DESCRIPTORS_PER_MESSAGE, 1]);
        let mut full = DescriptorTable::default();
        for index in 0..ENTRY_LIMIT {
            // One file is enough: the bound is on names, and descriptors are a scarce thing in tests.
            full.entries
                .insert(format!("d{index}"), file.try_clone().unwrap());
        }
        assert_eq!(
            full.deposit("one-more".into(), vec![descriptor()]),
            Err(TableError::Full)
        );
        assert_eq!(full.deposit("d0".into(), vec![descriptor()]), Ok(()));
    }
}
