//! Theory of operation
//!
//! nf_tables over nfnetlink: the few messages that Tartan needs, written here
//! because the crates that write them are under a GPL or may panic on rules of
//! other programs. Read are tables, chains, and the rules of one chain; written
//! are batches, each of which the kernel takes as a whole or not at all.
//!
//! A rule that Tartan wants is compared with what the kernel lists, attribute by
//! attribute ([`Rule::matches`]). Rules of other programs are read for their
//! addresses and their verdict alone ([`parse`]), kube-proxy's also for ports and
//! endpoints ([`service_rule`]) and its maps ([`map`]); whatever else they hold is
//! stepped over.
//!
//! Limits: 2^20 objects a list, 2 s for an answer.

mod comment;
mod error;
mod expression;
mod iptables_words;
pub(in crate::host) mod map;
mod message;
mod packet_term;
mod parse;
mod parsed_rule;
mod service_rule;
pub(in crate::host) mod set;
mod socket;

use std::fmt;

use crate::nfnetlink::attribute::{Attribute, find, long, number, text};
use comment::{comment, userdata};
use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE};

pub use error::NftError;
pub(in crate::host) use expression::{InterfaceName, Rule, Term, Verdict};
pub(in crate::host) use map::{MapData, MapElement};
pub(in crate::host) use message::BatchStep;
pub(in crate::host) use packet_term::PacketTerm;
pub(in crate::host) use parsed_rule::{Action, ParsedRule};
pub(in crate::host) use service_rule::{ServiceAction, ServiceRule, address, first_port};
pub(in crate::host) use socket::Socket;

/// A table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) struct NftTable {
    pub(in crate::host) family: u8,
    pub(in crate::host) name: String,
    /// Its chains see no packets.
    pub(in crate::host) dormant: bool,
    /// A running program has it for itself.
    pub(in crate::host) owned: bool,
}

/// A chain that packets enter by a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) struct BaseChain {
    pub(in crate::host) family: u8,
    pub(in crate::host) table: String,
    pub(in crate::host) name: String,
    /// `filter`, `nat` or `route`.
    pub(in crate::host) kind: String,
    /// Where packets enter it (`NF_INET_FORWARD` and so on).
    pub(in crate::host) hook: u32,
    pub(in crate::host) priority: i32,
    /// What becomes of packets that no rule decides on is a drop.
    pub(in crate::host) drops: bool,
}

/// Where any chain is, with or without a hook.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::host) struct ChainPlace {
    pub(in crate::host) family: u8,
    pub(in crate::host) table: String,
    pub(in crate::host) name: String,
}

/// A rule as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) struct FoundRule {
    handle: u64,
    /// The comment that nft shows.
    pub(in crate::host) comment: Option<String>,
    expressions: Vec<u8>,
}

impl FoundRule {
    /// Whether it equals `rule`, in a chain of that family.
    pub(in crate::host) fn matches(&self, rule: &Rule, family: u8) -> bool {
        rule.matches(&self.expressions, family == INET)
    }

    /// Its number in its table.
    pub(in crate::host) fn handle(&self) -> u64 {
        self.handle
    }

    /// How many packets have met it, if it counts them.
    pub(in crate::host) fn packets(&self) -> Option<u64> {
        Rule::packets(&self.expressions)
    }

    /// The comment that iptables gave it (`-m comment`), or the one that nft shows.
    pub(in crate::host) fn words(&self) -> Option<String> {
        parse::iptables_comment(&self.expressions).or_else(|| self.comment.clone())
    }

    /// Its words as iptables-save prints them, where they are of interfaces, the state of the connection and a plain
    /// target alone.
    pub(in crate::host) fn iptables_words(&self) -> Option<String> {
        iptables_words::of(&self.expressions)
    }

    /// One whose expressions were recorded.
    #[cfg(test)]
    pub(in crate::host) fn of_expressions(expressions: Vec<u8>) -> FoundRule {
        FoundRule {
            handle: 0,
            comment: None,
            expressions,
        }
    }

