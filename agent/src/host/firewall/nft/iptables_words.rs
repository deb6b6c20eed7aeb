//! A rule of iptables-nft in the words of iptables-save, as far as it is plain: interfaces, the state of the connection, and
//! a target without options. A rule with anything else has no words here, so that no other rule is taken for it.

use super::expression::{
    CMP_DATA, CMP_OP, CMP_SREG, DATA_VALUE, DATA_VERDICT, EQUAL, EXPR_DATA, EXPR_NAME,
    IMMEDIATE_DATA, IMMEDIATE_DREG, META_DREG, META_IIFNAME, META_KEY, NOT_EQUAL, VERDICT_CODE,
    VERDICT_REGISTER,
};
use super::parse::{MATCH_INFO, MATCH_NAME, TARGET_NAME};
use crate::nfnetlink::attribute::{find, number, text, walk};

/// The words behind `-A CHAIN`.
pub(super) fn of(expressions: &[u8]) -> Option<String> {
    let mut words: Vec<String> = Vec::new();
    let mut loaded: Option<(u32, &'static str)> = None;
    let mut target = None;
    for (_, expression) in walk(expressions) {
        let data = find(expression, EXPR_DATA).unwrap_or_default();
        let name = text(expression, EXPR_NAME)?;
        // Nothing follows a target.
        if target.is_some() {
            return None;
        }
        match name.as_str() {
            "counter" => {}
            "meta" => {
                let option = match number(data, META_KEY)? {
                    META_IIFNAME => "-i",
                    META_OIFNAME => "-o",
                    _ => return None,
                };
                loaded = Some((number(data, META_DREG)?, option));
            }
            "cmp" => words.push(compared(data, loaded.take()?)?),
            "match" => words.push(state(data)?),
            "immediate" => target = Some(verdict(data)?.to_owned()),
            "log" => target = Some(logged(data)?),
            "target" => target = Some(logged_by_iptables(data)?),
            _ => return None,
        }
    }
    words.push(target?);
    Some(words.join(" "))
}

/// A whole name of an interface: without its zero it would be the beginning of others.
fn compared(data: &[u8], (register, option): (u32, &str)) -> Option<String> {
    if number(data, CMP_SREG)? != register {
        return None;
    }
    let value = find(find(data, CMP_DATA)?, DATA_VALUE)?;
    let end = value.iter().position(|byte| *byte == 0)?;
    let (name, zeros) = value.split_at_checked(end)?;
    if name.is_empty() || zeros.iter().any(|byte| *byte != 0) {
        return None;
    }
    let name = std::str::from_utf8(name).ok()?;
    match number(data, CMP_OP)? {
        EQUAL => Some(format!("{option} {name}")),
        NOT_EQUAL => Some(format!("! {option} {name}")),
        _ => None,
    }
}

/// `struct xt_conntrack_mtinfo3` (include/uapi/linux/netfilter/xt_conntrack.h) that asks for the state alone.
fn state(data: &[u8]) -> Option<String> {
    if text(data, MATCH_NAME)? != "conntrack" || number(data, MATCH_REVISION)? != 3 {
        return None;
    }
    let info = find(data, MATCH_INFO)?;
    let short = |at: usize| -> Option<u16> {
        Some(u16::from_ne_bytes(info.get(at..at + 2)?.try_into().ok()?))
    };
    let (flags, inverted, mask) = (short(146)?, short(148)?, short(150)?);
    let option = match flags {
        ASKS_FOR_STATE => "-m conntrack --ctstate",
        flags if flags == ASKS_FOR_STATE | AS_STATE => "-m state --state",
        _ => return None,
    };
    let names = [
        (1_u16 << 3, "NEW"),
        (1 << 2, "RELATED"),
        (1 << 1, "ESTABLISHED"),
    ];
    let known: u16 = names.iter().map(|(bit, _)| bit).sum();
    if inverted != 0 || mask == 0 || mask & !known != 0 {
        return None;
    }
    let named = names.iter().filter(|(bit, _)| mask & bit != 0);
    let named: Vec<&str> = named.map(|(_, name)| *name).collect();
    Some(format!("{option} {}", named.join(",")))
}

fn verdict(data: &[u8]) -> Option<&'static str> {
    if number(data, IMMEDIATE_DREG)? != VERDICT_REGISTER {
        return None;
    }
    let verdict = find(find(data, IMMEDIATE_DATA)?, DATA_VERDICT)?;
    match number(verdict, VERDICT_CODE)?.cast_signed() {
        libc::NF_DROP => Some("-j DROP"),
        libc::NF_ACCEPT => Some("-j ACCEPT"),
        _ => None,
    }
}

/// As newer iptables writes NFLOG: an expression of nf_tables with a group.
fn logged(data: &[u8]) -> Option<String> {
    let mut group = None;
    for (kind, value) in walk(data) {
        match kind {
            LOG_GROUP => group = Some(u16::from_be_bytes(value.try_into().ok()?)),
            LOG_THRESHOLD => {}
            LOG_LENGTH if value.iter().all(|byte| *byte == 0) => {}
            // A prefix or a length.
            _ => return None,
        }
    }
    Some(format!("-j NFLOG --nflog-group {}", group?))
}

