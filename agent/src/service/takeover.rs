//! Start-up, which is always a take-over: steps 1 to 7 of the service's theory of operation.

use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;

use cni_shim::NodeFile;
use dataplane::counters::Counters;
use dataplane::device::tunnel::Tunnel;
use dataplane::engine::{Engine, Seat};
use tracing::{info, warn};

use super::control::{Control, Parts};
use super::cores::{Machine, Workforce};
use super::descriptors::{Descriptors, Obtain};
use super::device;
use super::facts::Facts;
use super::node::{Known, Node};
use super::ports::{Delay, Ports};
use super::sources::{Origin, Sources};
use super::start_error::StartError;
use crate::api::server;
use crate::causes::causes;
use crate::config::NodeConfig;
use crate::host::{Host, HostError};
use crate::keeper::COUNTERS;
use crate::keeper::lock::Lock;
use crate::registry::file::FileRegistry;

/// Starts everything; `None` when the keeper ended before it said *go*.
///
/// # Errors
/// [`StartError`]. What was deposited by then stays with the keeper; what was set up on the host stays for the
/// next start.
pub async fn start(
    config: NodeConfig,
    channel: OwnedFd,
    lock: Lock,
) -> Result<Option<Control>, StartError> {
    let mut table = Descriptors::receive(channel).await?;
    let take_over = table.is_take_over();
    let (mut known, mut host, registry, origin, mut unread) = read(config, take_over).await?;

    let opened = Opened::obtain(&mut table, &known, &host, take_over).await?;
    table.discard_rest().await?;
    if let Some(bound) = opened.ports.bound().filter(|bound| *bound != known.bound) {
        known.bound = bound;
        unread = known.refresh(&host).await.map(|error| causes(&error));
    }
    let lost = opened.counters.book_lost();
    if lost > 0 {
        warn!(
            lost,
            "packets that the service before this one held are booked as LostInCrash"
        );
    }
    // Words of the page are what workers of earlier services wrote last.
    let past = opened
        .counters
        .read()
        .workers
        .iter()
        .map(|worker| worker.snapshot)
        .max();
    let mut node = Node::new(known, past.unwrap_or(0));
    (node.cached, node.refused_leases) = (origin.cached, origin.refused_leases);

    let (mut changes, refused) = match host.apply(&node.desired.host).await {
        Ok(changes) => (changes, None),
        Err(error) => (Vec::new(), Some(bearable(error, take_over)?)),
    };
    // A refusal here keeps no pod from talking to another, so it ends no start either.
    let (more, refused_beside) = host.apply_beside(&node.desired.host).await;
    changes.extend(more);
    let refused = refused.or(refused_beside.map(|error| causes(&error)));
    let (node_file, node_file_problem) = match told_already(&node) {
        Ok(node_file) => (Some(node_file), None),
        Err(error) if take_over => (None, Some(causes(&error))),
        Err(error) => return Err(error.into()),
    };
    if !take_over {
        changes.iter().for_each(|change| info!("set up: {change}"));
    }
    let repairs = if take_over { changes } else { Vec::new() };
    let sockets = opened.ports.sockets().map_err(StartError::Underlay)?;
    let spin = node.known.config.spin.limit(opened.workforce.cores.len());
    let seats = opened.tunnels.into_iter().zip(sockets);
    let seats = seats.zip(&opened.workforce.cores);
    let seats = seats.map(|((device, underlay), core)| Seat {
        device,
        underlay,
        core: *core,
        spin,
    });
    let engine = Engine::start(seats.collect(), opened.counters.clone(), &node.desired.spec)
        .map_err(StartError::Engine)?;
    let known = &node.known;
    let told = |delay: &Delay| delay.told(&known.leases, &known.own);
    let underlay_problem = opened.delay.as_ref().map(told);
    let parts = Parts {
        node,
        host,
        engine,
        counters: opened.counters,
        ports: opened.ports,
        workforce: opened.workforce,
        listener: opened.listener,
        registry,
        table,
        lock,
        node_file,
        node_file_problem,
        host_problem: unread.or(refused),
        underlay_problem,
    };
    Control::begin(parts, &repairs).await
}

