//! What is refused, with which code, and that it leaves nothing.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::rig::{Mood, Rig, ip, variables};

const SUBNET: &[&str] = &["10.244.7.0/24"];

#[test]
fn a_second_add_is_refused_and_changes_nothing() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    rig.add("c1", "eth0", &pod).result();
    let before = rig.census();
    let (code, message) = rig.add("c1", "eth0", &pod).error();
    assert_eq!(code, 105);
    assert!(message.contains("eth0"), "{message}");
    assert_eq!(rig.census(), before);
    assert_eq!(
        rig.add("c2", "eth0", &pod).error().0,
        105,
        "another id, same pod"
    );
    assert_eq!(rig.census(), before);
}

#[test]
fn a_strangers_interface_of_that_name_is_left_alone() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    let name = pod.trim_start_matches("/run/netns/").to_owned();
    let pair = ["link", "add", "eth0", "type", "veth", "peer", "name", "x"];
    ip(&[&["-n", &name][..], &pair].concat());
    let before = rig.census();
    assert_eq!(rig.add("c1", "eth0", &pod).error().0, 105);
    rig.del("c1", "eth0", &pod).silent();
    assert_eq!(rig.census(), before);
    ip(&["-n", &name, "link", "show", "eth0"]);
}

#[test]
fn without_an_agent_add_says_try_again_and_nothing_is_left() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    rig.stop_agent();
    let before = rig.census();
    let start = Instant::now();
    let (code, message) = rig.add("c1", "eth0", &pod).error();
    assert_eq!(code, 11);
    assert!(message.contains("tartan run"), "{message}");
    let waited = start.elapsed();
    assert!((4..7).contains(&waited.as_secs()), "{waited:?}");
    assert_eq!(rig.census(), before);
    let conf = rig.conf("1.1.0").to_string();
    let status = rig.call(&[("CNI_COMMAND", "STATUS")], &conf);
    assert_eq!(status.error().0, 50);
}

#[test]
fn add_waits_for_an_agent_that_is_starting() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    rig.stop_agent();
    let conf = rig.conf("1.0.0").to_string();
    let child = rig.spawn(&variables("ADD", "c1", "eth0", &pod), &conf);
    std::thread::sleep(Duration::from_secs(1));
    rig.start_agent(Mood::Adopt);
    let added = crate::rig::Answer::of(child.wait_with_output().unwrap());
    assert_eq!(added.address(), "10.244.7.2");
}

#[test]
fn an_agent_that_refuses_or_stalls_leaves_nothing() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    rig.add("warm", "eth0", &pod).result();
    rig.del("warm", "eth0", &pod).silent();
    let before = rig.census();
    rig.start_agent(Mood::Refuse);
    let (code, message) = rig.add("c1", "eth0", &pod).error();
    assert_eq!(code, 103);
    assert!(message.contains("not today"), "{message}");
    assert_eq!(rig.census(), before);
    let calls = rig.calls();
    assert!(calls.last().unwrap().contains("release"), "{calls:?}");
    rig.start_agent(Mood::Stall);
    assert_eq!(rig.add("c1", "eth0", &pod).error().0, 11);
    assert_eq!(rig.census(), before);
}

#[test]
fn a_configuration_that_was_broken_meanwhile_still_frees_the_pod() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    rig.add("warm", "eth0", &pod).result();
    rig.del("warm", "eth0", &pod).silent();
    let before = rig.census();
    rig.add("c1", "eth0", &pod).result();
    let mut conf = rig.conf("1.0.0");
    conf["mtu"] = json!("1400");
    let answer = rig.call(&variables("DEL", "c1", "eth0", &pod), conf.to_string());
    answer.silent();
    assert_eq!(rig.census(), before);
}

#[test]
fn a_full_range_says_so_and_a_freed_address_is_given_again() {
    let mut rig = Rig::new(&["10.244.7.0/29"]);
    let pod = rig.pod();
    for n in 0..5 {
        rig.add("c1", &format!("eth{n}"), &pod).result();
    }
    let before = rig.census();
    let (code, message) = rig.add("c1", "eth5", &pod).error();
    assert_eq!(code, 100);
    assert!(message.contains("5 of 5"), "{message}");
    assert_eq!(rig.census(), before);
    let conf = rig.conf("1.1.0").to_string();
    let status = rig.call(&[("CNI_COMMAND", "STATUS")], &conf);
    assert_eq!(status.error().0, 50);
    rig.del("c1", "eth3", &pod).silent();
    assert_eq!(rig.add("c1", "eth5", &pod).address(), "10.244.7.5");
}

#[test]
fn wrong_namespaces_are_refused_before_anything_is_made() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    let before = rig.census();
    let own = format!("/run/netns/{}", rig.node);
    for netns in [
        "/run/netns/cs-none",
        "/etc/hostname",
        "/proc/self/ns/mnt",
        "/proc/self/ns/net",
        &own,
    ] {
        let (code, message) = rig.add("c1", "eth0", netns).error();
        assert_eq!(code, 8, "{netns}: {message}");
    }
    assert_eq!(rig.census(), before);
    assert!(rig.calls().is_empty());
    drop(pod);
}

#[test]
fn wrong_requests_have_the_codes_of_the_specification() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    let before = rig.census();
    let add = variables("ADD", "c1", "eth0", &pod);
    let conf = rig.conf("1.0.0");
    let with = |key: &str, value: serde_json::Value| {
        let mut conf = conf.clone();
        conf[key] = value;
        conf.to_string()
    };
    for (stdin, expected) in [
        (String::new(), 6),
        ("{".to_owned(), 6),
        ("[]".to_owned(), 6),
        (with("cniVersion", json!("9.2.0")), 1),
        (with("name", json!("")), 7),
        (with("name", json!("a/b")), 7),
        (with("root", json!("relative")), 2),
        (with("mtu", json!(100)), 2),
        (with("ipam", json!({"type": "no-such-plugin"})), 7),
        (with("prevResult", json!({"cniVersion": "9.0.0"})), 6),
    ] {
        let (code, message) = rig.call(&add, &stdin).error();
        assert_eq!(code, expected, "{stdin}: {message}");
    }
    let conf = conf.to_string();
    for verb in ["add", "NONSENSE"] {
        let (code, message) = rig
            .call(&variables(verb, "c1", "eth0", &pod), &conf)
            .error();
        assert_eq!(code, 4, "{verb}: {message}");
        assert!(message.contains(verb), "{message}");
    }
    for (container, ifname, netns) in [
        ("", "eth0", pod.as_str()),
        ("../c", "eth0", &pod),
        ("c1", "", &pod),
        ("c1", "eth0/..", &pod),
        ("c1", "eth0", ""),
    ] {
        let (code, message) = rig.add(container, ifname, netns).error();
        assert_eq!(code, 4, "{message}");
    }
    let (code, _) = rig.call(&[("CNI_COMMAND", "STATUS")], &conf).error();
    assert_eq!(code, 1, "STATUS before 1.1.0");
    assert_eq!(rig.census(), before);
}
