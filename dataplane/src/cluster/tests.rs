//! However a cluster changes, tables made from those before answer as tables made at once of the last spec.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use encap::{Family, Format, Mac, Vni};
use proptest::prelude::*;

use super::*;
use crate::families::{PerFamily, PublicAddresses};
use crate::now::Now;
use crate::peers::Peer;
use crate::snapshot::Snapshot;
use crate::spec::tests::spec;
use crate::spec::{PeerSpec, Spec};

/// One change of the cluster.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A node comes or is another now: its number, and what it is.
    Put(u8, PeerSpec),
    Remove(u8),
    /// The peers are told in another order.
    Reverse,
    Public(bool),
    UnderlayMtu(u16),
    DeviceMtu(u16),
    Headers(u8),
    Network(bool),
    Pods(u8),
}

fn subnet() -> impl Strategy<Value = IpNet> {
    prop_oneof![
        6 => (0..24u8).prop_map(|n| format!("10.244.{n}.0/24")),
        1 => (0..24u8).prop_map(|n| format!("10.244.{n}.128/25")),
        1 => (0..4u8).prop_map(|n| format!("10.244.{}.0/22", n * 4)),
        1 => (0..3u8).prop_map(|n| format!("172.16.{n}.0/24")),
        3 => (0..24u8).prop_map(|n| format!("fd00:0:0:{n:x}::/64")),
        1 => (0..4u8).prop_map(|n| format!("fd00:0:0:{n:x}:8000::/65")),
    ]
    .prop_map(|text| text.parse().unwrap())
}

/// Node number `n`, whose public addresses are its own alone, as in every spec. Subnets and further sources may be
/// claimed by several.
fn peer(n: u8) -> impl Strategy<Value = PeerSpec> {
    let sources = proptest::collection::vec(0..40u8, 0..2);
    let subnets = proptest::collection::vec(subnet(), 0..4);
    let accept = proptest::collection::vec(subnet(), 0..2);
    (
        sources,
        subnets,
        accept,
        0..3u8,
        any::<bool>(),
        0..3u8,
        0..2u8,
    )
        .prop_map(
            move |(sources, mut subnets, accept, family, udp, mac, moved)| {
                subnets.sort_unstable();
                subnets.dedup();
                let at = n + 30 * moved;
                let v4 = [192, 0, 2, at].into();
                let v6 = [0x2001, 0xdb8, 0, 0, 0, 0, 0, at.into()].into();
                PeerSpec {
                    name: format!("n{n}"),
                    public: match family {
                        0 => PublicAddresses::V4(v4),
                        1 => PublicAddresses::V6(v6),
                        _ => PublicAddresses::Dual(v4, v6),
                    },
                    underlay_sources: sources.iter().map(|n| [192, 0, 2, *n].into()).collect(),
                    subnets,
                    accept_sources: accept,
                    format: if udp { Format::Udp } else { Format::Vxlan },
                    vtep_mac: PerFamily {
                        v4: Mac([2, 0, 0, 0, 0, mac]),
                        v6: Mac([2, 0, 0, 0, 1, mac]),
                    },
                }
            },
        )
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1..12u8).prop_flat_map(|n| peer(n).prop_map(move |peer| Step::Put(n, peer))),
        4 => (1..12u8).prop_map(Step::Remove),
        1 => Just(Step::Reverse),
        1 => any::<bool>().prop_map(Step::Public),
        1 => (1300..1500u16).prop_map(Step::UnderlayMtu),
        1 => (1300..1500u16).prop_map(Step::DeviceMtu),
        1 => any::<u8>().prop_map(Step::Headers),
        1 => any::<bool>().prop_map(Step::Network),
        1 => any::<u8>().prop_map(Step::Pods),
    ]
}

pub(crate) fn change(told: &mut Spec, step: Step) {
    let cluster = Arc::make_mut(&mut told.cluster);
    let is = |n: u8| move |peer: &Arc<PeerSpec>| peer.name == format!("n{n}");
    match step {
        Step::Put(n, peer) => match cluster.peers.iter().position(is(n)) {
            Some(index) => cluster.peers[index] = Arc::new(peer),
            None => cluster
                .peers
                .insert(usize::from(n) % (cluster.peers.len() + 1), Arc::new(peer)),
        },
        Step::Remove(n) => cluster.peers.retain(|peer| !is(n)(peer)),
        Step::Reverse => cluster.peers.reverse(),
        Step::Public(dual) => {
            let v4 = [192, 0, 2, 200].into();
            cluster.node.public = match dual {
                true => PublicAddresses::Dual(v4, [0x2001, 0xdb8, 0, 0, 0, 0, 0, 200].into()),
                false => PublicAddresses::V4(v4),
            };
        }
        Step::UnderlayMtu(mtu) => cluster.node.underlay_mtu = mtu,
        Step::DeviceMtu(mtu) => cluster.node.inner_mtu = PerFamily::each(|_| mtu),
        Step::Headers(n) => {
            cluster.node.vtep_mac = PerFamily {
                v4: Mac([2, 0, 0, 0, 9, n]),
                v6: Mac([2, 0, 0, 0, 9, n % 3]),
            };
            cluster.node.vni = Vni::new(u32::from(n) + 1).unwrap();
            (cluster.node.udp_port, cluster.node.vxlan_port) = (8000 + u16::from(n), 9000);
            cluster.node.ipv6_over_udp = n % 2 == 0;
        }
        Step::Network(both) => {
            let networks = ["10.244.0.0/16", "fd00::/48"];
            let networks = networks.iter().take(1 + usize::from(both));
            cluster.node.networks = networks.map(|text| text.parse().unwrap()).collect();
        }
        Step::Pods(n) => Arc::make_mut(&mut told.local).attachments = vec![[10, 244, 1, n].into()],
    }
    told.version += 1;
}

