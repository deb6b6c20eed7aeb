//! The service: everything that the keeper does not do, in one process that may die.
//!
//! Theory of operation. One thread runs the control loop ([`crate::control`]); the engine's threads forward. Start-up
//! is a take-over ([`crate::takeover`]), with an empty table too:
//!
//! 1. receive the keeper's table ([`crate::keeper::descriptors`]);
//! 2. read configuration, registry and kernel: what the entries must be;
//! 3. check and adopt each entry, options set again, or open and deposit it; close here and in the keeper
//!    what will not be read;
//! 4. read the attachments, decide, bring the kernel to the desired state;
//! 5. start the workers: nothing is read yet;
//! 6. write the node file for the plugin and say *ready*;
//! 7. on *go* read the first packet and say *forwarding*.
//!
//! A service that starts beside another, for an upgrade, does step 2 beside it, says *ready*, and does the rest on *go*:
//! the other one has paused by then (`takeover/beside.rs`).
//!
//! From then on the loop waits for the registry, the kernel, the API and the clock. At each change it decides anew,
//! publishes tables that differ, and brings the kernel to the desired state. What cannot be used (a broken list, a
//! garbled record) is refused with a reason in `tartan status`, and what was in force stays. Data never waits for
//! control; control waits for data only to answer `adopt`.
//!
//! What a running service only reports (a route of another program that conflicts with ours, a full run directory, an
//! underlay address that is gone) does not end a take-over either: it goes on and reports it. On a first start, when no
//! packet depends on it yet, the same things are final ([`crate::problems::Problem::ends_first_start`]).
//!
//! It ends on SIGTERM or SIGINT, when its keeper ends, when another has taken its place (`control/handing_over.rs`), and to have its changed files taken by a new start
//! ([`crate::control::reload`]): code 0. It ends when only a new start can help, because the device was deleted: code 1. The
//! keeper starts the next at once. Another underlay address is followed while the workers run
//! ([`crate::control::underlay`]).
//!
//! The last good state ([`crate::last_good`]) takes the place of a net-conf, a `tartan.toml` or a list of nodes that cannot
//! be used at the start. Until the registry has answered completely once, nothing is withdrawn from the host. The leases give way to the
//! first list. A net-conf that can be read again and differs needs a new start, which is made once the list of nodes can
//! be used with it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cni_shim::atomic_file;
use dataplane::device;
#[cfg(feature = "faults")]
use dataplane::faults::{self, InjectedFault};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use thiserror::Error;
use tokio::sync::watch;
use tracing::{debug, error, info, warn};

use crate::config::NodeConfig;
use crate::configuration::Configuration;
use crate::confinement;
use crate::control::outcome::End;
use crate::control::view::View;
use crate::health::{self, Endpoints, Health};
use crate::keeper::lock::{Lock, LockError};
use crate::signals::Signals;
use crate::takeover::start_error::StartError;

