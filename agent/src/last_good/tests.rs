use std::fs;

use dataplane::families::{PerFamily, PublicAddresses};
use proptest::prelude::*;

use super::*;

const NET_CONF: &str = "{\"Network\":\"10.244.0.0/16\",\n \"Backend\":{\"Type\":\"vxlan\"}}";

fn node(number: u8, rest: &str) -> String {
    format!(
        "[[node]]\nname = \"n{number}\"\nsubnets = [\"10.244.{number}.0/24\"]\npublic-ip = \"192.0.2.{number}\"\n{rest}\n"
    )
}

fn leases(nodes: &str) -> Vec<Lease> {
    registry::parse(nodes, &NetConf::parse(NET_CONF).unwrap()).unwrap()
}

fn two() -> Vec<Lease> {
    let rest = "backend = \"udp\"\nvtep-mac = \"2e:fd:04:c7:59:61\"\naccept-sources = [\"10.9.0.0/16\", \"2001:db8::/32\"]\nunderlay-sources = [\"198.51.100.7\"]\n";
    leases(&[node(1, ""), node(2, rest)].concat())
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

/// The bytes of a state of node n1, written at 1,000 s.
fn written() -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "n1", NET_CONF, &two(), at(1_000)).unwrap();
    fs::read(directory.path().join(NAME)).unwrap()
}

/// A file whose digest is right, whatever else is in it.
fn forged(change: impl FnOnce(&mut StateFile)) -> Vec<u8> {
    let mut file: StateFile = serde_json::from_slice(&written()).unwrap();
    change(&mut file);
    file.digest = file.digest_of_rest();
    serde_json::to_vec(&file).unwrap()
}

fn refusal(bytes: &[u8]) -> String {
    parse(bytes, Some("n1"), at(1_060)).unwrap_err().to_string()
}

#[test]
fn what_is_written_is_read_back_with_its_age() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("var/lib/tartan");
    assert_eq!(LastGood::read(&state, "n1", at(0)).unwrap(), None);
    write(&state, "n1", NET_CONF, &two(), at(1_000)).unwrap();
    let read = |now| LastGood::read(&state, "n1", at(now)).unwrap().unwrap();
    let expected = LastGood {
        net_conf: NetConf::parse(NET_CONF).unwrap(),
        net_conf_text: NET_CONF.to_owned(),
        leases: two(),
        own: two().remove(0),
        age: Duration::from_secs(60),
    };
    assert_eq!(read(1_060), expected);
    assert_eq!(read(5).age, Duration::ZERO, "a clock that went back");
    assert!(LastGood::read(&state, "n2", at(1_060)).is_err());
    let of_any = LastGood::read_of_any_node(&state, at(1_060)).unwrap();
    assert_eq!(of_any, Some(expected), "to be shown, it may be any node's");
    write(&state, "n1", NET_CONF, &two()[..1], at(1_000)).unwrap();
    assert_eq!(read(1_000).leases, two()[..1]);
}

#[test]
fn what_is_damaged_or_edited_is_refused_with_the_reason() {
    let good = written();
    for cut in [0, 1, good.len() / 2, good.len() - 1] {
        let said = refusal(&good[..cut]);
        assert!(said.starts_with("it is damaged: EOF"), "{said}");
    }
    let text = String::from_utf8(good).unwrap();
    for (from, to) in [
        ("192.0.2.2", "192.0.2.3"),
        ("10.244.0.0", "10.245.0.0"),
        ("\"n1\"", "\"n3\""),
        ("1000", "1001"),
    ] {
        assert!(text.contains(from), "{from}");
        let said = refusal(text.replacen(from, to, 1).as_bytes());
        assert!(said.contains("edited or damaged"), "{said}");
    }
    assert!(refusal(text.replace("version\": 1", "version\": 2").as_bytes()).contains("version 2"));
    assert!(refusal(b"[]").starts_with("it is damaged: "));
    assert!(refusal(text.replacen('{', "{\"more\":1,", 1).as_bytes()).contains("more"));
}

