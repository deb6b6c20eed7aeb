//! Rules as nf_tables takes them: a list of expressions over one register.

use ipnet::IpNet;

use super::PacketTerm;
use super::{ACCEPT, DROP};
use crate::nfnetlink::attribute::{Attribute, find, long, text, walk};

/// One rule: what must hold of a packet, and what then becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) struct Rule {
    pub(in crate::host) terms: Vec<Term>,
    pub(in crate::host) verdict: Verdict,
}

/// One thing that must hold of a packet. All prefixes of a rule are of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::host) enum Term {
    /// Kubernetes' mark of packets that kube-proxy masquerades itself: 0x4000
    /// under the mask 0x4000.
    Marked,
    /// It came by an interface whose name begins so: ASCII, 1 to 15 bytes.
    FromInterfaces(&'static str),
    /// It came by the interface of this name. In `postrouting` no packet does
    /// before Linux 5.7.
    FromInterface(InterfaceName),
    /// No route leads to its source by the interface it came by.
    NotRoutedBack,
    /// A route leads to its source by the interface it came by.
    RoutedBack,
    /// Its connection has another destination than its first packet asked for.
    Redirected,
    From(IpNet),
    NotFrom(IpNet),
    To(IpNet),
    NotTo(IpNet),
    Packet(PacketTerm),
}

/// A whole name, as the kernel holds it: filled up with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::host) struct InterfaceName([u8; libc::IFNAMSIZ]);

impl InterfaceName {
    /// `None`: no interface can have this name.
    pub(in crate::host) fn new(name: &str) -> Option<InterfaceName> {
        let mut whole = [0; libc::IFNAMSIZ];
        // The last is always zero.
        let (_, place) = whole.split_last_mut()?;
        place
            .get_mut(..name.len())?
            .copy_from_slice(name.as_bytes());
        Some(InterfaceName(whole))
    }
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::host) enum Verdict {
    Accept,
    Drop,
    /// Leave the chain.
    Return,
    /// Take the address of the interface the packet leaves by, and any port.
    Masquerade,
    /// Connection tracking does not see it; on to the next rule.
    Untracked,
}

impl Rule {
    /// The elements of `NFTA_RULE_EXPRESSIONS`. `both_families`: the table is
    /// of the family `inet`, whose chains see IPv4 and IPv6.
    pub(super) fn expressions(&self, both_families: bool) -> Vec<Attribute> {
        let mut list = Vec::new();
        let mut family_known = !both_families;
        for term in &self.terms {
            if !family_known && let Some(family) = term.family() {
                list.extend(of_family(family));
                family_known = true;
            }
            match *term {
                Term::Marked => list.extend(marked()),
                Term::FromInterfaces(prefix) => {
                    list.extend([meta(META_IIFNAME), compare(EQUAL, prefix.as_bytes())]);
                }
                Term::FromInterface(InterfaceName(name)) => {
                    list.extend([meta(META_IIFNAME), compare(EQUAL, &name)]);
                }
                Term::NotRoutedBack => list.extend(routed_back(EQUAL)),
                Term::RoutedBack => list.extend(routed_back(NOT_EQUAL)),
                Term::Redirected => list.extend(redirected()),
                Term::From(prefix) => list.extend(address(prefix, Side::Source, EQUAL)),
                Term::NotFrom(prefix) => list.extend(address(prefix, Side::Source, NOT_EQUAL)),
                Term::To(prefix) => list.extend(address(prefix, Side::Destination, EQUAL)),
                Term::NotTo(prefix) => list.extend(address(prefix, Side::Destination, NOT_EQUAL)),
                Term::Packet(term) => list.extend(term.expressions()),
            }
        }
        list.push(expression("counter", Vec::new()));
        list.push(match self.verdict {
            Verdict::Accept => verdict(ACCEPT),
            Verdict::Drop => verdict(DROP),
            Verdict::Return => verdict(RETURN),
            Verdict::Masquerade => {
                expression("masq", vec![Attribute::number(MASQ_FLAGS, RANDOM_FULLY)])
            }
            Verdict::Untracked => expression("notrack", Vec::new()),
        });
        list
    }

