//! Which call owns an attachment: by its lock and by its record.
//!
//! Calls for the same attachment, which no runtime should make at once, run one
//! after the other. Where a call stops waiting for another one, the record says
//! which ADD the attachment belongs to, so neither removes what is the other's.

use std::time::Duration;

use cni_shim::attachment::{self, Lock};
use cni_shim::protocol::AttachmentKey;
use cni_shim::{Attachment, RunDir};

use crate::delegate::PATIENCE;
use crate::error::Error;
use crate::failpoint;

/// The ADD that a record belongs to, compared with the ADD that wrote a known record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The same ADD.
    This,
    /// No ADD: there is no record, or none that can be read.
    None,
    /// Another ADD.
    Other,
}

/// Takes the attachment's lock; waits at most `patience`.
pub(crate) fn lock(
    run: &RunDir,
    key: &AttachmentKey,
    patience: Duration,
) -> Result<Lock, attachment::Error> {
    if failpoint::is_stop_set() {
        // A test that stops the plugin asks what happens after its lock was seized, not how long others wait for it.
        return Ok(Lock::none());
    }
    Lock::take(run, &key.container, &key.ifname, patience)
}

/// The same for DEL, which goes on in any case: after as long as an
/// IPAM plugin may take it seizes the lock.
pub(crate) fn lock_or_seize(run: &RunDir, key: &AttachmentKey) -> Lock {
    let taken = lock(run, key, PATIENCE).or_else(|error| match error {
        attachment::Error::AtWork { .. } => {
            eprintln!(
                "tartan-cni: {error}; DEL waits no longer: an ADD removes what it still makes, but an address that an ipam \
                 plugin whose caller was killed gives from now on is lost"
            );
            Lock::seize(run, &key.container, &key.ifname)
        }
        error => Err(error),
    });
    or_none(taken)
}

/// The lock, or a lock of nothing where it cannot be made, on a full disk say: the
/// caller removes the attachment all the same.
pub(crate) fn or_none(taken: Result<Lock, attachment::Error>) -> Lock {
    taken.unwrap_or_else(|error| {
        // Without their directory there are no records, and perhaps there was no ADD.
        if !error.is_not_found() {
            eprintln!("tartan-cni: {error}");
        }
        Lock::none()
    })
}

/// Which ADD wrote the record that is now in the place of `record`.
pub(crate) fn owner(run: &RunDir, record: &Attachment) -> Result<Owner, attachment::Error> {
    let path = Attachment::path(run, &record.container, &record.ifname)?;
    Ok(match Attachment::read(&path) {
        Ok(found) if found.written_by == record.written_by => Owner::This,
        Ok(_) => Owner::Other,
        Err(_) => Owner::None,
    })
}

/// Refuses to go on with an attachment that a DEL has taken over: the DEL removes
/// the record, which must not come back, and a later ADD writes its own.
pub(crate) fn expect_ours(run: &RunDir, record: &Attachment, lock: &Lock) -> Result<(), Error> {
    match owner(run, record)? {
        Owner::This if lock.is_valid() => Ok(()),
        _ => Err(Error::Removed),
    }
}
