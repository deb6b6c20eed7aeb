use std::time::Instant;

use dataplane::families::{PerFamily, PublicAddresses};
use encap::Format;
use proptest::prelude::*;

use super::*;
use crate::lease::default_vtep_mac;
use crate::registry::{own, parse, render};

fn conf() -> NetConf {
    NetConf::parse(
        r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:244::/48","Backend":{"Type":"vxlan"}}"#,
    )
    .unwrap()
}

fn record(name: &str, subnets: &[&str], public: &str) -> Candidate {
    let public: IpAddr = public.parse().unwrap();
    Candidate {
        place: RegistryPlace::Etcd {
            key: format!("/k/{name}"),
        },
        lease: Lease {
            name: name.to_owned(),
            subnets: subnets.iter().map(|text| text.parse().unwrap()).collect(),
            public: public.into(),
            format: Format::Vxlan,
            vtep_mac: PerFamily::each(|_| default_vtep_mac(public)),
            accept_sources: vec![],
            underlay_sources: vec![],
            kernel_path: None,
        },
        is_own: false,
    }
}

fn own_record() -> Candidate {
    Candidate {
        is_own: true,
        ..record("own", &["10.244.1.0/24"], "192.0.2.1")
    }
}

fn with(name: &str, change: impl FnOnce(&mut Lease)) -> Candidate {
    let mut candidate = record(name, &["10.244.9.0/24"], "192.0.2.9");
    change(&mut candidate.lease);
    candidate
}

/// The names of the leases, and the one record that is refused, if these follow this node's own.
fn only_refused(mut candidates: Vec<Candidate>) -> (Vec<String>, RefusedRecord) {
    candidates.insert(0, own_record());
    let (leases, mut refused) = check(candidates, &conf());
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert_eq!(parse(&render(&leases), &conf()), Ok(leases.clone()));
    let names = leases.into_iter().map(|lease| lease.name).collect();
    (names, refused.remove(0))
}

/// Why `candidate` is refused behind this node's own record and that of `a`.
fn refusal(candidate: Candidate) -> String {
    let a = record("a", &["10.244.2.0/24"], "192.0.2.2");
    let (names, refused) = only_refused(vec![a, candidate]);
    assert_eq!(names, ["own", "a"]);
    refused.reason
}

/// Why that of `a` is refused if `candidate` follows.
fn displaced(candidate: Candidate) -> String {
    let (a, name) = (
        record("a", &["10.244.2.0/24"], "192.0.2.2"),
        candidate.lease.name.clone(),
    );
    let (names, refused) = only_refused(vec![a, candidate]);
    assert_eq!((names, &*refused.name), (vec!["own".to_owned(), name], "a"));
    refused.reason
}

fn subnets(list: &[&str]) -> String {
    refusal(record("b", list, "192.0.2.9"))
}

fn public(address: &str) -> String {
    refusal(record("b", &["10.244.9.0/24"], address))
}

#[test]
fn a_subnet_must_lie_in_the_cluster_network_and_have_room() {
    assert!(subnets(&[]).starts_with("it has no subnet"));
    assert!(subnets(&["10.245.9.0/24"]).contains("outside the cluster network 10.244.0.0/16"));
    assert!(subnets(&["fd01::/64"]).contains("outside"));
    assert!(subnets(&["10.244.9.0/31"]).contains("/30 is the longest"));
    assert!(subnets(&["fd00:10:244:9::/127"]).contains("/126 is the longest"));
    assert!(subnets(&["10.244.9.1/24"]).contains("10.244.9.0/24 is the subnet"));
    assert!(subnets(&["10.0.0.0/8"]).contains("outside"));
    assert!(subnets(&["10.244.9.0/24", "10.244.9.0/25"]).contains("overlap"));
    let nine: Vec<_> = (10..19).map(|n| format!("10.244.{n}.0/24")).collect();
    let nine: Vec<_> = nine.iter().map(String::as_str).collect();
    assert!(subnets(&nine).contains("more than 8"));
}

