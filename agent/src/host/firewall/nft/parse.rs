//! Rules of others, read as far as it matters: the addresses they ask for, and
//! what they do. Of everything else it is known only that it is there: as a
//! condition where it can only be one, else as something that may end the
//! packet's way or change its addresses.

use ipnet::IpNet;

use super::expression::{
    BITWISE_DREG, BITWISE_MASK, BITWISE_SREG, BITWISE_XOR, CMP_DATA, CMP_OP, CMP_SREG, DATA_VALUE,
    DATA_VERDICT, EQUAL, EXPR_DATA, EXPR_NAME, IMMEDIATE_DATA, IMMEDIATE_DREG, META_DREG, META_KEY,
    META_NFPROTO, NETWORK_HEADER, NOT_EQUAL, PAYLOAD_BASE, PAYLOAD_DREG, PAYLOAD_LEN,
    PAYLOAD_OFFSET, Term, VERDICT_CODE, VERDICT_REGISTER,
};
use super::parsed_rule::{Action, ParsedRule};
use super::{IPV4, IPV6};
use crate::nfnetlink::attribute::{find, number, text, walk};

/// Reads the kernel's list of expressions of a rule, in a chain of that family
/// (`NFPROTO_INET` for one that sees both).
pub(super) fn parse_rule(expressions: &[u8], family: u8) -> ParsedRule {
    let mut parser = RuleParser {
        family,
        registers: Vec::new(),
        rule: ParsedRule::empty(),
    };
    for (_, expression) in walk(expressions) {
        let name = text(expression, EXPR_NAME).unwrap_or_default();
        let data = find(expression, EXPR_DATA).unwrap_or_default();
        parser.expression(&name, data);
    }
    parser.rule
}

/// The text of a comment that iptables wrapped as a match: `struct xt_comment_info`, filled up with zeros.
pub(super) fn iptables_comment(expressions: &[u8]) -> Option<String> {
    let found = walk(expressions).find_map(|(_, expression)| {
        let is_match = text(expression, EXPR_NAME).as_deref() == Some("match");
        let data = find(expression, EXPR_DATA).filter(|_| is_match)?;
        let is_comment = text(data, MATCH_NAME).as_deref() == Some("comment");
        find(data, MATCH_INFO).filter(|_| is_comment)
    })?;
    let words = found.split(|byte| *byte == 0).next()?;
    Some(String::from_utf8_lossy(words).into_owned())
}

struct RuleParser {
    /// The family of the packets that come this far.
    family: u8,
    registers: Vec<(u32, Loaded)>,
    rule: ParsedRule,
}

/// What a register holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loaded {
    /// So many bits from the start of an address.
    Address { source: bool, v6: bool, bits: u8 },
    /// The packet's family.
    Family,
}

impl RuleParser {
    fn expression(&mut self, name: &str, data: &[u8]) {
        match name {
            "counter" | "log" | "last" => {}
            "payload" | "meta" | "bitwise" => self.load(name, data),
            "cmp" => match self.compared(data) {
                Some(term) => self.rule.terms.push(term),
                None => self.rule.has_unknown = true,
            },
            "immediate" => self.immediate(data),
            "reject" => self.act(Action::Drop("reject")),
            // Expressions of iptables, wrapped.
            "match" if text(data, MATCH_NAME).as_deref() == Some("comment") => {}
            "target" => self.target(&text(data, TARGET_NAME).unwrap_or_default()),
            "lookup" if number(data, LOOKUP_DREG) == Some(VERDICT_REGISTER) => {
                self.act(Action::Unknown);
            }
            name if CONDITIONS.contains(&name) => self.condition(),
            _ => self.act(Action::Unknown),
        }
    }

    /// A condition that is not understood, or what changes nothing that is judged.
    fn condition(&mut self) {
        self.rule.has_unknown = true;
        // It may have filled any.
        self.registers.clear();
    }

    /// What the rule does. Where one part of it is not known, the whole is not.
    fn act(&mut self, action: Action) {
        if self.rule.action != Action::Unknown {
            self.rule.action = action;
        }
    }

    /// A target of iptables, wrapped.
    fn target(&mut self, name: &str) {
        match name {
            "REJECT" => self.act(Action::Drop("REJECT")),
            name if GOES_ON.contains(&name) => self.condition(),
            _ => self.act(Action::Unknown),
        }
    }

