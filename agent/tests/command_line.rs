//! The command line as a person and a script meet it, against an agent that gives fixed answers.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Every command that prints a document.
const QUERIES: [&str; 5] = ["status", "peers", "routes", "pods", "drops"];

fn tartan(words: &[&str]) -> (i32, String, String) {
    let done = Command::new(env!("CARGO_BIN_EXE_tartan"))
        .args(words)
        .env_remove("TARTAN_ROOT")
        .env_remove("NO_COLOR")
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        done.status.code().unwrap(),
        text(done.stdout),
        text(done.stderr),
    )
}

/// An agent below a root of its own that answers everything with `value`.
fn agent(value: Value) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let run = root.path().join("run/tartan");
    std::fs::create_dir_all(&run).unwrap();
    let listener = UnixListener::bind(run.join("tartan.sock")).unwrap();
    let reply = serde_json::to_vec(&tartan::api::wire::Reply::Ok(value)).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            stream.write_all(&reply).unwrap();
            stream.write_all(b"\n").unwrap();
        }
    });
    root
}

fn peer(name: &str, address: &str, sent: u64) -> Value {
    json!({
        "name": name, "public_ip": address, "public_ipv6": null, "format": "vxlan", "subnets": ["10.244.2.0/24"],
        "vtep_mac": "0a:74:c0:00:02:02", "vtep_mac_v6": "0a:74:c0:00:02:02", "path_mtu": 1500, "path_mtu_v6": null,
        "sent_packets": sent, "sent_bytes": sent * 1000, "received_packets": 0, "received_bytes": 0, "refused": 0,
    })
}

fn peers() -> tempfile::TempDir {
    let peers = [
        peer("node10", "192.0.2.10", 5),
        peer("node2", "192.0.2.9", 70),
        peer("node1", "192.0.2.100", 600),
    ];
    agent(json!({"peers": peers, "refused_sources": []}))
}

/// The first word of each row.
fn names(text: &str) -> Vec<&str> {
    let rows = text.lines().filter(|line| line.contains("vxlan"));
    rows.filter_map(|row| row.split_whitespace().next())
        .collect()
}

#[test]
fn rows_are_sorted_as_people_count_and_filtered() {
    let root = peers();
    let root = root.path().to_str().unwrap();
    let shown = |words: &[&str]| {
        let (code, text, wrong) = tartan(&[&["--root", root, "peers"], words].concat());
        assert_eq!(code, 0, "{wrong}");
        text
    };
    let all = shown(&[]);
    assert_eq!(names(&all), ["node1", "node2", "node10"], "{all}");
    assert!(all.contains("3 peers"), "{all}");
    assert_eq!(
        names(&shown(&["--sort", "address"])),
        ["node2", "node10", "node1"]
    );
    assert_eq!(
        names(&shown(&["--sort", "tx-bytes"])),
        ["node10", "node2", "node1"]
    );
    assert_eq!(
        names(&shown(&["--sort", "-tx-packets"])),
        ["node1", "node2", "node10"]
    );
    let one = shown(&["--filter", "node10"]);
    assert_eq!(names(&one), ["node10"]);
    assert!(one.contains("1 of 3 peers"), "{one}");
    assert_eq!(names(&shown(&["--filter", "address=192.0.2.9"])), ["node2"]);
    let (code, _, wrong) = tartan(&["--root", root, "peers", "--sort", "colour"]);
    assert_eq!(code, 2, "{wrong}");
    assert!(wrong.contains("tx-bytes"), "the columns are named: {wrong}");
}

#[test]
fn a_pipe_gets_neither_colours_nor_a_width() {
    let root = peers();
    let root = root.path().to_str().unwrap();
    let (_, plain, _) = tartan(&["--root", root, "peers", "--wide"]);
    assert!(!plain.contains('\u{1b}'), "{plain}");
    let (_, coloured, _) = tartan(&["--root", root, "peers", "--color", "always"]);
    assert!(coloured.contains("\u{1b}["), "{coloured}");
    assert!(plain.lines().any(|line| line.len() > 100), "{plain}");
    let (_, narrow, _) = tartan(&["--root", root, "peers", "--wide", "--width", "80"]);
    assert!(
        narrow.lines().all(|line| line.chars().count() <= 80),
        "{narrow}"
    );
}

