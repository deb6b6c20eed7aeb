//! The attachment records of this node as they were read last, and which of them are served.
//!
//! Theory of operation. The directory of records is the database; this is what the last listing found. A record is read
//! again when its plugin says so, and all of them when the directory changes. An attachment with a bandwidth limit is
//! *withheld*, neither delivered to nor heard, until its limit is in force: a pod is never served faster than it may be.
//! Records that were there at the start are not withheld, since packets already flow by the service before.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cni_shim::{Attachment, RunDir};
use ipnet::IpNet;

use crate::api::wire::RefusedRecord;
use crate::attachments;

/// Identifies an attachment: container, interface name, and time of creation.
pub type RecordKey = (String, String, u64);

/// The records of one node.
#[derive(Clone, Debug)]
pub struct Records {
    run: RunDir,
    adopted: Vec<Arc<Attachment>>,
    refused: Arc<[RefusedRecord]>,
    /// When the directory had changed, as of the last listing; unknown while it may change again within the clock's grain.
    listed: Option<SystemTime>,
    /// Attachments whose limit has been in force, or that a service before this one served.
    limited: HashSet<RecordKey>,
    /// Addresses of attachments whose records were removed since they were taken last.
    gone: Vec<IpAddr>,
}

impl Records {
    /// Lists the directory for the first time. `subnets` are this node's own.
    pub fn list(run: RunDir, subnets: &[IpNet]) -> Records {
        let mut records = Records {
            run,
            adopted: Vec::new(),
            refused: Arc::default(),
            listed: None,
            limited: HashSet::new(),
            gone: Vec::new(),
        };
        records.relist(subnets);
        records.limited = records.with_limit().map(|a| key(a)).collect();
        records
    }

    /// Lists the directory again. Where it cannot be listed, the attachments stay as they were.
    pub fn relist(&mut self, subnets: &[IpNet]) {
        self.listed = settled_change(&self.run);
        let scan = attachments::scan(&self.run, subnets);
        let before = std::mem::take(&mut self.adopted);
        self.adopted = if scan.is_unlisted {
            self.listed = None;
            before.clone()
        } else {
            scan.adopted
        };
        self.refused = scan
            .refused
            .into_iter()
            .map(|refused| RefusedRecord {
                file: refused.path.display().to_string(),
                reason: refused.reason,
            })
            .collect();
        self.note_gone(&before);
    }

    /// Lists the directory again if it has changed since the last listing.
    pub fn relist_if_changed(&mut self, subnets: &[IpNet]) {
        if self.have_changed() {
            self.relist(subnets);
        }
    }

    /// Reads one record again, whose caller says that it changed, and all where that one alone does not decide. Other
    /// changed records are found by the next check of the directory.
    pub fn reread(&mut self, subnets: &[IpNet], container: &str, ifname: &str) {
        // A record that was refused may be served once another is gone.
        let before = self.adopted.clone();
        let alone = self.refused.is_empty()
            && attachments::rescan(&self.run, subnets, container, ifname, &mut self.adopted);
        if alone {
            self.note_gone(&before);
        } else {
            self.relist(subnets);
        }
    }

    /// Whether the directory has changed since it was listed, or may have: a plugin that cannot reach the agent, or an
    /// operator, writes there without a call.
    pub fn have_changed(&self) -> bool {
        self.listed.is_none() || settled_change(&self.run) != self.listed
    }

    /// When the directory had changed, as of the last listing; `None` while it may still be changing.
    pub fn listed(&self) -> Option<SystemTime> {
        self.listed
    }

    /// Every adopted attachment, in the order of the records' file names.
    pub fn adopted(&self) -> &[Arc<Attachment>] {
        &self.adopted
    }

    /// The records that were not adopted.
    pub fn refused(&self) -> &Arc<[RefusedRecord]> {
        &self.refused
    }

    /// The attachments to deliver to: the adopted ones but those withheld.
    pub fn served(&self) -> Vec<Arc<Attachment>> {
        let served = self.adopted.iter().filter(|a| !self.is_withheld(a));
        served.cloned().collect()
    }

    /// The addresses of attachments that wait for their limit.
    pub fn withheld_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let withheld = self.with_limit().filter(|a| self.is_withheld(a));
        withheld.flat_map(|a| a.addresses.iter().map(IpNet::addr))
    }

    /// Whether the attachment waits for its limit.
    pub fn is_withheld(&self, attachment: &Attachment) -> bool {
        attachment.bandwidth.is_some() && !self.limited.contains(&key(attachment))
    }

    /// Notes that an attachment's limit is in force.
    pub fn limit_is_in_force(&mut self, attachment: RecordKey) {
        if self.with_limit().any(|a| key(a) == attachment) {
            self.limited.insert(attachment);
        }
    }

    /// Whether a record of that identity is adopted.
    pub fn has(&self, attachment: &RecordKey) -> bool {
        self.adopted.iter().any(|a| key(a) == *attachment)
    }

    /// The adopted attachment of that container and interface.
    pub fn find(&self, container: &str, ifname: &str) -> Option<&Arc<Attachment>> {
        let mut adopted = self.adopted.iter();
        adopted.find(|a| (&*a.container, &*a.ifname) == (container, ifname))
    }

    /// Why the record of that container and interface was not adopted, if it was refused.
    pub fn refusal(&self, container: &str, ifname: &str) -> Option<&RefusedRecord> {
        let name = Attachment::file_name(container, ifname);
        let mut refused = self.refused.iter();
        refused.find(|refused| Path::new(&refused.file).ends_with(&name))
    }

    fn with_limit(&self) -> impl Iterator<Item = &Arc<Attachment>> {
        self.adopted.iter().filter(|a| a.bandwidth.is_some())
    }

    /// Takes the addresses of attachments whose records were removed since the last call.
    pub fn take_gone(&mut self) -> Vec<IpAddr> {
        std::mem::take(&mut self.gone)
    }

    /// Compares with the attachments `before`. One whose record is there and refused is not gone: its pod may live.
    fn note_gone(&mut self, before: &[Arc<Attachment>]) {
        let is_gone = |a: &&Arc<Attachment>| {
            let (container, ifname) = (&a.container, &a.ifname);
            self.find(container, ifname).is_none() && self.refusal(container, ifname).is_none()
        };
        let gone = before.iter().filter(is_gone);
        let gone: Vec<IpAddr> = gone
            .flat_map(|a| a.addresses.iter().map(IpNet::addr))
            .collect();
        self.gone.extend(gone);
        if !self.limited.is_empty() {
            let there: HashSet<RecordKey> = self.with_limit().map(|a| key(a)).collect();
            self.limited.retain(|limited| there.contains(limited));
        }
    }
}

/// The attachment's identity.
pub fn key(attachment: &Attachment) -> RecordKey {
    let Attachment {
        container, ifname, ..
    } = attachment;
    (container.clone(), ifname.clone(), attachment.created)
}

/// When the directory of records changed last, if that is long enough ago for a further change to show.
fn settled_change(run: &RunDir) -> Option<SystemTime> {
    let found = run.attachments().metadata().ok()?;
    let changed = found.modified().ok()?;
    (changed.elapsed().ok()? > MTIME_GRAIN).then_some(changed)
}

/// Far above a tick of the kernel's clock, by which files are dated.
const MTIME_GRAIN: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
