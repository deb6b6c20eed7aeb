//! The control loop: waits for the registry, the kernel, the API and the clock, and decides anew.
//!
//! Everything is read, decided and made to agree ([`Control::refresh`]) when somebody says that it changed: the
//! registry, a netlink announcement, a caller. Once a second there is a *glance* at what nobody announces, which costs a
//! few dozen system calls and becomes a full look where something is found, where the watch is not whole, and as long as
//! anything is in the way; and every 10 s there is a full look whatever was announced.

use std::future::pending;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use cni_shim::NodeFile;
use dataplane::counters::Counters;
use dataplane::engine::{Engine, Notice};
use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant as Moment, sleep_until};
use tracing::{error, info, warn};

use super::adoption::{Waiting, next_look};
use super::cores::Workforce;
use super::counts::given_up;
use super::descriptors::Descriptors;
use super::node::Node;
use super::ports::Ports;
use super::refused::RefusedSources;
use super::removals::Removals;
use super::takeover::{LISTENER, StartError};
use super::tending::Tending;
use crate::api::server::{self, Call};
use crate::causes::causes;
use crate::host::{self, Change, Host, HostError, Picture, Watch};
use crate::pulse::Pulse;
use crate::reconcile::HostState;
use crate::registry::Update;
use crate::registry::file::FileRegistry;
use crate::start_failure;

/// What the take-over hands to the loop.
pub struct Parts {
    /// Knowledge and decision.
    pub node: Node,
    /// The kernel's side.
    pub host: Host,
    /// The workers, not yet reading.
    pub engine: Engine,
    /// Their counters.
    pub counters: Counters,
    /// Their sockets.
    pub ports: Ports,
    /// Their number and places.
    pub workforce: Workforce,
    /// Where callers of the API connect.
    pub listener: UnixListener,
    /// The list of nodes.
    pub registry: FileRegistry,
    /// The keeper.
    pub table: Descriptors,
    /// The node file as it was written, unless it could not be.
    pub node_file: Option<NodeFile>,
    /// Why not, in words.
    pub node_file_problem: Option<String>,
    /// What the kernel refused to a take-over, in words.
    pub host_problem: Option<String>,
    /// Why its sockets are not where they should be, in words.
    pub underlay_problem: Option<String>,
}

/// Why the loop ended.
#[derive(Debug)]
pub enum End {
    /// SIGTERM.
    Asked,
    /// The keeper is gone.
    KeeperEnded,
    /// Only a new start helps; why.
    Restart(String),
}

/// The loop's state.
pub struct Control {
    pub(super) node: Node,
    pub(super) host: Host,
    pub(super) engine: Engine,
    pub(super) counters: Counters,
    pub(super) ports: Ports,
    pub(super) workforce: Workforce,
    pub(super) table: Descriptors,
    pub(super) refused: RefusedSources,
    pub(super) offloads_given_up: u64,
    pub(super) repairs: u64,
    pub(super) last_repair: Option<String>,
    /// What the kernel refused at the last try, in words.
    pub(super) host_problem: Option<String>,
    /// Why our sockets are not where they should be, in words.
    pub(super) underlay_problem: Option<String>,
    /// Why the plugin is told old things, in words.
    pub(super) node_file_problem: Option<String>,
    /// Why nobody can connect anew, in words.
    pub(super) api_problem: Option<String>,
    /// Why the last good state on disk is not the one in force, in words.
    pub(super) state_problem: Option<String>,
    pub(super) started: Instant,
    /// When tables were published last.
    pub(super) published: Instant,
    /// When everything was looked at last.
    looked: Instant,
    glances: Pulse,
    pub(super) registry: FileRegistry,
    calls: mpsc::Receiver<Call>,
    sender: mpsc::Sender<Call>,
    server: JoinHandle<()>,
    watch: Option<Watch>,
    /// What the kernel was made to agree with last.
    applied: HostState,
    node_file: Option<NodeFile>,
    /// The last good state on disk is the one in force, or what is in force was read from it.
    pub(super) saved: bool,
    pub(super) waiting: Vec<Waiting>,
    pub(super) tending: Tending,
    pub(super) removals: Removals,
}

