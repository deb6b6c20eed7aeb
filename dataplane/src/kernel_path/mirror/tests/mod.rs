//! The mirror writes to tables in memory, and a model of the programs' lookups reads them after every single write.

mod memory;
mod model;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::sync::Arc;

use encap::Mac;
use ipnet::IpNet;
use proptest::prelude::*;

use super::super::{Facts, PodEnd, PodFacts, TunnelFacts, UnderlayFacts};
use super::Mirror;
use crate::cluster::tests::{Step, change, step};
use crate::kernel_path::layout::{PEER_SEND, Settings};
use crate::kernel_path::tables::{Tables, Trie};
use crate::snapshot::Snapshot;
use crate::spec::tests::spec;
use crate::spec::{LocalSpec, PeerSpec, Spec};
use memory::Memory;
use model::{Flow, Probes, Verdict};

fn facts(spec: &Spec) -> Facts {
    let public = |peer: &Arc<PeerSpec>| match peer.public.first() {
        IpAddr::V4(v4) => Some(v4),
        IpAddr::V6(_) => None,
    };
    let IpAddr::V4(address) = spec.cluster.node.public.first() else {
        panic!("an IPv6 node");
    };
    let peers = spec.cluster.peers.iter().filter_map(public);
    Facts {
        on: true,
        underlay: UnderlayFacts {
            ifindex: 2,
            mac: Mac([2, 0, 0, 1, 0, 1]),
            address,
            cuts_datagrams_alone: false,
        },
        tunnel: TunnelFacts {
            ifindex: 3,
            mac: None,
        },
        private_port: Some(18472),
        next_hops: peers.map(|peer| (peer, Mac([2, 0, 0, 1, 0, 9]))).collect(),
        unusable: HashSet::new(),
        path_mtu: HashMap::new(),
        pods: spec.local.attachments.iter().filter_map(pod).collect(),
        flows: true,
    }
}

fn pod(address: &IpAddr) -> Option<PodFacts> {
    let IpAddr::V4(address) = *address else {
        return None;
    };
    let [.., last] = address.octets();
    Some(PodFacts {
        address,
        end: NonZeroU32::new(100 + u32::from(last)).map(|ifindex| PodEnd {
            ifindex,
            namespace: Some(last.into()),
            pod_mac: Mac([2, 0, 0, 2, 0, last]),
            host_mac: Mac([2, 0, 0, 3, 0, last]),
        }),
    })
}

fn v4(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

/// What of the host changes.
#[derive(Clone, Debug)]
enum Fact {
    On(bool),
    Flows(bool),
    NextHop(u8, Option<u8>),
    Unusable(u8, bool),
    PathMtu(u8, u16),
    /// The interface index of its host's end; 0 of a pod without flows.
    Pod(u8, u32),
}

#[derive(Clone, Debug)]
enum Turn {
    Cluster(Step),
    Local(LocalSpec),
    Fact(Fact),
}

fn fact() -> impl Strategy<Value = Fact> {
    let hop = proptest::option::weighted(0.7, 0..3u8);
    prop_oneof![
        1 => any::<bool>().prop_map(Fact::On),
        1 => any::<bool>().prop_map(Fact::Flows),
        3 => (0..48u8, hop).prop_map(|(n, hop)| Fact::NextHop(n, hop)),
        1 => (0..48u8, any::<bool>()).prop_map(|(n, on)| Fact::Unusable(n, on)),
        1 => (0..48u8, 1000..1500u16).prop_map(|(n, mtu)| Fact::PathMtu(n, mtu)),
        2 => (0..8u8, 0..4u32).prop_map(|(n, ifindex)| Fact::Pod(n, ifindex)),
    ]
}

fn nets(of: &'static [&'static str], most: usize) -> impl Strategy<Value = Vec<IpNet>> {
    let net = proptest::sample::select(of).prop_map(|text| text.parse().unwrap());
    proptest::collection::vec(net, 0..most)
}