#[test]
fn a_forger_gets_no_further_than_the_files_would() {
    type Forgery = (fn(&mut StateFile), &'static str);
    let forgeries: [Forgery; 8] = [
        (
            |file| file.node = "n2".into(),
            "it is of the node \"n2\", this node is \"n1\"",
        ),
        (
            |file| file.net_conf = "{}".into(),
            "its net-conf has a fault: ",
        ),
        (
            |file| file.net_conf = "[".repeat(100_000),
            "its net-conf has a fault: ",
        ),
        (|file| file.nodes = "[[node]]\n".into(), "has no name"),
        (|file| file.nodes = node(2, ""), "no node is named \"n1\""),
        (
            |file| file.nodes.push_str(&node(1, "")),
            "a second node is named \"n1\"",
        ),
        (
            |file| {
                file.nodes = [node(1, ""), node(2, "").replace("192.0.2.2", "192.0.2.1")].concat()
            },
            "n2 has this node's public-ip 192.0.2.1",
        ),
        (
            |file| file.nodes = file.nodes.replace("10.244.2.", "10.99.2."),
            "outside the cluster network",
        ),
    ];
    for (forgery, part) in forgeries {
        let said = refusal(&forged(forgery));
        assert!(said.contains(part), "{part} is not in: {said}");
    }
    assert!(parse(&forged(|_| ()), Some("n1"), at(0)).is_ok());
}

#[test]
fn a_state_of_another_cluster_is_refused_by_its_networks() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "n1", NET_CONF, &two(), at(0)).unwrap();
    let kept = LastGood::read(directory.path(), "n1", at(0))
        .unwrap()
        .unwrap();
    let fits = |text: &str| kept.belongs_to(&NetConf::parse(text).unwrap(), directory.path());
    // Another backend is another way to talk, not another cluster.
    fits(r#"{"Network":"10.244.0.0/16","Backend":{"Type":"udp"}}"#).unwrap();
    for other in [
        r#"{"Network":"10.0.0.0/8"}"#,
        r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48"}"#,
    ] {
        let error = fits(other).unwrap_err();
        let said = crate::causes::causes(&error);
        assert!(said.contains("last-good.json is refused"), "{said}");
        assert!(
            said.contains("a cluster with the network 10.244.0.0/16"),
            "{said}"
        );
    }
}

#[test]
fn a_file_that_is_not_ours_or_too_long_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(NAME);
    let said = || {
        let error = LastGood::read(directory.path(), "n1", at(0)).unwrap_err();
        crate::causes::causes(&error)
    };
    fs::create_dir(&path).unwrap();
    assert!(said().contains("not a regular file"), "{}", said());
    fs::remove_dir(&path).unwrap();
    fs::File::create(&path)
        .unwrap()
        .set_len(MOST_BYTES + 1)
        .unwrap();
    assert!(said().contains("longer than any"), "{}", said());
}

#[test]
fn a_directory_that_cannot_be_written_is_named_with_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("file"), "").unwrap();
    let state = directory.path().join("file");
    let error = write(&state, "n1", NET_CONF, &two(), at(0)).unwrap_err();
    let said = crate::causes::causes(&error);
    assert!(said.contains("file/last-good.json"), "{said}");
    assert!(said.contains("its disk not full: "), "{said}");
}

