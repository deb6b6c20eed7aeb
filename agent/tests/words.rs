//! The words in which a wrong configuration is refused: where the value stands, what was probably meant, no jargon.
//! Needs no privileges: each run ends before it touches anything.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::fs;
use std::process::Command;

/// What `tartan run` (or check) with this `tartan.toml`, these variables and these words says, and how it ends.
fn said(command: &str, file: &str, variables: &[(&str, &str)], words: &[&str]) -> (i32, String) {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("etc/tartan")).unwrap();
    fs::write(root.path().join("etc/tartan/tartan.toml"), file).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tartan"))
        .args(["--root", root.path().to_str().unwrap(), command])
        .args(words)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.code().unwrap(),
        String::from_utf8(text).unwrap(),
    )
}

#[track_caller]
fn refused(file: &str, variables: &[(&str, &str)], words: &[&str], parts: &[&str]) {
    let (code, text) = said("run", file, variables, words);
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    assert_eq!(code, 2, "{text}");
}

#[test]
fn a_wrong_value_is_named_by_where_it_stands() {
    let file = "log = \"info\"\ndevice = \"fast\"\n";
    refused(file, &[], &[], &["tartan.toml: line 2: device \"fast\""]);
    refused(
        "",
        &[("TARTAN_DEVICE", "fast")],
        &[],
        &["TARTAN_DEVICE: device \"fast\""],
    );
    refused(
        "",
        &[],
        &["--device", "fast"],
        &["--device: device \"fast\""],
    );
    // A flag overrides its variable.
    let variable = [("TARTAN_DEVICE", "auto")];
    refused(
        "",
        &variable,
        &["--device=fast"],
        &["--device: device \"fast\""],
    );
    refused(
        "",
        &[("TARTAN_WORKERS", "99")],
        &[],
        &["TARTAN_WORKERS: workers is 99"],
    );
    // So do values that are no numbers and no addresses at all.
    for value in ["two", "-1"] {
        let variables = [("TARTAN_WORKERS", value)];
        refused("", &variables, &[], &["TARTAN_WORKERS", value]);
        let (_, text) = said("run", "", &variables, &[]);
        assert!(!text.contains("--workers"), "{text}");
    }
    refused("", &[], &["--workers", "two"], &["--workers"]);
}

#[test]
fn an_unknown_variable_is_an_error_with_the_nearest_known_one() {
    let variables = [("TARTAN_WORKRES", "2")];
    refused(
        "",
        &variables,
        &[],
        &["TARTAN_WORKRES", "did you mean TARTAN_WORKERS?"],
    );
    // Those of flannel, of the plugin, and those that Kubernetes sets for a Service of our name are none of ours.
    let foreign = [
        ("FLANNELD_IFACE", "eth0"),
        ("TARTAN_CNI_FAULT", "x"),
        ("TARTAN_SERVICE_HOST", "10.96.0.9"),
        ("TARTAN_PORT_80_TCP_ADDR", "10.96.0.9"),
        ("TARTAN_METRICS_SERVICE_HOST", "10.96.0.9"),
        ("TARTAN_METRICS_SERVICE_PORT_HTTP", "9090"),
        ("TARTAN_METRICS_PORT", "tcp://10.96.0.9:9090"),
        ("TARTAN_METRICS_PORT_9090_TCP_PROTO", "tcp"),
    ];
    refused("device = \"fast\"\n", &foreign, &[], &["device \"fast\""]);
}

#[test]
fn a_fault_of_form_is_told_with_line_column_and_the_line() {
    for (file, words) in [
        (
            "workers = 2\nspin auto\n",
            [
                "line 2",
                "column 6",
                "a key must be followed by =",
                "spin auto",
            ],
        ),
        (
            "log = info\n",
            [
                "line 1",
                "column 7",
                "text must stand in quotes",
                "log = info",
            ],
        ),
        (
            "masquerade = flase\n",
            ["line 1", "column 14", "", "masquerade = flase"],
        ),
        (
            "log = \"info\n",
            ["line 1", "", "the closing quote is missing", "log = \"info"],
        ),
        (
            "cores = [1, 2\nlog = \"info\"\n",
            ["line ", "column ", "", "cores"],
        ),
        ("log =\n", ["line 1", "", "the value is missing", "log ="]),
        (
            "log = \"info\"\nlog = \"warn\"\n",
            [
                "line 2",
                "column 1",
                "this key is set twice",
                "log = \"warn\"",
            ],
        ),
    ] {
        let (code, text) = said("run", file, &[], &[]);
        for part in words.iter().take(3) {
            assert!(text.contains(part), "{part:?} is not in:\n{text}");
        }
        let is_jargon = ["expected `", "newline", "basic string", "radix"];
        assert!(!is_jargon.iter().any(|word| text.contains(word)), "{text}");
        assert_eq!(code, 2, "{text}");
    }
    let (_, text) = said("run", "workers = 2\nspin auto\n", &[], &[]);
    assert!(text.contains("spin auto"), "the line itself: {text}");
}

#[test]
fn the_net_conf_is_refused_with_what_was_meant() {
    let root = tempfile::tempdir().unwrap();
    let judged = |text: &str| {
        let file = root.path().join("net-conf.json");
        fs::write(&file, text).unwrap();
        let (code, text) = said("check", "", &[], &[file.to_str().unwrap()]);
        assert_eq!(code, 1, "{text}");
        text
    };
    let text = judged("{\"Newtork\":\"10.244.0.0/16\"}");
    assert!(
        text.contains("\"Newtork\" is no key, did you mean \"Network\"?"),
        "{text}"
    );
    for (kind, port, other) in [("vxlan", 8285, "udp"), ("udp", 8472, "vxlan")] {
        let text = judged(&format!(
            "{{\"Network\":\"10.244.0.0/16\",\"Backend\":{{\"Type\":\"{kind}\",\"Port\":{port}}}}}"
        ));
        for part in [
            format!("Backend.Port {port} of {kind}"),
            format!("Backend.Port of {other}"),
        ] {
            assert!(text.contains(&part), "{part:?} is not in:\n{text}");
        }
    }
}
