//! Theory of operation
//!
//! Which rules of the packet filter decide on one packet, for `tartan trace`.
//! [`chain_walk`](super::chain_walk) asks what becomes of all pod packets; this
//! asks about one, of which both addresses are known. A rule holds for it, does
//! not hold, or *cannot be judged*: it asks for more than addresses (a port, an
//! interface, a mark, a set, a connection's state). What cannot be judged is
//! never taken to hold, nor not to: a drop that such a rule may keep the packet
//! from is reported as one that may happen, and so is a drop behind it. The same
//! holds of what may do anything (a verdict map, a queue, a target that is not
//! understood) and of chains that are not read.
//!
//! Read are the chains of the hooks that the packet passes and the chains that
//! they lead to; nothing is changed. Chains that translate are read for whether
//! they may translate it: what comes behind is then judged for a packet that may
//! have other addresses. Rules of iptables-legacy are not read.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::legacy::LegacyTables;
use super::nft::{
    Action, BaseChain, FORWARD, INET, IPV4, IPV6, NftError, POSTROUTING, PREROUTING, ParsedRule,
    Socket, Term,
};
use super::own_table::is_in_own_table;
use super::pod_routes;
use super::read_error;
use crate::host::error::HostError;

/// A rule or a policy of the packet filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedRule {
    /// Its chain, as nft names it: `inet filter forward`.
    pub chain: String,
    /// Its handle (`nft -a list chain`); none of a chain's policy.
    pub handle: Option<u64>,
    /// `drop`, `reject`; [`UNKNOWN`](Self::UNKNOWN) or [`UNREAD`](Self::UNREAD).
    pub verdict: &'static str,
}

impl NamedRule {
    /// The verdict of a rule that may do anything.
    pub const UNKNOWN: &str = "unknown";
    /// In place of a verdict: the chain was not read.
    pub const UNREAD: &str = "unread";
}

/// What the packet filter does with one packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilterVerdict {
    /// What drops it.
    pub drops: Option<NamedRule>,
    /// What drops it if rules that cannot be judged hold, or do not; the first few.
    pub may_drop: Vec<NamedRule>,
    /// Base chains that it passes.
    pub chains: usize,
    /// A chain of kube-proxy's that translates its destination.
    pub service: Option<String>,
    /// Another program's rule that may translate its addresses.
    pub translates: Option<NamedRule>,
    /// Tables of iptables-legacy, which are not read, in a sentence.
    pub legacy: Option<String>,
}

/// The addresses of a packet.
#[derive(Clone, Copy, Debug)]
pub(in crate::host) struct Addresses {
    pub(in crate::host) source: IpAddr,
    pub(in crate::host) destination: IpAddr,
}

/// The chains of one table.
struct Walk<'a> {
    chains: &'a BTreeMap<String, Vec<(u64, ParsedRule)>>,
    base: &'a BaseChain,
    packet: Addresses,
    /// Beginnings of names of chains that are not entered.
    skipped: &'static [&'static str],
    /// A rule that cannot be judged came before and may have ended the walk.
    is_unsure: bool,
    left: usize,
    drops: Option<NamedRule>,
    may_drop: Vec<NamedRule>,
    /// The first rule that may do anything, or the first chain that was not read.
    unknown: Option<NamedRule>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Through,
    Accepted,
    Dropped,
}

/// What the calling thread's network namespace does with a packet that is forwarded, or until it is routed to the node
/// itself. `is_past_kube_proxy`: kube-proxy's maps were read ([`super::service`]) and have nothing for its destination, so
/// that its table is not asked. Its chains decide by those maps alone, and accept nothing.
///
/// # Errors
/// [`HostError::Rules`]: nf_tables cannot be read.
pub(in crate::host) async fn judge(
    packet: Addresses,
    is_forwarded: bool,
    is_past_kube_proxy: bool,
) -> Result<FilterVerdict, HostError> {
    let mut verdict = match read(packet, is_forwarded, is_past_kube_proxy).await {
        // No nf_tables, no rules.
        Err(NftError::Unsupported) => FilterVerdict::default(),
        read => read.map_err(read_error)?,
    };
    let legacy = LegacyTables::read();
    verdict.legacy = (!legacy.is_empty()).then(|| legacy.to_string());
    Ok(verdict)
}

