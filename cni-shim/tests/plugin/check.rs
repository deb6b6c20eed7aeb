//! CHECK, STATUS and GC: lines D1 to D4, E1 to E4 and F1 to F6 of the
//! checklist.

use std::time::{Duration, Instant};

use cni_shim::Attachment;
use serde_json::{Value, json};

use crate::rig::{Answer, Mood, Rig, ip, ping, variables};

const BOTH: &[&str] = &["10.244.7.0/24", "fd00:7::/64"];

/// An attachment and the configuration its CHECK gets.
struct Checked {
    rig: Rig,
    pod: String,
    host: String,
    conf: Value,
}

impl Checked {
    fn new() -> Checked {
        let mut rig = Rig::new(BOTH);
        let pod = rig.pod();
        let added = rig.add("c1", "eth0", &pod);
        let mut conf = rig.conf("1.0.0");
        conf["prevResult"] = added.result();
        let host = added.host_ifname();
        Checked {
            rig,
            pod,
            host,
            conf,
        }
    }

    fn check(&self) -> Answer {
        let variables = variables("CHECK", "c1", "eth0", &self.pod);
        self.rig.call(&variables, self.conf.to_string())
    }

    /// Runs `ip` in the pod.
    fn pod(&self, arguments: &[&str]) {
        let name = self.pod.trim_start_matches("/run/netns/");
        ip(&[&["-n", name], arguments].concat());
    }

    fn node(&self, arguments: &[&str]) {
        ip(&[&["-n", &self.rig.node], arguments].concat());
    }

    fn fails(&self, words: &str) {
        let (code, message) = self.check().error();
        assert_eq!(code, 106, "{message}");
        assert!(message.contains(words), "{words}: {message}");
    }
}

#[test]
fn d1_d3_what_others_added_or_changed_is_theirs() {
    let mut checked = Checked::new();
    checked.check().silent();
    checked.pod(&["addr", "add", "192.0.2.9/24", "dev", "eth0"]);
    checked.pod(&[
        "route",
        "add",
        "198.51.100.0/24",
        "via",
        "169.254.1.1",
        "dev",
        "eth0",
        "onlink",
    ]);
    checked.pod(&["link", "set", "eth0", "mtu", "1400"]);
    checked.pod(&["link", "add", "net1", "type", "bridge"]);
    checked.pod(&["link", "set", "net1", "up"]);
    checked.pod(&["route", "replace", "default", "dev", "net1"]);
    checked.check().silent();
    // `tuning` says what MAC it gave.
    checked.pod(&["link", "set", "eth0", "address", "02:00:00:00:77:77"]);
    checked.fails("MAC");
    // The kernel forgets neighbours with the MAC, and `tuning` the routes.
    for gateway in ["169.254.1.1", "fe80::1"] {
        let gateway = ["neigh", "replace", gateway, "lladdr", "ee:ee:ee:ee:ee:ee"];
        checked.pod(&[&gateway[..], &["dev", "eth0", "nud", "permanent"]].concat());
    }
    checked.conf["prevResult"]["interfaces"][1]["mac"] = json!("02:00:00:00:77:77");
    checked.check().silent();
}

