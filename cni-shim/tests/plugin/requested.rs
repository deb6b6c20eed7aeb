//! Addresses and MACs that are asked for, exhaustion, and the plugins around
//! us: lines B7, B8, B10, E2 and H2 of the checklist.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::rig::{Answer, Rig, ip, ping, variables};

const SUBNET: &[&str] = &["10.244.7.0/24"];
const BOTH: &[&str] = &["10.244.7.0/24", "fd00:7::/64"];

fn add(rig: &Rig, container: &str, pod: &str, more: &Value) -> crate::rig::Answer {
    let mut conf = rig.conf("1.0.0");
    for (key, value) in more.as_object().unwrap() {
        conf[key] = value.clone();
    }
    rig.call(&variables("ADD", container, "eth0", pod), conf.to_string())
}

#[test]
fn b7_what_is_asked_for_is_given_or_refused_naming_the_holder() {
    let mut rig = Rig::new(BOTH);
    let (one, two) = (rig.pod(), rig.pod());
    let asked = json!({"runtimeConfig": {"ips": ["10.244.7.77/24"], "mac": "02:00:00:00:0a:0b"}});
    let added = add(&rig, "c1", &one, &asked);
    assert_eq!(added.address(), "10.244.7.77");
    let result = added.result();
    assert_eq!(
        result["ips"][1]["address"], "fd00:7::2/128",
        "the other family is given"
    );
    assert_eq!(result["interfaces"][1]["mac"], "02:00:00:00:0a:0b");
    let name = one.trim_start_matches("/run/netns/");
    assert!(ip(&["-n", name, "link", "show", "eth0"]).contains("02:00:00:00:0a:0b"));
    assert!(ping(&rig.node, "10.244.7.77"));

    let before = rig.census();
    let (code, message) = add(
        &rig,
        "c2",
        &two,
        &json!({"args": {"cni": {"ips": ["10.244.7.77"]}}}),
    )
    .error();
    assert_eq!(code, 101);
    assert!(message.contains("container c1"), "{message}");
    for foreign in [
        "10.244.7.0",
        "10.244.7.1",
        "10.244.7.255",
        "10.9.0.5",
        "fd01::5",
    ] {
        let asked = json!({"runtimeConfig": {"ips": [foreign]}});
        assert_eq!(add(&rig, "c2", &two, &asked).error().0, 7, "{foreign}");
    }
    assert_eq!(rig.census(), before);
    let mut call = variables("ADD", "c2", "eth0", &two).to_vec();
    call.push((
        "CNI_ARGS",
        "IgnoreUnknown=1;IP=10.244.7.78;MAC=02:00:00:00:0a:0c",
    ));
    let added = rig.call(&call, rig.conf("1.0.0").to_string());
    assert_eq!(added.address(), "10.244.7.78");
    assert_eq!(added.result()["interfaces"][1]["mac"], "02:00:00:00:0a:0c");
}

#[test]
fn addresses_of_host_local_and_of_neighbours_are_taken() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    let files = rig.root().join("var/lib/cni/networks/cbr0");
    std::fs::create_dir_all(&files).unwrap();
    std::fs::write(files.join("10.244.7.2"), "stock-pod\r\neth0").unwrap();
    ip(&["-n", &rig.node, "link", "add", "cni0", "type", "bridge"]);
    ip(&["-n", &rig.node, "link", "set", "cni0", "up"]);
    let neighbour = [
        "neigh",
        "add",
        "10.244.7.3",
        "lladdr",
        "02:00:00:00:00:03",
        "dev",
        "cni0",
    ];
    ip(&[&["-n", &rig.node][..], &neighbour, &["nud", "stale"]].concat());
    let asked = json!({"runtimeConfig": {"ips": ["10.244.7.2"]}});
    let (code, message) = add(&rig, "c1", &pod, &asked).error();
    assert_eq!(code, 101);
    assert!(
        message.contains("host-local, for container stock-pod"),
        "{message}"
    );
    assert_eq!(rig.add("c1", "eth0", &pod).address(), "10.244.7.4");
}