/// As older iptables writes it: `struct xt_nflog_info`, whose prefix is empty.
fn logged_by_iptables(data: &[u8]) -> Option<String> {
    let info = find(data, TARGET_INFO)?;
    let group = u16::from_ne_bytes(info.get(4..6)?.try_into().ok()?);
    let is_plain = info.get(12) == Some(&0);
    (text(data, TARGET_NAME)? == "NFLOG" && is_plain)
        .then(|| format!("-j NFLOG --nflog-group {group}"))
}

const META_OIFNAME: u32 = libc::NFT_META_OIFNAME as u32;
/// `NFTA_MATCH_REV` and `NFTA_TARGET_INFO`, include/uapi/linux/netfilter/nf_tables_compat.h.
const MATCH_REVISION: u16 = 2;
const TARGET_INFO: u16 = 3;
/// `NFTA_LOG_GROUP`, `NFTA_LOG_SNAPLEN` and `NFTA_LOG_QTHRESHOLD`, include/uapi/linux/netfilter/nf_tables.h.
const LOG_GROUP: u16 = 1;
const LOG_LENGTH: u16 = 3;
const LOG_THRESHOLD: u16 = 4;
/// `XT_CONNTRACK_STATE` and `XT_CONNTRACK_STATE_ALIAS`.
const ASKS_FOR_STATE: u16 = 1;
const AS_STATE: u16 = 1 << 13;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::nfnetlink::attribute::Attribute;

    fn element(name: &str, data: Vec<Attribute>) -> Attribute {
        let inside = vec![
            Attribute::text(EXPR_NAME, name),
            Attribute::nest(EXPR_DATA, data),
        ];
        Attribute::nest(1, inside)
    }

    fn interface(key: u32, operator: u32, name: &[u8]) -> [Attribute; 2] {
        let value = Attribute::nest(CMP_DATA, vec![Attribute::bytes(DATA_VALUE, name)]);
        [
            element(
                "meta",
                vec![
                    Attribute::number(META_KEY, key),
                    Attribute::number(META_DREG, 1),
                ],
            ),
            element(
                "cmp",
                vec![
                    Attribute::number(CMP_SREG, 1),
                    Attribute::number(CMP_OP, operator),
                    value,
                ],
            ),
        ]
    }

    fn conntrack(flags: u16, mask: u16) -> Attribute {
        let mut info = [0; 160];
        info[146..148].copy_from_slice(&flags.to_ne_bytes());
        info[150..152].copy_from_slice(&mask.to_ne_bytes());
        element(
            "match",
            vec![
                Attribute::text(MATCH_NAME, "conntrack"),
                Attribute::number(MATCH_REVISION, 3),
                Attribute::bytes(MATCH_INFO, &info),
            ],
        )
    }

    fn ends(code: i32) -> Attribute {
        let code = Attribute::number(VERDICT_CODE, code.cast_unsigned());
        let data = Attribute::nest(
            IMMEDIATE_DATA,
            vec![Attribute::nest(DATA_VERDICT, vec![code])],
        );
        element(
            "immediate",
            vec![Attribute::number(IMMEDIATE_DREG, VERDICT_REGISTER), data],
        )
    }

    fn words(list: &[Attribute]) -> Option<String> {
        let mut bytes = Vec::new();
        list.iter().for_each(|element| element.write(&mut bytes));
        of(&bytes)
    }

    #[test]
    fn plain_rules_have_the_words_of_iptables_save() {
        let counter = || element("counter", Vec::new());
        let [meta, to_weave] = interface(META_OIFNAME, EQUAL, b"weave\0");
        let drop = [meta, to_weave, counter(), ends(libc::NF_DROP)];
        assert_eq!(words(&drop).as_deref(), Some("-o weave -j DROP"));
        let [meta, from] = interface(META_IIFNAME, EQUAL, b"weave\0");
        let [meta2, not_to] = interface(META_OIFNAME, NOT_EQUAL, b"weave\0");
        let out = [meta, from, meta2, not_to, counter(), ends(libc::NF_ACCEPT)];
        assert_eq!(
            words(&out).as_deref(),
            Some("-i weave ! -o weave -j ACCEPT")
        );
        let [meta, to_weave] = interface(META_OIFNAME, EQUAL, b"weave\0");
        let replies = [meta, to_weave, conntrack(1, 6), ends(libc::NF_ACCEPT)];
        assert_eq!(
            words(&replies).as_deref(),
            Some("-o weave -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
        );
        let group = Attribute::bytes(LOG_GROUP, &86_u16.to_be_bytes());
        let logged = [conntrack(1 | AS_STATE, 8), element("log", vec![group])];
        assert_eq!(
            words(&logged).as_deref(),
            Some("-m state --state NEW -j NFLOG --nflog-group 86")
        );
    }

    #[test]
    fn a_rule_with_more_has_no_words() {
        // As iptables writes `weave+`.
        let [meta, open] = interface(META_OIFNAME, EQUAL, b"weave");
        assert_eq!(words(&[meta, open, ends(libc::NF_DROP)]), None);
        let [meta, to_weave] = interface(META_OIFNAME, EQUAL, b"weave\0");
        let narrowed = [
            meta,
            to_weave,
            element("payload", Vec::new()),
            ends(libc::NF_DROP),
        ];
        assert_eq!(words(&narrowed), None);
        let [meta, to_weave] = interface(META_OIFNAME, EQUAL, b"weave\0");
        assert_eq!(words(&[meta, to_weave]), None, "no target");
        assert_eq!(words(&[conntrack(3, 6), ends(libc::NF_ACCEPT)]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            of(&bytes);
        }
    }
}
