//! `tartan peers`: the other nodes, and refused sources that a change of the list of nodes would accept.

use std::collections::BTreeMap;
use std::time::SystemTime;

use super::amount::{bytes, duration};
use super::table::{Column, list};
use super::view::{View, total};
use crate::api::wire::{Dropped, GOOD_STATES, Peer, PeerPath, Peers};

/// The peers as text: how they are reached.
pub(super) fn render(peers: &Peers, view: &View) -> String {
    shown(peers, view, &SHOWN, now())
}

/// The peers as text, with all columns.
pub(super) fn render_wide(peers: &Peers, view: &View) -> String {
    let all: Vec<usize> = (0..COLUMNS.len()).collect();
    shown(peers, view, &all, now())
}

/// The peers as text, as their leases alone describe them.
pub(super) fn render_last_good(peers: &Peers, view: &View) -> String {
    let (text, picked) = table(peers, view, &OF_LEASES, now());
    let all = peers.peers.len();
    text + &total(picked.len(), all, "peer", "peers") + "\n"
}

/// The peers as text, with the columns of these numbers.
fn shown(peers: &Peers, view: &View, columns: &[usize], now: u64) -> String {
    let (table, picked) = table(peers, view, columns, now);
    let mut text = match peers.peers.len() {
        0 => "no peers: the list of nodes has only this node\n".to_owned(),
        _ => table + &totals(peers, &picked),
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

/// The table, and the numbers of the peers in it.
fn table(peers: &Peers, view: &View, columns: &[usize], now: u64) -> (String, Vec<usize>) {
    let rows = peers.peers.iter().map(|peer| {
        let of_paths = |cell: fn(&PeerPath) -> String| list(peer.paths.iter().map(cell));
        vec![
            peer.name.clone(),
            list([peer.public_ip].into_iter().chain(peer.public_ipv6)),
            peer.format.clone(),
            peer.state.clone(),
            (peer.since).map_or("-".to_owned(), |since| duration(now.saturating_sub(since))),
            of_paths(|path| micros(path.rtt_p50)),
            of_paths(|path| percent(path.loss_1m)),
            of_paths(mtu),
            peer.reason.clone(),
            of_paths(|path| micros(path.rtt_p99)),
            of_paths(|path| percent(path.loss_10m)),
            of_paths(|path| hears_us(path.hears_us).to_owned()),
            of_paths(|path| next(path.next_probe)),
            (peer.heard).map_or("-".to_owned(), |at| duration(now.saturating_sub(at))),
            list(&peer.subnets),
            list(macs(peer)),
            path_mtu(peer),
            peer.sent_packets.to_string(),
            bytes(peer.sent_bytes),
            peer.received_packets.to_string(),
            bytes(peer.received_bytes),
            peer.refused.to_string(),
            peer.user_space.clone().unwrap_or_else(|| "-".to_owned()),
            drops(&peer.dropped),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    let picked = view.pick(&rows, Some(0));
    let cells = |row: &Vec<String>| -> Vec<String> {
        let cells = columns.iter().filter_map(|column| row.get(*column));
        cells.cloned().collect()
    };
    let rows = picked
        .iter()
        .filter_map(|number| rows.get(*number).map(cells));
    let headings: Vec<Column> = columns
        .iter()
        .filter_map(|column| COLUMNS.get(*column))
        .copied()
        .collect();
    let text = view.table(&headings, rows);
    (text, picked)
}

/// Whether a peer is not reached as it should be, a source was refused that a change of the list of nodes would accept, or
/// a node's lease.
pub(super) fn problem(peers: &Peers) -> bool {
    let is_good = |peer: &Peer| GOOD_STATES.contains(&&*peer.state);
    !peers.peers.iter().all(is_good)
        || !peers.refused_sources.is_empty()
        || !peers.refused_leases.is_empty()
}

/// Seconds since the epoch.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

/// As `0.21 ms`.
fn micros(micros: Option<u64>) -> String {
    let Some(micros) = micros else {
        return "-".to_owned();
    };
    let millis = micros as f64 / 1000.0;
    match millis {
        10.0.. => format!("{millis:.0} ms"),
        1.0.. => format!("{millis:.1} ms"),
        _ => format!("{millis:.2} ms"),
    }
}

fn percent(percent: Option<f64>) -> String {
    percent.map_or("-".to_owned(), |percent| format!("{percent} %"))
}

/// Whether the peer hears this node: the other direction of the path.
fn hears_us(hears: Option<bool>) -> &'static str {
    match hears {
        Some(true) => "yes",
        Some(false) => "no",
        None => "-",
    }
}

/// As `1.3 s`.
fn next(seconds: Option<f64>) -> String {
    seconds.map_or("-".to_owned(), |seconds| format!("{seconds:.1} s"))
}

/// How many of both directions, and the most frequent reasons: `15 (NotOurs 12, TooBig 3)`.
fn drops(dropped: &Dropped) -> String {
    let mut by_reason: BTreeMap<&str, u64> = BTreeMap::new();
    for (reason, count) in dropped.outbound.iter().chain(&dropped.inbound) {
        let sum = by_reason.entry(reason).or_default();
        *sum = sum.saturating_add(*count);
    }
    let all = by_reason
        .values()
        .fold(0, |sum: u64, count| sum.saturating_add(*count));
    if all == 0 {
        return all.to_string();
    }
    let mut most: Vec<(&str, u64)> = by_reason.into_iter().collect();
    most.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let most = most.iter().take(REASONS);
    let most = list(most.map(|(reason, count)| format!("{reason} {count}")));
    format!("{all} ({most})")
}

/// Measured and configured, bytes of outer packet.
fn mtu(path: &PeerPath) -> String {
    let measured = path
        .mtu_measured
        .map_or("-".to_owned(), |mtu| mtu.to_string());
    format!("{measured}/{}", path.mtu_configured)
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
    let up = shown().filter(|peer| peer.state == "up").count();
    format!(
        "{}, {up} up: {} packets ({}) sent, {} ({}) received, {} refused\n",
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
pub(super) const COLUMNS: [Column; 24] = [
    Column::Words("PEER"),
    Column::Words("ADDRESS"),
    Column::Words("FORMAT"),
    Column::Words("STATE"),
    Column::Words("SINCE"),
    Column::Number("RTT"),
    Column::Number("LOSS"),
    Column::Number("MTU"),
    Column::Words("REASON"),
    Column::Number("RTT P99"),
    Column::Number("LOSS 10 MIN"),
    Column::Words("REV"),
    Column::Number("NEXT"),
    Column::Words("HEARD"),
    Column::Words("SUBNETS"),
    Column::Words("VTEP MAC"),
    Column::Number("PATH MTU"),
    Column::Number("TX PACKETS"),
    Column::Number("TX BYTES"),
    Column::Number("RX PACKETS"),
    Column::Number("RX BYTES"),
    Column::Number("REFUSED"),
    Column::Words("IN USER SPACE"),
    Column::Words("DROPS"),
];

/// Reasons that DROPS names.
const REASONS: usize = 3;

/// The columns that are shown without `--wide`.
const SHOWN: [usize; 9] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
/// Those of the last good state: what a lease has.
const OF_LEASES: [usize; 5] = [0, 1, 2, 14, 15];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::wire::{RefusedLease, RefusedSource};

    fn path() -> PeerPath {
        PeerPath {
            address: "192.0.2.2".parse().unwrap(),
            state: "narrow".into(),
            since: 1000,
            reason: "the path carries 1400 bytes".into(),
            answers_probes: true,
            rtt_p50: Some(210),
            rtt_p99: Some(12_345),
            loss_1m: Some(0.0),
            loss_10m: Some(2.1),
            mtu_measured: Some(1400),
            mtu_configured: 1500,
            hears_us: Some(true),
            next_probe: Some(1.25),
        }
    }

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
                dropped: Dropped {
                    outbound: [("TooBig".to_owned(), 3), ("UnderlayFull".to_owned(), 1)].into(),
                    inbound: [("NotOurs".to_owned(), 12), ("UnderlayFull".to_owned(), 4)].into(),
                },
                state: "narrow".into(),
                since: Some(1000),
                reason: "the path carries 1400 bytes".into(),
                heard: Some(1997),
                user_space: Some("its probes say so".into()),
                paths: vec![path()],
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
        let all: Vec<usize> = (0..COLUMNS.len()).collect();
        assert_eq!(
            shown(&peers, &View::default(), &SHOWN, 1065),
            "\
PEER   ADDRESS    FORMAT  STATE   SINCE          RTT  LOSS        MTU  REASON
node2  192.0.2.2  udp     narrow  1 min 5 s  0.21 ms   0 %  1400/1500  the path carries 1400 bytes
1 peer, 0 up: 12 packets (4.00 KiB) sent, 11 (999 B) received, 1 refused

OUTER SOURCE  INNER SOURCE  REFUSED  REMEDY
192.0.2.77    10.244.2.5          3  do this

REFUSED LEASE                                       ADDRESS    SUBNETS        REASON
etcd key /coreos.com/network/subnets/10.244.3.0-24  127.0.0.1  10.244.3.0/24  its address is loopback
"
        );
        let wide = shown(&peers, &View::default(), &all, 1065);
        for part in [
            "10.244.2.0/24, 10.244.9.0/24",
            "0a:74:c0:00:02:02",
            "4.00 KiB",
            "12 ms",
            "2.1 %",
            "its probes say so",
            "  yes  1.2 s  ",
            "  20 (NotOurs 12, UnderlayFull 5, TooBig 3)\n",
        ] {
            assert!(wide.contains(part), "{wide}");
        }
        let dual = Peer {
            public_ipv6: Some("2001:db8::2".parse().unwrap()),
            vtep_mac_v6: "0a:74:c0:00:02:06".into(),
            path_mtu_v6: Some(1400),
            paths: vec![
                path(),
                PeerPath {
                    rtt_p50: None,
                    mtu_measured: None,
                    hears_us: Some(false),
                    next_probe: None,
                    ..path()
                },
            ],
            ..peers.peers[0].clone()
        };
        let text = render_wide(
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
            "  0.21 ms, -  ",
            "  1400/1500, -/1500  ",
            "  yes, no  1.2 s, -  ",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(drops(&Dropped::default()), "0");
        assert!(problem(&peers));
        assert!(!problem(&Peers::default()));
        let one = |state: &str| Peers {
            peers: vec![Peer {
                state: state.into(),
                ..peers.peers[0].clone()
            }],
            ..Peers::default()
        };
        assert!(problem(&one("silent")) && !problem(&one("heard")));
        assert!(render(&Peers::default(), &View::default()).starts_with("no peers"));
    }
}