#[test]
fn e2_a_full_range_says_how_full_it_is_and_what_holds_it() {
    let mut rig = Rig::new(&["10.244.7.0/29"]);
    let pod = rig.pod();
    let files = rig.root().join("var/lib/cni/networks/cbr0");
    std::fs::create_dir_all(&files).unwrap();
    std::fs::write(files.join("10.244.7.6"), "stock-pod\r\neth0").unwrap();
    for n in 0..4 {
        rig.add("c1", &format!("eth{n}"), &pod).result();
    }
    let before = rig.census();
    let full = rig.add("c1", "eth9", &pod);
    let (code, message) = full.error();
    assert_eq!(code, 100);
    assert!(message.contains("5 of 5"), "{message}");
    let error: Value = serde_json::from_str(&full.stdout).unwrap();
    let details = error["details"].as_str().unwrap();
    for part in [
        "4 attachments of tartan-cni",
        "container c1",
        "1 of host-local",
    ] {
        assert!(details.contains(part), "{part}: {details}");
    }
    assert_eq!(rig.census(), before);
    let status = rig.call(&[("CNI_COMMAND", "STATUS")], rig.conf("1.1.0").to_string());
    assert_eq!(status.error().0, 50);
    assert!(status.stdout.contains("4 attachments"), "{status:?}");
}

/// Every pod of ours has an address: one that would have none is refused.
#[test]
fn b2_without_an_address_there_is_no_pod() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    let (path, held) = debtor(&rig, "nothing");
    let program = held.with_file_name("nothing");
    let script = std::fs::read_to_string(&program).unwrap();
    std::fs::write(
        &program,
        script.replace(r#"[{"address":"10.244.7.77/24"}]"#, "[]"),
    )
    .unwrap();
    let before = rig.census();
    let mut conf = rig.conf("1.0.0");
    conf["ipam"] = json!({"type": "nothing"});
    let mut call = variables("ADD", "c1", "eth0", &pod).to_vec();
    call.push(("CNI_PATH", &path));
    let (code, message) = rig.call(&call, conf.to_string()).error();
    assert_eq!(code, 107);
    assert!(message.contains("gave no address"), "{message}");
    assert!(!held.exists(), "what it holds it gets back");
    assert_eq!(rig.census(), before);
    rig.lease(&[]);
    let (code, message) = add(&rig, "c1", &pod, &json!({})).error();
    assert_eq!(code, 11, "{message}");
    assert_eq!(rig.census(), before);
}

#[test]
fn b8_behind_other_plugins_their_result_is_kept_and_ours_added() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    let previous = json!({"cniVersion": "1.0.0",
        "interfaces": [{"name": "br0", "mac": "02:00:00:00:00:07"}],
        "ips": [{"address": "192.0.2.5/24", "gateway": "192.0.2.1"}],
        "routes": [{"dst": "198.51.100.0/24", "gw": "192.0.2.1"}],
        "dns": {"nameservers": ["192.0.2.53"]}});
    let result = add(&rig, "c1", &pod, &json!({"prevResult": previous})).result();
    assert_eq!(result["interfaces"].as_array().unwrap().len(), 3);
    assert_eq!(result["interfaces"][0], previous["interfaces"][0]);
    assert_eq!(result["interfaces"][2]["name"], "eth0");
    assert_eq!(result["ips"][0], previous["ips"][0]);
    assert_eq!(result["ips"][1]["interface"], 2);
    assert_eq!(result["routes"][0], previous["routes"][0]);
    assert_eq!(result["routes"][1]["dst"], "0.0.0.0/0");
    assert_eq!(result["dns"], previous["dns"]);
    let before = rig.census();
    let other = rig.pod();
    let garbage = json!({"prevResult": {"ips": 7}});
    assert_eq!(add(&rig, "c2", &other, &garbage).error().0, 6);
    assert_eq!(rig.census().records(), before.records());
    // DEL works whatever it is given.
    let mut conf = rig.conf("1.0.0");
    conf["prevResult"] = json!({"ips": 7});
    rig.call(&variables("DEL", "c1", "eth0", &pod), conf.to_string())
        .silent();
    assert!(rig.census().records().is_empty());
}

#[test]
fn b10_a_hundred_parallel_adds_get_a_hundred_addresses() {
    let mut rig = Rig::new(SUBNET);
    let pods: Vec<String> = (0..100).map(|_| rig.pod()).collect();
    let rig = &rig;
    let addresses: HashSet<String> = std::thread::scope(|scope| {
        let adds: Vec<_> = pods
            .iter()
            .enumerate()
            .map(|(n, pod)| scope.spawn(move || rig.add(&format!("c{n}"), "eth0", pod).address()))
            .collect();
        adds.into_iter().map(|add| add.join().unwrap()).collect()
    });
    assert_eq!(addresses.len(), 100);
    std::thread::scope(|scope| {
        for (n, pod) in pods.iter().enumerate() {
            scope.spawn(move || rig.del(&format!("c{n}"), "eth0", pod).silent());
        }
    });
    assert!(rig.census().records().is_empty());
    assert_eq!(ip(&["-n", &rig.node, "link", "show", "type", "veth"]), "");
}

