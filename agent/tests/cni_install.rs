//! `tartan cni install` and `uninstall` as an operator calls them: what was installed before is found again, and what is
//! lost on the way is said.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

/// A host's directories below a root of its own.
struct HostRoot(tempfile::TempDir);

impl HostRoot {
    fn new() -> HostRoot {
        let root = HostRoot(tempfile::tempdir().unwrap());
        root.plugin("from", "tartan-cni");
        root
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    /// A program that answers VERSION as a plugin does.
    fn plugin(&self, directory: &str, name: &str) {
        let path = self.at(directory).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let answer = json!({ "supportedVersions": ["0.4.0", "1.0.0"] });
        fs::write(&path, format!("#!/bin/sh\necho '{answer}'\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Exit code and what was printed on both streams.
    fn cni(&self, verb: &str, words: &[&str]) -> (i32, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tartan"));
        command.args(["cni", verb, "--root"]).arg(self.0.path());
        if verb == "install" {
            command.arg("--from").arg(self.at("from/tartan-cni"));
        }
        let done = command.args(words).output().unwrap();
        let said = [done.stdout, done.stderr].concat();
        (
            done.status.code().unwrap(),
            String::from_utf8(said).unwrap(),
        )
    }

    fn list(&self) -> PathBuf {
        self.at("etc/cni/net.d/10-tartan.conflist")
    }

    /// The programs that our list names, in its order.
    fn chain(&self) -> String {
        let list: Value = serde_json::from_slice(&fs::read(self.list()).unwrap()).unwrap();
        let plugins = list["plugins"].as_array().unwrap();
        let kinds: Vec<&str> = plugins.iter().filter_map(|p| p["type"].as_str()).collect();
        kinds.join(" ")
    }
}

fn said(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

#[test]
fn a_list_that_nobody_changed_is_renewed() {
    let host = HostRoot::new();
    assert_eq!(host.cni("install", &[]).0, 0);
    assert_eq!(host.chain(), "tartan-cni");
    host.plugin("opt/cni/bin", "portmap");
    let (code, text) = host.cni("install", &[]);
    assert_eq!(code, 0, "{text}");
    said(&text, &["replaced ", "10-tartan.conflist"]);
    assert!(!text.contains("edited"), "{text}");
    assert_eq!(host.chain(), "tartan-cni portmap");
}

/// What another release of Tartan wrote has another form, and is known by the record.
#[test]
fn a_list_that_was_changed_is_kept_and_one_of_another_release_renewed() {
    let host = HostRoot::new();
    host.cni("install", &[]);
    let text = fs::read_to_string(host.list()).unwrap();
    let other = text.replace("\"mac\": true", "\"mac\":   true");
    assert_ne!(text, other);
    fs::write(host.list(), &other).unwrap();
    let (_, kept) = host.cni("install", &[]);
    said(&kept, &["kept, because it was edited"]);
    let record = host.at("var/lib/tartan/cni-installed.json");
    let mut known: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    known["lists"][0]["texts"] = json!([other]);
    fs::write(&record, known.to_string()).unwrap();
    let (code, renewed) = host.cni("install", &[]);
    assert_eq!(code, 0, "{renewed}");
    said(&renewed, &["replaced "]);
    assert_eq!(fs::read_to_string(host.list()).unwrap(), text);
}

#[test]
fn what_the_list_before_had_and_the_new_one_has_not_is_named() {
    let host = HostRoot::new();
    host.plugin("opt/cni/bin", "portmap");
    host.cni("install", &[]);
    assert_eq!(host.chain(), "tartan-cni portmap");
    fs::remove_file(host.at("opt/cni/bin/portmap")).unwrap();
    let (code, text) = host.cni("install", &["--dry-run"]);
    assert_eq!(code, 1, "{text}");
    said(
        &text,
        &["PROBLEM: ", "would lose the plugin portmap", "portMappings"],
    );
    let (code, text) = host.cni("install", &[]);
    assert_eq!(code, 1, "{text}");
    said(
        &text,
        &["PROBLEM: ", "have lost the plugin portmap", "portMappings"],
    );

    // A list that people wrote, given up on purpose.
    let theirs = json!({"name": "tartan", "plugins": [
        {"type": "tartan-cni", "capabilities": {"bandwidth": true}},
        {"type": "tuning"},
        {"type": "bandwidth", "capabilities": {"bandwidth": true}},
    ]});
    fs::write(host.list(), theirs.to_string()).unwrap();
    let (code, text) = host.cni("install", &["--replace-conf"]);
    assert_eq!(code, 1, "{text}");
    said(&text, &["have lost the plugin tuning"]);
    assert!(!text.contains("plugin bandwidth"), "ours limits: {text}");
}

/// flannel's list asks for host ports; ours takes its place and cannot serve them.
#[test]
fn what_the_list_of_another_plugin_had_is_named_too() {
    let host = HostRoot::new();
    let flannel = json!({"name": "cbr0", "plugins": [
        {"type": "flannel", "delegate": {"isDefaultGateway": true}},
        {"type": "portmap", "capabilities": {"portMappings": true}},
    ]});
    let path = host.at("etc/cni/net.d/20-flannel.conflist");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, flannel.to_string()).unwrap();
    let (code, text) = host.cni("install", &[]);
    assert_eq!(code, 1, "{text}");
    said(&text, &["20-flannel.conflist", "portmap", "portMappings"]);
    let (code, text) = host.cni("install", &[]);
    assert_eq!(code, 0, "ours is the list in use now: {text}");
    assert!(path.exists());
}

#[test]
fn it_is_found_again_where_it_was_installed() {
    let host = HostRoot::new();
    let (bin, conf) = (host.at("usr/lib/cni"), host.at("etc/containers/net.d"));
    let places = [
        "--bin-dir",
        bin.to_str().unwrap(),
        "--conf-dir",
        conf.to_str().unwrap(),
    ];
    let named = ["--conf-name", "05-mine.conflist", "--network", "mine"];
    assert_eq!(host.cni("install", &[&places[..], &named].concat()).0, 0);
    let (code, text) = host.cni("install", &[]);
    assert_eq!(code, 0, "{text}");
    said(
        &text,
        &[
            &format!("unchanged {}", bin.join("tartan-cni").display()),
            &format!("unchanged {}", conf.join("05-mine.conflist").display()),
        ],
    );
    assert!(!host.list().exists());
    let (code, text) = host.cni("uninstall", &["--dry-run"]);
    assert_eq!(code, 0, "{text}");
    said(&text, &["would remove ", "05-mine.conflist"]);
    let (code, text) = host.cni("uninstall", &[]);
    assert_eq!(code, 0, "{text}");
    said(
        &text,
        &["removed ", "05-mine.conflist", "usr/lib/cni/tartan-cni"],
    );
    assert!(!bin.join("tartan-cni").exists() && !conf.join("05-mine.conflist").exists());
    assert!(!host.at("var/lib/tartan/cni-installed.json").exists());
}

#[test]
fn two_places_are_both_removed_the_lists_first() {
    let host = HostRoot::new();
    let other = host.at("usr/lib/cni");
    host.cni("install", &[]);
    host.cni("install", &["--bin-dir", other.to_str().unwrap()]);
    let (code, text) = host.cni("uninstall", &[]);
    assert_eq!(code, 0, "{text}");
    let first = text.lines().next().unwrap();
    assert!(first.ends_with("10-tartan.conflist"), "{text}");
    for path in [
        host.list(),
        host.at("opt/cni/bin/tartan-cni"),
        other.join("tartan-cni"),
    ] {
        assert!(!path.exists(), "{} is still there:\n{text}", path.display());
    }
}

/// A container installs into the host's file system by another name of it.
#[test]
fn what_was_installed_under_another_name_of_the_root_is_removed() {
    let host = HostRoot::new();
    let mounted = HostRoot::new();
    let bin = host.at("usr/lib/cni");
    assert_eq!(
        host.cni("install", &["--bin-dir", bin.to_str().unwrap()]).0,
        0
    );
    for directory in ["etc", "usr", "var"] {
        fs::rename(host.at(directory), mounted.at(directory)).unwrap();
    }
    let (code, text) = mounted.cni("uninstall", &[]);
    assert_eq!(code, 0, "{text}");
    for path in [
        mounted.list(),
        mounted.at("usr/lib/cni/tartan-cni"),
        mounted.at("var/lib/tartan/cni-installed.json"),
    ] {
        assert!(!path.exists(), "{} is still there:\n{text}", path.display());
    }
}

/// Killed at its first list, an installation has the record, the program and a temporary file above the list's directory,
/// or in it where that is a mount; killed before that, a temporary file of the record, or of the program.
#[test]
fn what_killed_installations_have_left_goes_with_a_removal() {
    let host = HostRoot::new();
    host.cni("install", &[]);
    fs::remove_file(host.list()).unwrap();
    remains_of_killed(&host);
    // Of one that was killed at the record, where an agent has its state.
    let host = HostRoot::new();
    for directory in ["etc/cni/net.d", "opt/cni/bin", "var/lib/tartan"] {
        fs::create_dir_all(host.at(directory)).unwrap();
    }
    let left = host.at("var/lib/tartan/.12.cni-installed.json.new");
    fs::write(&left, "half").unwrap();
    let (code, text) = host.cni("uninstall", &["--dry-run"]);
    assert_eq!(code, 0, "{text}");
    said(&text, &["cni-installed.json.new"]);
    assert!(left.exists());
    let (code, text) = host.cni("uninstall", &[]);
    assert_eq!(code, 0, "{text}");
    assert!(!left.exists(), "{text}");
}

fn remains_of_killed(host: &HostRoot) {
    let left = [
        host.at("etc/cni/.12.10-tartan.conflist.new"),
        host.at("etc/cni/net.d/.12.10-tartan.conflist.new"),
        host.at("opt/cni/bin/.12.tartan-cni.new"),
        host.at("var/lib/tartan/.12.cni-installed.json.new"),
    ];
    for path in &left {
        fs::write(path, "half").unwrap();
    }
    let (code, text) = host.cni("uninstall", &[]);
    assert_eq!(code, 0, "{text}");
    for path in left {
        assert!(!path.exists(), "{} is still there:\n{text}", path.display());
    }
    assert!(!host.at("var/lib/tartan").exists(), "{text}");
}

/// Whatever the record names, the plugin may be in the default directories too.
#[test]
fn the_default_directories_are_looked_through_beside_the_record() {
    let host = HostRoot::new();
    host.cni("install", &[]);
    fs::remove_file(host.at("var/lib/tartan/cni-installed.json")).unwrap();
    let (bin, conf) = (host.at("usr/lib/cni"), host.at("etc/containers/net.d"));
    let places = [
        "--bin-dir",
        bin.to_str().unwrap(),
        "--conf-dir",
        conf.to_str().unwrap(),
    ];
    assert_eq!(host.cni("install", &places).0, 0);
    let (code, text) = host.cni("uninstall", &[]);
    assert_eq!(code, 0, "{text}");
    for path in [
        host.list(),
        host.at("opt/cni/bin/tartan-cni"),
        bin.join("tartan-cni"),
    ] {
        assert!(!path.exists(), "{} is still there:\n{text}", path.display());
    }
}

#[test]
fn a_damaged_record_is_named_and_written_anew() {
    let host = HostRoot::new();
    host.cni("install", &[]);
    let record = host.at("var/lib/tartan/cni-installed.json");
    fs::write(&record, "{").unwrap();
    let (code, text) = host.cni("install", &[]);
    assert_eq!(code, 1, "{text}");
    said(&text, &["PROBLEM: ", "cni-installed.json", "unchanged "]);
    let (code, text) = host.cni("install", &[]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn dry_it_speaks_of_what_it_would_do() {
    let host = HostRoot::new();
    let (code, text) = host.cni("install", &["--dry-run"]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(text.matches("would install ").count(), 2, "{text}");
    assert!(!Path::new(&host.at("var/lib/tartan")).exists());
    let (_, text) = host.cni("install", &["--dry-run", "-o", "json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["dry_run"], true, "{report:#}");
    host.cni("install", &[]);
    let (_, text) = host.cni("install", &["-o", "json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["dry_run"], false, "{report:#}");
}