fn local() -> impl Strategy<Value = LocalSpec> {
    let own = nets(
        &[
            "10.244.1.0/24",
            "10.244.9.0/24",
            "10.244.4.0/22",
            "fd00::/64",
        ],
        3,
    );
    let hosts = |of, most| {
        nets(of, most).prop_map(|nets| nets.iter().map(IpNet::addr).collect::<Vec<IpAddr>>())
    };
    (
        own,
        hosts(&["10.244.1.0/32", "10.244.9.0/32", "10.244.3.7/32"], 2),
        hosts(
            &[
                "192.0.2.1/32",
                "192.0.2.200/32",
                "10.244.2.9/32",
                "10.244.1.9/32",
            ],
            3,
        ),
        hosts(
            &[
                "10.244.1.2/32",
                "10.244.1.3/32",
                "10.244.1.127/32",
                "10.244.9.5/32",
                "10.244.2.4/32",
                "fd00::2/128",
            ],
            5,
        ),
        nets(
            &[
                "10.244.1.64/26",
                "10.244.0.0/16",
                "10.244.1.65/32",
                "10.244.9.0/24",
                "10.244.1.96/27",
            ],
            3,
        ),
        nets(
            &[
                "203.0.113.0/24",
                "10.244.2.0/24",
                "0.0.0.0/0",
                "10.244.1.2/32",
            ],
            2,
        ),
    )
        .prop_map(
            |(subnets, tunnel, addresses, attachments, kernel_prefixes, allowed_sources)| {
                LocalSpec {
                    subnets,
                    tunnel,
                    addresses,
                    attachments,
                    pods: [].into(),
                    kernel_prefixes,
                    allowed_sources,
                }
            },
        )
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        4 => step().prop_map(Turn::Cluster),
        2 => local().prop_map(Turn::Local),
        3 => fact().prop_map(Turn::Fact),
    ]
}

fn take(turn: Turn, spec: &mut Spec, facts: &mut Facts) {
    let node = |n: u8| Ipv4Addr::new(192, 0, 2, n);
    match turn {
        Turn::Cluster(step) => change(spec, step),
        Turn::Local(local) => {
            facts.pods = local.attachments.iter().filter_map(pod).collect();
            spec.local = Arc::new(local);
        }
        Turn::Fact(Fact::On(on)) => facts.on = on,
        Turn::Fact(Fact::Flows(on)) => facts.flows = on,
        Turn::Fact(Fact::NextHop(n, Some(hop))) => {
            facts.next_hops.insert(node(n), Mac([2, 0, 0, 1, 0, hop]));
        }
        Turn::Fact(Fact::NextHop(n, None)) => drop(facts.next_hops.remove(&node(n))),
        Turn::Fact(Fact::Unusable(n, true)) => drop(facts.unusable.insert(node(n))),
        Turn::Fact(Fact::Unusable(n, false)) => drop(facts.unusable.remove(&node(n))),
        Turn::Fact(Fact::PathMtu(n, mtu)) => drop(facts.path_mtu.insert(node(n), mtu)),
        Turn::Fact(Fact::Pod(n, ifindex)) => {
            if let Some(facts) = facts.pods.get_mut(usize::from(n)) {
                let end = pod(&facts.address.into()).and_then(|pod| pod.end);
                let of = |ifindex| end.map(|end| PodEnd { ifindex, ..end });
                facts.end = NonZeroU32::new(ifindex).and_then(of);
            }
        }
    }
    if let IpAddr::V4(address) = spec.cluster.node.public.first() {
        facts.underlay.address = address;
    }
    spec.version += 1;
}

