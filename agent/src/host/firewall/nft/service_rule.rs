//! A rule of a chain that kube-proxy writes: beside addresses the protocol and the port that it asks for, and to which
//! endpoint it translates. Read are the shapes that iptables-nft gives its rules (Linux' own expressions for ports since
//! 1.8.8, matches of x_tables before, and the target DNAT) and those of nft.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::expression::{
    BITWISE_DREG, CMP_DATA, CMP_OP, CMP_SREG, DATA_VALUE, EQUAL, EXPR_DATA, EXPR_NAME,
    IMMEDIATE_DATA, IMMEDIATE_DREG, META_DREG, META_KEY, NETWORK_HEADER, PAYLOAD_BASE,
    PAYLOAD_DREG, PAYLOAD_LEN, PAYLOAD_OFFSET, Term, VERDICT_REGISTER,
};
use super::parse::{LOOKUP_DREG, MATCH_INFO, MATCH_NAME, TARGET_NAME, parse_rule};
use super::parsed_rule::Action;
use super::{IPV4, IPV6};
use crate::nfnetlink::attribute::{find, number, text, walk};

/// One rule, as far as it is understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) struct ServiceRule {
    /// What it asks of addresses.
    pub(in crate::host) terms: Vec<Term>,
    pub(in crate::host) protocol: Option<u8>,
    /// The destination port.
    pub(in crate::host) port: Option<u16>,
    /// It asks for nothing else.
    pub(in crate::host) is_understood: bool,
    pub(in crate::host) action: ServiceAction,
}

/// What it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) enum ServiceAction {
    /// Nothing that ends the packet's way through the chain.
    Nothing,
    Jump(String),
    Goto(String),
    /// To whichever chain a map has for what is not known of the packet.
    VerdictMap(String),
    /// It translates the destination; without a port that stays.
    To(IpAddr, Option<u16>),
    /// It translates to one of the values of a map.
    ToOneOf(String),
    /// `drop`, `reject`, `REJECT`.
    Refuse(&'static str),
    Return,
    Unknown,
}

/// Reads the kernel's list of expressions of a rule, in a chain of that family.
pub(super) fn parse_service_rule(expressions: &[u8], family: u8) -> ServiceRule {
    let parsed = parse_rule(expressions, family);
    let mut reader = Reader {
        family,
        registers: Vec::new(),
        rule: ServiceRule {
            terms: parsed.terms,
            protocol: None,
            port: None,
            is_understood: true,
            action: match parsed.action {
                Action::Nothing => ServiceAction::Nothing,
                Action::Jump(chain) => ServiceAction::Jump(chain),
                Action::Goto(chain) => ServiceAction::Goto(chain),
                Action::Drop(verdict) => ServiceAction::Refuse(verdict),
                Action::Return => ServiceAction::Return,
                Action::Accept | Action::Unknown => ServiceAction::Unknown,
            },
        },
        compared: 0,
        known: 0,
    };
    for (_, expression) in walk(expressions) {
        let name = text(expression, EXPR_NAME).unwrap_or_default();
        let data = find(expression, EXPR_DATA).unwrap_or_default();
        reader.expression(&name, data);
    }
    // Every comparison is one of addresses, or one that was read here.
    let mut rule = reader.rule;
    rule.is_understood &= reader.compared == reader.known + rule.terms.len();
    rule
}

