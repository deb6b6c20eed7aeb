//! Where the first tables come from: the net-conf and the registry, and the last good state in the place of what
//! cannot be used. Without such a state, what cannot be used keeps the service from starting.
//!
//! A remote registry is not waited for where there is a last good state of this cluster: the service forwards from that, and
//! the control loop takes the registry's answer when it comes. Without one it is waited for ([`remote`]).

mod remote;

use std::time::{Duration, SystemTime};

use tokio::time::timeout;
use tracing::{info, warn};

use crate::causes::causes;
use crate::config::{NetConf, NodeConfig, difference};
use crate::control::held_list::{HeldList, Time};
use crate::control::model::Cached;
use crate::control::persistence::net_conf_problem;
use crate::control::registry_state::RegistryState;
use crate::host::external_interface::ExternalInterface;
use crate::host::{Host, Leftovers};
use crate::keeper::descriptors::Descriptors;
use crate::last_good::LastGood;
use crate::lease::Lease;
use crate::problems::{LeasesInForce, Origin, Problem};
use crate::registry::{self, Registry, RegistryPlace, Update};
use crate::takeover::flannel;
use crate::takeover::start_error::StartError;
use remote::{Awaited, of_cache};

/// What the first decision is made from.
pub(crate) struct Sources {
    pub(crate) net_conf: NetConf,
    pub(crate) net_conf_text: String,
    pub(crate) leases: Vec<Lease>,
    pub(crate) own: Lease,
    /// The interface by which a node that announces itself is reached.
    pub(crate) external: Option<ExternalInterface>,
    pub(crate) registry: Registry,
    pub(crate) registry_state: RegistryState,
    /// What the registry says, where that is not what the first decision is made from.
    pub(crate) held: Option<HeldList>,
    pub(crate) cache: Cache,
    /// What flannel left on the host, where this node takes its place.
    pub(crate) leftovers: Leftovers,
}

/// What of it comes from the last good state, and why.
#[derive(Default)]
pub(crate) struct Cache {
    pub(crate) cached: Cached,
    pub(crate) problems: Vec<(Origin, Problem)>,
}

impl Sources {
    /// Reads them. A remote registry is awaited where there is no last good state; the keeper, by way of `table`, and
    /// callers of the agent are told so.
    ///
    /// # Errors
    /// [`StartError`], where a file cannot be used and no last good state stands in.
    pub(crate) async fn read(
        config: &NodeConfig,
        host: &Host,
        table: &Descriptors,
    ) -> Result<Sources, StartError> {
        let kept = usable(LastGood::read(
            &config.state_dir(),
            &config.node_name,
            SystemTime::now(),
        ))
        .flatten();
        match Registry::open_remote(config)? {
            None => Sources::of_file(config, host, table.is_take_over(), kept).await,
            Some(registry) => match of_cache(config, host, table, &registry, kept).await? {
                Ok(parts) => Ok(parts.with(registry)),
                Err(kept_own) => {
                    let awaited = Awaited {
                        config,
                        host,
                        table,
                        kept_own,
                    };
                    awaited.first(registry).await
                }
            },
        }
    }

    async fn of_file(
        config: &NodeConfig,
        host: &Host,
        is_take_over: bool,
        kept: Option<LastGood>,
    ) -> Result<Sources, StartError> {
        let mut cache = Cache::default();
        let (net_conf, net_conf_text) = net_conf(config, kept.as_ref(), &mut cache)?;
        let kept =
            kept.filter(|kept| usable(kept.belongs_to(&net_conf, &config.state_dir())).is_some());
        let (_, leftovers) = named(config, &net_conf, host, is_take_over).await?;
        let mut registry = Registry::open_file(config, &net_conf)?;
        let mut held = None;
        let (leases, own) = match (first(&mut registry, kept.is_some()).await, kept) {
            (Ok(leases), kept) => {
                let own = registry::own(&leases, &config.node_name).cloned();
                let nothing = LeasesInForce::Nothing;
                let own = own.map_err(|reason| refused(registry.place(), reason, nothing))?;
                match kept {
                    None => (leases, own),
                    Some(kept) => match check(leases, &own, &kept, config) {
                        Ok(leases) => (leases, own),
                        Err(list) => {
                            let problem = list.problem(registry.place().to_string());
                            cache.cached.leases = Some(kept.age);
                            cache.cached.is_held = true;
                            cache.problems.push((Origin::Registry, problem));
                            held = Some(list);
                            (kept.leases, kept.own)
                        }
                    },
                }
            }
            (Err((place, reason)), None) => {
                return Err(refused(place, reason, LeasesInForce::Nothing).into());
            }
            (Err((place, reason)), Some(kept)) => {
                let problem = refused(place, reason, LeasesInForce::Cache);
                cache.cached.leases = Some(kept.age);
                cache.problems.push((Origin::Registry, problem));
                (kept.leases, kept.own)
            }
        };
        Ok(Sources {
            net_conf,
            net_conf_text,
            leases,
            own,
            external: None,
            registry_state: RegistryState::new(&registry.describe(), true),
            registry,
            held,
            cache,
            leftovers,
        })
    }
}