    /// An expression that fills a register, or changes the packet.
    fn load(&mut self, name: &str, data: &[u8]) {
        if name == "payload" && find(data, PAYLOAD_SREG).is_some() && self.is_address(data) {
            return self.act(Action::Unknown);
        }
        let (destination, loaded) = match name {
            "payload" => (PAYLOAD_DREG, self.payload(data)),
            "meta" => {
                let family = number(data, META_KEY) == Some(META_NFPROTO);
                (META_DREG, family.then_some(Loaded::Family))
            }
            _ => (BITWISE_DREG, self.masked(data)),
        };
        if let Some(register) = number(data, destination) {
            self.registers.retain(|(other, _)| *other != register);
            self.registers
                .extend(loaded.map(|loaded| (register, loaded)));
        }
    }

    /// Whether bytes of an address, or behind them, are what an expression changes.
    fn is_address(&self, data: &[u8]) -> bool {
        let end = number(data, PAYLOAD_OFFSET)
            .zip(number(data, PAYLOAD_LEN))
            .map_or(u32::MAX, |(offset, length)| offset.saturating_add(length));
        let first = if self.family == IPV4 { 12 } else { 8 };
        number(data, PAYLOAD_BASE) == Some(NETWORK_HEADER) && end > first
    }

    fn loaded(&self, register: Option<u32>) -> Option<Loaded> {
        let found = self.registers.iter().find(|(r, _)| Some(*r) == register);
        found.map(|(_, loaded)| *loaded)
    }

    fn payload(&self, data: &[u8]) -> Option<Loaded> {
        if number(data, PAYLOAD_BASE)? != NETWORK_HEADER {
            return None;
        }
        let length = number(data, PAYLOAD_LEN)?;
        let (source, v6) = match (self.family, number(data, PAYLOAD_OFFSET)?, length) {
            (IPV4, 12, 1..=4) => (true, false),
            (IPV4, 16, 1..=4) => (false, false),
            (IPV6, 8, 1..=16) => (true, true),
            (IPV6, 24, 1..=16) => (false, true),
            _ => return None,
        };
        let bits = u8::try_from(length).ok()?.checked_mul(8)?;
        Some(Loaded::Address { source, v6, bits })
    }

    fn masked(&self, data: &[u8]) -> Option<Loaded> {
        let Some(Loaded::Address { source, v6, bits }) = self.loaded(number(data, BITWISE_SREG))
        else {
            return None;
        };
        let mask = find(find(data, BITWISE_MASK)?, DATA_VALUE)?;
        let flips = find(find(data, BITWISE_XOR)?, DATA_VALUE)?;
        let plain = number(data, BITWISE_OP).unwrap_or(0) == 0;
        if !plain || mask.len() * 8 != usize::from(bits) || flips.iter().any(|byte| *byte != 0) {
            return None;
        }
        let bits = leading_ones(mask)?;
        Some(Loaded::Address { source, v6, bits })
    }

    fn compared(&mut self, data: &[u8]) -> Option<Term> {
        let equal = match number(data, CMP_OP)? {
            EQUAL => true,
            NOT_EQUAL => false,
            _ => return None,
        };
        let value = find(find(data, CMP_DATA)?, DATA_VALUE)?;
        match self.loaded(number(data, CMP_SREG))? {
            Loaded::Address { source, v6, bits } => {
                let prefix = prefix(value, v6, bits)?;
                Some(match (source, equal) {
                    (true, true) => Term::From(prefix),
                    (true, false) => Term::NotFrom(prefix),
                    (false, true) => Term::To(prefix),
                    (false, false) => Term::NotTo(prefix),
                })
            }
            Loaded::Family => {
                let family = *value.first()?;
                let all = prefix(&[], family == IPV6, 0)?;
                if equal && [IPV4, IPV6].contains(&family) {
                    self.family = family;
                    Some(Term::From(all))
                } else {
                    None
                }
            }
        }
    }

    fn immediate(&mut self, data: &[u8]) {
        let register = number(data, IMMEDIATE_DREG);
        if register != Some(VERDICT_REGISTER) {
            self.registers.retain(|(other, _)| Some(*other) != register);
            return;
        }
        let verdict = find(data, IMMEDIATE_DATA).and_then(|data| find(data, DATA_VERDICT));
        let code = verdict.and_then(|verdict| number(verdict, VERDICT_CODE));
        let chain = verdict.and_then(|verdict| text(verdict, VERDICT_CHAIN));
        self.act(match (code.map(u32::cast_signed), chain) {
            (Some(libc::NF_DROP), _) => Action::Drop("drop"),
            (Some(libc::NF_ACCEPT), _) => Action::Accept,
            (Some(libc::NFT_JUMP), Some(chain)) => Action::Jump(chain),
            (Some(libc::NFT_GOTO), Some(chain)) => Action::Goto(chain),
            (Some(libc::NFT_RETURN), _) => Action::Return,
            // On to the next rule.
            (Some(libc::NFT_CONTINUE | libc::NFT_BREAK), _) => Action::Nothing,
            // To a program; or a verdict that no kernel of today has.
            _ => Action::Unknown,
        });
    }
}

