//! Whose record of an attachment there is: calls for the same attachment that
//! no runtime should make at once must not harm each other all the same.

use cni_shim::{Attachment, RunDir, attachment};

use crate::error::Error;

/// Seen from one ADD, or from whoever has read what that one wrote.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// That ADD.
    Us,
    /// There is none, or none that can be read.
    Nobody,
    /// Another ADD.
    Another,
}

/// Who has written the record that is there in the place of `record`.
pub(crate) fn owner(run: &RunDir, record: &Attachment) -> Result<Owner, attachment::Error> {
    let path = Attachment::path(run, &record.container, &record.ifname)?;
    Ok(match Attachment::read(&path) {
        Ok(found) if found.written_by == record.written_by => Owner::Us,
        Ok(_) => Owner::Another,
        Err(_) => Owner::Nobody,
    })
}

/// A DEL that ran meanwhile, as no runtime should let it, took the record away
/// and must not see it come back; an ADD after that has its own.
pub(crate) fn expect_ours(run: &RunDir, record: &Attachment) -> Result<(), Error> {
    match owner(run, record)? {
        Owner::Us => Ok(()),
        Owner::Nobody | Owner::Another => Err(Error::Removed),
    }
}
