//! Where the first tables come from: the net-conf and the registry, and the last good state in the place of what
//! cannot be used. Without such a state, what cannot be used keeps the service from starting.

use std::time::{Duration, SystemTime};

use tokio::time::timeout;
use tracing::{info, warn};

use crate::causes::causes;
use crate::config::{NetConf, NodeConfig, difference};
use crate::control::held_list::{HeldList, Time};
use crate::control::model::Cached;
use crate::control::persistence::net_conf_problem;
use crate::last_good::LastGood;
use crate::lease::Lease;
use crate::problems::{LeasesInForce, Origin, Problem};
use crate::registry::{self, Registry, RegistryPlace, Update};
use crate::takeover::start_error::StartError;

/// What the first decision is made from.
pub(crate) struct Sources {
    pub(crate) net_conf: NetConf,
    pub(crate) net_conf_text: String,
    pub(crate) leases: Vec<Lease>,
    pub(crate) own: Lease,
    pub(crate) registry: Registry,
    /// What the registry says, where that is not what the first decision is made from.
    pub(crate) held: Option<HeldList>,
    pub(crate) cache: Cache,
}

/// What of it comes from the last good state, and why.
#[derive(Default)]
pub(crate) struct Cache {
    pub(crate) cached: Cached,
    pub(crate) problems: Vec<(Origin, Problem)>,
}

impl Sources {
    /// Reads them.
    ///
    /// # Errors
    /// [`StartError`], where a file cannot be used and no last good state stands in.
    pub(crate) async fn read(config: &NodeConfig) -> Result<Sources, StartError> {
        let mut cache = Cache::default();
        let kept = usable(LastGood::read(
            &config.state_dir(),
            &config.node_name,
            SystemTime::now(),
        ))
        .flatten();
        let (net_conf, net_conf_text) = match (NetConf::load(&config.net_conf), &kept) {
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
        let kept =
            kept.filter(|kept| usable(kept.belongs_to(&net_conf, &config.state_dir())).is_some());
        let mut registry = Registry::open_file(config, &net_conf)?;
        let mut held = None;
        let (leases, own) = match (first(&mut registry, kept.is_some()).await, kept) {
            (Update::Leases(leases), kept) => {
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
            (Update::Refused { place, reason }, None) => {
                return Err(refused(place, reason, LeasesInForce::Nothing).into());
            }
            (Update::Refused { place, reason }, Some(kept)) => {
                let problem = refused(place, reason, LeasesInForce::Cache);
                cache.cached.leases = Some(kept.age);
                cache.problems.push((Origin::Registry, problem));
                (kept.leases, kept.own)
            }
            (_, None) => {
                let reason = "the registry gives no list".to_owned();
                return Err(refused(registry.place(), reason, LeasesInForce::Nothing).into());
            }
            (_, Some(kept)) => {
                cache.cached.leases = Some(kept.age);
                (kept.leases, kept.own)
            }
        };
        Ok(Sources {
            net_conf,
            net_conf_text,
            leases,
            own,
            registry,
            held,
            cache,
        })
    }
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

/// What the registry says first. Where there is another source, it is not waited for without end.
async fn first(registry: &mut Registry, has_other_source: bool) -> Update {
    if !has_other_source {
        return registry.next().await;
    }
    timeout(PATIENCE, registry.next())
        .await
        .unwrap_or_else(|_elapsed| Update::Refused {
            place: registry.place(),
            reason: "no complete list has arrived yet; another process may still be writing it"
                .to_owned(),
        })
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
