//! Start-up, which is always a take-over: steps 1 to 7 of the service's theory of operation.

mod beside;
pub mod device;
pub(crate) mod flannel;
mod idle_device;
mod new_device;
mod sources;
pub mod start_error;

use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cni_shim::NodeFile;
use dataplane::counters::Counters;
use dataplane::device::Device as _;
use dataplane::device::tunnel::Tunnel;
use dataplane::engine::{Engine, WorkerSetup};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::api::server::{self, Listeners};
use crate::causes::causes;
use crate::config::NodeConfig;
use crate::configuration::Configuration;
use crate::control::event_loop::{Control, QUICK_CHECK_EVERY, Turn};
use crate::control::facts::Facts;
use crate::control::held_list::HeldList;
use crate::control::kernel::Kernel;
use crate::control::model::{Cached, Known, Model};
use crate::control::persistence::SavedState;
use crate::control::pods::upkeep::Upkeep;
use crate::control::registry_state::RegistryState;
use crate::control::reload::Reload;
use crate::control::run_files::RunFiles;
use crate::control::tables::Tables;
use crate::control::underlay::slot::ReceivePorts;
use crate::control::underlay::sockets::{Delay, Inherited, UnderlaySockets};
use crate::control::view::queries::{Queries, QueryService};
use crate::control::view::{ServiceFacts, View};
use crate::control::workers::{Machine, WorkerPlacement};
use crate::gathering::Gathering;
use crate::health::Health;
use crate::host::{Change, Host, HostError, Leftovers, note_flannel_place};
use crate::keeper::COUNTERS;
use crate::keeper::descriptors::{Descriptors, LISTENER, Obtain, PLUGIN_LISTENER};
use crate::keeper::lock::Lock;
use crate::kernel_path::{self, KernelPathControl};
use crate::lease::Lease;
use crate::peer_health::PeerHealth;
use crate::problems::{Board, HostProblem, Origin, Problem};
use crate::registry::Registry;
use crate::service::{Entered, Entry};
use crate::start_failure;
use crate::ticker::Ticker;
use sources::Sources;
use start_error::StartError;

/// Starts everything; `None` when the keeper ended before it said *go*.
///
/// # Errors
/// [`StartError`]. What was deposited by then stays with the keeper; what was set up on the host stays for the
/// next start.
pub(crate) async fn start(
    configuration: Configuration,
    channel: OwnedFd,
    entry: Entry,
) -> Result<Option<Control>, StartError> {
    let reload = Reload::of(&configuration);
    let config = configuration.config;
    let mut table = Descriptors::receive(channel).await?;
    let entered = match table.is_beside {
        true => None,
        false => Some(entry.enter()?),
    };
    let mut found = Found {
        take_over: table.is_take_over(),
        problems: Vec::new(),
    };
    let refused = configuration
        .refused
        .map(|error| Problem::ConfigurationRefused {
            path: configuration.file.path().to_owned(),
            reason: causes(&error),
        });
    found.report(Origin::Configuration, refused);
    found.accept(Origin::Flanneld, flannel::running(&config))?;
    let Start {
        mut known,
        mut host,
        registry,
        held,
        cached,
        registry_state,
        leftovers,
    } = read(config, &table, &mut found).await?;
    flannel::check(&known, &host, &leftovers).await?;
    let entered = match entered {
        Some(entered) => entered,
        None => match beside::wait(&table, &entry, &mut known, (&mut host, cached.is_any())).await?
        {
            Some(entered) => entered,
            None => return Ok(None),
        },
    };
    let Entered { lock, health } = entered;
    let upkeep_host = Host::open(&known.config.state_dir()).await?;

    let (opened, tunnels) =
        Opened::obtain(&mut table, &known, &host, &leftovers, &mut found).await?;
    known.device_mac = tunnels.first().and_then(Tunnel::mac);
    table.discard_rest().await?;
    if let Some(bound) = opened.sockets.bound().filter(|bound| *bound != known.bound) {
        known.bound = bound;
        let unread = known.refresh(&host).await;
        found.report(Origin::Kernel, unread.as_ref().map(host_problem));
    }
    let lost = opened.counters.book_lost();
    if lost > 0 {
        warn!(
            lost,
            "packets that the service before this one held are booked as LostInCrash"
        );
    }
    let past = versions_used(&opened.counters);
    let mut model = Model::new(known, past);
    model.cached = cached;

    let repairs = set_up_host(&mut host, &model, &mut found).await?;
    let node_file = ensure_node_file(&model, &mut found)?;
    idle_device::stay(&host, &model.known.config.device_name, &tunnels).await;
    let engine = start_workers(&model, &opened, tunnels)?;
    let begun = Begun {
        registry,
        registry_state,
        held,
        table,
        lock,
        reload,
        host,
        upkeep_host,
        node_file,
        repairs,
        published: entry.published,
        health,
        leftovers,
    };
    begin(model, engine, opened, begun, found).await
}