    /// The same of a rule of kube-proxy's: its port and the endpoint that it translates to, too.
    pub(in crate::host) fn service_rule(&self, family: u8) -> ServiceRule {
        service_rule::parse_service_rule(&self.expressions, family)
    }

    /// Its conditions and its action, as far as they are understood.
    pub(in crate::host) fn parsed(&self, family: u8) -> ParsedRule {
        parse::parse_rule(&self.expressions, family)
    }
}

impl BaseChain {
    pub(in crate::host) fn is_in(&self, table: &NftTable) -> bool {
        (self.family, &self.table) == (table.family, &table.name)
    }

    /// A chain of the same table, as nft names it.
    pub(in crate::host) fn sibling(&self, name: &str) -> String {
        let family = match self.family {
            INET => "inet",
            IPV4 => "ip",
            IPV6 => "ip6",
            _ => "other",
        };
        format!("{family} {} {name}", self.table)
    }
}

impl fmt::Display for BaseChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sibling(&self.name))
    }
}

impl Socket {
    /// A number that grows with every change of the namespace's rules.
    pub(in crate::host) async fn generation(&mut self) -> Result<u32, NftError> {
        let answer = self.one(GET_GENERATION).await?;
        answer
            .and_then(|generation| number(&generation.attributes, GENERATION_ID))
            .ok_or(NftError::Interrupted)
    }

    pub(in crate::host) async fn tables(&mut self) -> Result<Vec<NftTable>, NftError> {
        let listed = self.list(GET_TABLE, 0, &[]).await?;
        let parsed = listed.iter().filter_map(|table| {
            Some(NftTable {
                family: table.family,
                name: text(&table.attributes, TABLE_NAME)?,
                dormant: number(&table.attributes, TABLE_FLAGS).unwrap_or(0) & DORMANT != 0,
                owned: number(&table.attributes, TABLE_FLAGS).unwrap_or(0) & OWNER != 0,
            })
        });
        Ok(parsed.collect())
    }

    /// Every chain with a hook, of all tables.
    pub(in crate::host) async fn base_chains(&mut self) -> Result<Vec<BaseChain>, NftError> {
        let listed = self.list(GET_CHAIN, 0, &[]).await?;
        let parsed = listed.iter().filter_map(|chain| {
            let hook = find(&chain.attributes, CHAIN_HOOK)?;
            Some(BaseChain {
                family: chain.family,
                table: text(&chain.attributes, CHAIN_TABLE)?,
                name: text(&chain.attributes, CHAIN_NAME)?,
                kind: text(&chain.attributes, CHAIN_TYPE)?,
                hook: number(hook, HOOK_NUMBER)?,
                priority: number(hook, HOOK_PRIORITY)?.cast_signed(),
                drops: number(&chain.attributes, CHAIN_POLICY)? == DROP,
            })
        });
        Ok(parsed.collect())
    }

    /// Every chain, with or without a hook, of all tables.
    pub(in crate::host) async fn chains(&mut self) -> Result<Vec<ChainPlace>, NftError> {
        let listed = self.list(GET_CHAIN, 0, &[]).await?;
        let parsed = listed.iter().filter_map(|chain| {
            Some(ChainPlace {
                family: chain.family,
                table: text(&chain.attributes, CHAIN_TABLE)?,
                name: text(&chain.attributes, CHAIN_NAME)?,
            })
        });
        Ok(parsed.collect())
    }

    /// The rules of one chain, in order.
    pub(in crate::host) async fn rules(
        &mut self,
        chain: &BaseChain,
    ) -> Result<Vec<FoundRule>, NftError> {
        self.rules_of(chain, &chain.name).await
    }

