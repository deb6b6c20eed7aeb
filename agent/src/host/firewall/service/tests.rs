//! By what a kernel listed of kube-proxy's rules on node1, iptables-nft 1.8.9 and nft 1.0.6: `record.py` describes the files
//! and makes them anew.

use std::net::IpAddr;

use super::super::nft::FoundRule;
use super::super::nft::map::parse;
use super::*;

const IPTABLES: &str = include_str!("recorded_iptables.txt");
const NFTABLES: &str = include_str!("recorded_nftables.txt");

/// A listing of one family.
struct Recorded {
    family: u8,
    /// By table.
    tables: BTreeMap<String, Choice>,
}

impl Recorded {
    fn read(text: &str, family: u8) -> Recorded {
        let mut tables: BTreeMap<String, Choice> = BTreeMap::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [of, table, kind, name, bytes] = words[..] else {
                panic!("{line}");
            };
            if of != if family == IPV4 { "ip" } else { "ip6" } {
                continue;
            }
            let table = tables.entry(table.to_owned()).or_default();
            let bytes = unfold(bytes);
            match kind {
                "rule" => {
                    let rule = FoundRule::of_expressions(bytes).service_rule(family);
                    table.chains.entry(name.to_owned()).or_default().push(rule);
                }
                _ => {
                    let elements = parse(&bytes);
                    table
                        .maps
                        .entry(name.to_owned())
                        .or_default()
                        .extend(elements);
                }
            }
        }
        Recorded { family, tables }
    }

    /// As [`by_rules`] and [`by_maps`] have it from the kernel.
    fn fate(&self, packet: &ServicePacket) -> ServiceFate {
        let mut listed = Vec::new();
        for (table, name) in [
            ("nat", "KUBE-SERVICES"),
            ("filter", "KUBE-SERVICES"),
            ("filter", "KUBE-EXTERNAL-SERVICES"),
        ] {
            let chains = self.tables.get(table).map(|table| &table.chains);
            let rules = chains.and_then(|chains| chains.get(name));
            let chain = named(self.family, table, name);
            let rules = rules.into_iter().flatten().cloned();
            listed.extend(rules.filter_map(|rule| packet.listed(rule, &chain)));
        }
        for map in ["service-ips", "no-endpoint-services"] {
            let maps = self.tables.get(TABLE).map(|table| &table.maps);
            let elements = maps.and_then(|maps| maps.get(map)).into_iter().flatten();
            let chain = named(self.family, TABLE, map);
            listed.extend(elements.filter_map(|e| packet.element(e.clone(), &chain)));
        }
        let table = if self.tables.contains_key(TABLE) {
            TABLE
        } else {
            "nat"
        };
        match packet.entry(&listed) {
            Ok(chain) => {
                let named = named(self.family, table, &chain);
                self.tables[table].fate(packet, &chain, named)
            }
            Err(fate) => fate,
        }
    }
}

fn unfold(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (number, part) in text.split(['(', ')']).enumerate() {
        match number % 2 {
            0 => bytes.extend(
                (0..part.len())
                    .step_by(2)
                    .map(|at| u8::from_str_radix(&part[at..at + 2], 16).unwrap()),
            ),
            _ => bytes.resize(bytes.len() + part.parse::<usize>().unwrap(), 0),
        }
    }
    bytes
}

/// A packet of TCP to Service `last` of the recorded ones, from a pod of node1; to its load balancer's address where that is
/// `outside`.
fn packet(family: u8, last: u8, outside: bool, port: u16) -> ServicePacket {
    let (source, destination): (IpAddr, String) = match (family, outside) {
        (IPV4, false) => ([10, 244, 1, 2].into(), format!("10.96.4.{last}")),
        (IPV4, true) => ([10, 244, 1, 2].into(), format!("203.0.113.{last}")),
        (_, false) => (
            "fd00:10:244:1::2".parse().unwrap(),
            format!("fd00:10:96::4:{last}"),
        ),
        (_, true) => (
            "fd00:10:244:1::2".parse().unwrap(),
            format!("2001:db8:f00::{last}"),
        ),
    };
    ServicePacket {
        addresses: Addresses {
            source,
            destination: destination.parse().unwrap(),
        },
        protocol: 6,
        port,
    }
}

/// The endpoints, by their nodes: the recorded pods are `.1.2` and `.2.2`.
fn nodes(fate: ServiceFate) -> Vec<u16> {
    let ServiceFate::Endpoints {
        endpoints,
        is_complete: true,
        ..
    } = fate
    else {
        panic!("{fate:?}");
    };
    let node = |endpoint: &SocketAddr| {
        assert_eq!(endpoint.port(), 8080);
        match endpoint.ip() {
            IpAddr::V4(v4) => v4.octets()[2].into(),
            IpAddr::V6(v6) => v6.segments()[3],
        }
    };
    endpoints.iter().map(node).collect()
}

fn each(mut check: impl FnMut(&str, u8, &Recorded)) {
    for (mode, text) in [("iptables", IPTABLES), ("nftables", NFTABLES)] {
        for family in [IPV4, IPV6] {
            check(mode, family, &Recorded::read(text, family));
        }
    }
}