#[test]
fn d2_whatever_is_missing_or_wrong_is_named() {
    type Break = (fn(&Checked), fn(&Checked), &'static str);
    let breaks: [Break; 9] = [
        (
            |c| c.pod(&["addr", "del", "10.244.7.2/32", "dev", "eth0"]),
            // The kernel takes routes and neighbours along with the last address.
            |c| {
                c.pod(&["addr", "add", "10.244.7.2/32", "dev", "eth0"]);
                let route = ["route", "replace", "default", "via", "169.254.1.1"];
                c.pod(&[&route[..], &["dev", "eth0", "onlink"]].concat());
                let gateway = [
                    "neigh",
                    "replace",
                    "169.254.1.1",
                    "lladdr",
                    "ee:ee:ee:ee:ee:ee",
                ];
                c.pod(&[&gateway[..], &["dev", "eth0", "nud", "permanent"]].concat());
            },
            "10.244.7.2",
        ),
        (
            |c| c.pod(&["route", "del", "default"]),
            |c| {
                c.pod(&[
                    "route",
                    "add",
                    "default",
                    "via",
                    "169.254.1.1",
                    "dev",
                    "eth0",
                    "onlink",
                ])
            },
            "0.0.0.0/0",
        ),
        (
            |c| c.pod(&["neigh", "del", "169.254.1.1", "dev", "eth0"]),
            |c| {
                let gateway = [
                    "neigh",
                    "replace",
                    "169.254.1.1",
                    "lladdr",
                    "ee:ee:ee:ee:ee:ee",
                ];
                c.pod(&[&gateway[..], &["dev", "eth0", "nud", "permanent"]].concat());
            },
            "169.254.1.1",
        ),
        (
            |c| c.pod(&["link", "set", "eth0", "mtu", "9000"]),
            |c| c.pod(&["link", "set", "eth0", "mtu", "1450"]),
            "MTU 9000",
        ),
        (
            |c| c.node(&["link", "set", &c.host, "mtu", "1300"]),
            |c| c.node(&["link", "set", &c.host, "mtu", "1450"]),
            "MTU 1300",
        ),
        (
            |c| c.node(&["route", "del", "10.244.7.2"]),
            |c| c.node(&["route", "add", "10.244.7.2", "dev", &c.host]),
            "node's route to 10.244.7.2/32",
        ),
        (
            |c| c.node(&["neigh", "del", "10.244.7.2", "dev", &c.host]),
            |c| {
                let mac = c.rig.record("c1", "eth0").mac;
                let pod = [
                    "neigh",
                    "replace",
                    "10.244.7.2",
                    "lladdr",
                    &mac,
                    "dev",
                    &c.host,
                ];
                c.node(&[&pod[..], &["nud", "permanent"]].concat());
            },
            "neighbour 10.244.7.2",
        ),
        (
            |c| c.node(&["link", "set", &c.host, "down"]),
            |_| {},
            "is down",
        ),
        (|c| c.node(&["link", "del", &c.host]), |_| {}, "is missing"),
    ];
    let checked = Checked::new();
    for (spoil, restore, words) in breaks {
        spoil(&checked);
        checked.fails(words);
        restore(&checked);
        if words.contains("is ") {
            continue;
        }
        checked.check().silent();
    }
}

/// What a second interface has beside the first: a table of its own, and the
/// rules that lead there.
#[test]
fn d2_of_a_second_interface_the_table_and_its_rules_are_checked_too() {
    let checked = Checked::new();
    let call = variables("ADD", "c1", "net1", &checked.pod);
    let added = checked
        .rig
        .call(&call, checked.rig.conf("1.0.0").to_string());
    let mut conf = checked.rig.conf("1.0.0");
    conf["prevResult"] = added.result();
    let check = |checked: &Checked| {
        let call = variables("CHECK", "c1", "net1", &checked.pod);
        checked.rig.call(&call, conf.to_string())
    };
    let fails = |checked: &Checked, words: &str| {
        let (code, message) = check(checked).error();
        assert_eq!(code, 106, "{message}");
        assert!(message.contains(words), "{words}: {message}");
    };
    check(&checked).silent();
    for (family, address, everything, gateway) in [
        ("-4", "10.244.7.3", "0.0.0.0/0", "169.254.1.1"),
        ("-6", "fd00:7::3", "::/0", "fe80::1"),
    ] {
        let rule = ["from", address, "lookup", "1001"];
        checked.pod(&[&[family, "rule", "del"], &rule[..]].concat());
        fails(&checked, &format!("rule for what leaves from {address}"));
        checked.pod(&[&[family, "rule", "add"], &rule[..]].concat());
        check(&checked).silent();
        let route = ["default", "via", gateway, "dev", "net1", "table", "1001"];
        checked.pod(&[&[family, "route", "del"], &route[..]].concat());
        fails(&checked, &format!("route to {everything}"));
        checked.pod(&[&[family, "route", "add"], &route[..], &["onlink"]].concat());
        check(&checked).silent();
    }
    checked.pod(&["link", "set", "net1", "down"]);
    fails(&checked, "net1 is down");
    checked.check().silent();
}

#[test]
fn d2_d4_without_its_record_or_its_namespace_nothing_is_attached() {
    let checked = Checked::new();
    let run = checked.rig.run();
    let file = cni_shim::Attachment::path(&run, "c1", "eth0").unwrap();
    let bytes = std::fs::read(&file).unwrap();
    // After a reboot the run directory is empty.
    std::fs::remove_file(&file).unwrap();
    checked.fails("no attachment is recorded");
    std::fs::write(&file, &bytes).unwrap();
    checked.check().silent();
    let half = String::from_utf8(bytes)
        .unwrap()
        .replace("attached", "reserved");
    std::fs::write(&file, half.as_bytes()).unwrap();
    checked.fails("never finished");
    let other = half
        .replace("reserved", "attached")
        .replace("\"netns_inode\":", "\"netns_inode\":1");
    std::fs::write(&file, other).unwrap();
    checked.fails("another network namespace");
    let gone = variables("CHECK", "c1", "eth0", "/run/netns/cs-none");
    assert_eq!(
        checked.rig.call(&gone, checked.conf.to_string()).error().0,
        8
    );
}

#[test]
fn d2_an_altered_or_missing_result_and_an_agent_that_does_not_deliver_are_errors() {
    let mut checked = Checked::new();
    let result = checked.conf["prevResult"].clone();
    checked.conf["prevResult"]["ips"][0]["address"] = json!("10.244.7.99/32");
    checked.fails("10.244.7.99");
    checked.conf["prevResult"] = result.clone();
    checked.conf["prevResult"]["routes"][0]["dst"] = json!("10.99.0.0/16");
    checked.fails("10.99.0.0/16");
    checked.conf["prevResult"] = json!({"ips": 7});
    assert_eq!(checked.check().error().0, 6);
    checked.conf["prevResult"] = Value::Null;
    assert_eq!(checked.check().error().0, 7);
    checked.conf["prevResult"] = result;
    checked.rig.start_agent(Mood::Refuse);
    assert_eq!(checked.check().error().0, 103);
    checked.rig.stop_agent();
    assert_eq!(checked.check().error().0, 11);
}

#[test]
fn e1_e3_status_says_why_not_and_whether_pods_are_cut_off() {
    let mut rig = Rig::new(BOTH);
    let conf = rig.conf("1.1.0").to_string();
    let status = |rig: &Rig| rig.call(&[("CNI_COMMAND", "STATUS")], &conf);
    status(&rig).silent();
    rig.start_agent(Mood::Dead);
    let (code, message) = status(&rig).error();
    assert_eq!(code, 51);
    assert!(message.contains("no worker"), "{message}");
    rig.start_agent(Mood::Mute);
    assert_eq!(status(&rig).error().0, 51);
    rig.stop_agent();
    assert_eq!(status(&rig).error().0, 50);
    rig.start_agent(Mood::Adopt);
    rig.lease(&[]);
    assert_eq!(status(&rig).error().0, 50, "no subnet");
    let mut broken = rig.conf("1.1.0");
    broken["mtu"] = json!("large");
    let answer = rig.call(&[("CNI_COMMAND", "STATUS")], broken.to_string());
    assert_eq!(answer.error().0, 50, "an ADD would fail");
}

#[test]
fn e4_status_takes_under_ten_milliseconds() {
    let mut rig = Rig::new(BOTH);
    let pod = rig.pod();
    for n in 0..20 {
        rig.add("c1", &format!("eth{n}"), &pod).result();
    }
    let conf = rig.conf("1.1.0").to_string();
    let once = || {
        let start = Instant::now();
        rig.direct(&[("CNI_COMMAND", "STATUS")], &conf).silent();
        start.elapsed()
    };
    // Once is enough to show that it needs no more: others share this machine.
    assert!((0..500).any(|_| once() < Duration::from_millis(10)));
}

/// GC of the network `pods` with `members` in its configuration.
fn gc(rig: &Rig, members: &Value) -> Answer {
    let mut conf = rig.conf("1.1.0");
    for (key, value) in members.as_object().unwrap() {
        conf[key] = value.clone();
    }
    // Records are as old as their file times say.
    std::thread::sleep(Duration::from_millis(10));
    rig.call(&[("CNI_COMMAND", "GC")], conf.to_string())
}

fn keep(names: &[&str]) -> Value {
    let keys = names
        .iter()
        .map(|c| json!({"containerID": c, "ifname": "eth0"}));
    keys.collect()
}

#[test]
fn f2_gc_sets_a_record_aside_that_cannot_be_read_and_has_no_interface() {
    let mut rig = Rig::new(BOTH);
    let pods = [rig.pod(), rig.pod()];
    let add = |container: &str, network: &str, pod: &str| {
        let mut conf = rig.conf("1.1.0");
        conf["name"] = json!(network);
        let call = variables("ADD", container, "eth0", pod);
        rig.call(&call, conf.to_string()).result();
    };
    let spoil = |container: &str, bytes: &str, seconds: u64| {
        let path = Attachment::path(&rig.run(), container, "eth0").unwrap();
        std::fs::write(&path, bytes).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(seconds))
            .unwrap();
    };
    let none = json!({"cni.dev/valid-attachments": []});
    // Perhaps the lost record of an interface of another network.
    add("c1", "other", &pods[0]);
    let whole = rig.record("c1", "eth0");
    spoil("c1", "half a", 90);
    spoil("c2", "half a", 90);
    gc(&rig, &none).silent();
    assert_eq!(rig.census().records(), ["c1:eth0.json", "c2:eth0.json"]);
    // Every interface has its record.
    whole.write(&rig.run()).unwrap();
    spoil("c3", "half a", 30);
    spoil(
        "c4",
        &serde_json::to_string(&Attachment {
            version: 2,
            ..whole.clone()
        })
        .unwrap(),
        90,
    );
    let answer = gc(&rig, &none);
    assert!(
        answer.ok && answer.stderr.contains("set aside as"),
        "{answer:?}"
    );
    assert_eq!(
        rig.census().records(),
        ["c1:eth0.json", "c3:eth0.json", "c4:eth0.json"]
    );
    assert!(
        rig.run()
            .attachments()
            .join(".damaged-c2:eth0.json")
            .exists()
    );
}