/// Problems that were found on the way, and whether they end the start.
struct Found {
    take_over: bool,
    problems: Vec<(Origin, Problem)>,
}

impl Found {
    /// Notes a problem, or ends a first start with it. What a running service only reports must not end a take-over, or a
    /// crash would turn it into an outage.
    fn accept(&mut self, origin: Origin, problem: Option<Problem>) -> Result<(), StartError> {
        match problem {
            Some(problem) if problem.ends_first_start() && !self.take_over => Err(problem.into()),
            problem => {
                self.report(origin, problem);
                Ok(())
            }
        }
    }

    /// Notes a problem that ends no start.
    fn report(&mut self, origin: Origin, problem: Option<Problem>) {
        self.problems
            .extend(problem.map(|problem| (origin, problem)));
    }
}

/// What a start begins from.
struct Start {
    known: Known,
    host: Host,
    registry: Registry,
    registry_state: RegistryState,
    held: Option<HeldList>,
    cached: Cached,
    leftovers: Leftovers,
}

/// Step 2: everything that is known before the first decision.
async fn read(
    mut config: NodeConfig,
    table: &Descriptors,
    found: &mut Found,
) -> Result<Start, StartError> {
    let mut host = Host::open(&config.state_dir()).await?;
    let Sources {
        net_conf,
        net_conf_text,
        leases,
        own,
        external,
        registry,
        registry_state,
        held,
        cache,
        leftovers,
    } = Sources::read(&config, &host, table).await?;
    config.name_device(&net_conf.backend);
    found.problems.extend(cache.problems);
    host.set_add_only(cache.cached.is_any());
    let leases: Arc<[Lease]> = leases.into();
    let mut known = Known {
        facts: Facts::unread(&config, &own, &leases),
        bound: config.underlay(
            external
                .as_ref()
                .map_or(own.public, |external| external.local),
        ),
        device_mac: None,
        external,
        config: Arc::new(config),
        net_conf,
        net_conf_text,
        leases,
        own,
    };
    let unread = known.refresh(&host).await;
    found.accept(Origin::Kernel, unread.as_ref().map(host_problem))?;
    Ok(Start {
        known,
        host,
        registry,
        registry_state,
        held,
        cached: cache.cached,
        leftovers,
    })
}

/// Versions that earlier services used up: the words of the page are what their workers wrote last.
fn versions_used(counters: &Counters) -> u64 {
    let totals = counters.read();
    let versions = totals.workers.iter().map(|worker| worker.snapshot);
    versions.max().unwrap_or(0)
}

/// Step 4: the kernel's state. Returns what a take-over had to repair.
async fn set_up_host(
    host: &mut Host,
    model: &Model,
    found: &mut Found,
) -> Result<Vec<Change>, StartError> {
    let mut changes = Vec::new();
    let config = &model.known.config;
    // Before subnet.env is written, of which a clean-up must know whether it stays.
    if let Err(error) = note_flannel_place(&config.state_dir(), config.replace_flannel) {
        // Neither can the record of settings be written, which is a problem of its own.
        warn!("{}", causes(&error));
    }
    match host.apply(&model.desired.host).await {
        Ok(made) => changes = made,
        Err(error) => found.accept(Origin::Kernel, Some(host_problem(&error)))?,
    }
    // A refusal here keeps no pod from talking to another, so it ends no start either.
    let (more, refused) = host
        .apply_firewall_and_subnet_env(&model.desired.host)
        .await;
    changes.extend(more);
    found.report(Origin::Kernel, refused.as_ref().map(host_problem));
    // Flannel's masquerade goes when Tartan's is there.
    if model.known.config.replace_flannel && refused.is_none() {
        match host.remove_tables_of_flannel().await {
            Ok(more) => changes.extend(more),
            Err(error) => found.report(Origin::Kernel, Some(host_problem(&error))),
        }
    }
    if found.take_over {
        return Ok(changes);
    }
    changes.iter().for_each(|change| info!("set up: {change}"));
    Ok(Vec::new())
}

