//! A node whose underlay address or subnet changes while it runs.

use std::collections::BTreeMap;

use cni_shim::{NodeFile, RunDir};
use rustix::process::Signal;

use crate::TARTAN;
use crate::attachment;
use testbed::{Cluster, Node, eventually};

#[test]
fn a_moved_address_is_followed_and_the_old_one_is_dead() {
    let cluster = Cluster::up(TARTAN, "vxlan");
    let (node, peer) = (cluster.node(1), cluster.node(2));
    node.ping("10.244.2.0", 10);
    let service = node.json("status")["service_pid"].clone();
    let sent = peer.json("peers")["peers"][0]["sent_packets"].clone();
    node.ip_words("address add 192.0.2.9/24 dev eth0");
    for node in [node, peer] {
        edit(node, "\"192.0.2.1\"", "\"192.0.2.9\"");
    }
    eventually("node1 moves", || {
        ports(node) == ["192.0.2.9:8285", "192.0.2.9:8472"]
    });
    assert_eq!(transmits(node), BTreeMap::from([("192.0.2.9".into(), 4)]));
    eventually("node2 hears of it", || {
        peer.json("peers")["peers"][0]["public_ip"] == "192.0.2.9"
    });
    peer.ping("10.244.1.0", 10);
    assert_eq!(node.json("status")["public_ip"], "192.0.2.9");
    assert_eq!(node.tartan(&["status"]).0, 0);
    // It is the same node, and counts on: 10 answers, 10 requests.
    assert_eq!(sent, 10);
    assert_eq!(peer.json("peers")["peers"][0]["sent_packets"], 20);
    let drops = node.json("drops");
    for direction in ["outbound", "inbound"] {
        let flow = &drops["workers"][0][direction];
        assert_eq!(
            (&flow["balance"], &flow["received"]),
            (&0.into(), &20.into()),
            "{drops:#}"
        );
    }
    assert_eq!(node.json("status")["service_pid"], service);

    // The keeper has the new sockets alone.
    node.ip_words("address delete 192.0.2.1/24 dev eth0");
    node.ip_words("address replace 192.0.2.9/24 dev eth0");
    node.kill_service(Signal::KILL);
    eventually("the next service answers", || {
        node.json("status")["restarts"] == 1
    });
    assert_eq!(ports(node), ["192.0.2.9:8285", "192.0.2.9:8472"]);
    let log = std::fs::read_to_string(node.root.join("log")).unwrap();
    assert_eq!(
        log.matches("opened name=\"receive-vxlan-v4-0\"").count(),
        2,
        "{log}"
    );
    peer.ping("10.244.1.0", 10);
}

