//! Interfaces of other programs that hold addresses inside the cluster network: what flannel left, and bridges of pods
//! whose subnet is no longer this node's.

use ipnet::IpNet;

use super::kernel_path;
use super::leftovers::{SET_ASIDE, is_vxlan};
use super::net::links::{Link, LinkKind};
use super::picture::Picture;

/// A bridge with an address inside the cluster network and outside the node's subnets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignBridge {
    /// Its name.
    pub name: String,
    /// The address, with its prefix length.
    pub address: IpNet,
}

impl Picture {
    /// VXLAN devices named as flannel names its own that hold an address inside the `cluster` networks, with the first such
    /// address. Neither our `device` nor one that is set aside and about to go is among them.
    pub fn flannel_devices(&self, cluster: &[IpNet], device: &str) -> Vec<(String, IpNet)> {
        let is_flannels = |link: &&Link| {
            let named = |prefix| link.name.starts_with(prefix);
            (named("flannel.") || named("flannel-v6."))
                && link.name != device
                && link.name != SET_ASIDE
                && is_vxlan(link)
                && !kernel_path::is_our_device(link)
        };
        let found = self.links.iter().filter(is_flannels).filter_map(|link| {
            let address = self.address_in(link, |address| is_in(cluster, address))?;
            Some((link.name.clone(), address))
        });
        found.collect()
    }

    /// Bridges that hold an address inside the `cluster` networks and none inside the node's `own` subnets.
    pub fn foreign_bridges(&self, cluster: &[IpNet], own: &[IpNet]) -> Vec<ForeignBridge> {
        let bridge = LinkKind::Other("bridge".to_owned());
        let bridges = self.links.iter().filter(|link| link.kind == bridge);
        let found = bridges.filter_map(|link| {
            let is_foreign = |address: &IpNet| is_in(cluster, address) && !is_in(own, address);
            let address = self.address_in(link, is_foreign)?;
            // A bridge that changes its subnet may have both for a moment.
            let has_ours = self
                .address_in(link, |address| is_in(own, address))
                .is_some();
            (!has_ours).then(|| ForeignBridge {
                name: link.name.clone(),
                address,
            })
        });
        found.collect()
    }

    fn address_in(&self, link: &Link, is_wanted: impl Fn(&IpNet) -> bool) -> Option<IpNet> {
        let held = self.held.iter().filter(|held| held.index == link.index);
        held.map(|held| held.address)
            .find(|address| is_wanted(address))
    }
}

fn is_in(networks: &[IpNet], address: &IpNet) -> bool {
    networks
        .iter()
        .any(|network| network.contains(&address.addr()))
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::address::AddressFlags;

    use super::*;
    use crate::host::net::addresses::InterfaceAddress;
    use crate::host::net::pod_links::PodLinks;

    fn picture(links: &[(&str, &str, &str)]) -> Picture {
        let links: Vec<_> = (1..).zip(links).collect();
        Picture {
            links: links
                .iter()
                .map(|(index, (name, kind, _))| Link {
                    index: *index,
                    name: (*name).to_owned(),
                    kind: LinkKind::Other((*kind).to_owned()),
                    alias: String::new(),
                    up: true,
                    multicast: true,
                    carrier: true,
                    mtu: 1450,
                    queue: 1000,
                    arp: true,
                    mac: None,
                    master: None,
                    leads_elsewhere: false,
                })
                .collect(),
            held: links
                .iter()
                .map(|(index, (_, _, address))| InterfaceAddress {
                    index: *index,
                    address: address.parse().unwrap(),
                    flags: AddressFlags::Permanent,
                })
                .collect(),
            routes: Vec::new(),
            pod_links: PodLinks::default(),
        }
    }

    #[test]
    fn only_what_lies_inside_the_cluster_network_counts() {
        let cluster: [IpNet; 1] = ["10.244.0.0/16".parse().unwrap()];
        let own: [IpNet; 1] = ["10.244.1.0/24".parse().unwrap()];
        let picture = picture(&[
            ("flannel.1", "vxlan", "10.244.1.0/32"),
            ("flannel.7", "vxlan", "10.9.1.0/32"),
            ("flannel.8", "dummy", "10.244.1.0/32"),
            ("tartan0", "vxlan", "10.244.1.0/32"),
            ("flannel-old", "vxlan", "10.244.1.0/32"),
            ("cni0", "bridge", "10.244.9.1/24"),
            ("cni1", "bridge", "10.244.1.1/24"),
            ("docker0", "bridge", "172.17.0.1/16"),
        ]);
        let devices = picture.flannel_devices(&cluster, "tartan0");
        let names: Vec<&str> = devices.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["flannel.1"]);
        assert!(picture.flannel_devices(&cluster, "flannel.1").is_empty());
        let bridges = picture.foreign_bridges(&cluster, &own);
        let names: Vec<&str> = bridges.iter().map(|bridge| &*bridge.name).collect();
        assert_eq!(names, ["cni0"]);
    }
}
