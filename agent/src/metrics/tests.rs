use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Instant;

use cni_shim::{Attachment, State};
use dataplane::counters::Counters;
use dataplane::drops::DropReason;
use dataplane::engine::Clock;
use dataplane::families::{PerFamily, PublicAddresses};
use dataplane::publication::Publication;
use encap::{Format, Mac};
use ipnet::IpNet;

use super::metric::Metric;
use super::own_series::OTHER;
use super::*;
use crate::config::node::KernelPathMode;
use crate::config::{NetConf, NodeConfig, RunArgs};
use crate::control::registry_state::InTouch;
use crate::control::underlay::sockets::UnderlaySockets;
use crate::control::view::ServiceFacts;
use crate::control::workers::WorkerPlacement;
use crate::gathering::Gathering;
use crate::host::Underlay;
use crate::kernel_path::KernelPathView;
use crate::lease::Lease;
use crate::peer_health::PeerHealth;
use crate::peer_health::loss::Outcomes;
use crate::peer_health::report::PathReport;
use crate::peer_health::state::State as PathState;
use crate::problems::{Posted, Problem};
use crate::reconcile::{Inputs, reconcile};

const NET_CONF: &str = r#"{"Network":"10.0.0.0/8","EnableIPv6":true,"IPv6Network":"fd00::/48","Backend":{"Type":"vxlan"}}"#;

fn lease(node: u16) -> Lease {
    let [high, low] = node.to_be_bytes();
    let inside = Ipv6Addr::from([0xfd00, 0, 0, node, 0, 0, 0, 0]);
    let outside = Ipv6Addr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, node]);
    Lease {
        name: format!("node-{node}.example.internal"),
        subnets: vec![
            IpNet::new([10, high, low, 0].into(), 24).unwrap(),
            IpNet::new(inside.into(), 64).unwrap(),
        ],
        public: PublicAddresses::Dual([192, 0, high, low].into(), outside),
        format: Format::Vxlan,
        vtep_mac: PerFamily::each(|_| Mac([2, 0, 0, 0, high, low])),
        accept_sources: Vec::new(),
        underlay_sources: Vec::new(),
        kernel_path: None,
    }
}

/// What a node of a cluster of so many other nodes knows, with two workers and a problem.
fn view(peers: u16) -> View {
    let leases: Arc<[Lease]> = (1..=peers + 1).map(lease).collect();
    let own = leases[0].clone();
    let net_conf = NetConf::parse(NET_CONF).unwrap();
    let config = Arc::new(NodeConfig::load(&RunArgs::default()).unwrap());
    let attachments: Vec<Arc<Attachment>> = vec![Arc::new(Attachment {
        version: Attachment::VERSION,
        container: "c1".to_owned(),
        ifname: "eth0".to_owned(),
        addresses: vec![IpAddr::from([10, 0, 1, 2]).into()],
        state: State::Attached,
        ..Attachment::default()
    })];
    let desired = reconcile(
        &Inputs {
            net_conf: &net_conf,
            config: &config,
            leases: &leases,
            own: &own,
            bound: own.public,
            attachments: &attachments,
            kernel_prefixes: &[],
            pod_links: &[],
            released: &[],
            host_addresses: &[],
            underlay_mtu: 1500,
            device_mac: None,
            version: 1,
        },
        None,
    );
    View {
        service: Arc::new(ServiceFacts {
            config,
            cluster: net_conf.cluster(),
            workers: WorkerPlacement {
                device: "offload",
                cores: vec![None, None],
                fewer: None,
                unusable: Vec::new(),
            },
            device_type: "tun",
            registry: "file".to_owned(),
            started: Instant::now(),
            restarts: 3,
            last_end: None,
            upgraded: None,
        }),
        problems: [Posted {
            problem: Problem::PodUpkeep {
                reason: "\"a\"\nb".to_owned(),
            },
            since: SystemTime::now(),
        }]
        .into(),
        own: Arc::new(own),
        underlay: Underlay {
            name: "eth0".to_owned(),
            mtu: 1500,
            out_of_service: Vec::new(),
        },
        bypassing: Arc::default(),
        snapshot: Publication::new(&desired.spec).latest(),
        spec: desired.spec,
        counters: Counters::create(2).unwrap(),
        clock: Clock::begin(),
        peer_health: PeerHealth::without_thread(true, Clock::begin()).view(),
        device_mtu: 1450,
        cores: vec![None, None],
        attachments,
        stranded: 0,
        leaving: Arc::new(HashSet::new()),
        faulty: Arc::new(HashMap::new()),
        refused_records: Arc::default(),
        refused_sources: Vec::new(),
        leases_read: Instant::now(),
        leases_cached: None,
        is_registry_cached: false,
        in_touch: InTouch {
            answers: true,
            since: None,
            last_refused: None,
        },
        refused_leases: Arc::default(),
        repairs: 0,
        last_repair: None,
        reclaimed: 0,
        last_reclaimed: None,
        sockets: UnderlaySockets::none(2).receiving(),
        kernel_path: KernelPathView {
            mode: KernelPathMode::Off,
            off: None,
            device: None,
            port: None,
            version: 0,
            programs: Vec::new(),
            is_live: false,
            path: None,
            past: None,
            in_user_space: Arc::default(),
            flows: None,
        },
        gathering: Gathering::without_watcher(true).facts(),
    }
}