/// Step 6: the node file with what was decided. It is not written over an equal one: the directory may be full.
fn ensure_node_file(model: &Model, found: &mut Found) -> Result<Option<NodeFile>, StartError> {
    let run_dir = model.known.config.run_dir();
    let node_file = model.node_file();
    if NodeFile::read(&run_dir).is_ok_and(|read| read == node_file) {
        return Ok(Some(node_file));
    }
    match node_file.write(&run_dir) {
        Ok(()) => Ok(Some(node_file)),
        Err(error) => {
            let (path, reason) = (run_dir.node(), causes(&error));
            let problem = Problem::NodeFile { path, reason };
            found.accept(Origin::NodeFile, Some(problem))?;
            Ok(None)
        }
    }
}

/// Step 5: the workers, which read nothing yet.
fn start_workers(
    model: &Model,
    opened: &Opened,
    tunnels: Vec<Tunnel>,
) -> Result<Engine, StartError> {
    let sockets = opened.sockets.duplicates().map_err(StartError::Underlay)?;
    let cores = &opened.placement.cores;
    let spin = model.known.config.spin.limit(cores.len());
    let seats = tunnels.into_iter().zip(sockets).zip(cores);
    let seats = seats.map(|((device, underlay), core)| WorkerSetup {
        device,
        underlay,
        core: *core,
        spin,
    });
    let counters = opened.counters.clone();
    Engine::start(seats.collect(), counters, &model.desired.spec).map_err(StartError::Engine)
}

/// What the loop gets beside the model, the engine and the descriptors.
struct Begun {
    registry: Registry,
    registry_state: RegistryState,
    held: Option<HeldList>,
    table: Descriptors,
    lock: Lock,
    reload: Reload,
    host: Host,
    upkeep_host: Host,
    node_file: Option<NodeFile>,
    repairs: Vec<Change>,
    published: watch::Sender<Option<Arc<View>>>,
    health: Option<Health>,
    leftovers: Leftovers,
}

