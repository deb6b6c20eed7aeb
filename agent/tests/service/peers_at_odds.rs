//! Peers that this node cannot talk with because the two are configured differently: named, with what differs.

use std::fs;

use crate::TARTAN;
use testbed::{Cluster, Node, eventually};

/// The problem of this code.
fn problem(node: &Node, code: &str) -> Option<serde_json::Value> {
    let status = node.json("status");
    let mut problems = status["problems"].as_array()?.iter();
    problems.find(|problem| problem["code"] == code).cloned()
}

fn told(node: &Node, code: &str, subject: &str, parts: &[&str]) {
    eventually(code, || problem(node, code).is_some());
    let problem = problem(node, code).unwrap();
    assert_eq!(problem["subject"], subject, "{problem:#}");
    let text = problem.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {problem:#}");
    }
}

#[test]
fn a_peer_of_another_vxlan_network_is_named() {
    let mut cluster = Cluster::empty(TARTAN, "vxlan");
    let net_conf = fs::read_to_string(cluster.node(2).net_conf()).unwrap();
    let other = net_conf.replace("\"vxlan\"", "\"vxlan\",\"VNI\":77");
    fs::write(cluster.node(2).net_conf(), other).unwrap();
    cluster.start();
    assert!(!cluster.node(2).reaches("10.244.1.0"));
    let parts = ["node2", "77", "WrongVni", "Backend.VNI"];
    told(cluster.node(1), "peer-other-vni", "node2", &parts);
}

#[test]
fn a_peer_that_sends_from_no_address_of_its_entry_is_named() {
    let mut cluster = Cluster::empty(TARTAN, "vxlan");
    let list = fs::read_to_string(cluster.node(1).nodes()).unwrap();
    let wrong = list.replace("\"192.0.2.2\"", "\"192.0.2.22\"");
    fs::write(cluster.node(1).nodes(), wrong).unwrap();
    cluster.start();
    assert!(!cluster.node(2).reaches("10.244.1.0"));
    let parts = ["192.0.2.2,", "192.0.2.22", "UnknownPeer", "public-ip"];
    told(cluster.node(1), "peer-unknown-address", "node2", &parts);
    // What is corrected is no problem any more.
    fs::write(cluster.node(1).nodes(), list).unwrap();
    eventually("all is well", || cluster.node(1).tartan(&["status"]).0 == 0);
}

#[test]
fn nodes_without_a_subnet_of_a_family_and_a_family_that_is_lost_are_told() {
    let mut cluster = Cluster::empty(TARTAN, "vxlan");
    let dual = "{\"Network\":\"10.244.0.0/16\",\"EnableIPv6\":true,\"IPv6Network\":\"fd00:10:244::/48\",\"Backend\":{\"Type\":\"vxlan\"}}";
    let list = |second: &str, public: &str| {
        format!(
            "[[node]]\nname = \"node1\"\nsubnets = [\"10.244.1.0/24\", \"fd00:10:244:1::/64\"]\npublic-ip = \"192.0.2.1\"\n\
             [[node]]\nname = \"node2\"\nsubnets = [\"10.244.2.0/24\"{second}]\npublic-ip = \"192.0.2.2\"\n{public}"
        )
    };
    let (both, public) = (
        ", \"fd00:10:244:2::/64\"",
        "public-ipv6 = \"2001:db8::2\"\n",
    );
    for number in [1, 2] {
        fs::write(cluster.node(number).net_conf(), dual).unwrap();
        fs::write(cluster.node(number).nodes(), list(both, "")).unwrap();
    }
    cluster.start();
    let node = cluster.node(1);
    fs::write(node.nodes(), list("", "")).unwrap();
    told(
        node,
        "family-without-subnets",
        "IPv6",
        &["node2", "EnableIPv6"],
    );
    told(node, "peer-lost-family", "node2", &["IPv6", "subnet"]);
    fs::write(node.nodes(), list(both, public)).unwrap();
    eventually("all is well", || node.tartan(&["status"]).0 == 0);
    fs::write(node.nodes(), list(both, "")).unwrap();
    told(node, "peer-lost-family", "node2", &["IPv6", "address"]);
    fs::write(node.nodes(), list(both, public)).unwrap();
    eventually("all is well", || node.tartan(&["status"]).0 == 0);
}