/// Of a kernel that does not say what there is, GC believes nothing.
#[test]
fn f6_gc_takes_nothing_away_where_the_kernel_does_not_say_what_there_is() {
    let mut rig = Rig::new(BOTH);
    let pod = rig.pod();
    let conf = json!({"cniVersion": "1.1.0", "name": "pods", "type": "tartan-cni",
                      "root": rig.root(), "cni.dev/valid-attachments": []});
    let gc = |fault: &str| {
        let call = [("CNI_COMMAND", "GC"), ("TARTAN_CNI_FAULT", fault)];
        rig.call(&call, conf.to_string())
    };
    let spoil = |container: &str| {
        let path = Attachment::path(&rig.run(), container, "eth0").unwrap();
        std::fs::write(&path, "half a").unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(90))
            .unwrap();
    };
    // One record without an interface, and one whose interface is there.
    for (living, fault) in [(false, "links-listed:fail"), (true, "link-looked-up:fail")] {
        if living {
            rig.add("c1", "eth0", &pod).result();
        }
        spoil("c1");
        let before = rig.census();
        let answer = gc(fault);
        let (code, message) = answer.error();
        assert_eq!((code, &message[..4]), (104, "1 of"), "{answer:?}");
        assert!(answer.stdout.contains("asks for a failure"), "{answer:?}");
        assert_eq!(rig.census(), before, "{fault}");
        gc("").silent();
        assert!(rig.census().records().is_empty(), "{fault}");
    }
    assert_eq!(ip(&["-n", &rig.node, "link", "show", "type", "veth"]), "");
}

