//! `tartan peers`: the other nodes, and refused sources that a change of the list of nodes would accept.

use super::amount::bytes;
use super::table::{Column, list};
use super::view::{View, total};
use crate::api::wire::{Peer, Peers};

/// The peers as text.
pub(super) fn render(peers: &Peers, view: &View) -> String {
    let rows = peers.peers.iter().map(|peer| {
        vec![
            peer.name.clone(),
            list([peer.public_ip].into_iter().chain(peer.public_ipv6)),
            peer.format.clone(),
            list(&peer.subnets),
            list(macs(peer)),
            path_mtu(peer),
            peer.sent_packets.to_string(),
            bytes(peer.sent_bytes),
            peer.received_packets.to_string(),
            bytes(peer.received_bytes),
            peer.refused.to_string(),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    let picked = view.pick(&rows, Some(0));
    let shown = picked
        .iter()
        .filter_map(|number| rows.get(*number).cloned());
    let mut text = match peers.peers.len() {
        0 => "no peers: the list of nodes has only this node\n".to_owned(),
        _ => view.table(&COLUMNS, shown) + &totals(peers, &picked),
    };
    if !peers.refused_sources.is_empty() {
        text.push('\n');
        text.push_str(&refused(peers, view));
    }
    if !peers.refused_leases.is_empty() {
        text.push('\n');
        text.push_str(&refused_leases(peers, view));
    }
    text
}

/// Whether a source was refused that a change of the list of nodes would accept, or a node's lease.
pub(super) fn problem(peers: &Peers) -> bool {
    !peers.refused_sources.is_empty() || !peers.refused_leases.is_empty()
}

fn macs(peer: &Peer) -> Vec<&String> {
    let mut macs = vec![&peer.vtep_mac, &peer.vtep_mac_v6];
    macs.dedup();
    macs
}

/// The path MTU to each address, in the order of the addresses.
fn path_mtu(peer: &Peer) -> String {
    let one = |mtu: Option<u16>| mtu.map_or("-".to_owned(), |mtu| mtu.to_string());
    match peer.public_ipv6 {
        None => one(peer.path_mtu),
        Some(_) => format!("{}, {}", one(peer.path_mtu), one(peer.path_mtu_v6)),
    }
}

/// How many peers, and their traffic.
fn totals(peers: &Peers, picked: &[usize]) -> String {
    let shown = || picked.iter().filter_map(|number| peers.peers.get(*number));
    let sum = |count: fn(&Peer) -> u64| shown().map(count).fold(0, u64::saturating_add);
    format!(
        "{}: {} packets ({}) sent, {} ({}) received, {} refused\n",
        total(picked.len(), peers.peers.len(), "peer", "peers"),
        sum(|peer| peer.sent_packets),
        bytes(sum(|peer| peer.sent_bytes)),
        sum(|peer| peer.received_packets),
        bytes(sum(|peer| peer.received_bytes)),
        sum(|peer| peer.refused),
    )
}

fn refused_leases(peers: &Peers, view: &View) -> String {
    let columns = [
        Column::Words("REFUSED LEASE"),
        Column::Words("ADDRESS"),
        Column::Words("SUBNETS"),
        Column::Words("REASON"),
    ];
    let rows = peers.refused_leases.iter().map(|lease| {
        vec![
            lease.place.clone(),
            lease
                .public_ip
                .map_or_else(|| "-".to_owned(), |address| address.to_string()),
            list(&lease.subnets),
            lease.reason.clone(),
        ]
    });
    view.table(&columns, rows)
}

fn refused(peers: &Peers, view: &View) -> String {
    let columns = [
        Column::Words("OUTER SOURCE"),
        Column::Words("INNER SOURCE"),
        Column::Number("REFUSED"),
        Column::Words("REMEDY"),
    ];
    let rows = peers.refused_sources.iter().map(|source| {
        vec![
            source.outer.to_string(),
            source.inner.to_string(),
            source.seen.to_string(),
            source.remedy.clone(),
        ]
    });
    view.table(&columns, rows)
}

/// What `--sort` and `--filter` know.
pub(super) const COLUMNS: [Column; 11] = [
    Column::Words("PEER"),
    Column::Words("ADDRESS"),
    Column::Words("FORMAT"),
    Column::Words("SUBNETS"),
    Column::Words("VTEP MAC"),
    Column::Number("PATH MTU"),
    Column::Number("TX PACKETS"),
    Column::Number("TX BYTES"),
    Column::Number("RX PACKETS"),
    Column::Number("RX BYTES"),
    Column::Number("REFUSED"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::wire::{RefusedLease, RefusedSource};

    #[test]
    fn peers_and_refused_sources_are_printed() {
        let peers = Peers {
            peers: vec![Peer {
                name: "node2".into(),
                public_ip: "192.0.2.2".parse().unwrap(),
                public_ipv6: None,
                format: "udp".into(),
                subnets: vec![
                    "10.244.2.0/24".parse().unwrap(),
                    "10.244.9.0/24".parse().unwrap(),
                ],
                vtep_mac: "0a:74:c0:00:02:02".into(),
                vtep_mac_v6: "0a:74:c0:00:02:02".into(),
                seen_vtep_mac: None,
                seen_vtep_mac_v6: None,
                path_mtu: Some(1500),
                path_mtu_v6: None,
                sent_packets: 12,
                sent_bytes: 4096,
                received_packets: 11,
                received_bytes: 999,
                refused: 1,
            }],
            refused_sources: vec![RefusedSource {
                outer: "192.0.2.77".parse().unwrap(),
                inner: "10.244.2.5".parse().unwrap(),
                seen: 3,
                remedy: "do this".into(),
            }],
            refused_leases: vec![RefusedLease {
                name: "10.244.3.0-24".into(),
                place: "etcd key /coreos.com/network/subnets/10.244.3.0-24".into(),
                public_ip: Some("127.0.0.1".parse().unwrap()),
                subnets: vec!["10.244.3.0/24".parse().unwrap()],
                reason: "its address is loopback".into(),
            }],
        };
        assert_eq!(
            render(&peers, &View::default()),
            "\
PEER   ADDRESS    FORMAT  SUBNETS                       VTEP MAC           PATH MTU  TX PACKETS  TX BYTES  RX PACKETS  RX BYTES  REFUSED
node2  192.0.2.2  udp     10.244.2.0/24, 10.244.9.0/24  0a:74:c0:00:02:02      1500          12  4.00 KiB          11     999 B        1
1 peer: 12 packets (4.00 KiB) sent, 11 (999 B) received, 1 refused

OUTER SOURCE  INNER SOURCE  REFUSED  REMEDY
192.0.2.77    10.244.2.5          3  do this

REFUSED LEASE                                       ADDRESS    SUBNETS        REASON
etcd key /coreos.com/network/subnets/10.244.3.0-24  127.0.0.1  10.244.3.0/24  its address is loopback
"
        );
        let dual = Peer {
            public_ipv6: Some("2001:db8::2".parse().unwrap()),
            vtep_mac_v6: "0a:74:c0:00:02:06".into(),
            path_mtu_v6: Some(1400),
            ..peers.peers[0].clone()
        };
        let text = render(
            &Peers {
                peers: vec![dual],
                refused_sources: vec![],
                refused_leases: vec![],
            },
            &View::default(),
        );
        for part in [
            "  192.0.2.2, 2001:db8::2  ",
            "  0a:74:c0:00:02:02, 0a:74:c0:00:02:06  ",
            "  1500, 1400  ",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(problem(&peers));
        assert!(!problem(&Peers::default()));
        assert!(render(&Peers::default(), &View::default()).starts_with("no peers"));
    }
}
