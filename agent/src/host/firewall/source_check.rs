//! The check of a pod's source address at the pod's own interface, as
//! rules of a chain that packets meet first, before connection tracking and
//! before anything is translated.
//!
//! ```text
//! prerouting   not from a pod's interface                                             return
//!              source fe80::/10, multicast listener report or done (MLD)              return
//!              source fe80::/10, router solicitation, neighbour discovery             return
//!              source ::, multicast listener report                                   return
//!              source ::, router solicitation, neighbour solicitation                 return
//!              source 0.0.0.0                                                         drop
//!              source not routed back there                                           drop
//! ```
//!
//! The route decides, as the plugin made it: an interface of a pod is the way
//! to that pod's addresses and to nothing else. So the rules are the same on
//! every node, for any pods. `rp_filter` checks the same, but for IPv4 alone, it
//! does not count by interface, and `all` may loosen it.
//!
//! Neighbour discovery speaks from link-local addresses, and from `::` before
//! there is one; the pod's interface has no route to either, so all else from
//! them is dropped: it would reach every socket of the node that listens at
//! `::`. No router advertisement (134) and no redirect (137) passes. The kernel takes
//! 0.0.0.0 for routed back where it goes to a broadcast or a group (nft_fib_ipv4.c).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni_shim::attachment::HOST_IFNAME_PREFIX;
use ipnet::{IpNet, Ipv6Net};

use super::nft::{PacketTerm, Rule, Term, Verdict};

/// The rules, in the order in which packets meet them.
pub(super) fn prerouting() -> Vec<Rule> {
    let none4 = IpNet::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let none6 = IpNet::from(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    let rule = |terms: &[Term], verdict| Rule {
        terms: terms.to_vec(),
        verdict,
    };
    let passes = |source, first, last| {
        let types = Term::Packet(PacketTerm::Icmp6(first, last));
        rule(&[Term::From(source), types], Verdict::Return)
    };
    let link_local = IpNet::V6(LINK_LOCAL);
    let elsewhere = Term::Packet(PacketTerm::NotFromInterfaces(HOST_IFNAME_PREFIX));
    vec![
        rule(&[elsewhere], Verdict::Return),
        passes(link_local, MLD_REPORT, ROUTER_SOLICITATION),
        passes(link_local, NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT),
        passes(link_local, MLD_REPORT_V2, MLD_REPORT_V2),
        passes(none6, MLD_REPORT, ROUTER_SOLICITATION),
        passes(none6, NEIGHBOUR_SOLICITATION, NEIGHBOUR_SOLICITATION),
        passes(none6, MLD_REPORT_V2, MLD_REPORT_V2),
        rule(&[Term::From(none4)], Verdict::Drop),
        rule(&[Term::NotRoutedBack], Verdict::Drop),
    ]
}

// Types of ICMPv6: RFC 2710 (131 and 132), RFC 4861 (133 to 137), RFC 3810 (143).
const MLD_REPORT: u8 = 131;
const ROUTER_SOLICITATION: u8 = 133;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const MLD_REPORT_V2: u8 = 143;
const LINK_LOCAL: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10);
