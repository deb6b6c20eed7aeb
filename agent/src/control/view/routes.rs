//! `tartan routes`: which node owns which prefix, and what bypasses the overlay.

use encap::Family;

use super::View;
use crate::api::wire::{self, RouteKind};

impl View {
    /// Every prefix inside the cluster networks.
    pub fn routes(&self) -> wire::Routes {
        let own = self.own.subnets.iter().map(|prefix| wire::Route {
            prefix: *prefix,
            kind: RouteKind::Own,
            via: self.service.config.device_name.clone(),
            format: String::new(),
            node: self.own.name.clone(),
        });
        let peers = self.spec.cluster.peers.iter().flat_map(|peer| {
            peer.subnets.iter().map(|prefix| {
                let inner = Family::of(prefix.addr());
                let way = self.spec.cluster.node.public.way_to(peer.public, inner);
                wire::Route {
                    prefix: *prefix,
                    kind: way.map_or(RouteKind::NoWay, |_| RouteKind::Peer),
                    via: way.map_or(peer.public.to_string(), |address| address.to_string()),
                    format: peer.format.to_string(),
                    node: peer.name.clone(),
                }
            })
        });
        let bypassing = self.bypassing.iter().map(|bypass| wire::Route {
            prefix: bypass.prefix,
            kind: RouteKind::Bypass,
            via: match (&bypass.gateway, &bypass.device) {
                (Some(gateway), _) => gateway.to_string(),
                (None, Some(device)) => device.clone(),
                (None, None) => "refused".to_owned(),
            },
            format: String::new(),
            node: String::new(),
        });
        let mut routes: Vec<_> = own.chain(peers).chain(bypassing).collect();
        routes.sort_by_key(|route| route.prefix);
        wire::Routes { routes }
    }
}
