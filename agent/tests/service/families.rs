//! Nodes with an address of each family outside, and pods of both.

use rustix::process::Signal;

use crate::TARTAN;
use crate::moved::{edit, ports};
use testbed::{Cluster, Node, eventually};

#[test]
fn a_second_address_carries_ipv6_is_taken_over_and_goes_again() {
    let mut cluster = dual();
    cluster.start();
    let (node, peer) = (cluster.node(1), cluster.node(2));
    let both = [
        "192.0.2.1:8285",
        "192.0.2.1:8472",
        "[2001:db8::1]:8285",
        "[2001:db8::1]:8472",
    ];
    assert_eq!(ports(node), both);
    node.ping("10.244.2.0", 10);
    node.ping("fd00:10:244:2::", 10);
    let status = node.json("status");
    assert_eq!(
        (&status["public_ip"], &status["public_ipv6"]),
        (&"192.0.2.1".into(), &"2001:db8::1".into())
    );
    assert_eq!(status["device_mtu"], 1500 - 50);
    let route = node.ip(&["-6", "route", "show", "fd00:10:244::/48"]);
    assert!(route.contains("mtu 1430"), "{route}");
    let peers = node.json("peers");
    let shown = &peers["peers"][0];
    assert_eq!(shown["public_ipv6"], "2001:db8::2");
    assert_eq!(
        (&shown["path_mtu"], &shown["path_mtu_v6"]),
        (&1500.into(), &1500.into())
    );
    assert_eq!(vias(node), ["192.0.2.2", "2001:db8::2"]);
    // The kernel counts 10 packets of 104 bytes into the device, and what 10 datagrams carry: they themselves, a VXLAN and
    // an Ethernet header. Of several that a worker sends at once (UDP_SEGMENT) it counts one, with the octets of all.
    let before = sent6(node);
    node.ping("fd00:10:244:2::", 10);
    assert!(
        sent6(node) - before >= 10 * 104 + 10 * (104 + 22),
        "{}",
        sent6(node) - before
    );
    let env = std::fs::read_to_string(node.root.join("run/flannel/subnet.env")).unwrap();
    let lines = "FLANNEL_IPV6_NETWORK=fd00:10:244::/48\nFLANNEL_IPV6_SUBNET=fd00:10:244:1::1/64\nFLANNEL_MTU=1450\n";
    assert!(env.contains(lines), "{env}");

    node.kill_service(Signal::KILL);
    eventually("the next service answers", || {
        node.json("status")["restarts"] == 1
    });
    assert_eq!(ports(node), both);
    node.ping("10.244.2.0", 10);
    node.ping("fd00:10:244:2::", 10);
    let opened = |name: &str| {
        let log = std::fs::read_to_string(node.root.join("log")).unwrap();
        log.matches(&format!("opened name=\"{name}\"")).count()
    };
    for name in [
        "receive-vxlan-v4-0",
        "receive-vxlan-v6-0",
        "receive-udp-v6-0",
    ] {
        assert_eq!(opened(name), 1, "{name} was taken over");
    }

    // Without it, both families go by the one that is left, and the socket is not left lying about.
    for node in [node, peer] {
        edit(node, "public-ipv6 = \"2001:db8::1\"\n", "");
        edit(node, "public-ipv6 = \"2001:db8::2\"\n", "");
    }
    for node in [node, peer] {
        eventually("the second address is given up", || {
            node.json("status")["device_mtu"] == 1500 - 50 && ports(node).len() == 2
        });
    }
    assert_eq!(vias(node), ["192.0.2.2", "192.0.2.2"]);
    node.ping("fd00:10:244:2::", 10);
    node.kill_service(Signal::KILL);
    eventually("the next service answers", || {
        node.json("status")["restarts"] == 2
    });
    assert_eq!(
        ports(node),
        both[..2],
        "the keeper has none of IPv6 any more"
    );
    peer.ping("fd00:10:244:1::", 10);

    // And back.
    for node in [node, peer] {
        for i in 1..=2 {
            let first = format!("public-ip = \"192.0.2.{i}\"\n");
            edit(
                node,
                &first,
                &format!("{first}public-ipv6 = \"2001:db8::{i}\"\n"),
            );
        }
    }
    eventually("the second address is used again", || ports(node) == both);
    eventually("IPv6 goes by it", || {
        vias(node) == ["192.0.2.2", "2001:db8::2"] && node.reaches("fd00:10:244:2::")
    });
    for node in [node, peer] {
        let drops = node.json("drops");
        for direction in ["outbound", "inbound"] {
            assert_eq!(drops["workers"][0][direction]["balance"], 0, "{drops:#}");
        }
    }
}

