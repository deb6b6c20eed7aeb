use proptest::prelude::*;

use super::super::table::Written;
use super::*;

const V4: &str = r#"{"Network":"10.244.0.0/16"}"#;
const DUAL: &str =
    r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:244::/48"}"#;
/// 10.5.0.0/26 has subnets of /28; the first is not leased.
const SMALL: &str = r#"{"Network":"10.5.0.0/26","SubnetLen":28}"#;

fn conf(text: &str) -> NetConf {
    NetConf::parse(text).unwrap()
}

fn key(text: &str) -> SubnetKey {
    text.parse().unwrap()
}

/// Keys and the last octets of the addresses in them.
fn table(records: &[(&str, u8)]) -> Table {
    let mut table = Table::new("/p");
    let list = records
        .iter()
        .zip(1..)
        .map(|((key, octet), revision)| Written {
            key: format!("/p/subnets/{key}").into_bytes(),
            value: format!(r#"{{"PublicIP":"192.0.2.{octet}","PublicIPv6":null}}"#).into_bytes(),
            create_revision: revision,
            mod_revision: revision,
            lease: 7,
        });
    table.replace(list.collect());
    table
}

fn ours() -> PublicAddresses {
    PublicAddresses::V4([192, 0, 2, 1].into())
}

fn step(records: &[(&str, u8)], previous: &[&str], net_conf: &str, random: u64) -> Step {
    let previous: Vec<IpNet> = previous.iter().map(|text| text.parse().unwrap()).collect();
    let node = ThisNode {
        previous: &previous,
        ..this_node(ours())
    };
    decide(&table(records), &node, &conf(net_conf), random)
}

fn this_node(public: PublicAddresses) -> ThisNode<'static> {
    ThisNode {
        held: None,
        public,
        vtep_mac: PerFamily::each(|_| Mac([2, 0, 0, 0, 0, 1])),
        last: &[],
        previous: &[],
    }
}

#[test]
fn the_lease_with_this_nodes_address_is_its_own() {
    let records = [("10.244.5.0-24", 5), ("10.244.7.0-24", 1)];
    assert_eq!(
        step(&records, &["10.244.9.0/24"], V4, 0),
        Step::Keep(key("10.244.7.0-24"))
    );
    let two = [("10.244.5.0-24", 1), ("10.244.7.0-24", 1)];
    assert_eq!(
        step(&two, &[], V4, 0),
        Step::Keep(key("10.244.5.0-24")),
        "the first"
    );
    assert_eq!(
        step(&two, &["10.244.7.0/24"], V4, 0),
        Step::Keep(key("10.244.7.0-24"))
    );
}

#[test]
fn an_own_lease_of_a_wrong_range_or_length_is_deleted() {
    for wrong in [
        "10.244.7.0-25",
        "10.245.7.0-24",
        "10.244.0.0-24",
        "10.244.7.1-24",
    ] {
        assert_eq!(
            step(&[(wrong, 1)], &[], V4, 0),
            Step::Delete(key(wrong)),
            "{wrong}"
        );
    }
    let dual = "10.244.7.0-24&fd00:10:244:7::-64";
    assert_eq!(step(&[(dual, 1)], &[], V4, 0), Step::Delete(key(dual)));
    assert_eq!(step(&[(dual, 1)], &[], DUAL, 0), Step::Keep(key(dual)));
    let v4 = "10.244.7.0-24";
    assert_eq!(step(&[(v4, 1)], &[], DUAL, 0), Step::Delete(key(v4)));
    let both = [("10.244.7.0-25", 1), (v4, 1)];
    assert_eq!(
        step(&both, &[], V4, 0),
        Step::Keep(key(v4)),
        "one of them is right"
    );
}

#[test]
fn a_lease_in_use_is_kept_whatever_the_configuration_says() {
    for wrong in ["10.244.7.0-25", "10.245.7.0-24", "10.244.0.0-24"] {
        let subnets = key(wrong).subnets();
        let table = table(&[(wrong, 1)]);
        let decide = |node: &ThisNode<'_>| decide(&table, node, &conf(V4), 0);
        let held = Some(Held {
            subnet: key(wrong),
            mod_revision: 1,
        });
        let (this, last) = (this_node(ours()), &subnets);
        let kept = Step::Keep(key(wrong));
        assert_eq!(decide(&ThisNode { held, last, ..this }), kept, "held");
        let previous = &subnets;
        assert_eq!(decide(&ThisNode { previous, ..this }), kept, "a restart");
        let other = ["10.244.9.0/24".parse().unwrap()];
        let later = decide(&ThisNode {
            last: &other,
            ..this
        });
        assert!(!matches!(later, Step::Delete(_)), "{later:?}");
    }
    let had = ["10.244.7.0/24"];
    let key_v4 = "10.244.7.0-24";
    let expected = Step::Delete(key(key_v4));
    assert_eq!(step(&[(key_v4, 1)], &had, DUAL, 0), expected, "outgrown");
}