async fn read(
    packet: Addresses,
    is_forwarded: bool,
    is_past_kube_proxy: bool,
) -> Result<FilterVerdict, NftError> {
    let mut socket = Socket::open()?;
    let tables = socket.tables().await?;
    let mut bases = socket.base_chains().await?;
    let family = if packet.source.is_ipv4() { IPV4 } else { IPV6 };
    bases.retain(|chain| {
        let is_asleep = tables
            .iter()
            .any(|table| table.dormant && chain.is_in(table));
        let is_past = is_past_kube_proxy && chain.table == "kube-proxy";
        [family, INET].contains(&chain.family) && !is_asleep && !is_ours(chain) && !is_past
    });
    // In the order in which the packet meets them.
    bases.sort_by_key(|chain| (place(chain.hook), chain.priority));
    let mut verdict = FilterVerdict::default();
    let is_passed = |base: &&BaseChain| match base.hook {
        _ if base.kind == "route" => false,
        PREROUTING => true,
        hook => is_forwarded && place(hook).is_some(),
    };
    for base in bases.iter().filter(is_passed) {
        let chains = match read_chains(&mut socket, base, packet).await {
            // Gone since chains were listed, perhaps for another in its place.
            Err(error) if is_gone(&error) => BTreeMap::new(),
            chains => chains?,
        };
        verdict.meet(base, &chains, packet);
        if verdict.drops.is_some() {
            break;
        }
    }
    Ok(verdict)
}

/// Whether it is a chain of Tartan's. What ours drop of pods is what has no route back to its source where it comes in:
/// that is asked for itself ([`super::source_check`]).
fn is_ours(chain: &BaseChain) -> bool {
    is_in_own_table(chain) || chain.family == INET && chain.table == pod_routes::TABLE
}

/// Gone since chains were listed.
pub(super) fn is_gone(error: &NftError) -> bool {
    matches!(error, NftError::Refused { source } if *source == rustix::io::Errno::NOENT)
}

/// A base chain and what it may lead the packet to. A chain that is gone, and what is beyond [`MOST_CHAINS`], is missing.
async fn read_chains(
    socket: &mut Socket,
    base: &BaseChain,
    packet: Addresses,
) -> Result<BTreeMap<String, Vec<(u64, ParsedRule)>>, NftError> {
    let mut chains = BTreeMap::new();
    let mut unread = vec![base.name.clone()];
    while let Some(name) = unread.pop() {
        if chains.len() == MOST_CHAINS || chains.contains_key(&name) {
            continue;
        }
        let rules = match socket.rules_of(base, &name).await {
            // The walk finds that it is missing.
            Err(error) if is_gone(&error) => continue,
            rules => rules?,
        };
        let rules: Vec<(u64, ParsedRule)> = rules
            .iter()
            .map(|rule| (rule.handle(), rule.parsed(base.family)))
            .collect();
        let led = rules
            .iter()
            .filter(|(_, rule)| packet.meets(rule) != Some(false));
        unread.extend(led.filter_map(|(_, rule)| rule.leads_to().map(str::to_owned)));
        chains.insert(name, rules);
    }
    Ok(chains)
}

/// kube-proxy's chain for the Service whose address the packet goes to.
fn service(
    chains: &BTreeMap<String, Vec<(u64, ParsedRule)>>,
    base: &BaseChain,
    packet: Addresses,
) -> Option<String> {
    let host = ipnet::IpNet::from(packet.destination);
    let all = chains.values().flatten();
    let mut of_it = all.filter(|(_, rule)| rule.terms.contains(&Term::To(host)));
    of_it.find_map(|(_, rule)| {
        let chain = rule.leads_to()?;
        let is_service = ["KUBE-SVC-", "KUBE-EXT-", "KUBE-FW-", "KUBE-XLB-"];
        let is_service = is_service.iter().any(|prefix| chain.starts_with(prefix));
        is_service.then(|| base.sibling(chain))
    })
}