#[test]
fn a_public_address_must_be_one_that_other_nodes_reach() {
    for (address, fault) in [
        ("0.0.0.0", "unspecified"),
        ("127.0.0.1", "loopback"),
        ("224.0.0.1", "multicast"),
        ("255.255.255.255", "broadcast"),
        ("fe80::1", "link-local"),
        ("::ffff:192.0.2.3", "IPv4-mapped"),
    ] {
        assert!(public(address).contains(fault), "{address}");
    }
    assert!(public("10.244.7.7").contains("inside the cluster network 10.244.0.0/16"));
    assert!(public("192.0.2.1").contains("this node's own"));
}

#[test]
fn the_first_writer_keeps_a_subnet_and_the_refusal_names_it() {
    let reason = subnets(&["10.244.2.0/24"]);
    assert!(
        reason.contains("10.244.2.0/24 of a (etcd key /k/a), which comes first"),
        "{reason}"
    );
    assert!(subnets(&["10.244.2.128/25"]).contains("of a"), "inside it");
    assert!(subnets(&["10.244.2.0/23"]).contains("of a"), "around it");
    assert!(subnets(&["10.244.0.0/17"]).contains("overlaps"));
    assert!(subnets(&["10.244.1.0/24"]).contains("of own"));
}

#[test]
fn a_vtep_mac_is_unicast_and_of_one_peer() {
    let mac = |text: &str| {
        let mac: Mac = text.parse().unwrap();
        refusal(with("b", |lease| lease.vtep_mac = PerFamily::each(|_| mac)))
    };
    assert!(mac("00:00:00:00:00:00").contains("zero or multicast"));
    assert!(mac("01:00:5e:00:00:01").contains("zero or multicast"));
    let latest = displaced(with("b", |lease| {
        lease.vtep_mac = PerFamily::each(|_| "0a:74:c0:00:02:02".parse().unwrap());
    }));
    assert!(
        latest.contains("also that of b (etcd key /k/b)"),
        "{latest}"
    );
    let own = mac("0a:74:c0:00:02:01");
    assert!(own.contains("also that of own"), "{own}");
    let v6 = refusal(with("b", |lease| {
        lease.vtep_mac.v6 = "0a:74:c0:00:02:01".parse().unwrap();
    }));
    assert!(v6.contains("also that of own"), "{v6}");
}

#[test]
fn records_of_one_address_are_one_peer_and_must_agree() {
    let second = record("b", &["10.244.9.0/24"], "192.0.2.2");
    let a = record("a", &["10.244.2.0/24"], "192.0.2.2");
    let (leases, refused) = check(vec![a, second.clone()], &conf());
    assert_eq!((leases.len(), refused.len()), (2, 0), "{refused:?}");
    let change = |change: fn(&mut Lease)| {
        let mut changed = second.clone();
        change(&mut changed.lease);
        displaced(changed)
    };
    assert!(change(|lease| lease.format = Format::Udp).contains("one backend"));
    let reason = change(|lease| lease.vtep_mac.v6 = Mac([2, 0, 0, 0, 0, 9]));
    assert!(reason.contains("one VTEP MAC"), "{reason}");
    let reason = change(|lease| {
        lease.public = PublicAddresses::Dual([192, 0, 2, 2].into(), "2001:db8::2".parse().unwrap());
    });
    assert!(reason.contains("pair of public addresses"), "{reason}");
}

