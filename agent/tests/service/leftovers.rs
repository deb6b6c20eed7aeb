//! What killed plugins, runtimes and services left: it is taken away, and what cannot go keeps nothing else.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cni_shim::RunDir;
use rustix::process::Signal;

use super::attachment;
use crate::TARTAN;
use testbed::{Cluster, Mount, eventually};

#[test]
fn a_record_that_cannot_go_keeps_no_other() {
    let mut cluster = Cluster::empty(TARTAN, "udp");
    let node = cluster.node(1);
    let configuration = node.root.join("etc/tartan/tartan.toml");
    fs::create_dir_all(configuration.parent().unwrap()).unwrap();
    fs::write(configuration, "reclaim-after = 5\n").unwrap();
    let run = RunDir::under(&node.root);
    run.make().unwrap();
    let records: Vec<PathBuf> = (0..12)
        .map(|number| {
            let mut record = attachment(
                &format!("c{number}"),
                &format!("10.244.1.{}/32", number + 2),
            );
            record.host_ifname = format!("tt{number:010}");
            record.write(&run).unwrap();
            run.attachments().join(format!("c{number}:eth0.json"))
        })
        .collect();
    // A file that something is mounted on is busy.
    let mut mounts: Vec<Mount> = records[..6]
        .iter()
        .map(|record| Mount::over(record))
        .collect();
    cluster.launch(1);
    let node = cluster.node(1);
    eventually("those that can go are gone", || {
        node.json("status")["reclaimed"].as_u64() > Some(0)
    });
    // In one look, whatever the order.
    assert_eq!(node.json("status")["reclaimed"], 6);
    let left: Vec<bool> = records.iter().map(|record| record.exists()).collect();
    assert_eq!(left, [[true; 6], [false; 6]].concat());
    let (code, text) = node.tartan(&["status"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("no runtime deletes"), "{text}");
    assert!(text.contains(":eth0.json"), "{text}");
    mounts.clear();
}

#[test]
fn a_service_sweeps_what_one_before_it_left_unfinished() {
    let cluster = Cluster::up(TARTAN, "udp");
    let node = cluster.node(1);
    let run = RunDir::under(&node.root);
    let unfinished = [
        (node.state_dir(), "last-good.json"),
        (node.state_dir(), "host.json"),
        (run.path().to_owned(), "node.json"),
    ];
    let unfinished = unfinished.map(|(directory, name)| directory.join(format!(".4194000.{name}")));
    let foreign = node.state_dir().join(".note");
    let plant = |path: &Path| fs::write(path, "{").unwrap();
    unfinished
        .iter()
        .chain([&foreign])
        .for_each(|path| plant(path));
    node.kill_service(Signal::KILL);
    eventually("the next service answers", || {
        node.json("status")["restarts"] == 1
    });
    for path in &unfinished {
        assert!(!path.exists(), "{}", path.display());
    }
    assert!(foreign.exists());
}

#[test]
fn the_locks_of_killed_plugins_are_swept_and_no_other() {
    let cluster = Cluster::up(TARTAN, "udp");
    let run = RunDir::under(&cluster.node(1).root);
    let lock = |container: &str| run.attachments().join(format!(".lock-{container}:eth0"));
    // A plugin is at work on the first, one was killed at the second.
    let at_work = fs::File::create(lock("c1")).unwrap();
    at_work.lock().unwrap();
    fs::write(lock("c2"), "").unwrap();
    eventually("that of the killed one is gone", || !lock("c2").exists());
    assert!(lock("c1").exists());
    drop(at_work);
    eventually("the other's as well, when it is killed", || {
        !lock("c1").exists()
    });
}

#[test]
fn a_cleanup_below_another_root_leaves_a_running_agent_alone() {
    let mut cluster = Cluster::up(TARTAN, "udp");
    let elsewhere = cluster.node(1).root.join("elsewhere");
    let cleanup = |cluster: &Cluster| {
        let mut command = Command::new(TARTAN);
        command.arg("--root").arg(&elsewhere).arg("cleanup");
        let output = cluster.node(1).inside(|| command.output().unwrap());
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    let (code, text) = cleanup(&cluster);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("tartan0 is the device of another agent"),
        "{text}"
    );
    let node = cluster.node(1);
    node.ping("10.244.2.0", 1);
    assert_eq!(node.json("status")["repairs"], 0);
    // Without the agent no process holds the device.
    cluster.kill_keeper(1);
    eventually("what is left is removed", || cleanup(&cluster).0 == Some(0));
}