/// Step 7: says *ready*, waits for *go*, lets the workers read; `None` when the keeper ended instead.
async fn begin(
    model: Model,
    engine: Engine,
    opened: Opened,
    begun: Begun,
    mut found: Found,
) -> Result<Option<Control>, StartError> {
    let Begun {
        registry,
        registry_state,
        held,
        table,
        lock,
        reload,
        host,
        upkeep_host,
        node_file,
        repairs,
        published,
        health,
        leftovers,
    } = begun;
    // Changes of the kernel from here on are announced; what came before is read once more by the loop.
    let mut kernel = Kernel::watched(host, model.desired.host.clone());
    let ticker = Ticker::every(QUICK_CHECK_EVERY).map_err(StartError::Clock)?;
    let (changes, calls) = mpsc::channel(CALLS);
    let queries = Queries {
        view: published.subscribe(),
        counters: opened.counters.clone(),
        clock: engine.clock(),
        flows: engine.flow_watch(),
        captures: engine.captures(),
        changes,
    };
    // It waits for the first view.
    let listeners = opened.listeners.duplicate();
    let answering = QueryService::start(opened.listeners, queries.clone());
    let refused = answering.as_ref().err().map(|error| Problem::ApiThread {
        reason: error.to_string(),
    });
    found.accept(Origin::Api, refused)?;
    // One that started beside another has got its *go*.
    if !table.is_beside && !table.ready().await? {
        engine.stop();
        return Ok(None);
    }
    engine.go();
    table.forwarding().await?;
    let config = Arc::clone(&model.known.config);
    start_failure::forget(config.run_dir().path());
    kernel.note_repairs(&repairs);
    let undeleted = flannel::finish(&config, &kernel.host, &leftovers).await;
    found.report(Origin::Kernel, undeleted.as_ref().map(host_problem));
    let mut board = Board::default();
    board.post_all(found.problems);
    board.post(Origin::Contact, registry_state.problems());
    let service = Arc::new(ServiceFacts {
        config: Arc::clone(&config),
        cluster: model.known.net_conf.cluster(),
        workers: opened.placement,
        device_type: match model.known.device_mac {
            Some(_) => "tap",
            None => "tun",
        },
        registry: registry.describe(),
        started: Instant::now(),
        restarts: table.restarts,
        last_end: table.last_end.clone(),
        upgraded: table.upgraded.clone(),
    });
    info!(node = model.known.own.name, "forwarding");
    let kernel_path = KernelPathControl::new(&config, opened.kernel_path);
    let gathering = start_gathering(
        config.gather,
        opened.counters.clone(),
        published.subscribe(),
    );
    let peer_health = start_peer_health(config.probe, &engine, &config.state_dir());
    Ok(Some(Control {
        saved: SavedState::new(model.cached.leases.is_some()),
        run_files: RunFiles::new(
            config.run_dir(),
            lock,
            node_file,
            (answering.ok(), listeners),
            queries,
        ),
        upkeep: Upkeep::start(upkeep_host, config),
        tables: Tables::new(engine, opened.counters),
        model,
        kernel,
        sockets: opened.sockets,
        kernel_path,
        reload,
        registry,
        registry_state,
        held,
        keeper: table,
        board,
        service,
        published,
        gathering,
        peer_health,
        health,
        calls,
        ticker,
        turn: Turn::default(),
    }))
}

/// Starts what gathers small packets at the ends of pods. Without its thread all but the NAPI threads works.
/// A flood may pass through user space or the programs of the kernel path.
fn start_gathering(
    is_on: bool,
    counters: Counters,
    view: watch::Receiver<Option<Arc<View>>>,
) -> Gathering {
    let forwarded = move || {
        let view = view.borrow().clone();
        let by_programs = view.map_or(0, |view| view.kernel_path.sent());
        counters.from_device().saturating_add(by_programs)
    };
    Gathering::start(is_on, forwarded).unwrap_or_else(|error| {
        warn!("pods that flood get no NAPI thread: {error}");
        Gathering::without_watcher(is_on)
    })
}

fn start_peer_health(is_on: bool, engine: &Engine, state_dir: &Path) -> PeerHealth {
    let clock = engine.clock();
    PeerHealth::start(is_on, clock, engine.hearing(), state_dir).unwrap_or_else(|error| {
        warn!("the paths to peers are not probed: {error}");
        PeerHealth::refused(is_on, clock, error.to_string())
    })
}

fn host_problem(error: &HostError) -> Problem {
    Problem::Host(HostProblem::of(error))
}

/// Every descriptor of the service, adopted or opened.
struct Opened {
    placement: WorkerPlacement,
    sockets: UnderlaySockets,
    kernel_path: kernel_path::Inherited,
    counters: Counters,
    listeners: Listeners,
}

impl Opened {
    /// Step 3. Returns the workers' shares of the device beside it.
    async fn obtain(
        table: &mut Descriptors,
        known: &Known,
        host: &Host,
        leftovers: &Leftovers,
        found: &mut Found,
    ) -> Result<(Opened, Vec<Tunnel>), StartError> {
        let counters = table
            .adopt_or_open(COUNTERS, Counters::adopt, || {
                Counters::create(1)?.descriptor().try_clone_to_owned()
            })
            .await
            .map_err(|error| refused(COUNTERS, error))?;
        let machine = Machine::read();
        let run = known.config.run_dir();
        let listeners = Listeners {
            general: obtain_listener(table, LISTENER, &run.socket()).await?,
            plugin: obtain_listener(table, PLUGIN_LISTENER, &run.plugin_socket()).await?,
        };
        flannel::take_place(known, host, leftovers).await?;
        let wanted = device::Wanted {
            config: &known.config,
            mac: known.own_in_force().vtep_mac.v4,
            workers: machine.workers(&known.config),
        };
        let device = device::obtain(table, host, &wanted).await?;
        let workers = device.tunnels.len();
        counters.set_workers(workers);
        let (sockets, next) = obtain_sockets(table, known, host, workers, leftovers, found).await?;
        let is_at_private_port = sockets.private_port(&known.net_conf.backend).is_some();
        let kind = (device.kind, device.fewer);
        let opened = Opened {
            placement: WorkerPlacement::place(workers, kind, &machine, &known.config),
            sockets,
            kernel_path: kernel_path::Inherited::take(table, next, is_at_private_port),
            counters,
            listeners,
        };
        Ok((opened, device.tunnels))
    }
}