#[test]
fn a_watch_prints_again_and_again() {
    let root = peers();
    let mut watch = Command::new(env!("CARGO_BIN_EXE_tartan"))
        .args([
            "--root",
            root.path().to_str().unwrap(),
            "peers",
            "--watch",
            "0.1",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let begun = Instant::now();
    for _ in 0..3 {
        let again = lines.find(|line| line.as_ref().unwrap().contains("3 peers"));
        assert!(again.is_some());
    }
    assert!(begun.elapsed() > Duration::from_millis(150));
    drop(lines);
    // The reader is gone, as with `| head`.
    assert!(watch.wait().unwrap().success());
}

/// The next screen would be printed over an error on standard error.
#[test]
fn a_watch_shows_why_there_is_no_answer() {
    let nowhere = tempfile::tempdir().unwrap();
    let mut watch = Command::new(env!("CARGO_BIN_EXE_tartan"))
        .arg("--root")
        .arg(nowhere.path())
        .args(["status", "--watch", "0.1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let again = lines.find(|line| line.as_ref().unwrap().starts_with("tartan: "));
        assert!(again.is_some());
    }
    drop(lines);
    assert!(watch.wait().unwrap().success());
}

#[test]
fn every_document_has_a_schema_and_so_have_errors() {
    let root = peers();
    let (_, text, _) = tartan(&[
        "--root",
        root.path().to_str().unwrap(),
        "peers",
        "-o",
        "json",
    ]);
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["schema"], 1, "{document:#}");
    let nowhere = tempfile::tempdir().unwrap();
    let nowhere = nowhere.path().to_str().unwrap();
    for query in QUERIES {
        let (code, text, _) = tartan(&["--root", nowhere, query, "-o", "json"]);
        assert_eq!(code, 3, "{text}");
        let document: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["schema"], 1, "{document:#}");
        assert_eq!(document["code"], "no-agent", "{document:#}");
        for key in ["error", "remedy"] {
            assert!(
                document[key].as_str().is_some_and(|text| !text.is_empty()),
                "{document:#}"
            );
        }
    }
    let (code, text, _) = tartan(&["version", "-o", "json"]);
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &document["schema"]), (0, &json!(1)));
    assert_eq!(document["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn help_has_one_layout_and_examples_everywhere() {
    for words in [
        &["run"][..],
        &["status"],
        &["peers"],
        &["routes"],
        &["pods"],
        &["drops"],
        &["cni"],
        &["cni", "install"],
        &["cni", "uninstall"],
        &["cleanup"],
        &["version"],
    ] {
        let (code, text, _) = tartan(&[words, &["--help"]].concat());
        assert_eq!(code, 0, "{words:?}");
        let mut places = ["Usage: ", "Options:", "Examples:"].map(|part| text.find(part));
        assert!(places.iter().all(Option::is_some), "{words:?}:\n{text}");
        let found = places;
        places.sort();
        assert_eq!(found, places, "{words:?}:\n{text}");
        let (code, helped, _) = tartan(&[&["help"], words].concat());
        assert_eq!((code, helped), (0, text), "{words:?}");
    }
    let (code, text, _) = tartan(&["version"]);
    assert_eq!(
        (code, text),
        (0, format!("tartan {}\n", env!("CARGO_PKG_VERSION")))
    );
}

/// What a script that reads too slowly or not at all gets: nothing hangs.
#[test]
fn a_closed_pipe_is_no_error() {
    let root = peers();
    let mut shown = Command::new(env!("CARGO_BIN_EXE_tartan"))
        .args(["--root", root.path().to_str().unwrap(), "peers"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(shown.stdout.take());
    let mut wrong = String::new();
    shown
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut wrong)
        .unwrap();
    assert!(shown.wait().unwrap().success());
    assert_eq!(wrong, "");
}
