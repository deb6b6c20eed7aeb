//! The whole agent, keeper and service, in network namespaces of its own. Needs root.
//!
//! ```text
//!   node1 (namespace) eth0 192.0.2.1 ═══ veth ═══ eth0 192.0.2.2 (namespace) node2
//!   tartan0 10.244.1.0                                          tartan0 10.244.2.0
//! ```
// threads: 4: its tests wait for processes most of the time, and the shortest bar is 1 s, of the best of five starts

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "service/beside_flanneld.rs"]
mod beside_flanneld;
#[path = "service/broken_configuration.rs"]
mod broken_configuration;
#[path = "service/families.rs"]
mod families;
#[path = "service/last_good.rs"]
mod last_good;
#[path = "service/leftovers.rs"]
mod leftovers;
#[path = "service/logs.rs"]
mod logs;
#[path = "service/moved.rs"]
mod moved;
#[path = "service/outside.rs"]
mod outside;
#[path = "service/peers_at_odds.rs"]
mod peers_at_odds;
#[path = "service/refusals.rs"]
mod refusals;
#[path = "service/shrink.rs"]
mod shrink;
#[path = "service/signals.rs"]
mod signals;

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use cni_shim::attachment::State;
use cni_shim::{Attachment, NodeFile, RunDir};
use rustix::process::Signal;
use tartan::keeper::lock::{Lock, LockError};
use testbed::{Cluster, Mount, eventually};

/// The program under test.
const TARTAN: &str = env!("CARGO_BIN_EXE_tartan");

#[test]
fn two_nodes_talk_and_every_packet_is_accounted_for() {
    for backend in ["udp", "vxlan"] {
        let cluster = Cluster::up(TARTAN, backend);
        cluster.node(1).ping("10.244.2.0", 20);
        cluster.node(2).ping("10.244.1.0", 20);
        for number in [1, 2] {
            let node = cluster.node(number);
            let drops = node.json("drops");
            for direction in ["outbound", "inbound"] {
                let flow = &drops["workers"][0][direction];
                assert_eq!(flow["balance"], 0, "{drops:#}");
                assert_eq!(flow["received"], 40, "{drops:#}");
            }
            let peers = node.json("peers");
            assert_eq!(peers["peers"][0]["sent_packets"], 40, "{peers:#}");
            assert_eq!(peers["peers"][0]["received_packets"], 40, "{peers:#}");
            assert_eq!(peers["peers"][0]["format"], backend);
            let (code, status) = node.tartan(&["status"]);
            assert_eq!(code, 0, "{status}");
            let file = NodeFile::read(&RunDir::under(&node.root)).unwrap();
            assert_eq!(file.mtu, if backend == "udp" { 1472 } else { 1450 });
        }
    }
}

/// The device is remade when another kind is asked for, and taken over when it is not; either way pods go on.
#[test]
fn a_device_of_another_kind_is_made_anew() {
    let cluster = Cluster::up(TARTAN, "vxlan");
    let node = cluster.node(1);
    let routes = || node.ip(&["-j", "route"]);
    let index = || node.ip(&["-o", "link", "show", "tartan0"])[..4].to_owned();
    let (before, first) = (routes(), index());
    let kind = || {
        let details = node.ip(&["-d", "link", "show", "tartan0"]);
        let several = details.contains("multi_queue");
        assert_eq!(details.contains("vnet_hdr on"), several, "{details}");
        (several, node.json("status")["offloads"].clone())
    };
    let every = serde_json::json!(["checksum", "tcp", "udp", "send"]);
    assert_eq!(kind(), (true, every.clone()));
    let configuration = node.root.join("etc/tartan/tartan.toml");
    std::fs::create_dir_all(configuration.parent().unwrap()).unwrap();
    for (restart, word) in [(1, "plain"), (2, "offload"), (3, "auto")] {
        std::fs::write(&configuration, format!("device = {word:?}\n")).unwrap();
        node.kill_service(Signal::KILL);
        eventually("the next service answers", || {
            node.json("status")["restarts"] == restart
        });
        let expected = match word {
            "plain" => (false, serde_json::json!(["send"])),
            _ => (true, every.clone()),
        };
        eventually("the workers tell of their offloads", || kind() == expected);
        node.ping("10.244.2.0", 3);
        assert_eq!(routes(), before, "{word}");
    }
    assert_ne!(index(), first);
    let status = node.json("status");
    assert_eq!(status["offloads_given_up"], 0, "{status:#}");
    assert_eq!(status["device_queue"], 2048, "{status:#}");
}

