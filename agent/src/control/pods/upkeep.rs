//! The upkeep of pods: their limits are in force, and what no runtime will delete is removed.
//!
//! Theory of operation. The upkeep is a task of its own, so that no wait of it delays a publication. The loop gives it
//! *work*, the latest attachments and interfaces; what was given before and not begun is overtaken. It answers with
//! *reports*. One piece of work is, in this order:
//!
//! 1. limits of attachments are put in force; each that is waited for is reported by itself, and first;
//! 2. attachments whose interface is gone are observed, and removed after the grace ([`super::orphans`]);
//! 3. files that killed plugins left in the middle of a record, and locks that no process holds, are removed.
//!
//! What one step is refused keeps no other from being made. It is a problem, and the loop gives the work again.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use cni_shim::range::{self, Range};
use cni_shim::{Attachment, RunDir};
use cni_shim::{atomic_file, attachment};
use ipnet::IpNet;
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tracing::{info, warn};

use super::orphans::Orphans;
use crate::attachments::pod_name;
use crate::causes::causes;
use crate::cni::chain;
use crate::config::NodeConfig;
use crate::control::records::{RecordKey, key};
use crate::host::{Change, Host, HostError, PodLinks};
use crate::problems::{HostProblem, Problem};

/// The upkeep, as the loop sees it.
#[derive(Debug)]
pub struct Upkeep {
    work: watch::Sender<Work>,
    reports: mpsc::Receiver<Report>,
    /// What the reports so far came to.
    pub state: UpkeepState,
    task: AbortHandle,
}

/// What is known from the reports.
#[derive(Clone, Debug, Default)]
pub struct UpkeepState {
    /// Attachments whose interface is gone.
    pub leaving: Arc<HashSet<RecordKey>>,
    /// Attachments that were removed since the start.
    pub reclaimed: u64,
    /// The latest of them, as a sentence.
    pub last_reclaimed: Option<Arc<str>>,
    /// When the directory of records had changed for which nothing is left to do.
    settled: Option<SystemTime>,
}

/// What the upkeep works on.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// Every adopted attachment, and whether its limit is waited for.
    pub attachments: Vec<(Arc<Attachment>, bool)>,
    /// The interfaces of pods; read anew where they are not known.
    pub links: Option<PodLinks>,
    /// When the directory of records had changed, as of its listing.
    pub listed: Option<SystemTime>,
}

/// What the upkeep did.
#[derive(Debug, Default)]
pub struct Report {
    /// Attachments whose limits are waited for: why the limit is not in force, if it is not.
    pub tried: Vec<(RecordKey, Option<String>)>,
    /// What another process had changed and was put right.
    pub repairs: Vec<Change>,
    /// The end of the work; a report without it goes ahead of that.
    pub end: Option<End>,
}

/// The end of one piece of work.
#[derive(Debug)]
pub struct End {
    /// What was refused.
    pub problem: Option<Problem>,
    /// Attachments whose interface is gone.
    pub leaving: HashSet<RecordKey>,
    /// Attachments that were removed, each as a sentence.
    pub reclaimed: Vec<String>,
    /// When the directory of records had changed for which nothing is left to do.
    settled: Option<SystemTime>,
}

impl Upkeep {
    /// Starts the task on the current runtime.
    pub fn start(host: Host, config: Arc<NodeConfig>) -> Upkeep {
        let (work, given) = watch::channel(Work::default());
        let (sender, reports) = mpsc::channel(REPORTS);
        let task = Task {
            host,
            config,
            orphans: Orphans::default(),
            limited: HashSet::new(),
            at_rest: false,
            swept: None,
        };
        let task = tokio::spawn(task.run(given, sender));
        Upkeep {
            work,
            reports,
            state: UpkeepState::default(),
            task: task.abort_handle(),
        }
    }

    /// Ends the task where it is: what it leaves is what a death would leave.
    pub fn stop(&self) {
        self.task.abort();
    }

    /// Gives work, in the place of what was not begun.
    pub fn give(&self, work: Work) {
        self.work.send_replace(work);
    }

    /// Waits for the next report, and takes note of it. Dropping the future loses nothing.
    pub async fn report(&mut self) -> Option<Report> {
        let report = self.reports.recv().await?;
        if let Some(end) = &report.end {
            let state = &mut self.state;
            state.settled = end.settled;
            if *state.leaving != end.leaving {
                state.leaving = Arc::new(end.leaving.clone());
            }
            let reclaimed = u64::try_from(end.reclaimed.len()).unwrap_or(u64::MAX);
            state.reclaimed = state.reclaimed.saturating_add(reclaimed);
            if let Some(last) = end.reclaimed.last() {
                state.last_reclaimed = Some(last.as_str().into());
            }
        }
        Some(report)
    }

    /// Whether nothing is left to do for the directory of records of that time: no attachment waits for its removal.
    pub fn is_settled(&self, listed: Option<SystemTime>) -> bool {
        listed.is_some() && self.state.settled == listed
    }
}

