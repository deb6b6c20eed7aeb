//! The control loop: waits for the registry, the kernel, the API and the clock, and decides anew.

use std::future::pending;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use cni_shim::NodeFile;
use dataplane::counters::Counters;
use dataplane::engine::Engine;
use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant as Moment, sleep_until};
use tracing::{info, warn};

use crate::api::server::Call;
use crate::control::adoption::{Waiting, next_look};
use crate::control::callers::serve;
use crate::control::counts::given_up;
use crate::control::model::Node;
use crate::control::pods::upkeep::Tending;
use crate::control::refused_sources::RefusedSources;
use crate::control::underlay::sockets::Ports;
use crate::control::workers::Workforce;
use crate::host::HostState;
use crate::host::{self, Change, Host, Watch};
use crate::keeper::descriptors::Descriptors;
use crate::keeper::lock::Lock;
use crate::registry::{Registry, Update};
use crate::start_failure;
use crate::takeover::start_error::StartError;
use crate::ticker::Pulse;

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
    pub registry: Registry,
    /// The keeper.
    pub table: Descriptors,
    /// What keeps a second service out.
    pub lock: Lock,
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
    pub(crate) node: Node,
    pub(crate) host: Host,
    pub(crate) engine: Engine,
    pub(crate) counters: Counters,
    pub(crate) ports: Ports,
    pub(crate) workforce: Workforce,
    pub(crate) table: Descriptors,
    pub(crate) lock: Lock,
    pub(crate) refused: RefusedSources,
    pub(crate) offloads_given_up: u64,
    pub(crate) repairs: u64,
    pub(crate) last_repair: Option<String>,
    /// What the kernel refused at the last try, in words.
    pub(crate) host_problem: Option<String>,
    /// Why our sockets are not where they should be, in words.
    pub(crate) underlay_problem: Option<String>,
    /// Why the plugin is told old things, in words.
    pub(crate) node_file_problem: Option<String>,
    /// Why nobody can connect anew, in words.
    pub(crate) api_problem: Option<String>,
    /// Why a second agent would not be kept out, in words.
    pub(crate) lock_problem: Option<String>,
    /// Why the last good state on disk is not the one in force, in words.
    pub(crate) state_problem: Option<String>,
    pub(crate) started: Instant,
    /// When tables were published last.
    pub(crate) published: Instant,
    /// When everything was looked at last.
    pub(crate) looked: Instant,
    glances: Pulse,
    pub(crate) registry: Registry,
    calls: mpsc::Receiver<Call>,
    pub(crate) sender: mpsc::Sender<Call>,
    pub(crate) server: JoinHandle<()>,
    pub(crate) watch: Option<Watch>,
    /// What the kernel was made to agree with last.
    pub(crate) applied: HostState,
    pub(crate) node_file: Option<NodeFile>,
    /// The last good state on disk is the one in force, or what is in force was read from it.
    pub(crate) saved: bool,
    pub(crate) waiting: Vec<Waiting>,
    pub(crate) tending: Tending,
}

impl Control {
    /// Says *ready*, waits for *go*, lets the workers read; `None` when the keeper ended instead.
    pub(crate) async fn begin(
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
            lock,
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
            lock,
            refused: RefusedSources::default(),
            repairs: 0,
            last_repair: None,
            host_problem: None,
            underlay_problem: None,
            node_file_problem,
            api_problem: None,
            lock_problem: None,
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
            Update::Refused { place, reason } => {
                warn!("{place} is refused, the old list stays: {reason}");
            }
        }
        self.node.learn(update);
        self.refresh().await
    }
}

/// Only a new start helps.
pub(crate) struct Restart(pub(crate) String);

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
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(10);
const CALLS: usize = 32;
