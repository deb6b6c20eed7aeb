//! Pods, the outside world, and firewalls between them.
//!
//! ```text
//!   pod 10.244.1.5 ── node1 192.0.2.1 ═══ 192.0.2.2 node2 ── pod 10.244.2.5
//! ```
//!
//! To node1's pod the address of node2 is the outside: no address of the
//! cluster network.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use crate::TARTAN;
use testbed::{Cluster, Namespace, Node, eventually, ping};

/// A pod without a plugin: a namespace, a veth pair and a route.
struct Pod {
    space: Namespace,
}

impl Pod {
    fn on(node: &Node, address: &str) -> Pod {
        let space = Namespace::new("pod");
        let pair = "link add pod0 type veth peer name eth0 netns";
        node.ip_words(&format!("{pair} {}", space.name()));
        node.ip_words("link set pod0 addrgenmode none up");
        node.ip_words("address add 169.254.1.1/32 dev pod0");
        node.ip_words(&format!("route add {address}/32 dev pod0"));
        for words in [
            "link set lo up",
            "link set eth0 addrgenmode none up",
            &format!("address add {address}/32 dev eth0"),
            "route add 169.254.1.1 dev eth0",
            "route add default via 169.254.1.1",
        ] {
            space.ip(words);
        }
        Pod { space }
    }

    fn reaches(&self, address: &str) -> bool {
        ping(self.space.name(), address)
    }
}

/// A socket of a namespace, to be used from anywhere.
fn socket(space: &Namespace, address: &str) -> UdpSocket {
    space.inside(|| {
        // A program that another test is just starting holds our sockets until its exec, those that we closed too.
        let mut tries = (0..500).map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            UdpSocket::bind(address)
        });
        let in_use = |bound: &io::Result<_>| matches!(bound, Err(error) if error.kind() == io::ErrorKind::AddrInUse);
        tries.find(|bound| !in_use(bound)).unwrap().unwrap()
    })
}

/// The source under which a datagram arrives, if it does.
fn source_seen(from: (&Namespace, &str), to: (&Namespace, &str)) -> Option<IpAddr> {
    let receiver = socket(to.0, "0.0.0.0:7777");
    receiver
        .set_read_timeout(Some(Duration::from_millis(700)))
        .unwrap();
    let sender = socket(from.0, from.1);
    let mut bytes = [0; 16];
    // The first may be lost to a neighbour that is not resolved yet.
    (0..3).find_map(|_| {
        sender.send_to(b"hello", (to.1, 7777)).unwrap();
        let (_, source) = receiver.recv_from(&mut bytes).ok()?;
        Some(source.ip())
    })
}

fn address(text: &str) -> Option<IpAddr> {
    Some(text.parse().unwrap())
}

#[test]
fn pods_meet_the_outside_as_their_node_and_each_other_as_themselves() {
    let cluster = Cluster::up(TARTAN, "vxlan");
    let (node1, node2) = (cluster.node(1), cluster.node(2));
    let pods = [Pod::on(node1, "10.244.1.5"), Pod::on(node2, "10.244.2.5")];
    eventually("the pods talk", || pods[0].reaches("10.244.2.5"));
    let pod = (&pods[0].space, "0.0.0.0:0");
    let outside = (node2.space(), "192.0.2.2");
    let remote = (&pods[1].space, "10.244.2.5");

    assert_eq!(source_seen(pod, outside), address("192.0.2.1"));
    assert_eq!(source_seen(pod, remote), address("10.244.1.5"));
    // A process of the host speaks as the tunnel's end, so that answers find
    // their way back through it.
    let host = (node1.space(), "192.0.2.1:0");
    assert_eq!(source_seen(host, remote), address("10.244.1.0"));
    // A client from outside keeps its address towards a pod of this node.
    node2.ip_words("route add 10.244.1.5/32 via 192.0.2.1");
    let client = (node2.space(), "192.0.2.2:0");
    let local = (&pods[0].space, "10.244.1.5");
    assert_eq!(source_seen(client, local), address("192.0.2.2"));

    // What kube-proxy marked it masquerades itself; other marks mean nothing.
    node1.nft("add table ip marks");
    node1.nft("add chain ip marks pre { type filter hook prerouting priority mangle; }");
    for (mark, seen) in [
        ("0x8000", "192.0.2.1"),
        ("0x4000", "10.244.1.5"),
        ("0xc001", "10.244.1.5"),
    ] {
        node1.nft("flush chain ip marks pre");
        node1.nft(&format!(
            "add rule ip marks pre ip saddr 10.244.1.5 meta mark set {mark}"
        ));
        assert_eq!(source_seen(pod, outside), address(seen), "mark {mark}");
    }
    let (code, status) = node1.tartan(&["status"]);
    assert_eq!(code, 0, "{status}");
}