    /// How many packets have met a rule, by the first counter in the kernel's
    /// list of its expressions.
    pub(super) fn packets(found: &[u8]) -> Option<u64> {
        let mut elements = walk(found).map(|(_, element)| element);
        let counter = elements.find(|e| text(e, EXPR_NAME).as_deref() == Some("counter"))?;
        long(find(counter, EXPR_DATA)?, COUNTER_PACKETS)
    }

    /// Whether the kernel's list of expressions is that of this rule.
    pub(super) fn matches(&self, found: &[u8], both_families: bool) -> bool {
        let found: Vec<&[u8]> = walk(found).map(|(_, element)| element).collect();
        let ours = self.expressions(both_families);
        ours.len() == found.len()
            && ours.iter().zip(found).all(|(ours, found)| {
                let mut attributes = ours.inside().iter();
                attributes.all(|attribute| attribute.is_in(found))
            })
    }
}

impl Term {
    /// The family of the packets that it holds for, if that is one.
    fn family(&self) -> Option<u8> {
        match self {
            Term::Marked
            | Term::FromInterfaces(_)
            | Term::FromInterface(_)
            | Term::NotRoutedBack
            | Term::RoutedBack
            | Term::Redirected => None,
            Term::From(prefix) | Term::NotFrom(prefix) | Term::To(prefix) | Term::NotTo(prefix) => {
                Some(match prefix {
                    IpNet::V4(_) => super::IPV4,
                    IpNet::V6(_) => super::IPV6,
                })
            }
            Term::Packet(term) => term.family(),
        }
    }
}

#[derive(Clone, Copy)]
enum Side {
    Source,
    Destination,
}

fn of_family(family: u8) -> [Attribute; 2] {
    [meta(META_NFPROTO), compare(EQUAL, &[family])]
}

fn marked() -> [Attribute; 3] {
    // A mark is a number of the machine, not of the network.
    let bit = MASQUERADE_MARK.to_ne_bytes();
    [meta(META_MARK), mask(&bit), compare(EQUAL, &bit)]
}

/// nft's `fib saddr . iif oif missing`, or `exists`: whether there is a route is equal to 0, or not.
fn routed_back(operator: u32) -> [Attribute; 2] {
    let data = vec![
        Attribute::number(FIB_DREG, REGISTER),
        Attribute::number(FIB_RESULT, FIB_RESULT_OIF),
        Attribute::number(FIB_FLAGS, FIB_SADDR | FIB_IIF | FIB_PRESENT),
    ];
    [expression("fib", data), compare(operator, &[0; 4])]
}

/// nft's `ct status dnat`.
fn redirected() -> [Attribute; 3] {
    let status = vec![
        Attribute::number(CT_DREG, REGISTER),
        Attribute::number(CT_KEY, libc::NFT_CT_STATUS as u32),
    ];
    let bit = IPS_DST_NAT.to_ne_bytes();
    [
        expression("ct", status),
        mask(&bit),
        compare(NOT_EQUAL, &[0; 4]),
    ]
}

fn address(prefix: IpNet, side: Side, operator: u32) -> Vec<Attribute> {
    let (network, mask_bytes, offset) = match (prefix.trunc(), side) {
        (IpNet::V4(net), side) => (
            net.network().octets().to_vec(),
            net.netmask().octets().to_vec(),
            match side {
                Side::Source => 12,
                Side::Destination => 16,
            },
        ),
        (IpNet::V6(net), side) => (
            net.network().octets().to_vec(),
            net.netmask().octets().to_vec(),
            match side {
                Side::Source => 8,
                Side::Destination => 24,
            },
        ),
    };
    let length = if network.len() == 4 { 4 } else { 16 };
    let mut list = vec![expression(
        "payload",
        vec![
            Attribute::number(PAYLOAD_DREG, REGISTER),
            Attribute::number(PAYLOAD_BASE, NETWORK_HEADER),
            Attribute::number(PAYLOAD_OFFSET, offset),
            Attribute::number(PAYLOAD_LEN, length),
        ],
    )];
    if prefix.prefix_len() < prefix.max_prefix_len() {
        list.push(mask(&mask_bytes));
    }
    list.push(compare(operator, &network));
    list
}