/// host-local of this machine, with its files below the rig's root.
fn host_local(rig: &Rig, subnet: &str) -> Value {
    let files = rig.root().join("ipam");
    json!({"ipam": {"type": "host-local", "ranges": [[{"subnet": subnet, "rangeStart": "10.244.7.100"}]],
                    "routes": [{"dst": "10.0.0.0/8"}], "dataDir": files}})
}

fn held_by_host_local(rig: &Rig) -> Vec<String> {
    let Ok(files) = std::fs::read_dir(rig.root().join("ipam/pods")) else {
        return Vec::new();
    };
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("10.")).collect()
}

/// Steps that an ADD with an IPAM plugin is made to fail after.
pub(crate) const ADD_WITH_IPAM: [&str; 5] = ["ipam", "created", "routed", "adopted", "attached"];

#[test]
fn h2_host_local_gives_and_gets_back_its_addresses() {
    let mut rig = Rig::new(SUBNET);
    let (pod, other) = (rig.pod(), rig.pod());
    let ipam = host_local(&rig, "10.244.7.0/24");
    let added = add(&rig, "c1", &pod, &ipam);
    assert_eq!(added.result()["ips"][0]["address"], "10.244.7.100/32");
    assert_eq!(
        added.result()["routes"],
        json!([{"dst": "10.0.0.0/8", "gw": "169.254.1.1"}])
    );
    assert_eq!(held_by_host_local(&rig), ["10.244.7.100"]);
    assert!(ping(&rig.node, "10.244.7.100"));
    assert_eq!(rig.record("c1", "eth0").ipam.as_deref(), Some("host-local"));
    // CHECK is forwarded: host-local misses its file.
    let mut conf = rig.conf("1.0.0");
    conf["ipam"] = ipam["ipam"].clone();
    conf["prevResult"] = added.result();
    let check = || rig.call(&variables("CHECK", "c1", "eth0", &pod), conf.to_string());
    check().silent();
    let file = rig.root().join("ipam/pods/10.244.7.100");
    let owner = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(check().error().0, 107);
    std::fs::write(&file, owner).unwrap();
    rig.call(&variables("DEL", "c1", "eth0", &pod), conf.to_string())
        .silent();
    assert_eq!(held_by_host_local(&rig), [""; 0]);
    // Whatever fails behind it, it is run with DEL.
    for step in ADD_WITH_IPAM {
        let fault = format!("{step}:fail");
        let mut call = variables("ADD", "c1", "eth0", &pod).to_vec();
        call.push(("TARTAN_CNI_FAULT", &fault));
        assert_eq!(rig.call(&call, conf.to_string()).error().0, 104, "{step}");
        assert_eq!(held_by_host_local(&rig), [""; 0], "{step}");
    }
    assert!(rig.census().records().is_empty());
    // One that gives what peers would not deliver is refused, and undone.
    let foreign = json!({"ipam": {"type": "host-local", "dataDir": rig.root().join("ipam"),
                                  "ranges": [[{"subnet": "10.99.0.0/24"}]]}});
    assert_eq!(add(&rig, "c2", &other, &foreign).error().0, 7);
    assert_eq!(held_by_host_local(&rig), [""; 0]);
    assert!(rig.census().records().is_empty());
}

#[test]
fn h2_a_killed_add_is_repeated_and_collected_with_host_local_too() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    let ipam = host_local(&rig, "10.244.7.0/24");
    let mut conf = rig.conf("1.1.0");
    conf["ipam"] = ipam["ipam"].clone();
    conf["cniVersion"] = json!("1.0.0");
    for step in ["reserved", "ipam", "created", "adopted"] {
        let fault = format!("{step}:kill");
        let mut call = variables("ADD", "c1", "eth0", &pod).to_vec();
        call.push(("TARTAN_CNI_FAULT", &fault));
        let killed = rig.call(&call, conf.to_string());
        assert!(!killed.ok && killed.stdout.is_empty(), "{step}: {killed:?}");
        let again = rig.call(&call[..4], conf.to_string());
        assert_eq!(again.result()["ips"].as_array().unwrap().len(), 1, "{step}");
        assert_eq!(held_by_host_local(&rig).len(), 1, "{step}");
        rig.call(&variables("DEL", "c1", "eth0", ""), conf.to_string())
            .silent();
        assert_eq!(held_by_host_local(&rig), [""; 0], "{step}");
        // And DEL alone, of what the killed one left.
        rig.call(&call, conf.to_string());
        rig.call(&variables("DEL", "c1", "eth0", &pod), conf.to_string())
            .silent();
        assert_eq!(held_by_host_local(&rig), [""; 0], "{step}");
        assert!(rig.census().records().is_empty());
    }
}