#[test]
fn an_address_that_is_not_there_yet_is_waited_for_also_by_a_take_over() {
    let cluster = Cluster::up(TARTAN, "vxlan");
    let (node, peer) = (cluster.node(1), cluster.node(2));
    edit(node, "\"192.0.2.1\"", "\"192.0.2.9\"");
    let waits = || {
        let (code, text) = node.tartan(&["status"]);
        let first = text.lines().next().unwrap_or_default();
        code == 1 && first.contains("192.0.2.9") && first.contains("arrive at 192.0.2.1:")
    };
    eventually("the address is missed", waits);
    // node2 has not heard of it, and goes on: with the MAC that follows from the old address.
    peer.ping("10.244.1.0", 10);
    node.kill_service(Signal::KILL);
    eventually("the next service answers", || {
        node.json("status")["restarts"] == 1
    });
    assert!(waits(), "{:?}", node.tartan(&["status"]));
    assert_eq!(node.json("status")["public_ip"], "192.0.2.1");
    peer.ping("10.244.1.0", 10);

    node.ip_words("address add 192.0.2.9/24 dev eth0");
    eventually("node1 moves", || {
        ports(node) == ["192.0.2.9:8285", "192.0.2.9:8472"]
    });
    eventually("all is well", || node.tartan(&["status"]).0 == 0);
    edit(peer, "\"192.0.2.1\"", "\"192.0.2.9\"");
    eventually("node2 reaches it", || peer.reaches("10.244.1.0"));

    // A first start does not wait: nothing depends on it yet.
    edit(node, "\"192.0.2.9\"", "\"192.0.2.10\"");
    let mut cluster = cluster;
    assert_eq!(cluster.stop(1), Some(0));
    let (code, text) = cluster.node(1).run_to_end(&[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("no interface of this node holds 192.0.2.10"),
        "{text}"
    );
    assert!(text.contains("192.0.2.9 (eth0)"), "{text}");
}

#[test]
fn another_subnet_strands_the_pods_of_the_old_one() {
    let cluster = Cluster::up(TARTAN, "udp");
    let (node, peer) = (cluster.node(1), cluster.node(2));
    let run = RunDir::under(&node.root);
    attachment("c1", "10.244.1.2/32").write(&run).unwrap();
    // The pod's route, as the plugin makes it.
    node.ip_words("link add tt0000000000 type veth peer name pod0");
    node.ip_words("link set tt0000000000 up");
    node.ip_words("route add 10.244.1.2/32 dev tt0000000000");
    eventually("the pod is there", || {
        node.json("status")["attachments"] == 1
    });
    for node in [node, peer] {
        edit(node, "10.244.1.0/24", "10.244.17.0/24");
    }
    eventually("the pod is stranded", || {
        node.json("status")["stranded"] == 1
    });
    let (code, text) = node.tartan(&["status"]);
    assert_eq!(code, 1, "{text}");
    let problems: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("PROBLEM"))
        .collect();
    let [problem] = problems[..] else {
        panic!("{text}")
    };
    assert!(
        problem.contains("stranded pods") && problem.contains("container c1"),
        "{text}"
    );
    assert!(problem.contains("delete and recreate"), "{text}");
    assert_eq!(node.json("pods")["pods"][0]["stranded"][0], "10.244.1.2");
    let routes = node.tartan(&["routes"]).1;
    assert!(
        routes.contains("10.244.1.2/32"),
        "it bypasses us, as told there: {routes}"
    );

    assert_eq!(
        NodeFile::read(&run).unwrap().subnets,
        ["10.244.17.0/24".parse().unwrap()]
    );
    let env = std::fs::read_to_string(node.root.join("run/flannel/subnet.env")).unwrap();
    assert!(env.contains("FLANNEL_SUBNET=10.244.17.1/24"), "{env}");
    let addresses = node.ip_words("-4 address show dev tartan0");
    assert!(addresses.contains("10.244.17.0/32") && !addresses.contains("10.244.1.0/32"));
    let unreachable = node.ip_words("route show type unreachable");
    assert!(unreachable.contains("10.244.17.0/24") && !unreachable.contains("10.244.1.0/24"));
    let rules = node.nft("list table inet tartan");
    assert!(
        rules.contains("10.244.17.0/24") && !rules.contains("10.244.1.0/24"),
        "{rules}"
    );
    eventually("node2 reaches the new subnet", || {
        peer.reaches("10.244.17.0")
    });

    let adopt = |container: &str| {
        node.call(&format!(
            "{{\"call\":\"adopt\",\"container\":\"{container}\",\"ifname\":\"eth0\"}}"
        ))
    };
    attachment("c2", "10.244.17.2/32").write(&run).unwrap();
    assert!(adopt("c2")["ok"].is_object(), "{}", adopt("c2"));
    let refused = adopt("c1")["error"].as_str().unwrap().to_owned();
    assert!(
        refused.contains("10.244.1.2 lies in no subnet"),
        "{refused}"
    );
    attachment("c1", "10.244.1.2/32").remove(&run).unwrap();
    node.ip_words("link delete tt0000000000");
    eventually("all is well", || node.tartan(&["status"]).0 == 0);
}

/// One text for another in a node's list.
pub(crate) fn edit(node: &Node, old: &str, new: &str) {
    let list = std::fs::read_to_string(node.nodes()).unwrap();
    assert!(list.contains(old), "{list}");
    std::fs::write(node.nodes(), list.replace(old, new)).unwrap();
}

/// What UDP sockets at Tartan's ports in the node's namespace are bound to, whoever holds them.
pub(crate) fn ports(node: &Node) -> Vec<String> {
    let known = |socket: &String| socket.ends_with(":8285") || socket.ends_with(":8472");
    sockets(node).into_iter().filter(known).collect()
}

/// How many transmit sockets of VXLAN, whose ports the kernel chose, there are at each address.
fn transmits(node: &Node) -> BTreeMap<String, usize> {
    let ports = ports(node);
    let mut counts = BTreeMap::new();
    for socket in sockets(node)
        .iter()
        .filter(|socket| !ports.contains(socket))
    {
        if let Some((address, _)) = socket.rsplit_once(':') {
            *counts.entry(address.to_owned()).or_insert(0) += 1;
        }
    }
    counts
}

/// What UDP sockets in the node's namespace are bound to.
fn sockets(node: &Node) -> Vec<String> {
    let text = node.run_in_space("ss", "-Hlun");
    let local = text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(3));
    let mut local: Vec<String> = local.map(str::to_owned).collect();
    local.sort();
    local
}