pub(super) fn meta(key: u32) -> Attribute {
    let data = vec![
        Attribute::number(META_KEY, key),
        Attribute::number(META_DREG, REGISTER),
    ];
    expression("meta", data)
}

fn mask(bits: &[u8]) -> Attribute {
    let zeros = vec![0; bits.len()];
    let data = vec![
        Attribute::number(BITWISE_SREG, REGISTER),
        Attribute::number(BITWISE_DREG, REGISTER),
        Attribute::number(BITWISE_LEN, if bits.len() == 4 { 4 } else { 16 }),
        Attribute::nest(BITWISE_MASK, vec![Attribute::bytes(DATA_VALUE, bits)]),
        Attribute::nest(BITWISE_XOR, vec![Attribute::bytes(DATA_VALUE, &zeros)]),
    ];
    expression("bitwise", data)
}

pub(super) fn compare(operator: u32, value: &[u8]) -> Attribute {
    let data = vec![
        Attribute::number(CMP_SREG, REGISTER),
        Attribute::number(CMP_OP, operator),
        Attribute::nest(CMP_DATA, vec![Attribute::bytes(DATA_VALUE, value)]),
    ];
    expression("cmp", data)
}

fn verdict(code: u32) -> Attribute {
    let verdict = Attribute::nest(DATA_VERDICT, vec![Attribute::number(VERDICT_CODE, code)]);
    let data = vec![
        Attribute::number(IMMEDIATE_DREG, VERDICT_REGISTER),
        Attribute::nest(IMMEDIATE_DATA, vec![verdict]),
    ];
    expression("immediate", data)
}

pub(super) fn expression(name: &str, data: Vec<Attribute>) -> Attribute {
    let mut inside = vec![Attribute::text(EXPR_NAME, name)];
    if !data.is_empty() {
        inside.push(Attribute::nest(EXPR_DATA, data));
    }
    Attribute::nest(LIST_ELEM, inside)
}

/// Kubernetes' `KUBE-MARK-MASQ`.
const MASQUERADE_MARK: u32 = 0x4000;

