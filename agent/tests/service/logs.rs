//! What an operator reads in the log: severities, no line over and over, and what a change consists of.

use std::fs;

use crate::TARTAN;
use testbed::{Cluster, eventually};

#[test]
fn under_journald_each_line_has_its_level_and_no_time_of_its_own() {
    let cluster = Cluster::empty(TARTAN, "vxlan");
    let node = cluster.node(1);
    fs::write(node.nodes(), "[[node]]\nname = \"node1\"\n").unwrap();
    let journal = [
        "sh",
        "-c",
        "JOURNAL_STREAM=$(stat -Lc %d:%i /dev/stderr) exec \"$0\" \"$@\"",
    ];
    let (code, text) = node.run_to_end_by(&journal, &[]);
    assert_eq!(code, Some(1), "{text}");
    for line in text.lines() {
        let level = ["<3>", "<4>", "<6>"].iter().find(|l| line.starts_with(**l));
        assert!(level.is_some(), "{line}");
        let words = line.get(3..).unwrap_or_default();
        assert!(!words.starts_with(char::is_numeric), "a time: {line}");
    }
    let at = |level: &str, part: &str| {
        let mut lines = text.lines();
        lines.any(|line| line.starts_with(level) && line.contains(part))
    };
    assert!(at("<6>", "the service is started"), "{text}");
    assert!(at("<3>", "no public-ip"), "{text}");
    // Elsewhere a line has its time and its level in words.
    let (_, text) = node.run_to_end(&[]);
    assert!(text.contains("ERROR") && !text.contains("<3>"), "{text}");
    // A configuration that cannot be used is an error there too.
    let configuration = node.root.join("etc/tartan/tartan.toml");
    fs::create_dir_all(configuration.parent().unwrap()).unwrap();
    fs::write(&configuration, "workers = 0\n").unwrap();
    let (code, text) = node.run_to_end_by(&journal, &[]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.starts_with("<3>"), "{text}");
    // So is a variable that is none.
    let [shell, option, script] = journal;
    let script = format!("export TARTAN_WORKRES=2; {script}");
    let (code, text) = node.run_to_end_by(&[shell, option, &script], &[]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.starts_with("<3>tartan: TARTAN_WORKRES"), "{text}");
}

#[test]
fn repeated_repairs_are_one_line_a_minute() {
    let cluster = Cluster::up(TARTAN, "vxlan");
    let node = cluster.node(1);
    let repairs = || node.json("status")["repairs"].as_u64().unwrap();
    for done in 0..6 {
        eventually("the table is there", || {
            node.nft("list tables").contains("inet tartan")
        });
        node.nft("delete table inet tartan");
        eventually("the table is repaired", || repairs() > done);
    }
    let log = fs::read_to_string(node.root.join("log")).unwrap();
    let lines = log
        .lines()
        .filter(|line| line.contains("repaired: wrote the nft table"));
    assert_eq!(lines.count(), 1, "six repairs within a minute");
    assert!(repairs() >= 6, "each of them is counted");
}

#[test]
fn an_adopted_list_says_what_changed_and_a_problem_comes_and_goes_once() {
    let cluster = Cluster::up(TARTAN, "vxlan");
    let node = cluster.node(1);
    let log = || fs::read_to_string(node.root.join("log")).unwrap();
    let list = fs::read_to_string(node.nodes()).unwrap();
    let third =
        "[[node]]\nname = \"node3\"\nsubnets = [\"10.244.3.0/24\"]\npublic-ip = \"192.0.2.3\"\n";
    fs::write(node.nodes(), list.clone() + third).unwrap();
    eventually("the third node is told of", || {
        log().contains("the list of nodes is adopted: 3 nodes, 1 added (node3)")
    });
    fs::write(
        node.nodes(),
        list.clone() + &third.replace("192.0.2.3", "192.0.2.33"),
    )
    .unwrap();
    eventually("its new address is told of", || {
        log().contains("adopted: 3 nodes, 1 changed (node3: public-ip)")
    });
    fs::write(node.nodes(), "= 1").unwrap();
    eventually("it is refused", || node.tartan(&["status"]).0 == 1);
    fs::write(node.nodes(), list).unwrap();
    eventually("its end is told of", || {
        log().contains("adopted: 2 nodes, 1 removed (node3)")
    });
    eventually("all is well", || node.tartan(&["status"]).0 == 0);
    let log = log();
    let told = |part: &str, level: &str| {
        let lines = log
            .lines()
            .filter(|l| l.contains(part) && l.contains(level));
        lines.filter(|line| line.contains("leases-refused")).count()
    };
    assert_eq!(
        (told("", "ERROR"), told("solved:", "INFO")),
        (1, 1),
        "{log}"
    );
}