/// An IPAM plugin that gives one address for each attachment, notes each in a
/// file, and forgets no debt; its DEL fails while there is a file `stuck`.
pub(crate) fn debtor(rig: &Rig, name: &str) -> (String, std::path::PathBuf) {
    use std::os::unix::fs::PermissionsExt;
    let directory = rig.root().join("debtor");
    std::fs::create_dir_all(&directory).unwrap();
    let held = directory.join(format!("{name}.held"));
    let script = format!(
        r#"#!/bin/sh
        cat >/dev/null
        case $CNI_COMMAND in
        ADD) [ ! -e {held} ] || exit 1; : >{held}; echo '{{"ips":[{{"address":"10.244.7.77/24"}}]}}';;
        DEL) [ ! -e {stuck} ] || exit 1; rm -f {held};;
        esac"#,
        held = held.display(),
        stuck = directory.join("stuck").display(),
    );
    let program = directory.join(name);
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    (directory.display().to_string(), held)
}

/// One that takes a second for an ADD. There is a third file while and after it has one at work.
fn slow_debtor(rig: &Rig, name: &str) -> (String, std::path::PathBuf, std::path::PathBuf) {
    let (path, held) = debtor(rig, name);
    let (begun, program) = (held.with_extension("begun"), held.with_file_name(name));
    let slowly = std::fs::read_to_string(&program)
        .unwrap()
        .replace("ADD) ", &format!("ADD) : >{}; sleep 1; ", begun.display()));
    std::fs::write(&program, slowly).unwrap();
    (path, held, begun)
}

fn until_begun(begun: &std::path::Path) {
    while !begun.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn ended(child: std::process::Child) -> Answer {
    Answer::of(child.wait_with_output().unwrap())
}

/// The record is the only note of a debt, and the configuration may change
/// between one try and the next.
#[test]
fn h2_what_an_ipam_plugin_is_owed_is_never_forgotten() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    let (path, held) = debtor(&rig, "debtor");
    let stuck = held.with_file_name("stuck");
    let plain = rig.conf("1.0.0").to_string();
    let mut conf = rig.conf("1.0.0");
    conf["ipam"] = json!({"type": "debtor"});
    let with = conf.to_string();
    let call = |verb: &'static str, fault: &str, conf: &str| {
        let mut call = variables(verb, "c1", "eth0", &pod).to_vec();
        call.extend([("TARTAN_CNI_FAULT", fault), ("CNI_PATH", &path)]);
        rig.call(&call, conf)
    };
    for given in ["ipam:kill", "routed:kill"] {
        // It gave, and its ADD died; the next tries know no IPAM any more.
        call("ADD", given, &with);
        assert!(held.exists(), "{given}");
        std::fs::write(&stuck, "").unwrap();
        assert_eq!(call("ADD", "", &plain).error().0, 107, "{given}");
        assert_eq!(rig.record("c1", "eth0").ipam.as_deref(), Some("debtor"));
        assert_eq!(call("DEL", "", &plain).error().0, 107, "{given}");
        assert_eq!(rig.record("c1", "eth0").ipam.as_deref(), Some("debtor"));
        std::fs::remove_file(&stuck).unwrap();
        // One that fails or dies as soon as it has paid, and one that does not.
        assert_eq!(call("ADD", "given-back:fail", &plain).error().0, 104);
        assert!(!held.exists(), "{given}");
        assert_eq!(rig.record("c1", "eth0").ipam.as_deref(), Some("debtor"));
        call("ADD", "given-back:kill", &plain);
        assert!(!held.exists(), "{given}");
        call("ADD", "", &plain).result();
        call("DEL", "", &plain).silent();
        assert!(rig.census().records().is_empty(), "{given}");
    }
}

/// Killing the plugin does not kill what it runs.
#[test]
fn h2_an_ipam_plugin_that_outlives_its_add_is_waited_for() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    let (path, held, begun) = slow_debtor(&rig, "late");
    let mut conf = rig.conf("1.0.0");
    conf["ipam"] = json!({"type": "late"});
    let conf = conf.to_string();
    let call = |verb: &'static str| {
        let mut call = variables(verb, "c1", "eth0", &pod).to_vec();
        call.push(("CNI_PATH", &path));
        rig.spawn(&call, &conf)
    };
    for next in ["DEL", "ADD"] {
        let _ = std::fs::remove_file(&begun);
        let mut killed = call("ADD");
        until_begun(&begun);
        killed.kill().unwrap();
        assert!(!killed.wait().unwrap().success());
        let answer = ended(call(next));
        assert!(answer.ok, "{next}: {answer:?}");
        std::thread::sleep(Duration::from_millis(1200));
        assert_eq!(held.exists(), next == "ADD", "{next}");
    }
    ended(call("DEL")).silent();
    assert!(!held.exists());
    assert!(rig.census().records().is_empty());
}

