//! Rules of others, read as far as it matters: the addresses they ask for, and
//! what they do. Of everything else it is known only that it is there.

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
            "reject" => self.rule.action = Action::Drop("reject"),
            // Expressions of iptables, wrapped.
            "match" if text(data, MATCH_NAME).as_deref() == Some("comment") => {}
            "target" if text(data, TARGET_NAME).as_deref() == Some("REJECT") => {
                self.rule.action = Action::Drop("REJECT");
            }
            _ => self.rule.has_unknown = true,
        }
    }

    /// An expression that fills a register, or changes the packet.
    fn load(&mut self, name: &str, data: &[u8]) {
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
        if number(data, IMMEDIATE_DREG) != Some(VERDICT_REGISTER) {
            return;
        }
        let verdict = find(data, IMMEDIATE_DATA).and_then(|data| find(data, DATA_VERDICT));
        let code = verdict.and_then(|verdict| number(verdict, VERDICT_CODE));
        let chain = verdict.and_then(|verdict| text(verdict, VERDICT_CHAIN));
        self.rule.action = match (code.map(u32::cast_signed), chain) {
            (Some(libc::NF_DROP), _) => Action::Drop("drop"),
            (Some(libc::NF_ACCEPT), _) => Action::Accept,
            (Some(libc::NFT_JUMP), Some(chain)) => Action::Jump(chain),
            (Some(libc::NFT_GOTO), Some(chain)) => Action::Goto(chain),
            (Some(libc::NFT_RETURN), _) => Action::Return,
            // To a program, or on to the next rule.
            _ => Action::Nothing,
        };
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
const VERDICT_CHAIN: u16 = 2;
const BITWISE_OP: u16 = 6;
const MATCH_NAME: u16 = 1;
const TARGET_NAME: u16 = 1;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::INET;
    use super::super::expression::{Rule, Verdict};
    use super::*;

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
        }
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

    #[test]
    fn a_mask_with_a_hole_is_no_prefix() {
        assert_eq!(leading_ones(&[255, 255, 0, 0]), Some(16));
        assert_eq!(leading_ones(&[255, 128, 0, 0]), Some(9));
        assert_eq!(leading_ones(&[0, 0]), Some(0));
        assert_eq!(leading_ones(&[255, 0, 255, 0]), None);
        assert_eq!(leading_ones(&[0x7f, 0]), None);
    }
}