impl FilterVerdict {
    /// The packet meets a base chain.
    fn meet(
        &mut self,
        base: &BaseChain,
        chains: &BTreeMap<String, Vec<(u64, ParsedRule)>>,
        packet: Addresses,
    ) {
        let is_nat = base.kind == "nat";
        if is_nat && base.table == "kube-proxy" {
            return;
        }
        if is_nat && base.hook == PREROUTING && self.service.is_none() {
            self.service = service(chains, base, packet);
        }
        let mut walk = Walk {
            chains,
            base,
            packet,
            skipped: if is_nat { &TRANSLATE_OTHERS } else { &[] },
            // It may have other addresses by now.
            is_unsure: self.translates.is_some(),
            left: MOST_RULES,
            drops: None,
            may_drop: Vec::new(),
            unknown: None,
        };
        walk.base();
        let mut may_drop = walk.may_drop;
        if is_nat {
            self.translates = self.translates.take().or(walk.unknown);
            // Only the first packet of a connection meets such chains.
            may_drop
                .retain(|rule| ![NamedRule::UNKNOWN, NamedRule::UNREAD].contains(&rule.verdict));
            may_drop.extend(walk.drops);
        } else {
            self.chains += 1;
            self.drops = walk.drops;
        }
        let room = MOST_NAMED.saturating_sub(self.may_drop.len());
        self.may_drop.extend(may_drop.into_iter().take(room));
    }
}

impl Addresses {
    /// Whether a rule holds for the packet; `None` where that cannot be judged.
    fn meets(&self, rule: &ParsedRule) -> Option<bool> {
        let mut is_known = !rule.has_unknown;
        for term in &rule.terms {
            match self.meets_term(term) {
                Some(false) => return Some(false),
                Some(true) => {}
                None => is_known = false,
            }
        }
        is_known.then_some(true)
    }

    pub(super) fn meets_term(&self, term: &Term) -> Option<bool> {
        match term {
            Term::From(prefix) => Some(prefix.contains(&self.source)),
            Term::NotFrom(prefix) => Some(!prefix.contains(&self.source)),
            Term::To(prefix) => Some(prefix.contains(&self.destination)),
            Term::NotTo(prefix) => Some(!prefix.contains(&self.destination)),
            _ => None,
        }
    }
}

impl Walk<'_> {
    fn base(&mut self) {
        let (end, may_return) = self.chain(&self.base.name.clone(), false, DEPTH);
        if (end == End::Through || may_return) && self.base.drops {
            let policy = NamedRule {
                chain: self.base.to_string(),
                handle: None,
                verdict: "policy drop",
            };
            self.note(policy, !may_return);
        }
    }

    /// Where the packet ends that enters a chain, and whether a rule that cannot be judged may have it leave the chain
    /// before. `perhaps`: it may not enter it.
    fn chain(&mut self, name: &str, perhaps: bool, depth: usize) -> (End, bool) {
        let chains = self.chains;
        let mut may_return = false;
        let Some(rules) = chains.get(name) else {
            return self.unread(name);
        };
        for (handle, rule) in rules {
            let Some(left) = self.left.checked_sub(1) else {
                return self.unread(name);
            };
            self.left = left;
            let is_met = match self.packet.meets(rule) {
                Some(false) => continue,
                met => met.is_some(),
            };
            let (to, stays) = match &rule.action {
                Action::Nothing => continue,
                Action::Unknown => {
                    self.may_do_anything(name, Some(*handle), NamedRule::UNKNOWN);
                    may_return = true;
                    continue;
                }
                Action::Return | Action::Accept if !is_met => {
                    self.is_unsure = true;
                    may_return |= rule.action == Action::Return;
                    continue;
                }
                Action::Return => return (End::Through, may_return),
                Action::Accept => return (End::Accepted, may_return),
                Action::Drop(verdict) => {
                    let rule = NamedRule {
                        chain: self.base.sibling(name),
                        handle: Some(*handle),
                        verdict,
                    };
                    self.note(rule, is_met && !perhaps);
                    if is_met {
                        return (End::Dropped, may_return);
                    }
                    continue;
                }
                Action::Jump(to) => (to, false),
                Action::Goto(to) => (to, true),
            };
            if self.skipped.iter().any(|start| to.starts_with(start)) {
                continue;
            }
            let Some(depth) = depth.checked_sub(1) else {
                return self.unread(to);
            };
            let (end, may_come_back) = self.chain(to, perhaps || !is_met, depth);
            // Out of a chain that was gone to, it comes back behind this one.
            if stays && is_met {
                return (end, may_return || may_come_back);
            }
            let goes_on = !is_met || may_come_back || end == End::Through;
            if !goes_on {
                return (end, may_return);
            }
            let may_leave = stays && (end == End::Through || may_come_back);
            may_return |= may_leave;
            self.is_unsure |= may_leave || end == End::Accepted;
        }
        (End::Through, may_return)
    }

    /// What comes of a chain that was not read, or not to its end.
    fn unread(&mut self, name: &str) -> (End, bool) {
        self.may_do_anything(name, None, NamedRule::UNREAD);
        (End::Through, true)
    }

    /// Nothing behind this is sure.
    fn may_do_anything(&mut self, chain: &str, handle: Option<u64>, verdict: &'static str) {
        let rule = NamedRule {
            chain: self.base.sibling(chain),
            handle,
            verdict,
        };
        self.is_unsure = true;
        self.unknown.get_or_insert_with(|| rule.clone());
        self.note(rule, false);
    }

    fn note(&mut self, rule: NamedRule, is_sure: bool) {
        if is_sure && !self.is_unsure {
            self.drops = Some(rule);
        } else if self.may_drop.len() < MOST_NAMED {
            self.may_drop.push(rule);
        }
    }
}