#[test]
fn a_firewall_that_drops_is_opened_for_pods_and_left_as_it_was() {
    let mut cluster = Cluster::empty(TARTAN, "udp");
    // ufw's shape before the start, Docker's after it.
    let early = "table inet ufw";
    cluster.node(1).nft(&format!("add {early}"));
    cluster.node(1).nft(
        "add chain inet ufw forward { type filter hook forward priority filter; policy drop; }",
    );
    let docker = [
        "add table ip filter",
        "add chain ip filter DOCKER-USER",
        "add chain ip filter FORWARD { type filter hook forward priority filter; policy drop; }",
        "add rule ip filter FORWARD counter jump DOCKER-USER",
    ];
    cluster.start();
    let pods = [
        Pod::on(cluster.node(1), "10.244.1.5"),
        Pod::on(cluster.node(2), "10.244.2.5"),
    ];
    eventually("the pods talk", || pods[0].reaches("10.244.2.5"));
    let node = cluster.node(1);
    docker.iter().for_each(|line| drop(node.nft(line)));
    eventually("accept rules stand in Docker's chain", || {
        let chain = node.nft("list chain ip filter FORWARD");
        chain.matches("comment \"tartan: pod traffic\"").count() == 2
    });
    assert!(pods[0].reaches("10.244.2.5") && pods[1].reaches("10.244.1.5"));
    assert!(pods[0].reaches("192.0.2.2"));

    let ours = || {
        node.nft("list ruleset")
            .matches("comment \"tartan: pod traffic\"")
            .count()
    };
    let before = ours();
    assert!(before > 40, "{before}");
    node.nft("flush chain ip filter FORWARD");
    node.nft("delete table inet tartan");
    eventually("rules flushed are back", || ours() == before);
    assert!(pods[0].reaches("192.0.2.2"));
    let status = node.json("status");
    assert!(status["repairs"].as_u64().unwrap() >= 3, "{status:#}");

    node.nft("add rule ip filter FORWARD counter jump DOCKER-USER");
    assert_eq!(cluster.stop(1), Some(0));
    let node = cluster.node(1);
    assert_eq!(node.tartan(&["cleanup"]).0, 0);
    let left = node.nft("-s list ruleset");
    assert!(
        !left.contains("tartan") && !left.contains("10.244"),
        "{left}"
    );
    node.nft("flush ruleset");
    node.nft(&format!("add {early}"));
    node.nft(
        "add chain inet ufw forward { type filter hook forward priority filter; policy drop; }",
    );
    docker.iter().for_each(|line| drop(node.nft(line)));
    assert_eq!(left, node.nft("-s list ruleset"), "as if never touched");
    // It was the policy that our rules stood against.
    node.nft("flush chain ip filter FORWARD");
    node.sysctl("net.ipv4.ip_forward=1");
    assert!(!pods[0].reaches("192.0.2.2"));
}

#[test]
fn flannels_file_is_there_follows_and_goes() {
    let mut cluster = Cluster::up(TARTAN, "udp");
    let path = cluster.node(1).root.join("run/flannel/subnet.env");
    let read = || std::fs::read_to_string(&path).unwrap_or_default();
    // What a real flanneld writes on such a node.
    let expected = include_str!("../../src/host/subnet_env/fixtures/subnet-udp.env");
    assert_eq!(read(), expected);
    std::fs::remove_file(&path).unwrap();
    eventually("the file is back", || read() == expected);
    let node = cluster.node(1);
    node.ip_words("link set eth0 mtu 1400");
    eventually("the file follows the MTU", || {
        read() == expected.replace("1472", "1372")
    });
    assert_eq!(cluster.stop(1), Some(0));
    assert_eq!(read(), expected.replace("1472", "1372"), "a stop leaves it");
    let (code, text) = cluster.node(1).tartan(&["cleanup"]);
    assert_eq!(code, 0, "{text}");
    assert!(!path.parent().unwrap().exists(), "{text}");
}

#[test]
fn an_underlay_too_narrow_for_the_least_packets_is_a_problem() {
    let cluster = Cluster::up(TARTAN, "vxlan");
    let node = cluster.node(1);
    let problems = || node.json("status")["problems"].to_string();
    node.ip_words("link set eth0 mtu 600");
    eventually("the underlay is too narrow", || {
        problems()
            .contains("carries 600 bytes, but packets of 576 bytes must cross it and come to 626")
    });
    node.ip_words("link set eth0 mtu 626");
    eventually("the underlay is wide enough", || problems() == "[]");
}
