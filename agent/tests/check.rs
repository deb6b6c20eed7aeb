//! `tartan check`: files judged before they are used, and what they would change. Needs no agent and no privileges.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::SystemTime;

use serde_json::Value;
use tartan::config::NetConf;
use tartan::{last_good, registry};

const NET_CONF: &str = "{\"Network\":\"10.244.0.0/16\",\"Backend\":{\"Type\":\"vxlan\"}}";

struct Place {
    root: tempfile::TempDir,
}

impl Place {
    /// The usual files of a node in a cluster of this many.
    fn of(nodes: u8) -> Place {
        let place = Place {
            root: tempfile::tempdir().unwrap(),
        };
        fs::create_dir_all(place.path("etc/tartan")).unwrap();
        place.write("etc/tartan/net-conf.json", NET_CONF);
        place.write("etc/tartan/nodes.toml", &list(1..=nodes));
        place.write("etc/tartan/tartan.toml", "node-name = \"node1\"\n");
        place
    }

    /// What a service has in force that forwards by the files as they are.
    fn in_force(self) -> Place {
        let state = self.path("var/lib/tartan");
        fs::create_dir_all(&state).unwrap();
        let read = |path: &str| fs::read_to_string(self.path(path)).unwrap();
        let list = read("etc/tartan/nodes.toml");
        let leases = registry::parse(&list, &NetConf::parse(NET_CONF).unwrap()).unwrap();
        last_good::write(&state, "node1", NET_CONF, &leases, SystemTime::now()).unwrap();
        let file = self.path("etc/tartan/tartan.toml");
        let text = read("etc/tartan/tartan.toml");
        last_good::configuration::write(&state, &file, &text).unwrap();
        self
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn write(&self, path: &str, text: &str) -> String {
        fs::write(self.path(path), text).unwrap();
        self.path(path).display().to_string()
    }

    /// Exit code, and what is printed.
    fn check(&self, words: &[&str]) -> (i32, String) {
        let root = self.root.path().to_str().unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_tartan"))
            .args(["--root", root, "check"])
            .args(words)
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.code().unwrap(),
            String::from_utf8(text).unwrap(),
        )
    }
}

fn list(nodes: impl Iterator<Item = u8>) -> String {
    let entry = |i| {
        format!(
            "[[node]]\nname = \"node{i}\"\nsubnets = [\"10.244.{i}.0/24\"]\npublic-ip = \"192.0.2.{i}\"\n"
        )
    };
    nodes.map(entry).collect()
}

#[track_caller]
fn told(found: (i32, String), code: i32, parts: &[&str]) {
    for part in parts {
        assert!(found.1.contains(part), "{part:?} is not in:\n{}", found.1);
    }
    assert_eq!(found.0, code, "{}", found.1);
}

#[test]
fn the_files_of_a_node_that_never_ran_are_compared_with_nothing() {
    let place = Place::of(3);
    told(
        place.check(&[]),
        0,
        &[
            "net-conf.json: ok",
            "nodes.toml: ok",
            "tartan.toml: ok",
            "compared with nothing",
        ],
    );
}

#[test]
fn faults_are_worded_as_the_service_words_them() {
    let place = Place::of(3);
    let net_conf = place.write("a.json", "{\"Network\":\"10.244.0.0/33\"}");
    let nodes = place.write("b", "[[node]]\nname = \"node1\"\n");
    let node = place.write("c", "workers = 0\n");
    told(
        place.check(&[&net_conf, &nodes, &node]),
        1,
        &[
            "a.json: Network: invalid CIDR address: \"10.244.0.0/33\"",
            "b line 1: this node has no public-ip: add it",
            "c: line 1: workers must be 1 to 32",
        ],
    );
    // The list is judged for this node, under the net-conf beside it.
    let nodes = place.write("d", &list(2..=3));
    told(place.check(&[&nodes]), 1, &["no node is named \"node1\""]);
    let net_conf = place.write("e", &NET_CONF.replace("10.244", "10.9"));
    told(
        place.check(&[&net_conf]),
        1,
        &[
            "the list of nodes cannot be used with it",
            "outside the cluster network",
        ],
    );
    told(place.check(&["/no/such/file"]), 1, &["/no/such/file"]);
}

