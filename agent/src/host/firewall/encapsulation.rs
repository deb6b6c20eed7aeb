//! The guard of the encapsulation ports: what pods send there, and what connection tracking keeps of the rest.
//!
//! A receiver knows its peers by the outer source address alone. A pod needs no capability to send a datagram to a
//! node's address and port, and where it is masqueraded it leaves with this node's address: it would speak as this node.
//! So nothing that this node forwards to a node's address and the port of a format goes on, after the translation of
//! destinations (a Service may lead there) and before that of sources:
//!
//! ```text
//! guard        neither UDP nor ICMP                                            return
//!              from a pod's interface, to a node, ICMP "too large" about UDP   drop
//!              not UDP, or to another port, or a later fragment                return
//!              to a node or to our own address, by a translation (DNAT)        drop
//!              from a pod's interface, to our own address                      drop
//!              to our own address, from a node, by an interface by which no
//!              route leads back to it and which does not hold our address      drop
//!              to no node                                                      return
//!              from a node, by the interface that leads back to it             return   a router between nodes
//!              (what is left, and what cannot be read)                         drop
//! translated   not UDP, or to another port                                     return
//!              made on this node, or by its kernel VXLAN device                return
//!              to no node, or source not ours                                  return
//!              (what is left: forwarded, with our address)                     drop
//! ```
//!
//! `translated` comes after the translation of sources. It sees what `guard` passes and another program then
//! translates, and what IPVS leads to a node behind `guard`. Kernels before 5.7 do not tell it what was forwarded. What a
//! kernel VXLAN device sends, such as flanneld's beside the table that a stopped agent left, comes by that device as if
//! forwarded.
//!
//! A node's addresses are those of its underlay, and `.0` and `.1` of its subnets: a kernel VXLAN device hears at every
//! address of its node, and these can be reached through the overlay.
//!
//! A Service may lead from another port to one of these. Its first node may have given the datagram its own address
//! before, so that it seems to come from a node: no translation to these ports is rightful.
//!
//! A fragment that is not the first has no ports; without the first, it is nothing. Where connection tracking is on,
//! the kernel has put fragments together before. The first one has the ports: IPv4 fragments count 8 bytes, the length
//! of the UDP header, and an IPv6 one without them cannot be read (RFC 7112).
//!
//! A node that comes to our own address may come by any interface that has some route to it, however little preferred,
//! or that holds our address: paths of several uplinks need not be the same both ways. A container's bridge has neither.
//!
//! "Too large" is said by routers, and a pod knows enough of what its node carries for it to say so too: only by where
//! it comes from can it be told. So a pod that is a router cannot tell a node either, for UDP.
//!
//! A process in the node's own network namespace is the node: it meets neither chain.
//!
//! Anyone can send to the ports, with any source, and connection tracking would keep an entry of each. It keeps one or
//! two of each node in the `udp` format, whose port is the same on both sides, and else some of peers and a few of others,
//! as many as two sets have room for; the rest is not tracked. What is tracked matches on state in other programs' rules
//! as ever: `established` in the `udp` format, and `new`. Our own datagrams are tracked as ever too, so that ICMP
//! errors about them are `related`.
//!
//! ```text
//! tracking     not UDP, or to another port, or not to our own address          return
//!              from a node and its port of the udp format                      return
//!              from a node, and there is room                                  return
//!              from elsewhere, and there is room                               return
//!              (what is left)                                                  untracked
//! ```

use std::net::IpAddr;

use cni_shim::attachment::HOST_IFNAME_PREFIX;
use ipnet::IpNet;

use super::nft::set::{self, Set, SetContent, SetKey};
use super::nft::{IPV4, IPV6, PacketTerm, Rule, Term, Verdict};
use crate::host::host_state::Encapsulation;

/// The rules of the three chains, in the order in which packets meet them, and the sets that they use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EncapsulationRules {
    pub(super) guard: Vec<Rule>,
    pub(super) translated: Vec<Rule>,
    pub(super) tracking: Vec<Rule>,
    pub(super) sets: Vec<Set>,
}

