//! Where the first tables come from: the net-conf and the registry, and the last good state in the place of what
//! cannot be used. Without such a state, what cannot be used keeps the service from starting.

use std::time::{Duration, SystemTime};

use tokio::time::timeout;
use tracing::warn;

use crate::causes::causes;
use crate::config::{NetConf, NetConfError, NodeConfig};
use crate::control::model::Cached;
use crate::last_good::LastGood;
use crate::lease::Lease;
use crate::registry::{self, Registry, Update};
use crate::takeover::start_error::StartError;

/// What the first decision is made from.
pub(crate) struct Sources {
    pub(crate) net_conf: NetConf,
    pub(crate) net_conf_text: String,
    pub(crate) leases: Vec<Lease>,
    pub(crate) own: Lease,
    pub(crate) registry: Registry,
    pub(crate) origin: Origin,
}

/// What of it comes from the last good state, and why.
#[derive(Default)]
pub(crate) struct Origin {
    pub(crate) cached: Cached,
    pub(crate) refused_leases: Option<String>,
}

impl Sources {
    /// Reads them.
    ///
    /// # Errors
    /// [`StartError`], where a file cannot be used and no last good state stands in.
    pub(crate) async fn read(config: &NodeConfig) -> Result<Sources, StartError> {
        let mut origin = Origin::default();
        let kept = told(LastGood::read(
            &config.state_dir(),
            &config.node_name,
            SystemTime::now(),
        ))
        .flatten();
        let (net_conf, net_conf_text) = match (NetConf::load(&config.net_conf), &kept) {
            (Ok(read), _) => read,
            (Err(error), None) => return Err(no_net_conf(config, error)),
            (Err(error), Some(kept)) => {
                let reason = causes(&no_net_conf(config, error));
                warn!("the net-conf of the last good state is used: {reason}");
                origin.cached.net_conf = Some(reason);
                (kept.net_conf.clone(), kept.net_conf_text.clone())
            }
        };
        for key in net_conf.unknown_keys() {
            let file = config.net_conf.display();
            warn!("{file}: unknown key, ignored as flannel does: {key}");
        }
        let kept =
            kept.filter(|kept| told(kept.belongs_to(&net_conf, &config.state_dir())).is_some());
        let mut registry = Registry::open(config, &net_conf)?;
        let (leases, own) = match (first(&mut registry, kept.is_some()).await, kept) {
            (Update::Leases(leases), _) => {
                let own = registry::own(&leases, &config.node_name).cloned();
                let own = own.map_err(|reason| StartError::Leases {
                    place: registry.place(),
                    reason,
                })?;
                (leases, own)
            }
            (Update::Refused { place, reason }, None) => {
                return Err(StartError::Leases { place, reason });
            }
            (Update::Refused { place, reason }, Some(kept)) => {
                let reason = format!("{place}: {reason}");
                warn!("the leases of the last good state are used: {reason}");
                origin.cached.leases = Some(kept.age);
                origin.refused_leases = Some(reason);
                (kept.leases, kept.own)
            }
        };
        Ok(Sources {
            net_conf,
            net_conf_text,
            leases,
            own,
            registry,
            origin,
        })
    }
}

/// What the registry says first. One that is silent is not waited for where there is another way.
async fn first(registry: &mut Registry, another_way: bool) -> Update {
    if !another_way {
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

/// A last good state that is refused is as good as none, but not in silence.
fn told<T>(result: Result<T, impl std::error::Error>) -> Option<T> {
    result.map_err(|error| warn!("{}", causes(&error))).ok()
}

/// The error with the file's name.
pub(crate) fn no_net_conf(config: &NodeConfig, source: NetConfError) -> StartError {
    match source {
        NetConfError::File(_) => StartError::NoNetConf(source),
        _ => StartError::NetConf {
            path: config.net_conf.clone(),
            source,
        },
    }
}

/// The first answer of a file that nobody writes takes 10 ms.
const PATIENCE: Duration = Duration::from_millis(300);