#[test]
fn the_longest_list_fits() {
    let nodes: String = (0..20_000u32)
        .map(|n| {
            let [_, _, high, low] = n.to_be_bytes();
            format!("[[node]]\nname = \"a-node-with-a-long-name-{n}.example\"\nsubnets = [\"10.{high}.{low}.0/24\"]\npublic-ip = \"192.168.{high}.{low}\"\n")
        })
        .collect();
    let conf = r#"{"Network":"10.0.0.0/8"}"#;
    let leases = registry::parse(&nodes, &NetConf::parse(conf).unwrap()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let name = &leases[0].name;
    write(directory.path(), name, conf, &leases, at(0)).unwrap();
    let read = LastGood::read(directory.path(), name, at(0)).unwrap();
    assert_eq!(read.unwrap().leases, leases);
}

fn public(number: u8, kind: u8) -> PublicAddresses {
    let v4 = [192, 0, 2, number].into();
    let v6 = [0x2001, 0xdb8, 0, 0, 0, 0, 0, number.into()].into();
    match kind {
        0 => PublicAddresses::V4(v4),
        1 => PublicAddresses::V6(v6),
        _ => PublicAddresses::Dual(v4, v6),
    }
}

fn any_lease() -> impl Strategy<Value = Lease> {
    let sources = proptest::collection::vec(any::<[u8; 4]>(), 0..3);
    let parts = (1u8..250, any::<bool>(), 0..4u8, any::<[u8; 4]>(), sources);
    parts.prop_map(|(number, udp, kind, [a, b, c, d], sources)| Lease {
        name: format!("n{number}"),
        subnets: vec![IpNet::new([10, 244, number, 0].into(), 24).unwrap()],
        public: public(number, kind),
        format: if udp {
            encap::Format::Udp
        } else {
            encap::Format::Vxlan
        },
        vtep_mac: PerFamily {
            v4: encap::Mac([2, number, a, b, c, d]),
            v6: encap::Mac([2 + 4 * (kind & 1), number, a, b, c, d]),
        },
        accept_sources: sources
            .iter()
            .map(|[a, b, ..]| IpNet::new([172, 16, *a, *b].into(), 32).unwrap())
            .collect(),
        kernel_path: [None, Some(true), Some(false)][usize::from(number) % 3],
        underlay_sources: sources
            .iter()
            .map(|[.., d]| [198, 51, number, *d].into())
            .collect(),
    })
}

fn any_leases() -> impl Strategy<Value = Vec<Lease>> {
    proptest::collection::vec(any_lease(), 1..6).prop_map(|mut leases| {
        leases.sort_by(|a, b| a.name.cmp(&b.name));
        leases.dedup_by(|a, b| a.name == b.name);
        // Our own, of which a second MAC would be refused.
        leases[0].vtep_mac.v6 = leases[0].vtep_mac.v4;
        leases
    })
}

proptest! {
    #[test]
    fn any_list_survives_the_disk(leases in any_leases(), adopted in 0u64..1 << 40, later in 0u64..1 << 40) {
        let directory = tempfile::tempdir().unwrap();
        let name = leases[0].name.clone();
        write(directory.path(), &name, NET_CONF, &leases, at(adopted)).unwrap();
        let read = LastGood::read(directory.path(), &name, at(adopted + later)).unwrap().unwrap();
        prop_assert_eq!(&read.own, &leases[0]);
        prop_assert_eq!(read.leases, leases);
        prop_assert_eq!(read.age, Duration::from_secs(later));
    }

    #[test]
    fn any_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(parse(&bytes, Some("n1"), at(0)).is_err());
    }

    /// One byte is enough: nothing but what was written is believed.
    #[test]
    fn any_byte_changed_is_refused_or_changes_nothing(place in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let good = written();
        let mut bytes = good.clone();
        bytes[place.index(good.len())] = byte;
        if let Ok(read) = parse(&bytes, Some("n1"), at(1_000)) {
            prop_assert_eq!(read, parse(&good, Some("n1"), at(1_000)).unwrap());
        }
    }

    #[test]
    fn any_text_in_any_field_is_refused_or_valid(net_conf in any::<String>(), nodes in any::<String>()) {
        prop_assert!(parse(&forged(|file| file.net_conf = net_conf), Some("n1"), at(0)).is_err());
        prop_assert!(parse(&forged(|file| file.nodes = nodes), Some("n1"), at(0)).is_err());
    }
}
