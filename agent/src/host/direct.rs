//! Peers that flannel's `DirectRouting` lets send past the overlay, and the reverse-path filter that they meet.
//!
//! A flannel node with `DirectRouting` routes packets to a peer's pods by way of the peer's public address, without outer
//! headers, where that address needs no gateway (flannel `pkg/backend/vxlan/vxlan_network.go`). Whether it needs one is
//! asked of this node's own routes: the two ends of a link see the same.

use std::net::IpAddr;

use dataplane::families::PerFamily;
use ipnet::IpNet;
use netlink_packet_route::route::RouteType;

use super::net::prefixes::leads_to;
use super::net::routes::{MAIN, Route};
use super::picture::Picture;
use super::settings::setting::{CONF4, Interface, Setting, read};

impl Picture {
    /// The interface that leads to `address` without a gateway; `None` where there is none, or a gateway is needed.
    /// `device` is the tunnel device.
    pub fn on_link(&self, address: IpAddr, device: &str) -> Option<String> {
        let best = self.route_to(address)?;
        if best.kind != RouteType::Unicast || best.gateway.is_some() || best.devices.len() != 1 {
            return None;
        }
        leads_to(best, &self.links).filter(|name| name != device)
    }

    /// The interface by which the kernel sends to `address`; `None` where it does not, or by several.
    pub fn way_to(&self, address: IpAddr) -> Option<String> {
        let best = self.route_to(address)?;
        let is_one = best.kind == RouteType::Unicast && best.devices.len() == 1;
        is_one.then(|| leads_to(best, &self.links)).flatten()
    }

    /// The route of the main table to `address`: the longest prefix, of these the lowest metric.
    fn route_to(&self, address: IpAddr) -> Option<&Route> {
        let matching = self.routes.iter().filter(|route| {
            route.table == MAIN && !route.narrowed && route.prefix.contains(&IpNet::from(address))
        });
        matching.max_by_key(|route| (route.prefix.prefix_len(), u32::MAX - route.metric))
    }
}

/// The reverse-path filter in force for IPv4 packets that arrive at an interface: the larger of its own and that of `all`
/// (Linux `Documentation/networking/ip-sysctl.rst`). 1 is strict. `None` where it cannot be read.
pub fn reverse_path_filter(interface: &str) -> Option<i32> {
    let of = |name: &str| read(&format!("{CONF4}{name}/rp_filter")).ok().flatten();
    let own = of(Interface::parse(interface)?.name())?;
    Some(own.max(of("all")?))
}

/// Whether the kernel forwards packets of each family; `None` where it cannot be read or has not that family.
pub fn forwarding() -> PerFamily<Option<i32>> {
    PerFamily {
        v4: Setting::Forward4.read().ok().flatten(),
        v6: Setting::Forward6.read().ok().flatten(),
    }
}