struct Reader {
    family: u8,
    /// What registers hold, the latest last.
    registers: Vec<(u32, Loaded)>,
    rule: ServiceRule,
    compared: usize,
    known: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Loaded {
    Protocol,
    Port,
    Bytes(Vec<u8>),
    /// Of the map of this name.
    Mapped(String),
    Other,
}

impl Reader {
    fn expression(&mut self, name: &str, data: &[u8]) {
        match name {
            "payload" => self.fill(number(data, PAYLOAD_DREG), self.payload(data)),
            "meta" => {
                let is_protocol = number(data, META_KEY) == Some(libc::NFT_META_L4PROTO as u32);
                let loaded = match is_protocol {
                    true => Loaded::Protocol,
                    false => Loaded::Other,
                };
                self.fill(number(data, META_DREG), loaded);
            }
            "bitwise" => self.fill(number(data, BITWISE_DREG), Loaded::Other),
            "immediate" => {
                let value = find(data, IMMEDIATE_DATA).and_then(|data| find(data, DATA_VALUE));
                let loaded = value.map_or(Loaded::Other, |value| Loaded::Bytes(value.to_vec()));
                self.fill(number(data, IMMEDIATE_DREG), loaded);
            }
            "numgen" => self.fill(number(data, NUMGEN_DREG), Loaded::Other),
            "cmp" => self.compare(data),
            "lookup" => self.lookup(data),
            "nat" => self.translate(data),
            "match" => self.x_match(data),
            "target" if text(data, TARGET_NAME).as_deref() == Some("DNAT") => {
                let to = find(data, TARGET_INFO)
                    .and_then(|info| dnat(number(data, TARGET_REVISION), info, self.family));
                self.rule.action = to.unwrap_or(ServiceAction::Unknown);
            }
            // No conditions.
            "counter" | "log" | "last" | "dynset" | "target" | "reject" => {}
            _ => {
                self.rule.is_understood = false;
                self.registers.clear();
            }
        }
    }

    fn fill(&mut self, register: Option<u32>, loaded: Loaded) {
        if let Some(register) = register {
            self.registers.retain(|(other, _)| *other != register);
            self.registers.push((register, loaded));
        }
    }

    fn held(&self, register: Option<u32>) -> Option<&Loaded> {
        let mut all = self.registers.iter();
        all.find(|(other, _)| Some(*other) == register)
            .map(|(_, loaded)| loaded)
    }

    fn payload(&self, data: &[u8]) -> Loaded {
        let place = (
            number(data, PAYLOAD_BASE),
            number(data, PAYLOAD_OFFSET),
            number(data, PAYLOAD_LEN),
        );
        let protocol = if self.family == IPV4 { 9 } else { 6 };
        match place {
            (Some(NETWORK_HEADER), Some(offset), Some(1)) if offset == protocol => Loaded::Protocol,
            (Some(TRANSPORT_HEADER), Some(2), Some(2)) => Loaded::Port,
            _ => Loaded::Other,
        }
    }

    fn compare(&mut self, data: &[u8]) {
        self.compared += 1;
        let is_equal = number(data, CMP_OP) == Some(EQUAL);
        let value = find(data, CMP_DATA).and_then(|data| find(data, DATA_VALUE));
        let held = self.held(number(data, CMP_SREG));
        match (held, value) {
            (Some(Loaded::Protocol), Some([protocol])) if is_equal => {
                self.rule.protocol = Some(*protocol);
                self.known += 1;
            }
            (Some(Loaded::Port), Some([high, low])) if is_equal => {
                self.rule.port = Some(u16::from_be_bytes([*high, *low]));
                self.known += 1;
            }
            // An address, which was counted, or what is not understood.
            _ => {}
        }
    }

    fn lookup(&mut self, data: &[u8]) {
        let name = text(data, LOOKUP_SET).unwrap_or_default();
        match number(data, LOOKUP_DREG) {
            Some(VERDICT_REGISTER) => self.rule.action = ServiceAction::VerdictMap(name),
            Some(register) => self.fill(Some(register), Loaded::Mapped(name)),
            None => self.rule.is_understood = false,
        }
    }

    fn translate(&mut self, data: &[u8]) {
        let is_destination = number(data, NAT_TYPE) == Some(NAT_DNAT);
        let port = number(data, NAT_PROTO_MIN).map(|register| self.held(Some(register)));
        let to = match self.held(number(data, NAT_ADDRESS_MIN)) {
            Some(Loaded::Bytes(bytes)) => {
                let port = match port {
                    None => Some(None),
                    Some(Some(Loaded::Bytes(bytes))) => first_port(bytes).map(Some),
                    Some(_) => None,
                };
                address(bytes, self.family)
                    .zip(port)
                    .map(|(address, port)| ServiceAction::To(address, port))
            }
            Some(Loaded::Mapped(map)) => Some(ServiceAction::ToOneOf(map.clone())),
            _ => None,
        };
        self.rule.action = to
            .filter(|_| is_destination)
            .unwrap_or(ServiceAction::Unknown);
    }

