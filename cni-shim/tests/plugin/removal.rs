//! The removal of an interface by a process of its own. `removal-begun` is the
//! step of `src/failpoint.rs` that makes it start, whatever else the cores do.

use std::time::{Duration, Instant};

use crate::rig::{Rig, ip, ping, variables};

const SUBNET: &[&str] = &["10.244.7.0/24"];

/// A rig whose node has its loopback and its pod its own, as after any ADD.
fn warm() -> (Rig, String) {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    rig.add("warm", "eth0", &pod).result();
    rig.del("warm", "eth0", &pod).silent();
    (rig, pod)
}

fn veths(node: &str) -> String {
    ip(&["-n", node, "-br", "link", "show", "type", "veth"])
}

fn index(node: &str, name: &str) -> String {
    let line = ip(&["-n", node, "-o", "link", "show", "dev", name]);
    line.split(':').next().unwrap().to_owned()
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs the plugin as the process that waits, and returns whether it was content.
fn remove_link(rig: &Rig, environment: &[(&str, &str)], arguments: &[&str]) -> bool {
    let mut command = rig.command(environment);
    let output = command.arg("remove-link").args(arguments).output().unwrap();
    assert!(output.stdout.is_empty(), "{output:?}");
    output.status.success()
}

#[test]
fn the_other_process_removes_the_interface_and_ends() {
    let (rig, pod) = warm();
    let before = rig.census();
    rig.add("c1", "eth0", &pod).result();
    let child = rig.stopped(["DEL", "c1", "eth0"], &pod, "removal-begun");
    // DEL itself stands still.
    until("the interface goes", || veths(&rig.node).is_empty());
    rig.go_on(child).silent();
    assert_eq!(rig.census(), before);
    until("the process ends", || {
        ip(&["netns", "pids", &rig.node]).is_empty()
    });
}

/// The agent takes the record of an interface that is gone, and with it the only note of what else there was.
#[test]
fn no_rule_in_a_pod_that_lives_on_outlives_its_interface() {
    let (rig, pod) = warm();
    let name = pod.trim_start_matches("/run/netns/");
    let rules = || ip(&["-n", name, "rule", "show"]);
    rig.add("c1", "eth0", &pod).result();
    let (before, without) = (rig.census(), rules());
    rig.add("c1", "net1", &pod).result();
    assert!(rules().contains("lookup 1001"));
    let child = rig.stopped(["DEL", "c1", "net1"], &pod, "removal-begun");
    until("the interface goes", || {
        veths(&rig.node).lines().count() == 1
    });
    assert_eq!(rules(), without);
    rig.go_on(child).silent();
    assert_eq!(rig.census(), before);
}

#[test]
fn the_other_process_removes_the_interface_it_was_named_and_no_other() {
    let (mut rig, pod) = warm();
    let neighbour = rig.pod();
    let own = rig.add("c1", "eth0", &pod);
    let other = rig.add("c2", "eth0", &neighbour);
    let before = rig.census();
    let name = own.host_ifname();
    let strange = index(&rig.node, &other.host_ifname());
    for index in [strange.as_str(), "1", "999999", "0"] {
        assert!(remove_link(&rig, &[], &[index, &name]), "{index}");
        assert_eq!(rig.census(), before, "{index}");
    }
    for nonsense in [
        &[][..],
        &["1"],
        &["-1", name.as_str()],
        &["x", name.as_str()],
    ] {
        assert!(!remove_link(&rig, &[], nonsense), "{nonsense:?}");
        assert_eq!(rig.census(), before, "{nonsense:?}");
    }
    // Its word stands before whatever the environment asks for.
    let del = variables("DEL", "c1", "eth0", &pod);
    assert!(remove_link(&rig, &del, &["999999", &name]));
    assert_eq!(rig.census(), before);

    let wanted = index(&rig.node, &name);
    assert!(remove_link(&rig, &[], &[&wanted, &name]));
    assert!(!veths(&rig.node).contains(&name));
    assert!(ping(&rig.node, &other.address()), "the other lives on");
    rig.del("c1", "eth0", &pod).silent();
}

/// Whatever of the first DEL is still to come when a second has ended the same attachment and an ADD has made it anew.
#[test]
fn c7_a_del_that_was_overtaken_leaves_the_next_add_alone() {
    let (rig, pod) = warm();
    let before = rig.census();
    for step in ["removal-begun", "link-removed", "ipam-freed"] {
        rig.add("c1", "eth0", &pod).result();
        let late = rig.stopped(["DEL", "c1", "eth0"], &pod, step);
        rig.del("c1", "eth0", &pod).silent();
        let next = rig.add("c1", "eth0", &pod);
        let stands = rig.record("c1", "eth0");
        rig.go_on(late).silent();
        assert_eq!(rig.record("c1", "eth0"), stands, "{step}");
        assert!(ping(&rig.node, &next.address()), "{step}");
        rig.del("c1", "eth0", &pod).silent();
        assert_eq!(rig.census(), before, "{step}");
    }
}
