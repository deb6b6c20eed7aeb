//! A cluster in one thread, under virtual time.
//!
//! ```text
//!   pod (smoltcp)                                                      pod (smoltcp)
//!      │ device memory                                                       │
//!   worker of node 1 ── underlay memory ── network (seeded faults) ── worker of node 2
//! ```
//!
//! Theory of operation: time stands still while anything moves: packets go from pod to worker to network to worker to
//! pod until all rest. Then it leaps to the next arrival, the next timer of a pod, or the end of a hold. What a pod
//! sends to another pod of its node does not enter the dataplane: that traffic is the kernel's.

use std::time::Duration;

use dataplane::now::Now;
use encap::inner::Inner;

pub mod network;
pub mod node;
pub mod oracle;
pub mod packets;
pub mod plan;
pub mod pod;
pub mod transfer;

use network::{Faults, Network};
use node::Node;
use plan::{ClusterPlan, PODS};
use pod::Pod;
use transfer::Transfer;

/// Nodes, pods, connections, and the network between them.
pub struct World {
    /// Node `i` is at `i - 1`.
    pub nodes: Vec<Node>,
    /// Pod `n` of node `i` is at `(i - 1) * PODS + n`.
    pub pods: Vec<Pod>,
    /// The network.
    pub network: Network,
    /// Connections that carry bytes.
    pub transfers: Vec<Transfer>,
    /// The present.
    pub now: Now,
}

impl World {
    /// A cluster at rest.
    pub fn new(plan: &ClusterPlan, faults: Faults, seed: u64) -> World {
        let pods = (1..=plan.nodes).flat_map(|i| (0..PODS).map(move |n| (i, n)));
        World {
            nodes: (1..=plan.nodes).map(|i| Node::new(plan.spec(i))).collect(),
            pods: pods
                .map(|(i, n)| Pod::new(i, n, seed ^ u64::from(i) << 8 ^ u64::from(n)))
                .collect(),
            network: Network::new(faults, seed),
            transfers: vec![],
            now: Now(0),
        }
    }

    /// Connects pod number `from` to pod number `to`; each sends `bytes` bytes.
    pub fn transfer(&mut self, from: usize, to: usize, v6: bool, bytes: usize) {
        let port = 1000 + self.transfers.len() as u16;
        let seed = u64::from(port);
        let transfer = Transfer::start(&mut self.pods, (from, to), v6, port, (bytes, seed));
        self.transfers.push(transfer);
    }

    /// Lets time pass until all transfers are complete.
    pub fn complete_transfers(&mut self, limit: Duration) {
        let end = self.now.after(limit);
        while !self.transfers.iter().all(|t| t.is_complete()) {
            let leapt = self.turn();
            assert!(
                leapt && self.now < end,
                "not complete at {:?}: {}",
                self.now,
                self.progress()
            );
        }
    }

    /// Ends all transfers.
    pub fn abort_transfers(&mut self) {
        for mut transfer in self.transfers.drain(..) {
            transfer.abort(&mut self.pods);
        }
    }

    /// Lets time pass until no packet moves and no node or pod waits for anything.
    pub fn settle(&mut self, limit: Duration) {
        let end = self.now.after(limit);
        while self.turn() {
            assert!(
                self.now < end,
                "no rest at {:?}: {}",
                self.now,
                self.progress()
            );
        }
    }

    /// Lets `span` of time pass.
    pub fn pass(&mut self, span: Duration) {
        let end = self.now.after(span);
        loop {
            self.rest();
            match self.next() {
                Some(next) if next <= end => self.now = next,
                _ => break,
            }
        }
        self.now = end;
    }

    /// Everything that breaks the law anywhere.
    pub fn audit(&mut self) -> Vec<String> {
        let nodes = self.nodes.iter_mut().zip(1..);
        nodes
            .flat_map(|(node, i)| {
                let broken = node.audit().into_iter();
                broken.map(move |law| format!("node {i}: {law}"))
            })
            .collect()
    }

    /// Moves everything that can move now, then leaps to the next moment; `false` when there is none.
    fn turn(&mut self) -> bool {
        self.rest();
        match self.next() {
            Some(next) => {
                self.now = next.max(self.now);
                true
            }
            None => false,
        }
    }

    fn rest(&mut self) {
        for _ in 0..MOST_ROUNDS {
            self.arrive();
            let polled = self.poll_pods();
            let mut pumped = false;
            for transfer in &mut self.transfers {
                pumped |= transfer.pump(&mut self.pods);
            }
            if !(self.turn_nodes() || polled || pumped) {
                return;
            }
        }
        panic!("time stands still at {:?}: {}", self.now, self.progress());
    }

    fn next(&self) -> Option<Now> {
        let nodes = self.nodes.iter().filter_map(Node::deadline);
        let pods = self.pods.iter().filter_map(Pod::due);
        nodes.chain(pods).chain(self.network.next()).min()
    }

    fn arrive(&mut self) {
        for (datagram, weight) in self.network.arrive(self.now) {
            let to = datagram.to.ip();
            // The network loses a datagram to an address that no node has.
            let node = self
                .nodes
                .iter_mut()
                .find(|node| node.spec.local.addresses.contains(&to));
            if let Some(node) = node {
                node.hand(datagram, weight);
            }
        }
    }

    fn poll_pods(&mut self) -> bool {
        let mut polled = false;
        for index in 0..self.pods.len() {
            let pod = &mut self.pods[index];
            if !pod.is_due(self.now) {
                continue;
            }
            polled = true;
            let node = pod.node;
            for packet in pod.poll(self.now) {
                match self.pod_of(&packet) {
                    Some(to) if self.pods[to].node == node => self.pods[to].receive(packet),
                    _ => self.nodes[usize::from(node - 1)].push(packet),
                }
            }
        }
        polled
    }

    fn turn_nodes(&mut self) -> bool {
        let mut turned = false;
        for index in 0..self.nodes.len() {
            let node = &mut self.nodes[index];
            if !node.is_due(self.now) {
                continue;
            }
            turned = true;
            let (sent, delivered) = node.run(self.now);
            for datagram in sent {
                self.network.depart(datagram, self.now);
            }
            for packet in delivered {
                // What is not for a pod is for the host, which keeps it.
                let to = self.pod_of(&packet);
                if let Some(pod) = to.filter(|to| usize::from(self.pods[*to].node) == index + 1) {
                    self.pods[pod].receive(packet);
                }
            }
        }
        turned
    }

    /// The index of the pod that a packet is addressed to.
    fn pod_of(&self, packet: &[u8]) -> Option<usize> {
        let destination = Inner::parse(packet).ok()?.destination;
        self.pods
            .iter()
            .position(|pod| pod.addresses.contains(&destination))
    }

    fn progress(&self) -> String {
        let transfers = self.transfers.iter().map(|t| t.progress(&self.pods));
        transfers.collect::<Vec<_>>().join("; ")
    }
}

/// Says which seed a failed run had.
pub struct Seed(pub u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the failed run has seed {:#x}", self.0);
        }
    }
}

/// Rounds at one moment after which packets are taken to run in a circle.
const MOST_ROUNDS: usize = 10_000;
