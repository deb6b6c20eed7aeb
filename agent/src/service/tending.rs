//! What an agent does for attached pods beside delivering to them: their limits are in force, and what no runtime will
//! delete is taken away. At every full look of the control loop, which the going of an interface starts at once.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

use cni_shim::range::{self, Range};
use cni_shim::{Attachment, RunDir};
use cni_shim::{atomic_file, attachment};
use ipnet::IpNet;
use thiserror::Error;
use tracing::{info, warn};

use super::control::Control;
use super::orphans::Orphans;
use crate::attachments::pod_name;
use crate::causes::causes;
use crate::cni::chain;
use crate::host::{Change, HostError, Picture, PodLinks};

/// The memory of it.
#[derive(Debug, Default)]
pub(super) struct Tending {
    pub(super) orphans: Orphans,
    /// Attachments that were taken away since the start.
    pub(super) reclaimed: u64,
    /// The latest of them, in words.
    pub(super) last_reclaimed: Option<String>,
    /// Host's ends whose limits have been in force once.
    limited: HashSet<String>,
    /// There was no attachment at the last look either, so nothing is left of one.
    at_rest: bool,
    /// When the directory of records had changed in which no writer that was killed had left anything.
    swept: Option<SystemTime>,
    /// Bridges of another plugin with pods beside ours.
    pub(super) bridges: Vec<String>,
    /// What could not be done at the last try, in words.
    pub(super) problem: Option<String>,
}

