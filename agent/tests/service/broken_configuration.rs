//! Starts with a `tartan.toml` that cannot be used: by the one that was good before, where there is one.

use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;

use crate::TARTAN;
use testbed::{Cluster, Node, answered, eventually};

#[test]
fn a_service_killed_while_its_configuration_is_broken_goes_on_by_the_last_good_one() {
    let mut cluster = Cluster::empty(TARTAN, "vxlan");
    let file = configuration(cluster.node(1));
    // On a first start no packet depends on it, and an operator is there to read the reason.
    fs::write(&file, "masquerade = flase\n").unwrap();
    let (code, text) = cluster.node(1).run_to_end(&[]);
    assert_eq!(code, Some(2), "{text}");
    assert!(
        text.contains("tartan.toml") && text.contains("line 1"),
        "{text}"
    );

    fs::write(&file, "masquerade = false\n").unwrap();
    cluster.start();
    let node = cluster.node(1);
    let masquerades = |node: &Node| node.nft("list table inet tartan").contains("masquerade");
    assert!(!masquerades(node));
    for (life, broken, told) in [
        (1, "masquerade = flase\n", "line 1"),
        (2, "masquerade = false\nno-such-key = 1\n", "no-such-key"),
        (3, "workers = 0\n", "workers must be 1 to 32"),
        (4, "device = \"fast\"\n", "\"fast\""),
    ] {
        fs::write(&file, broken).unwrap();
        let pinging = node.start_ping("10.244.2.0", 100, "0.01");
        node.kill_service(Signal::KILL);
        eventually("the next service answers", || {
            node.json("status")["restarts"] == life
        });
        let answered = answered(pinging);
        assert!(answered >= 98, "{answered} of 100");
        let (code, text) = node.tartan(&["status"]);
        assert_eq!(code, 1, "{text}");
        for part in ["tartan.toml", told, "stays in force"] {
            assert!(text.contains(part), "{part:?}: {text}");
        }
        let problem = node.json("status")["problems"][0].clone();
        assert_eq!(problem["code"], "configuration-refused", "{problem:#}");
        assert_eq!(problem["severity"], "error");
        assert!(!masquerades(node), "the last good one is in force");
        assert_eq!(node.json("status")["workers"], 1);
    }
    // The same again is no reason for a new start, and another one is.
    fs::write(&file, "masquerade = false\n").unwrap();
    eventually("all is well", || node.tartan(&["status"]).0 == 0);
    assert_eq!(node.json("status")["restarts"], 4);

    // A whole new agent has it from the disk.
    fs::write(&file, "= 1\n").unwrap();
    cluster.stop(1);
    cluster.launch(1);
    let node = cluster.node(1);
    eventually("it forwards", || {
        node.tartan(&["status"]).1.contains("stays in force")
    });
    assert!(!masquerades(node));
    node.ping("10.244.2.0", 3);
    fs::write(&file, "masquerade = true\n").unwrap();
    eventually("the next service forwards by the corrected one", || {
        node.tartan(&["status"]).0 == 0 && masquerades(node)
    });
    assert_eq!(node.json("status")["restarts"], 1);

    // Damage to what was remembered counts as nothing remembered.
    let kept = node.state_dir().join("last-good-configuration.json");
    let damaged = fs::read_to_string(&kept).unwrap().replace("true", "tru");
    fs::write(&kept, damaged).unwrap();
    fs::write(&file, "= 1\n").unwrap();
    cluster.stop(1);
    assert_eq!(cluster.node(1).run_to_end(&[]).0, Some(2));
}

#[test]
fn no_reload_begins_a_start_that_would_find_no_configuration() {
    let mut cluster = Cluster::empty(TARTAN, "vxlan");
    let file = configuration(cluster.node(1));
    fs::write(&file, "masquerade = false\n").unwrap();
    // What is in force cannot be written.
    let kept = cluster
        .node(1)
        .state_dir()
        .join("last-good-configuration.json");
    fs::create_dir_all(&kept).unwrap();
    cluster.launch(1);
    cluster.launch(2);
    for number in [1, 2] {
        eventually("it answers", || {
            cluster.node(number).tartan(&["status"]).0 < 2
        });
    }
    let node = cluster.node(1);
    let service = node.json("status")["service_pid"].as_u64().unwrap();
    let net_conf = fs::read_to_string(node.net_conf()).unwrap();
    let lower = net_conf.replace("\"vxlan\"", "\"vxlan\",\"MTU\":1400");
    fs::write(node.net_conf(), lower).unwrap();
    fs::write(&file, "= 1\n").unwrap();
    let reload = rustix::process::Pid::from_raw(service.try_into().unwrap()).unwrap();
    rustix::process::kill_process(reload, Signal::HUP).unwrap();
    eventually("both are problems", || {
        let text = node.tartan(&["status"]).1;
        text.contains("not TOML") && text.contains("last-good-configuration.json")
    });
    assert_eq!(node.json("status")["service_pid"], service);
    node.ping("10.244.2.0", 3);
    // Once it can be written, the net-conf is taken.
    fs::remove_dir(&kept).unwrap();
    eventually("the next service forwards by the net-conf", || {
        let status = node.json("status");
        status["restarts"] == 1 && status["device_mtu"] == 1350
    });
}

fn configuration(node: &Node) -> PathBuf {
    let file = node.root.join("etc/tartan/tartan.toml");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    file
}