/// The configuration with the device's name under this net-conf, and what flannel left of devices of that name.
async fn named(
    config: &NodeConfig,
    net_conf: &NetConf,
    host: &Host,
    is_take_over: bool,
) -> Result<(NodeConfig, Leftovers), StartError> {
    let mut config = config.clone();
    config.name_device(&net_conf.backend);
    let leftovers = flannel::leftovers(&config, host, is_take_over).await?;
    Ok((config, leftovers))
}

/// The net-conf of the file, or of the last good state where the file cannot be used.
fn net_conf(
    config: &NodeConfig,
    kept: Option<&LastGood>,
    cache: &mut Cache,
) -> Result<(NetConf, String), StartError> {
    let (net_conf, text) = match (NetConf::load(&config.net_conf), kept) {
        (Ok(read), _) => read,
        (Err(error), None) => return Err(net_conf_problem(config, &error, false).into()),
        (Err(error), Some(kept)) => {
            cache
                .problems
                .push((Origin::NetConf, net_conf_problem(config, &error, true)));
            cache.cached.net_conf = true;
            (kept.net_conf.clone(), kept.net_conf_text.clone())
        }
    };
    for key in net_conf.unknown_keys() {
        let file = config.net_conf.display();
        warn!("{file}: unknown key, ignored as flannel does: {key}");
    }
    for change in kept
        .iter()
        .flat_map(|kept| difference::of_net_conf(&kept.net_conf, &net_conf))
    {
        info!("the net-conf differs from the one before: {change}");
    }
    Ok((net_conf, text))
}

/// A list that loses most nodes of the last good state is held back.
fn check(
    leases: Vec<Lease>,
    own: &Lease,
    kept: &LastGood,
    config: &NodeConfig,
) -> Result<Vec<Lease>, HeldList> {
    let (grace, time) = (config.shrink_grace, Time::read());
    HeldList::check_at_start(leases, own, &kept.leases, &kept.own, grace, time)
}

/// What a file says first. Where there is another source, it is not waited for without end.
async fn first(
    registry: &mut Registry,
    has_other_source: bool,
) -> Result<Vec<Lease>, (RegistryPlace, String)> {
    let said = async {
        loop {
            match registry.next().await {
                Update::Leases(leases) => return Ok(leases),
                Update::Refused { place, reason } => return Err((place, reason)),
                // A file says nothing else.
                Update::Settings(_) | Update::RefusedRecords(_) | Update::Contact(_) => {}
            }
        }
    };
    if !has_other_source {
        return said.await;
    }
    match timeout(PATIENCE, said).await {
        Ok(said) => said,
        Err(_elapsed) => Err((
            registry.place(),
            "no complete list has arrived yet; another process may still be writing it".to_owned(),
        )),
    }
}

/// A last good state that is refused counts as none, and the log says so.
fn usable<T>(result: Result<T, impl std::error::Error>) -> Option<T> {
    result.map_err(|error| warn!("{}", causes(&error))).ok()
}

fn refused(place: RegistryPlace, reason: String, in_force: LeasesInForce) -> Problem {
    Problem::LeasesRefused {
        place: place.to_string(),
        reason,
        in_force,
    }
}

/// The first answer of a file that no process writes takes 10 ms.
const PATIENCE: Duration = Duration::from_millis(300);
