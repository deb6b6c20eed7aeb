//! Which packets take the node's address: flannel's rules in iptables mode
//! (`pkg/trafficmngr/iptables/iptables.go`, masqRules), as a pure function. Its
//! forwardRules stand only where they decide something ([`foreign_chain`](super::foreign_chain)).
//!
//! One difference is intended. flannel masquerades every packet between pods of
//! which neither is in a subnet of this node: a pod that forges another node's
//! address, or that outlived a change of the node's subnets, would send as the
//! node. Here it keeps its source, and the dataplane refuses it. What is left is
//! what this node sends on for others: packets that came by the tunnel, so
//! that their source was found to be the peer's, and that a Service redirected.
//! kube-proxy takes them for packets from inside the cluster, and leaves the
//! source alone, where a pod asks for a node port with `externalTrafficPolicy:
//! Local` at the node's tunnel address.
//!
//! N is a cluster network, S one of this node's own subnets in it.
//!
//! ```text
//! postrouting   mark 0x4000/0x4000      return        kube-proxy masquerades it itself
//!               by the tunnel, redirected,
//!               from N - S  to N - S    masquerade    the answer is to come back here
//!               from N      to N        return        pod to pod: the dataplane checks the source
//!               from not N  to S        return        a Service's client keeps its address
//!               from N      to no group masquerade    pod to the outside
//!               from not N  to N        masquerade    host to another node's pod: answers come back here
//! ```

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::encapsulation::EncapsulationRules;
use super::nft::{InterfaceName, Rule, Term, Verdict};
use super::source_check;
use crate::host::host_state::HostState;

/// What the node is to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FirewallRules {
    /// The check of pods' sources, the same on every node.
    pub(super) prerouting: Vec<Rule>,
    /// In the order in which packets meet them; none: no masquerade.
    pub(super) postrouting: Vec<Rule>,
    /// The guard of the encapsulation ports.
    pub(super) encapsulation: EncapsulationRules,
    networks: Vec<IpNet>,
}

impl FirewallRules {
    pub(super) fn of(desired: &HostState) -> FirewallRules {
        let networks = desired.cluster_routes.clone();
        FirewallRules {
            prerouting: source_check::prerouting(),
            postrouting: if desired.masquerade {
                let tunnel = InterfaceName::new(&desired.device);
                postrouting(&networks, &desired.unreachable, tunnel)
            } else {
                Vec::new()
            },
            encapsulation: EncapsulationRules::of(&desired.encapsulation),
            networks,
        }
    }

    /// The cluster networks whose packets a chain sees: of IPv4, of IPv6, or all.
    pub(super) fn networks(&self, v4: bool, v6: bool) -> Vec<IpNet> {
        let seen = |network: &&IpNet| match network {
            IpNet::V4(_) => v4,
            IpNet::V6(_) => v6,
        };
        self.networks.iter().filter(seen).copied().collect()
    }
}

fn postrouting(networks: &[IpNet], own: &[IpNet], tunnel: Option<InterfaceName>) -> Vec<Rule> {
    use Term::{From, FromInterface, Marked, NotFrom, NotTo, Redirected, To};
    let rule = |terms: &[Term], verdict| Rule {
        terms: terms.to_vec(),
        verdict,
    };
    let mut rules = vec![rule(&[Marked], Verdict::Return)];
    for network in networks.iter().copied() {
        let own = own.iter().copied().filter(|own| network.contains(own));
        if let Some(tunnel) = tunnel {
            let mut sent_on = vec![FromInterface(tunnel), Redirected];
            sent_on.push(From(network));
            sent_on.extend(own.clone().map(NotFrom));
            sent_on.push(To(network));
            sent_on.extend(own.clone().map(NotTo));
            rules.push(rule(&sent_on, Verdict::Masquerade));
        }
        rules.push(rule(&[From(network), To(network)], Verdict::Return));
        rules.extend(own.map(|own| rule(&[NotFrom(network), To(own)], Verdict::Return)));
        let to_outside = [From(network), NotTo(groups(network))];
        rules.push(rule(&to_outside, Verdict::Masquerade));
        let from_outside = [NotFrom(network), To(network)];
        rules.push(rule(&from_outside, Verdict::Masquerade));
    }
    rules
}

/// The multicast addresses of a network's family.
fn groups(network: IpNet) -> IpNet {
    match network {
        IpNet::V4(_) => IpNet::V4(GROUPS4),
        IpNet::V6(_) => IpNet::V6(GROUPS6),
    }
}

