//! Starts without the files that tell a node what to do, and what may stand in for them.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::TARTAN;
use testbed::{Cluster, Node, answered, eventually};

#[test]
fn a_service_killed_while_the_list_is_gone_goes_on_by_the_last_good_state() {
    let cluster = Cluster::up(TARTAN, "vxlan");
    let node = cluster.node(1);
    let list = fs::read_to_string(node.nodes()).unwrap();
    let kernel = || [node.ip(&["-j", "route"]), node.ip(&["-j", "address"])];
    let before = kernel();
    fs::remove_file(node.nodes()).unwrap();
    eventually("the list is missed", || node.tartan(&["status"]).0 == 1);
    let pinging = node.start_ping("10.244.2.0", 200, "0.01");
    std::thread::sleep(Duration::from_millis(500));
    node.kill_service(Signal::KILL);
    eventually("the next service answers", || restarts(node) == 1);
    let answered = answered(pinging);
    assert!(answered >= 198, "{answered} of 200 answered");
    assert_eq!(kernel(), before);
    let (code, text) = node.tartan(&["status"]);
    assert_eq!(code, 1, "{text}");
    let leases = text.lines().find(|line| line.starts_with("leases "));
    assert!(
        leases.is_some_and(|line| line.contains(" from cache, ")),
        "{text}"
    );
    let problem = text.lines().next().unwrap();
    assert!(
        problem.contains("leases from cache stay in force"),
        "{text}"
    );
    assert!(problem.contains("nodes.toml"), "{text}");

    // A list that cannot be used is no answer, the first complete one is.
    fs::write(node.nodes(), "[[node]]\nname = \"node2\"\n").unwrap();
    eventually("the broken list is refused", || {
        node.tartan(&["status"]).1.contains("no public-ip")
    });
    assert_eq!(node.json("status")["registry_cached"], true);
    node.ping("10.244.2.0", 3);
    fs::write(node.nodes(), list.clone() + THIRD).unwrap();
    eventually("the first complete list is adopted", || {
        node.tartan(&["status"]).0 == 0
    });
    let status = node.json("status");
    assert_eq!(status["registry_cached"], false, "{status:#}");
    assert_eq!((status["peers"].as_u64(), restarts(node)), (Some(2), 1));

    // And it is the last good one from then on.
    fs::remove_file(node.nodes()).unwrap();
    node.kill_service(Signal::KILL);
    eventually("the next service answers", || restarts(node) == 2);
    assert_eq!(node.json("status")["peers"], 2);
}

#[test]
fn an_agent_started_without_its_files_forwards_within_a_second() {
    let mut cluster = Cluster::up(TARTAN, "udp");
    let (nodes, net_conf) = (cluster.node(1).nodes(), cluster.node(1).net_conf());
    /// A file, and what is in it instead; `None`: it is gone.
    type Damage<'a> = (&'a Path, Option<&'a str>);
    let damages: [(&[Damage<'_>], &str); 5] = [
        (&[(&nodes, None)], "leases from cache stay"),
        (&[(&nodes, Some("[[node]"))], "nodes.toml line 1: not TOML"),
        (
            &[(&net_conf, None)],
            "the net-conf is refused and the one from cache",
        ),
        (
            &[(&net_conf, Some("{"))],
            "net-conf.json: the network configuration is not JSON",
        ),
        (
            &[(&nodes, None), (&net_conf, None)],
            "the net-conf is refused",
        ),
    ];
    for (files, told) in damages {
        cluster.stop(1);
        let whole: Vec<_> = files
            .iter()
            .map(|(path, _)| fs::read(path).unwrap())
            .collect();
        for (path, text) in files {
            match text {
                Some(text) => fs::write(path, text).unwrap(),
                None => fs::remove_file(path).unwrap(),
            }
        }
        // The machine may be busy with other tests: one of five starts must show what it can do.
        let mut taken = start_until_it_forwards(&mut cluster);
        for _ in 0..4 {
            if taken > Duration::from_secs(1) {
                cluster.stop(1);
                taken = start_until_it_forwards(&mut cluster);
            }
        }
        assert!(taken <= Duration::from_secs(1), "{taken:?}");
        let node = cluster.node(1);
        eventually("it is told", || node.tartan(&["status"]).1.contains(told));
        assert_eq!(node.tartan(&["status"]).0, 1);
        for ((path, _), whole) in files.iter().zip(whole) {
            fs::write(path, whole).unwrap();
        }
        eventually("all is well again", || node.tartan(&["status"]).0 == 0);
        assert_eq!(restarts(node), 0, "the same files need no new start");
        assert_eq!(node.json("status")["registry_cached"], false);
    }
}

#[test]
fn a_list_that_somebody_goes_on_writing_is_not_waited_for() {
    let mut cluster = Cluster::up(TARTAN, "udp");
    cluster.stop(1);
    let path = cluster.node(1).nodes();
    let list = fs::read(&path).unwrap();
    let (enough, told) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        let mut file = File::create(path).unwrap();
        while told.recv_timeout(Duration::from_millis(1)).is_err() {
            file.write_all(b"#\n").unwrap();
        }
        file.write_all(&list).unwrap();
    });
    start_until_it_forwards(&mut cluster);
    let (code, text) = cluster.node(1).tartan(&["status"]);
    enough.send(()).unwrap();
    writer.join().unwrap();
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("no complete list has arrived yet"), "{text}");
    let node = cluster.node(1);
    eventually("the list is adopted", || node.tartan(&["status"]).0 == 0);
    assert_eq!(restarts(node), 0);
}