impl Control {
    /// Says *ready*, waits for *go*, lets the workers read; `None` when the keeper ended instead.
    pub(super) async fn begin(
        parts: Parts,
        repairs: &[Change],
    ) -> Result<Option<Control>, StartError> {
        let Parts {
            node,
            host,
            engine,
            counters,
            ports,
            workforce,
            listener,
            registry,
            table,
            node_file,
            node_file_problem,
            host_problem,
            underlay_problem,
        } = parts;
        // Changes of the kernel from here on are told; what came before is read once more below.
        // Without a watch the loop tries again, and the clock makes up for it.
        let watch = host::watch().ok();
        let glances = Pulse::every(GLANCE_EVERY).map_err(StartError::Clock)?;
        let (sender, calls) = mpsc::channel(CALLS);
        let server = serve(listener, sender.clone());
        if !table.ready().await? {
            engine.stop();
            return Ok(None);
        }
        engine.go();
        table.forwarding().await?;
        start_failure::forget(node.known.config.run_dir().path());
        let mut control = Control {
            applied: node.desired.host.clone(),
            saved: node.cached.leases.is_some(),
            node,
            host,
            engine,
            offloads_given_up: given_up(&counters.read()),
            counters,
            ports,
            workforce,
            table,
            refused: RefusedSources::default(),
            repairs: 0,
            last_repair: None,
            host_problem: None,
            underlay_problem: None,
            node_file_problem,
            api_problem: None,
            state_problem: None,
            started: Instant::now(),
            published: Instant::now(),
            looked: Instant::now(),
            glances,
            registry,
            calls,
            sender,
            server,
            watch,
            node_file,
            waiting: Vec::new(),
            tending: Tending::default(),
            removals: Removals::default(),
        };
        control.note_repairs(repairs);
        control.note_problem(host_problem);
        control.note_delay(underlay_problem);
        info!(node = control.node.known.own.name, "forwarding");
        Ok(Some(control))
    }

    /// Runs until something ends it.
    pub async fn run(&mut self, stop: impl Future<Output = ()>) -> End {
        tokio::pin!(stop);
        // Once now: what changed before the watch was there was announced to nobody.
        let mut outcome = self.refresh().await;
        let mut burst_ends: Option<Moment> = None;
        loop {
            if let Err(Restart(reason)) = outcome {
                return End::Restart(reason);
            }
            outcome = tokio::select! {
                () = &mut stop => return End::Asked,
                () = self.table.keeper_ended() => return End::KeeperEnded,
                update = self.registry.next() => self.learn(update).await,
                Some(call) = self.calls.recv() => self.answer(call).await,
                event = next(&mut self.watch) => {
                    if event.is_none() {
                        warn!("the watch on the kernel has ended and is started anew");
                        self.watch = None;
                    }
                    burst_ends.get_or_insert_with(|| Moment::now() + BURST);
                    Ok(())
                }
                () = due(burst_ends) => {
                    burst_ends = None;
                    self.refresh().await
                }
                beat = self.glances.beat() => match beat {
                    Ok(()) => self.glance().await,
                    Err(error) => Err(Restart(format!(
                        "its timer fails ({error}); the next gets a new timer, and if that fails too see the kernel's log and restart tartan"
                    ))),
                },
                () = next_look(&self.waiting), if !self.waiting.is_empty() => {
                    self.settle();
                    Ok(())
                }
            };
        }
    }

    /// Ends the workers.
    pub fn stop(self) {
        self.server.abort();
        self.engine.stop();
    }

    async fn learn(&mut self, update: Update) -> Result<(), Restart> {
        match &update {
            Update::Leases(leases) => {
                self.saved = false;
                info!(nodes = leases.len(), "the list of nodes is adopted");
            }
            Update::Refused { line, reason } => {
                let line = line.map(|line| format!(" line {line}")).unwrap_or_default();
                let file = self.node.known.config.node_file.display();
                warn!("{file}{line} is refused, the old list stays: {reason}");
            }
        }
        self.node.learn(update);
        self.refresh().await
    }

    /// Looks at what nobody announces, and at everything where that is not enough.
    async fn glance(&mut self) -> Result<(), Restart> {
        let quiet = self.is_settled()
            && self.looked.elapsed() < LOOK_EVERY
            && !self.engine.device_lost()
            && !self.node.have_records_changed()
            && server::is_socket(&self.node.known.config.run_dir().socket())
            && self.host.is_undisturbed(&self.node.desired.host);
        if !quiet {
            return self.refresh().await;
        }
        self.notice();
        self.note_offloads();
        Ok(())
    }

    /// Whether the next look can wait for an announcement: every kind of them arrives, and nothing is to be tried again.
    fn is_settled(&self) -> bool {
        let problems = [
            &self.host_problem,
            &self.underlay_problem,
            &self.node_file_problem,
            &self.api_problem,
            &self.tending.problem,
        ];
        self.watch.as_ref().is_some_and(Watch::is_whole)
            && self.saved
            && !self.node.cached.is_any()
            && self.applied == self.node.desired.host
            && self.tending.is_settled(self.node.records_of())
            && problems.iter().all(|problem| problem.is_none())
    }