#[test]
fn what_would_change_is_shown_with_how_it_is_taken() {
    let place = Place::of(3).in_force();
    told(place.check(&[]), 0, &["nothing would change"]);
    let changed = list(2..=4).replace("\"192.0.2.3\"", "\"192.0.2.33\"");
    place.write("etc/tartan/nodes.toml", &(list(1..=1) + &changed));
    place.write(
        "etc/tartan/net-conf.json",
        &NET_CONF.replace("\"vxlan\"", "\"vxlan\",\"VNI\":7"),
    );
    place.write(
        "etc/tartan/tartan.toml",
        "node-name = \"node1\"\nworkers = 2\n",
    );
    told(
        place.check(&[]),
        0,
        &[
            "node4 added",
            "node3 changed: public-ip",
            "Backend.VNI: 1 -> 7",
            "workers: - -> 2",
            "SIGHUP",
        ],
    );
    let (code, text) = place.check(&["-o", "json"]);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(code, 0);
    assert_eq!(json["nodes"]["added"], serde_json::json!(["node4"]));
    assert_eq!(json["nodes"]["changed"][0]["name"], "node3");
    assert_eq!(json["nodes"]["removed"], serde_json::json!([]));
    assert_eq!(json["shrinks"], false);
    assert_eq!(json["faults"], serde_json::json!([]));
}

#[test]
fn a_list_that_loses_most_of_its_nodes_is_called_out() {
    let place = Place::of(200).in_force();
    let cut = place.write("cut.toml", &list(1..=1));
    told(
        place.check(&[&cut]),
        0,
        &["loses 199 of 200 nodes", "and 189 more"],
    );
    let (_, text) = place.check(&["-o", "json", &cut]);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["shrinks"], true);
    assert_eq!(json["nodes"]["removed"].as_array().unwrap().len(), 199);
}

#[test]
fn no_file_goes_unjudged_beside_another_of_its_kind() {
    let place = Place::of(3);
    let (broken, sound) = (place.write("a", "workers = 0\n"), place.write("b", ""));
    told(
        place.check(&[&broken, &sound]),
        2,
        &["a and ", "b are both taken for tartan.toml"],
    );
}

#[test]
fn what_is_not_compared_is_told_with_the_reason() {
    let place = Place::of(3).in_force();
    let state = |name: &str| format!("var/lib/tartan/{name}");
    fs::remove_file(place.path(&state("last-good-configuration.json"))).unwrap();
    told(
        place.check(&[]),
        0,
        &[
            "tartan.toml: not compared: no text of",
            "): list of nodes, net-conf\n",
        ],
    );
    let file = place.path("etc/tartan/tartan.toml");
    last_good::configuration::write(&place.path("var/lib/tartan"), &file, "workers = 0\n").unwrap();
    told(
        place.check(&[]),
        0,
        &[
            "not compared: the text that is remembered has a fault",
            "workers must be",
        ],
    );
    place.write(&state("last-good.json"), "{");
    place.write(&state("last-good-configuration.json"), "{");
    let found = place.check(&[]);
    assert!(!found.1.contains("nothing would change"), "{}", found.1);
    told(
        found,
        0,
        &[
            "last-good.json is refused",
            "last-good-configuration.json is refused",
            "it is damaged",
            "compared with nothing: a note says why",
        ],
    );
    let (_, text) = place.check(&["-o", "json"]);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["compared_with"], Value::Null);
    assert_eq!(json["compared"], serde_json::json!([]));
}

#[test]
fn a_list_is_held_back_here_as_by_the_service() {
    let place = Place::of(6).in_force();
    let shrinks = |place: &Place, list: &str| {
        let list = place.write("list.toml", list);
        let (_, text) = place.check(&["-o", "json", &list]);
        let json: Value = serde_json::from_str(&text).unwrap();
        (json["shrinks"] == true, json["notes"].to_string())
    };
    assert!(shrinks(&place, &list(1..=2)).0);
    assert!(!shrinks(&place, &list(1..=3)).0);
    // The nodes have other names, and the subnets that they had.
    let renamed = list(2..=6).replace("\"node", "\"host");
    assert!(!shrinks(&place, &(list(1..=1) + &renamed)).0);
    let (held, notes) = shrinks(&place, &list(1..=1).replace("192.0.2.1", "192.0.2.9"));
    assert!(held && notes.contains("own entry differs"), "{notes}");
    place.write(
        "etc/tartan/tartan.toml",
        "node-name = \"node1\"\nshrink-grace = 0\n",
    );
    assert!(!shrinks(&place, &list(1..=2)).0);
}