#[test]
fn a_take_over_goes_on_over_what_a_running_service_only_reports() {
    let cluster = Cluster::up(TARTAN, "vxlan");
    let node = cluster.node(1);
    let reports = |part: &str| {
        let (code, text) = node.tartan(&["status"]);
        code == 1 && text.contains(part)
    };
    let next_life = |number: u64| {
        node.kill_service(Signal::KILL);
        eventually("the next service answers", || {
            node.json("status")["restarts"] == number
        });
    };
    let rival = ["10.244.0.0/16", "via", "192.0.2.2"];
    node.ip(&[&["route", "replace"], &rival[..]].concat());
    eventually("the route is reported", || reports("already routed"));
    node.nft("delete table inet tartan");
    eventually("the rules do not wait for the route", || {
        node.nft("list tables").contains("inet tartan")
    });
    next_life(1);
    assert!(reports("already routed"), "{:?}", node.tartan(&["status"]));
    node.ip(&[&["route", "delete"], &rival[..]].concat());
    eventually("all is well", || node.tartan(&["status"]).0 == 0);
    node.ping("10.244.2.0", 3);

    let mtu = node.json("status")["device_mtu"].clone();
    node.ip(&["address", "delete", "192.0.2.1/24", "dev", "eth0"]);
    eventually("the address is missed", || reports("192.0.2.1"));
    next_life(2);
    assert!(reports("192.0.2.1"), "{:?}", node.tartan(&["status"]));
    assert_eq!(node.json("status")["device_mtu"], mtu, "as it was");
    node.ip(&["address", "add", "192.0.2.1/24", "dev", "eth0"]);
    eventually("all is well", || node.tartan(&["status"]).0 == 0);
    node.ping("10.244.2.0", 3);
}

#[test]
fn a_full_run_directory_keeps_no_service_down() {
    let mut cluster = Cluster::empty(TARTAN, "udp");
    let directory = cluster.node(1).root.join("run/tartan");
    let small = Mount::tmpfs(&directory, "size=64k,nr_inodes=64,mode=0700");
    cluster.start();
    let node = cluster.node(1);
    let next_life = |number: u64| {
        node.kill_service(Signal::KILL);
        eventually("the next service answers", || {
            node.json("status")["restarts"] == number
        });
        assert_eq!(node.tartan(&["status"]).0, 0, "nothing had to be written");
        node.ping("10.244.2.0", 3);
    };
    let full = std::fs::write(directory.join("filler"), vec![0; 1 << 20]);
    assert_eq!(full.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    next_life(1);
    drop(small);
}

#[test]
fn a_read_only_lock_is_had_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let small = Mount::tmpfs(directory.path(), "size=64k");
    let lock = directory.path().join("lock");
    std::fs::write(&lock, "").unwrap();
    small.make_read_only();
    let held = Lock::take(&lock).unwrap();
    assert!(matches!(Lock::take(&lock), Err(LockError::Held { .. })));
    drop(held);
}

#[test]
fn a_service_that_cannot_start_again_tells_why_to_who_asks() {
    let mut cluster = Cluster::up(TARTAN, "udp");
    let node = cluster.node(1);
    let configuration = node.root.join("etc/tartan/tartan.toml");
    std::fs::create_dir_all(configuration.parent().unwrap()).unwrap();
    std::fs::write(&configuration, "no-such-key = 1\n").unwrap();
    // Nothing stands in for it.
    let kept = node.state_dir().join("last-good-configuration.json");
    std::fs::remove_file(kept).unwrap();
    node.kill_service(Signal::KILL);
    eventually("the reason is told", || {
        let asked = Instant::now();
        let (code, text) = node.tartan(&["status"]);
        assert!(asked.elapsed() < Duration::from_secs(10));
        code == 3 && text.contains("last start failed") && text.contains("no-such-key")
    });
    std::fs::remove_file(&configuration).unwrap();
    eventually("the agent answers", || node.tartan(&["status"]).0 == 0);
    assert!(!node.root.join("run/tartan/start-failure").exists());
    cluster.stop(1);
    let (code, text) = cluster.node(1).tartan(&["status"]);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("start it with `tartan run`"), "{text}");
}