proptest! {
    /// After each write the programs carry nothing that user space would carry neither before nor after the change, nor
    /// any of it in another way; and at the end all that they can carry.
    #[test]
    fn no_moment_admits_what_neither_state_admits(
        turns in proptest::collection::vec(proptest::collection::vec(turn(), 1..4), 1..10),
        adopted in proptest::collection::vec(any::<bool>(), 10),
    ) {
        let mut told = spec();
        // Its address is one of those that the steps' nodes have.
        Arc::make_mut(&mut told.cluster).peers.clear();
        let mut facts = facts(&told);
        let mut tables = Memory::new(64, 16);
        let mut mirror = Mirror::read(&tables).unwrap();
        let mut before = Snapshot::new(&told, None);
        mirror.follow(&mut tables, &told, &facts).unwrap();
        for (turns, adopt) in turns.into_iter().zip(adopted) {
            let probes = Probes::new(&told);
            for turn in turns {
                take(turn, &mut told, &mut facts);
            }
            let probes = probes.and(Probes::new(&told));
            let after = Snapshot::new(&told, Some(&before));
            let flows: Vec<Flow> = probes.outbound().filter_map(|(source, destination)| tables.flow(source, destination)).collect();
            if adopt {
                mirror = Mirror::read(&tables).unwrap();
            }
            let either = |probe| [&before, &after].map(|snapshot| Verdict::of(snapshot, probe));
            let allowed: Vec<_> = probes.all().map(|probe| (probe, either(probe))).collect();
            let of_flows: Vec<_> = flows.iter().map(|flow| (flow, either(flow.probe()))).collect();
            tables.watch(|tables| {
                for (probe, allowed) in &allowed {
                    if let Some(verdict) = tables.verdict(*probe) {
                        assert!(allowed.contains(&Some(verdict)), "{probe:?}: {verdict:?}, not {allowed:?}");
                    }
                }
                for (flow, allowed) in &of_flows {
                    if let Some(verdict) = tables.followed(flow) {
                        assert!(allowed.contains(&Some(verdict)), "{flow:?}: {verdict:?}, not {allowed:?}");
                    }
                }
            }, |tables| mirror.follow(tables, &told, &facts)).unwrap();
            for (probe, [_, wanted]) in &allowed {
                let can = facts.on && model::is_carried(&told, &facts, &after, *probe);
                prop_assert_eq!(tables.verdict(*probe), wanted.filter(|_| can), "{:?}", probe);
            }
            for (flow, [_, wanted]) in &of_flows {
                let verdict = tables.state().followed(flow);
                prop_assert!(verdict.is_none() || verdict == *wanted, "{:?}: {:?}", flow, verdict);
            }
            // Nothing is written twice.
            let again = mirror.follow(&mut tables, &told, &facts).unwrap();
            prop_assert_eq!(again.writes, 0);
            before = after;
        }
    }

    /// The table of what is local says of every address what user space's set says.
    #[test]
    fn the_local_table_is_the_local_set(spec in local()) {
        let pods = crate::pods::Pods::new(&Arc::new(spec.clone()), None);
        let table: std::collections::BTreeMap<_, _> = super::local::local(&spec)
            .into_iter().map(|(prefix, value)| (prefix.net(), value)).collect();
        let nets = [&spec.subnets, &spec.kernel_prefixes, &spec.allowed_sources].into_iter().flatten();
        let ends = nets.flat_map(|net| [net.network(), net.broadcast()]);
        let hosts = [&spec.tunnel, &spec.addresses, &spec.attachments].into_iter().flatten().copied();
        let near = |address: IpAddr| match address {
            IpAddr::V4(v4) => [0, 1, u32::MAX].map(|step| Some(Ipv4Addr::from(v4.to_bits().wrapping_add(step)))),
            IpAddr::V6(_) => [None; 3],
        };
        for address in ends.chain(hosts).flat_map(near).flatten() {
            let value = memory::longest(&table, address).unwrap_or(0);
            let of = IpAddr::V4(address);
            let ours = pods.is_ours(of) || pods.in_own_subnet(of);
            let wanted = u32::from(pods.may_speak(of)) | u32::from(pods.is_local(of)) << 1 | u32::from(ours) << 2;
            prop_assert_eq!(value, wanted, "{}", address);
        }
    }
}

