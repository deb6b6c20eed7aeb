//! What this node publishes of itself in a remote registry.
//!
//! Its addresses are those of the interface that flannel's rules choose ([`external_interface`]), anew whenever the kernel's
//! addresses or routes change. Its VTEP MAC never changes with them: peers have it in their tables.

use std::fs;

use dataplane::families::PerFamily;
use encap::Mac;
use ipnet::IpNet;

use super::model::Known;
use crate::config::node::registry::UnderlayChoice;
use crate::config::{NetConf, NodeConfig};
use crate::host::Picture;
use crate::host::external_interface::{self, ChoiceError, ExternalInterface, Selector};
use crate::host::subnet_env;
use crate::lease::{Lease, default_vtep_mac};
use crate::registry::{Announcement, RegistrySettings};

/// What a node had before, so that its peers notice no change.
#[derive(Clone, Debug, Default)]
pub struct Before {
    /// The subnets that it had last, those of the last good state first.
    subnets: Vec<IpNet>,
    /// Its VTEP MACs.
    vtep_mac: PerFamily<Option<Mac>>,
}

impl Before {
    /// What a node had by the last good state (`kept`), by devices that flannel left (`found`), and by `subnet.env`.
    pub fn of(kept: Option<&Lease>, found: PerFamily<Option<Mac>>, config: &NodeConfig) -> Before {
        let kept_mac = |family| kept.map(|own| *own.vtep_mac.of(family));
        let written = fs::read_to_string(&config.subnet_file).unwrap_or_default();
        let subnets = kept.map(|own| own.subnets.clone()).unwrap_or_default();
        Before {
            subnets: match subnets.is_empty() {
                true => subnet_env::subnets(&written),
                false => subnets,
            },
            vtep_mac: PerFamily::each(|family| found.of(family).or_else(|| kept_mac(family))),
        }
    }
}

/// The interface by which this node is reached.
///
/// # Errors
/// [`ChoiceError`] with what was looked at.
pub fn choose(
    config: &NodeConfig,
    net_conf: &NetConf,
    settings: &RegistrySettings,
    picture: &Picture,
) -> Result<ExternalInterface, ChoiceError> {
    let choice = &config.registry.underlay;
    let choice = UnderlayChoice {
        public_v4: settings.public_v4.or(choice.public_v4),
        public_v6: settings.public_v6.or(choice.public_v6),
        ..choice.clone()
    };
    let needed = PerFamily {
        v4: net_conf.network.is_some(),
        v6: net_conf.ipv6_network.is_some(),
    };
    external_interface::choose(
        picture,
        &choice,
        needed,
        &net_conf.cluster(),
        &config.device_name,
    )
}

/// The interface in force, where the default route alone says otherwise: as long as it has its addresses, a route that
/// comes and goes moves no node. (flannel chooses once, at its start.)
///
/// # Errors
/// Those of the choice.
pub fn keep(
    in_force: Option<&ExternalInterface>,
    chosen: Result<ExternalInterface, ChoiceError>,
    picture: &Picture,
) -> Result<ExternalInterface, ChoiceError> {
    let is_by_route = |external: &ExternalInterface| external.chosen_by == Selector::DefaultRoute;
    let is_free = chosen.as_ref().map_or(true, is_by_route);
    let stays = in_force.filter(|external| {
        let has_addresses = || picture.underlay(external.local).is_ok();
        is_free && is_by_route(external) && has_addresses()
    });
    match stays {
        Some(external) => Ok(external.clone()),
        None => chosen,
    }
}

/// What this node publishes when it is reached by `external`, before it forwards.
pub fn announcement(
    config: &NodeConfig,
    net_conf: &NetConf,
    before: &Before,
    external: &ExternalInterface,
) -> Announcement {
    let derived = default_vtep_mac(external.public.first());
    Announcement {
        node_name: config.node_name.clone(),
        public: external.public,
        vtep_mac: PerFamily::each(|family| before.vtep_mac.of(family).unwrap_or(derived)),
        previous: before.subnets.clone(),
        net_conf: net_conf.clone(),
        forwarding: false,
    }
}

/// The same while the service runs: the node keeps what it has, and forwards.
pub fn running(known: &Known, external: &ExternalInterface) -> Announcement {
    let own = &known.own;
    let before = Before {
        subnets: own.subnets.clone(),
        vtep_mac: PerFamily::each(|family| Some(*own.vtep_mac.of(family))),
    };
    Announcement {
        forwarding: true,
        ..announcement(&known.config, &known.net_conf, &before, external)
    }
}
