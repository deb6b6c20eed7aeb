//! What a start of the agent would decide and meet now, without changing anything: the judge while no service answers.
//!
//! It goes by the files, and by the last good state where a file cannot be used or the registry is a remote one, which is
//! not asked here. The decision and the problems that it shows are those of the control loop ([`Model`], [`diagnosis`]).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use dataplane::families::PublicAddresses;
use dataplane::underlay::socket::SocketSpec;
use encap::{Family, Format};

use crate::causes::causes;
use crate::config::node::registry::RegistryKind;
use crate::config::{NetConf, NodeConfig};
use crate::configuration::Configuration;
use crate::control::announcing;
use crate::control::diagnosis;
use crate::control::facts::Facts;
use crate::control::model::{Known, Model};
use crate::host::{Host, HostError, Picture};
use crate::keeper::LOCK_FILE;
use crate::keeper::lock::is_signed_by_an_agent;
use crate::last_good::LastGood;
use crate::lease::Lease;
use crate::problems::{HostProblem, LeasesInForce, Problem, UnderlayFault};
use crate::registry::{self, RegistrySettings, Update};
use crate::takeover::flannel;

/// What a start would go by, and meet.
pub(super) struct DryStart {
    /// The cluster's configuration, where there is any.
    pub(super) net_conf: Option<NetConf>,
    /// What would be decided, where that is known.
    pub(super) model: Option<Model>,
    /// What would be wrong.
    pub(super) problems: Vec<Problem>,
    /// What the decision was made from, in words.
    pub(super) sources: Vec<String>,
    /// Why there is no decision.
    pub(super) undecided: Option<String>,
}

/// Runs it.
pub(super) async fn run(configuration: &Configuration, picture: Option<&Picture>) -> DryStart {
    let mut config = configuration.config.clone();
    let mut found = DryStart {
        net_conf: None,
        model: None,
        problems: Vec::new(),
        sources: Vec::new(),
        undecided: None,
    };
    if let Some(error) = &configuration.refused {
        found.problems.push(Problem::ConfigurationRefused {
            path: configuration.file.path().to_owned(),
            reason: causes(error),
        });
    }
    found.problems.extend(flannel::running(&config));
    let kept = LastGood::read(&config.state_dir(), &config.node_name, SystemTime::now());
    let kept = kept.unwrap_or_else(|error| {
        found.sources.push(causes(&error));
        None
    });
    let Some((net_conf, text)) = net_conf(&config, kept.as_ref(), &mut found) else {
        found.undecided = Some("there is no net-conf that can be used".to_owned());
        return found;
    };
    config.name_device(&net_conf.backend);
    found.net_conf = Some(net_conf.clone());
    let Some((leases, own)) = leases(&config, &net_conf, kept, &mut found) else {
        found.undecided = Some("there is no list of nodes that can be used".to_owned());
        return found;
    };
    let leases: Arc<[Lease]> = leases.into();
    let bound = bound(&config, &net_conf, &own, picture);
    let mut known = Known {
        facts: Facts::unread(&config, &own, &leases),
        config: Arc::new(config),
        net_conf,
        net_conf_text: text,
        leases,
        own,
        external: None,
        bound,
        device_mac: None,
    };
    if let Some(picture) = picture {
        let unread = known.see(picture);
        found.problems.extend(unread.as_ref().map(of_host));
    }
    let model = Model::new(known, 0);
    found.problems.extend(diagnosis::problems(&model, &[]));
    found.problems.extend(diagnosis::of_records(&model));
    // What an agent that is alive has is no obstacle to it.
    let lock = model.known.config.run_dir().path().join(LOCK_FILE);
    if !is_signed_by_an_agent(&lock) {
        found.problems.extend(obstacles(&model).await);
    }
    found.model = Some(model);
    found
}

/// From its file, or from the last good state.
fn net_conf(
    config: &NodeConfig,
    kept: Option<&LastGood>,
    found: &mut DryStart,
) -> Option<(NetConf, String)> {
    let refused = match NetConf::load(&config.net_conf) {
        Ok(read) => {
            found.sources.push(config.net_conf.display().to_string());
            return Some(read);
        }
        Err(error) => causes(&error),
    };
    if let Some(kept) = kept {
        found
            .sources
            .push("net-conf of the last good state".to_owned());
        // With etcd the file is a copy, which the service may not have written yet.
        if config.registry.kind != RegistryKind::Etcd {
            found.problems.push(Problem::NetConfRefused {
                path: config.net_conf.clone(),
                reason: refused,
                cached: true,
            });
        }
        return Some((kept.net_conf.clone(), kept.net_conf_text.clone()));
    }
    if config.registry.kind != RegistryKind::Etcd {
        found.problems.push(Problem::NetConfRefused {
            path: config.net_conf.clone(),
            reason: refused,
            cached: false,
        });
    }
    None
}