/// What the packet path is told of a peer.
fn said(peer: &Peer) -> String {
    let way = |family| {
        let way = peer.way(family)?;
        let mtu = way.inner_mtu(family, Now(1));
        Some((way.to, way.port, way.header.as_slice().to_vec(), mtu))
    };
    let ways = [Family::V4, Family::V6].map(way);
    format!(
        "{} {:?} {:?} {:?} {:?} {:?} {ways:?}",
        peer.name, peer.public, peer.format, peer.vtep_mac, peer.subnets, peer.also
    )
}

/// Every answer that may differ: for each address that anything in `told` names.
fn answers(snapshot: &Snapshot, told: &Spec, further: &[IpAddr]) -> BTreeMap<IpAddr, Vec<String>> {
    let peers = &told.cluster.peers;
    let nets = peers
        .iter()
        .flat_map(|peer| peer.subnets.iter().chain(&peer.accept_sources));
    let inner = nets.flat_map(|net| [net.network(), net.broadcast()]);
    let outer = peers
        .iter()
        .flat_map(|peer| peer.public.iter().chain(peer.underlay_sources.clone()));
    let all: BTreeSet<IpAddr> = inner.chain(outer).chain(further.iter().copied()).collect();
    let Cluster { fib, peers, .. } = &*snapshot.cluster;
    let of = |address: IpAddr| {
        let route = fib.lookup(address).map(|id| said(peers.peer(id).unwrap()));
        let sender = peers.by_source(address).map(|(_, peer)| said(peer));
        let mut owners: Vec<String> = told
            .cluster
            .peers
            .iter()
            .filter_map(|of| peers.by_source(of.public.first()))
            .filter(|(id, peer)| snapshot.belongs(*id, peer, address))
            .map(|(_, peer)| peer.name.clone())
            .collect();
        owners.sort();
        vec![
            format!("{route:?}"),
            format!("{sender:?}"),
            format!("{owners:?}"),
        ]
    };
    all.into_iter()
        .map(|address| (address, of(address)))
        .collect()
}

proptest! {
    #[test]
    fn tables_made_from_those_before_answer_as_new_ones(steps in proptest::collection::vec(proptest::collection::vec(step(), 1..4), 1..12)) {
        let mut told = spec();
        let mut snapshot = Snapshot::new(&told, None);
        let mut seen: Vec<IpAddr> = Vec::new();
        for steps in steps {
            for step in steps {
                if let Step::Put(_, peer) = &step {
                    seen.extend(peer.public.iter().chain(peer.subnets.iter().map(IpNet::addr)));
                }
                change(&mut told, step);
            }
            snapshot = Snapshot::new(&told, Some(&snapshot));
            let new = Snapshot::new(&told, None);
            prop_assert_eq!(answers(&snapshot, &told, &seen), answers(&new, &told, &seen));
            let names = |snapshot: &Snapshot| {
                let mut names: Vec<_> = snapshot.cluster.peers.iter().map(said).collect();
                names.sort();
                names
            };
            prop_assert_eq!(names(&snapshot), names(&new));
            let (cluster, new) = (&snapshot.cluster, &new.cluster);
            prop_assert_eq!(
                (cluster.vtep, cluster.ipv6_over_udp, cluster.inner_mtu),
                (new.vtep, new.ipv6_over_udp, new.inner_mtu)
            );
        }
    }

    /// What was counted stays with a node through every change of others, and numbers do not grow without end.
    #[test]
    fn what_was_counted_stays_with_its_peer(steps in proptest::collection::vec(step(), 1..30)) {
        let mut told = spec();
        let mut snapshot = Snapshot::new(&told, None);
        let mut counted: BTreeMap<String, u64> = BTreeMap::new();
        for step in steps {
            change(&mut told, step);
            snapshot = Snapshot::new(&told, Some(&snapshot));
            counted.retain(|name, _| told.cluster.peers.iter().any(|peer| peer.name == *name));
            for peer in snapshot.cluster.peers.iter() {
                let before = counted.entry(peer.name.clone()).or_default();
                prop_assert_eq!(peer.traffic().sent_packets, *before, "{}", peer.name);
                peer.count_sent(1, 10);
                *before += 1;
            }
            prop_assert_eq!(counted.len(), told.cluster.peers.len());
            prop_assert!(snapshot.cluster.peers.ids().all(|id| id.0 < 24), "numbers are given again");
        }
    }
}

#[test]
fn a_peer_that_did_not_change_is_the_same_in_memory() {
    let mut told = spec();
    let third = PeerSpec {
        name: "node3".into(),
        public: IpAddr::from([192, 0, 2, 3]).into(),
        subnets: vec!["10.244.3.0/24".parse().unwrap()],
        ..PeerSpec::clone(&told.cluster.peers[0])
    };
    let first = Snapshot::new(&told, None);
    Arc::make_mut(&mut told.cluster).peers.push(Arc::new(third));
    let second = Snapshot::new(&told, Some(&first));
    let same = |a: &Snapshot, b: &Snapshot| {
        let of = |snapshot: &Snapshot| {
            let (_, peer) = snapshot
                .cluster
                .peers
                .by_source([192, 0, 2, 2].into())
                .unwrap();
            std::ptr::from_ref(peer).addr()
        };
        of(a) == of(b)
    };
    assert!(same(&first, &second));
    Arc::make_mut(&mut told.cluster).node.inner_mtu.v6 -= 1;
    let third = Snapshot::new(&told, Some(&second));
    assert!(same(&second, &third), "no header has the MTU");
    Arc::make_mut(&mut told.cluster).node.underlay_mtu -= 1;
    assert!(!same(&third, &Snapshot::new(&told, Some(&third))));
}
