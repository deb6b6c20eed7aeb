//! Keeps the list of leases and this node's own record equal to what the API server says and this node announces.
//!
//! Whatever fails is reported and tried again for ever. What the server does not answer is [`Contact::Lost`]; what it
//! answers and is of no use is a refusal. Neither withdraws anything.

use std::mem;
use std::time::Duration;

use dataplane::families::PublicAddresses;
use k8s_openapi::jiff::Timestamp;
use tokio::time::{Instant, sleep, sleep_until};

use super::annotations::{self, Names};
use super::api::{Api, ApiError};
use super::backoff::Backoff;
use super::node_table::{NodeTable, place};
use super::own_node::{self, OwnNode, OwnNodeFault, Plan};
use super::reports::Reports;
use super::session::{self, SessionError};
use super::watch::{Watch, WatchEvent};
use crate::causes::causes;
use crate::config::node::registry::KubernetesConfig;
use crate::registry::pace::Pace;
use crate::registry::remote::{Asked, Ended, Seat};
use crate::registry::{Announcement, Contact, RegistryPlace, RegistrySettings, own, records};

/// The registry's state, in its thread.
pub(super) struct Sync {
    config: KubernetesConfig,
    node_name: String,
    names: Names,
    reports: Reports,
    announced: Option<Announcement>,
    table: NodeTable,
    own: OwnNode,
    /// Of the last list or event; `None`: list everything.
    version: Option<String>,
    /// The server may have been another one since, or started from an older copy of its data.
    interrupted: bool,
    /// Watches in a row without any event.
    silent_watches: u32,
    /// When the list of leases is made again.
    due: Option<Instant>,
    /// It is not made before this moment.
    not_before: Instant,
    /// `uid` of the Node whose condition was set.
    condition_set: Option<String>,
    attempts: Backoff,
    /// Of watches that ended soon.
    short_watches: Backoff,
    writes: Backoff,
    /// Of lists that are made because of events.
    pace: Pace,
}

/// Why a session, or the work on one, cannot go on.
enum Stop {
    Ended,
    Session(SessionError),
    Api(ApiError),
    /// This node has another address: nothing arrives any more on connections from the one that it had.
    Moved,
}

impl From<Ended> for Stop {
    fn from(Ended: Ended) -> Stop {
        Stop::Ended
    }
}

impl Sync {
    pub(super) fn new(config: KubernetesConfig, node_name: String, seat: Seat) -> Sync {
        Sync {
            names: Names::below(&config.annotation_prefix),
            config,
            node_name,
            reports: Reports::to(seat),
            announced: None,
            table: NodeTable::default(),
            own: OwnNode::default(),
            version: None,
            interrupted: false,
            silent_watches: 0,
            due: None,
            not_before: Instant::now(),
            condition_set: None,
            attempts: Backoff::default(),
            short_watches: Backoff::default(),
            writes: Backoff::default(),
            pace: Pace::starting_with(DEBOUNCE),
        }
    }

    /// Runs until the control loop's end is gone.
    pub(super) async fn serve(mut self) -> Ended {
        loop {
            let began = Instant::now();
            let Err(stop) = self.session().await;
            self.interrupted = true;
            if matches!(stop, Stop::Moved) {
                continue;
            }
            let Ok(asked_to_wait) = self.report(&stop).await else {
                return Ended;
            };
            // The time of an attempt counts: one against a server that answers nothing takes seconds itself.
            let next = began + self.attempts.next();
            let next = next.max(Instant::now() + asked_to_wait.unwrap_or(LEAST_PAUSE));
            if let Err(Ended) = self.pause(next).await {
                return Ended;
            }
        }
    }

