//! What flannel left that goes while the service runs: routes past the overlay (`host-gw`, `DirectRouting`).
//!
//! A route goes when packets to that peer have another way: the workers' tables have the peer, from a list that the
//! registry gave and not from the last good state, and the node's own routes are set.

use std::collections::HashSet;

use dataplane::spec::ClusterSpec;
use encap::Family;
use ipnet::IpNet;
use tracing::info;

use super::kernel::{Kernel, problems};
use super::model::Model;
use crate::host::{Picture, RouteOfFlannel};
use crate::problems::Problem;

/// The routes that may go now. None unless the configuration has Tartan take flannel's place.
pub(super) fn routes(model: &Model, picture: &Picture) -> Vec<RouteOfFlannel> {
    let config = &model.known.config;
    if !config.replace_flannel || model.cached.is_any() {
        return Vec::new();
    }
    let forwarded = forwarded(&model.desired.spec.cluster);
    picture.routes_of_flannel(&config.device_name, |prefix| forwarded.contains(prefix))
}

/// Removes them, once the node's own routes are set.
pub(super) async fn remove(
    kernel: &Kernel,
    model: &Model,
    routes: &[RouteOfFlannel],
) -> Vec<Problem> {
    if routes.is_empty() || !kernel.is_applied(&model.desired.host) {
        return Vec::new();
    }
    let (changes, refused) = kernel.host.remove_routes_of_flannel(routes).await;
    changes.iter().for_each(|change| info!("set up: {change}"));
    problems(&refused)
}

/// Subnets of the peers that this node can send to.
fn forwarded(cluster: &ClusterSpec) -> HashSet<IpNet> {
    let peers = cluster.peers.iter();
    let of = peers.flat_map(|peer| {
        let sends = |subnet: &&IpNet| {
            let inner = Family::of(subnet.addr());
            let way = cluster.node.public.way_to(peer.public, inner);
            way.is_some()
        };
        peer.subnets.iter().filter(sends).copied()
    });
    of.collect()
}
