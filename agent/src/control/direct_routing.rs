//! Peers that send unencapsulated, because the net-conf has `DirectRouting`: pure functions of leases and routes.
//!
//! Tartan encapsulates to every peer. A flannel node with `DirectRouting` does not where the peer's address needs no
//! gateway. What it sends so arrives at the underlay interface with a pod as source, past Tartan: nothing of it is checked
//! here, and a strict reverse-path filter drops all of it, because the route back leads into the tunnel.

use std::collections::BTreeMap;
use std::net::IpAddr;

use encap::{Family, Format};
use ipnet::IpNet;

use crate::host::reverse_path_filter;
use crate::lease::{Lease, default_vtep_mac};

/// Peers that send past the overlay by way of one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectSenders {
    /// The interface at which their packets arrive.
    pub interface: String,
    /// Their names, in the order of the list.
    pub peers: Vec<String>,
    /// Some of them send IPv4 so, and this is the reverse-path filter that meets it.
    pub filter_v4: Option<i32>,
    /// Some of them send IPv6 so, which has no such filter.
    pub v6: bool,
}

/// The peers of `leases`, by the interface that `on_link` says their address is on without a gateway. A peer with the VTEP
/// MAC that Tartan derives runs Tartan.
pub fn senders(
    own: &Lease,
    leases: &[Lease],
    on_link: impl Fn(IpAddr) -> Option<String>,
) -> Vec<DirectSenders> {
    let mut found: BTreeMap<String, (Vec<String>, bool, bool)> = BTreeMap::new();
    let is_flannel = |lease: &&Lease| {
        lease.name != own.name
            && lease.format == Format::Vxlan
            && lease.vtep_mac.v4 != default_vtep_mac(lease.public.first())
    };
    for lease in leases.iter().filter(is_flannel) {
        for family in [Family::V4, Family::V6] {
            let has = |subnets: &[IpNet]| subnets.iter().any(|n| Family::of(n.addr()) == family);
            let address = lease.public.of(family);
            let address = address.filter(|_| has(&own.subnets) && has(&lease.subnets));
            let Some(interface) = address.and_then(&on_link) else {
                continue;
            };
            let (peers, v4, v6) = found.entry(interface).or_default();
            if !peers.contains(&lease.name) {
                peers.push(lease.name.clone());
            }
            *v4 |= family == Family::V4;
            *v6 |= family == Family::V6;
        }
    }
    let of_interface = |(interface, (peers, v4, v6)): (String, (Vec<String>, bool, bool))| {
        let filter = reverse_path_filter(&interface).unwrap_or_default();
        DirectSenders {
            interface,
            peers,
            filter_v4: v4.then_some(filter),
            v6,
        }
    };
    found.into_iter().map(of_interface).collect()
}

impl DirectSenders {
    /// Whether a strict reverse-path filter drops what they send.
    pub fn is_filtered(&self) -> bool {
        self.filter_v4 == Some(STRICT)
    }
}

/// `rp_filter`: the route back to the source must lead out of the interface that the packet came in by.
const STRICT: i32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn leases() -> Vec<Lease> {
        let net_conf = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:244::/48","Backend":{"Type":"vxlan","DirectRouting":true}}"#;
        let net_conf = crate::config::NetConf::parse(net_conf).unwrap();
        assert!(net_conf.backend.direct_routing());
        let entry = |n: u8, more: &str| {
            format!(
                "[[node]]\nname = \"n{n}\"\nsubnets = [\"10.244.{n}.0/24\", \"fd00:10:244:{n}::/64\"]\npublic-ip = \"192.0.2.{n}\"\npublic-ipv6 = \"2001:db8::{n}\"\n{more}\n"
            )
        };
        let text = [
            entry(1, ""),
            entry(2, ""),
            entry(3, "vtep-mac = \"02:00:00:00:00:03\""),
            entry(4, "vtep-mac = \"02:00:00:00:00:04\""),
            entry(5, "backend = \"udp\""),
        ];
        crate::registry::parse(&text.concat(), &net_conf).unwrap()
    }

    #[test]
    fn flannel_nodes_on_the_same_link_are_named() {
        let leases = leases();
        let on_link = |address: IpAddr| {
            let near = ["192.0.2.2", "192.0.2.3", "192.0.2.5", "2001:db8::3"];
            near.contains(&address.to_string().as_str())
                .then(|| "lo".to_owned())
        };
        let found = senders(&leases[0], &leases, on_link);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (&*found[0].interface, &found[0].peers[..]),
            ("lo", &["n3".to_owned()][..])
        );
        assert!(found[0].v6 && found[0].filter_v4.is_some());
        let far = senders(&leases[0], &leases, |_| None);
        assert_eq!(far, []);
    }
}
