//! What goes over the wire: lines A1 to A7 of the checklist, through the
//! program itself.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::rig::{Answer, PLUGIN, Rig, variables};

const BOTH: &[&str] = &["10.244.7.0/24", "fd00:7::/64"];
const VERSIONS: [&str; 7] = [
    "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0",
];

/// What ADD answers in `version`, with the names of the pair as HOST and MAC.
fn golden(version: &str, pod: &str, v4: &str, v6: &str) -> Value {
    let routes =
        json!([{"dst": "0.0.0.0/0", "gw": "169.254.1.1"}, {"dst": "::/0", "gw": "fe80::1"}]);
    let mut interfaces = json!([
        {"name": "HOST", "mac": "ee:ee:ee:ee:ee:ee"},
        {"name": "eth0", "mac": "MAC", "sandbox": pod},
    ]);
    let mut ips = json!([
        {"address": v4, "gateway": "169.254.1.1", "interface": 1},
        {"address": v6, "gateway": "fe80::1", "interface": 1},
    ]);
    match version {
        "0.1.0" | "0.2.0" => {
            return json!({"cniVersion": version, "dns": {"nameservers": ["10.0.0.10"]},
                "ip4": {"ip": v4, "gateway": "169.254.1.1", "routes": [routes[0]]},
                "ip6": {"ip": v6, "gateway": "fe80::1", "routes": [routes[1]]}});
        }
        "0.3.0" | "0.3.1" | "0.4.0" => {
            ips[0]["version"] = json!("4");
            ips[1]["version"] = json!("6");
        }
        "1.1.0" => {
            interfaces[0]["mtu"] = json!(1450);
            interfaces[1]["mtu"] = json!(1450);
        }
        _ => {}
    }
    json!({"cniVersion": version, "interfaces": interfaces, "ips": ips, "routes": routes,
           "dns": {"nameservers": ["10.0.0.10"]}})
}

#[test]
fn a1_a7_add_check_and_del_in_every_version() {
    let mut rig = Rig::new(BOTH);
    let pod = rig.pod();
    rig.add("warm", "eth0", &pod).result();
    rig.del("warm", "eth0", &pod).silent();
    let before = rig.census();
    for version in VERSIONS {
        let mut conf = rig.conf(version);
        conf["dns"] = json!({"nameservers": ["10.0.0.10"]});
        let added = rig.call(&variables("ADD", "c1", "eth0", &pod), conf.to_string());
        assert_eq!(added.stderr, "");
        let record = rig.record("c1", "eth0");
        let text = added.result().to_string();
        let text = text
            .replace(&record.host_ifname, "HOST")
            .replace(&record.mac, "MAC");
        let [v4, v6] = &record.addresses[..] else {
            panic!("{record:?}");
        };
        let expected = golden(version, &pod, &v4.to_string(), &v6.to_string());
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);

        conf["prevResult"] = added.result();
        let check = rig.call(&variables("CHECK", "c1", "eth0", &pod), conf.to_string());
        if VERSIONS.iter().position(|v| *v == version) >= Some(4) {
            check.silent();
            assert_eq!(check.stderr, "");
        } else {
            let (code, message) = check.error();
            assert_eq!(
                (code, &*message),
                (1, "config version does not allow CHECK")
            );
        }
        for verb in ["GC", "STATUS"] {
            let answer = rig.call(&[("CNI_COMMAND", verb)], conf.to_string());
            if version == "1.1.0" && verb == "STATUS" {
                answer.silent();
            } else if version != "1.1.0" {
                assert_eq!(answer.error().0, 1, "{verb} {version}");
            }
        }
        rig.call(&variables("DEL", "c1", "eth0", &pod), conf.to_string())
            .silent();
        assert_eq!(rig.census(), before, "{version}");
    }
}

#[test]
fn a2_missing_variables_are_named_all_at_once() {
    let rig = Rig::new(BOTH);
    let conf = rig.conf("1.0.0").to_string();
    let answer = rig.call(&[("CNI_COMMAND", "ADD"), ("CNI_PATH", "")], &conf);
    let missing = "[CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH]";
    let expected = format!("required env variables {missing} missing");
    assert_eq!(answer.error(), (4, expected));
    let unicode = variables("ADD", "pöd", "eth0", "/run/netns/x");
    assert_eq!(rig.call(&unicode, &conf).error().0, 4);
    // The environment comes before standard input.
    assert_eq!(rig.call(&[("CNI_COMMAND", "ADD")], "nonsense").error().0, 4);
}