    /// Reports why the session ended. Returns how long the server asks to wait.
    async fn report(&mut self, stop: &Stop) -> Result<Option<Duration>, Ended> {
        let error = match stop {
            Stop::Ended => return Err(Ended),
            Stop::Moved => return Ok(None),
            Stop::Session(error) => {
                let reason = causes(error).replace('\n', " ");
                self.reports.contact(Contact::Lost { reason }).await?;
                return Ok(None);
            }
            Stop::Api(error) => error,
        };
        match error.code() {
            Some(GONE) => self.version = None,
            Some(FORBIDDEN) => {
                self.reports.contact(Contact::InTouch).await?;
                let place = RegistryPlace::Kubernetes { node: None };
                self.reports.refuse(place, forbidden(error)).await?;
            }
            code => {
                let mut reason = error.to_string();
                if code == Some(UNAUTHORIZED) {
                    reason.push_str(": make a kubeconfig with a valid token by deploy/kubernetes/make-kubeconfig");
                }
                self.reports.contact(Contact::Lost { reason }).await?;
            }
        }
        Ok(error.asked_to_wait())
    }

    /// Waits, and takes what is announced meanwhile.
    async fn pause(&mut self, until: Instant) -> Result<(), Ended> {
        loop {
            tokio::select! {
                () = sleep_until(until) => return Ok(()),
                asked = self.reports.asked() => self.take_request(asked?).await?,
            }
        }
    }

    /// Reads the credentials, then lists and watches until that fails.
    async fn session(&mut self) -> Result<std::convert::Infallible, Stop> {
        let client = session::begin(&self.config).await.map_err(Stop::Session)?;
        let api = Api::new(client);
        loop {
            if mem::take(&mut self.interrupted)
                && let Some(seen) = &self.version
                && went_back(seen, &api.newest().await.map_err(Stop::Api)?)
            {
                tracing::info!(
                    "listing all Nodes again: the API server's data are older than before"
                );
                self.version = None;
            }
            let lists = self.version.is_none();
            if lists {
                let listing = api.list().await.map_err(Stop::Api)?;
                self.table.replace(listing.nodes);
                self.version = Some(listing.version);
            }
            let version = self.version.clone().unwrap_or_default();
            let watch = match api.watch(&version).await {
                Err(error) if error.code() == Some(GONE) && !lists => {
                    self.version = None;
                    continue;
                }
                opened => opened.map_err(Stop::Api)?,
            };
            self.reports.contact(Contact::InTouch).await?;
            self.attempts.reset();
            // A refusal may be that of the last session.
            self.make_due(Duration::ZERO);
            let opened = Instant::now();
            self.follow(&api, watch).await?;
            if opened.elapsed() < STEADY {
                sleep(self.short_watches.next()).await;
            } else {
                self.short_watches.reset();
            }
        }
    }