#[test]
fn f1_f4_gc_removes_what_the_list_does_not_name_and_nothing_else() {
    let mut rig = Rig::new(BOTH);
    let pods: Vec<String> = (0..5).map(|_| rig.pod()).collect();
    for (n, pod) in pods.iter().enumerate() {
        let mut conf = rig.conf("1.1.0");
        if n == 4 {
            conf["name"] = json!("other");
        }
        let container = format!("c{n}");
        rig.call(&variables("ADD", &container, "eth0", pod), conf.to_string())
            .result();
    }
    let before = rig.census();
    let (code, message) = gc(&rig, &json!({})).error();
    assert_eq!(code, 7, "{message}");
    assert_eq!(rig.census(), before, "F1");
    let lists = json!({"cni.dev/attachments": keep(&["c0"]),
                       "cni.dev/valid-attachments": keep(&["c0", "c1", "c2"])});
    gc(&rig, &lists).silent();
    let left = [
        "c0:eth0.json",
        "c1:eth0.json",
        "c2:eth0.json",
        "c4:eth0.json",
    ];
    assert_eq!(rig.census().records(), left, "F3");
    // The same container with another interface is another attachment.
    let other =
        json!([{"containerID": "c0", "ifname": "eth1"}, {"containerID": "c1", "ifname": "eth0"}]);
    gc(&rig, &json!({"cni.dev/attachments": other})).silent();
    assert_eq!(rig.census().records(), ["c1:eth0.json", "c4:eth0.json"]);
    assert!(ping(&rig.node, "10.244.7.3"), "c1 lives on");
    gc(&rig, &json!({"cni.dev/valid-attachments": null})).silent();
    assert_eq!(rig.census().records(), ["c4:eth0.json"], "F2, F4");
    assert!(ping(&rig.node, "10.244.7.6"), "the other network's");
    let releases = rig
        .calls()
        .iter()
        .filter(|call| call.contains("release"))
        .count();
    assert_eq!(releases, 4);
    gc(
        &rig,
        &json!({"name": "other", "cni.dev/valid-attachments": []}),
    )
    .silent();
    assert!(rig.census().records().is_empty());
    assert_eq!(ip(&["-n", &rig.node, "link", "show", "type", "veth"]), "");
}

