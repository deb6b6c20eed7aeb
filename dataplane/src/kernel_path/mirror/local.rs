//! The table `local`: what of the inner addresses lives on this node.
//!
//! The rules are those of [`Pods`](crate::pods::Pods). Each is a set of prefixes, so they have one answer for all addresses
//! of a prefix that lie in no longer one. A walk over the prefixes of all rules, each after those that contain it, gives
//! that answer for each.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

use super::prefixes::{Nest, Prefix, Wanted};
use crate::kernel_path::layout::{LOCAL_DESTINATION, LOCAL_OURS, LOCAL_SOURCE};
use crate::spec::LocalSpec;

/// What the rules say of a prefix.
#[derive(Clone, Copy, Default)]
struct Rules(u8);

const OWN: Rules = Rules(1);
const ATTACHED: Rules = Rules(2);
const SERVED: Rules = Rules(4);
const BROADCAST: Rules = Rules(8);
const TUNNEL: Rules = Rules(16);
const NODE: Rules = Rules(32);
const ALLOWED: Rules = Rules(64);

impl Rules {
    fn has(self, rule: Rules) -> bool {
        self.0 & rule.0 != 0
    }

    fn and(self, others: Rules) -> Rules {
        Rules(self.0 | others.0)
    }

    /// `Pods::is_local`.
    fn is_local(self) -> bool {
        let served = self.has(SERVED) && !self.has(BROADCAST);
        self.has(TUNNEL) || (self.has(OWN) && (self.has(ATTACHED) || served))
    }

    /// `Pods::may_speak`.
    fn may_speak(self) -> bool {
        self.is_local() || self.has(NODE) || self.has(ALLOWED)
    }

    /// `Pods::is_ours` or `Pods::in_own_subnet`.
    fn is_ours(self) -> bool {
        self.is_local() || self.has(NODE) || self.has(OWN)
    }

    fn value(self) -> u32 {
        let mut value = 0;
        if self.may_speak() {
            value |= LOCAL_SOURCE;
        }
        if self.is_local() {
            value |= LOCAL_DESTINATION;
        }
        if self.is_ours() {
            value |= LOCAL_OURS;
        }
        value
    }
}

/// The entries for `spec`, without those whose value the one around them has.
pub(super) fn local(spec: &LocalSpec) -> Wanted {
    let mut rules: Vec<(Prefix, Rules)> = vec![];
    rules.extend(prefixes(&spec.subnets, OWN));
    rules.extend(prefixes(&spec.kernel_prefixes, SERVED));
    rules.extend(prefixes(&spec.allowed_sources, ALLOWED));
    rules.extend(hosts(&spec.attachments, ATTACHED));
    rules.extend(hosts(&spec.tunnel, TUNNEL));
    rules.extend(hosts(&spec.addresses, NODE));
    let broadcasts = spec.kernel_prefixes.iter().filter_map(v4);
    let broadcasts = broadcasts.filter(|net| net.prefix_len() < 31);
    rules.extend(broadcasts.map(|net| (Prefix::new(net.broadcast().into()), BROADCAST)));
    rules.sort_unstable_by_key(|(prefix, _)| *prefix);
    rules.dedup_by(|(next, more), (prefix, rules)| {
        let same = next == prefix;
        if same {
            *rules = rules.and(*more);
        }
        same
    });
    let mut wanted = vec![];
    let mut nest = Nest::new();
    for (prefix, own) in rules {
        let (around, written): (Rules, u32) = nest.around(prefix);
        let all = around.and(own);
        nest.enter(prefix, (all, all.value()));
        if all.value() != written {
            wanted.push((prefix, all.value()));
        }
    }
    wanted
}

fn prefixes(nets: &[IpNet], rule: Rules) -> impl Iterator<Item = (Prefix, Rules)> {
    let v4 = nets.iter().filter_map(v4);
    v4.map(move |net| (Prefix::new(net), rule))
}

fn hosts(addresses: &[IpAddr], rule: Rules) -> impl Iterator<Item = (Prefix, Rules)> {
    let v4 = addresses
        .iter()
        .filter_map(|address| v4(&(*address).into()));
    v4.map(move |net| (Prefix::new(net), rule))
}

/// What two values both admit.
pub(super) fn meet(a: u32, b: u32) -> u32 {
    let admits = LOCAL_SOURCE | LOCAL_DESTINATION;
    (a & b & admits) | ((a | b) & LOCAL_OURS)
}

pub(super) fn v4(net: &IpNet) -> Option<Ipv4Net> {
    match net {
        IpNet::V4(v4) => Some(*v4),
        IpNet::V6(_) => None,
    }
}
