//! Theory of operation
//!
//! What flannel leaves on a node when its daemon stops, and what Tartan does with it where the configuration says that
//! it takes flannel's place (`replace-flannel`):
//!
//! - the kernel's VXLAN devices, `flannel.<VNI>` for IPv4 and `flannel-v6.<VNI>` for IPv6 (flannel
//!   `pkg/backend/vxlan/vxlan.go`), with the neighbours, forwarding entries and routes on them. [`Host::leftovers`]
//!   notes their MACs, which peers know this node by. [`Host::set_leftovers_aside`] takes port and name from them, last of
//!   all before Tartan takes both, since from then on nothing is forwarded: it brings them down, which takes the kernel
//!   half as long as to delete them, and renames the first to [`SET_ASIDE`]. [`Host::delete_leftovers`] deletes them when
//!   Tartan forwards. Where a start ends in between, the next one finds them;
//! - routes of `host-gw` and of `DirectRouting`, past any overlay: `10.244.2.0/24 via 192.0.2.2 dev eth0`. They are
//!   recognised by protocol `boot`, which netlink libraries give without being asked, a gateway, and a peer's whole
//!   subnet as destination ([`Picture::routes_of_flannel`]). [`Host::remove_routes_of_flannel`] removes them once
//!   packets to that peer have another way;
//! - nft tables that are flannel's alone (`pkg/trafficmngr/nftables`).
//!
//! Kept are routes of any other protocol or to a bridge, and flannel's chains in the tables of iptables, which masquerade
//! and accept as Tartan's own rules do. Every removal is a [`Change`], for the log.

use std::net::SocketAddr;

use dataplane::families::PerFamily;
use encap::{Family, Mac};
use ipnet::IpNet;
use netlink_packet_route::route::{RouteProtocol, RouteType};

use super::Host;
use super::apply;
use super::change::Change;
use super::error::HostError;
use super::firewall::nft::{self, IPV4, IPV6, NftError, Socket};
use super::idle_device::is_idle;
use super::net::links::{self, Link, LinkKind};
use super::net::prefixes::leads_to;
use super::net::routes::{self, MAIN, Route, RouteStep, Target};
use super::picture::Picture;
use super::port_holder::PortHolder;

/// The devices that flannel left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// The VTEP MAC of each family's device: peers send to it, until the registry has another one of this node.
    pub vtep_mac: PerFamily<Option<Mac>>,
    /// Names of the devices.
    devices: Vec<String>,
}

impl Leftovers {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// Names of the devices, that for IPv4 first.
    pub fn devices(&self) -> &[String] {
        &self.devices
    }
}

/// A route of flannel's past the overlay, and the interface it leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteOfFlannel {
    route: Route,
    device: Option<String>,
}

impl RouteOfFlannel {
    /// As ip-route(8) writes it.
    fn in_words(&self) -> String {
        let mut words = self.route.prefix.to_string();
        if let Some(gateway) = self.route.gateway {
            words.push_str(&format!(" via {gateway}"));
        }
        if let Some(device) = &self.device {
            words.push_str(&format!(" dev {device}"));
        }
        words
    }
}

impl Host {
    /// The VXLAN devices of the kernel that a stopped flanneld left: one with the name of our own `device`, and, where
    /// that is `flannel.<VNI>`, its sibling for IPv6.
    ///
    /// # Errors
    /// The kernel's refusal to list.
    pub async fn leftovers(&self, device: &str) -> Result<Leftovers, HostError> {
        let mut found = Leftovers::default();
        for (family, name) in names(device) {
            let Some((link, mac)) = links::named_with_mac(&self.netlink.handle, &name).await?
            else {
                continue;
            };
            if is_vxlan(&link) {
                let noted = match family {
                    Family::V4 => &mut found.vtep_mac.v4,
                    Family::V6 => &mut found.vtep_mac.v6,
                };
                *noted = noted.or(mac);
                found.devices.push(name);
            }
        }
        Ok(found)
    }

