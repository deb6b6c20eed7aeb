//! Calls for the same attachment, which no runtime should make at once, come one
//! after the other, and where one cannot be waited for any longer they do not
//! harm each other all the same: whose lock it is, and whose record.

use std::time::Duration;

use cni_shim::attachment::{self, Lock};
use cni_shim::protocol::AttachmentKey;
use cni_shim::{Attachment, RunDir};

use crate::delegate::PATIENCE;
use crate::error::Error;
use crate::failpoint;

/// Seen from one ADD, or from whoever has read what that one wrote.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// That ADD.
    This,
    /// There is none, or none that can be read.
    None,
    /// Another ADD.
    Other,
}

/// The attachment's lock, for who may fail: waits at most `patience`.
pub(crate) fn lock(
    run: &RunDir,
    key: &AttachmentKey,
    patience: Duration,
) -> Result<Lock, attachment::Error> {
    if failpoint::is_stop_set() {
        // Who has us stand still asks what becomes of one whose lock was seized, not for how long it is waited for.
        return Ok(Lock::none());
    }
    Lock::take(run, &key.container, &key.ifname, patience)
}

/// The same for DEL, which goes on whatever becomes of it: after as long as an
/// IPAM plugin may take it seizes the lock.
pub(crate) fn lock_or_seize(run: &RunDir, key: &AttachmentKey) -> Lock {
    let taken = lock(run, key, PATIENCE).or_else(|error| match error {
        attachment::Error::AtWork { .. } => {
            eprintln!(
                "tartan-cni: {error}; not waited for any more: an ADD takes back what it still makes, what an ipam \
                 plugin without a caller gives from now on is lost"
            );
            Lock::seize(run, &key.container, &key.ifname)
        }
        error => Err(error),
    });
    or_none(taken)
}

/// None where it cannot be made, on a full disk say: what is there is removed
/// all the same.
pub(crate) fn or_none(taken: Result<Lock, attachment::Error>) -> Lock {
    taken.unwrap_or_else(|error| {
        // Without their directory there are no records, and perhaps there was no ADD.
        if !error.is_not_found() {
            eprintln!("tartan-cni: {error}");
        }
        Lock::none()
    })
}

/// Who has written the record that is there in the place of `record`.
pub(crate) fn owner(run: &RunDir, record: &Attachment) -> Result<Owner, attachment::Error> {
    let path = Attachment::path(run, &record.container, &record.ifname)?;
    Ok(match Attachment::read(&path) {
        Ok(found) if found.written_by == record.written_by => Owner::This,
        Ok(_) => Owner::Other,
        Err(_) => Owner::None,
    })
}

/// A DEL that did not wait for us any more is taking the record away, or has,
/// and must not see it come back; an ADD after that has its own.
pub(crate) fn expect_ours(run: &RunDir, record: &Attachment, lock: &Lock) -> Result<(), Error> {
    match owner(run, record)? {
        Owner::This if lock.stands() => Ok(()),
        _ => Err(Error::Removed),
    }
}
