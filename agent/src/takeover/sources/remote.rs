//! The start of a node that announces itself to a remote registry.

use std::time::Duration;

use cni_shim::atomic_file;
use tokio::time::sleep;
use tracing::{info, warn};

use super::{Cache, Sources, named, net_conf, usable};
use crate::causes::causes;
use crate::config::node::registry::RegistryKind;
use crate::config::{NetConf, NodeConfig};
use crate::control::announcing::{self, Before};
use crate::control::registry_state::RegistryState;
use crate::host::external_interface::ExternalInterface;
use crate::host::{Host, Leftovers};
use crate::keeper::descriptors::Descriptors;
use crate::last_good::LastGood;
use crate::lease::Lease;
use crate::registry::{self, Contact, Registry, RegistrySettings, Update};
use crate::start_failure::{self, WAITS};
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
    leftovers: Leftovers,
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
            leftovers: self.leftovers,
        }
    }
}

/// A start from the last good state, where that is of this cluster. Otherwise what that says of this node.
pub(super) async fn of_cache(
    config: &NodeConfig,
    host: &Host,
    table: &Descriptors,
    registry: &Registry,
    kept: Option<LastGood>,
) -> Result<Result<Parts, Option<Lease>>, StartError> {
    let Some(kept) = kept else {
        return Ok(Err(None));
    };
    keep_net_conf(config, &kept);
    let mut cache = Cache::default();
    let (net_conf, net_conf_text) = net_conf(config, Some(&kept), &mut cache)?;
    if usable(kept.belongs_to(&net_conf, &config.state_dir())).is_none() {
        return Ok(Err(Some(kept.own)));
    }
    let (config, leftovers) = named(config, &net_conf, host, table.is_take_over()).await?;
    cache.cached.leases = Some(kept.age);
    // What the registry wants of the address it says later.
    let settings = RegistrySettings::default();
    let external = match host.picture().await {
        Ok(picture) => announcing::choose(&config, &net_conf, &settings, &picture)
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
        leftovers,
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
    /// This node's lease in a last good state that cannot be used.
    pub(super) kept_own: Option<Lease>,
}

/// What was announced, and by what.
struct Announced {
    net_conf: NetConf,
    net_conf_text: String,
    external: ExternalInterface,
    leftovers: Leftovers,
}

impl Awaited<'_> {
    /// Waits until the registry has said what is needed and has this node's lease.
    ///
    /// # Errors
    /// [`StartError`]: the keeper has ended, or a net-conf in a file cannot be used.
    pub(super) async fn first(self, mut registry: Registry) -> Result<Sources, StartError> {
        let mut state = RegistryState::new(&registry.describe(), false);
        let mut ready: Option<Announced> = None;
        info!("waiting for the registry: {}", registry.describe());
        self.note(&format!("{WAITS}, {}", registry.describe()));
        loop {
            let update = tokio::select! {
                update = registry.next() => Some(update),
                () = sleep(LOOK_AGAIN) => None,
            };
            let is_new = matches!(update, Some(Update::Settings(_)));
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
                    state.learn(settings, &[], &registry.place(), &self.config.net_conf);
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
                        (Ok(own), Some(announced)) => {
                            let parts = Parts {
                                net_conf: announced.net_conf,
                                net_conf_text: announced.net_conf_text,
                                leases,
                                own,
                                external: Some(announced.external),
                                registry_state: state,
                                cache: Cache::default(),
                                leftovers: announced.leftovers,
                            };
                            return Ok(parts.with(registry));
                        }
                        (Err(reason), _) => self.wait_for(&reason),
                        (_, None) => {}
                    }
                }
            }
            let is_due = ready.is_none() || is_new;
            if let Some(settings) = state.settings.as_ref().filter(|_| is_due) {
                ready = self.announce(settings, &registry).await?.or(ready);
            }
        }
    }

    /// Announces this node, if its net-conf and its interface can be told.
    async fn announce(
        &self,
        settings: &RegistrySettings,
        registry: &Registry,
    ) -> Result<Option<Announced>, StartError> {
        let is_copy = self.config.registry.kind == RegistryKind::Etcd;
        if is_copy && !self.config.net_conf.exists() {
            return Ok(None);
        }
        let (net_conf, net_conf_text) = net_conf(self.config, None, &mut Cache::default())?;
        let (config, leftovers) =
            named(self.config, &net_conf, self.host, self.table.is_take_over()).await?;
        let external = match self.host.picture().await {
            Ok(picture) => announcing::choose(&config, &net_conf, settings, &picture)
                .map_err(|error| causes(&error)),
            Err(error) => Err(causes(&error)),
        };
        match external {
            Ok(external) => {
                let before = Before::of(self.kept_own.as_ref(), leftovers.vtep_mac, &config);
                let announcement = announcing::announcement(&config, &net_conf, &before, &external);
                registry.announce(announcement);
                Ok(Some(Announced {
                    net_conf,
                    net_conf_text,
                    external,
                    leftovers,
                }))
            }
            Err(reason) => {
                self.wait_for(&reason);
                Ok(None)
            }
        }
    }

    /// Says what is waited for, in the log and to `tartan status`.
    fn wait_for(&self, reason: &str) {
        let reason = format!("{WAITS}: {reason}");
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