#[test]
fn a_deleted_device_is_back_with_the_next_service() {
    let cluster = Cluster::up(TARTAN, "vxlan");
    let node = cluster.node(1);
    node.ip(&["link", "delete", "tartan0"]);
    eventually("the device is back", || {
        node.json("status")["restarts"] == 1
    });
    node.ping("10.244.2.0", 3);
}

#[test]
fn a_socket_that_somebody_removed_is_opened_again() {
    let cluster = Cluster::up(TARTAN, "udp");
    let node = cluster.node(1);
    let pid = node.json("status")["service_pid"].clone();
    let socket = RunDir::under(&node.root).socket();
    std::fs::remove_file(&socket).unwrap();
    eventually("the agent answers again", || {
        node.tartan(&["status"]).0 == 0
    });
    assert_eq!(node.json("status")["service_pid"], pid, "without a restart");
    // The keeper holds the new one.
    node.kill_service(Signal::KILL);
    eventually("the next service answers", || {
        node.json("status")["restarts"] == 1
    });
}

#[test]
fn a_run_directory_that_somebody_emptied_is_filled_again() {
    let mut cluster = Cluster::up(TARTAN, "udp");
    let node = cluster.node(1);
    let run = RunDir::under(&node.root);
    let before = NodeFile::read(&run).unwrap();
    std::fs::remove_dir_all(run.path()).unwrap();
    // All but what keeps a second agent out.
    eventually("the agent answers again", || {
        let (code, text) = node.tartan(&["status"]);
        let first = text.lines().next().unwrap_or_default();
        code == 1 && first.starts_with("PROBLEM: ") && first.contains("systemctl restart tartan")
    });
    assert_eq!(NodeFile::read(&run).unwrap(), before);
    assert!(run.attachments().is_dir());
    let status = node.json("status");
    assert_eq!(status["problems"].as_array().unwrap().len(), 1);
    assert_eq!(status["repairs"], 2, "{status:#}");
    std::fs::remove_file(run.node()).unwrap();
    eventually("the plugin is told again", || {
        NodeFile::read(&run).is_ok_and(|found| found == before)
    });
    // The next service makes its lock's file anew, and the keeper's is still not there.
    node.kill_service(Signal::KILL);
    eventually("the next service tells it too", || {
        node.json("status")["restarts"] == 1 && node.tartan(&["status"]).0 == 1
    });
    cluster.stop(1);
    // It answers without a problem.
    cluster.start_node(1);
}

#[test]
fn a_killed_keeper_is_followed_by_a_fresh_start() {
    let mut cluster = Cluster::up(TARTAN, "vxlan");
    cluster.kill_keeper(1);
    cluster.start_node(1);
    let node = cluster.node(1);
    assert_eq!(node.json("status")["restarts"], 0);
    node.ping("10.244.2.0", 3);
}

/// The device outlives the agent and is taken over as long as its shape is the one wanted.
#[test]
fn the_device_of_a_stopped_agent_is_taken_over() {
    let mut cluster = Cluster::up(TARTAN, "vxlan");
    let index = |cluster: &Cluster, name: &str| {
        let found = cluster.node(1).space().list("link");
        let found = found.iter().find(|link| link["ifname"] == name);
        found.map(|link| link["ifindex"].as_u64().unwrap())
    };
    let first = index(&cluster, "tartan0");
    assert!(first.is_some());
    assert_eq!(cluster.stop(1), Some(0));
    let (code, text) = cluster.node(1).tartan(&["status"]);
    assert_eq!(code, 3, "{text}");
    for part in ["10.244.0.0/16 as unreachable", "tartan0 stays"] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    let refused = cluster.node(1).json("status");
    assert_eq!(
        refused["refused"],
        serde_json::json!(["10.244.0.0/16"]),
        "{refused:#}"
    );
    assert_eq!(
        (&refused["device"], &refused["device_held"]),
        (&"tartan0".into(), &false.into())
    );
    cluster.start_node(1);
    assert_eq!(index(&cluster, "tartan0"), first, "after a stop");
    cluster.kill_keeper(1);
    cluster.start_node(1);
    assert_eq!(index(&cluster, "tartan0"), first, "after SIGKILL");
    cluster.node(1).ping("10.244.2.0", 3);
    let configuration = cluster.node(1).root.join("etc/tartan/tartan.toml");
    std::fs::create_dir_all(configuration.parent().unwrap()).unwrap();
    let mut before = first;
    for (text, name) in [
        ("device = \"plain\"\n", "tartan0"),
        ("device-type = \"tap\"\n", "tartan0"),
        ("device-name = \"other0\"\n", "other0"),
        ("device-name = \"other0\"\n", "other0"),
    ] {
        assert_eq!(cluster.stop(1), Some(0));
        std::fs::write(&configuration, text).unwrap();
        cluster.start_node(1);
        cluster.node(1).ping("10.244.2.0", 3);
        let now = index(&cluster, name);
        let is_same = text.contains("other0") && index(&cluster, name) == before;
        assert!(
            now.is_some() && (now != before || is_same),
            "{text}: {now:?}"
        );
        before = now;
    }
    assert_eq!(
        index(&cluster, "tartan0"),
        None,
        "its routes were in the way"
    );
    let log = std::fs::read_to_string(cluster.node(1).root.join("log")).unwrap();
    for part in [
        "it is one with offloads",
        "deleted tartan0, the device of an agent before",
    ] {
        assert!(log.contains(part), "{part:?} is not in the log");
    }
}