/// A cluster of 5,000 other nodes and 250 pods.
fn large() -> Spec {
    let mut told = spec();
    let cluster = Arc::make_mut(&mut told.cluster);
    cluster.node.networks = vec!["10.0.0.0/8".parse().unwrap()];
    let first = PeerSpec::clone(&cluster.peers[0]);
    let peer = |n: u32| PeerSpec {
        name: format!("n{n}"),
        public: IpAddr::from((0xac10_0000 + n).to_be_bytes()).into(),
        subnets: vec![
            IpNet::new(IpAddr::from((0x0a00_0000 + (n << 8)).to_be_bytes()), 24).unwrap(),
        ],
        ..first.clone()
    };
    cluster.peers = (1..=5_000).map(|n| Arc::new(peer(n))).collect();
    let local = Arc::make_mut(&mut told.local);
    local.attachments = (2..252u8).map(|n| IpAddr::from([10, 244, 1, n])).collect();
    told
}

#[test]
fn a_change_costs_a_few_writes_whatever_the_size() {
    let mut told = large();
    let mut tables = Memory::new(10_240, 4_096);
    let mut mirror = Mirror::read(&tables).unwrap();
    let first = mirror.follow(&mut tables, &told, &facts(&told)).unwrap();
    assert_eq!(
        (first.peers, first.sending, first.pods),
        (5_000, 5_000, 250)
    );

    let lease = |told: &mut Spec, index: usize, change: &dyn Fn(&mut PeerSpec)| {
        change(Arc::make_mut(
            &mut Arc::make_mut(&mut told.cluster).peers[index],
        ));
    };
    let mut writes =
        |told: &Spec, facts: &Facts| mirror.follow(&mut tables, told, facts).unwrap().writes;
    let stays = facts(&told);
    assert_eq!(writes(&told, &stays), 0);
    lease(&mut told, 4_000, &|peer| {
        peer.vtep_mac.v4 = Mac([2, 0, 0, 0, 0, 77])
    });
    assert_eq!(writes(&told, &stays), 2, "off, and on with the other MAC");
    lease(&mut told, 4_000, &|peer| {
        peer.subnets = vec!["10.200.0.0/24".parse().unwrap()]
    });
    assert_eq!(
        writes(&told, &stays),
        3,
        "another generation, one prefix written, one removed"
    );
    let peers = &mut Arc::make_mut(&mut told.cluster).peers;
    let gone = peers.remove(17);
    assert_eq!(
        writes(&told, &facts(&told)),
        3,
        "off, the prefix removed, the entry freed"
    );
    Arc::make_mut(&mut told.cluster).peers.insert(17, gone);
    assert_eq!(writes(&told, &facts(&told)), 2, "an entry and a prefix");
    Arc::make_mut(&mut told.local)
        .attachments
        .push([10, 244, 1, 252].into());
    assert_eq!(writes(&told, &facts(&told)), 2, "local and pods");
    Arc::make_mut(&mut told.local).attachments.pop();
    assert_eq!(
        writes(&told, &facts(&told)),
        3,
        "the pod, its address emptied and removed"
    );
    let mut path = facts(&told);
    path.path_mtu.insert(v4("172.16.0.9"), 1_400);
    assert_eq!(writes(&told, &path), 1);
    path.path_mtu.clear();
    assert_eq!(writes(&told, &path), 1);
    path.on = false;
    assert_eq!(writes(&told, &path), 1);
}

/// The time that one changed lease and one pod take in memory, where a write costs next to nothing. Kernel tables add
/// about a microsecond for each write.
#[test]
fn a_change_in_a_large_cluster_takes_less_than_a_millisecond_of_optimised_code() {
    let mut told = large();
    let mut tables = Memory::new(10_240, 4_096);
    let mut mirror = Mirror::read(&tables).unwrap();
    let facts = facts(&told);
    mirror.follow(&mut tables, &told, &facts).unwrap();
    let best = |change: &mut dyn FnMut(u8)| {
        let times = (0..20u8).map(|round| {
            let start = std::time::Instant::now();
            change(round);
            start.elapsed()
        });
        times.min().unwrap()
    };
    let lease = best(&mut |round| {
        let peers = &mut Arc::make_mut(&mut told.cluster).peers;
        Arc::make_mut(&mut peers[2_500]).vtep_mac.v4 = Mac([2, 0, 0, 0, 1, round]);
        assert_eq!(mirror.follow(&mut tables, &told, &facts).unwrap().writes, 2);
    });
    let pod = best(&mut |round| {
        let attachments = &mut Arc::make_mut(&mut told.local).attachments;
        let last = attachments.last_mut().unwrap();
        *last = [10, 244, 1, if round % 2 == 0 { 253 } else { 254 }].into();
        mirror.follow(&mut tables, &told, &facts).unwrap();
    });
    println!("one changed lease of 5,000: {lease:?}; one pod of 250: {pod:?}");
    let slow = if cfg!(debug_assertions) { 40 } else { 1 };
    assert!(
        lease.as_millis() < slow && pod.as_millis() < slow,
        "{lease:?} {pod:?}"
    );
}