fn page_of(peers: u16, limit: usize) -> String {
    Memory::new(limit).scrape(Arc::new(view(peers)), KernelFacts::default(), true)
}

/// The samples of a page: each series with its value.
fn samples(page: &str) -> BTreeMap<&str, &str> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    let mut samples = BTreeMap::new();
    for line in lines {
        let (series, value) = line.rsplit_once(' ').unwrap();
        assert_eq!(samples.insert(series, value), None, "{line}");
    }
    samples
}

/// Every metric of the sources, as docs/check finds them.
fn listed() -> BTreeSet<String> {
    let sources = [
        include_str!("gathering.rs"),
        include_str!("kernel_path.rs"),
        include_str!("node.rs"),
        include_str!("peer_paths.rs"),
        include_str!("peers.rs"),
        include_str!("pods.rs"),
        include_str!("problems.rs"),
        include_str!("queues.rs"),
        include_str!("registry.rs"),
        include_str!("workers.rs"),
    ];
    let names = sources.iter().flat_map(|source| source.split('"'));
    let names = names.filter(|text| text.starts_with("tartan_"));
    names.map(str::to_owned).collect()
}

#[test]
fn a_page_has_every_metric_once_with_its_help_and_its_type() {
    let page = page_of(3, 256);
    assert!(page.ends_with("# EOF\n"));
    let mut described = BTreeMap::new();
    for line in page.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        if let ["#", "TYPE", name, kind] = words[..] {
            let suffix = match kind {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            let again = described.insert(format!("{name}{suffix}"), kind);
            assert_eq!(again, None, "{line}");
        }
        if let ["#", "HELP", _, help] = words[..] {
            assert!(help.len() > 20 && help.ends_with('.'), "{line}");
        }
    }
    let described: BTreeSet<String> = described.into_keys().collect();
    assert_eq!(described, listed());
}

#[test]
fn names_follow_the_conventions_of_prometheus() {
    for name in listed() {
        let is_plain = |c: char| c.is_ascii_lowercase() || c == '_';
        assert!(name.chars().all(is_plain), "{name}");
    }
    let units = [
        (
            "tartan_peer_sent_bytes_total",
            ("tartan_peer_sent", Some("bytes")),
        ),
        ("tartan_repairs_total", ("tartan_repairs", None)),
    ];
    for (name, family) in units {
        assert_eq!(Metric::counter(name, "").family(), family);
    }
    assert_eq!(
        Metric::info("tartan_build_info", "").family(),
        ("tartan_build", None)
    );
    assert_eq!(
        Metric::histogram("tartan_probe_round_trip_seconds", "").family(),
        ("tartan_probe_round_trip", Some("seconds"))
    );
    assert_eq!(
        Metric::gauge("tartan_held_packets", "").family(),
        ("tartan_held", Some("packets"))
    );
}

