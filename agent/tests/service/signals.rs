//! Signals of the keeper and of the service: which stop, which reload, and which do nothing.

use std::fs;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::TARTAN;
use testbed::{Cluster, Node, answered, eventually};

/// Every signal that ends a process unless it is caught, but those that report its own fault (SIGSEGV and the like),
/// SIGKILL, and the two that ask it to stop.
const DEADLY: [&str; 15] = [
    "HUP", "QUIT", "USR1", "USR2", "PIPE", "ALRM", "VTALRM", "PROF", "IO", "PWR", "STKFLT", "XCPU",
    "XFSZ", "34", "64",
];

#[test]
fn no_signal_but_term_and_int_stops_keeper_or_service() {
    let mut cluster = Cluster::up(TARTAN, "vxlan");
    let node = cluster.node(1);
    let before = lives(node);
    let pinging = node.start_ping("10.244.2.0", 200, "0.02");
    for signal in DEADLY {
        for pid in [before.0, before.1] {
            kill(pid, signal);
        }
    }
    // Pending signals are delivered before the process answers anything.
    assert_eq!(node.tartan(&["status"]).0, 0);
    assert_eq!(lives(node), before, "neither was started anew");
    assert_eq!(answered(pinging), 200);
    assert_eq!(lives(node), before);

    // The next service is as deaf, and it inherits no signal that is ignored or blocked.
    node.kill_service(Signal::KILL);
    eventually("the next service answers", || {
        node.json("status")["restarts"] == 1
    });
    let (keeper, service, _) = lives(node);
    for pid in [keeper, service] {
        let of_process = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        for masks in ["SigBlk:", "SigIgn:"] {
            let mask = of_process.lines().find_map(|l| l.strip_prefix(masks));
            let mask = u64::from_str_radix(mask.unwrap().trim(), 16).unwrap();
            // The runtime of the language ignores SIGPIPE, and 32 and 33 are the C library's own.
            let others = !(1 << 12 | 0b11 << 31);
            assert_eq!(mask & others, 0, "{masks} {mask:x}");
        }
    }
    kill(service, "USR1");
    node.ping("10.244.2.0", 3);
    assert_eq!(lives(node).1, service);
    kill(service, "INT");
    eventually(
        "a service that was asked to stop is followed by the next",
        || node.json("status")["restarts"] == 2,
    );
    kill(keeper, "INT");
    assert_eq!(cluster.stop(1), Some(0));
}

#[test]
fn a_hangup_reloads_what_has_changed_and_says_so() {
    let cluster = Cluster::up(TARTAN, "vxlan");
    let node = cluster.node(1);
    let (keeper, service, _) = lives(node);
    let log = || fs::read_to_string(node.root.join("log")).unwrap();

    kill(keeper, "HUP");
    eventually("it is said that nothing has changed", || {
        log().contains("reload: nothing has changed")
    });
    assert_eq!(lives(node).1, service);

    // What cannot be used changes nothing, and is a problem until it is corrected.
    let net_conf = fs::read_to_string(node.net_conf()).unwrap();
    fs::write(node.net_conf(), "{").unwrap();
    kill(keeper, "HUP");
    eventually("the net-conf is refused", || {
        let (code, text) = node.tartan(&["status"]);
        code == 1 && text.contains("not JSON") && text.contains("stays in force")
    });
    node.ping("10.244.2.0", 3);
    fs::write(node.net_conf(), &net_conf).unwrap();
    eventually("all is well", || node.tartan(&["status"]).0 == 0);
    assert_eq!(lives(node).1, service);

    // A net-conf and a configuration that differ are taken, by one start of the service, while packets wait.
    let pinging = node.start_ping("10.244.2.0", 200, "0.02");
    let lower = net_conf.replace("\"vxlan\"", "\"vxlan\",\"MTU\":1400");
    fs::write(node.net_conf(), lower).unwrap();
    let configuration = node.root.join("etc/tartan/tartan.toml");
    fs::create_dir_all(configuration.parent().unwrap()).unwrap();
    fs::write(&configuration, "masquerade = false\n").unwrap();
    kill(keeper, "HUP");
    eventually("the next service forwards by them", || {
        let status = node.json("status");
        status["restarts"] == 1 && status["device_mtu"] == 1350
    });
    eventually("nothing is masqueraded", || {
        !node.nft("list table inet tartan").contains("masquerade")
    });
    let answered = answered(pinging);
    assert!(answered >= 198, "{answered} of 200");
    let so_far = log();
    for part in ["reload: masquerade: true -> false", "reload: Backend.MTU: "] {
        assert!(so_far.contains(part), "{part:?} is not in the log");
    }

    // What only the keeper could take needs a restart of the agent, and that is said.
    fs::write(
        &configuration,
        "masquerade = false\nroot = \"/elsewhere\"\n",
    )
    .unwrap();
    let (_, service, _) = lives(node);
    kill(service, "HUP");
    eventually("it is said that --root overrides it", || {
        log().contains("reload: root: - -> /elsewhere: without effect")
    });
    node.ping("10.244.2.0", 3);
    assert_eq!(lives(node).1, service, "no reason for a start");

    // The name of another interface would end the device that there is.
    fs::write(&configuration, "device-name = \"eth0\"\n").unwrap();
    kill(keeper, "HUP");
    eventually("the name is refused", || {
        let (code, text) = node.tartan(&["status"]);
        code == 1 && text.contains("device-name is taken: eth0 exists already")
    });
    node.ping("10.244.2.0", 3);
    assert_eq!(lives(node).1, service, "nor is a name that is taken");
    // A service that starts by it all the same leaves the old device with the keeper, for the text that is corrected.
    kill(service, "KILL");
    eventually("the start fails", || {
        log().matches("eth0 exists already").count() > 1
    });
    fs::write(&configuration, "masquerade = false\n").unwrap();
    eventually("the next service has taken the old device over", || {
        node.tartan(&["status"]).0 == 0
    });
    node.ping("10.244.2.0", 3);
    assert!(!log().contains("not taken over"), "{}", log());
}

