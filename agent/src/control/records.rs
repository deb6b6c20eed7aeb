//! The attachment records of this node as they were read last, and which of them are served.
//!
//! Theory of operation. The directory of records is the database; this is what the last listing found. A record is read
//! again when its plugin says so, and all of them when the directory changes. An attachment with a bandwidth limit is
//! *withheld*, neither delivered to nor heard, until its limit was tried once: a pod is never served faster than it may
//! be. Records that were there at the start are not withheld, since packets already flow by the service before.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cni_shim::{Attachment, RunDir};
use ipnet::IpNet;

use crate::api::wire::RefusedRecord;
use crate::attachments;

/// Identifies an attachment: container, interface name, and time of creation.
pub type AttachmentKey = (String, String, u64);

/// The records of one node.
#[derive(Clone, Debug)]
pub struct Records {
    run: RunDir,
    adopted: Vec<Arc<Attachment>>,
    refused: Arc<[RefusedRecord]>,
    /// When the directory had changed, as of the last listing; unknown while it may change again within the clock's grain.
    listed: Option<SystemTime>,
    /// Attachments with a limit that was tried.
    tried: HashSet<AttachmentKey>,
}

impl Records {
    /// Lists the directory for the first time. `subnets` are this node's own.
    pub fn list(run: RunDir, subnets: &[IpNet]) -> Records {
        let mut records = Records {
            run,
            adopted: Vec::new(),
            refused: Arc::default(),
            listed: None,
            tried: HashSet::new(),
        };
        records.relist(subnets);
        records.tried = records.limited().map(|a| key(a)).collect();
        records
    }

    /// Lists the directory again.
    pub fn relist(&mut self, subnets: &[IpNet]) {
        self.listed = settled_change(&self.run);
        let scan = attachments::scan(&self.run, subnets);
        self.adopted = scan.adopted;
        self.refused = scan
            .refused
            .into_iter()
            .map(|refused| RefusedRecord {
                file: refused.path.display().to_string(),
                reason: refused.reason,
            })
            .collect();
        self.forget_gone();
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
        let alone = self.refused.is_empty()
            && attachments::rescan(&self.run, subnets, container, ifname, &mut self.adopted);
        if alone {
            self.forget_gone();
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

    /// Whether the attachment waits for its limit.
    pub fn is_withheld(&self, attachment: &Attachment) -> bool {
        attachment.bandwidth.is_some() && !self.tried.contains(&key(attachment))
    }

    /// Notes that an attachment's limit was tried, with whatever result. Returns whether that changes what is served.
    pub fn limit_was_tried(&mut self, tried: AttachmentKey) -> bool {
        let is_known = self.limited().any(|a| key(a) == tried);
        is_known && self.tried.insert(tried)
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

    fn limited(&self) -> impl Iterator<Item = &Arc<Attachment>> {
        self.adopted.iter().filter(|a| a.bandwidth.is_some())
    }

    fn forget_gone(&mut self) {
        if !self.tried.is_empty() {
            let there: HashSet<AttachmentKey> = self.limited().map(|a| key(a)).collect();
            self.tried.retain(|tried| there.contains(tried));
        }
    }
}

/// The attachment's identity.
pub fn key(attachment: &Attachment) -> AttachmentKey {
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