/// A node that was made anew has the address of a dead one whose record still stands, or the MAC of its own past.
#[test]
fn of_one_address_the_last_writer_is_in_force_and_of_one_subnet_the_first() {
    let dead = record("dead", &["10.244.9.0/24"], "192.0.2.9");
    let mac = Mac([2, 0, 0, 0, 0, 9]);
    let mut anew = record("anew", &["10.244.10.0/24"], "192.0.2.9");
    anew.lease.vtep_mac = PerFamily::each(|_| mac);
    let (names, refused) = only_refused(vec![dead.clone(), anew.clone()]);
    assert_eq!(
        (names, &*refused.name),
        (vec!["own".to_owned(), "anew".to_owned()], "dead")
    );
    assert!(
        refused.reason.contains("anew (etcd key /k/anew)"),
        "{refused:?}"
    );
    // One that claims a subnet of the dead node's too has neither.
    anew.lease.subnets = dead.lease.subnets.clone();
    let (names, refused) = only_refused(vec![dead, anew]);
    assert_eq!(
        (names, &*refused.name),
        (vec!["own".to_owned(), "dead".to_owned()], "anew")
    );
}

/// Otherwise no node would have the subnet.
#[test]
fn a_record_that_lost_its_address_no_longer_keeps_its_subnet() {
    let dead = record("dead", &["10.244.9.0/24"], "192.0.2.9");
    let second = record("second", &["10.244.9.0/25"], "192.0.2.8");
    let third = record("third", &["10.244.9.0/26"], "192.0.2.7");
    let mut anew = record("anew", &["10.244.10.0/24"], "192.0.2.9");
    anew.lease.vtep_mac = PerFamily::each(|_| Mac([2, 0, 0, 0, 0, 9]));
    let (leases, refused) = check(vec![dead, second, third, anew], &conf());
    let names: Vec<_> = leases.iter().map(|lease| lease.name.as_str()).collect();
    assert_eq!(names, ["second", "anew"]);
    let names: Vec<_> = refused.iter().map(|record| record.name.as_str()).collect();
    assert_eq!(names, ["dead", "third"]);
    assert!(refused[1].reason.contains("of second"), "{refused:?}");
}

#[test]
fn names_are_plain_and_unique() {
    for name in ["", "a/b", "a b", "\"", "ä", &"x".repeat(254)] {
        assert!(
            refusal(with(name, |_| {})).contains("not a valid node name"),
            "{name}"
        );
    }
    assert!(refusal(with("a", |_| {})).contains("same name"));
    let sources = refusal(with("b", |lease| {
        lease.accept_sources = vec!["10.244.0.0/16".parse().unwrap()];
    }));
    assert!(sources.contains("sources"));
}

#[test]
fn a_record_that_is_refused_claims_nothing() {
    let bad = with("bad", |lease| {
        lease.public = IpAddr::from([127, 0, 0, 1]).into()
    });
    let good = record("good", &["10.244.9.0/24"], "192.0.2.9");
    let (leases, refused) = check(vec![own_record(), bad, good], &conf());
    assert_eq!((leases.len(), refused.len()), (2, 1));
    assert_eq!(
        (leases[1].name.as_str(), refused[0].name.as_str()),
        ("good", "bad")
    );
    assert_eq!(refused[0].subnets, ["10.244.9.0/24".parse().unwrap()]);
}

#[test]
fn this_node_may_have_a_vtep_mac_of_each_family() {
    let mut own = own_record();
    own.lease.vtep_mac.v6 = Mac([2, 0, 0, 0, 0, 9]);
    let (leases, refused) = check(vec![own], &conf());
    assert_eq!((leases.len(), refused.len()), (1, 0));
}