#[test]
fn f5_gc_beside_adds_takes_nothing_from_them() {
    let mut rig = Rig::new(BOTH);
    let pods: Vec<String> = (0..8).map(|_| rig.pod()).collect();
    let start = |(n, pod): (usize, &String)| {
        let name = format!("c{n}");
        let mut call = variables("ADD", &name, "eth0", pod).to_vec();
        // Stands still with its record written, and goes on.
        call.push(("TARTAN_CNI_FAULT", "reserved:stop"));
        rig.spawn(&call, rig.conf("1.1.0").to_string())
    };
    let adds: Vec<_> = pods.iter().enumerate().map(start).collect();
    for add in &adds {
        rig.stands_still(add);
    }
    gc(&rig, &json!({"cni.dev/valid-attachments": []})).silent();
    for add in adds {
        rig.go_on(add).result();
    }
    assert_eq!(rig.census().records().len(), 8);
}

#[test]
fn f6_gc_goes_on_past_errors_and_reports_them_all() {
    let mut rig = Rig::new(BOTH);
    let pods: Vec<String> = (0..3).map(|_| rig.pod()).collect();
    for (n, pod) in pods.iter().enumerate() {
        rig.add(&format!("c{n}"), "eth0", pod).result();
    }
    // The address of an IPAM plugin that is gone cannot be given back.
    for container in ["c0", "c2"] {
        let mut record = rig.record(container, "eth0");
        record.ipam = Some("no-such-plugin".to_owned());
        record.write(&rig.run()).unwrap();
    }
    // Their records stay: nothing else says which plugin gave the addresses.
    for _ in 0..2 {
        let answer = gc(&rig, &json!({"cni.dev/valid-attachments": []}));
        let (code, message) = answer.error();
        assert_eq!(code, 104);
        assert!(message.starts_with("2 of"), "{message}");
        assert!(answer.stdout.contains("container c0") && answer.stdout.contains("container c2"));
    }
    assert_eq!(rig.census().records().len(), 2);
    assert_eq!(ip(&["-n", &rig.node, "link", "show", "type", "veth"]), "");
}