#[test]
fn a_subnet_that_was_in_use_is_taken_again_whatever_the_range() {
    let narrow = r#"{"Network":"10.244.0.0/16","SubnetLen":26,"SubnetMin":"10.244.128.0"}"#;
    let last = ["10.244.7.0/24".parse().unwrap()];
    let node = ThisNode {
        last: &last,
        ..this_node(ours())
    };
    let decide = |records, text| decide(&table(records), &node, &conf(text), 0);
    assert_eq!(decide(&[], narrow), Step::Create(key("10.244.7.0-24")));
    let taken = decide(&[("10.244.7.0-25", 5)], narrow);
    assert_eq!(taken, Step::Create(key("10.244.128.0-26")));
    let elsewhere = decide(&[], r#"{"Network":"10.99.0.0/16"}"#);
    assert_eq!(elsewhere, Step::Create(key("10.99.1.0-24")));
}

/// The address in it is the one that it had.
#[test]
fn a_lease_that_this_node_had_is_its_own_by_its_mac() {
    let value = |mac: &str| {
        format!(
            r#"{{"PublicIP":"192.0.2.5","BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"{mac}"}}}}"#
        )
    };
    let decide = |value: String, previous: &[IpNet]| {
        let mut table = table(&[]);
        table.put(Written {
            key: b"/p/subnets/10.244.7.0-24".to_vec(),
            value: value.into_bytes(),
            create_revision: 1,
            mod_revision: 1,
            lease: 7,
        });
        let node = ThisNode {
            previous,
            ..this_node(ours())
        };
        decide(&table, &node, &conf(V4), 0)
    };
    let had = ["10.244.7.0/24".parse().unwrap()];
    let (ours, other) = ("02:00:00:00:00:01", "02:00:00:00:00:05");
    let kept = Step::Keep(key("10.244.7.0-24"));
    let drawn = Step::Create(key("10.244.1.0-24"));
    assert_eq!(decide(value(ours), &had), kept);
    assert_eq!(decide(value(ours), &[]), drawn, "not one that it had");
    assert_eq!(decide(value(other), &had), drawn, "another node's MAC");
    let udp = r#"{"PublicIP":"192.0.2.5"}"#.to_owned();
    assert_eq!(decide(udp, &had), drawn, "no MAC");
    assert_eq!(decide("hi".to_owned(), &had), kept, "no lease at all");
    assert_eq!(decide("hi".to_owned(), &[]), drawn);
}

#[test]
fn the_previous_subnet_is_taken_where_it_is_free_and_allowed() {
    assert_eq!(
        step(&[], &["10.244.9.0/24"], V4, 0),
        Step::Create(key("10.244.9.0-24"))
    );
    let wrong = ["10.245.9.0/24", "10.244.9.0/25", "fd00:10:244:9::/64"];
    assert_eq!(step(&[], &wrong, V4, 0), Step::Create(key("10.244.1.0-24")));
    for taken in ["10.244.9.0-24", "10.244.8.0-23", "10.244.9.128-25"] {
        let expected = Step::Create(key("10.244.1.0-24"));
        assert_eq!(
            step(&[(taken, 5)], &["10.244.9.0/24"], V4, 0),
            expected,
            "{taken}"
        );
    }
}

#[test]
fn the_families_are_decided_alone() {
    let previous = ["fd00:10:244:9::/64"];
    let expected = key("10.244.1.0-24&fd00:10:244:9::-64");
    assert_eq!(step(&[], &previous, DUAL, 0), Step::Create(expected));
    let taken = [("10.244.1.0-24&fd00:10:244:9::-64", 5)];
    let expected = key("10.244.2.0-24&fd00:10:244:1::-64");
    assert_eq!(step(&taken, &previous, DUAL, 0), Step::Create(expected));
}

#[test]
fn a_free_subnet_is_one_of_the_first_hundred() {
    assert_eq!(
        step(&[], &[], V4, 0),
        Step::Create(key("10.244.1.0-24")),
        "not the first of all"
    );
    assert_eq!(step(&[], &[], V4, 99), Step::Create(key("10.244.100.0-24")));
    assert_eq!(step(&[], &[], V4, 100), Step::Create(key("10.244.1.0-24")));
    let taken = [("10.244.1.0-24", 5), ("10.244.3.0-24", 6)];
    assert_eq!(step(&taken, &[], V4, 0), Step::Create(key("10.244.2.0-24")));
    assert_eq!(step(&taken, &[], V4, 1), Step::Create(key("10.244.4.0-24")));
    let bounds =
        r#"{"Network":"10.244.0.0/16","SubnetMin":"10.244.10.0","SubnetMax":"10.244.11.0"}"#;
    assert_eq!(
        step(&[], &[], bounds, 3),
        Step::Create(key("10.244.11.0-24"))
    );
}

#[test]
fn a_cluster_runs_out_of_subnets() {
    let all = [
        ("10.5.0.16-28", 5),
        ("10.5.0.32-28", 6),
        ("10.5.0.48-28", 7),
    ];
    assert_eq!(
        step(&all[..2], &[], SMALL, 9),
        Step::Create(key("10.5.0.48-28"))
    );
    assert_eq!(step(&all, &[], SMALL, 0), Step::Exhausted(Family::V4));
    assert_eq!(
        step(&[("10.0.0.0-8", 5)], &[], SMALL, 0),
        Step::Exhausted(Family::V4)
    );
    let no_v6 = [("10.9.0.0-24&fd00:10:244::-48", 5)];
    assert_eq!(step(&no_v6, &[], DUAL, 0), Step::Exhausted(Family::V6));
}

#[test]
fn a_lease_that_is_held_is_this_nodes_whatever_the_address_in_it() {
    let table = table(&[("10.244.5.0-24", 5), ("10.244.7.0-24", 1)]);
    let mut held = Held {
        subnet: key("10.244.5.0-24"),
        mod_revision: 1,
    };
    let decide = |held| {
        let node = ThisNode {
            held: Some(held),
            ..this_node(ours())
        };
        decide(&table, &node, &conf(V4), 0)
    };
    assert_eq!(decide(held), Step::Keep(key("10.244.5.0-24")));
    held.mod_revision = 9;
    assert_eq!(
        decide(held),
        Step::Keep(key("10.244.7.0-24")),
        "another wrote it"
    );
}

#[test]
fn a_node_without_ipv4_is_known_by_its_ipv6_address() {
    let v6 = conf(r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:10:244::/48"}"#);
    let mut table = Table::new("/p");
    for (number, revision) in [(5, 1), (1, 2)] {
        table.put(Written {
            key: format!("/p/subnets/0.0.0.0-0&fd00:10:244:{number}::-64").into_bytes(),
            value: format!(r#"{{"PublicIP":"0.0.0.0","PublicIPv6":"2001:db8::{number}"}}"#)
                .into_bytes(),
            create_revision: revision,
            mod_revision: revision,
            lease: 7,
        });
    }
    let of = |number: u16| {
        let public = PublicAddresses::V6([0x2001, 0xdb8, 0, 0, 0, 0, 0, number].into());
        decide(&table, &this_node(public), &v6, 0)
    };
    assert_eq!(of(1), Step::Keep(key("0.0.0.0-0&fd00:10:244:1::-64")));
    assert_eq!(of(9), Step::Create(key("0.0.0.0-0&fd00:10:244:2::-64")));
}

/// Where each step over a taken block began anew, four million of them would take seconds.
#[test]
fn the_search_does_not_depend_on_the_size_of_the_network() {
    let huge = r#"{"Network":"10.0.0.0/8","SubnetLen":30}"#;
    let start = std::time::Instant::now();
    assert_eq!(
        step(&[("10.0.0.0-9", 5)], &[], huge, 0),
        Step::Create(key("10.128.0.0-30"))
    );
    assert!(start.elapsed().as_millis() < 100, "{:?}", start.elapsed());
}

proptest! {
    /// What is created is allowed and overlaps nothing; a cluster is exhausted only where every subnet overlaps a lease.
    #[test]
    fn what_is_created_is_free(leased in prop::collection::vec((0u8..64, 26u8..=30), 0..12), random in any::<u64>()) {
        let net_conf = conf(SMALL);
        let records: Vec<_> = leased.iter().map(|(octet, len)| format!("10.5.0.{octet}-{len}")).collect();
        let records: Vec<_> = records.iter().map(|key| (key.as_str(), 5)).collect();
        let taken: Vec<IpNet> = records.iter().flat_map(|(text, _)| key(text).subnets()).collect();
        let overlaps = |subnet: &IpNet| taken.iter().any(|net| {
            let net = net.trunc();
            net.contains(subnet) || subnet.contains(&net)
        });
        match step(&records, &[], SMALL, random) {
            Step::Create(key) => {
                prop_assert!(is_allowed(&key.subnets(), &net_conf));
                prop_assert!(!overlaps(&key.subnets()[0]));
            }
            Step::Exhausted(Family::V4) => {
                for base in [16, 32, 48] {
                    let subnet = format!("10.5.0.{base}/28").parse().unwrap();
                    prop_assert!(overlaps(&subnet), "{subnet} is free");
                }
            }
            other => prop_assert!(false, "{other:?}"),
        }
    }
}