/// The length of a mask that has its ones in front.
fn leading_ones(mask: &[u8]) -> Option<u8> {
    let ones: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
    let leading = mask.iter().position(|byte| *byte != u8::MAX);
    let leading = match leading {
        Some(place) => place * 8 + mask.get(place)?.leading_ones() as usize,
        None => mask.len() * 8,
    };
    (usize::try_from(ones).ok()? == leading).then(|| u8::try_from(leading).ok())?
}

/// The prefix of `bits` bits whose address begins with `start`.
fn prefix(start: &[u8], v6: bool, bits: u8) -> Option<IpNet> {
    let mut address = [0; 16];
    address.get_mut(..start.len())?.copy_from_slice(start);
    let address = if v6 {
        address.into()
    } else {
        <[u8; 4]>::try_from(address.get(..4)?).ok()?.into()
    };
    IpNet::new(address, bits).ok()
}

// What is read and never written; of the kernel's include/uapi/linux/netfilter/
// nf_tables.h and nf_tables_compat.h.
pub(super) const VERDICT_CHAIN: u16 = 2;
const BITWISE_OP: u16 = 6;
pub(super) const MATCH_NAME: u16 = 1;
pub(super) const MATCH_INFO: u16 = 3;
pub(super) const TARGET_NAME: u16 = 1;
pub(super) const LOOKUP_DREG: u16 = 3;
const PAYLOAD_SREG: u16 = 5;

