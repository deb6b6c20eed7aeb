//! After crashes, and DEL of what is half there or not there at all.

use std::time::{Duration, Instant};

use cni_shim::{Attachment, State};

use crate::rig::{Mood, Rig, ip, ping, variables};

const SUBNET: &[&str] = &["10.244.7.0/24"];

/// Kills an ADD that waits for the agent's answer: record and link are made.
fn killed_add(rig: &mut Rig, pod: &str) {
    rig.start_agent(Mood::Stall);
    let conf = rig.conf("1.0.0").to_string();
    let mut child = rig.spawn(&variables("ADD", "c1", "eth0", pod), &conf);
    let deadline = Instant::now() + Duration::from_secs(4);
    while rig.calls().is_empty() {
        assert!(Instant::now() < deadline, "ADD never asked the agent");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    rig.start_agent(Mood::Adopt);
    let path = Attachment::path(&rig.run(), "c1", "eth0").unwrap();
    assert_eq!(Attachment::read(&path).unwrap().state, State::Reserved);
    assert_ne!(ip(&["-n", &rig.node, "link", "show", "type", "veth"]), "");
}

#[test]
fn a_killed_add_is_cleared_by_del() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    rig.add("warm", "eth0", &pod).result();
    rig.del("warm", "eth0", &pod).silent();
    let before = rig.census();
    killed_add(&mut rig, &pod);
    rig.del("c1", "eth0", &pod).silent();
    assert_eq!(rig.census(), before);
}

#[test]
fn a_killed_add_is_taken_up_by_the_next_with_the_same_address() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    killed_add(&mut rig, &pod);
    let added = rig.add("c1", "eth0", &pod);
    assert_eq!(added.address(), "10.244.7.2");
    assert!(ping(&rig.node, "10.244.7.2"));
    rig.del("c1", "eth0", &pod).silent();
    assert_eq!(ip(&["-n", &rig.node, "link", "show", "type", "veth"]), "");
}

/// The killed one's own routes went with its link: what is routed there now is another pod.
#[test]
fn a_killed_add_leaves_its_address_to_whoever_has_it_now() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    killed_add(&mut rig, &pod);
    ip(&["-n", &rig.node, "link", "set", "lo", "up"]);
    let foreign = ["route", "add", "10.244.7.2/32", "dev", "lo", "metric", "5"];
    ip(&[&["-n", &rig.node][..], &foreign].concat());
    let added = rig.add("c1", "eth0", &pod);
    assert_eq!(added.address(), "10.244.7.3");
    rig.del("c1", "eth0", &pod).silent();
}

#[test]
fn del_succeeds_whatever_is_missing() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    rig.add("warm", "eth0", &pod).result();
    rig.del("warm", "eth0", &pod).silent();
    let before = rig.census();
    rig.del("never", "eth0", &pod).silent();
    rig.del("never", "eth0", "").silent();
    rig.del("never", "eth0", "/run/netns/cs-none").silent();
    assert_eq!(rig.census(), before);

    rig.add("c1", "eth0", &pod).result();
    rig.del("c1", "eth0", "").silent();
    rig.del("c1", "eth0", &pod).silent();
    assert_eq!(rig.census(), before);

    let link_gone = rig.add("c2", "eth0", &pod).host_ifname();
    ip(&["-n", &rig.node, "link", "del", &link_gone]);
    rig.del("c2", "eth0", &pod).silent();
    assert_eq!(rig.census(), before);

    rig.add("c3", "eth0", &pod).result();
    rig.stop_agent();
    let start = Instant::now();
    rig.del("c3", "eth0", &pod).silent();
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "DEL waits for no other call"
    );
    assert_eq!(rig.census(), before);
}

#[test]
fn a_reused_namespace_path_does_no_harm() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    let name = pod.trim_start_matches("/run/netns/").to_owned();
    rig.add("old", "eth0", &pod).result();
    ip(&["netns", "del", &name]);
    ip(&["netns", "add", &name]);
    let new = rig.add("new", "eth0", &pod);
    assert_ne!(
        new.address(),
        "10.244.7.2",
        "the old one holds it until its DEL"
    );
    rig.del("old", "eth0", &pod).silent();
    assert!(ping(&rig.node, &new.address()), "the new pod lives on");
    assert_eq!(rig.census().records(), ["new:eth0.json"]);
}

#[test]
fn an_attachment_whose_pod_was_replaced_is_made_anew() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    let other = rig.pod();
    rig.add("c1", "eth0", &pod).result();
    let again = rig.add("c1", "eth0", &other);
    assert_eq!(again.address(), "10.244.7.2");
    assert!(ping(&rig.node, "10.244.7.2"));
    let name = pod.trim_start_matches("/run/netns/");
    let links = ip(&["-n", name, "link"]);
    assert!(!links.contains("eth0"), "{links}");
}

#[test]
fn an_unreadable_record_is_cleared_by_its_own_del_or_add_alone() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    let other = rig.pod();
    let added = rig.add("c1", "eth0", &pod);
    let path = Attachment::path(&rig.run(), "c1", "eth0").unwrap();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();

    let neighbour = rig.add("c2", "eth0", &other);
    assert_ne!(
        neighbour.address(),
        added.address(),
        "the route says it is taken"
    );
    rig.del("c2", "eth0", &other).silent();
    assert!(ping(&rig.node, &added.address()), "c1 was left alone");

    let removed = rig.del("c1", "eth0", &pod);
    removed.silent();
    assert!(removed.stderr.contains("set aside as"), "{removed:?}");
    let aside = rig.run().attachments().join(".damaged-c1:eth0.json");
    assert_eq!(std::fs::read(aside).unwrap(), bytes[..bytes.len() / 2]);
    assert!(rig.census().records().is_empty());
    assert_eq!(ip(&["-n", &rig.node, "link", "show", "type", "veth"]), "");

    std::fs::write(&path, b"").unwrap();
    rig.add("c1", "eth0", &pod).result();
    assert_eq!(Attachment::read(&path).unwrap().state, State::Attached);
}

#[test]
fn a_link_whose_record_is_lost_is_replaced() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    let other = rig.pod();
    let lost = rig.add("c1", "eth0", &pod);
    std::fs::remove_file(Attachment::path(&rig.run(), "c1", "eth0").unwrap()).unwrap();
    let added = rig.add("c1", "eth0", &other);
    assert_eq!(added.host_ifname(), lost.host_ifname());
    assert!(ping(&rig.node, &added.address()));
}