// Attributes (NFTA_*) and flags of include/uapi/linux/netfilter/nf_tables.h, which the libc crate lacks, and values.
const LIST_ELEM: u16 = 1;
pub(super) const EXPR_NAME: u16 = 1;
pub(super) const EXPR_DATA: u16 = 2;
pub(super) const DATA_VALUE: u16 = 1;
pub(super) const DATA_VERDICT: u16 = 2;
pub(super) const VERDICT_CODE: u16 = 1;
pub(super) const VERDICT_REGISTER: u32 = libc::NFT_REG_VERDICT as u32;
/// 16 bytes wide.
pub(super) const REGISTER: u32 = libc::NFT_REG_1 as u32;
pub(super) const META_DREG: u16 = 1;
pub(super) const META_KEY: u16 = 2;
const META_MARK: u32 = libc::NFT_META_MARK as u32;
pub(super) const META_IIFNAME: u32 = libc::NFT_META_IIFNAME as u32;
pub(super) const META_NFPROTO: u32 = libc::NFT_META_NFPROTO as u32;
pub(super) const CMP_SREG: u16 = 1;
pub(super) const CMP_OP: u16 = 2;
pub(super) const CMP_DATA: u16 = 3;
pub(super) const EQUAL: u32 = libc::NFT_CMP_EQ as u32;
pub(super) const NOT_EQUAL: u32 = libc::NFT_CMP_NEQ as u32;
pub(super) const PAYLOAD_DREG: u16 = 1;
pub(super) const PAYLOAD_BASE: u16 = 2;
pub(super) const PAYLOAD_OFFSET: u16 = 3;
pub(super) const PAYLOAD_LEN: u16 = 4;
pub(super) const NETWORK_HEADER: u32 = libc::NFT_PAYLOAD_NETWORK_HEADER as u32;
pub(super) const BITWISE_SREG: u16 = 1;
pub(super) const BITWISE_DREG: u16 = 2;
pub(super) const BITWISE_LEN: u16 = 3;
pub(super) const BITWISE_MASK: u16 = 4;
pub(super) const BITWISE_XOR: u16 = 5;
pub(super) const IMMEDIATE_DREG: u16 = 1;
pub(super) const IMMEDIATE_DATA: u16 = 2;
const MASQ_FLAGS: u16 = 1;
const CT_DREG: u16 = 1;
const CT_KEY: u16 = 2;
/// `IPS_DST_NAT` of include/uapi/linux/netfilter/nf_conntrack_common.h
const IPS_DST_NAT: u32 = 1 << 5;
pub(super) const FIB_DREG: u16 = 1;
pub(super) const FIB_RESULT: u16 = 2;
pub(super) const FIB_FLAGS: u16 = 3;
/// `NFT_FIB_RESULT_OIF`
pub(super) const FIB_RESULT_OIF: u32 = 1;
/// `NFTA_FIB_F_SADDR`: look up the source.
pub(super) const FIB_SADDR: u32 = 1;
/// `NFTA_FIB_F_DADDR`: look up the destination.
pub(super) const FIB_DADDR: u32 = 1 << 1;
/// `NFTA_FIB_F_IIF`: only by the interface the packet came by.
pub(super) const FIB_IIF: u32 = 1 << 3;
/// `NFTA_FIB_F_PRESENT`: 1 if there is a route, else 0.
pub(super) const FIB_PRESENT: u32 = 1 << 5;
const COUNTER_PACKETS: u16 = 2;
const RETURN: u32 = libc::NFT_RETURN as u32;
/// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`
const RANDOM_FULLY: u32 = 1 << 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(terms: &[Term]) -> Rule {
        Rule {
            terms: terms.to_vec(),
            verdict: Verdict::Accept,
        }
    }

    fn listed(rule: &Rule, both_families: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        let list = rule.expressions(both_families);
        list.iter().for_each(|element| element.write(&mut bytes));
        bytes
    }

    #[test]
    fn a_rule_is_known_again_and_every_difference_is_one() {
        let net: IpNet = "10.244.0.0/16".parse().unwrap();
        let other: IpNet = "10.244.0.0/17".parse().unwrap();
        let ours = rule(&[Term::From(net)]);
        let found = listed(&ours, true);
        assert!(ours.matches(&found, true));
        assert!(!ours.matches(&found, false), "the family is looked at");
        for (what, different) in [
            ("the prefix", rule(&[Term::From(other)])),
            ("the side", rule(&[Term::To(net)])),
            ("the sense", rule(&[Term::NotFrom(net)])),
            ("a term more", rule(&[Term::From(net), Term::To(net)])),
            ("another term", rule(&[Term::NotRoutedBack])),
            (
                "one more about the connection",
                rule(&[Term::Redirected, Term::From(net)]),
            ),
            ("a term less", rule(&[])),
            (
                "the verdict",
                Rule {
                    verdict: Verdict::Drop,
                    ..ours.clone()
                },
            ),
        ] {
            assert!(!different.matches(&found, true), "{what}");
            assert!(!ours.matches(&listed(&different, true), true), "{what}");
        }
    }

    #[test]
    fn a_single_address_needs_no_mask() {
        let host = rule(&[Term::To("192.0.2.1/32".parse().unwrap())]);
        let subnet = rule(&[Term::To("192.0.2.0/31".parse().unwrap())]);
        let count = |rule: &Rule| rule.expressions(false).len();
        assert_eq!(count(&host) + 1, count(&subnet));
    }
}