#[test]
fn the_unit_restarts_whatever_happens_and_reloads_by_hangup() {
    let unit = include_str!("../../../deploy/tartan.service");
    let has = |line: &str| unit.lines().any(|found| found == line);
    assert!(has("Restart=always"));
    assert!(has("ExecReload=/bin/kill -HUP $MAINPID"));
    for no in ["SuccessExitStatus", "RestartPreventExitStatus"] {
        assert!(!unit.contains(no), "{no}");
    }
}

/// Ids of keeper and service, and how often a service was started anew.
fn lives(node: &Node) -> (i64, i64, u64) {
    let status = node.json("status");
    let id = |name: &str| status[name].as_i64().unwrap();
    let service = id("service_pid");
    let of_service = fs::read_to_string(format!("/proc/{service}/stat")).unwrap();
    let after_name = of_service.rsplit_once(") ").unwrap().1;
    let keeper = after_name.split(' ').nth(1).unwrap().parse().unwrap();
    (keeper, service, status["restarts"].as_u64().unwrap())
}

/// A registry that was named wrongly is waited for without end, at a first start too: a reload has the next service start by the
/// corrected file.
#[test]
fn a_hangup_ends_the_wait_for_a_registry() {
    let cluster = Cluster::empty(TARTAN, "vxlan");
    let node = cluster.node(1);
    let file = node.root.join("etc/tartan/tartan.toml");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let log = || fs::read_to_string(node.root.join("log-of-wait")).unwrap_or_default();
    // No process listens at either port.
    let name_port = |port| {
        let text = format!("registry = \"etcd\"\netcd-endpoints = [\"http://127.0.0.1:{port}\"]\n");
        fs::write(&file, text + "iface = [\"lo\"]\n").unwrap();
    };
    name_port(1);
    let mut agent = node.inside(|| {
        Command::new(TARTAN)
            .arg("--root")
            .arg(&node.root)
            .arg("run")
            .stdout(Stdio::null())
            .stderr(fs::File::create(node.root.join("log-of-wait")).unwrap())
            .spawn()
            .unwrap()
    });
    eventually("it waits", || log().contains("etcd http://127.0.0.1:1 "));
    name_port(2);
    kill(agent.id().into(), "HUP");
    eventually("the next service waits for the other one", || {
        log().contains("etcd http://127.0.0.1:2 ")
    });
    let (code, text) = node.tartan(&["status"]);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("waits for its registry"), "{text}");
    kill(agent.id().into(), "TERM");
    assert_eq!(agent.wait().unwrap().code(), Some(0));
}

fn kill(pid: i64, signal: &str) {
    let done = Command::new("kill")
        .arg(format!("-{signal}"))
        .arg(pid.to_string())
        .status();
    assert!(done.unwrap().success(), "{signal}");
}
