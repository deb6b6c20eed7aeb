//! The state that the kernel of a node is to have.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use dataplane::families::PerFamily;
use encap::Mac;
use ipnet::IpNet;

use super::subnet_env::contents::SubnetEnv;

/// What the kernel must hold for packets to reach the tunnel device and leave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostState {
    /// Name of the tunnel device.
    pub device: String,
    /// Its Ethernet address, if it is a TAP.
    pub mac: Option<Mac>,
    /// Addresses of the tunnel device: the base of each own subnet, as /32 or /128.
    pub addresses: Vec<IpNet>,
    /// MTU of the tunnel device, bytes of inner packet.
    pub mtu: u16,
    /// The largest packet of each family that fits the underlay: the MTU of the cluster routes, where it is smaller than
    /// the device's.
    pub inner_mtu: PerFamily<u16>,
    /// Networks routed into the tunnel device.
    pub cluster_routes: Vec<IpNet>,
    /// Own subnets: the kernel answers for their unused addresses with an ICMP error (unreachable).
    pub unreachable: Vec<IpNet>,
    /// Packets from pods to the outside, and from the outside to pods of other nodes, take this node's address.
    pub masquerade: bool,
    /// What keeps pods from the ports of the overlay.
    pub encapsulation: Encapsulation,
    /// Where flannel's `subnet.env` is written.
    pub subnet_file: PathBuf,
    /// Its contents.
    pub subnet_env: SubnetEnv,
}

/// The ports of the overlay, and who may send there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encapsulation {
    /// The UDP port of each format, the same on every node; that of `udp` first.
    pub ports: [u16; 2],
    /// The UDP port at which user space of a node receives what its kernel path passes on.
    pub private_port: Option<u16>,
    /// Whether our own sockets may be at that port.
    pub is_private_port_ours: bool,
    /// The addresses of our own sockets: at most one of each family.
    pub own: Vec<IpAddr>,
    /// Every address at which another node receives, and every one that it sends from. Sorted, each once.
    pub nodes: Arc<[IpAddr]>,
    /// Interfaces that lead to pods which another plugin attached. Sorted, each once.
    pub pod_links: Vec<String>,
}

impl HostState {
    /// Whether any network or address is of IPv6.
    pub(crate) fn has_v6(&self) -> bool {
        let mut networks = self.cluster_routes.iter().chain(&self.addresses);
        networks.any(|net| net.addr().is_ipv6())
    }
}