#[test]
fn a_number_is_given_again_as_late_as_possible_with_empty_counts_and_another_generation() {
    let mut told = spec();
    let mut tables = Memory::new(4, 4);
    let mut mirror = Mirror::read(&tables).unwrap();
    mirror.follow(&mut tables, &told, &facts(&told)).unwrap();
    let number = |tables: &Memory, address| {
        let peers = tables.peers().unwrap();
        let found = peers
            .iter()
            .position(|peer| peer.address == crate::kernel_path::layout::be(address));
        (found.unwrap(), peers[found.unwrap()].generation)
    };
    let (first, generation) = number(&tables, v4("192.0.2.2"));
    assert_eq!(first, 1);
    tables.count(1);
    let mut generations = vec![generation];
    for (host, expected) in [(10, 2), (11, 3), (12, 1), (13, 2)] {
        let peer = &mut Arc::make_mut(&mut told.cluster).peers[0];
        let other = Arc::make_mut(peer);
        other.public = IpAddr::from([192, 0, 2, host]).into();
        other.name = format!("host {host}");
        mirror.follow(&mut tables, &told, &facts(&told)).unwrap();
        let (number, generation) = number(&tables, Ipv4Addr::new(192, 0, 2, host));
        assert_eq!(number, expected);
        assert!(!generations.contains(&generation));
        generations.push(generation);
        assert_eq!(
            mirror.peer_traffic(&tables).unwrap()[0].traffic,
            Default::default()
        );
    }
}

#[test]
fn a_peer_that_goes_is_off_and_of_another_generation_before_anything_else() {
    let mut told = spec();
    let mut tables = Memory::new(64, 16);
    let mut mirror = Mirror::read(&tables).unwrap();
    mirror.follow(&mut tables, &told, &facts(&told)).unwrap();
    let before = tables.peers().unwrap()[1];
    Arc::make_mut(&mut told.cluster).peers.clear();
    let facts = facts(&told);
    let history = std::cell::RefCell::new(vec![]);
    let note = |state: &memory::State| history.borrow_mut().push((state.peers[1], state.fib.len()));
    tables
        .watch(note, |tables| mirror.follow(tables, &told, &facts))
        .unwrap();
    let history = history.into_inner();
    let (first, prefixes) = history[0];
    assert_eq!(
        (first.flags, first.address, prefixes),
        (0, before.address, 1)
    );
    assert_ne!(first.generation, before.generation);
    assert_eq!(history.last(), Some(&(Default::default(), 0)));
}

#[test]
fn counts_go_with_a_node_that_has_another_address_now() {
    let mut told = spec();
    let mut tables = Memory::new(1_024, 16);
    let mut mirror = Mirror::read(&tables).unwrap();
    mirror.follow(&mut tables, &told, &facts(&told)).unwrap();
    tables.count(1);
    let counted = mirror.peer_traffic(&tables).unwrap();
    assert_eq!(counted[0].traffic.sent_packets, 1);
    let peer = &mut Arc::make_mut(&mut told.cluster).peers[0];
    Arc::make_mut(peer).public = IpAddr::from([192, 0, 2, 77]).into();
    mirror.follow(&mut tables, &told, &facts(&told)).unwrap();
    let moved = mirror.peer_traffic(&tables).unwrap();
    assert_eq!(moved.len(), 1);
    assert_eq!(
        (moved[0].address, moved[0].traffic),
        (v4("192.0.2.77"), counted[0].traffic)
    );
}

