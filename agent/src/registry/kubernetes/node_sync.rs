//! Keeps the list of leases and this node's own record equal to what the API server says and this node announces.
//!
//! Whatever fails is reported and tried again for ever. What the server does not answer is [`Contact::Lost`]; what it
//! answers and is of no use is a refusal. Neither withdraws anything.

mod publish;

use std::mem;
use std::time::Duration;

use dataplane::families::PublicAddresses;
use tokio::time::{Instant, sleep, sleep_until};

use super::annotations::Names;
use super::api::{Api, ApiError};
use super::backoff::Backoff;
use super::node_table::NodeTable;
use super::own_node::OwnNode;
use super::reports::Reports;
use super::session::{self, SessionError};
use super::watch::{Watch, WatchEvent};
use crate::causes::causes;
use crate::config::node::registry::KubernetesConfig;
use crate::registry::pace::Pace;
use crate::registry::remote::{Asked, Ended, Seat};
use crate::registry::{Announcement, Contact, RegistryPlace};

/// The registry's state, in its thread.
pub(super) struct NodeSync {
    config: KubernetesConfig,
    /// The server's address, for sentences.
    server: String,
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
    /// Whether these rights were enough once.
    was_allowed: bool,
    /// Since when they are not.
    forbidden_since: Option<Instant>,
    /// `uid` of the Node whose condition was found or set.
    condition_set: Option<String>,
    attempts: Backoff,
    /// Of watches that ended soon.
    short_watches: Backoff,
    writes: Backoff,
    /// The own annotations are not written before this moment.
    next_write: Option<Instant>,
    /// Why they cannot be written.
    write_fault: Option<String>,
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

impl NodeSync {
    pub(super) fn new(config: KubernetesConfig, node_name: String, seat: Seat) -> NodeSync {
        NodeSync {
            names: Names::below(&config.annotation_prefix),
            config,
            server: String::new(),
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
            was_allowed: false,
            forbidden_since: None,
            condition_set: None,
            attempts: Backoff::default(),
            short_watches: Backoff::default(),
            writes: Backoff::default(),
            next_write: None,
            write_fault: None,
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
            Some(FORBIDDEN) if self.may_have_just_started() => {
                let reason = format!(
                    "{error}; a server that has just started refuses until it has read its roles"
                );
                self.reports.contact(Contact::Lost { reason }).await?;
            }
            Some(FORBIDDEN) => {
                self.reports.contact(Contact::InTouch).await?;
                let place = RegistryPlace::Kubernetes { node: None };
                self.reports
                    .refuse(place, publish::forbidden(error))
                    .await?;
            }
            code => {
                let server = &self.server;
                let reason = match code {
                    Some(UNAUTHORIZED) => format!(
                        "{error}: make a kubeconfig with a valid token by deploy/kubernetes/make-kubeconfig"
                    ),
                    Some(_) => format!("{error} ({server})"),
                    None => format!(
                        "{error}: check that a Kubernetes API server runs at {server} and that this node reaches it"
                    ),
                };
                self.reports.contact(Contact::Lost { reason }).await?;
            }
        }
        Ok(error.asked_to_wait())
    }

    /// Whether a server that gave an answer before may refuse the rights only because it has started anew: until
    /// kube-apiserver has read its roles, it refuses everybody (its check `poststarthook/rbac/bootstrap-roles`).
    fn may_have_just_started(&mut self) -> bool {
        let now = Instant::now();
        let since = *self.forbidden_since.get_or_insert(now);
        self.was_allowed && now.duration_since(since) < STARTING
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
        let begun = session::begin(&self.config).await;
        let (client, server) = begun.map_err(Stop::Session)?;
        self.server = server;
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
            self.was_allowed = true;
            self.forbidden_since = None;
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
}

/// Whether a server that is at version `newest` cannot have said `seen` before: it waits for ever with what a watch from
/// there is to be told, and never tells what it was told meanwhile. Versions are numbers that grow (Kubernetes, KEP-5504).
fn went_back(seen: &str, newest: &str) -> bool {
    match (seen.parse::<u64>(), newest.parse::<u64>()) {
        (Ok(seen), Ok(newest)) => newest < seen,
        _ => false,
    }
}

const UNAUTHORIZED: u16 = 401;
const FORBIDDEN: u16 = 403;
/// A server that has just started has read its roles by then; on a quiet machine that takes a second.
const STARTING: Duration = Duration::from_secs(15);
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
