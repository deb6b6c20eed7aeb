//! What the loop keeps of the registry beside the leases: its settings, whether it answers, what it passed over.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use cni_shim::atomic_file;
use ipnet::IpNet;

use super::diagnosis::{MOST_OF_A_KIND, more};
use crate::causes::causes;
use crate::config::NetConf;
use crate::problems::Problem;
use crate::registry::{Contact, RefusedRecord, RegistryPlace, RegistrySettings};

/// The registry as it has shown itself.
#[derive(Clone, Debug)]
pub struct RegistryState {
    /// The kind and what it reads.
    description: Arc<str>,
    /// What it says beside the leases; `None` for a file, and until a remote one has said it.
    pub settings: Option<RegistrySettings>,
    /// Why its net-conf cannot be used, if it cannot.
    refused_net_conf: Option<Problem>,
    /// Why it does not answer, if it does not.
    lost: Option<String>,
    /// Since when the registry answers or does not; `None` until a remote one has answered or failed.
    since: Option<Instant>,
    /// Records that are passed over.
    pub refused_records: Arc<[RefusedRecord]>,
    /// What was refused last, and when.
    last_refused: Option<(Arc<str>, Instant)>,
}

/// Whether the registry answers, for `tartan status`.
#[derive(Clone, Debug)]
pub struct InTouch {
    /// It does.
    pub answers: bool,
    /// Since when it does or does not; `None` before its first word.
    pub since: Option<Instant>,
    /// What was refused last of what it said, and when.
    pub last_refused: Option<(Arc<str>, Instant)>,
}

impl RegistryState {
    /// That of a registry that has said nothing yet. A file always answers.
    pub fn new(description: &str, is_file: bool) -> RegistryState {
        RegistryState {
            description: description.into(),
            settings: None,
            refused_net_conf: None,
            lost: None,
            since: is_file.then(Instant::now),
            refused_records: Arc::default(),
            last_refused: None,
        }
    }

    /// Takes its settings. A net-conf that can be used, and that leaves this node its subnets `own`, replaces the copy at
    /// `copy`, which the service reads as any other net-conf; returns whether it differs from the one before.
    pub fn learn(
        &mut self,
        settings: RegistrySettings,
        own: &[IpNet],
        place: &RegistryPlace,
        copy: &Path,
    ) -> bool {
        let text = settings.net_conf.clone();
        self.settings = Some(settings);
        self.refused_net_conf = None;
        let Some(text) = text else {
            return false;
        };
        match keep(&text, own, copy) {
            Ok(differs) => differs,
            Err(reason) => {
                let reason = format!("{place}: {reason}");
                self.note_refused(&reason);
                self.refused_net_conf = Some(Problem::NetConfRefused {
                    path: format!("{place}/config").into(),
                    reason,
                    cached: true,
                });
                false
            }
        }
    }

    /// Takes note of whether it answers.
    pub fn contact(&mut self, contact: Contact) {
        let lost = match contact {
            Contact::InTouch => None,
            Contact::Lost { reason } => Some(reason),
        };
        if self.since.is_none() || lost.is_some() != self.lost.is_some() {
            self.since = Some(Instant::now());
        }
        self.lost = lost;
    }

    /// Takes note of what was refused of what it said.
    pub fn note_refused(&mut self, reason: &str) {
        self.last_refused = Some((reason.into(), Instant::now()));
    }

    /// Takes the complete list of records that are passed over.
    pub fn pass_over(&mut self, records: Vec<RefusedRecord>) {
        if let Some(new) = records
            .iter()
            .find(|record| !self.refused_records.contains(record))
        {
            let reason = format!("{}: {}", new.place, new.reason);
            self.note_refused(&reason);
        }
        self.refused_records = records.into();
    }

    /// Whether it answers, and since when.
    pub fn in_touch(&self) -> InTouch {
        InTouch {
            answers: self.lost.is_none() && self.since.is_some(),
            since: self.since,
            last_refused: self.last_refused.clone(),
        }
    }

    /// What is wrong with it.
    pub fn problems(&self) -> Vec<Problem> {
        let lost = self.lost.as_ref().map(|reason| Problem::RegistryLost {
            registry: self.description.to_string(),
            reason: reason.clone(),
        });
        let refused = |record: &RefusedRecord| Problem::LeaseRefused {
            place: record.place.to_string(),
            reason: record.reason.clone(),
        };
        let shown = self.refused_records.iter().take(MOST_OF_A_KIND);
        let shown = shown.map(refused);
        let more = more(
            self.refused_records.len(),
            "leases are refused",
            "tartan peers",
        );
        let net_conf = self.refused_net_conf.iter().cloned();
        let all = lost.into_iter().chain(net_conf).chain(shown);
        all.chain(more).collect()
    }
}

/// Makes the file at `copy` hold `text`; returns whether it held another.
fn keep(text: &str, own: &[IpNet], copy: &Path) -> Result<bool, String> {
    let net_conf = NetConf::parse(text).map_err(|error| causes(&error))?;
    let cluster = net_conf.cluster();
    let is_inside = |subnet: &&IpNet| cluster.iter().any(|network| network.contains(*subnet));
    if let Some(subnet) = own.iter().find(|subnet| !is_inside(subnet)) {
        return Err(format!(
            "this node's subnet {subnet} lies outside of its networks, and its pods would lose their addresses: change it back; a node takes another network when it is drained, its agent stopped, `tartan cleanup` run, and the agent started"
        ));
    }
    if std::fs::read_to_string(copy).is_ok_and(|found| found == text) {
        return Ok(false);
    }
    match atomic_file::replace_for_good(copy, text.as_bytes()) {
        Ok(()) => Ok(true),
        Err(error) => Err(format!(
            "it cannot be kept as {}, from which services start ({error}): check that the state directory is writable by root and its disk not full",
            copy.display()
        )),
    }
}

#[cfg(test)]
mod tests;