#[test]
fn generations_are_not_given_twice_although_services_come_and_go() {
    let told = spec();
    let mut tables = Memory::new(1_024, 16);
    let mut seen = HashSet::new();
    for _ in 0..5 {
        let mut mirror = Mirror::read(&tables).unwrap();
        mirror.follow(&mut tables, &told, &facts(&told)).unwrap();
        for _ in 0..700 {
            assert!(mirror.revoke_peer(&mut tables, v4("192.0.2.2")).unwrap());
            assert!(seen.insert(tables.peers().unwrap()[1].generation));
            assert!(mirror.revoke_pod(&mut tables, v4("10.244.1.2")).unwrap());
            assert!(seen.insert(tables.pods().unwrap()[0].1.generation));
        }
        assert!(!mirror.revoke_peer(&mut tables, v4("192.0.2.99")).unwrap());
        assert!(!mirror.revoke_pod(&mut tables, v4("10.244.1.99")).unwrap());
    }
}

#[test]
fn a_full_table_is_an_error_and_names_it() {
    let mut told = spec();
    let mut tables = Memory::new(2, 16);
    let mut mirror = Mirror::read(&tables).unwrap();
    mirror.follow(&mut tables, &told, &facts(&told)).unwrap();
    let mut other = PeerSpec::clone(&told.cluster.peers[0]);
    other.public = IpAddr::from([192, 0, 2, 9]).into();
    Arc::make_mut(&mut told.cluster).peers.push(Arc::new(other));
    let error = mirror
        .follow(&mut tables, &told, &facts(&told))
        .unwrap_err();
    assert!(error.to_string().contains("peers"), "{error}");
}

/// After an error in the middle the mirror still knows what the tables hold.
#[test]
fn what_an_error_left_undone_the_next_call_does() {
    let mut told = spec();
    let peers = &mut Arc::make_mut(&mut told.cluster).peers;
    for n in 3..20u8 {
        let mut other = PeerSpec::clone(&peers[0]);
        other.name = format!("n{n}");
        other.public = IpAddr::from([192, 0, 2, n]).into();
        other.subnets = vec![format!("10.244.{n}.0/24").parse().unwrap()];
        peers.push(Arc::new(other));
    }
    let mut whole = Memory::new(64, 16);
    Mirror::read(&whole)
        .unwrap()
        .follow(&mut whole, &told, &facts(&told))
        .unwrap();
    for fails_at in 0..40 {
        let mut tables = Memory::new(64, 16);
        let mut mirror = Mirror::read(&tables).unwrap();
        tables.fail_after(fails_at);
        assert!(mirror.follow(&mut tables, &told, &facts(&told)).is_err());
        tables.fail_after(usize::MAX);
        mirror.follow(&mut tables, &told, &facts(&told)).unwrap();
        for trie in [Trie::Fib, Trie::Local] {
            assert_eq!(
                tables.prefixes(trie).unwrap(),
                whole.prefixes(trie).unwrap()
            );
        }
        let sending = |tables: &Memory| {
            tables
                .peers()
                .unwrap()
                .iter()
                .filter(|peer| peer.flags & PEER_SEND != 0)
                .count()
        };
        assert_eq!(sending(&tables), sending(&whole));
        let settings = |tables: &Memory| Settings {
            epoch: 0,
            oldest_epoch: 0,
            rules_generation: 0,
            unused: 0,
            ..tables.settings()
        };
        assert_eq!(settings(&tables), settings(&whole));
    }
}

#[test]
fn an_underlay_address_that_is_not_the_nodes_switches_off() {
    let told = spec();
    let mut tables = Memory::new(64, 16);
    let mut mirror = Mirror::read(&tables).unwrap();
    let mut other = facts(&told);
    other.underlay.address = v4("198.51.100.1");
    let followed = mirror.follow(&mut tables, &told, &other).unwrap();
    assert_eq!(followed.sending, 0);
    assert_eq!(tables.settings().flags & 3, 0);
}
