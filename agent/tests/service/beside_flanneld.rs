//! Tartan in flannel's place, and a flanneld that runs all the same.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::TARTAN;
use crate::refusals::WITHOUT_TUN;
use testbed::{Cluster, Node, eventually};

/// A program by the name of flannel's daemon, which ends with the test.
struct Fake(Child);

impl Fake {
    fn start(node: &Node, program: PathBuf) -> Fake {
        let mut command = node.space().program(program.to_str().unwrap());
        let child = command.arg("600").stdin(Stdio::null()).spawn().unwrap();
        let fake = Fake(child);
        // `ip netns exec` becomes the program.
        let comm = format!("/proc/{}/comm", fake.0.id());
        eventually("the program runs", || {
            fs::read_to_string(&comm).unwrap().trim() == "flanneld"
        });
        fake
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A copy of `sleep` by the name.
fn flanneld(cluster: &Cluster) -> PathBuf {
    let path = cluster.node(1).root.join("flanneld");
    fs::copy("/bin/sleep", &path).unwrap();
    path
}

/// The configuration that takes flannel's place.
fn take_its_place(node: &Node) {
    let path = node.root.join("etc/tartan/tartan.toml");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let text = "replace-flannel = true\ndevice-name = \"flannel.1\"\n";
    fs::write(path, text).unwrap();
}

/// `tartan check` finds nothing wrong with the name, which flannel's device still has.
fn checks_out(node: &Node) {
    let path = node.root.join("etc/tartan/tartan.toml");
    let places = format!(
        "device-name = \"flannel.1\"\nnode-name = \"node1\"\nnet-conf = {:?}\nnode-file = {:?}\n",
        node.net_conf(),
        node.nodes()
    );
    for (key, code) in [("replace-flannel = true\n", 0), ("", 1)] {
        fs::write(&path, format!("{key}{places}")).unwrap();
        let (found, text) = node.tartan(&["check"]);
        assert_eq!(found, code, "{text}");
        assert_eq!(text.contains("device-name is taken"), code == 1, "{text}");
    }
    take_its_place(node);
}

fn leave_device(node: &Node) {
    node.ip_words(
        "link add flannel.1 address 02:00:5e:10:00:01 type vxlan id 1 dev eth0 local 192.0.2.1 dstport 8472 nolearning",
    );
    node.ip_words("address add 10.244.1.0/32 dev flannel.1");
    node.ip_words("link set flannel.1 up");
}

fn kind(node: &Node, device: &str) -> String {
    let link = &node.space().list(&format!("-d link show dev {device}"))[0];
    link["linkinfo"]["info_kind"].as_str().unwrap().to_owned()
}

#[test]
fn a_flanneld_that_runs_ends_a_first_start_before_anything_is_changed() {
    let mut cluster = Cluster::empty(TARTAN, "vxlan");
    let program = flanneld(&cluster);
    let node = cluster.node(1);
    take_its_place(node);
    leave_device(node);
    checks_out(node);
    let fake = Fake::start(node, program.clone());
    let (code, text) = node.run_to_end(&[]);
    assert_eq!(code, Some(1), "{text}");
    for part in [
        &format!("process {} (`{} 600`)", fake.0.id(), program.display()),
        "systemctl disable --now flanneld",
        "DaemonSet",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    assert_eq!(kind(node, "flannel.1"), "vxlan");
    // The unit's capabilities are enough to see it.
    let by = [
        "setpriv",
        "--bounding-set=-all,+net_admin",
        "--inh-caps=-all",
    ];
    let (code, text) = node.run_to_end_by(&by, &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("systemctl disable --now flanneld"), "{text}");
    // The same in another namespace is no concern of this node.
    drop(fake);
    let _elsewhere = Fake::start(cluster.node(2), program);
    cluster.start_node(1);
    assert_eq!(kind(cluster.node(1), "flannel.1"), "tun");
}

#[test]
fn a_flanneld_that_is_started_beside_the_service_is_a_problem_while_it_runs() {
    let mut cluster = Cluster::empty(TARTAN, "vxlan");
    let program = flanneld(&cluster);
    take_its_place(cluster.node(1));
    cluster.start();
    let node = cluster.node(1);
    let found = || {
        let status = node.json("status");
        let problems = status["problems"].as_array().cloned().unwrap_or_default();
        let mut found = problems
            .into_iter()
            .filter(|p| p["code"] == "flanneld-running");
        found.next()
    };
    assert_eq!(found(), None);
    let fake = Fake::start(node, program);
    eventually("the problem shows", || found().is_some());
    assert_eq!(found().unwrap()["subject"], fake.0.id().to_string());
    // A service that takes over goes on, and reports it.
    node.kill_service(rustix::process::Signal::KILL);
    eventually("the next service reports it", || {
        node.json("status")["restarts"] == 1 && found().is_some()
    });
    node.ping("10.244.2.0", 1);
    drop(fake);
    eventually("the problem goes", || found().is_none());
}

/// The agent's own program may be run by flannel's name.
#[test]
fn tartan_by_the_name_of_flanneld_is_not_taken_for_it() {
    let mut cluster = Cluster::empty(TARTAN, "vxlan");
    take_its_place(cluster.node(1));
    let path = cluster.node(1).root.join("flanneld");
    std::os::unix::fs::symlink(TARTAN, &path).unwrap();
    let mut command = cluster.node(1).space().program(path.to_str().unwrap());
    // Reads its input for ever: the command line of flanneld's name waits for a registry that is not there.
    let root = cluster.node(1).root.join("other");
    command.env("TARTAN_ROOT", &root);
    let endpoints = "--etcd-endpoints=http://127.0.0.1:1";
    let other = command
        .arg(endpoints)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let mut other = other.spawn().unwrap();
    cluster.start_node(1);
    let status = cluster.node(1).json("status");
    assert_eq!(other.try_wait().unwrap(), None, "it still runs");
    let _ = other.kill();
    let _ = other.wait();
    assert_eq!(status["problems"], serde_json::json!([]), "{status}");
}

/// A device that was set aside by a start which then ended is not forgotten, and neither is its MAC.
#[test]
fn what_a_start_set_aside_is_deleted_by_the_next_and_by_a_clean_up() {
    let mut cluster = Cluster::empty(TARTAN, "vxlan");
    let node = cluster.node(1);
    take_its_place(node);
    leave_device(node);
    node.ip_words("link set flannel.1 down");
    node.ip_words("link set flannel.1 name flannel-old");
    cluster.start_node(1);
    let node = cluster.node(1);
    assert_eq!(kind(node, "flannel.1"), "tun");
    assert!(node.space().list("link show type vxlan").is_empty());
    cluster.stop(1);
    let node = cluster.node(1);
    leave_device_as_old(node);
    let (code, text) = node.tartan(&["cleanup"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("removed the device flannel-old"), "{text}");
    assert!(node.space().list("link show type vxlan").is_empty());
}

fn leave_device_as_old(node: &Node) {
    node.ip_words("link add flannel-old type vxlan id 1 dev eth0 local 192.0.2.1 dstport 8472");
}

/// Without `replace-flannel` nothing of flannel's is touched, and the refusal names the key.
#[test]
fn without_the_key_the_device_stays_and_the_remedy_names_it() {
    for (device, part) in [
        (
            "tartan0",
            "flannel.1, a VXLAN device of the kernel, holds it",
        ),
        (
            "flannel.1",
            "flannel.1 exists already and is a vxlan device",
        ),
    ] {
        let cluster = Cluster::empty(TARTAN, "vxlan");
        let node = cluster.node(1);
        leave_device(node);
        let (code, text) = node.run_to_end(&["--device-name", device]);
        assert_eq!(code, Some(1), "{text}");
        let remedy = "if flannel left flannel.1, set `replace-flannel = true` and `device-name = \"flannel.1\"`";
        for part in [part, remedy] {
            assert!(text.contains(part), "{part:?} is not in:\n{text}");
        }
        assert_eq!(kind(node, "flannel.1"), "vxlan");
    }
}

/// What would keep Tartan from forwarding is found while flannel's device still forwards.
#[test]
fn flannels_device_stays_where_tartan_could_not_forward() {
    let cases: [(&str, &[&str]); 3] = [
        (
            "link add flannel.2 type vxlan id 2 dev eth0 local 192.0.2.1 dstport 8472",
            &["flannel.2, a VXLAN device of the kernel, holds it"],
        ),
        (
            "route add 10.244.0.0/16 via 192.0.2.2 dev eth0",
            &["10.244.0.0/16 is already routed via 192.0.2.2 dev eth0"],
        ),
        ("", &["/dev/net/tun", "flannel's device stays"]),
    ];
    for (making, parts) in cases {
        let cluster = Cluster::empty(TARTAN, "vxlan");
        let node = cluster.node(1);
        take_its_place(node);
        leave_device(node);
        let by: &[&str] = match making {
            "" => &WITHOUT_TUN,
            making => {
                node.ip_words(making);
                if making.contains("flannel.2") {
                    node.ip_words("link set flannel.2 up");
                }
                &[]
            }
        };
        let (code, text) = node.run_to_end_by(by, &[]);
        assert_eq!(code, Some(1), "{text}");
        for part in parts {
            assert!(text.contains(part), "{part:?} is not in:\n{text}");
        }
        assert_eq!(kind(node, "flannel.1"), "vxlan");
        let up = &node.space().list("link show dev flannel.1")[0]["flags"];
        assert!(up.as_array().unwrap().contains(&"UP".into()), "{up}");
    }
}

/// `subnet.env` and forwarding stay for flannel, which reads the one and needs the other.
#[test]
fn a_clean_up_leaves_subnet_env_to_flannel() {
    let mut cluster = Cluster::empty(TARTAN, "vxlan");
    take_its_place(cluster.node(1));
    cluster.start_node(1);
    cluster.stop(1);
    let node = cluster.node(1);
    let file = node.root.join("run/flannel/subnet.env");
    let written = fs::read_to_string(&file).unwrap();
    let (code, text) = node.tartan(&["cleanup"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("kept"), "{text}");
    assert_eq!(fs::read_to_string(&file).unwrap(), written);
    assert_eq!(node.space().setting("net/ipv4/ip_forward"), "1");
    let ours = Command::new("ip")
        .args(["-n", node.space().name(), "route", "show", "proto", "116"])
        .output();
    assert_eq!(ours.unwrap().stdout, b"");
}
