//! Theory of operation
//!
//! Our accept rules in chains of other tables on the forward hook: a firewall's
//! policy of drop, or its last rule "reject the rest", whether it stands in the
//! chain itself or where the chain leads. They stand where flannel's would, as
//! late as they have an effect: in front of the rule that cuts the pods off, or
//! at the end where only the policy does. So the firewall's rules for some
//! packets only (a port, a pod, a NetworkPolicy) stay in force.
//!
//! They are left alone wherever they stand in front of that rule, are put back
//! when they do not, and go when nothing cuts the pods off any more, for
//! instance because another rule accepts the whole cluster network.
//!
//! A chain that cannot be changed is a problem only if it cuts pods off from
//! each other; then the error names the rule.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use ipnet::IpNet;
use rustix::io::Errno;

use super::chain_walk::{Chains, End, Packets};
use super::nft::{
    self, BaseChain, FoundRule, INET, IPV4, IPV6, NftError, ParsedRule, Rule, Socket,
};
use super::nft::{Term, Verdict};
use super::own_table::{COMMENT, is_in_own_table};
use crate::host::change::Change;
use crate::host::error::HostError;

/// Another table's chain on the forward hook.
#[derive(Debug)]
pub(super) struct ForeignChain {
    chain: BaseChain,
    /// Only the program that made its table may change it.
    owned: bool,
    rules: Vec<FoundRule>,
    /// It, and the chains that it leads to for all packets of a network.
    chains: Chains,
}

impl ForeignChain {
    /// Reads a chain, and what it leads to.
    pub(super) async fn read(
        socket: &mut Socket,
        chain: &BaseChain,
        owned: bool,
        networks: &[IpNet],
    ) -> Result<ForeignChain, NftError> {
        let rules = socket.rules(chain).await?;
        let mut chains = BTreeMap::from([(chain.name.clone(), parsed(&rules, chain.family))]);
        let mut unread = leads_to(chains.values().flatten(), networks);
        while let Some(name) = unread.pop() {
            if chains.len() == MOST_CHAINS {
                break;
            }
            let Entry::Vacant(place) = chains.entry(name) else {
                continue;
            };
            let rules = socket.rules_of(chain, place.key()).await?;
            let rules = parsed(&rules, chain.family);
            unread.extend(leads_to(rules.iter(), networks));
            place.insert(rules);
        }
        Ok(ForeignChain {
            chain: chain.clone(),
            owned,
            rules,
            chains: Chains(chains),
        })
    }

    /// Sees that no packets from or to the networks are cut off, and that no
    /// rule of ours stands where none is needed.
    pub(super) async fn let_through(
        &self,
        socket: &mut Socket,
        networks: &[IpNet],
    ) -> Result<Option<Change>, HostError> {
        let (wanted, place) = self.accept_rules(networks);
        if self.holds(&wanted, place) {
            return Ok(None);
        }
        let mut steps: Vec<_> = self
            .ours()
            .map(|(_, rule)| nft::delete_rule(&self.chain, rule))
            .collect();
        steps.extend(wanted.iter().map(|rule| match self.rules.get(place) {
            Some(before) => nft::insert(&self.chain, rule, COMMENT, before),
            None => nft::append(&self.chain, rule, COMMENT),
        }));
        match socket.commit(&steps).await {
            Ok(()) => {}
            // The chain or a rule has gone meanwhile: the generation is another
            // then, and the next call reads again.
            Err(NftError::Refused { source }) if source == Errno::NOENT => return Ok(None),
            Err(source) => return self.cut_off_error(source, networks).map(|()| None),
        }
        let chain = self.chain.to_string();
        Ok(Some(if wanted.is_empty() {
            Change::AcceptRulesRemoved(chain)
        } else {
            Change::AcceptRulesAdded(chain)
        }))
    }

    /// The rule or policy that cuts pods of the networks off from each other, because our accept rules do not stand before
    /// it; `None` where nothing does.
    pub(super) fn cuts_off(&self, networks: &[IpNet]) -> Option<String> {
        let (wanted, place) = self.accept_rules(networks);
        (!self.holds(&wanted, place))
            .then(|| self.cutting_rule(networks))
            .flatten()
    }

    /// Our rules, with their numbers.
    fn ours(&self) -> impl Iterator<Item = (usize, &FoundRule)> {
        let numbered = self.rules.iter().enumerate();
        numbered.filter(|(_, rule)| is_ours(rule))
    }

