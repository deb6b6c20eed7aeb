//! Which packets take the node's address: flannel's rules in iptables mode
//! (`pkg/trafficmngr/iptables/iptables.go`, masqRules), as a pure function. Its
//! forwardRules stand only where they decide something ([`foreign_chain`](super::foreign_chain)).
//!
//! One difference is intended. flannel masquerades a packet between pods whose
//! source is in no subnet of this node: a pod that forges another node's
//! address, or that outlived a change of the node's subnets, would send as the
//! node. Here it keeps its source, and the dataplane refuses it.
//!
//! N is a cluster network, S one of this node's own subnets in it.
//!
//! ```text
//! postrouting   mark 0x4000/0x4000      return        kube-proxy masquerades it itself
//!               from N      to N        return        pod to pod: the dataplane checks the source
//!               from not N  to S        return        a Service's client keeps its address
//!               from N      to no group masquerade    pod to the outside
//!               from not N  to N        masquerade    host to another node's pod: answers come back here
//! ```

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::encapsulation::EncapsulationRules;
use super::nft::{Rule, Term, Verdict};
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
                postrouting(&networks, &desired.unreachable)
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

fn postrouting(networks: &[IpNet], own: &[IpNet]) -> Vec<Rule> {
    use Term::{From, Marked, NotFrom, NotTo, To};
    let rule = |terms: &[Term], verdict| Rule {
        terms: terms.to_vec(),
        verdict,
    };
    let mut rules = vec![rule(&[Marked], Verdict::Return)];
    for network in networks.iter().copied() {
        let own = own.iter().copied().filter(|own| network.contains(own));
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

    /// What becomes of a packet: a reading of flannel's list by hand, one line
    /// of it after the other, except for sources in no subnet of this node.
    fn flannel(mark: u32, from: IpAddr, to: IpAddr, n: &IpNet, own: &[IpNet]) -> Verdict {
        let inside_own = |a: &IpAddr| own.iter().any(|own| own.contains(a));
        let multicast = match to {
            IpAddr::V4(v4) => v4.is_multicast(),
            IpAddr::V6(v6) => v6.is_multicast(),
        };
        if mark & 0x4000 != 0 || inside_own(&from) && n.contains(&to) {
            return Verdict::Return;
        }
        if n.contains(&from) && inside_own(&to) || !n.contains(&from) && inside_own(&to) {
            return Verdict::Return;
        }
        if n.contains(&from) && n.contains(&to) {
            return Verdict::Return;
        }
        if n.contains(&from) && !multicast || !n.contains(&from) && n.contains(&to) {
            return Verdict::Masquerade;
        }
        Verdict::Return
    }

    fn judge(rules: &[Rule], mark: u32, from: IpAddr, to: IpAddr) -> Verdict {
        let holds = |term: &Term| match term {
            Term::Marked => mark & 0x4000 != 0,
            Term::FromInterfaces(_) | Term::NotRoutedBack | Term::Packet(_) => false,
            Term::From(net) => net.contains(&from),
            Term::NotFrom(net) => net.addr().is_ipv4() == from.is_ipv4() && !net.contains(&from),
            Term::To(net) => net.contains(&to),
            Term::NotTo(net) => net.addr().is_ipv4() == to.is_ipv4() && !net.contains(&to),
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

    proptest! {
        #[test]
        fn every_packet_of_ours_fares_as_with_flannel(
            (from, to) in any::<bool>().prop_flat_map(|v6| (address(v6), address(v6))),
            mark in prop::sample::select(vec![0_u32, 0x4000, 0x8000, 0xc000]),
        ) {
            let networks = nets(&["10.244.0.0/16", "fd00:244::/48"]);
            let own = nets(&["10.244.1.0/24", "10.244.9.0/24", "fd00:244:0:1::/64", "fd00:244:0:9::/64"]);
            let rules = postrouting(&networks, &own);
            let network = &networks[usize::from(from.is_ipv6())];
            prop_assert_eq!(
                judge(&rules, mark, from, to),
                flannel(mark, from, to, network, &own)
            );
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