/// Beginnings of chains that translate nothing but packets to a Service or to a port of a node: kube-proxy's, of which
/// [`service`] finds what is meant for the packet's own destination, and the portmap plugin's. A goto to one goes on behind.
const TRANSLATE_OTHERS: [&str; 2] = ["KUBE-", "CNI-HOSTPORT-"];

/// The order of the hooks that a forwarded packet passes.
fn place(hook: u32) -> Option<u32> {
    [PREROUTING, FORWARD, POSTROUTING]
        .iter()
        .position(|other| *other == hook)
        .and_then(|place| u32::try_from(place).ok())
}

/// `NFT_JUMP_STACK_SIZE`
const DEPTH: usize = 16;
/// More rules than any node has.
const MOST_RULES: usize = 100_000;
/// More chains than a firewall sends one packet through.
const MOST_CHAINS: usize = 512;
/// Rules that are named.
const MOST_NAMED: usize = 4;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SOURCE: &str = "10.244.1.2";
    const DESTINATION: &str = "10.244.2.3";

    /// "from 10.0.0.0/8 accept", "jump other", "? drop": a rule in few words.
    fn rule(text: &str) -> ParsedRule {
        let mut parsed = ParsedRule::empty();
        let mut words = text.split(' ');
        while let Some(word) = words.next() {
            let mut next = || words.next().unwrap();
            match word {
                "?" => parsed.has_unknown = true,
                "from" => parsed.terms.push(Term::From(next().parse().unwrap())),
                "to" => parsed.terms.push(Term::To(next().parse().unwrap())),
                "not-to" => parsed.terms.push(Term::NotTo(next().parse().unwrap())),
                "accept" => parsed.action = Action::Accept,
                "return" => parsed.action = Action::Return,
                "drop" => parsed.action = Action::Drop("drop"),
                "jump" => parsed.action = Action::Jump(next().to_owned()),
                "goto" => parsed.action = Action::Goto(next().to_owned()),
                "unknown" => parsed.action = Action::Unknown,
                other => panic!("{other}"),
            }
        }
        parsed
    }

    /// The handles of the rule that drops the packet and of those that may; 0 is the policy.
    fn fate(policy: bool, texts: &[(&str, &[&str])]) -> (Option<u64>, Vec<u64>) {
        let verdict = judged("filter", policy, texts);
        let number = |rule: &NamedRule| rule.handle.unwrap_or(0);
        (
            verdict.drops.as_ref().map(number),
            verdict.may_drop.iter().map(number).collect(),
        )
    }

    fn judged(kind: &str, policy: bool, texts: &[(&str, &[&str])]) -> FilterVerdict {
        let mut verdict = FilterVerdict::default();
        met(&mut verdict, kind, policy, texts);
        verdict
    }

    fn met(verdict: &mut FilterVerdict, kind: &str, policy: bool, texts: &[(&str, &[&str])]) {
        let mut handle = 0;
        let mut chains = BTreeMap::new();
        for (name, rules) in texts {
            let rules = rules.iter().map(|text| {
                handle += 1;
                (handle, rule(text))
            });
            chains.insert((*name).to_owned(), rules.collect());
        }
        let base = BaseChain {
            family: INET,
            table: "filter".to_owned(),
            name: "base".to_owned(),
            kind: kind.to_owned(),
            hook: FORWARD,
            priority: 0,
            drops: policy,
        };
        let packet = Addresses {
            source: SOURCE.parse().unwrap(),
            destination: DESTINATION.parse().unwrap(),
        };
        verdict.meet(&base, &chains, packet);
    }

    #[test]
    fn only_what_is_judged_is_claimed() {
        let base = |rules: &[&str]| fate(false, &[("base", rules)]);
        assert_eq!(base(&["drop"]), (Some(1), vec![]));
        assert_eq!(base(&["from 10.244.1.0/24 drop"]), (Some(1), vec![]));
        assert_eq!(base(&["from 10.244.9.0/24 drop"]), (None, vec![]));
        assert_eq!(base(&["not-to 10.244.2.3/32 drop"]), (None, vec![]));
        assert_eq!(base(&["? drop"]), (None, vec![1]));
        assert_eq!(base(&["? from 10.244.9.0/24 drop"]), (None, vec![]));
        assert_eq!(base(&["accept", "drop"]), (None, vec![]));
        // A firewall's "established: accept; drop the rest".
        assert_eq!(base(&["? accept", "drop"]), (None, vec![2]));
        assert_eq!(base(&["? drop", "to 10.0.0.0/8 drop"]), (Some(2), vec![1]));
    }

    /// Regression: a verdict map ("established: accept") was walked past as if it did nothing, so that the policy behind it
    /// was sure; and a chain that was not read was taken as empty.
    #[test]
    fn what_may_do_anything_is_not_walked_past() {
        assert_eq!(fate(true, &[("base", &["unknown"])]), (None, vec![1, 0]));
        assert_eq!(fate(false, &[("base", &["unknown"])]), (None, vec![1]));
        let elsewhere = fate(false, &[("base", &["from 10.244.9.0/24 unknown"])]);
        assert_eq!(elsewhere, (None, vec![]));
        let unread = judged("filter", false, &[("base", &["jump a"])]);
        let [rule] = &unread.may_drop[..] else {
            panic!("{unread:?}");
        };
        assert_eq!(
            (&rule.chain[..], rule.handle, rule.verdict),
            ("inet filter a", None, NamedRule::UNREAD)
        );
        // Nor a base chain, nor one that is too deep.
        assert_eq!(judged("filter", true, &[]).may_drop.len(), 2);
        let circle = judged("filter", false, &[("base", &["jump base"])]);
        assert_eq!(circle.may_drop[0].verdict, NamedRule::UNREAD);
    }

    /// Regression: translation by others was not looked at, and what is behind it was judged as sure.
    #[test]
    fn what_others_may_translate_is_found() {
        let nat = |rules: &[&str]| judged("nat", false, &[("base", rules), ("a", &["unknown"])]);
        for rules in [&["unknown"][..], &["? unknown"], &["? jump a"], &["jump b"]] {
            let verdict = nat(rules);
            assert!(verdict.translates.is_some(), "{rules:?}");
            assert_eq!((verdict.drops, verdict.may_drop), (None, vec![]));
        }
        for rules in [
            &["from 10.244.1.0/24 return", "unknown"][..],
            &["from 10.244.9.0/24 unknown"],
            // kube-proxy's and the portmap plugin's.
            &["jump KUBE-POSTROUTING", "? jump CNI-HOSTPORT-DNAT"],
        ] {
            assert_eq!(nat(rules).translates, None, "{rules:?}");
        }
        let mut verdict = nat(&["? unknown"]);
        met(&mut verdict, "filter", true, &[("base", &[])]);
        assert_eq!((verdict.drops, verdict.may_drop.len()), (None, 1));
    }

    /// How many ways there are of what is not known of a rule, which is in the base chain or in the other one.
    fn ways(text: &str, is_base: bool) -> u32 {
        match text {
            "unknown" if is_base => 5,
            "unknown" => 4,
            _ if text.starts_with('?') => 2,
            _ => 1,
        }
    }

    /// Whether the packet is dropped if what is not known of each rule is as `ways` says: by walking as the kernel does.
    fn dropped(base: &[&str], a: &[&str], policy: bool, ways: &[u32]) -> bool {
        enum Left {
            Fell,
            Ended(bool),
        }
        fn walk(rules: &[&str], first: usize, a: (&[&str], usize), ways: &[u32]) -> Left {
            for (number, text) in rules.iter().enumerate() {
                let parsed = rule(text);
                let way = ways[first + number];
                if parsed.has_unknown && way == 0 {
                    continue;
                }
                let action = match (parsed.action, way) {
                    (Action::Unknown, 0) => Action::Nothing,
                    (Action::Unknown, 1) => Action::Accept,
                    (Action::Unknown, 2) => Action::Drop("drop"),
                    (Action::Unknown, 3) => Action::Return,
                    (Action::Unknown, _) => Action::Goto("a".to_owned()),
                    (action, _) => action,
                };
                match action {
                    Action::Accept => return Left::Ended(false),
                    Action::Drop(_) => return Left::Ended(true),
                    Action::Return => return Left::Fell,
                    Action::Jump(_) => match walk(a.0, a.1, a, ways) {
                        Left::Fell => {}
                        ended => return ended,
                    },
                    Action::Goto(_) => return walk(a.0, a.1, a, ways),
                    Action::Nothing | Action::Unknown => {}
                }
            }
            Left::Fell
        }
        match walk(base, 0, (a, base.len()), ways) {
            Left::Fell => policy,
            Left::Ended(is_dropped) => is_dropped,
        }
    }

    fn rules(more: &'static [&'static str]) -> impl Strategy<Value = Vec<&'static str>> {
        let actions = [
            "accept", "? accept", "drop", "? drop", "return", "? return", "unknown",
        ];
        let all: Vec<&str> = actions.iter().chain(more).copied().collect();
        proptest::collection::vec(prop::sample::select(all), 0..4)
    }

    proptest! {
        /// What is said to drop the packet does so whatever the rules that cannot be judged do; and where nothing is said to
        /// drop it, or perhaps, nothing does.
        #[test]
        fn what_is_claimed_holds_whatever_is_not_known(
            base in rules(&["jump a", "? jump a", "goto a", "? goto a"]),
            a in rules(&[]),
            policy: bool,
        ) {
            let (drops, may_drop) = fate(policy, &[("base", &base), ("a", &a)]);
            let of_base = base.iter().map(|text| ways(text, true));
            let counts: Vec<u32> = of_base.chain(a.iter().map(|text| ways(text, false))).collect();
            let fates: Vec<bool> = (0..counts.iter().product::<u32>())
                .map(|mut number: u32| {
                    let digit = |count: &u32| {
                        let digit = number % count;
                        number /= count;
                        digit
                    };
                    let ways: Vec<u32> = counts.iter().map(digit).collect();
                    dropped(&base, &a, policy, &ways)
                })
                .collect();
            if drops.is_some() {
                prop_assert!(fates.iter().all(|is_dropped| *is_dropped));
            } else if may_drop.is_empty() {
                prop_assert!(fates.iter().all(|is_dropped| !is_dropped));
            }
        }
    }

    #[test]
    fn chains_are_walked_as_the_kernel_walks_them() {
        let walked = fate(
            false,
            &[("base", &["jump a", "drop"]), ("a", &["return", "drop"])],
        );
        // Chains have handles in the order in which they are given here.
        assert_eq!(walked, (Some(2), vec![]));
        let walked = fate(false, &[("base", &["goto a", "drop"]), ("a", &["return"])]);
        assert_eq!(walked, (None, vec![]));
        let walked = fate(true, &[("base", &["goto a"]), ("a", &[])]);
        assert_eq!(walked, (Some(0), vec![]));
        let walked = fate(false, &[("base", &["? jump a"]), ("a", &["drop"])]);
        assert_eq!(walked, (None, vec![2]));
        let walked = fate(
            false,
            &[("base", &["? jump a", "drop"]), ("a", &["accept"])],
        );
        assert_eq!(walked, (None, vec![2]));
        // A circle ends.
        fate(false, &[("base", &["jump base", "jump base", "drop"])]);
    }
}