/// `count` nodes of a cluster with subnets of 64 addresses.
fn many(count: u32) -> (Vec<Candidate>, NetConf) {
    let conf = NetConf::parse(r#"{"Network":"10.0.0.0/8","SubnetLen":26}"#).unwrap();
    let candidate = |n: u32| {
        let subnet = std::net::Ipv4Addr::from_bits(0x0a00_0000 + (n + 1) * 64);
        let address = std::net::Ipv4Addr::from_bits(0xac10_0000 + n);
        record(
            &format!("n{n}"),
            &[&format!("{subnet}/26")],
            &address.to_string(),
        )
    };
    ((0..count).map(candidate).collect(), conf)
}

/// The best of five times each, as a ratio: a square would be a hundred.
#[test]
fn ten_times_as_many_records_take_no_square_of_the_time() {
    let best_of = |count: u32| {
        let (candidates, conf) = many(count);
        let times = (0..5).map(|_| {
            let candidates = candidates.clone();
            let start = Instant::now();
            let (leases, refused) = check(candidates, &conf);
            assert_eq!((leases.len(), refused.len()), (count as usize, 0));
            start.elapsed()
        });
        times.min().unwrap()
    };
    let (few, many) = (best_of(500), best_of(5000));
    assert!(many < few * 40, "{few:?}, {many:?}");
}

#[test]
fn the_number_of_records_is_bounded() {
    let (candidates, conf) = many(20_003);
    let (leases, refused) = check(candidates, &conf);
    assert_eq!((leases.len(), refused.len()), (MOST_RECORDS, 1));
    assert!(
        refused[0].reason.ends_with("; so are 2 more"),
        "{refused:?}"
    );
}

/// Values from small sets, so that candidates collide in every way.
fn candidate() -> impl Strategy<Value = Candidate> {
    let subnet = prop_oneof![
        (0u8..8, 20u8..=32).prop_map(|(n, len)| format!("10.244.{n}.0/{len}")),
        (0u8..4, 60u8..=128).prop_map(|(n, len)| format!("fd00:10:244:{n}::/{len}")),
        Just("10.245.0.0/24".to_owned()),
        Just("10.244.3.7/24".to_owned()),
    ];
    let v4 = prop_oneof![
        6 => (1u8..7).prop_map(|n| std::net::Ipv4Addr::new(192, 0, 2, n)),
        1 => Just([10, 244, 0, 1].into()),
        1 => Just([127, 0, 0, 1].into()),
    ];
    let v6 = (1u16..5).prop_map(|n| std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n));
    let public = (v4, v6, 0u8..4).prop_map(|(v4, v6, form)| match form {
        0 => PublicAddresses::V6(v6),
        1 => PublicAddresses::Dual(v4, v6),
        _ => PublicAddresses::V4(v4),
    });
    let mac = |n: u8| Mac([n, 0, 0, 0, 0, n / 2 * 2]);
    let macs = prop::option::of((0u8..8, 0u8..8)).prop_map(move |pair| {
        pair.map(|(v4, v6)| PerFamily {
            v4: mac(v4),
            v6: mac(v6),
        })
    });
    let name = prop::sample::select(vec!["n1", "n2", "n3", "n4", "n5", "n6", "a b"]);
    (
        name,
        prop::collection::vec(subnet, 0..3),
        public,
        macs,
        any::<bool>(),
    )
        .prop_map(|(name, subnets, public, macs, is_udp)| {
            let subnets: Vec<_> = subnets.iter().map(String::as_str).collect();
            let mut candidate = record(name, &subnets, "192.0.2.1");
            let lease = &mut candidate.lease;
            lease.public = public;
            lease.vtep_mac = macs.unwrap_or(PerFamily::each(|_| default_vtep_mac(public.first())));
            lease.format = if is_udp { Format::Udp } else { Format::Vxlan };
            candidate
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// What is accepted can be kept as a list of nodes, and nothing is lost or made up.
    #[test]
    fn what_is_accepted_passes_the_checks_of_a_list(mut candidates in prop::collection::vec(candidate(), 0..12)) {
        if let Some(first) = candidates.first_mut() {
            first.is_own = true;
        }
        let number = candidates.len();
        let own_name = candidates.first().map(|own| own.lease.name.clone());
        let (leases, refused) = check(candidates, &conf());
        prop_assert_eq!(leases.len() + refused.len(), number);
        prop_assert_eq!(parse(&render(&leases), &conf()), Ok(leases.clone()));
        let has_own = leases.first().is_some_and(|lease| Some(&lease.name) == own_name.as_ref());
        let own_refused = refused.first().is_some_and(|first| Some(&first.name) == own_name.as_ref());
        if has_own && !own_refused {
            prop_assert!(own(&leases, &own_name.unwrap()).is_ok());
        }
    }
}