/// Why pods could not be looked after.
#[derive(Debug, Error)]
enum TendingError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("cannot take an attachment away that no runtime deletes")]
    Lock(#[from] range::Error),
    #[error("cannot take an attachment away that no runtime deletes")]
    Record(#[from] attachment::Error),
    #[error("cannot sweep {path}: check that it is writable by root")]
    Sweep {
        path: PathBuf,
        source: std::io::Error,
    },
}

impl Tending {
    /// Whether the next look can wait: nobody is leaving, and nothing is to be swept of the records of that moment.
    pub(super) fn is_settled(&self, records_of: Option<SystemTime>) -> bool {
        !self.orphans.are_any() && self.swept.is_some() && self.swept == records_of
    }
}

impl Control {
    /// Looks after the pods, where there is a picture of their interfaces; what was repaired is returned.
    pub(super) async fn tend_pods(&mut self, picture: Option<&Picture>) -> Vec<Change> {
        let mut repairs = Vec::new();
        let Some(picture) = picture else {
            return repairs;
        };
        let tended = self.tend(picture, &mut repairs).await;
        let problem = tended.err().map(|error| causes(&error));
        if problem != self.tending.problem {
            match &problem {
                Some(problem) => warn!("{problem}"),
                None => info!("the pods are looked after again"),
            }
        }
        self.tending.problem = problem;
        repairs
    }

    /// What one step is refused keeps no other from being made; the first refusal is told.
    async fn tend(
        &mut self,
        picture: &Picture,
        repairs: &mut Vec<Change>,
    ) -> Result<(), TendingError> {
        let swept = self.sweep();
        let known = &self.node.known.attachments;
        if known.is_empty() && self.tending.at_rest {
            return swept;
        }
        let links = picture.pod_links();
        let (shaped, unshaped) = self.host.shape(known, links).await;
        let ends: HashSet<String> = known.iter().map(|a| a.host_ifname.clone()).collect();
        self.tending.limited.retain(|end| ends.contains(end));
        let is_there = |a: &Attachment| links.has(&a.host_ifname);
        let grace = self.node.known.config.reclaim_after;
        let now = Instant::now();
        let due = self.tending.orphans.look(known, is_there, grace, now);
        let mut reclaimed = Ok(());
        for record in due {
            reclaimed = reclaimed.and(self.reclaim(&record).await);
        }
        self.note_limits(shaped, repairs);
        let known = &self.node.known;
        // A record that was refused may be a living pod's.
        let at_rest = known.attachments.is_empty() && self.node.refused_records.is_empty();
        // Without a pod of ours nobody is to be found.
        let own: &[IpNet] = if at_rest { &[] } else { &known.own.subnets };
        let bridged = self.host.set_proxy_arp_on_bridges(picture, own);
        let bridged = bridged.map(|(bridges, changes)| {
            self.tending.bridges = bridges;
            for change in changes {
                info!("set up: {change}");
            }
        });
        let shaped = unshaped.map_or(Ok(()), |error| Err(error.into()));
        let tended = swept.and(reclaimed).and(shaped);
        let tended = tended.and(bridged.map_err(TendingError::from));
        // What was refused is tried again.
        self.tending.at_rest = at_rest && tended.is_ok();
        tended
    }

    /// A limit that is in force for the first time is set up, later it is repaired.
    fn note_limits(&mut self, changes: Vec<Change>, repairs: &mut Vec<Change>) {
        let before = self.tending.limited.clone();
        for change in changes {
            match &change {
                Change::Limited { host_ifname, .. } if !before.contains(host_ifname) => {
                    info!("set up: {change}");
                    self.tending.limited.insert(host_ifname.clone());
                }
                Change::LimiterRemoved(_) => info!("{change}"),
                _ => repairs.push(change),
            }
        }
    }

    /// Removes what plugins left that were killed in the middle of a record, once no other can be at work on it, and the
    /// locks of attachments that nobody holds.
    fn sweep(&mut self) -> Result<(), TendingError> {
        let changed = self.node.records_of();
        if changed.is_some() && changed == self.tending.swept {
            return Ok(());
        }
        let config = &self.node.known.config;
        let run = config.run_dir();
        let path = run.attachments();
        let held = attachment::lock::sweep(&run);
        let left = atomic_file::sweep(&path, config.reclaim_after)
            .and_then(|young| Ok(young + held?))
            .map_err(|source| TendingError::Sweep { path, source })?;
        self.tending.swept = changed.filter(|_| left == 0);
        Ok(())
    }

    /// Takes an attachment away whose interface is gone, unless the plugin is at work: then at another turn.
    async fn reclaim(&mut self, record: &Attachment) -> Result<(), TendingError> {
        let run = self.node.known.config.run_dir();
        let Some(_lock) = Range::try_lock(&run)? else {
            return Ok(());
        };
        let links = self.host.pod_links().await?;
        if links.has(&record.host_ifname) || !is_unchanged(&run, record)? {
            return Ok(());
        }
        range::release(&run, &record.addresses);
        record.remove(&run)?;
        let words = in_words(record);
        warn!("reclaimed: {words}");
        self.tending.reclaimed = self.tending.reclaimed.saturating_add(1);
        self.tending.last_reclaimed = Some(words);
        self.node.reread_records();
        Ok(())
    }

    /// Puts the limits of one attachment in force; why that cannot be, in words.
    pub(super) async fn limit(&mut self, container: &str, ifname: &str) -> Result<(), String> {
        let known = &self.node.known;
        let mut attachments = known.attachments.iter();
        let found = attachments.find(|a| (&*a.container, &*a.ifname) == (container, ifname));
        let Some(record) = found.filter(|record| record.bandwidth.is_some()) else {
            return Ok(());
        };
        let conf_dir = known.config.root.join(chain::CONF_DIR);
        if let Some(twice) = chain::limited_twice(&conf_dir, &record.network) {
            return Err(twice.to_string());
        }
        // Whatever is made now is looked for, even if the pod leaves before the next look.
        self.tending.at_rest = false;
        let one = std::slice::from_ref(record);
        let links = self.host.pod_links().await;
        let links = links.map_err(|error| causes(&error))?;
        let (changes, refused) = self.host.apply_limits(one, &links).await;
        for change in changes {
            info!("set up: {change}");
        }
        if let Some(error) = refused {
            return Err(causes(&error));
        }
        self.tending.limited.insert(record.host_ifname.clone());
        Ok(())
    }

    /// The interfaces of pods, for an answer; none where the kernel does not tell.
    pub(super) async fn pod_links(&self) -> PodLinks {
        self.host.pod_links().await.unwrap_or_default()
    }
}

/// Whether the record is still the one that was seen.
fn is_unchanged(run: &RunDir, record: &Attachment) -> Result<bool, TendingError> {
    let path = Attachment::path(run, &record.container, &record.ifname)?;
    Ok(Attachment::read(&path).is_ok_and(|now| now == *record))
}

fn in_words(record: &Attachment) -> String {
    let addresses: Vec<String> = record
        .addresses
        .iter()
        .map(|address: &IpNet| address.addr().to_string())
        .collect();
    let holder = pod_name(record).unwrap_or_else(|| format!("container {}", record.container));
    format!(
        "{} of {holder}, whose interface {} is gone and whom no runtime deleted",
        addresses.join(", "),
        record.host_ifname
    )
}