    /// Takes the events of a watch until it ends or is of no use. The next one goes on from `version`.
    async fn follow(&mut self, api: &Api, mut watch: Watch) -> Result<(), Stop> {
        let mut heard = Instant::now();
        loop {
            let due = self.due.map(|due| due.max(self.not_before));
            tokio::select! {
                event = watch.next() => {
                    heard = Instant::now();
                    match event {
                        Ok(WatchEvent::Ended) => return Ok(()),
                        Ok(event) => self.take_event(event),
                        // The last version seen is still right.
                        Err(ApiError::Broken(_)) => {
                            self.interrupted = true;
                            return Ok(());
                        }
                        Err(error) => {
                            tracing::info!("listing all Nodes again: {error}");
                            self.version = None;
                            return Ok(());
                        }
                    }
                }
                () = sleep_until(heard + SILENCE) => {
                    self.silent_watches += 1;
                    if self.silent_watches >= MOST_SILENT_WATCHES {
                        self.silent_watches = 0;
                        self.version = None;
                    }
                    return Ok(());
                }
                () = sleep_until(due.unwrap_or(heard)), if due.is_some() => self.evaluate(api).await?,
                asked = self.reports.asked() => {
                    let before = self.public();
                    self.take_request(asked?).await?;
                    if before.is_some() && before != self.public() {
                        return Err(Stop::Moved);
                    }
                    if self.version.is_none() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// The addresses that are announced.
    fn public(&self) -> Option<PublicAddresses> {
        self.announced.as_ref().map(|announced| announced.public)
    }

    async fn take_request(&mut self, asked: Asked) -> Result<(), Ended> {
        match asked {
            Asked::Announcement => {
                self.announced = Some(self.reports.announcement().await?);
                self.make_due(Duration::ZERO);
            }
            Asked::Reread => self.version = None,
        }
        Ok(())
    }

    fn take_event(&mut self, event: WatchEvent) {
        self.silent_watches = 0;
        let (version, differs) = match event {
            WatchEvent::Applied(node) => {
                let version = node.metadata.resource_version.clone();
                (version, self.table.apply(node))
            }
            WatchEvent::Deleted(node) => {
                let differs = self.table.remove(&node);
                (node.metadata.resource_version, differs)
            }
            WatchEvent::Bookmark(version) => (version, false),
            WatchEvent::Ended => return,
        };
        if !version.is_empty() {
            self.version = Some(version);
        }
        if differs {
            self.make_due(self.pace.wait(Instant::now()));
        }
    }

    /// Has the list made again after `wait`, or earlier where that was due already.
    fn make_due(&mut self, wait: Duration) {
        let at = Instant::now() + wait;
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Makes this node's record what is announced, and reports the list.
    async fn evaluate(&mut self, api: &Api) -> Result<(), Stop> {
        self.due = None;
        let began = Instant::now();
        self.pace.made(began);
        self.report_settings().await?;
        let Some(plan) = self.own_record(api).await? else {
            return Ok(());
        };
        self.report_leases(plan).await?;
        let took = began.elapsed().saturating_mul(IDLE_SHARE);
        self.not_before = Instant::now() + took.min(LONGEST_DEBOUNCE);
        if !self.reports.is_refused() {
            self.set_condition(api).await?;
        }
        Ok(())
    }

    /// Reports what the own Node says, or that there is none of that name.
    async fn report_settings(&mut self) -> Result<(), Stop> {
        let Some(node) = self.table.get(&self.node_name) else {
            let name = &self.node_name;
            let reason = format!(
                "no Node is named {name:?}: start the kubelet of this node, or set node-name to the name that kubectl get nodes shows for it"
            );
            return Ok(self.reports.refuse(place(name), reason).await?);
        };
        match annotations::pair(&node.metadata.annotations, &self.names.node_public) {
            Ok((public_v4, public_v6)) => {
                let settings = RegistrySettings {
                    net_conf: None,
                    public_v4,
                    public_v6,
                };
                Ok(self.reports.settings(settings).await?)
            }
            Err(fault) => {
                let place = place(&self.node_name);
                Ok(self.reports.refuse(place, fault.to_string()).await?)
            }
        }
    }

    /// Makes the own Node's annotations what is announced. `None` while nothing is announced or it cannot be done.
    async fn own_record(&mut self, api: &Api) -> Result<Option<Plan>, Stop> {
        let (Some(announced), Some(node)) = (&self.announced, self.table.get(&self.node_name))
        else {
            return Ok(None);
        };
        let now = Instant::now();
        let plan = match self.own.plan(node, &self.names, announced, now) {
            Ok(plan) => plan,
            Err(fault) => {
                if let OwnNodeFault::Contested { .. } = fault {
                    self.due = self.own.next_write_back();
                }
                let place = place(&self.node_name);
                self.reports.refuse(place, fault.to_string()).await?;
                return Ok(None);
            }
        };
        if plan.differing.is_empty() {
            return Ok(Some(plan));
        }
        if plan.by_others {
            let found = own_node::found(&node.metadata.annotations, &plan.differing);
            tracing::warn!(
                "another program changed this node's annotations, which are written back: {found}"
            );
        }
        let patch = own_node::annotation_patch(&plan.differing);
        match api.patch_status(&self.node_name, &patch).await {
            Ok(node) => {
                self.writes.reset();
                self.own.written(&plan, now);
                self.table.apply(node);
                Ok(Some(plan))
            }
            Err(error) => {
                self.cannot_write(error).await?;
                Ok(None)
            }
        }
    }

    /// A patch failed: it is tried again after a pause. What is refused for good, or often, is reported.
    async fn cannot_write(&mut self, error: ApiError) -> Result<(), Stop> {
        let reason = match error.code() {
            None | Some(UNAUTHORIZED) => return Err(Stop::Api(error)),
            Some(FORBIDDEN) => Some(forbidden(&error)),
            Some(_) if self.writes.failures() >= SILENT_FAILURES => Some(format!(
                "cannot write this node's annotations, which is tried again: {error}"
            )),
            Some(_) => None,
        };
        let pause = self.writes.next();
        self.make_due(pause.max(error.asked_to_wait().unwrap_or_default()));
        if let Some(reason) = reason {
            self.reports.refuse(place(&self.node_name), reason).await?;
        }
        Ok(())
    }

    /// Makes the list of leases and reports it, if this node's own lease is among them.
    async fn report_leases(&mut self, plan: Plan) -> Result<(), Stop> {
        let Some(announced) = &self.announced else {
            return Ok(());
        };
        let net_conf = &announced.net_conf;
        let (candidates, mut refused) = self.table.candidates(plan.lease, &self.names, net_conf);
        let (leases, conflicting) = records::check(candidates, net_conf);
        refused.extend(conflicting);
        let own_place = place(&self.node_name);
        let own_fault = match refused.iter().find(|record| record.place == own_place) {
            Some(record) => Some(record.reason.clone()),
            None => own(&leases, &announced.node_name).err(),
        };
        match own_fault {
            Some(reason) => Ok(self.reports.refuse(own_place, reason).await?),
            None => {
                self.reports.refused_records(refused).await?;
                Ok(self.reports.leases(leases).await?)
            }
        }
    }

    /// Says once that pods of this node have a network, if that is wanted.
    async fn set_condition(&mut self, api: &Api) -> Result<(), Stop> {
        let Some(node) = self.table.get(&self.node_name) else {
            return Ok(());
        };
        let uid = node.metadata.uid.clone();
        if !self.config.set_network_unavailable || self.condition_set.as_ref() == Some(&uid) {
            return Ok(());
        }
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let patch = own_node::condition_patch(&now);
        match api.patch_status(&self.node_name, &patch).await {
            Ok(node) => {
                self.condition_set = Some(uid);
                if self.table.apply(node) {
                    self.make_due(DEBOUNCE);
                }
            }
            Err(error) if error.code() == Some(FORBIDDEN) => {
                self.condition_set = Some(uid);
                tracing::warn!(
                    "cannot set the condition NetworkUnavailable: {}",
                    forbidden(&error)
                );
            }
            Err(error) if error.code().is_some() => {
                let pause = self.writes.next();
                self.make_due(pause);
            }
            Err(error) => return Err(Stop::Api(error)),
        }
        Ok(())
    }
}

/// Whether a server that is at version `newest` cannot have said `seen` before: it waits for ever with what a watch from
/// there is to be told, and never tells what it was told meanwhile. Versions are numbers that grow (Kubernetes, KEP-5504).
fn went_back(seen: &str, newest: &str) -> bool {
    match (seen.parse::<u64>(), newest.parse::<u64>()) {
        (Ok(seen), Ok(newest)) => newest < seen,
        _ => false,
    }
}

/// The rights that this registry needs are those of flannel's ClusterRole.
fn forbidden(error: &ApiError) -> String {
    format!(
        "{error}; the credentials need the rights to list and watch all nodes and to patch nodes/status, which those of a kubelet do not have: use the ServiceAccount of deploy/kubernetes/rbac.yaml, with a kubeconfig made by deploy/kubernetes/make-kubeconfig"
    )
}

const UNAUTHORIZED: u16 = 401;
const FORBIDDEN: u16 = 403;
const GONE: u16 = 410;
/// A watch that said nothing for this long is replaced. With the time limit of the next one it stays below 30 s.
const SILENCE: Duration = Duration::from_secs(20);
/// 5 minutes in a cluster in which nothing happens.
const MOST_SILENT_WATCHES: u32 = 15;
/// A watch that lasted this long worked.
const STEADY: Duration = Duration::from_secs(5);
/// Between an attempt that failed and the next.
const LEAST_PAUSE: Duration = Duration::from_millis(60);
/// Events of one cause arrive together.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// The thread is idle this many times as long as it takes to make the list, but not longer than:
const IDLE_SHARE: u32 = 9;
const LONGEST_DEBOUNCE: Duration = Duration::from_secs(1);
/// A conflict or an overloaded server is nothing to report; these many in a row are.
const SILENT_FAILURES: u32 = 3;
