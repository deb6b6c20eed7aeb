//! Bridges with pods of another plugin, beside pods of ours.
//!
//! Such a bridge holds the node's whole subnet, so its pods take every address of it for a neighbour there and ask by
//! ARP. Those that are pods of ours have a route of their own to another interface: with `proxy_arp` the node answers
//! for them, and for no other address, as every other address of the subnet is behind the bridge itself (Linux answers only
//! for what it routes to another interface, net/ipv4/arp.c). The way back needs nothing: our pods send everything to
//! the node. Of IPv6 the kernel has no such switch for a whole prefix.
//!
//! With the last pod of ours, or when the bridge holds no part of our subnets any more, its former setting is restored.

use ipnet::IpNet;

use super::setting::{Interface, Setting};
use super::sysctls;
use crate::host::Host;
use crate::host::change::Change;
use crate::host::error::HostError;
use crate::host::net::addresses::InterfaceAddress;
use crate::host::net::links::{Link, LinkKind};
use crate::host::picture::Picture;

impl Host {
    /// Sets `proxy_arp` on those bridges of `picture` that hold a part of our `own` subnets, so that pods there find ours,
    /// and restores it on all others: on every bridge where `own` is empty. Returns the names of the bridges that have it
    /// set, and what had to be changed.
    ///
    /// # Errors
    /// The kernel's refusal to write the setting.
    pub fn set_proxy_arp_on_bridges(
        &mut self,
        picture: &Picture,
        own: &[IpNet],
    ) -> Result<(Vec<String>, Vec<Change>), HostError> {
        let bridges = within(&picture.links, &picture.held, own);
        let mut changes = self.restore_proxy_arp(&bridges)?;
        for bridge in bridges.iter().filter_map(|name| Interface::parse(name)) {
            let setting = Setting::ProxyArp(bridge);
            let altered = sysctls::set_recorded(&setting, 1, &mut self.record)?;
            changes.extend(altered.map(Change::Setting));
        }
        Ok((bridges, changes))
    }

    /// Restores the setting wherever we changed it, but on these bridges.
    fn restore_proxy_arp(&mut self, except: &[String]) -> Result<Vec<Change>, HostError> {
        let is_unwanted = |setting: &Setting| match setting {
            Setting::ProxyArp(bridge) => !except.iter().any(|name| name == bridge.name()),
            _ => false,
        };
        sysctls::restore_unwanted(is_unwanted, &mut self.record)
    }
}

/// The names of bridges that hold an IPv4 network inside our subnets.
fn within(links: &[Link], held: &[InterfaceAddress], own: &[IpNet]) -> Vec<String> {
    let holds = |link: &Link| {
        let mut held = held.iter().filter(|held| held.index == link.index);
        held.any(|held| {
            let network = held.address.trunc();
            network.addr().is_ipv4()
                && network.prefix_len() < network.max_prefix_len()
                && own.iter().any(|subnet| subnet.contains(&network))
        })
    };
    let bridges = links
        .iter()
        .filter(|link| link.kind == LinkKind::Other("bridge".to_owned()) && holds(link));
    bridges.map(|link| link.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::address::AddressFlags;

    use super::*;

    fn link(index: u32, name: &str, kind: &str) -> Link {
        Link {
            index,
            name: name.to_owned(),
            kind: LinkKind::Other(kind.to_owned()),
            alias: String::new(),
            up: true,
            multicast: true,
            arp: true,
            mac: None,
            carrier: true,
            mtu: 1450,
            queue: 1000,
            master: None,
            leads_elsewhere: false,
        }
    }

    #[test]
    fn only_bridges_inside_our_subnets_get_proxy_arp() {
        let links = [
            link(1, "cni0", "bridge"),
            link(2, "docker0", "bridge"),
            link(3, "veth1", "veth"),
            link(4, "br6", "bridge"),
            link(5, "br32", "bridge"),
        ];
        let held = [
            (1, "10.244.1.1/24"),
            (2, "172.17.0.1/16"),
            (3, "10.244.1.9/24"),
            (4, "fd00:10:244:1::1/64"),
            (5, "10.244.1.7/32"),
        ];
        let held = held.map(|(index, address)| InterfaceAddress {
            index,
            address: address.parse().unwrap(),
            flags: AddressFlags::Permanent,
        });
        let own = ["10.244.1.0/24", "fd00:10:244:1::/64"].map(|net| net.parse().unwrap());
        assert_eq!(within(&links, &held, &own), ["cni0"]);
    }
}