#[test]
fn every_endpoint_is_found_in_both_modes_and_families() {
    each(|mode, family, recorded| {
        for (last, outside, expected) in [
            (1, false, vec![1, 2]),
            (2, false, vec![2]),
            // With affinity.
            (3, false, vec![1, 2]),
            (6, false, vec![1]),
            // Of policy Local, from a pod: all.
            (7, false, vec![2]),
            (7, true, vec![2]),
        ] {
            let found = nodes(recorded.fate(&packet(family, last, outside, 80)));
            assert_eq!(found, expected, "{mode} {family} {last} {outside}");
        }
    });
}

#[test]
fn what_is_refused_and_what_no_service_has_is_told_apart() {
    each(|mode, family, recorded| {
        let of = |last, port| recorded.fate(&packet(family, last, false, port));
        let verdict = |fate| match fate {
            ServiceFate::Refused { verdict, .. } => verdict,
            other => panic!("{mode}: {other:?}"),
        };
        assert_eq!(verdict(of(4, 80)).to_lowercase(), "reject");
        // Its endpoint is on the other node, and policy Local.
        assert_eq!(verdict(of(5, 80)).to_lowercase(), "drop");
        assert_eq!(of(1, 81), ServiceFate::NoPort(vec![(6, 80)]));
        assert_eq!(of(4, 81), ServiceFate::NoPort(vec![(6, 80)]));
        assert_eq!(of(99, 80), ServiceFate::NoService);
        let mut udp = packet(family, 1, false, 80);
        udp.protocol = 17;
        assert_eq!(recorded.fate(&udp), ServiceFate::NoPort(vec![(6, 80)]));
    });
}

/// The load balancer's address is for one client alone.
#[test]
fn source_ranges_are_judged() {
    for (family, client) in [(IPV4, "192.0.2.251"), (IPV6, "2001:db8:192::251")] {
        let recorded = Recorded::read(IPTABLES, family);
        let mut asked = packet(family, 6, true, 80);
        let fate = recorded.fate(&asked);
        assert!(matches!(fate, ServiceFate::NotForSource { .. }), "{fate:?}");
        asked.addresses.source = client.parse().unwrap();
        assert_eq!(nodes(recorded.fate(&asked)), [1]);
    }
}

/// Whatever is missing or not understood, nothing is claimed that may not be.
#[test]
fn what_is_missing_or_not_understood_is_said() {
    let rule = |text: &str| {
        let mut rule = ServiceRule {
            terms: Vec::new(),
            protocol: None,
            port: None,
            is_understood: true,
            action: ServiceAction::Unknown,
        };
        for word in text.split(' ') {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            match name {
                "?" => rule.is_understood = false,
                "jump" => rule.action = ServiceAction::Jump(value.to_owned()),
                "goto" => rule.action = ServiceAction::Goto(value.to_owned()),
                "to" => {
                    let place: SocketAddr = value.parse().unwrap();
                    rule.action = ServiceAction::To(place.ip(), Some(place.port()));
                }
                "of" => rule.action = ServiceAction::ToOneOf(value.to_owned()),
                "by" => rule.action = ServiceAction::VerdictMap(value.to_owned()),
                "return" => rule.action = ServiceAction::Return,
                "unknown" => {}
                other => panic!("{other}"),
            }
        }
        rule
    };
    let fate = |chains: &[(&str, &[&str])]| {
        let chains = chains.iter().map(|(name, rules)| {
            (
                (*name).to_owned(),
                rules.iter().map(|text| rule(text)).collect(),
            )
        });
        let choice = Choice {
            chains: chains.collect(),
            maps: BTreeMap::new(),
        };
        match choice.fate(&packet(IPV4, 1, false, 80), "a", "a".to_owned()) {
            ServiceFate::Endpoints {
                endpoints,
                is_complete,
                ..
            } => (endpoints.len(), is_complete),
            ServiceFate::NotForSource { .. } => (0, true),
            ServiceFate::NotUnderstood { .. } => (0, false),
            other => panic!("{other:?}"),
        }
    };
    let (one, two) = ("to=10.244.1.2:80", "to=10.244.2.2:80");
    assert_eq!(fate(&[("a", &[one, two])]), (1, true));
    assert_eq!(fate(&[("a", &["? to=10.244.1.2:80", two])]), (2, true));
    assert_eq!(fate(&[("a", &["? to=10.244.1.2:80", one])]), (1, true));
    assert_eq!(fate(&[("a", &["jump=b", two]), ("b", &[one])]), (1, true));
    assert_eq!(
        fate(&[("a", &["jump=b", two]), ("b", &["return", one])]),
        (1, true)
    );
    assert_eq!(
        fate(&[("a", &["goto=b", two]), ("b", &["? to=10.244.1.2:80"])]),
        (1, true)
    );
    assert_eq!(fate(&[("a", &[])]), (0, true));
    for missing in ["unknown", "jump=gone", "by=gone", "of=gone"] {
        assert_eq!(fate(&[("a", &[missing])]), (0, false), "{missing}");
        let before = ["? to=10.244.1.2:80", missing];
        assert_eq!(fate(&[("a", &before)]), (1, false), "{missing}");
    }
    // A circle ends; no kernel takes one.
    assert_eq!(fate(&[("a", &["jump=a", "jump=a", one])]), (1, false));
}
