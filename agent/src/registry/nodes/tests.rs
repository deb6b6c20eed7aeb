use proptest::prelude::*;

use super::*;

fn conf(text: &str) -> NetConf {
    NetConf::parse(text).unwrap()
}

fn vxlan() -> NetConf {
    conf(r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#)
}

fn node(name: &str, number: u8, rest: &str) -> String {
    format!(
        "[[node]]\nname = {name:?}\nsubnets = [\"10.244.{number}.0/24\"]\npublic-ip = \"192.0.2.{number}\"\n{rest}\n"
    )
}

fn refusal(text: &str) -> String {
    match parse(text, &vxlan()) {
        Ok(leases) => panic!("{text}: accepted as {leases:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn an_entry_of_needed_keys_alone_gets_defaults() {
    let leases = parse(&node("n1", 1, ""), &vxlan()).unwrap();
    let expected = Lease {
        name: "n1".to_owned(),
        subnets: vec!["10.244.1.0/24".parse().unwrap()],
        public: PublicAddresses::V4([192, 0, 2, 1].into()),
        format: Format::Vxlan,
        vtep_mac: PerFamily::each(|_| "0a:74:c0:00:02:01".parse().unwrap()),
        accept_sources: vec![],
        underlay_sources: vec![],
        kernel_path: None,
    };
    assert_eq!(leases, [expected]);
    let udp = conf(r#"{"Network":"10.244.0.0/16"}"#);
    assert_eq!(
        parse(&node("n1", 1, ""), &udp).unwrap()[0].format,
        Format::Udp
    );
    assert_eq!(parse("", &vxlan()).unwrap(), []);
}

#[test]
fn an_entry_with_every_key_is_read_as_written() {
    let rest = r#"
        backend = "udp"
        vtep-mac = "2e:fd:04:c7:59:61"
        accept-sources = ["10.9.0.0/16", "2001:db8:9::/48"]
        underlay-sources = ["198.51.100.7", "2001:db8::7"]
    "#;
    let lease = parse(&node("n1", 1, rest), &vxlan()).unwrap().remove(0);
    assert_eq!(
        (lease.format, lease.vtep_mac.v4.to_string().as_str()),
        (Format::Udp, "2e:fd:04:c7:59:61")
    );
    assert_eq!(
        (lease.accept_sources.len(), lease.underlay_sources.len()),
        (2, 2)
    );
}

#[test]
fn subnets_of_both_families_are_read() {
    let both = conf(r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48"}"#);
    let text = r#"
        [[node]]
        name = "n1"
        subnets = ["10.244.1.0/24", "fd00:0:0:1::/64"]
        public-ip = "2001:db8::1"
    "#;
    let lease = parse(text, &both).unwrap().remove(0);
    assert_eq!(
        (lease.subnets.len(), lease.public),
        (2, PublicAddresses::V6("2001:db8::1".parse().unwrap()))
    );
}

#[test]
fn a_node_may_have_an_address_and_a_mac_per_family() {
    let (v4, v6) = ("192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap());
    let dual = "public-ipv6 = \"2001:db8::1\"";
    let lease = parse(&node("n1", 1, dual), &vxlan()).unwrap().remove(0);
    assert_eq!(lease.public, PublicAddresses::Dual(v4, v6));
    // Without vtep-mac-v6, one MAC serves both families.
    let default = "0a:74:c0:00:02:01".parse().unwrap();
    assert_eq!(lease.vtep_mac, PerFamily::each(|_| default));
    let own = "vtep-mac-v6 = \"2e:fd:04:c7:59:62\"";
    let lease = parse(&node("n1", 1, &format!("{dual}\n{own}")), &vxlan());
    let v6 = "2e:fd:04:c7:59:62".parse().unwrap();
    let expected = PerFamily { v4: default, v6 };
    assert_eq!(lease.unwrap()[0].vtep_mac, expected);
    let named = "vtep-mac = \"2e:fd:04:c7:59:61\"";
    let lease = parse(&node("n1", 1, named), &vxlan()).unwrap().remove(0);
    let mac = "2e:fd:04:c7:59:61".parse().unwrap();
    assert_eq!(lease.vtep_mac, PerFamily::each(|_| mac));
}

#[test]
fn entries_that_share_a_public_address_and_agree_are_accepted() {
    let second =
        "[[node]]\nname = \"b\"\nsubnets = [\"10.244.9.0/24\"]\npublic-ip = \"192.0.2.1\"\n";
    let leases = parse(
        &format!(
            "{}{second}",
            node("a", 1, "underlay-sources = [\"198.51.100.7\"]")
        ),
        &vxlan(),
    );
    assert_eq!(leases.unwrap().len(), 2);
}

#[test]
fn every_refusal_names_its_line_and_its_remedy() {
    let one = |rest: &str| node("n1", 1, rest);
    let two = |rest: &str| format!("{}{}", node("n1", 1, ""), node("n2", 2, rest));
    let shared = |rest: &str| {
        format!(
            "{}[[node]]\nname = \"n2\"\nsubnets = [\"10.244.2.0/24\"]\npublic-ip = \"192.0.2.1\"\n{rest}",
            one("")
        )
    };
    let with = |key: &str, value: &str| {
        let mut lines = vec!["[[node]]".to_owned()];
        for (name, usual) in [
            ("name", "\"n1\""),
            ("subnets", "[\"10.244.1.0/24\"]"),
            ("public-ip", "\"192.0.2.1\""),
        ] {
            lines.push(format!(
                "{name} = {}",
                if name == key { value } else { usual }
            ));
        }
        lines.join("\n")
    };
    let cases = [
        (
            "[[nodes]]".to_owned(),
            "line 1: unknown key \"nodes\", did you mean \"node\"?",
        ),
        ("node = 1".to_owned(), "line 1: node must be a list"),
        (
            "node = [1]".to_owned(),
            "line 1: node must be a table, not a number",
        ),
        (
            one("backnd = \"udp\""),
            "line 5: unknown key \"backnd\", did you mean \"backend\"?",
        ),
        (
            "\n[[node]]\nname = \"a\"".to_owned(),
            "line 2: this node has no public-ip: add it",
        ),
        ("[[node]]".to_owned(), "line 1: this node has no name"),
        (with("name", "7"), "line 2: name must be text in quotes"),
        (
            with("name", "\"a b\""),
            "line 2: \"a b\" is not a valid node name",
        ),
        (
            with("name", "\"\""),
            "line 2: \"\" is not a valid node name",
        ),
        (
            with("subnets", "[]"),
            "line 3: this node has no subnets: add it",
        ),
        (
            with("subnets", "\"10.244.1.0/24\""),
            "line 3: subnets must be a list in brackets, not text",
        ),
        (
            with("subnets", "[\n\"10.244.1.0\"]"),
            "line 4: subnets must be a prefix as in 10.244.1.0/24, not \"10.244.1.0\"",
        ),
        (
            with("subnets", "[\"10.244.01.0/24\"]"),
            "line 3: subnets must be a prefix",
        ),
        (
            with("subnets", "[\"10.244.1.9/24\"]"),
            "has bits set after the prefix length: write 10.244.1.0/24",
        ),
        (
            with("subnets", "[\"10.245.1.0/24\"]"),
            "line 3: subnet 10.245.1.0/24 of n1 lies outside the cluster network 10.244.0.0/16",
        ),
        (
            with("subnets", "[\"fd00::/64\"]"),
            "lies outside the cluster network",
        ),
        (
            with("subnets", "[\"10.244.0.0/15\"]"),
            "lies outside the cluster network",
        ),
        (
            with("subnets", "[\"10.244.1.0/31\"]"),
            "line 3: subnet 10.244.1.0/31 of n1 is too small: /30 is the longest",
        ),
        (
            with("subnets", "[\"10.244.1.0/24\", \"10.244.1.0/24\"]"),
            "overlaps 10.244.1.0/24 of n1",
        ),
        (
            with("public-ip", "\"n1.example\""),
            "line 4: public-ip must be an IP address, not \"n1.example\"",
        ),
        (
            with("public-ip", "\"127.0.0.1\""),
            "line 4: public-ip 127.0.0.1 of n1 is loopback",
        ),
        (
            with("public-ip", "\"224.0.0.1\""),
            "public-ip 224.0.0.1 of n1 is multicast",
        ),
        (
            with("public-ip", "\"0.0.0.0\""),
            "public-ip 0.0.0.0 of n1 is unspecified",
        ),
        (
            with("public-ip", "\"10.244.9.1\""),
            "public-ip 10.244.9.1 of n1 lies inside the cluster network 10.244.0.0/16",
        ),
        (
            one("backend = \"ipip\""),
            "line 5: backend \"ipip\" does not exist: use \"udp\" or \"vxlan\"",
        ),
        (
            one("vtep-mac = \"2e:fd\""),
            "line 5: vtep-mac \"2e:fd\": a MAC address is six pairs",
        ),
        (
            one("vtep-mac = \"00:00:00:00:00:00\""),
            "vtep-mac 00:00:00:00:00:00 is zero or multicast",
        ),
        (
            one("vtep-mac = \"01:00:5e:00:00:01\""),
            "vtep-mac 01:00:5e:00:00:01 is zero or multicast",
        ),
        (
            one("accept-sources = [\"10.244.7.0/24\"]"),
            "line 5: accept-sources 10.244.7.0/24 of n1 overlaps the cluster network",
        ),
        (
            one("accept-sources = [\"0.0.0.0/0\"]"),
            "overlaps the cluster network 10.244.0.0/16",
        ),
        (
            one("underlay-sources = [\"::1\"]"),
            "line 5: underlay-sources ::1 of n1 is loopback",
        ),
        (
            one("underlay-sources = [\"10.244.0.1\"]"),
            "underlay-sources 10.244.0.1 of n1 lies inside the cluster",
        ),
        (
            two("underlay-sources = [\"192.0.2.1\"]"),
            "line 10: underlay-sources 192.0.2.1 of n2 is also an address of n1",
        ),
        (
            two("vtep-mac = \"0a:74:c0:00:02:01\""),
            "line 10: n2 and n1 have the same vtep-mac 0a:74:c0:00:02:01",
        ),
        (
            format!("{}{}", one(""), node("n1", 2, "")),
            "line 7: a second node is named \"n1\"",
        ),
        (
            shared("backend = \"udp\""),
            "line 9: n2 and n1 share public-ip 192.0.2.1, so they are one peer and need one backend",
        ),
        (
            shared("vtep-mac = \"2e:fd:04:c7:59:61\""),
            "line 10: n2 and n1 share public-ip 192.0.2.1, so they are one peer and need one vtep-mac",
        ),
        (
            one("public-ipv6 = \"192.0.2.9\""),
            "line 5: public-ipv6 192.0.2.9 of n1 is an IPv4 address: name it as public-ip",
        ),
        (
            one("public-ipv6 = \"fe80::1\""),
            "line 5: public-ipv6 fe80::1 of n1 is link-local",
        ),
        (
            with(
                "public-ip",
                "\"2001:db8::1\"\npublic-ipv6 = \"2001:db8::2\"",
            ),
            "line 4: public-ip 2001:db8::1 of n1 is an IPv6 address already: leave public-ipv6 out",
        ),
        (
            one("vtep-mac-v6 = \"2e:fd\""),
            "line 5: vtep-mac-v6 \"2e:fd\": a MAC address is six pairs",
        ),
        (
            one("vtep-mac-v6 = \"ff:ff:ff:ff:ff:ff\""),
            "vtep-mac-v6 ff:ff:ff:ff:ff:ff is zero or multicast",
        ),
        (
            two("vtep-mac-v6 = \"0a:74:c0:00:02:01\""),
            "line 10: n2 and n1 have the same vtep-mac-v6 0a:74:c0:00:02:01",
        ),
        (
            shared("vtep-mac-v6 = \"2e:fd:04:c7:59:61\""),
            "line 10: n2 and n1 share public-ip 192.0.2.1, so they are one peer and need one vtep-mac-v6",
        ),
        (
            shared("public-ipv6 = \"2001:db8::1\""),
            "line 9: n2 and n1 share public-ip 192.0.2.1, so they are one peer and need one pair of public-ip and public-ipv6",
        ),
        (
            format!(
                "{}{}",
                one("public-ipv6 = \"2001:db8::1\"\n"),
                node("n2", 2, "public-ipv6 = \"2001:db8::1\"")
            ),
            "n2 and n1 share public-ipv6 2001:db8::1, so they are one peer and need one pair",
        ),
        (
            format!(
                "{}{}",
                one("public-ipv6 = \"2001:db8::1\"\n"),
                node("n2", 2, "underlay-sources = [\"2001:db8::1\"]")
            ),
            "underlay-sources 2001:db8::1 of n2 is also an address of n1",
        ),
        (one("name = \"again\""), "line 5: not TOML"),
        (
            format!(
                "{}[[node]]\nname = \"n2\"\nsubnets = [\"10.244.0.0/20\"]\npublic-ip = \"192.0.2.2\"",
                one("")
            ),
            "line 8: subnet 10.244.0.0/20 of n2 overlaps 10.244.1.0/24 of n1: give each node its own",
        ),
    ];
    for (text, expected) in cases {
        let message = refusal(&text);
        assert!(
            message.contains(expected),
            "{text}\nsaid: {message}\nnot:  {expected}"
        );
    }
}

#[test]
fn an_overlap_is_found_between_any_two_entries() {
    // The wide subnet and the narrow one inside it are not neighbours in the file, nor in the order of bases.
    let subnets = [
        "10.244.64.0/18",
        "10.244.1.0/24",
        "10.244.66.0/24",
        "10.244.65.0/24",
    ];
    let text: String = (1..)
        .zip(subnets)
        .map(|(i, subnet)| {
            format!(
                "[[node]]\nname = \"n{i}\"\nsubnets = [\"{subnet}\"]\npublic-ip = \"192.0.2.{i}\"\n"
            )
        })
        .collect();
    assert!(refusal(&text).contains("overlaps 10.244.64.0/18 of n1"));
}

#[test]
fn five_thousand_nodes_are_read() {
    let big = conf(r#"{"Network":"10.0.0.0/8"}"#);
    let text: String = (0..5000u32).map(|i| {
        let (b, c) = (i / 250, i % 250 + 1);
        format!("[[node]]\nname = \"n{i}\"\nsubnets = [\"10.{b}.{c}.0/24\"]\npublic-ip = \"192.1.{b}.{c}\"\n")
    }).collect();
    assert_eq!(parse(&text, &big).unwrap().len(), 5000);
}

/// Files close enough to the format to pass the first check.
fn nearly() -> impl Strategy<Value = String> {
    let subnet =
        (0..6u8, 20..33u8).prop_map(|(c, len)| format!("subnets = [\"10.244.{c}.0/{len}\"]"));
    let line = prop_oneof![
        "(name|backend|vtep-mac) = \"[a-c]\"",
        subnet,
        (0..4u8).prop_map(|d| format!("public-ip = \"192.0.2.{d}\"")),
        (0..4u8).prop_map(|d| format!("underlay-sources = [\"192.0.2.{d}\"]")),
        (0..4u8).prop_map(|d| format!("public-ipv6 = \"2001:db8::{d}\"")),
        (0..4u8).prop_map(|d| format!("vtep-mac-v6 = \"0a:74:c0:00:02:0{d}\"")),
        (0..4u8).prop_map(|d| format!("vtep-mac = \"0a:74:c0:00:02:0{d}\"")),
        Just("[[node]]".to_owned()),
    ];
    prop::collection::vec(line, 0..30).prop_map(|lines| lines.join("\n"))
}

/// Complete entries from a small range of values, so that they often conflict.
fn entries() -> impl Strategy<Value = Vec<(u8, u8, u8, u8)>> {
    prop::collection::vec((0..5u8, 0..16u8, 22..27u8, 1..6u8), 0..5)
}

proptest! {
    #[test]
    fn no_text_panics(text in any::<String>(), near in nearly()) {
        let _ = parse(&text, &vxlan());
        let _ = parse(&near, &vxlan());
    }

    /// Independent oracle: compares every pair of entries.
    #[test]
    fn a_list_is_accepted_if_and_only_if_no_pair_conflicts(entries in entries()) {
        let subnet = |c: u8, len: u8| IpNet::new(IpAddr::from([10, 244, c, 0]), len).unwrap().trunc();
        let text: String = entries.iter().map(|(name, c, len, host)| format!(
            "[[node]]\nname = \"n{name}\"\nsubnets = [\"{}\"]\npublic-ip = \"192.0.2.{host}\"\n", subnet(*c, *len)
        )).collect();
        let pairs = || entries.iter().enumerate().flat_map(|(i, a)| entries[..i].iter().map(move |b| (a, b)));
        let conflict = pairs().any(|(a, b)| {
            let (x, y) = (subnet(a.1, a.2), subnet(b.1, b.2));
            a.0 == b.0 || x.contains(&y) || y.contains(&x)
        });
        prop_assert_eq!(parse(&text, &vxlan()).is_err(), conflict, "{}", text);
    }

    #[test]
    fn an_error_names_a_line_of_the_file(near in nearly()) {
        if let Err(error) = parse(&near, &vxlan()) {
            prop_assert!((1..=near.lines().count().max(1)).contains(&error.line), "{}\n{}", error, near);
        }
    }
}