/// Why some upkeep was not done.
#[derive(Debug, Error)]
enum UpkeepError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("cannot remove an attachment that no runtime deletes")]
    Lock(#[from] range::Error),
    #[error("cannot remove an attachment that no runtime deletes")]
    Record(#[from] attachment::Error),
    #[error("cannot remove the files that killed plugins left in {path}")]
    Sweep {
        path: PathBuf,
        source: std::io::Error,
    },
}

/// The task's state.
struct Task {
    host: Host,
    config: Arc<NodeConfig>,
    orphans: Orphans,
    /// Host's ends whose limits have been in force once.
    limited: HashSet<String>,
    /// There was no attachment at the last work either, so nothing is left of one.
    at_rest: bool,
    /// When the directory of records had changed in which no killed writer had left anything.
    swept: Option<SystemTime>,
}

impl Task {
    async fn run(mut self, mut given: watch::Receiver<Work>, reports: mpsc::Sender<Report>) {
        while given.changed().await.is_ok() {
            let work = given.borrow_and_update().clone();
            if self.work(work, &reports).await.is_err() {
                return;
            }
        }
    }

    /// Does one piece of work. Fails when the loop has ended.
    async fn work(
        &mut self,
        work: Work,
        reports: &mpsc::Sender<Report>,
    ) -> Result<(), mpsc::error::SendError<Report>> {
        let mut reclaimed = Vec::new();
        let swept = self.sweep(work.listed);
        let done = if work.attachments.is_empty() && self.at_rest {
            Ok(())
        } else {
            match self.links(work.links).await {
                Err(error) => {
                    report_all(&work.attachments, &causes(&error), reports).await?;
                    Err(error.into())
                }
                Ok(links) => {
                    let shaped = self.limit(&work.attachments, &links, reports).await?;
                    let removed = self
                        .reclaim_due(&work.attachments, &links, &mut reclaimed)
                        .await;
                    shaped.map_err(UpkeepError::from).and(removed)
                }
            }
        };
        let done = swept.and(done);
        // What was refused is tried again.
        self.at_rest = work.attachments.is_empty() && done.is_ok();
        let is_leaving = |(a, _): &&(Arc<Attachment>, bool)| self.orphans.is_leaving(a);
        let leaving = work.attachments.iter().filter(is_leaving);
        let is_idle = !self.orphans.are_any() && done.is_ok() && reclaimed.is_empty();
        let problem = done.err().map(|error| Problem::PodUpkeep {
            reason: causes(&error),
        });
        let end = End {
            problem,
            leaving: leaving.map(|(a, _)| key(a)).collect(),
            reclaimed,
            settled: self
                .swept
                .filter(|swept| is_idle && work.listed == Some(*swept)),
        };
        let end = Some(end);
        reports
            .send(Report {
                end,
                ..Report::default()
            })
            .await
    }

    async fn links(&self, known: Option<PodLinks>) -> Result<PodLinks, HostError> {
        match known {
            Some(links) => Ok(links),
            None => self.host.pod_links().await,
        }
    }

    /// Puts every limit in force, and reports those that are waited for first. Returns the first refusal.
    async fn limit(
        &mut self,
        attachments: &[(Arc<Attachment>, bool)],
        links: &PodLinks,
        reports: &mpsc::Sender<Report>,
    ) -> Result<Result<(), HostError>, mpsc::error::SendError<Report>> {
        let mut report = Report::default();
        for (attachment, _) in attachments.iter().filter(|(_, is_awaited)| *is_awaited) {
            let refused = if links.has_end_of(attachment) {
                self.limit_one(attachment, links, &mut report.repairs).await
            } else {
                self.limit_unseen(attachment, &mut report.repairs).await
            };
            report.tried.push((key(attachment), refused));
        }
        if !report.tried.is_empty() {
            reports.send(std::mem::take(&mut report)).await?;
        }
        let known: Vec<Attachment> = attachments
            .iter()
            .filter(|(a, is_awaited)| !is_awaited && a.bandwidth.is_some())
            .map(|(a, _)| Attachment::clone(a))
            .collect();
        let (changes, refused) = self.host.shape(&known, links).await;
        let ends: HashSet<&str> = attachments.iter().map(|(a, _)| &*a.host_ifname).collect();
        self.limited.retain(|end| ends.contains(&**end));
        self.note_limits(changes, &mut report.repairs);
        if !report.repairs.is_empty() {
            reports.send(report).await?;
        }
        Ok(refused.map_or(Ok(()), Err))
    }

    /// The same for one whose end is not in the list. The plugin made it before it asked; but the kernel may leave an
    /// interface out of a list while others come and go. So it is asked for by its name.
    async fn limit_unseen(
        &mut self,
        attachment: &Attachment,
        repairs: &mut Vec<Change>,
    ) -> Option<String> {
        match self.host.pod_links_with(&attachment.host_ifname).await {
            Err(error) => Some(causes(&error)),
            Ok(links) if links.has_end_of(attachment) => {
                self.limit_one(attachment, &links, repairs).await
            }
            Ok(_) => Some(format!("there is no interface {}", attachment.host_ifname)),
        }
    }

    /// Puts the limits of one attachment in force; why that cannot be.
    async fn limit_one(
        &mut self,
        attachment: &Attachment,
        links: &PodLinks,
        repairs: &mut Vec<Change>,
    ) -> Option<String> {
        let conf_dir = self.config.root.join(chain::CONF_DIR);
        if let Some(twice) = chain::limited_twice(&conf_dir, &attachment.network) {
            return Some(twice.to_string());
        }
        let one = std::slice::from_ref(attachment);
        let (changes, refused) = self.host.apply_limits(one, links).await;
        self.note_limits(changes, repairs);
        if refused.is_none() {
            self.limited.insert(attachment.host_ifname.clone());
        }
        refused.map(|error| Problem::Host(HostProblem::of(&error)).to_string())
    }

    /// A limit that is in force for the first time is set up, later it is repaired.
    fn note_limits(&mut self, changes: Vec<Change>, repairs: &mut Vec<Change>) {
        let before = self.limited.clone();
        for change in changes {
            match &change {
                Change::Limited { host_ifname, .. } if !before.contains(host_ifname) => {
                    info!("set up: {change}");
                    self.limited.insert(host_ifname.clone());
                }
                Change::LimiterRemoved(_) => info!("{change}"),
                _ => repairs.push(change),
            }
        }
    }

    /// Removes the attachments that have been without an interface for the grace.
    async fn reclaim_due(
        &mut self,
        attachments: &[(Arc<Attachment>, bool)],
        links: &PodLinks,
        reclaimed: &mut Vec<String>,
    ) -> Result<(), UpkeepError> {
        // The record may name another interface than its own; and what bears its name may be its own, altered.
        let is_there = |a: &Attachment| links.has(&a.host_ifname) || links.has_end_of(a);
        let attachments = attachments.iter().map(|(a, _)| a);
        let grace = self.config.reclaim_after;
        let due = self
            .orphans
            .observe(attachments, is_there, grace, Instant::now());
        let mut done = Ok(());
        for record in due {
            match self.reclaim(&record).await {
                Ok(sentence) => reclaimed.extend(sentence),
                Err(error) => done = done.and(Err(error)),
            }
        }
        done
    }

    /// Removes an attachment whose interface is gone, unless the plugin is at work: then at another turn.
    async fn reclaim(&mut self, record: &Attachment) -> Result<Option<String>, UpkeepError> {
        let run = self.config.run_dir();
        let Some(_lock) = Range::try_lock(&run)? else {
            return Ok(None);
        };
        let links = self.host.pod_links().await?;
        if links.has(&record.host_ifname)
            || links.has_end_of(record)
            || !is_unchanged(&run, record)?
        {
            return Ok(None);
        }
        range::release(&run, &record.addresses);
        record.remove(&run)?;
        let sentence = describe(record);
        warn!("reclaimed: {sentence}");
        Ok(Some(sentence))
    }

    /// Removes what plugins left that were killed in the middle of a record, once no other can be at work on it, and the
    /// locks of attachments that no process holds.
    fn sweep(&mut self, listed: Option<SystemTime>) -> Result<(), UpkeepError> {
        if listed.is_some() && listed == self.swept {
            return Ok(());
        }
        let run = self.config.run_dir();
        let path = run.attachments();
        let held = attachment::lock::sweep(&run);
        let left = atomic_file::sweep(&path, self.config.reclaim_after)
            .and_then(|young| Ok(young + held?))
            .map_err(|source| UpkeepError::Sweep { path, source })?;
        self.swept = listed.filter(|_| left == 0);
        Ok(())
    }
}

/// Reports one reason for every limit that is waited for.
async fn report_all(
    attachments: &[(Arc<Attachment>, bool)],
    reason: &str,
    reports: &mpsc::Sender<Report>,
) -> Result<(), mpsc::error::SendError<Report>> {
    let awaited = attachments.iter().filter(|(_, is_awaited)| *is_awaited);
    let tried = awaited.map(|(a, _)| (key(a), Some(reason.to_owned())));
    let tried: Vec<_> = tried.collect();
    if tried.is_empty() {
        return Ok(());
    }
    let report = Report {
        tried,
        ..Report::default()
    };
    reports.send(report).await
}

/// Whether the record is still the one that was seen.
fn is_unchanged(run: &RunDir, record: &Attachment) -> Result<bool, UpkeepError> {
    let path = Attachment::path(run, &record.container, &record.ifname)?;
    Ok(Attachment::read(&path).is_ok_and(|now| now == *record))
}

fn describe(record: &Attachment) -> String {
    let addresses: Vec<String> = record
        .addresses
        .iter()
        .map(|address: &IpNet| address.addr().to_string())
        .collect();
    let holder = pod_name(record).unwrap_or_else(|| format!("container {}", record.container));
    format!(
        "{} of {holder}: its interface {} is gone and no runtime deleted it",
        addresses.join(", "),
        record.host_ifname
    )
}

/// Reports that the loop has not taken yet, at most.
const REPORTS: usize = 8;