/// What a running service only reports must not end a take-over, or a crash would turn it into an outage. On a
/// first start it is the reason to end.
fn bearable(error: HostError, take_over: bool) -> Result<String, HostError> {
    if take_over {
        Ok(causes(&error))
    } else {
        Err(error)
    }
}

/// The node file with what was decided. It is not written again over an equal one: the directory may be full.
fn told_already(node: &Node) -> Result<NodeFile, cni_shim::node_file::Error> {
    let run_dir = node.known.config.run_dir();
    let node_file = node.node_file();
    if !NodeFile::read(&run_dir).is_ok_and(|found| found == node_file) {
        node_file.write(&run_dir)?;
    }
    Ok(node_file)
}

/// Step 2: everything that is known before the first decision, and what the kernel did not tell, in words.
async fn read(
    config: NodeConfig,
    take_over: bool,
) -> Result<(Known, Host, FileRegistry, Origin, Option<String>), StartError> {
    let Sources {
        net_conf,
        net_conf_text,
        leases,
        own,
        registry,
        origin,
    } = Sources::read(&config).await?;
    let mut host = Host::open(&config.state_dir()).await?;
    host.only_add(origin.cached.is_any());
    let leases = leases.into();
    let mut known = Known {
        facts: Facts::unread(&config, &own, &leases),
        bound: config.underlay(own.public),
        config,
        net_conf,
        net_conf_text,
        leases,
        own,
        attachments: Vec::new(),
    };
    let unread = match known.refresh(&host).await {
        Some(error) => Some(bearable(error, take_over)?),
        None => None,
    };
    Ok((known, host, registry, origin, unread))
}

/// Every descriptor of the service, adopted or opened.
struct Opened {
    /// A share of the device for each worker.
    tunnels: Vec<Tunnel>,
    workforce: Workforce,
    ports: Ports,
    /// Why the sockets are not where they should be, if they are not.
    delay: Option<Delay>,
    counters: Counters,
    listener: UnixListener,
}

impl Opened {
    async fn obtain(
        table: &mut Descriptors,
        known: &Known,
        host: &Host,
        take_over: bool,
    ) -> Result<Opened, StartError> {
        let counters = table
            .adopt_or_open(COUNTERS, Counters::adopt, || {
                Counters::create(1)?.descriptor().try_clone_to_owned()
            })
            .await
            .map_err(|error| refused(COUNTERS, error))?;
        let machine = Machine::read();
        let device = device::obtain(table, &known.config, machine.workers(&known.config)).await?;
        let workers = device.tunnels.len();
        counters.employ(workers);
        let backend = &known.net_conf.backend;
        let inherited = Ports::inherit(table, backend, workers).await?;
        let (ports, delay) = inherited.follow(known.wanted(), &known.facts.addresses, backend);
        let delay = match delay {
            // As with the host: a first start ends with its reason, a take-over goes on with what there is.
            Some(delay) if !take_over || ports.bound().is_none() => {
                return Err(StartError::Descriptor {
                    name: delay.name(),
                    reason: delay.with_holder(host).await,
                });
            }
            delay => delay,
        };
        ports.deposit(&inherited, table).await?;
        let path = known.config.run_dir().socket();
        let listener = table
            .adopt_or_open(
                LISTENER,
                |listener| server::adopt(listener, &path),
                || server::bind(&path).map(OwnedFd::from),
            )
            .await
            .map_err(|error| refused(LISTENER, error))?;
        Ok(Opened {
            workforce: Workforce::place(&device, &machine, &known.config),
            tunnels: device.tunnels,
            ports,
            delay,
            counters,
            listener,
        })
    }
}

fn refused<A: Display, O: Display>(name: &str, error: Obtain<A, O>) -> StartError {
    let reason = match error {
        Obtain::Adopt(reason) => reason.to_string(),
        Obtain::Open(reason) => reason.to_string(),
        Obtain::Keeper(error) => return error.into(),
    };
    StartError::Descriptor {
        name: name.to_owned(),
        reason,
    }
}

/// Name of the API listener in the keeper's table.
pub(super) const LISTENER: &str = "api";