/// Why the service could not start.
#[derive(Debug, Error)]
pub enum ServiceError {
    /// Standard input cannot be taken.
    #[error("cannot take the channel to the keeper; start `tartan run` instead")]
    Input(#[source] io::Error),
    /// No signal handler.
    #[error("cannot listen for signals; check the limit of open descriptors (ulimit -n)")]
    Signals(#[source] io::Error),
    /// A step of the take-over failed.
    #[error(transparent)]
    Start(#[from] StartError),
}

impl ServiceError {
    /// Whether only an edit of this node's configuration corrects it. A file that is not there yet, and a list of nodes
    /// that cannot be used yet, come from others and may be right at the next try.
    pub fn is_misconfiguration(&self) -> bool {
        matches!(self, ServiceError::Start(StartError::Problem(problem)) if problem.is_misconfiguration())
    }

    /// Whether it is only that the service that runs has other descriptors.
    pub fn is_of_descriptors(&self) -> bool {
        matches!(self, ServiceError::Start(StartError::Beside { .. }))
    }
}

/// Serves until told to stop; returns the exit code. Standard input is the channel to the keeper.
///
/// # Errors
/// [`ServiceError`] before the first packet; nothing after it.
pub async fn run(configuration: Configuration) -> Result<u8, ServiceError> {
    let mut signals = Signals::listen().map_err(ServiceError::Signals)?;
    let config = &configuration.config;
    #[cfg(feature = "faults")]
    inject_faults();
    raise_descriptor_limit();
    make_device_file();
    confine();
    let channel = take_input().map_err(ServiceError::Input)?;
    config.run_dir().make().map_err(StartError::RunDir)?;
    let entry = Entry::new(config);
    let mut control = tokio::select! {
        started = crate::takeover::start(configuration, channel, entry) => match started? {
            Some(control) => control,
            None => return Ok(0),
        },
        is_stop = signals.stop_or_reload() => {
            if !is_stop {
                info!("stopped: the next service takes the changed files");
            }
            return Ok(0);
        }
    };
    let end = control.run(&mut signals).await;
    control.stop(matches!(end, End::Replaced | End::Locked(_)));
    Ok(match end {
        End::Asked => {
            info!("stopped: asked to");
            0
        }
        End::KeeperEnded => {
            error!("stopped: the keeper has ended, and was not asked to");
            0
        }
        End::Replaced => {
            info!("stopped: the service of the new program forwards");
            0
        }
        End::Locked(reason) => {
            error!("stopped, as another service reads: {reason}");
            1
        }
        End::Reload => {
            info!("stopped: the next service takes the changed files");
            0
        }
        End::Restart(reason) => {
            tracing::error!("stopped to be started anew: {reason}");
            1
        }
    })
}

/// What a service needs before it may read descriptors. One that starts beside another has it from *go* on, the other until
/// it pauses.
pub(crate) struct Entry {
    run_dir: PathBuf,
    state_dir: PathBuf,
    endpoints: Endpoints,
    /// Where views are published.
    pub(crate) published: watch::Sender<Option<Arc<View>>>,
}

/// It, once it is had.
pub(crate) struct Entered {
    /// What keeps a second service out.
    pub(crate) lock: Lock,
    /// The health endpoints, where the configuration names any.
    pub(crate) health: Option<Health>,
}

impl Entry {
    fn new(config: &NodeConfig) -> Entry {
        Entry {
            run_dir: config.run_dir().path().to_owned(),
            state_dir: config.state_dir(),
            endpoints: endpoints(config),
            published: watch::channel(None).0,
        }
    }

    /// Waits for the lock, and does what may be done under it alone.
    ///
    /// # Errors
    /// As [`take_service_lock`].
    pub(crate) fn enter(&self) -> Result<Entered, LockError> {
        let lock = take_service_lock(&self.run_dir)?;
        sweep(&self.state_dir);
        sweep(&self.run_dir);
        let health = start_health(self.endpoints, &self.run_dir, self.published.subscribe());
        Ok(Entered { lock, health })
    }
}

/// Where the configuration has the health endpoints.
pub(crate) fn endpoints(config: &NodeConfig) -> Endpoints {
    Endpoints {
        probes: config.healthz,
        metrics: config.metrics,
        metrics_limit: config.metrics_limit.into(),
    }
}

/// The endpoints are answered from here on: a probe must not wait for a registry that does not answer.
pub(crate) fn start_health(
    endpoints: Endpoints,
    run_dir: &Path,
    view: watch::Receiver<Option<Arc<View>>>,
) -> Option<Health> {
    let sources = health::Sources {
        view,
        run_dir: run_dir.to_owned(),
    };
    endpoints.probes.or(endpoints.metrics)?;
    Health::start(endpoints, sources)
        .inspect_err(|error| {
            warn!(%error, "/healthz, /readyz and /metrics are not answered: raise the limit of threads (ulimit -u) and restart the agent");
        })
        .ok()
}

/// A container has no `/dev/net/tun` but where it is given one. The error is reported where the device is opened.
fn make_device_file() {
    match device::file::make_file() {
        Ok(true) => info!("made /dev/net/tun, which was not there"),
        Ok(false) => {}
        Err(error) => debug!(%error, "/dev/net/tun is not there, and cannot be made"),
    }
}

/// Every thread of the service begins after this. A kernel that refuses it is named with the workers' own refusal
/// ([`crate::problems::Problem::WorkersNotConfined`]).
fn confine() {
    if let Err(error) = confinement::apply() {
        warn!(%error, "the service keeps rights that it does not need");
    }
}

/// Each worker has many descriptors, twice as many while the underlay moves. Of the usual limits the lower one is a guard
/// of programs that use select(2).
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
    if let Err(error) = raised {
        warn!(%error, "the limit of open descriptors stays at {:?}", limit.current);
    }
}

/// Tests of whole nodes meet a kernel that refuses what this one grants, and workers that an attacker has taken over, by names of
/// [`InjectedFault`] between commas.
#[cfg(feature = "faults")]
fn inject_faults() {
    let names = std::env::var("TARTAN_FAULTS").unwrap_or_default();
    for name in names.split(',').filter(|name| !name.is_empty()) {
        match InjectedFault::ALL
            .into_iter()
            .find(|fault| fault.name() == name)
        {
            Some(fault) => {
                warn!("TARTAN_FAULTS: {name}");
                faults::set(fault, true);
            }
            None => warn!("TARTAN_FAULTS: there is no fault {name}"),
        }
    }
}

/// The lock that each service holds: a keeper that died leaves a service that ends a moment later, and two
/// services never read one descriptor. Waits for that moment.
///
/// # Errors
/// As [`Lock::take`], after 5 s.
pub fn take_service_lock(run_dir: &Path) -> Result<Lock, LockError> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match Lock::take(&run_dir.join("service.lock")) {
            Err(LockError::Held { .. }) if Instant::now() < deadline => {
                std::thread::sleep(LOCK_STEP);
            }
            result => return result,
        }
    }
}

/// Removes what services before left in a directory that were killed in the middle of a file. No other process writes there
/// while the lock is held.
fn sweep(directory: &Path) {
    let problem = match atomic_file::sweep(directory, Duration::ZERO) {
        Ok(0) => return,
        Ok(left) => format!("{left} unfinished files of earlier services stay"),
        Err(error) => format!("unfinished files of earlier services stay ({error})"),
    };
    warn!(
        "{problem} in {}: check that it is writable by root",
        directory.display()
    );
}

/// Takes the channel and puts `/dev/null` in its place, so that nothing else reads it by accident.
fn take_input() -> io::Result<OwnedFd> {
    let channel = io::stdin().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    Ok(channel)
}

const LOCK_PATIENCE: Duration = Duration::from_secs(5);
const LOCK_STEP: Duration = Duration::from_millis(20);