    /// Whether these rules of ours, and no others, stand before that place.
    fn holds(&self, wanted: &[Rule], place: usize) -> bool {
        let alike = |(rule, (number, found)): (&Rule, (usize, &FoundRule))| {
            number < place && found.matches(rule, self.chain.family)
        };
        self.ours().count() == wanted.len() && wanted.iter().zip(self.ours()).all(alike)
    }

    /// The accept rules needed, and the number of the rule that they must stand
    /// in front of: beyond the last one where only the policy cuts pods off.
    fn accept_rules(&self, networks: &[IpNet]) -> (Vec<Rule>, usize) {
        let mut place = usize::MAX;
        let mut wanted = Vec::new();
        for packets in networks.iter().copied().flat_map(Packets::sides) {
            match self.chains.end(&self.chain.name, &packets) {
                End::Dropped(dropped) => place = place.min(dropped.rule),
                End::Through if self.chain.drops => {}
                End::Through | End::Accepted => continue,
            }
            wanted.push(accept(&packets));
        }
        (wanted, place)
    }

    /// What a refusal to change the chain means.
    fn cut_off_error(&self, source: NftError, networks: &[IpNet]) -> Result<(), HostError> {
        let Some(rule) = self.cutting_rule(networks) else {
            return Ok(());
        };
        Err(HostError::CutOff {
            rule,
            why: if self.owned {
                "the table belongs to the program that made it".to_owned()
            } else {
                source.to_string()
            },
            networks: networks.to_vec(),
        })
    }

    /// What cuts pods off from each other where no rule of ours accepts their packets before.
    fn cutting_rule(&self, networks: &[IpNet]) -> Option<String> {
        networks.iter().find_map(|network| {
            match self
                .chains
                .end(&self.chain.name, &Packets::between(*network))
            {
                End::Dropped(dropped) => Some(format!(
                    "the rule `{}` in the nft chain {}",
                    dropped.verdict,
                    self.chain.sibling(&dropped.chain)
                )),
                End::Through if self.chain.drops => {
                    Some(format!("the policy drop of the nft chain {}", self.chain))
                }
                End::Through | End::Accepted => None,
            }
        })
    }

    /// Takes our rules out; `None` where there are none.
    pub(super) async fn clear(
        socket: &mut Socket,
        chain: &BaseChain,
    ) -> Option<Result<(), NftError>> {
        let found = match socket.rules(chain).await {
            Ok(found) => found,
            Err(error) => return Some(Err(error)),
        };
        let ours = found.iter().filter(|rule| is_ours(rule));
        let steps: Vec<_> = ours.map(|rule| nft::delete_rule(chain, rule)).collect();
        if steps.is_empty() {
            return None;
        }
        match socket.commit(&steps).await {
            // Gone meanwhile.
            Err(NftError::Refused { source }) if source == Errno::NOENT => None,
            done => Some(done),
        }
    }
}

/// Another table's chain that decides on forwarded IP packets.
pub(super) fn is_foreign(chain: &BaseChain) -> bool {
    chain.hook == nft::FORWARD
        && chain.kind == "filter"
        && [INET, IPV4, IPV6].contains(&chain.family)
        && !is_in_own_table(chain)
}

/// Rules as they would be without ours; each keeps its number.
fn parsed(rules: &[FoundRule], family: u8) -> Vec<ParsedRule> {
    let line = |rule: &FoundRule| {
        if is_ours(rule) {
            ParsedRule::empty()
        } else {
            rule.parsed(family)
        }
    };
    rules.iter().map(line).collect()
}

/// The chains to which all packets of a kind are sent.
fn leads_to<'a>(rules: impl Iterator<Item = &'a ParsedRule>, networks: &[IpNet]) -> Vec<String> {
    let kinds = |network: &IpNet| {
        let [from, to] = Packets::sides(*network);
        [from, to, Packets::between(*network)]
    };
    let kinds: Vec<Packets> = networks.iter().flat_map(kinds).collect();
    rules
        .filter(|rule| kinds.iter().any(|packets| rule.holds(packets)))
        .filter_map(|rule| rule.leads_to().map(str::to_owned))
        .collect()
}

fn accept(packets: &Packets) -> Rule {
    let network = packets.network;
    let side = if packets.from { Term::From } else { Term::To };
    Rule {
        terms: vec![side(network)],
        verdict: Verdict::Accept,
    }
}

fn is_ours(rule: &FoundRule) -> bool {
    rule.comment.as_deref() == Some(COMMENT)
}

/// More chains than a firewall sends every packet through.
const MOST_CHAINS: usize = 128;
