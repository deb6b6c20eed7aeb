//! The check of a pod's source address at the pod's own interface, as
//! rules of a chain that packets meet first, before connection tracking and
//! before anything is translated.
//!
//! ```text
//! prerouting   from a pod's interface, source fe80::/10               return
//!              from a pod's interface, source ::                      return
//!              from a pod's interface, source not routed back there   drop
//! ```
//!
//! The route decides, as the plugin made it: an interface of a pod is the way
//! to that pod's addresses and to nothing else. So the rules are the same on
//! every node, for any pods. `rp_filter` checks the same, but for IPv4 alone, it
//! does not count by interface, and `all` may loosen it.
//!
//! Neighbour discovery speaks from link-local addresses, and from `::` before
//! there is one; the pod's interface has no route to either. The kernel
//! forwards neither (net/ipv6/ip6_output.c, `ip6_forward`).

use std::net::{IpAddr, Ipv6Addr};

use cni_shim::attachment::HOST_IFNAME_PREFIX;
use ipnet::{IpNet, Ipv6Net};

use super::nft::{Rule, Term, Verdict};

/// The rules, in the order in which packets meet them.
pub(super) fn prerouting() -> Vec<Rule> {
    let from_pod = Term::FromInterfaces(HOST_IFNAME_PREFIX);
    let passes = |prefix| Rule {
        terms: vec![from_pod, Term::From(prefix)],
        verdict: Verdict::Return,
    };
    let unspecified = IpNet::from(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    vec![passes(IpNet::V6(LINK_LOCAL)), passes(unspecified), drop()]
}

/// The last of them, whose counter counts forged packets.
pub(super) fn drop() -> Rule {
    Rule {
        terms: vec![
            Term::FromInterfaces(HOST_IFNAME_PREFIX),
            Term::NotRoutedBack,
        ],
        verdict: Verdict::Drop,
    }
}

const LINK_LOCAL: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10);