    /// Why Tartan could not forward in the place of these devices, as far as that can be told while they are there: another
    /// program routes a cluster network.
    ///
    /// # Errors
    /// [`HostError::NetworkHeld`], or the kernel's refusal to list.
    pub async fn check_replacement(
        &self,
        cluster: &[IpNet],
        subnets: &[IpNet],
    ) -> Result<(), HostError> {
        let picture = self.picture().await?;
        let wanted = routes::wanted(cluster, subnets, &[], PerFamily::default());
        // A device that an agent before left is taken over, or goes with its routes.
        let idle: Vec<u32> = picture
            .links
            .iter()
            .filter(|link| is_idle(link))
            .map(|link| link.index)
            .collect();
        let is_idle_devices = |route: &Route| {
            !route.devices.is_empty() && route.devices.iter().all(|index| idle.contains(index))
        };
        let routes = picture.routes.iter();
        let routes: Vec<Route> = routes
            .filter(|route| !is_idle_devices(route))
            .cloned()
            .collect();
        match routes::conflict(&routes, &wanted, NO_DEVICE) {
            Some(conflict) => Err(apply::conflict_error(conflict, &picture.links)),
            None => Ok(()),
        }
    }

    /// Another VXLAN device of the kernel that would hold the port when the leftovers are gone.
    pub async fn other_holder(
        &self,
        wanted: SocketAddr,
        leftovers: &Leftovers,
    ) -> Option<PortHolder> {
        let holders = self.vxlan_devices(wanted).await?;
        let other = |name: &String| !leftovers.devices.contains(name);
        let device = holders.into_iter().find(other)?;
        Some(PortHolder::VxlanDevice(device))
    }

    /// Takes the port and the name of our `device` from the leftovers; neighbours and routes on them go. First it has the
    /// kernel refuse packets to the cluster networks that have no other route, so that none leaves the node unencapsulated
    /// meanwhile. Returns what was brought down.
    ///
    /// # Errors
    /// The kernel's refusal of a step.
    pub async fn set_leftovers_aside(
        &self,
        leftovers: &Leftovers,
        device: &str,
        cluster: &[IpNet],
        subnets: &[IpNet],
    ) -> Result<Vec<Change>, HostError> {
        let handle = &self.netlink.handle;
        let mut changes = Vec::new();
        let mut found = Vec::new();
        for name in &leftovers.devices {
            let link = links::named_with_mac(handle, name).await?;
            // Another process may have put something else there meanwhile.
            found.extend(link.filter(|(link, _)| is_vxlan(link)));
        }
        if found.iter().any(|(link, _)| link.name == device) {
            // Of an earlier start that ended halfway.
            for (old, _) in found.extract_if(.., |(link, _)| link.name == SET_ASIDE) {
                links::delete(handle, &old).await?;
            }
        }
        if !found.is_empty() {
            self.refuse_unrouted(cluster, subnets).await?;
        }
        for (link, mac) in found {
            if link.up {
                links::set_down(handle, &link).await?;
                let device = link.name.clone();
                changes.push(Change::LeftoverDown { device, mac });
            }
            if link.name == device {
                links::rename(handle, &link, SET_ASIDE).await?;
            }
        }
        Ok(changes)
    }

    /// Adds the routes of last resort for these networks, as [`apply`](Host::apply) does before any other.
    async fn refuse_unrouted(&self, cluster: &[IpNet], subnets: &[IpNet]) -> Result<(), HostError> {
        let handle = &self.netlink.handle;
        let now = routes::list(handle).await?;
        let mut wanted = routes::wanted(cluster, subnets, &[], PerFamily::default());
        wanted.retain(|route| route.target == Target::Unreachable);
        for step in routes::plan(&now, &wanted, NO_DEVICE) {
            if matches!(step, RouteStep::Add(_)) {
                routes::apply(handle, &step, NO_DEVICE).await?;
            }
        }
        Ok(())
    }

    /// Deletes the leftovers that were set aside, with their forwarding entries.
    ///
    /// # Errors
    /// The kernel's first refusal.
    pub async fn delete_leftovers(
        &self,
        leftovers: &Leftovers,
        device: &str,
    ) -> Result<Vec<Change>, HostError> {
        let handle = &self.netlink.handle;
        let mut changes = Vec::new();
        let first = [SET_ASIDE.to_owned()];
        let others = leftovers
            .devices
            .iter()
            .filter(|name| *name != device && *name != SET_ASIDE);
        for name in first.iter().chain(others) {
            if let Some(link) = links::named(handle, name).await?.filter(is_vxlan) {
                links::delete(handle, &link).await?;
                changes.push(Change::LeftoverDeleted(name.clone()));
            }
        }
        Ok(changes)
    }