/// From the list in a file, or from the last good state.
fn leases(
    config: &NodeConfig,
    net_conf: &NetConf,
    kept: Option<LastGood>,
    found: &mut DryStart,
) -> Option<(Vec<Lease>, Lease)> {
    let of_kept = |found: &mut DryStart| {
        let kept = kept.as_ref()?;
        found.sources.push(format!(
            "list of {} nodes of the last good state, {} s old",
            kept.leases.len(),
            kept.age.as_secs()
        ));
        Some((kept.leases.clone(), kept.own.clone()))
    };
    if config.registry.kind != RegistryKind::File {
        return of_kept(found);
    }
    match registry::read_once(config, net_conf) {
        Update::Leases(leases) => match registry::own(&leases, &config.node_name).cloned() {
            Ok(own) => {
                let file = config.node_file.display();
                found
                    .sources
                    .push(format!("{file}, {} nodes", leases.len()));
                Some((leases, own))
            }
            Err(reason) => {
                let place = config.node_file.display().to_string();
                let taken = of_kept(found);
                refuse(place, reason, taken.is_some(), found);
                taken
            }
        },
        Update::Refused { place, reason } => {
            let taken = of_kept(found);
            refuse(place.to_string(), reason, taken.is_some(), found);
            taken
        }
        _ => of_kept(found),
    }
}

fn refuse(place: String, reason: String, is_cached: bool, found: &mut DryStart) {
    found.problems.push(Problem::LeasesRefused {
        place,
        reason,
        in_force: match is_cached {
            true => LeasesInForce::Cache,
            false => LeasesInForce::Nothing,
        },
    });
}

/// The addresses that the sockets would have.
fn bound(
    config: &NodeConfig,
    net_conf: &NetConf,
    own: &Lease,
    picture: Option<&Picture>,
) -> PublicAddresses {
    let chosen = picture
        .filter(|_| config.registry.kind != RegistryKind::File)
        .and_then(|picture| {
            announcing::choose(config, net_conf, &RegistrySettings::default(), picture).ok()
        });
    config.underlay(chosen.map_or(own.public, |chosen| chosen.local))
}

/// What would keep the device, the ports and the routes from being had.
async fn obstacles(model: &Model) -> Vec<Problem> {
    let known = &model.known;
    let host = match Host::open(&known.config.state_dir()).await {
        Ok(host) => host,
        Err(error) => return vec![of_host(&error)],
    };
    let mut problems = Vec::new();
    let leftovers = match known.config.replace_flannel {
        true => host
            .leftovers(&known.config.device_name)
            .await
            .unwrap_or_default(),
        false => crate::host::Leftovers::default(),
    };
    if leftovers.is_empty() {
        let taken = host.name_taken(&known.config.device_name).await;
        problems.extend(taken.as_ref().map(of_host));
    }
    let (cluster, subnets) = (known.net_conf.cluster(), &known.own.subnets);
    let held = host.check_replacement(&cluster, subnets).await.err();
    problems.extend(held.as_ref().map(of_host));
    for wanted in sockets(model) {
        problems.extend(port(&host, wanted, &leftovers).await);
    }
    problems
}

/// Where this node receives, one socket of each kind.
fn sockets(model: &Model) -> Vec<SocketSpec> {
    let backend = &model.known.net_conf.backend;
    let spec = |address, port, format| SocketSpec {
        address,
        port,
        format,
        lane: None,
    };
    let addresses = model.known.bound.iter();
    let both = addresses.flat_map(|address| {
        let udp = (Family::of(address) == Family::V4)
            .then(|| spec(address, backend.udp_port(), Format::Udp));
        [
            Some(spec(address, backend.vxlan_port(), Format::Vxlan)),
            udp,
        ]
    });
    both.flatten().collect()
}

async fn port(
    host: &Host,
    wanted: SocketSpec,
    leftovers: &crate::host::Leftovers,
) -> Option<Problem> {
    let address = SocketAddr::new(wanted.address, wanted.port);
    let holder = match leftovers.is_empty() {
        true => host.port_holder(address).await,
        // A start takes the port from them.
        false => host.other_holder(address, leftovers).await,
    };
    Some(Problem::UnderlaySocket {
        wanted,
        fault: UnderlayFault::PortTaken(Some(holder?)),
        kept: None,
        kept_is_of: None,
    })
}

fn of_host(error: &HostError) -> Problem {
    Problem::Host(HostProblem::of(error))
}