impl EncapsulationRules {
    pub(super) fn of(desired: &Encapsulation) -> EncapsulationRules {
        EncapsulationRules {
            guard: guard(desired),
            translated: translated(desired),
            tracking: tracking(desired),
            sets: sets(desired),
        }
    }
}

fn guard(desired: &Encapsulation) -> Vec<Rule> {
    use PacketTerm::{FromSet, LaterFragment, NotUdpNorIcmp, RoutedBack};
    let mut rules = vec![packet(&[NotUdpNorIcmp], Verdict::Return)];
    rules.extend(false_reports(desired));
    rules.extend(to_another_port(desired, desired.private_port));
    rules.extend([IPV4, IPV6].map(|family| packet(&[LaterFragment(family)], Verdict::Return)));
    rules.extend(redirected(desired));
    for own in &desired.own {
        rules.extend(from_pods(&[Term::To(IpNet::from(*own))]));
        rules.push(as_a_node(*own));
    }
    rules.extend(to_no_node());
    rules.extend(
        NODES.map(|(family, set)| packet(&[FromSet(family, set), RoutedBack], Verdict::Return)),
    );
    rules.push(packet(&[], Verdict::Drop));
    rules
}

/// What was sent elsewhere: a Service of this node whose endpoint is a node's port. Another node's pod may have sent it,
/// and that node has given it its address.
fn redirected(desired: &Encapsulation) -> impl Iterator<Item = Rule> {
    let own = desired.own.iter().map(|own| Term::To(IpNet::from(*own)));
    let nodes = NODES.map(|(family, set)| Term::Packet(PacketTerm::ToSet(family, set)));
    own.chain(nodes).map(|to| Rule {
        terms: vec![to, Term::Redirected],
        verdict: Verdict::Drop,
    })
}

/// Pods that tell a node's sockets that their datagrams are too large for the path.
fn false_reports(desired: &Encapsulation) -> Vec<Rule> {
    use PacketTerm::{ToSet, TooLarge};
    let too_large = |family| Term::Packet(TooLarge(family));
    let own = desired.own.iter().map(|own| {
        let family = if own.is_ipv6() { IPV6 } else { IPV4 };
        [too_large(family), Term::To(IpNet::from(*own))]
    });
    let nodes = NODES.map(|(family, set)| [too_large(family), Term::Packet(ToSet(family, set))]);
    own.chain(nodes)
        .flat_map(|terms| from_pods(&terms))
        .collect()
}

fn from_pods(terms: &[Term]) -> [Rule; 2] {
    let links = [
        Term::FromInterfaces(HOST_IFNAME_PREFIX),
        Term::Packet(PacketTerm::FromLinksIn(POD_LINKS)),
    ];
    links.map(|link| Rule {
        terms: [&[link], terms].concat(),
        verdict: Verdict::Drop,
    })
}

/// To our own address, as a node, by an interface that leads to no such node and does not hold the address: a container
/// of another program.
fn as_a_node(own: IpAddr) -> Rule {
    use PacketTerm::{FromSet, NotHeldByLink};
    let [(_, nodes4), (_, nodes6)] = NODES;
    let from_node = match own {
        IpAddr::V4(_) => FromSet(IPV4, nodes4),
        IpAddr::V6(_) => FromSet(IPV6, nodes6),
    };
    Rule {
        terms: vec![
            Term::To(IpNet::from(own)),
            Term::Packet(from_node),
            Term::NotRoutedBack,
            Term::Packet(NotHeldByLink),
        ],
        verdict: Verdict::Drop,
    }
}

fn translated(desired: &Encapsulation) -> Vec<Rule> {
    let mut rules = to_another_port(desired, desired.private_port);
    for made_here in [PacketTerm::MadeHere, PacketTerm::FromVxlanDevice] {
        rules.push(packet(&[made_here], Verdict::Return));
    }
    rules.extend(to_no_node());
    rules.push(packet(&[PacketTerm::NotFromHere], Verdict::Return));
    rules.push(packet(&[], Verdict::Drop));
    rules
}

