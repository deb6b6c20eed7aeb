//! What is wrong with the node, in words with the remedy: the first lines of `tartan status`.

use std::net::IpAddr;

use encap::Family;

use super::adoption::ADOPTION_PATIENCE;
use super::control::Control;
use super::node::Known;
use crate::attachments::pod_name;
use crate::causes::causes;
use crate::host::Bypass;

impl Control {
    pub(super) fn problems(&self) -> Vec<String> {
        let known = &self.node.known;
        let net_conf = self.node.cached.net_conf.iter().map(|reason| {
            format!("the net-conf is refused and the one from cache stays in force: {reason}")
        });
        let leases = self.node.refused_leases.iter().map(|reason| {
            let in_force = match self.node.cached.leases {
                Some(_) => "leases from cache stay",
                None => "the old one stays",
            };
            format!("the list of nodes is refused and {in_force} in force: {reason}")
        });
        let records = self.node.refused_records.iter().map(|refused| {
            format!(
                "the attachment record {} is refused: {}",
                refused.file, refused.reason
            )
        });
        // The route to a stranded pod goes with the pod.
        let leads_to_stranded = |bypass: &&Bypass| {
            let mut stranded = known.stranded();
            stranded.any(|pod| bypass.device.as_deref() == Some(&*pod.host_ifname))
        };
        let bypassing = known.facts.bypassing.iter();
        let bypassing = bypassing.filter(|bypass| !leads_to_stranded(bypass));
        let mut problems: Vec<String> = net_conf
            .chain(leases)
            .chain(self.stale())
            .chain(self.api_problem.clone())
            .chain(self.lock_problem.clone())
            .chain(self.state_problem.clone())
            .chain(self.host.unrecorded().map(|error| causes(error)))
            .chain(self.underlay_problem.clone())
            .chain(self.workforce.problem.clone())
            .chain(self.unpinned())
            .chain(known.facts.underlay.out_of_service.iter().cloned())
            .chain(self.host_problem.clone())
            .chain(self.node_file_problem.clone())
            .chain(self.tending.problem.clone())
            .chain(self.mixed())
            .chain(unused_address(known))
            .chain(self.narrow())
            .chain(self.unreachable())
            .chain(stranded(known))
            .chain(bypassing.map(Bypass::to_string))
            .chain(records)
            .collect();
        let more = problems.len().saturating_sub(PROBLEMS);
        problems.truncate(PROBLEMS);
        if more > 0 {
            problems.push(format!(
                "and {more} more; see `tartan pods` and `tartan routes`"
            ));
        }
        problems
    }

    /// One sentence for all of them: a node without an address of some family reaches no node that has only that.
    fn unreachable(&self) -> Option<String> {
        let spec = &self.node.desired.spec;
        let ours = spec.cluster.node.public;
        let mut peers = spec.cluster.peers.iter().filter(|peer| {
            let ways = [Family::V4, Family::V6].map(|inner| ours.way_to(peer.public, inner));
            ways == [None, None]
        });
        let first = peers.next()?;
        let more = match peers.count() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(format!(
            "no packet can go to {} ({}){more}: this node has only {ours}; give one of the two an address of the other's family, public-ipv6 beside public-ip",
            first.name, first.public
        ))
    }

    /// It works, but for IPv6 and for the check of sources, and is not meant to last.
    fn mixed(&self) -> Option<String> {
        let bridges = &self.tending.bridges;
        (!bridges.is_empty()).then(|| {
            format!(
                "pods of another plugin on {} live beside Tartan's: they reach each other by proxy ARP, IPv4 alone; drain the node, delete the bridge and uncordon, and all are Tartan's",
                bridges.join(", ")
            )
        })
    }

    /// No host needs to make packets smaller than the tunnel device's least MTU.
    fn narrow(&self) -> Option<String> {
        let desired = &self.node.desired;
        let (carries, needs) = (
            desired.spec.cluster.node.underlay_mtu,
            desired.largest_datagram,
        );
        (carries < needs).then(|| {
            format!(
                "the underlay carries {carries} bytes, but packets of {} bytes must cross it and come to {needs}: larger ones than fit are lost; raise the MTU of {}, or Backend.MTU in the net-conf, to at least {needs}",
                desired.host.mtu, self.node.known.facts.underlay.name
            )
        })
    }

    /// Which workers the kernel refused their cores: one went offline, or the control group's set has shrunk, since they
    /// were chosen.
    fn unpinned(&self) -> Option<String> {
        let cores = &self.workforce.cores;
        let refused = self.engine.unpinned().map(|worker| {
            let core = cores.get(worker).copied().flatten();
            let core = core.map_or("its core".to_owned(), |core| format!("core {core}"));
            format!("worker {worker} to {core}")
        });
        let refused: Vec<String> = refused.collect();
        (!refused.is_empty()).then(|| {
            format!(
                "the kernel refuses to pin {}: it runs on any; name cores that are online and in the service's cpuset, \
                 and restart the agent",
                refused.join(", ")
            )
        })
    }

    /// Why the workers are behind, if they are.
    pub(super) fn stale(&self) -> Option<String> {
        let version = self.node.desired.spec.version;
        let late = self.published.elapsed() > ADOPTION_PATIENCE && !self.engine.adopted(version);
        late.then(|| {
            format!("a worker does not take the tables of version {version}; see the agent's log")
        })
    }
}

/// An address of the configuration is used in the place of one of our entry, and of no other.
fn unused_address(known: &Known) -> Option<String> {
    let (config, own) = (&known.config, known.own.public);
    let written: [Option<IpAddr>; 2] = [
        config.public_v4.map(IpAddr::from),
        config.public_v6.map(IpAddr::from),
    ];
    let unused = |address: &IpAddr| own.of(Family::of(*address)).is_none();
    let address = written.into_iter().flatten().find(unused)?;
    Some(format!(
        "the configuration names the local address {address}, and this node's entry in the list has no address of that family: add it there, or leave it out here"
    ))
}

/// One sentence for all of them: a change of subnets strands every pod of the node.
fn stranded(known: &Known) -> Option<String> {
    let pods: Vec<String> = known
        .stranded()
        .map(|pod| pod_name(pod).unwrap_or_else(|| format!("container {}", pod.container)))
        .collect();
    let (shown, more) = pods.split_at(pods.len().min(STRANDED_PODS));
    let more = match more.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!shown.is_empty()).then(|| {
        format!(
            "stranded pods, with addresses in no subnet of this node: {}{more}; delete and recreate them, see `tartan pods`",
            shown.join(", ")
        )
    })
}

/// A node with thousands of garbled records still has a status of one screen.
const PROBLEMS: usize = 20;
const STRANDED_PODS: usize = 3;
