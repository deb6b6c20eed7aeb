//! The contents of `subnet.env`, byte for byte as flannel writes them.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// The values in `subnet.env`. Its `Display` is the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubnetEnv {
    /// Cluster network and own subnet: the IPv4 pair, if there is one.
    pub v4: Option<(IpNet, IpNet)>,
    /// The IPv6 pair, if there is one.
    pub v6: Option<(IpNet, IpNet)>,
    /// MTU of the tunnel device, bytes of inner packet.
    pub mtu: u16,
    /// Whether Tartan masquerades.
    pub masquerade: bool,
}

impl fmt::Display for SubnetEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (family, pair) in [("", self.v4), ("IPV6_", self.v6)] {
            if let Some((network, subnet)) = pair {
                writeln!(f, "FLANNEL_{family}NETWORK={network}")?;
                writeln!(f, "FLANNEL_{family}SUBNET={}", with_gateway(subnet))?;
            }
        }
        writeln!(f, "FLANNEL_MTU={}", self.mtu)?;
        writeln!(f, "FLANNEL_IPMASQ={}", self.masquerade)
    }
}

/// The own subnets that a `subnet.env` names. Lists and lines that cannot be read are passed over, as flannel does
/// (flannel `pkg/subnet/subnet.go`, ReadCIDRFromSubnetFile).
pub fn subnets(text: &str) -> Vec<IpNet> {
    let keys = ["FLANNEL_SUBNET=", "FLANNEL_IPV6_SUBNET="];
    let value = |line: &'_ str| -> Option<IpNet> {
        let value = keys.iter().find_map(|key| line.strip_prefix(key))?;
        let subnet: IpNet = value.trim().parse().ok()?;
        Some(subnet.trunc())
    };
    text.lines().filter_map(value).collect()
}

/// A subnet by its first host's address, which the bridge of the stock plugin takes.
fn with_gateway(subnet: IpNet) -> String {
    let length = subnet.prefix_len();
    match subnet {
        IpNet::V4(net) => {
            let first = net.network().to_bits().saturating_add(1);
            format!("{}/{length}", Ipv4Addr::from_bits(first))
        }
        IpNet::V6(net) => {
            let first = net.network().to_bits().saturating_add(1);
            format!("{}/{length}", Ipv6Addr::from_bits(first))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pair(network: &str, subnet: &str) -> Option<(IpNet, IpNet)> {
        Some((network.parse().unwrap(), subnet.parse().unwrap()))
    }

    fn env(mtu: u16) -> SubnetEnv {
        SubnetEnv {
            v4: pair("10.244.0.0/16", "10.244.1.0/24"),
            v6: None,
            mtu,
            masquerade: true,
        }
    }

    #[test]
    fn own_subnets_are_read_back() {
        let both = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.7.1/24\nFLANNEL_IPV6_SUBNET=fd00:7::1/64\nFLANNEL_MTU=1450\n";
        let expected: Vec<IpNet> = ["10.244.7.0/24", "fd00:7::/64"]
            .map(|net| net.parse().unwrap())
            .into();
        assert_eq!(subnets(both), expected);
        assert!(subnets("FLANNEL_SUBNET=\nFLANNEL_SUBNET=10.1.1.1/33\n#").is_empty());
    }

    #[test]
    fn a_real_flanneld_wrote_the_same_bytes() {
        // Written by flanneld v0.20.2 with -ip-masq on nodes of these subnets.
        for (mtu, file) in [
            (1472, include_str!("fixtures/subnet-udp.env")),
            (1450, include_str!("fixtures/subnet-vxlan.env")),
        ] {
            assert_eq!(env(mtu).to_string(), file);
        }
    }

    #[test]
    fn both_families_and_no_masquerade_are_as_flannel_writes_them() {
        let dual = SubnetEnv {
            v6: pair("2001:cafe:42::/56", "2001:cafe:42:1::/64"),
            masquerade: false,
            ..env(1450)
        };
        let text = "FLANNEL_NETWORK=10.244.0.0/16\n\
            FLANNEL_SUBNET=10.244.1.1/24\n\
            FLANNEL_IPV6_NETWORK=2001:cafe:42::/56\n\
            FLANNEL_IPV6_SUBNET=2001:cafe:42:1::1/64\n\
            FLANNEL_MTU=1450\n\
            FLANNEL_IPMASQ=false\n";
        assert_eq!(dual.to_string(), text);
        let only_v6 = SubnetEnv { v4: None, ..dual };
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(only_v6.to_string(), lines.join("\n") + "\n");
    }

    proptest! {
        #[test]
        fn the_subnet_is_shown_by_its_first_host(bits in any::<u32>(), length in 8..=30_u8) {
            let subnet = ipnet::Ipv4Net::new(bits.into(), length).unwrap().trunc();
            let shown = with_gateway(IpNet::V4(subnet));
            let parsed: ipnet::Ipv4Net = shown.parse().unwrap();
            prop_assert_eq!(Some(parsed.addr()), subnet.hosts().next());
            prop_assert_eq!(parsed.trunc(), subnet);
        }
    }
}
