//! The start of a node that announces itself to a remote registry.

use std::time::Duration;

use cni_shim::atomic_file;
use dataplane::families::PerFamily;
use encap::Mac;
use tokio::time::sleep;
use tracing::{info, warn};

use super::{Cache, Sources, net_conf, usable};
use crate::causes::causes;
use crate::config::node::registry::RegistryKind;
use crate::config::{NetConf, NodeConfig};
use crate::control::announcing::{self, Before};
use crate::control::registry_state::RegistryState;
use crate::host::Host;
use crate::host::external_interface::ExternalInterface;
use crate::keeper::descriptors::Descriptors;
use crate::last_good::LastGood;
use crate::lease::Lease;
use crate::registry::{self, Contact, Registry, RegistrySettings, Update};
use crate::start_failure;
use crate::takeover::start_error::StartError;

/// What the first decision is made from, but for the registry.
pub(super) struct Parts {
    net_conf: NetConf,
    net_conf_text: String,
    leases: Vec<Lease>,
    own: Lease,
    external: Option<ExternalInterface>,
    registry_state: RegistryState,
    cache: Cache,
}

impl Parts {
    /// Adds the registry.
    pub(super) fn with(self, registry: Registry) -> Sources {
        Sources {
            net_conf: self.net_conf,
            net_conf_text: self.net_conf_text,
            leases: self.leases,
            own: self.own,
            external: self.external,
            registry,
            registry_state: self.registry_state,
            held: None,
            cache: self.cache,
        }
    }
}

/// A start from the last good state, where that is of this cluster. Otherwise what the node had before, as far as it
/// counts elsewhere.
pub(super) async fn of_cache(
    config: &NodeConfig,
    host: &Host,
    registry: &Registry,
    kept: Option<LastGood>,
    found: PerFamily<Option<Mac>>,
) -> Result<Result<Parts, Before>, StartError> {
    let before = Before::of(kept.as_ref().map(|kept| &kept.own), found, config);
    let Some(kept) = kept else {
        return Ok(Err(before));
    };
    keep_net_conf(config, &kept);
    let mut cache = Cache::default();
    let (net_conf, net_conf_text) = net_conf(config, Some(&kept), &mut cache)?;
    if usable(kept.belongs_to(&net_conf, &config.state_dir())).is_none() {
        return Ok(Err(before));
    }
    cache.cached.leases = Some(kept.age);
    // What the registry wants of the address it says later.
    let settings = RegistrySettings::default();
    let external = match host.picture().await {
        Ok(picture) => announcing::choose(config, &net_conf, &settings, &picture)
            .map_err(|error| warn!("{}", causes(&error)))
            .ok(),
        Err(_) => None,
    };
    Ok(Ok(Parts {
        net_conf,
        net_conf_text,
        leases: kept.leases,
        own: kept.own,
        external,
        registry_state: RegistryState::new(&registry.describe(), false),
        cache,
    }))
}

/// With etcd the net-conf is a copy of a key. Where the copy is gone, the last good state has the text too.
fn keep_net_conf(config: &NodeConfig, kept: &LastGood) {
    if config.registry.kind != RegistryKind::Etcd || config.net_conf.exists() {
        return;
    }
    let written = atomic_file::replace_for_good(&config.net_conf, kept.net_conf_text.as_bytes());
    if let Err(error) = written {
        warn!(%error, "cannot write {}", config.net_conf.display());
    }
}

/// A start that needs the registry's answer.
pub(super) struct Awaited<'a> {
    pub(super) config: &'a NodeConfig,
    pub(super) host: &'a Host,
    pub(super) table: &'a Descriptors,
    pub(super) before: Before,
}

impl Awaited<'_> {
    /// Waits until the registry has said what is needed and has this node's lease.
    ///
    /// # Errors
    /// [`StartError`]: the keeper has ended, or a net-conf in a file cannot be used.
    pub(super) async fn first(self, mut registry: Registry) -> Result<Sources, StartError> {
        let mut state = RegistryState::new(&registry.describe(), false);
        let mut ready: Option<(NetConf, String, ExternalInterface)> = None;
        info!("waiting for the registry: {}", registry.describe());
        self.note(&format!(
            "it waits for the registry, {}",
            registry.describe()
        ));
        loop {
            let update = tokio::select! {
                update = registry.next() => Some(update),
                () = sleep(LOOK_AGAIN) => None,
            };
            // The keeper takes a service that is silent for one that hangs.
            self.table.waiting().await?;
            match update {
                None => {}
                Some(Update::Contact(contact)) => {
                    if let Contact::Lost { reason } = &contact {
                        self.wait_for(&format!("{}: {reason}", registry.describe()));
                    }
                    state.contact(contact);
                }
                Some(Update::RefusedRecords(records)) => state.pass_over(records),
                Some(Update::Settings(settings)) => {
                    state.learn(settings, &registry.place(), &self.config.net_conf);
                    for problem in state.problems() {
                        self.wait_for(&problem.to_string());
                    }
                }
                Some(Update::Refused { place, reason }) => {
                    let reason = format!("{place}: {reason}");
                    self.wait_for(&reason);
                    state.note_refused(&reason);
                }
                Some(Update::Leases(leases)) => {
                    let own = registry::own(&leases, &self.config.node_name).cloned();
                    match (own, ready.take()) {
                        (Ok(own), Some((net_conf, net_conf_text, external))) => {
                            let parts = Parts {
                                net_conf,
                                net_conf_text,
                                leases,
                                own,
                                external: Some(external),
                                registry_state: state,
                                cache: Cache::default(),
                            };
                            return Ok(parts.with(registry));
                        }
                        (Err(reason), _) => self.wait_for(&reason),
                        (_, None) => {}
                    }
                }
            }
            if let Some(settings) = &state.settings {
                ready = self.announce(settings, &registry).await?.or(ready);
            }
        }
    }

    /// Announces this node, if its net-conf and its interface can be told.
    async fn announce(
        &self,
        settings: &RegistrySettings,
        registry: &Registry,
    ) -> Result<Option<(NetConf, String, ExternalInterface)>, StartError> {
        let is_copy = self.config.registry.kind == RegistryKind::Etcd;
        if is_copy && !self.config.net_conf.exists() {
            return Ok(None);
        }
        let (net_conf, text) = net_conf(self.config, None, &mut Cache::default())?;
        let external = match self.host.picture().await {
            Ok(picture) => announcing::choose(self.config, &net_conf, settings, &picture)
                .map_err(|error| causes(&error)),
            Err(error) => Err(causes(&error)),
        };
        match external {
            Ok(external) => {
                let announcement =
                    announcing::announcement(self.config, &net_conf, &self.before, &external);
                registry.announce(announcement);
                Ok(Some((net_conf, text, external)))
            }
            Err(reason) => {
                self.wait_for(&reason);
                Ok(None)
            }
        }
    }

    /// Says what is waited for, in the log and to `tartan status`.
    fn wait_for(&self, reason: &str) {
        let reason = format!("it waits for the registry: {reason}");
        let run_dir = self.config.run_dir();
        if start_failure::read(run_dir.path()).as_deref() != Some(&reason) {
            warn!("not forwarding yet: {reason}");
            self.note(&reason);
        }
    }

    fn note(&self, reason: &str) {
        start_failure::note(self.config.run_dir().path(), reason);
    }
}

/// An interface may get its address meanwhile.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