#[test]
fn nodes_without_a_family_in_common_are_named() {
    let mut cluster = dual();
    for i in 1..=2 {
        let node = cluster.node(i);
        edit(node, "public-ipv6 = \"2001:db8::1\"\n", "");
        edit(
            node,
            "public-ip = \"192.0.2.2\"\npublic-ipv6 =",
            "public-ip =",
        );
    }
    cluster.launch(1);
    let node = cluster.node(1);
    let problem = || node.json("status")["problems"][0].clone();
    eventually("the agent says so", || problem().is_object());
    let said = problem().to_string();
    assert!(
        said.contains("no packet can go to node2 (2001:db8::2): this node has only 192.0.2.1")
            && said.contains("public-ipv6 beside public-ip"),
        "{said}"
    );
    let (code, routes) = node.tartan(&["routes"]);
    assert_eq!(code, 1, "{routes}");
    assert!(routes.contains("UNREACHABLE"), "{routes}");
    assert!(!node.reaches("10.244.2.0") && !node.reaches("fd00:10:244:2::"));
    let drops = node.json("drops");
    let reasons = drops["reasons"].as_array().unwrap();
    let no_way = reasons.iter().find(|row| row["reason"] == "NoUnderlay");
    assert_eq!(
        no_way.map(|row| &row["count"]),
        Some(&2.into()),
        "{drops:#}"
    );
}

/// An address of a family that our entry does not have is told, and not used.
#[test]
fn a_local_address_that_stands_for_none_is_told() {
    let mut cluster = Cluster::empty(TARTAN, "vxlan");
    let file = cluster.node(1).root.join("etc/tartan/tartan.toml");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "local-ipv6 = \"2001:db8::1\"\n").unwrap();
    cluster.launch(1);
    let node = cluster.node(1);
    let problem = || node.json("status")["problems"][0].clone();
    eventually("the agent says so", || problem().is_object());
    let said = problem().to_string();
    assert!(
        said.contains("names the local address 2001:db8::1"),
        "{said}"
    );
    assert_eq!(ports(node), ["192.0.2.1:8285", "192.0.2.1:8472"]);
}

/// Two nodes with both families inside and outside; no agent yet.
fn dual() -> Cluster {
    let cluster = Cluster::empty(TARTAN, "vxlan");
    for i in 1..=2 {
        let node = cluster.node(i);
        node.ip_words(&format!("address add 2001:db8::{i}/64 dev eth0 nodad"));
        let net_conf = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:244::/48","Backend":{"Type":"vxlan"}}"#;
        std::fs::write(node.net_conf(), net_conf).unwrap();
        for i in 1..=2 {
            let (v4, v6) = (format!("10.244.{i}.0/24"), format!("fd00:10:244:{i}::/64"));
            edit(node, &format!("\"{v4}\""), &format!("\"{v4}\", \"{v6}\""));
            let first = format!("public-ip = \"192.0.2.{i}\"\n");
            edit(
                node,
                &first,
                &format!("{first}public-ipv6 = \"2001:db8::{i}\"\n"),
            );
        }
    }
    cluster
}

/// IPv6 packets that the node's kernel has sent.
/// Octets of IPv6.
fn sent6(node: &Node) -> u64 {
    let counters = node.run_in_space("cat", "/proc/net/snmp6");
    let mut words = counters.split_whitespace();
    words.find(|word| *word == "Ip6OutOctets").unwrap();
    words.next().unwrap().parse().unwrap()
}

/// By which addresses the other node's subnets are reached, IPv4 first.
fn vias(node: &Node) -> Vec<String> {
    let routes = node.json("routes");
    let routes = routes["routes"].as_array().unwrap().iter();
    routes
        .filter(|route| route["node"] == "node2")
        .map(|route| route["via"].as_str().unwrap().to_owned())
        .collect()
}