    /// Reads the kernel, decides, publishes, makes the kernel agree. What the kernel refuses is told in
    /// `tartan status` and tried again at the next turn.
    pub(super) async fn refresh(&mut self) -> Result<(), Restart> {
        self.looked = Instant::now();
        if self.watch.is_none() {
            self.watch = host::watch().ok();
        }
        self.notice();
        self.note_offloads();
        self.reread_net_conf()?;
        self.host.only_add(self.node.cached.is_any());
        self.node.reread_changed_records();
        let picture = self.host.picture().await;
        let mut unread = picture.as_ref().ok().and_then(|p| self.node.known.see(p));
        if self.follow_underlay().await {
            unread = picture.as_ref().ok().and_then(|p| self.node.known.see(p));
        }
        let looked_after = self.tend_pods(picture.as_ref().ok()).await;
        self.note_repairs(&looked_after);
        self.publish();
        let (changes, applied, beside) = self.make_kernel_agree(picture).await;
        if self.engine.device_lost() || matches!(applied, Err(HostError::NoDevice { .. })) {
            let device = &self.node.desired.host.device;
            return Err(Restart(format!("somebody deleted the device {device}")));
        }
        if self.applied == self.node.desired.host {
            self.note_repairs(&changes);
        } else {
            changes.iter().for_each(|change| info!("set up: {change}"));
            if applied.is_ok() {
                self.applied = self.node.desired.host.clone();
            }
        }
        let problem = applied.err().or(unread).or(beside);
        self.note_problem(problem.map(|error| causes(&error)));
        self.write_node_file();
        self.save();
        self.reopen_api().await;
        Ok(())
    }

    /// All that the host is to hold: what had to be changed, what was refused of what forwarding needs, and of what
    /// it does not. Neither waits for the other.
    async fn make_kernel_agree(
        &mut self,
        picture: Result<Picture, HostError>,
    ) -> (Vec<Change>, Result<(), HostError>, Option<HostError>) {
        let desired = &self.node.desired.host;
        let applied = match picture {
            Ok(picture) => self.host.apply_to(picture, desired).await,
            Err(error) => Err(error),
        };
        let (mut changes, applied) = match applied {
            Ok(changes) => (changes, Ok(())),
            Err(error) => (Vec::new(), Err(error)),
        };
        let (more, refused) = self.host.apply_beside(desired).await;
        changes.extend(more);
        (changes, applied, refused)
    }

    /// Decides and publishes tables that differ.
    pub(super) fn publish(&mut self) {
        if let Some(spec) = self.node.decide() {
            self.engine.publish(spec);
            self.published = Instant::now();
            info!(
                version = spec.version,
                peers = spec.peers.len(),
                "tables published"
            );
        }
    }

    fn notice(&mut self) {
        for Notice::RefusedSource {
            outer,
            inner,
            owner,
        } in self.engine.notices()
        {
            self.refused.note(outer, inner, owner);
        }
        let snapshot = self.engine.snapshot();
        self.refused
            .forget(|source| snapshot.peers.by_source(source).is_some());
    }

    fn note_repairs(&mut self, changes: &[Change]) {
        for change in changes {
            warn!("repaired: {change}");
            self.repairs = self.repairs.saturating_add(1);
            self.last_repair = Some(change.to_string());
        }
    }

    fn note_problem(&mut self, problem: Option<String>) {
        if problem != self.host_problem {
            match &problem {
                Some(problem) => warn!("{problem}"),
                None => info!("the kernel agrees again"),
            }
        }
        self.host_problem = problem;
    }

    /// Somebody who empties /run takes the socket's name away; callers get a new one.
    async fn reopen_api(&mut self) {
        let path = self.node.known.config.run_dir().socket();
        if server::is_socket(&path) {
            return;
        }
        let opened = match server::bind(&path) {
            Ok(listener) => {
                let told = self.table.deposit(LISTENER, listener.as_fd()).await;
                self.server.abort();
                self.server = serve(listener, self.sender.clone());
                warn!("repaired: the socket {} was gone", path.display());
                told.map_err(|error| causes(&error))
            }
            Err(error) => Err(causes(&error)),
        };
        self.api_problem = opened.err();
    }

    fn write_node_file(&mut self) {
        let node_file = self.node.node_file();
        if self.node_file.as_ref() == Some(&node_file) {
            return;
        }
        let written = node_file.write(&self.node.known.config.run_dir());
        let problem = written.err().map(|error| causes(&error));
        if problem.is_none() {
            self.node_file = Some(node_file);
        } else if problem != self.node_file_problem {
            warn!("{}", problem.as_deref().unwrap_or_default());
        }
        self.node_file_problem = problem;
    }
}

/// Only a new start helps.
pub(super) struct Restart(pub(super) String);

fn serve(listener: UnixListener, calls: mpsc::Sender<Call>) -> JoinHandle<()> {
    tokio::spawn(async move {
        if let Err(error) = server::serve(listener, calls).await {
            error!("{}", causes(&error));
        }
    })
}

async fn next(watch: &mut Option<Watch>) -> Option<host::HostEvent> {
    match watch {
        Some(watch) => watch.next().await,
        None => pending().await,
    }
}

async fn due(moment: Option<Moment>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}

/// Changes of the kernel come in bursts; one reading serves all of a burst.
const BURST: Duration = Duration::from_millis(50);
/// Some settings change without an announcement.
const GLANCE_EVERY: Duration = Duration::from_secs(1);
/// Nobody knows every way by which a kernel changes.
const LOOK_EVERY: Duration = Duration::from_secs(10);
const CALLS: usize = 32;