fn tracking(desired: &Encapsulation) -> Vec<Rule> {
    use PacketTerm::{Family, FromPort, FromSet, NotFromSet, Remembered};
    let [udp_port, _] = desired.ports;
    // Another program of this node may have that port.
    let private_port = desired
        .private_port
        .filter(|_| desired.is_private_port_ours);
    let mut rules = to_another_port(desired, private_port);
    for (family, v6) in [(IPV4, false), (IPV6, true)] {
        let own = desired.own.iter().copied().find(|own| own.is_ipv6() == v6);
        rules.push(Rule {
            terms: vec![own.map_or(Term::Packet(Family(family)), |own| {
                Term::NotTo(IpNet::from(own))
            })],
            verdict: Verdict::Return,
        });
    }
    let remembered = [(IPV4, PEERS4, STRANGERS4), (IPV6, PEERS6, STRANGERS6)];
    for ((family, nodes), (_, peers, strangers)) in NODES.into_iter().zip(remembered) {
        rules.extend([
            packet(
                &[FromSet(family, nodes), FromPort(udp_port)],
                Verdict::Return,
            ),
            packet(
                &[FromSet(family, nodes), Remembered(family, peers)],
                Verdict::Return,
            ),
            packet(
                &[NotFromSet(family, nodes), Remembered(family, strangers)],
                Verdict::Return,
            ),
        ]);
    }
    rules.push(packet(&[], Verdict::Untracked));
    rules
}

fn sets(desired: &Encapsulation) -> Vec<Set> {
    let nodes = |v6: bool| {
        let of_family = desired.nodes.iter().filter(|node| node.is_ipv6() == v6);
        SetContent::Fixed(of_family.map(|node: &IpAddr| set::address(*node)).collect())
    };
    let links = desired
        .pod_links
        .iter()
        .map(|name| set::interface_name(name));
    let from_packets = |most| SetContent::FromPackets {
        most,
        milliseconds: REMEMBERED_FOR,
    };
    let (peers, strangers) = (from_packets(MOST_OF_PEERS), from_packets(MOST_OF_STRANGERS));
    [
        (NODES4, SetKey::Ipv4, nodes(false)),
        (NODES6, SetKey::Ipv6, nodes(true)),
        (
            POD_LINKS,
            SetKey::InterfaceName,
            SetContent::Fixed(links.collect()),
        ),
        (PEERS4, SetKey::Ipv4AndPort, peers.clone()),
        (PEERS6, SetKey::Ipv6AndPort, peers),
        (STRANGERS4, SetKey::Ipv4AndPort, strangers.clone()),
        (STRANGERS6, SetKey::Ipv6AndPort, strangers),
    ]
    .map(|(name, key, content)| Set { name, key, content })
    .into()
}

/// Not for the encapsulation ports.
fn to_another_port(desired: &Encapsulation, private_port: Option<u16>) -> Vec<Rule> {
    let other = PacketTerm::NotToPorts(desired.ports, private_port);
    [PacketTerm::NotUdp, other]
        .map(|term| packet(&[term], Verdict::Return))
        .into()
}

fn to_no_node() -> [Rule; 2] {
    NODES.map(|(family, set)| packet(&[PacketTerm::NotToSet(family, set)], Verdict::Return))
}

fn packet(terms: &[PacketTerm], verdict: Verdict) -> Rule {
    Rule {
        terms: terms.iter().copied().map(Term::Packet).collect(),
        verdict,
    }
}

const NODES4: &str = "nodes4";
const NODES6: &str = "nodes6";
const NODES: [(u8, &str); 2] = [(IPV4, NODES4), (IPV6, NODES6)];
const POD_LINKS: &str = "pod_links";
const PEERS4: &str = "peers4";
const PEERS6: &str = "peers6";
const STRANGERS4: &str = "strangers4";
const STRANGERS6: &str = "strangers6";
/// A quarter of the table that the kernel gives a machine of 1 GB to 4 GB (`nf_conntrack_max` of 65,536). A kernel
/// VXLAN device has a port for each flow.
const MOST_OF_PEERS: u32 = 16_384;
/// Enough that a new node, or one that sends from another address, is heard by the dataplane and shown.
const MOST_OF_STRANGERS: u32 = 1_024;
/// As long as connection tracking keeps a datagram without an answer (`nf_conntrack_udp_timeout`), in ms.
const REMEMBERED_FOR: u64 = 30_000;