async fn obtain_listener(
    table: &mut Descriptors,
    name: &str,
    path: &Path,
) -> Result<UnixListener, StartError> {
    let adopt = |listener| server::adopt(listener, path);
    let open = || server::bind(path).map(OwnedFd::from);
    let obtained = table.adopt_or_open(name, adopt, open).await;
    obtained.map_err(|error| refused(name, error))
}

/// The underlay sockets, where they should be or where they are; and those that a service before this one opened to have
/// in their place.
async fn obtain_sockets(
    table: &mut Descriptors,
    known: &Known,
    host: &Host,
    workers: usize,
    leftovers: &Leftovers,
    found: &mut Found,
) -> Result<(UnderlaySockets, Option<UnderlaySockets>), StartError> {
    let backend = &known.net_conf.backend;
    let private = known.config.kernel_path_port;
    let formats = ReceivePorts::of(backend);
    let Inherited {
        sockets: inherited,
        next,
    } = UnderlaySockets::inherit(table, formats, private, workers).await?;
    let is_first = !inherited.receives_vxlan4();
    let mut is_freed = !leftovers.is_empty();
    let mut left = None;
    if is_first {
        left = kernel_path::port_without_sockets(host, known).await;
        is_freed |= left.is_none() && kernel_path::free_format_port(host, known).await;
    }
    let ports = match is_first {
        true => formats.with_private(left),
        false => inherited.receive_ports(backend),
    };
    // Where the registry has not said yet which address it wants, sockets that work stay.
    let wanted = match known.is_announced() {
        true => inherited.bound().unwrap_or_else(|| known.wanted()),
        false => known.wanted(),
    };
    let follow = |ports| inherited.follow(wanted, &known.facts.addresses, ports);
    let (mut sockets, mut delay) = open_until_freed(is_freed, || follow(ports)).await;
    if left.is_some() && delay.as_ref().map(|delay| delay.error.spec().port) == left {
        // Another process has the private port, without which a node forwards too.
        let is_freed = kernel_path::free_format_port(host, known).await;
        (sockets, delay) = open_until_freed(is_freed, || follow(formats)).await;
    }
    if let Some(delay) = delay {
        let ends_start = !found.take_over || sockets.bound().is_none();
        let holder = match ends_start {
            true => delay.holder(host).await,
            false => None,
        };
        let problem = delay.problem(&known.leases, &known.own.name, holder);
        if ends_start {
            return Err(problem.into());
        }
        found.report(Origin::Underlay, Some(problem));
    }
    if is_first && sockets.private_port(backend).is_none() {
        kernel_path::detach_left_underlay_in(host).await;
    }
    sockets.deposit(&inherited, table).await?;
    Ok((sockets, next))
}

/// Opens sockets, again and again where a device has just had their port (`is_freed`): the kernel closes the port of one that
/// goes down a moment later.
async fn open_until_freed(
    is_freed: bool,
    open: impl Fn() -> (UnderlaySockets, Option<Delay>),
) -> (UnderlaySockets, Option<Delay>) {
    let (mut sockets, mut delay) = open();
    let deadline = Instant::now() + PORT_PATIENCE;
    while is_freed && delay.is_some() && Instant::now() < deadline {
        sleep(PORT_STEP).await;
        (sockets, delay) = open();
    }
    (sockets, delay)
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

/// How long the port of a deleted VXLAN device is waited for.
const PORT_PATIENCE: Duration = Duration::from_secs(1);
const PORT_STEP: Duration = Duration::from_millis(2);
/// Calls that wait for the control loop, at most.
const CALLS: usize = 32;
