//! A list that loses most of its nodes at once: an editor's truncated save, or meant so.

use std::fs;
use std::time::{Duration, SystemTime};

use rustix::process::Signal;
use serde_json::Value;

use crate::TARTAN;
use testbed::{Cluster, Node, eventually};

#[test]
fn a_list_cut_at_an_entry_costs_nothing_until_it_is_confirmed() {
    let cluster = Cluster::up(TARTAN, "vxlan");
    let node = cluster.node(1);
    let (own, whole) = lists(node);
    fs::write(node.nodes(), &whole).unwrap();
    eventually("the list of eight", || peers(node) == 7);

    fs::write(node.nodes(), &own).unwrap();
    eventually("it is held back", || held_back(node).is_some());
    node.ping("10.244.2.0", 20);
    assert_eq!(peers(node), 7);
    let problem = held_back(node).unwrap();
    assert_eq!(problem["severity"], "error", "{problem:#}");
    for part in ["7 of 8 nodes", "node2", " UTC"] {
        assert!(
            problem["sentence"].as_str().unwrap().contains(part),
            "{problem:#}"
        );
    }
    assert!(
        problem["remedy"]
            .as_str()
            .unwrap()
            .contains("`tartan adopt`")
    );

    // The file put back undoes it.
    fs::write(node.nodes(), &whole).unwrap();
    eventually("all is well", || node.tartan(&["status"]).0 == 0);
    let nothing = node.tartan(&["adopt"]);
    assert_eq!(nothing.0, 0, "{}", nothing.1);
    assert!(nothing.1.contains("no list is held back"), "{}", nothing.1);

    // A list that cannot be used takes the place of the one that was held back: it is not adopted either.
    fs::write(node.nodes(), &own).unwrap();
    eventually("it is held back", || held_back(node).is_some());
    fs::write(node.nodes(), "").unwrap();
    eventually("the empty list is refused", || {
        has_problem(node, "leases-refused").is_some()
    });
    assert!(held_back(node).is_none());
    assert_eq!(peers(node), 7);

    // Nor does a restart adopt it.
    fs::write(node.nodes(), &own).unwrap();
    eventually("it is held back", || held_back(node).is_some());
    node.kill_service(Signal::KILL);
    eventually("the next service answers", || {
        node.json("status")["restarts"] == 1
    });
    assert!(held_back(node).is_some());
    node.ping("10.244.2.0", 20);

    let answer = node.json("adopt");
    assert_eq!(
        (&answer["adopted"], &answer["nodes"]),
        (&true.into(), &1.into())
    );
    assert_eq!(answer["lost"].as_array().unwrap().len(), 7, "{answer:#}");
    assert_eq!((peers(node), node.tartan(&["status"]).0), (0, 0));
    eventually("its route is gone", || !node.reaches("10.244.2.0"));
}

#[test]
fn a_list_held_back_is_adopted_when_its_grace_has_passed() {
    let mut cluster = Cluster::up(TARTAN, "udp");
    let (own, whole) = lists(cluster.node(1));
    cluster.stop(1);
    let config = cluster.node(1).nodes().with_file_name("etc/tartan");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("tartan.toml"), "shrink-grace = 3\n").unwrap();
    fs::write(cluster.node(1).nodes(), &whole).unwrap();
    cluster.start_node(1);
    let node = cluster.node(1);
    eventually("the list of eight", || peers(node) == 7);
    let since = SystemTime::now();
    fs::write(node.nodes(), &own).unwrap();
    eventually("it is held back", || held_back(node).is_some());
    eventually("it is adopted", || peers(node) == 0);
    assert!(since.elapsed().unwrap() >= Duration::from_secs(3));
    assert_eq!(node.tartan(&["status"]).0, 0);
}

/// Half of the nodes, or two of three, may go at once.
#[test]
fn a_list_that_loses_half_is_adopted_at_once() {
    let cluster = Cluster::up(TARTAN, "vxlan");
    let node = cluster.node(1);
    let (own, whole) = lists(node);
    fs::write(node.nodes(), &whole).unwrap();
    eventually("the list of eight", || peers(node) == 7);
    let half = own + &(2..=4).map(entry).collect::<String>();
    fs::write(node.nodes(), half).unwrap();
    eventually("the list of four", || peers(node) == 3);
    assert_eq!(node.tartan(&["status"]).0, 0);
}

/// A list of this node alone, and one of eight.
fn lists(node: &Node) -> (String, String) {
    let list = fs::read_to_string(node.nodes()).unwrap();
    let second = list.rfind("[[node]]").unwrap();
    let more: String = (3..=8).map(entry).collect();
    (list[..second].to_owned(), list + "\n" + &more)
}

fn entry(number: u8) -> String {
    format!(
        "[[node]]\nname = \"node{number}\"\nsubnets = [\"10.244.{number}.0/24\"]\npublic-ip = \"192.0.2.{number}\"\n\n"
    )
}

fn peers(node: &Node) -> u64 {
    node.json("status")["peers"].as_u64().unwrap_or(u64::MAX)
}

fn held_back(node: &Node) -> Option<Value> {
    has_problem(node, "list-shrinks")
}

fn has_problem(node: &Node, code: &str) -> Option<Value> {
    let status = node.json("status");
    let mut problems = status["problems"].as_array()?.iter();
    problems.find(|problem| problem["code"] == code).cloned()
}