#[test]
fn what_is_counted_has_a_series_before_it_happens() {
    let page = page_of(3, 256);
    let samples = samples(&page);
    for reason in DropReason::ALL {
        for direction in ["outbound", "inbound"] {
            let series = format!(
                "tartan_dropped_packets_total{{worker=\"1\",direction=\"{direction}\",reason=\"{}\"}}",
                reason.name()
            );
            assert_eq!(samples.get(&*series), Some(&"0"), "{series}");
        }
    }
    assert_eq!(samples["tartan_restarts_total"], "3");
    assert_eq!(samples["tartan_ready"], "1");
    assert_eq!(
        samples["tartan_problems{code=\"pod-upkeep\",severity=\"warning\"}"],
        "1"
    );
    assert_eq!(samples["tartan_peers{format=\"vxlan\"}"], "3");
    assert_eq!(samples["tartan_pods{state=\"attached\"}"], "1");
    assert_eq!(
        samples["tartan_peer_path_mtu_bytes{peer=\"node-2.example.internal\",family=\"ipv4\"}"],
        "1500"
    );
}

#[test]
fn what_is_not_known_has_no_sample() {
    let page = page_of(1, 256);
    let samples = samples(&page);
    for unknown in [
        "tartan_registry_since_seconds",
        "tartan_device_queue_limit_packets",
    ] {
        assert!(page.contains(&format!("# HELP {unknown} ")));
        assert_eq!(samples.get(unknown), None);
    }
}

#[test]
fn series_of_peers_are_bounded() {
    let sent = |page: &str| {
        let lines = page.lines();
        lines
            .filter(|line| line.starts_with("tartan_peer_sent_packets_total{"))
            .count()
    };
    let page = page_of(40, 16);
    assert_eq!(sent(&page), 17);
    assert!(page.contains(&format!("{{peer=\"{OTHER}\"}}")));
    assert_eq!(samples(&page)["tartan_peers_without_series"], "24");
    assert_eq!(sent(&page_of(40, 0)), 1);
}

#[test]
fn paths_of_peers_have_their_state_and_their_figures() {
    let mut memory = Memory::new(2);
    let mut facts = memory.read(Arc::new(view(3)), KernelFacts::default(), true);
    let path = |address: [u8; 4], state| PathReport {
        address: address.into(),
        state,
        since: SystemTime::now(),
        is_busy: false,
        is_probed: true,
        round_trips: Some((Duration::from_micros(250), Duration::from_millis(1))),
        loss: (Some(0.25), None),
        measured: Some(1400),
        configured: 1500,
        next: None,
    };
    let mut silent = path([192, 0, 0, 3], PathState::Silent);
    silent.round_trips = None;
    facts.paths = HashMap::from([
        (
            "node-2.example.internal".into(),
            vec![path([192, 0, 0, 2], PathState::Up)],
        ),
        ("node-3.example.internal".into(), vec![silent]),
    ]);
    let page = encode(WholePage(facts));
    let samples = samples(&page);
    let of = |name: &str, rest: &str| {
        let series = format!("{name}{{peer=\"node-{rest}\"}}");
        samples.get(&*series).copied()
    };
    let up = "2.example.internal\",family=\"ipv4";
    assert_eq!(of("tartan_peer_round_trip_seconds", up), Some("0.00025"));
    assert_eq!(of("tartan_peer_loss_ratio", up), Some("0.25"));
    assert_eq!(of("tartan_peer_measured_mtu_bytes", up), Some("1400"));
    let silent = "3.example.internal\",family=\"ipv4";
    assert_eq!(of("tartan_peer_round_trip_seconds", silent), None);
    let silent = "3.example.internal\",state=\"silent";
    assert_eq!(of("tartan_peer_state", silent), Some("1"));
    let states = page
        .lines()
        .filter(|line| line.starts_with("tartan_peer_state{"));
    assert_eq!(states.count(), 2, "no series beyond the limit");
    for state in ["up", "silent", "new"] {
        let series = format!("tartan_peers_in_state{{state=\"{state}\"}}");
        assert_eq!(samples.get(&*series), Some(&"1"), "{state}");
    }
}

