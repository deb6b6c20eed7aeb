//! What the host knows that the [`Spec`](crate::spec::Spec) does not hold.

use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;
use std::num::NonZeroU32;

use encap::Mac;

/// What of the host the tables of the kernel path depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The programs act. Without it every packet takes the way through user space.
    pub on: bool,
    /// The device that datagrams leave and arrive at.
    pub underlay: UnderlayFacts,
    /// Our tunnel device.
    pub tunnel: TunnelFacts,
    /// UDP port on which the service receives what the programs pass on, while a VXLAN device holds the port of the
    /// format; `None` while our own sockets hold it.
    pub private_port: Option<u16>,
    /// MAC of the next hop towards each peer, by its public address. A peer that is not in it, or that is reached by
    /// another device than the underlay's, is left to user space.
    pub next_hops: HashMap<Ipv4Addr, Mac>,
    /// Public addresses of peers that the programs must not send to, for whatever reason. They still receive from them.
    pub unusable: HashSet<Ipv4Addr>,
    /// The largest outer packet to a peer, bytes, where less than the underlay device's MTU is known to pass.
    pub path_mtu: HashMap<Ipv4Addr, u16>,
    /// The pods of this node.
    pub pods: Vec<PodFacts>,
    /// Flows may leave the host's stack out (`kernel-path = "auto"`).
    pub flows: bool,
}

/// The underlay device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnderlayFacts {
    /// Its interface index.
    pub ifindex: u32,
    /// Its MAC: the outer source.
    pub mac: Mac,
    /// This node's underlay address: the outer source. If it is none of the node's public addresses, the programs do
    /// nothing.
    pub address: Ipv4Addr,
    /// It cuts datagrams of UDP (`tx-udp-segmentation`), and no super-packets of tunnels
    /// (`tx-udp_tnl-segmentation`): user space, which hands it the former, sends bulk TCP faster than the programs.
    pub cuts_datagrams_alone: bool,
}

/// The tunnel device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelFacts {
    /// Its interface index.
    pub ifindex: u32,
    /// Its MAC; `None` of a TUN, which has none.
    pub mac: Option<Mac>,
}

/// A pod of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodFacts {
    /// Its address.
    pub address: Ipv4Addr,
    /// Where its flows may leave the host's stack out; `None` of a pod none of whose flows may, as of one with a limit,
    /// which the stack keeps: what the programs carry of it is counted all the same.
    pub end: Option<PodEnd>,
}

/// A pod's link to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodEnd {
    /// Interface index of the host's end.
    pub ifindex: NonZeroU32,
    /// The pod's network namespace, by the number that this one has for it (IFLA_LINK_NETNSID of the host's end); `None`
    /// where the kernel does not tell.
    pub namespace: Option<u32>,
    /// MAC of the interface inside the pod.
    pub pod_mac: Mac,
    /// MAC of the host's end.
    pub host_mac: Mac,
}