    /// The rules of a chain in the table of another.
    pub(in crate::host) async fn rules_of(
        &mut self,
        sibling: &BaseChain,
        name: &str,
    ) -> Result<Vec<FoundRule>, NftError> {
        let place = ChainPlace {
            family: sibling.family,
            table: sibling.table.clone(),
            name: name.to_owned(),
        };
        self.rules_at(&place).await
    }

    /// The rules of a chain, with or without a hook.
    pub(in crate::host) async fn rules_at(
        &mut self,
        place: &ChainPlace,
    ) -> Result<Vec<FoundRule>, NftError> {
        let matching = [
            Attribute::text(RULE_TABLE, &place.table),
            Attribute::text(RULE_CHAIN, &place.name),
        ];
        let listed = self.list(GET_RULE, place.family, &matching).await?;
        let parsed = listed.iter().filter_map(|rule| {
            // A kernel that does not know the filter lists all.
            let here = text(&rule.attributes, RULE_TABLE)? == place.table
                && text(&rule.attributes, RULE_CHAIN)? == place.name
                && rule.family == place.family;
            here.then_some(FoundRule {
                handle: long(&rule.attributes, RULE_HANDLE)?,
                comment: find(&rule.attributes, RULE_USERDATA).and_then(comment),
                expressions: find(&rule.attributes, RULE_EXPRESSIONS)?.to_vec(),
            })
        });
        Ok(parsed.collect())
    }
}

/// Makes a table; one that is there stays.
pub(in crate::host) fn add_table(family: u8, name: &str) -> BatchStep {
    let name = vec![Attribute::text(TABLE_NAME, name)];
    BatchStep::new(NEW_TABLE, NLM_F_CREATE, family, name)
}

/// Deletes a table with all that it holds.
pub(in crate::host) fn delete_table(family: u8, name: &str) -> BatchStep {
    let name = vec![Attribute::text(TABLE_NAME, name)];
    BatchStep::new(DELETE_TABLE, 0, family, name)
}

pub(in crate::host) fn add_chain(chain: &BaseChain) -> BatchStep {
    let policy = if chain.drops { DROP } else { ACCEPT };
    let attributes = vec![
        Attribute::text(CHAIN_TABLE, &chain.table),
        Attribute::text(CHAIN_NAME, &chain.name),
        Attribute::nest(
            CHAIN_HOOK,
            vec![
                Attribute::number(HOOK_NUMBER, chain.hook),
                Attribute::number(HOOK_PRIORITY, chain.priority.cast_unsigned()),
            ],
        ),
        Attribute::number(CHAIN_POLICY, policy),
        Attribute::text(CHAIN_TYPE, &chain.kind),
    ];
    BatchStep::new(NEW_CHAIN, NLM_F_CREATE, chain.family, attributes)
}

/// Puts a rule behind those that are in the chain.
pub(in crate::host) fn append(chain: &BaseChain, rule: &Rule, comment: &str) -> BatchStep {
    add_rule(chain, rule, comment, NLM_F_CREATE | NLM_F_APPEND, None)
}

/// Puts a rule directly in front of one that is in the chain.
pub(in crate::host) fn insert(
    chain: &BaseChain,
    rule: &Rule,
    comment: &str,
    before: &FoundRule,
) -> BatchStep {
    add_rule(chain, rule, comment, NLM_F_CREATE, Some(before))
}

pub(in crate::host) fn delete_rule(chain: &BaseChain, rule: &FoundRule) -> BatchStep {
    let place = ChainPlace {
        family: chain.family,
        table: chain.table.clone(),
        name: chain.name.clone(),
    };
    delete_rule_at(&place, rule)
}

pub(in crate::host) fn delete_rule_at(place: &ChainPlace, rule: &FoundRule) -> BatchStep {
    let mut attributes = address_of_rules(place);
    attributes.push(Attribute::long(RULE_HANDLE, rule.handle));
    BatchStep::new(DELETE_RULE, 0, place.family, attributes)
}