#[test]
fn attachments_are_adopted_released_and_refused() {
    let cluster = Cluster::up(TARTAN, "udp");
    let node = cluster.node(1);
    let run = RunDir::under(&node.root);
    let adopt = |container: &str| {
        node.call(&format!(
            "{{\"call\":\"adopt\",\"container\":\"{container}\",\"ifname\":\"eth0\"}}"
        ))
    };
    let release = |container: &str| {
        node.call(&format!(
            "{{\"call\":\"release\",\"container\":\"{container}\",\"ifname\":\"eth0\"}}"
        ))
    };
    assert!(
        adopt("c1")["error"]
            .as_str()
            .unwrap()
            .contains("there is no record c1:eth0.json")
    );
    let record = attachment("c1", "10.244.1.2/32");
    record.write(&run).unwrap();
    let before = node.json("status")["snapshot"].as_u64().unwrap();
    let adopted = adopt("c1");
    assert_eq!(adopted["ok"]["snapshot"], before + 1, "{adopted}");
    assert_eq!(adopt("c1"), adopted, "asked again, nothing changes");
    let pods = node.json("pods");
    assert_eq!(pods["pods"][0]["addresses"][0], "10.244.1.2/32", "{pods:#}");
    attachment("c2", "10.99.0.2/32").write(&run).unwrap();
    assert!(adopt("c2")["error"].as_str().unwrap().contains("10.99.0.2"));
    let (code, text) = node.tartan(&["pods"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("10.99.0.2 (stranded)"), "{text}");
    assert!(
        release("c1")["error"]
            .as_str()
            .unwrap()
            .contains("still there")
    );
    // A record that goes or comes without a word to us counts within moments.
    record.remove(&run).unwrap();
    eventually("the pod is gone", || {
        node.json("status")["attachments"] == 1
    });
    record.write(&run).unwrap();
    eventually("the pod is back", || {
        node.json("status")["attachments"] == 2
    });
    record.remove(&run).unwrap();
    attachment("c2", "10.99.0.2/32").remove(&run).unwrap();
    assert_eq!(release("c1")["ok"]["snapshot"], before + 4);
    // Each is released by itself. The second was stranded, so no table had it.
    assert_eq!(release("c2")["ok"]["snapshot"], before + 4);
    assert_eq!(node.json("pods")["pods"].as_array().unwrap().len(), 0);
    // A record that is there when the service starts needs nobody to ask.
    record.write(&run).unwrap();
    node.kill_service(Signal::KILL);
    eventually("the next service has the pod", || {
        node.json("status")["attachments"] == 1
    });
}

#[test]
fn a_stranger_who_speaks_as_a_node_is_shown_with_the_setting() {
    let cluster = Cluster::up(TARTAN, "udp");
    cluster
        .node(2)
        .ip(&["address", "add", "192.0.2.77/24", "dev", "eth0"]);
    let [source, destination] = ["10.244.2.5", "10.244.1.0"].map(|text| text.parse().unwrap());
    let inner = testbed::packets::udp(source, destination, 28, false);
    cluster.node(2).inside(move || {
        let socket = UdpSocket::bind("192.0.2.77:0").unwrap();
        socket.send_to(&inner, "192.0.2.1:8285").unwrap();
    });
    let node = cluster.node(1);
    eventually("the stranger is noticed", || node.tartan(&["peers"]).0 == 1);
    let (_, peers) = node.tartan(&["peers"]);
    assert!(
        peers.contains("underlay-sources = [\"192.0.2.77\"]"),
        "{peers}"
    );
    let drops = node.json("drops");
    assert_eq!(
        drops["workers"][0]["inbound"]["dropped"]["UnknownPeer"], 1,
        "{drops:#}"
    );
}

#[test]
fn a_start_that_cannot_work_ends_with_its_reason() {
    let cluster = Cluster::empty(TARTAN, "vxlan");
    let node = cluster.node(1);
    let refused = |words: &[&str], code: i32, part: &str| {
        let (found, text) = node.run_to_end(words);
        assert_eq!(found, Some(code), "{text}");
        assert!(text.contains(part), "{part} is not in:\n{text}");
    };
    refused(&["--node-name", "node9"], 1, "node9");
    // What comes later is waited for by whoever starts us; what only an edit mends is not.
    refused(&["--net-conf", "/nowhere"], 1, "/nowhere");
    refused(&["--node-file", "/nowhere"], 1, "/nowhere");
    let broken = node.root.join("broken.json");
    std::fs::write(&broken, "{\"Network\":\"ten\"}").unwrap();
    refused(
        &["--net-conf", broken.to_str().unwrap()],
        2,
        "broken.json: Network",
    );
    refused(&["--local-ip", "192.0.2.99"], 1, "192.0.2.99");
    refused(&["--workers", "33"], 2, "workers is 33: use 1 to 32");
    refused(&["--device-name", "eth0"], 1, "eth0");
    let ip = node.inside(|| UdpSocket::bind("192.0.2.1:8472").unwrap());
    refused(&[], 1, "8472");
    drop(ip);
    let (code, text) = node.tartan(&["status"]);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("tartan run"), "{text}");
    assert!(text.contains("8472"), "the reason is still known: {text}");
}