const GROUPS4: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4);
const GROUPS6: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8);

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// What is known of a packet.
    #[derive(Clone, Copy, Debug)]
    struct Packet {
        mark: u32,
        from: IpAddr,
        to: IpAddr,
        by_tunnel: bool,
        redirected: bool,
    }

    impl Packet {
        /// What only forged packets and stranded pods do: speak to another
        /// node's pod from another node's address, though no peer sent it.
        fn speaks_as_another_node(&self, n: &IpNet, own: &[IpNet]) -> bool {
            let of_others = |a: &IpAddr| n.contains(a) && !own.iter().any(|own| own.contains(a));
            of_others(&self.from) && of_others(&self.to) && !self.by_tunnel
        }

        /// What passes through this node from one peer to another though no
        /// Service asked for it: there is no such route.
        fn passes_through(&self, n: &IpNet, own: &[IpNet]) -> bool {
            let of_others = |a: &IpAddr| n.contains(a) && !own.iter().any(|own| own.contains(a));
            of_others(&self.from) && of_others(&self.to) && !self.redirected
        }
    }

    /// What becomes of a packet with flannel: a reading of its list by hand,
    /// one line of it after the other.
    fn flannel(packet: Packet, n: &IpNet, own: &[IpNet]) -> Verdict {
        let inside_own = |a: IpAddr| own.iter().any(|own| own.contains(&a));
        let (from_n, to_n) = (n.contains(&packet.from), n.contains(&packet.to));
        let multicast = match packet.to {
            IpAddr::V4(v4) => v4.is_multicast(),
            IpAddr::V6(v6) => v6.is_multicast(),
        };
        if packet.mark & 0x4000 != 0 || inside_own(packet.from) && to_n {
            return Verdict::Return;
        }
        if from_n && inside_own(packet.to) || !from_n && inside_own(packet.to) {
            return Verdict::Return;
        }
        if from_n && !multicast || !from_n && to_n {
            return Verdict::Masquerade;
        }
        Verdict::Return
    }

    const TUNNEL: &str = "tartan0";

    fn judge(rules: &[Rule], packet: Packet) -> Verdict {
        let Packet { from, to, .. } = packet;
        let tunnel = InterfaceName::new(TUNNEL).unwrap();
        let holds = |term: &Term| match term {
            Term::Marked => packet.mark & 0x4000 != 0,
            Term::FromInterface(name) => packet.by_tunnel && *name == tunnel,
            Term::Redirected => packet.redirected,
            Term::From(net) => net.contains(&from),
            Term::NotFrom(net) => net.addr().is_ipv4() == from.is_ipv4() && !net.contains(&from),
            Term::To(net) => net.contains(&to),
            Term::NotTo(net) => net.addr().is_ipv4() == to.is_ipv4() && !net.contains(&to),
            other => panic!("{other:?} has no place in postrouting"),
        };
        let decides = rules.iter().find(|rule| rule.terms.iter().all(holds));
        decides.map_or(Verdict::Return, |rule| rule.verdict)
    }

    /// Addresses of the interesting kinds.
    fn address(v6: bool) -> impl Strategy<Value = IpAddr> {
        let texts = if v6 {
            [
                "fd00:244:0:1::5",
                "fd00:244:0:9::5",
                "fd00:244:0:2::5",
                "2001:db8::5",
                "ff02::5",
            ]
        } else {
            [
                "10.244.1.5",
                "10.244.9.5",
                "10.244.2.5",
                "192.0.2.5",
                "224.0.0.5",
            ]
        };
        prop::sample::select(texts.to_vec()).prop_map(|text| text.parse().unwrap())
    }

    fn packet() -> impl Strategy<Value = Packet> {
        let addresses = any::<bool>().prop_flat_map(|v6| (address(v6), address(v6)));
        let mark = prop::sample::select(vec![0_u32, 0x4000, 0x8000, 0xc000]);
        (addresses, mark, any::<bool>(), any::<bool>()).prop_map(
            |((from, to), mark, by_tunnel, redirected)| Packet {
                mark,
                from,
                to,
                by_tunnel,
                redirected,
            },
        )
    }

    proptest! {
        #[test]
        fn every_packet_fares_as_with_flannel_but_what_speaks_as_another_node(packet in packet()) {
            let networks = nets(&["10.244.0.0/16", "fd00:244::/48"]);
            let own = nets(&["10.244.1.0/24", "10.244.9.0/24", "fd00:244:0:1::/64", "fd00:244:0:9::/64"]);
            let rules = postrouting(&networks, &own, InterfaceName::new(TUNNEL));
            let network = &networks[usize::from(packet.from.is_ipv6())];
            let refused = packet.speaks_as_another_node(network, &own) || packet.passes_through(network, &own);
            let expected = if refused { Verdict::Return } else { flannel(packet, network, &own) };
            prop_assert_eq!(judge(&rules, packet), expected);
        }
    }

    #[test]
    fn a_chain_of_one_family_sees_that_familys_networks() {
        let wanted = FirewallRules {
            prerouting: Vec::new(),
            postrouting: Vec::new(),
            encapsulation: EncapsulationRules::default(),
            networks: nets(&["10.244.0.0/16", "fd00:244::/48"]),
        };
        assert_eq!(wanted.networks(true, false), nets(&["10.244.0.0/16"]));
        assert_eq!(wanted.networks(false, true), nets(&["fd00:244::/48"]));
        assert_eq!(wanted.networks(true, true).len(), 2);
    }
}