    /// A match of x_tables. The whole ranges of ports that `-m tcp` alone asks for are no condition.
    fn x_match(&mut self, data: &[u8]) {
        let info = find(data, MATCH_INFO).unwrap_or_default();
        let ports = match text(data, MATCH_NAME).as_deref() {
            Some("comment") => return,
            Some("tcp") => Some((info, 12)),
            Some("udp") => Some((info, 9)),
            _ => None,
        };
        let port = ports.and_then(|(info, length)| {
            let (ports, rest) = info.get(..length)?.split_first_chunk::<8>()?;
            let [a, b, c, d, e, f, g, h] = *ports;
            let of = |low, high| u16::from_ne_bytes([low, high]);
            let is_any_source = (of(a, b), of(c, d)) == (0, u16::MAX);
            let is_plain = rest.iter().all(|byte| *byte == 0);
            match (of(e, f), of(g, h)) {
                _ if !is_any_source || !is_plain => None,
                (0, u16::MAX) => Some(None),
                (first, last) => (first == last).then_some(Some(first)),
            }
        });
        match port {
            Some(port) => self.rule.port = port.or(self.rule.port),
            None => self.rule.is_understood = false,
        }
    }
}

/// To where the target DNAT translates: `struct nf_nat_ipv4_multi_range_compat` in revision 0, `nf_nat_range` in 1,
/// `nf_nat_range2` in 2.
fn dnat(revision: Option<u32>, info: &[u8], family: u8) -> Option<ServiceAction> {
    let ports = |from: usize| -> Option<(u16, u16)> {
        let first = first_port(info.get(from..)?)?;
        Some((first, first_port(info.get(from + 2..)?)?))
    };
    let (flags, low, high, ports) = match revision? {
        0 => (4, info.get(8..12)?, info.get(12..16)?, ports(16)?),
        1 | 2 => (0, info.get(4..20)?, info.get(20..36)?, ports(36)?),
        _ => return None,
    };
    let flags = u32::from_ne_bytes(*info.get(flags..)?.first_chunk()?);
    let is_one = low == high && flags & RANGE_OF_ADDRESSES != 0;
    let port = match flags & RANGE_OF_PORTS {
        0 => None,
        _ => Some(ports.0).filter(|_| ports.0 == ports.1),
    };
    let is_port = flags & RANGE_OF_PORTS == 0 || port.is_some();
    (is_one && is_port)
        .then(|| address(low, family))
        .flatten()
        .map(|address| ServiceAction::To(address, port))
}

/// The address at the beginning of some bytes.
pub(in crate::host) fn address(bytes: &[u8], family: u8) -> Option<IpAddr> {
    match family {
        IPV4 => Some(Ipv4Addr::from(*bytes.first_chunk::<4>()?).into()),
        IPV6 => Some(Ipv6Addr::from(*bytes.first_chunk::<16>()?).into()),
        _ => None,
    }
}

/// The port at the beginning of some bytes.
pub(in crate::host) fn first_port(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.first_chunk()?))
}