    /// Removes routes past the overlay that flannel set. One that is gone already is no error.
    ///
    /// # Errors
    /// The kernel's first refusal; the others are tried all the same. What was removed is returned in any case.
    pub async fn remove_routes_of_flannel(
        &self,
        found: &[RouteOfFlannel],
    ) -> (Vec<Change>, Option<HostError>) {
        let (mut changes, mut refused) = (Vec::new(), None);
        for route in found {
            match routes::remove(&self.netlink.handle, &route.route).await {
                Ok(()) => changes.push(Change::FlannelRouteRemoved(route.in_words())),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        (changes, refused)
    }

    /// Deletes flannel's nft tables. A kernel without nf_tables has none.
    ///
    /// # Errors
    /// [`HostError::Rules`].
    pub async fn remove_tables_of_flannel(&self) -> Result<Vec<Change>, HostError> {
        let read = |source| HostError::Rules {
            doing: "read the nft tables".to_owned(),
            source,
        };
        let mut socket = match Socket::open() {
            Err(NftError::Unsupported) => return Ok(Vec::new()),
            opened => opened.map_err(read)?,
        };
        let tables = match socket.tables().await {
            Err(NftError::Unsupported) => return Ok(Vec::new()),
            listed => listed.map_err(read)?,
        };
        let mut changes = Vec::new();
        for (family, name, word) in TABLES {
            let is_there =
                |table: &nft::NftTable| (table.family, table.name.as_str()) == (family, name);
            if !tables.iter().any(is_there) {
                continue;
            }
            let table = format!("{word} {name}");
            let gone = socket.commit(&[nft::delete_table(family, name)]).await;
            gone.map_err(|source| HostError::Rules {
                doing: format!("delete the nft table {table}"),
                source,
            })?;
            changes.push(Change::FlannelTableDeleted(table));
        }
        Ok(changes)
    }
}

impl Picture {
    /// Routes that flannel set to whole subnets of peers, by way of a gateway and not of our `device`. `is_forwarded` says
    /// of a subnet that its packets have a way through the overlay.
    pub fn routes_of_flannel(
        &self,
        device: &str,
        is_forwarded: impl Fn(&IpNet) -> bool,
    ) -> Vec<RouteOfFlannel> {
        let ours = links::find(&self.links, device).map(|link| link.index);
        let is_flannels = |route: &&Route| {
            route.table == MAIN
                && route.kind == RouteType::Unicast
                && route.protocol == u8::from(RouteProtocol::Boot)
                && route.gateway.is_some()
                && !route.narrowed
                && ours.is_none_or(|ours| !route.devices.contains(&ours))
        };
        let found = self.routes.iter().filter(is_flannels);
        let found = found.filter(|route| is_forwarded(&route.prefix));
        found
            .map(|route| RouteOfFlannel {
                route: route.clone(),
                device: leads_to(route, &self.links),
            })
            .collect()
    }
}

/// The devices that flannel would have, with the family of the packets that each carries.
fn names(device: &str) -> Vec<(Family, String)> {
    let mut names = vec![
        (Family::V4, device.to_owned()),
        (Family::V4, SET_ASIDE.to_owned()),
    ];
    if let Some(vni) = device.strip_prefix("flannel.") {
        names.push((Family::V6, format!("flannel-v6.{vni}")));
    }
    names
}

pub(super) fn is_vxlan(link: &Link) -> bool {
    link.kind == LinkKind::Other("vxlan".to_owned())
}

/// The name of a device that was brought down and is to be deleted.
pub(super) const SET_ASIDE: &str = "flannel-old";
/// No interface has this index.
const NO_DEVICE: u32 = 0;
/// flannel `pkg/trafficmngr/nftables/nftables.go`.
const TABLES: [(u8, &str, &str); 2] = [(IPV4, "flannel-ipv4", "ip"), (IPV6, "flannel-ipv6", "ip6")];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sibling_for_ipv6_has_the_same_vni() {
        let of =
            |device| -> Vec<String> { names(device).into_iter().map(|(_, name)| name).collect() };
        assert_eq!(of("flannel.1"), ["flannel.1", SET_ASIDE, "flannel-v6.1"]);
        assert_eq!(
            of("flannel.4096"),
            ["flannel.4096", SET_ASIDE, "flannel-v6.4096"]
        );
        assert_eq!(of("tartan0"), ["tartan0", SET_ASIDE]);
    }
}
