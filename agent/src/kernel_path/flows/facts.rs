//! What the judgement of a flow needs to know of the node.

use std::collections::HashMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;

use dataplane::snapshot::Snapshot;
use ipnet::Ipv4Net;

/// The node as the control loop knows it; published anew whenever any of it changes.
#[derive(Clone)]
pub struct FlowFacts {
    /// The tables that the workers forward by: peers, routes to them, the local set.
    pub snapshot: Arc<Snapshot>,
    /// The IPv4 cluster networks.
    pub networks: Vec<Ipv4Net>,
    /// Pods of this node with an attachment of their own, by address.
    pub pods: HashMap<Ipv4Addr, FlowPod>,
    /// UDP ports, in the machine's byte order, that encapsulated packets come to: those of both formats and the private
    /// one.
    pub encapsulation_ports: Vec<u16>,
    /// Indices of the devices that the kernel path itself uses: underlay, tunnel and VXLAN device.
    pub devices: Vec<u32>,
}

/// A pod whose flows may be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowPod {
    /// Index of the host's end of its veth pair.
    pub ifindex: u32,
    /// Whether its traffic has a bandwidth limit in either direction, of ours or of others: a queue discipline of the host's
    /// end, which installed flows would pass by, so a limited pod has none.
    pub is_limited: bool,
}

impl fmt::Debug for FlowFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowFacts")
            .field("version", &self.snapshot.version)
            .field("pods", &self.pods.len())
            .finish_non_exhaustive()
    }
}