/// Expressions that at most keep a rule from holding. They may change a mark or a set, and nothing that is judged.
const CONDITIONS: [&str; 24] = [
    "byteorder",
    "connlimit",
    "ct",
    "dup",
    "dynset",
    "exthdr",
    "fib",
    "flow_offload",
    "hash",
    "inner",
    "limit",
    "lookup",
    "match",
    "notrack",
    "numgen",
    "objref",
    "osf",
    "quota",
    "range",
    "rt",
    "secmark",
    "socket",
    "tunnel",
    "xfrm",
];
/// Targets of iptables behind which the packet goes on to the next rule, its addresses as they were.
const GOES_ON: [&str; 22] = [
    "AUDIT",
    "CHECKSUM",
    "CLASSIFY",
    "CONNMARK",
    "CONNSECMARK",
    "CT",
    "DSCP",
    "ECN",
    "HL",
    "IDLETIMER",
    "LED",
    "LOG",
    "MARK",
    "NFLOG",
    "NOTRACK",
    "RATEEST",
    "SECMARK",
    "SET",
    "TCPMSS",
    "TEE",
    "TOS",
    "TRACE",
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::INET;
    use super::super::expression::{Rule, Verdict};
    use super::*;
    use crate::nfnetlink::attribute::Attribute;

    fn listed(rule: &Rule, both_families: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        let list = rule.expressions(both_families);
        list.iter().for_each(|element| element.write(&mut bytes));
        bytes
    }

    fn net() -> impl Strategy<Value = IpNet> {
        prop_oneof![
            (any::<[u8; 4]>(), 1..=32_u8).prop_map(|(a, len)| IpNet::new(a.into(), len)),
            (any::<[u8; 16]>(), 1..=128_u8).prop_map(|(a, len)| IpNet::new(a.into(), len)),
        ]
        .prop_map(|net| net.unwrap().trunc())
    }

    proptest! {
        /// The writer is the oracle of the reader.
        #[test]
        fn what_is_written_is_read(net in net(), kind in 0..4_usize, inet in any::<bool>()) {
            let term = [Term::From, Term::NotFrom, Term::To, Term::NotTo][kind](net);
            let rule = Rule { terms: vec![term], verdict: Verdict::Accept };
            let own = if net.addr().is_ipv4() { IPV4 } else { IPV6 };
            let found = parse_rule(&listed(&rule, inet), if inet { INET } else { own });
            prop_assert_eq!(found.terms.last(), Some(&term));
            prop_assert_eq!(found.terms.len(), if inet { 2 } else { 1 });
            prop_assert!(!found.has_unknown && found.action == Action::Accept);
        }

        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            parse_rule(&bytes, IPV4);
            iptables_comment(&bytes);
        }
    }

    #[test]
    fn a_comment_is_read_as_iptables_writes_it() {
        let mut words = [0; 256];
        words[..9].copy_from_slice(b"cali:abcd");
        let element = |name, data| {
            let inside = vec![
                Attribute::text(EXPR_NAME, name),
                Attribute::nest(EXPR_DATA, data),
            ];
            Attribute::nest(1, inside)
        };
        let comment = vec![
            Attribute::text(MATCH_NAME, "comment"),
            Attribute::bytes(MATCH_INFO, &words),
        ];
        let bytes = |list: &[Attribute]| {
            let mut bytes = Vec::new();
            list.iter().for_each(|element| element.write(&mut bytes));
            bytes
        };
        let rule = bytes(&[element("match", comment)]);
        assert_eq!(iptables_comment(&rule).as_deref(), Some("cali:abcd"));
        assert_eq!(
            iptables_comment(&bytes(&[element("match", Vec::new())])),
            None
        );
    }

    #[test]
    fn what_is_not_understood_is_a_condition() {
        let marked = Rule {
            terms: vec![Term::Marked],
            verdict: Verdict::Return,
        };
        let found = parse_rule(&listed(&marked, false), IPV4);
        assert!(found.has_unknown && found.terms.is_empty());
        assert_eq!(found.action, Action::Return);
    }

    /// Regression: what may drop a packet, or send it to any chain, was read as doing nothing.
    #[test]
    fn what_may_decide_is_not_taken_to_do_nothing() {
        let rule = |name: &str, data: Vec<Attribute>| {
            let inside = vec![
                Attribute::text(EXPR_NAME, name),
                Attribute::nest(EXPR_DATA, data),
            ];
            let mut bytes = Vec::new();
            Attribute::nest(1, inside).write(&mut bytes);
            bytes
        };
        let verdict_map = rule("lookup", vec![Attribute::number(LOOKUP_DREG, 0)]);
        let target = |name| rule("target", vec![Attribute::text(TARGET_NAME, name)]);
        let immediate = |code: i32| {
            let code = Attribute::number(VERDICT_CODE, code.cast_unsigned());
            let verdict = Attribute::nest(DATA_VERDICT, vec![code]);
            let data = vec![
                Attribute::number(IMMEDIATE_DREG, VERDICT_REGISTER),
                Attribute::nest(IMMEDIATE_DATA, vec![verdict]),
            ];
            rule("immediate", data)
        };
        let write = |offset, length| {
            let data = vec![
                Attribute::number(PAYLOAD_SREG, 1),
                Attribute::number(PAYLOAD_BASE, NETWORK_HEADER),
                Attribute::number(PAYLOAD_OFFSET, offset),
                Attribute::number(PAYLOAD_LEN, length),
            ];
            rule("payload", data)
        };
        for unknown in [
            verdict_map.clone(),
            rule("queue", vec![]),
            rule("masq", vec![]),
            rule("an expression of tomorrow", vec![]),
            target("NFQUEUE"),
            target("DNAT"),
            immediate(libc::NF_QUEUE),
            immediate(libc::NFT_JUMP),
            write(16, 4),
            // Whatever else the rule does.
            [verdict_map, immediate(libc::NF_ACCEPT)].concat(),
        ] {
            let parsed = parse_rule(&unknown, IPV4);
            assert_eq!(parsed.action, Action::Unknown, "{unknown:?}");
        }
        for nothing in [
            rule("lookup", vec![]),
            rule("limit", vec![]),
            target("MARK"),
            immediate(libc::NFT_CONTINUE),
            write(8, 1),
        ] {
            let parsed = parse_rule(&nothing, IPV4);
            assert_eq!(parsed.action, Action::Nothing, "{nothing:?}");
        }
    }

    /// Regression: a mark that was loaded over an address was compared as the address.
    #[test]
    fn what_fills_a_register_again_ends_what_it_held() {
        let address = Rule {
            terms: vec![Term::From(IpNet::new([10, 0, 0, 1].into(), 32).unwrap())],
            verdict: Verdict::Accept,
        };
        let found = listed(&address, false);
        let mut parser = RuleParser {
            family: IPV4,
            registers: Vec::new(),
            rule: ParsedRule::empty(),
        };
        for (_, part) in walk(&found) {
            let name = text(part, EXPR_NAME).unwrap();
            if name == "cmp" {
                parser.expression("ct", &[]);
            }
            parser.expression(&name, find(part, EXPR_DATA).unwrap_or_default());
        }
        assert!(parser.rule.terms.is_empty() && parser.rule.has_unknown);
    }

    #[test]
    fn a_mask_with_a_hole_is_no_prefix() {
        assert_eq!(leading_ones(&[255, 255, 0, 0]), Some(16));
        assert_eq!(leading_ones(&[255, 128, 0, 0]), Some(9));
        assert_eq!(leading_ones(&[0, 0]), Some(0));
        assert_eq!(leading_ones(&[255, 0, 255, 0]), None);
        assert_eq!(leading_ones(&[0x7f, 0]), None);
    }
}
