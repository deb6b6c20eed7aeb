//! A failure and a crash after every step of ADD and DEL: lines B9, C6 and C7
//! of the checklist. The steps are those of `src/failpoint.rs`; one that does not
//! exist would make its test fail.

use crate::rig::{Census, Mood, Rig, ip, variables};

const BOTH: &[&str] = &["10.244.7.0/24", "fd00:7::/64"];

/// Steps that an ADD is made to fail after.
pub(crate) const ADD: [&str; 8] = [
    "reserved",
    "confirmed",
    "created",
    "set-up",
    "pod-equipped",
    "routed",
    "adopted",
    "attached",
];

/// Steps that a DEL is made to fail after.
pub(crate) const DEL: [&str; 5] = [
    "rules-removed",
    "removal-begun",
    "link-removed",
    "ipam-freed",
    "record-removed",
];

/// A rig whose pod has its first interface already, so that the second, which
/// has rules in the pod as well, is what fails.
fn second() -> (Rig, String, Census) {
    let mut rig = Rig::new(BOTH);
    let pod = rig.pod();
    rig.add("c1", "eth0", &pod).result();
    let before = rig.census();
    (rig, pod, before)
}

fn faulty(rig: &Rig, verb: &str, pod: &str, fault: &str) -> crate::rig::Answer {
    let mut call = variables(verb, "c1", "net1", pod).to_vec();
    call.push(("TARTAN_CNI_FAULT", fault));
    rig.call(&call, rig.conf("1.0.0").to_string())
}

#[test]
fn b9_an_add_that_fails_after_any_step_leaves_nothing() {
    let (rig, pod, before) = second();
    for step in ADD {
        let answer = faulty(&rig, "ADD", &pod, &format!("{step}:fail"));
        let (code, message) = answer.error();
        assert_eq!(code, 104);
        assert!(message.contains(&format!("after {step}:")), "{message}");
        assert_eq!(rig.census(), before, "{step}");
        let last = rig.calls().last().unwrap().clone();
        assert!(
            last.contains("release") && last.contains("net1"),
            "{step}: {last}"
        );
    }
    rig.add("c1", "net1", &pod).result();
}

#[test]
fn b9_c7_an_add_that_is_killed_after_any_step_is_cleared_or_taken_up() {
    let (rig, pod, before) = second();
    for step in ADD {
        let killed = faulty(&rig, "ADD", &pod, &format!("{step}:kill"));
        assert!(!killed.ok && killed.stdout.is_empty(), "{step}: {killed:?}");
        rig.del("c1", "net1", &pod).silent();
        assert_eq!(rig.census(), before, "{step}: DEL");

        faulty(&rig, "ADD", &pod, &format!("{step}:kill"));
        let held = rig.record("c1", "net1").addresses;
        if step == "attached" {
            assert_eq!(rig.add("c1", "net1", &pod).error().0, 105);
        } else {
            let again = rig.add("c1", "net1", &pod);
            assert_eq!(
                format!("{}/32", again.address()),
                held[0].to_string(),
                "{step}"
            );
        }
        rig.del("c1", "net1", "").silent();
        assert_eq!(rig.census(), before, "{step}: ADD, DEL");
    }
}

#[test]
fn b9_a_del_that_ends_after_any_step_is_finished_by_the_next() {
    let (rig, pod, before) = second();
    for step in DEL {
        for fate in ["fail", "kill"] {
            rig.add("c1", "net1", &pod).result();
            let answer = faulty(&rig, "DEL", &pod, &format!("{step}:{fate}"));
            assert!(!answer.ok, "{step}:{fate} did not happen: {answer:?}");
            rig.del("c1", "net1", &pod).silent();
            assert_eq!(rig.census(), before, "{step}:{fate}");
        }
    }
}

/// A rule of the pod's that the kernel keeps does not keep the pod's interface.
#[test]
fn c6_a_del_that_cannot_remove_the_rules_removes_the_interface() {
    let (rig, pod, before) = second();
    rig.add("c1", "net1", &pod).result();
    let name = rig.record("c1", "net1").host_ifname;
    let answer = faulty(&rig, "DEL", &pod, "rules-removed:fail");
    assert_eq!(answer.error().0, 104);
    let links = ip(&["-n", &rig.node, "link", "show", "type", "veth"]);
    assert!(!links.contains(&name), "{links}");
    rig.record("c1", "net1");
    rig.del("c1", "net1", &pod).silent();
    assert_eq!(rig.census(), before);
}

#[test]
fn c6_without_an_agent_del_frees_and_says_nothing() {
    let (mut rig, pod, before) = second();
    rig.add("c1", "net1", &pod).result();
    rig.stop_agent();
    rig.del("c1", "net1", &pod).silent();
    assert_eq!(rig.census(), before);
    rig.start_agent(Mood::Mute);
    rig.del("c1", "eth0", &pod).silent();
    assert!(rig.census().records().is_empty());
}

/// No runtime may do it; it must leak nothing all the same.
#[test]
fn c7_a_del_in_the_middle_of_an_add_wins() {
    let (rig, pod, before) = second();
    for step in ["created", "routed", "adopted"] {
        let child = rig.stopped(["ADD", "c1", "net1"], &pod, step);
        rig.del("c1", "net1", &pod).silent();
        assert!(!rig.go_on(child).ok, "{step}");
        assert_eq!(rig.census(), before, "{step}");
    }
}

/// Nor may a second ADD of the same attachment suffer from the first, which
/// a DEL has ended and which does not know it.
#[test]
fn c7_an_add_that_was_ended_leaves_the_next_one_alone() {
    let (rig, pod, before) = second();
    for step in ["reserved", "confirmed", "routed", "adopted"] {
        let child = rig.stopped(["ADD", "c1", "net1"], &pod, step);
        rig.del("c1", "net1", &pod).silent();
        let next = rig.add("c1", "net1", &pod);
        let stands = rig.record("c1", "net1");
        let late = rig.go_on(child);
        assert_eq!(late.error().0, 104, "{step}");
        assert_eq!(rig.record("c1", "net1"), stands, "{step}");
        assert!(crate::rig::ping(&rig.node, &next.address()), "{step}");
        rig.del("c1", "net1", &pod).silent();
        assert_eq!(rig.census(), before, "{step}");
    }
}

/// Lines C5 and C8: whatever the configuration of DEL says of the past.
#[test]
fn c5_c8_del_believes_the_record_and_not_the_configuration() {
    let (rig, pod, before) = second();
    for (key, value) in [
        ("name", serde_json::json!("renamed")),
        ("cniVersion", serde_json::json!("0.2.0")),
        ("prevResult", serde_json::json!("garbage")),
        (
            "prevResult",
            serde_json::json!({"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.5/24"}}),
        ),
        ("runtimeConfig", serde_json::json!({"ips": 7})),
        ("cni.dev/valid-attachments", serde_json::json!(7)),
    ] {
        rig.add("c1", "net1", &pod).result();
        let mut conf = rig.conf("1.0.0");
        conf[key] = value;
        rig.call(&variables("DEL", "c1", "net1", &pod), conf.to_string())
            .silent();
        assert_eq!(rig.census(), before, "{key}");
    }
}