/// Deletes every rule of a chain.
pub(in crate::host) fn flush_chain(place: &ChainPlace) -> BatchStep {
    BatchStep::new(DELETE_RULE, 0, place.family, address_of_rules(place))
}

/// Deletes a chain that no rule leads to and that has none.
pub(in crate::host) fn delete_chain(place: &ChainPlace) -> BatchStep {
    let attributes = vec![
        Attribute::text(CHAIN_TABLE, &place.table),
        Attribute::text(CHAIN_NAME, &place.name),
    ];
    BatchStep::new(DELETE_CHAIN, 0, place.family, attributes)
}

fn address_of_rules(place: &ChainPlace) -> Vec<Attribute> {
    vec![
        Attribute::text(RULE_TABLE, &place.table),
        Attribute::text(RULE_CHAIN, &place.name),
    ]
}

fn add_rule(
    chain: &BaseChain,
    rule: &Rule,
    comment: &str,
    flags: u16,
    at: Option<&FoundRule>,
) -> BatchStep {
    let mut attributes = vec![
        Attribute::text(RULE_TABLE, &chain.table),
        Attribute::text(RULE_CHAIN, &chain.name),
        Attribute::nest(RULE_EXPRESSIONS, rule.expressions(chain.family == INET)),
        Attribute::bytes(RULE_USERDATA, &userdata(comment)),
    ];
    attributes.extend(at.map(|rule| Attribute::long(RULE_POSITION, rule.handle)));
    BatchStep::new(NEW_RULE, flags, chain.family, attributes)
}

pub(in crate::host) const INET: u8 = libc::NFPROTO_INET as u8;
pub(in crate::host) const IPV4: u8 = libc::NFPROTO_IPV4 as u8;
pub(in crate::host) const IPV6: u8 = libc::NFPROTO_IPV6 as u8;
pub(in crate::host) const PREROUTING: u32 = libc::NF_INET_PRE_ROUTING as u32;
pub(in crate::host) const FORWARD: u32 = libc::NF_INET_FORWARD as u32;
pub(in crate::host) const POSTROUTING: u32 = libc::NF_INET_POST_ROUTING as u32;
/// The type of the message that the kernel multicasts once for every batch it took.
pub(in crate::host) const RULES_CHANGED: u16 = message::message_type(libc::NFT_MSG_NEWGEN as u8);

const NEW_TABLE: u8 = libc::NFT_MSG_NEWTABLE as u8;
const GET_TABLE: u8 = libc::NFT_MSG_GETTABLE as u8;
const DELETE_TABLE: u8 = libc::NFT_MSG_DELTABLE as u8;
const NEW_CHAIN: u8 = libc::NFT_MSG_NEWCHAIN as u8;
const DELETE_CHAIN: u8 = libc::NFT_MSG_DELCHAIN as u8;
const GET_CHAIN: u8 = libc::NFT_MSG_GETCHAIN as u8;
const NEW_RULE: u8 = libc::NFT_MSG_NEWRULE as u8;
const GET_RULE: u8 = libc::NFT_MSG_GETRULE as u8;
const DELETE_RULE: u8 = libc::NFT_MSG_DELRULE as u8;
const GET_GENERATION: u8 = libc::NFT_MSG_GETGEN as u8;
const DROP: u32 = libc::NF_DROP as u32;
const ACCEPT: u32 = libc::NF_ACCEPT as u32;

// Attributes (NFTA_*) and flags of include/uapi/linux/netfilter/nf_tables.h, which the libc crate lacks.
const GENERATION_ID: u16 = 1;
const TABLE_NAME: u16 = 1;
const TABLE_FLAGS: u16 = 2;
/// `NFT_TABLE_F_DORMANT`
const DORMANT: u32 = 1;
/// `NFT_TABLE_F_OWNER`
const OWNER: u32 = 2;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
const RULE_EXPRESSIONS: u16 = 4;
const RULE_POSITION: u16 = 6;
const RULE_USERDATA: u16 = 7;