#[test]
fn round_trips_of_probes_are_a_histogram_whose_size_no_peer_changes() {
    let mut memory = Memory::new(2);
    let mut facts = memory.read(Arc::new(view(3)), KernelFacts::default(), true);
    for micros in [150, 200, 201, 3_000_000] {
        facts.round_trips.v4.observe(Duration::from_micros(micros));
    }
    let page = encode(WholePage(facts));
    assert!(page.contains("# TYPE tartan_probe_round_trip_seconds histogram\n"));
    assert!(page.contains("# UNIT tartan_probe_round_trip_seconds seconds\n"));
    let samples = samples(&page);
    let of = |rest: &str| {
        let series = format!("tartan_probe_round_trip_seconds_{rest}");
        samples.get(&*series).copied()
    };
    // A bucket holds what the lower ones hold, too.
    let buckets = [
        ("0.0001", "0"),
        ("0.0002", "2"),
        ("0.0005", "3"),
        ("1.0", "3"),
        ("+Inf", "4"),
    ];
    for (bound, count) in buckets {
        let bucket = format!("bucket{{le=\"{bound}\",family=\"ipv4\"}}");
        assert_eq!(of(&bucket), Some(count), "{bound}: {page}");
    }
    assert_eq!(of("count{family=\"ipv4\"}"), Some("4"));
    assert_eq!(of("sum{family=\"ipv4\"}"), Some("3.000551"));
    assert_eq!(of("count{family=\"ipv6\"}"), Some("0"));
    let series = |page: &str| page.matches("\ntartan_probe_round_trip_seconds_").count();
    assert_eq!(series(&page), 36);
    assert_eq!(series(&page_of(40, 16)), 36);
}

#[test]
fn probes_sent_and_lost_are_counters_by_family() {
    let mut memory = Memory::new(2);
    let mut facts = memory.read(Arc::new(view(3)), KernelFacts::default(), true);
    facts.outcomes.v4 = Outcomes {
        answered: 97,
        lost: 3,
    };
    let page = encode(WholePage(facts));
    assert!(page.contains("# TYPE tartan_probes_lost counter\n"));
    let samples = samples(&page);
    for (series, count) in [
        ("tartan_probes_sent_total{family=\"ipv4\"}", "100"),
        ("tartan_probes_lost_total{family=\"ipv4\"}", "3"),
        ("tartan_probes_sent_total{family=\"ipv6\"}", "0"),
        ("tartan_probes_lost_total{family=\"ipv6\"}", "0"),
    ] {
        assert_eq!(samples.get(series), Some(&count), "{series}");
    }
}

#[test]
fn a_service_that_does_not_forward_yet_says_so() {
    let page = starting();
    assert!(page.contains("tartan_ready 0\n"), "{page}");
    assert!(page.contains("tartan_build_info{version="), "{page}");
}

/// What a scrape costs is printed, not asserted: `cargo test --profile fast -p tartan --lib metrics -- --nocapture cost`.
#[test]
fn the_cost_of_a_scrape_of_5000_peers() {
    for limit in [256, 10_000] {
        let view = Arc::new(view(5_000));
        let mut memory = Memory::new(limit);
        let mut taken = Vec::new();
        let mut bytes = 0;
        for _ in 0..9 {
            let before = cpu_time();
            bytes = memory
                .scrape(Arc::clone(&view), KernelFacts::default(), true)
                .len();
            taken.push(cpu_time() - before);
        }
        taken.sort_unstable();
        println!(
            "5,000 peers, limit {limit}: {bytes} bytes, CPU median {:?}, most {:?}",
            taken[4], taken[8]
        );
        assert_eq!(memory.scrapes.count, 9);
    }
}