#[test]
fn a_net_conf_that_comes_back_otherwise_is_taken_when_the_list_fits() {
    let mut cluster = Cluster::up(TARTAN, "vxlan");
    cluster.stop(1);
    fs::remove_file(cluster.node(1).net_conf()).unwrap();
    cluster.launch(1);
    let node = cluster.node(1);
    eventually("it is told", || node.tartan(&["status"]).0 == 1);
    fs::write(node.net_conf(), "{\"Network\":\"10.99.0.0/16\"}").unwrap();
    eventually("it is not taken", || {
        let (_, text) = node.tartan(&["status"]);
        text.contains("it differs from the one in force") && text.contains("outside the cluster")
    });
    assert_eq!(restarts(node), 0);
    node.ping("10.244.2.0", 3);
    fs::write(node.net_conf(), "{\"Network\":\"10.244.0.0/16\"}").unwrap();
    eventually("it is taken", || node.tartan(&["status"]).0 == 0);
    let status = node.json("status");
    assert_eq!(
        (restarts(node), &status["format"]),
        (1, &"udp".into()),
        "{status:#}"
    );
}

#[test]
fn a_state_that_cannot_be_trusted_is_as_good_as_none() {
    let mut cluster = Cluster::up(TARTAN, "vxlan");
    for number in [1, 2] {
        cluster.stop(number);
    }
    let node = cluster.node(1);
    let list = fs::read(node.nodes()).unwrap();
    let net_conf = fs::read(node.net_conf()).unwrap();
    let state = saved(node);
    let good = fs::read_to_string(&state).unwrap();
    fs::remove_file(node.nodes()).unwrap();
    let refused = |part: &str| {
        let (code, text) = node.run_to_end(&[]);
        assert_eq!(code, Some(1), "{text}");
        for part in [
            part,
            "last-good.json is refused",
            "cannot read",
            "nodes.toml",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        let device = node.ip(&["link", "show", "tartan0"]);
        assert!(device.contains("NO-CARRIER"), "{device}");
    };
    fs::write(&state, &good[..good.len() / 2]).unwrap();
    refused("it is damaged: EOF");
    fs::write(&state, good.replace("192.0.2.2", "192.0.2.9")).unwrap();
    refused("it was edited or damaged");
    fs::copy(saved(cluster.node(2)), &state).unwrap();
    refused("it is of the node \"node2\", this node is \"node1\"");
    File::create(&state)
        .unwrap()
        .set_len((64 << 20) + 1)
        .unwrap();
    refused("it is longer than any Tartan writes");
    fs::write(&state, &good).unwrap();
    fs::set_permissions(&state, fs::Permissions::from_mode(0o666)).unwrap();
    refused("others than root can write it");
    fs::set_permissions(&state, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(node.net_conf(), "{\"Network\":\"10.99.0.0/16\"}").unwrap();
    refused("it is of a cluster with the network 10.244.0.0/16, ours has 10.99.0.0/16");
    fs::write(node.net_conf(), &net_conf).unwrap();

    // With a list, a state that is refused is replaced.
    fs::write(&state, "{").unwrap();
    fs::write(node.nodes(), &list).unwrap();
    cluster.start();
    let node = cluster.node(1);
    node.ping("10.244.2.0", 3);
    let same = |now: String| {
        let nodes =
            |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap()["nodes"].clone();
        nodes(&now) == nodes(&good)
    };
    assert!(same(fs::read_to_string(&state).unwrap()));
    let log = fs::read_to_string(node.root.join("log")).unwrap();
    assert!(log.contains("last-good.json is refused"), "{log}");
}

#[test]
fn without_a_state_a_missing_file_is_named_as_ever() {
    let cluster = Cluster::empty(TARTAN, "vxlan");
    let node = cluster.node(1);
    for path in [node.nodes(), node.net_conf()] {
        fs::remove_file(&path).unwrap();
        let (code, text) = node.run_to_end(&[]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains(path.to_str().unwrap()), "{text}");
        assert!(!text.contains("last good"), "{text}");
    }
}

#[test]
fn a_disk_that_takes_nothing_is_told_and_forwarding_goes_on() {
    let mut cluster = Cluster::empty(TARTAN, "vxlan");
    let disk = Disk::mount(cluster.node(1).state_dir());
    disk.fill();
    for number in [1, 2] {
        cluster.launch(number);
    }
    let node = cluster.node(1);
    let tells = |part: &str| {
        let (code, text) = node.tartan(&["status"]);
        code == 1 && text.contains(part)
    };
    eventually("the full disk is told", || {
        tells("last-good.json") && tells("disk not full")
    });
    eventually("the other node answers", || {
        cluster.node(2).tartan(&["status"]).0 == 0
    });
    node.ping("10.244.2.0", 20);
    disk.free();
    eventually("it is written after all", || {
        node.tartan(&["status"]).0 == 0 && saved(node).exists()
    });

    disk.remount("ro");
    let list = fs::read_to_string(node.nodes()).unwrap();
    fs::write(node.nodes(), list + THIRD).unwrap();
    eventually("the read-only disk is told", || tells("last-good.json"));
    assert_eq!(
        node.json("status")["peers"],
        2,
        "the list is adopted all the same"
    );
    node.ping("10.244.2.0", 20);
    disk.remount("rw");
    eventually("it is written after all", || {
        node.tartan(&["status"]).0 == 0
            && fs::read_to_string(saved(node)).unwrap().contains("node3")
    });
}

/// A file system of 64 KiB, mounted on a node's state directory.
struct Disk(PathBuf);

impl Disk {
    fn mount(directory: PathBuf) -> Disk {
        fs::create_dir_all(&directory).unwrap();
        let words = ["-t", "tmpfs", "-o", "size=64k,mode=700", "lg-disk"];
        let mounted = Command::new("mount").args(words).arg(&directory).status();
        assert!(mounted.unwrap().success());
        Disk(directory)
    }

    fn fill(&self) {
        let page = [0; 4096];
        let mut filler = File::create(self.0.join("filler")).unwrap();
        while filler.write_all(&page).is_ok() {}
    }

    fn free(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }

    fn remount(&self, how: &str) {
        let words = ["-o", &format!("remount,{how}")];
        let mounted = Command::new("mount").args(words).arg(&self.0).status();
        assert!(mounted.unwrap().success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // No unwrap in a drop that may run while a test fails. The agent may still hold it: lazily.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn start_until_it_forwards(cluster: &mut Cluster) -> Duration {
    let started = Instant::now();
    cluster.launch(1);
    let node = cluster.node(1);
    while !node.reaches("10.244.2.0") {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "never forwards"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    started.elapsed()
}

fn saved(node: &Node) -> PathBuf {
    node.state_dir().join("last-good.json")
}

fn restarts(node: &Node) -> u64 {
    node.json("status")["restarts"].as_u64().unwrap_or(u64::MAX)
}

const THIRD: &str =
    "\n[[node]]\nname = \"node3\"\nsubnets = [\"10.244.3.0/24\"]\npublic-ip = \"192.0.2.3\"\n";