/// Line C7 with an IPAM plugin: what it gives and takes is the next ADD's by then.
#[test]
fn c7_an_add_that_was_ended_takes_no_address_of_the_next_one() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    let (path, held) = debtor(&rig, "debtor");
    let mut conf = rig.conf("1.0.0");
    conf["ipam"] = json!({"type": "debtor"});
    let conf = conf.to_string();
    let variables = |verb: &'static str, fault: &'static str| {
        let mut all = variables(verb, "c1", "eth0", &pod).to_vec();
        all.extend([("TARTAN_CNI_FAULT", fault), ("CNI_PATH", path.as_str())]);
        all
    };
    let call = |verb| rig.call(&variables(verb, ""), &conf);
    let stopped = |fault| {
        let late = rig.spawn(&variables("ADD", fault), &conf);
        rig.stands_still(&late);
        late
    };
    let before = rig.census();
    for fault in ["reserved:stop", "ipam:stop"] {
        // Without a next one nothing is given at all.
        let late = stopped(fault);
        call("DEL").silent();
        assert_eq!(rig.go_on(late).error().0, 104, "{fault} DEL");
        assert!(!held.exists(), "{fault} DEL");
        assert_eq!(rig.census(), before, "{fault} DEL");
        let late = stopped(fault);
        call("DEL").silent();
        call("ADD").result();
        let stands = rig.record("c1", "eth0");
        let node = rig.census();
        assert_eq!(rig.go_on(late).error().0, 104, "{fault}");
        assert!(held.exists(), "the address of the one that stands: {fault}");
        assert_eq!(rig.record("c1", "eth0"), stands, "{fault}");
        assert_eq!(rig.census(), node, "{fault}");
        call("DEL").silent();
        assert!(!held.exists(), "{fault}");
        assert_eq!(rig.census(), before, "{fault}");
    }
}

/// What an IPAM plugin has given is given back when it is noted, not before.
#[test]
fn c7_a_del_waits_until_an_add_has_noted_what_it_was_given() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    let (path, held, begun) = slow_debtor(&rig, "slow");
    let before = rig.census();
    let mut conf = rig.conf("1.0.0");
    conf["ipam"] = json!({"type": "slow"});
    let conf = conf.to_string();
    let call = |verb: &'static str| {
        let mut call = variables(verb, "c1", "eth0", &pod).to_vec();
        call.push(("CNI_PATH", &path));
        rig.spawn(&call, &conf)
    };
    let add = call("ADD");
    until_begun(&begun);
    // Nothing is noted without this lock.
    let range = cni_shim::range::Range::lock(&rig.run()).unwrap();
    let mut del = call("DEL");
    std::thread::sleep(Duration::from_millis(2000));
    assert!(held.exists() && del.try_wait().unwrap().is_none());
    drop(range);
    ended(del).silent();
    ended(add);
    ended(call("DEL")).silent();
    assert!(!held.exists());
    assert_eq!(rig.census(), before);
}

#[test]
fn h2_static_gives_what_is_configured() {
    let mut rig = Rig::new(BOTH);
    let (pod, other) = (rig.pod(), rig.pod());
    let ipam = json!({"ipam": {"type": "static", "addresses": [
        {"address": "10.244.7.50/24"}, {"address": "fd00:7::50/64"}],
        "dns": {"nameservers": ["10.0.0.53"]}}});
    let added = add(&rig, "c1", &pod, &ipam);
    let result = added.result();
    assert_eq!(result["ips"][1]["address"], "fd00:7::50/128");
    assert_eq!(
        result["routes"].as_array().unwrap().len(),
        2,
        "without routes, everywhere"
    );
    assert_eq!(result["dns"]["nameservers"], json!(["10.0.0.53"]));
    assert!(ping(&rig.node, "10.244.7.50") && ping(&rig.node, "fd00:7::50"));
    let before = rig.census().records();
    let (code, message) = add(&rig, "c2", &other, &ipam).error();
    assert_eq!(code, 101);
    assert!(message.contains("container c1"), "{message}");
    assert_eq!(rig.census().records(), before);
    let missing = json!({"ipam": {"type": "no-such-plugin"}});
    assert_eq!(add(&rig, "c2", &other, &missing).error().0, 7);
}