const TRANSPORT_HEADER: u32 = libc::NFT_PAYLOAD_TRANSPORT_HEADER as u32;
// Of include/uapi/linux/netfilter/nf_tables.h, nf_tables_compat.h and nf_nat.h.
const NUMGEN_DREG: u16 = 1;
const LOOKUP_SET: u16 = 1;
const NAT_TYPE: u16 = 1;
/// `NFT_NAT_DNAT`
const NAT_DNAT: u32 = 1;
const NAT_ADDRESS_MIN: u16 = 3;
const NAT_PROTO_MIN: u16 = 5;
const TARGET_REVISION: u16 = 2;
const TARGET_INFO: u16 = 3;
/// `NF_NAT_RANGE_MAP_IPS`
const RANGE_OF_ADDRESSES: u32 = 1;
/// `NF_NAT_RANGE_PROTO_SPECIFIED`
const RANGE_OF_PORTS: u32 = 1 << 1;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::nfnetlink::attribute::Attribute;

    fn rule(expressions: &[(&str, Vec<Attribute>)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (name, data) in expressions {
            let inside = vec![
                Attribute::text(EXPR_NAME, name),
                Attribute::nest(EXPR_DATA, data.clone()),
            ];
            Attribute::nest(1, inside).write(&mut bytes);
        }
        bytes
    }

    fn x_match(name: &str, info: &[u8]) -> Vec<u8> {
        let data = vec![
            Attribute::text(MATCH_NAME, name),
            Attribute::bytes(MATCH_INFO, info),
        ];
        rule(&[("match", data)])
    }

    fn tcp(source: [u16; 2], port: [u16; 2], rest: [u8; 4]) -> Vec<u8> {
        let ports = [source, port].into_iter().flatten();
        let mut info: Vec<u8> = ports.flat_map(u16::to_ne_bytes).collect();
        info.extend(rest);
        info
    }

    /// iptables before 1.8.8.
    #[test]
    fn a_port_that_x_tables_asks_for_is_read_and_a_range_is_not() {
        let any = [0, u16::MAX];
        for (info, port, is_understood) in [
            (tcp(any, [80, 80], [0; 4]), Some(80), true),
            (tcp(any, any, [0; 4]), None, true),
            (tcp(any, [80, 81], [0; 4]), None, false),
            (tcp([1, 1], [80, 80], [0; 4]), None, false),
            (tcp(any, [80, 80], [0, 2, 2, 0]), None, false),
            (tcp(any, [80, 80], [0, 0, 0, 1]), None, false),
            (vec![0; 5], None, false),
        ] {
            let found = parse_service_rule(&x_match("tcp", &info), IPV4);
            assert_eq!(
                (found.port, found.is_understood),
                (port, is_understood),
                "{info:?}"
            );
        }
        let other = parse_service_rule(&x_match("statistic", &[]), IPV4);
        assert!(!other.is_understood);
    }

    #[test]
    fn every_revision_of_dnat_is_read_and_a_range_is_not() {
        let target = |revision: u32, info: &[u8], family| {
            let data = vec![
                Attribute::text(TARGET_NAME, "DNAT"),
                Attribute::number(TARGET_REVISION, revision),
                Attribute::bytes(TARGET_INFO, info),
            ];
            parse_service_rule(&rule(&[("target", data)]), family).action
        };
        let ports = [0x1f, 0x90, 0x1f, 0x90];
        let (v4, v6) = ([10, 244, 1, 2], [0xfd; 16]);
        let flags = 3_u32.to_ne_bytes();
        let old = [&1_u32.to_ne_bytes()[..], &flags, &v4, &v4, &ports].concat();
        let to = ServiceAction::To(v4.into(), Some(8080));
        assert_eq!(target(0, &old, IPV4), to);
        let wide = [&v4[..], &[0; 12]].concat();
        let new = [&flags[..], &wide, &wide, &ports, &[0; 4]].concat();
        assert_eq!(target(2, &new, IPV4), to);
        let to = ServiceAction::To(v6.into(), Some(8080));
        let six = [&flags[..], &v6, &v6, &ports].concat();
        assert_eq!(target(1, &six, IPV6), to);
        let without = [&1_u32.to_ne_bytes()[..], &v6, &v6, &[0; 4]].concat();
        assert_eq!(
            target(1, &without, IPV6),
            ServiceAction::To(v6.into(), None)
        );
        let range = [&flags[..], &v6, &[0xfe; 16], &ports].concat();
        let rotated = [&flags[..], &v6, &v6, &[0, 80, 0, 81]].concat();
        for unknown in [range, rotated, six[..30].to_vec(), vec![]] {
            assert_eq!(target(1, &unknown, IPV6), ServiceAction::Unknown);
        }
        assert_eq!(target(9, &six, IPV6), ServiceAction::Unknown);
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            parse_service_rule(&bytes, IPV4);
            parse_service_rule(&bytes, IPV6);
        }
    }
}