#[test]
fn a3_version_answers_whatever_its_input_is() {
    let rig = Rig::new(BOTH);
    let ask = |input: &str| rig.call(&[("CNI_COMMAND", "VERSION")], input).result();
    for (input, expected) in [
        ("", "1.1.0"),
        ("nonsense", "1.1.0"),
        (r#"{"cniVersion":"0.4.0"}"#, "0.4.0"),
        (r#"{"cniVersion":"9.9.9"}"#, "1.1.0"),
        ("[]", "1.1.0"),
    ] {
        let version = ask(input);
        assert_eq!(version["cniVersion"], expected, "{input}");
        assert_eq!(version["supportedVersions"], json!(VERSIONS));
    }
    // As podman asks: variables that name nothing.
    let dummy = [
        ("CNI_COMMAND", "VERSION"),
        ("CNI_NETNS", "dummy"),
        ("CNI_IFNAME", "dummy"),
        ("CNI_PATH", "dummy"),
    ];
    let answer = rig.call(&dummy, r#"{"cniVersion":"1.0.0"}"#);
    assert_eq!(answer.result()["cniVersion"], "1.0.0");
}

#[test]
fn a3_version_does_not_wait_for_an_input_that_stays_open() {
    let rig = Rig::new(BOTH);
    let start = Instant::now();
    let mut child = rig.command(&[("CNI_COMMAND", "VERSION")]).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"{\"cniVersion\":").unwrap();
    let mut said = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(child.wait().unwrap().success());
    assert!(start.elapsed() < Duration::from_secs(2), "it waited");
    drop(stdin);
    let version: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(version["cniVersion"], "1.1.0");
    let mut closed = rig.command(&[("CNI_COMMAND", "VERSION")]);
    let closed = closed.stdin(std::process::Stdio::null()).output().unwrap();
    assert_eq!(Answer::of(closed).result()["cniVersion"], "1.1.0");
    // No descriptor at all.
    let none = rig.run_by(
        &["sh", "-c", "exec \"$0\" <&-", PLUGIN],
        &[("CNI_COMMAND", "VERSION")],
        "",
    );
    assert_eq!(none.result()["cniVersion"], "1.1.0");
}

#[test]
fn a3_without_a_command_it_prints_what_it_is() {
    let rig = Rig::new(BOTH);
    for variables in [&[][..], &[("CNI_COMMAND", "")]] {
        let hint = rig.call(variables, "");
        hint.silent();
        assert!(hint.stderr.starts_with("tartan-cni "), "{hint:?}");
        let versions = format!("CNI protocol versions supported: {}", VERSIONS.join(", "));
        assert!(hint.stderr.contains(&versions), "{hint:?}");
    }
}

#[test]
fn a5_a6_an_answer_is_one_value_or_nothing_and_an_error_is_whole() {
    let mut rig = Rig::new(BOTH);
    let pod = rig.pod();
    let refused = [
        (variables("ADD", "c1", "eth0", &pod), "{".to_owned(), 6),
        (
            variables("ADD", "c1", "eth0", &pod),
            r#"{"name":1}"#.to_owned(),
            6,
        ),
        (
            variables("ADD", "c1", "eth0", &pod),
            r#"{"cniVersion":"1.0.0"}"#.to_owned(),
            7,
        ),
        (
            variables("ADD", "c1", "eth0", &pod),
            rig.conf("3.0.0").to_string(),
            1,
        ),
        (
            variables("ADD", "c1", "eth0", "/etc/hostname"),
            rig.conf("0.4.0").to_string(),
            8,
        ),
        (
            variables("NONE", "c1", "eth0", &pod),
            rig.conf("1.0.0").to_string(),
            4,
        ),
    ];
    for (variables, conf, code) in refused {
        let answer = rig.call(&variables, &conf);
        // One value: anything behind it would make this fail.
        let error: Value = serde_json::from_str(&answer.stdout).unwrap();
        assert_eq!(error["code"], code, "{conf}");
        for part in ["cniVersion", "msg", "details"] {
            let text = error[part].as_str().unwrap();
            assert!(part == "details" || !text.is_empty(), "{error}");
        }
        let all = format!("{}{}", error["msg"], error["details"]);
        assert!(all.len() > 40, "no remedy: {error}");
        assert_eq!(answer.stderr, "");
    }
}
