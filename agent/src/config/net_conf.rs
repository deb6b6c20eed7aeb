//! The cluster's configuration: flannel's `net-conf.json` (flannel `pkg/subnet/config.go`).

use std::net::{Ipv4Addr, Ipv6Addr};

use encap::{Format, Vni};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// flannel's network configuration, read as flannel reads it and completed with its defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetConf {
    /// `Network`: the IPv4 cluster network, host bits zero; `None` with `EnableIPv4: false`.
    pub network: Option<Ipv4Net>,
    /// `IPv6Network`: the IPv6 cluster network, host bits zero; `None` without `EnableIPv6: true`.
    pub ipv6_network: Option<Ipv6Net>,
    /// `SubnetLen`, `SubnetMin`, `SubnetMax`: where IPv4 subnets are leased from; there with `network`.
    pub subnets: Option<SubnetRange<Ipv4Addr>>,
    /// `IPv6SubnetLen`, `IPv6SubnetMin`, `IPv6SubnetMax`: there with `ipv6_network`.
    pub ipv6_subnets: Option<SubnetRange<Ipv6Addr>>,
    /// `Backend`.
    pub backend: Backend,
    pub(super) unknown: Vec<String>,
}

/// Where a registry that hands out subnets takes them from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubnetRange<A> {
    /// Prefix length of each subnet.
    pub len: u8,
    /// Base address of the first subnet.
    pub min: A,
    /// Base address of the last subnet.
    pub max: A,
}

/// How nodes talk: the cluster's default format and its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// flannel `udp`.
    Udp {
        /// UDP port of every node, 1 to 65,535.
        port: u16,
    },
    /// flannel `vxlan`.
    Vxlan {
        /// VXLAN network identifier.
        vni: Vni,
        /// UDP port of every node, 1 to 65,535 (0 in the file is the kernel's default).
        port: u16,
        /// Tolerate group-policy bits in received headers.
        gbp: bool,
        /// flannel's `Learning`: has no meaning here, kept for `tartan status`.
        learning: bool,
        /// flannel's `DirectRouting`: not done here, kept for `tartan status`.
        direct_routing: bool,
        /// MTU of the *underlay*, bytes of outer packet, where the file sets one.
        mtu: Option<u16>,
    },
}

impl NetConf {
    /// The cluster networks, IPv4 first.
    pub fn cluster(&self) -> Vec<IpNet> {
        self.network
            .map(IpNet::V4)
            .into_iter()
            .chain(self.ipv6_network.map(IpNet::V6))
            .collect()
    }

    /// Keys that flannel ignores, and we with it, as written and in the order of the file; a key inside
    /// `Backend` is shown as `Backend.KEY`. Worth a warning: the author meant something by them.
    pub fn unknown_keys(&self) -> &[String] {
        &self.unknown
    }
}

impl Backend {
    /// The format that nodes use unless their lease says otherwise.
    pub fn format(&self) -> Format {
        match self {
            Backend::Udp { .. } => Format::Udp,
            Backend::Vxlan { .. } => Format::Vxlan,
        }
    }

    /// UDP port of the `udp` format: as configured, or flannel's default in a cluster of another backend.
    pub fn udp_port(&self) -> u16 {
        match self {
            Backend::Udp { port } => *port,
            Backend::Vxlan { .. } => DEFAULT_UDP_PORT,
        }
    }

    /// UDP port of the `vxlan` format: as configured, or the default in a cluster of another backend.
    pub fn vxlan_port(&self) -> u16 {
        match self {
            Backend::Udp { .. } => DEFAULT_VXLAN_PORT,
            Backend::Vxlan { port, .. } => *port,
        }
    }

    /// The VXLAN network identifier: as configured, or flannel's default in a cluster of another backend.
    pub fn vni(&self) -> Vni {
        match self {
            Backend::Udp { .. } => DEFAULT_VNI,
            Backend::Vxlan { vni, .. } => *vni,
        }
    }

    /// Whether group-policy bits are tolerated.
    pub fn gbp(&self) -> bool {
        matches!(self, Backend::Vxlan { gbp: true, .. })
    }

    /// `mtu` of the underlay interface, lowered to what the file allows.
    pub fn cap_underlay_mtu(&self, mtu: u16) -> u16 {
        match self {
            Backend::Vxlan { mtu: Some(cap), .. } => mtu.min(*cap),
            _ => mtu,
        }
    }
}

/// flannel `pkg/backend/udp/udp_amd64.go`, `defaultPort`.
pub const DEFAULT_UDP_PORT: u16 = 8285;
/// The Linux kernel's default; flannel sends port 0, which means the same.
pub const DEFAULT_VXLAN_PORT: u16 = 8472;
/// flannel `pkg/backend/vxlan/vxlan.go`, `defaultVNI`.
const DEFAULT_VNI: Vni = match Vni::new(1) {
    Some(vni) => vni,
    None => unreachable!(),
};