#[test]
fn a_stop_is_clean_keeps_packets_from_leaking_and_cleanup_takes_the_rest() {
    let mut cluster = Cluster::empty(TARTAN, "vxlan");
    let census = |cluster: &Cluster| {
        let node = cluster.node(1);
        [
            node.ip(&["-j", "link"]),
            node.ip(&["-j", "route"]),
            node.ip(&["-j", "address"]),
            node.nft("list ruleset"),
        ]
    };
    let before = census(&cluster);
    cluster.start();
    let (code, text) = cluster.node(1).tartan(&["cleanup"]);
    assert_eq!(
        code, 1,
        "a running agent is not cleaned up behind its back: {text}"
    );
    assert!(text.contains("another agent"), "{text}");
    let (code, text) = cluster.node(1).run_to_end(&[]);
    assert_eq!(code, Some(1));
    assert!(text.contains("another agent (process "), "{text}");
    assert_eq!(cluster.stop(1), Some(0));
    let node = cluster.node(1);
    assert!(node.ip(&["route"]).contains("unreachable 10.244.0.0/16"));
    assert_eq!(node.tartan(&["status"]).0, 3);
    let (code, text) = node.tartan(&["cleanup"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("last-good.json"), "{text}");
    assert_eq!(census(&cluster), before);
    assert!(!node.root.join("run/tartan").exists(), "{text}");
    assert!(!node.root.join("var/lib/tartan").exists(), "{text}");
    let (code, text) = node.tartan(&["cleanup"]);
    assert_eq!((code, text.as_str()), (0, "nothing to clean up\n"));
}

fn attachment(container: &str, address: &str) -> Attachment {
    Attachment {
        version: Attachment::VERSION,
        network: "tartan".into(),
        container: container.into(),
        ifname: "eth0".into(),
        netns: "/run/netns/none".into(),
        netns_inode: 1,
        host_ifname: "tt0000000000".into(),
        addresses: vec![address.parse().unwrap()],
        mac: "0a:58:00:00:00:01".into(),
        pod: None,
        created: 0,
        state: State::Reserved,
        ..Attachment::default()
    }
}
