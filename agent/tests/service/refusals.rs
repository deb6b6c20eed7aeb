//! Every refusal of a start, as an operator reads it: what is in the way, by name, and what to do.

use crate::TARTAN;
use testbed::{Cluster, Node, PortOwner, eventually};

/// Starts the first node, which must end with `code` and say every part.
fn refused(node: &Node, words: &[&str], code: i32, parts: &[&str]) {
    let (found, text) = node.run_to_end(words);
    told(&text, parts);
    assert_eq!(found, Some(code), "{text}");
}

fn told(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

/// A program that runs another without `/dev/net/tun`, and with no capability to make that. `ip netns exec` gives the mounts a
/// namespace of their own.
pub(crate) const WITHOUT_TUN: [&str; 3] = [
    "sh",
    "-c",
    "mount -t tmpfs none /dev/net && exec setpriv --bounding-set=-mknod --inh-caps=-mknod \"$0\" \"$@\"",
];

#[test]
fn no_tun_device_in_the_machine() {
    let cluster = Cluster::empty(TARTAN, "vxlan");
    let (code, text) = cluster.node(1).run_to_end_by(&WITHOUT_TUN, &[]);
    told(
        &text,
        &[
            "/dev/net/tun",
            "load the module tun",
            "mknod /dev/net/tun c 10 200",
        ],
    );
    assert_eq!(code, Some(1), "{text}");
}

#[test]
fn a_capability_is_missing() {
    let cluster = Cluster::empty(TARTAN, "vxlan");
    let without = [
        "setpriv",
        "--bounding-set=-net_admin",
        "--inh-caps=-net_admin",
    ];
    let (code, text) = cluster.node(1).run_to_end_by(&without, &[]);
    told(
        &text,
        &["not allowed to create a TUN device", "CAP_NET_ADMIN"],
    );
    assert_eq!(code, Some(1), "{text}");
}

#[test]
fn a_port_that_a_vxlan_device_of_the_kernel_holds() {
    let cluster = Cluster::empty(TARTAN, "vxlan");
    let node = cluster.node(1);
    let device =
        "link add flannel.1 type vxlan id 1 local 192.0.2.1 dev eth0 dstport 8472 nolearning";
    node.ip_words(device);
    node.ip_words("link set flannel.1 up");
    refused(
        node,
        &[],
        1,
        &[
            "UDP port 8472 of 192.0.2.1",
            "flannel.1, a VXLAN device of the kernel, holds it",
            "Backend.Port",
        ],
    );
    // What the sentence asks for helps; a device that is down holds nothing.
    node.ip_words("link delete flannel.1");
    node.ip_words(&device.replace("flannel.1", "other.1"));
    let mut cluster = cluster;
    cluster.start_node(1);
}

#[test]
fn a_port_that_a_process_holds() {
    let cluster = Cluster::empty(TARTAN, "vxlan");
    let node = cluster.node(1);
    for (address, port) in [("192.0.2.1", 8472), ("0.0.0.0", 8285)] {
        let owner = PortOwner::bind(node.space(), &format!("{address}:{port}"));
        let sentence = format!("UDP port {port} of 192.0.2.1");
        let process = format!("process {} (sleep)", owner.pid());
        refused(node, &[], 1, &[&sentence, &process, "Backend.Port"]);
    }
}

/// Interfaces of others: the uplink, a bridge, another program's TUN. None is advised to be removed.
#[test]
fn a_device_name_that_another_interface_has() {
    let cluster = Cluster::empty(TARTAN, "vxlan");
    let node = cluster.node(1);
    node.ip(&["link", "add", "br0", "type", "bridge"]);
    node.ip(&["tuntap", "add", "vpn0", "mode", "tun"]);
    for (name, is) in [
        ("eth0", "a veth device"),
        ("br0", "a bridge device"),
        ("vpn0", "a TUN of another program"),
    ] {
        for device in ["auto", "plain"] {
            let (code, text) = node.run_to_end(&["--device-name", name, "--device", device]);
            assert_eq!(code, Some(1), "{text}");
            for part in [
                &format!("{name} exists already and is {is}"),
                "set `device-name` to a name that no interface has",
            ] {
                assert!(text.contains(part), "{part} is not in:\n{text}");
            }
            for word in ["delete", "remove", " del "] {
                assert!(!text.contains(word), "{word} is in:\n{text}");
            }
            assert!(node.ip(&["link"]).contains(name), "{name} is gone");
        }
    }
}

#[test]
fn a_second_agent_on_the_node() {
    let cluster = Cluster::up(TARTAN, "vxlan");
    let node = cluster.node(1);
    refused(node, &[], 1, &["another agent (process ", "--root"]);
    // With a run directory of its own it meets the first one's device, then its ports.
    let elsewhere = tempfile::tempdir().unwrap();
    let root = elsewhere.path().to_str().unwrap();
    refused(
        node,
        &["--root", root],
        1,
        &[
            "tartan0 is the device of another agent",
            "stop that one, or set `device-name` to another name",
        ],
    );
    refused(
        node,
        &["--root", root, "--device-name", "tartan1"],
        1,
        &[
            "UDP port 8285 of 192.0.2.1",
            "another agent (process ",
            "stop that one",
        ],
    );
    node.ping("10.244.2.0", 3);
    assert_eq!(node.tartan(&["status"]).0, 0, "the first one goes on");
}

#[test]
fn keys_and_flags_that_nobody_knows() {
    let cluster = Cluster::empty(TARTAN, "vxlan");
    let node = cluster.node(1);
    let write = |name: &str, text: &str| {
        let path = node.root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let toml = write(
        "broken.toml",
        "strict-pods = true\ndevice-nmae = \"tartan0\"\n",
    );
    refused(
        node,
        &["--config", &toml],
        2,
        &[
            "broken.toml: line 2",
            "\"device-nmae\"",
            "did you mean \"device-name\"?",
        ],
    );
    let toml = write("value.toml", "workers = \"many\"\n");
    refused(
        node,
        &["--config", &toml],
        2,
        &["value.toml: line 1", "workers must be"],
    );
    refused(
        node,
        &["--strict-pod"],
        2,
        &["--strict-pod", "a similar argument exists: '--strict-pods'"],
    );
    let list = std::fs::read_to_string(node.nodes()).unwrap();
    let broken = write("nodes-key.toml", &list.replace("public-ip", "public-pi"));
    refused(
        node,
        &["--node-file", &broken],
        1,
        &[
            "nodes-key.toml line 4",
            "\"public-pi\"",
            "did you mean \"public-ip\"?",
        ],
    );
    let net_conf = write(
        "type.json",
        r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlna"}}"#,
    );
    refused(
        node,
        &["--net-conf", &net_conf],
        2,
        &["type.json", "vxlna", "udp and vxlan"],
    );
    let net_conf = write(
        "value.json",
        r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","VNI":"1"}}"#,
    );
    refused(node, &["--net-conf", &net_conf], 2, &["value.json", "VNI"]);
    // flannel ignores keys that it does not know, and its files may hold some: they are named in the log.
    let net_conf = write(
        "unknown.json",
        r#"{"Network":"10.244.0.0/16","SubentLen":24,"Backend":{"Type":"vxlan","Vnid":1}}"#,
    );
    refused(
        node,
        &["--net-conf", &net_conf, "--device-name", "eth0"],
        1,
        &[
            "unknown.json: unknown key, ignored as flannel does: SubentLen (did you mean \"SubnetLen\"?)",
            "Backend.Vnid (did you mean \"VNI\"?)",
        ],
    );
}

#[test]
fn a_list_of_nodes_that_contradicts_itself() {
    let cluster = Cluster::empty(TARTAN, "vxlan");
    let node = cluster.node(1);
    let list = std::fs::read_to_string(node.nodes()).unwrap();
    let write = |text: &str| std::fs::write(node.nodes(), text).unwrap();
    write(&list.replace("10.244.2.0/24", "10.244.0.0/20"));
    refused(
        node,
        &[],
        1,
        &[
            "nodes.toml line 7",
            "10.244.0.0/20 of node2 overlaps 10.244.1.0/24 of node1",
            "give each node its own",
        ],
    );
    write(&list.replace("\"node1\"", "\"node7\""));
    refused(
        node,
        &[],
        1,
        &["nodes.toml", "no node is named \"node1\"", "node-name"],
    );
}

#[test]
fn a_route_past_us_is_told_until_it_is_gone() {
    let cluster = Cluster::up(TARTAN, "vxlan");
    let node = cluster.node(1);
    for (route, says) in [
        ("10.244.2.0/24 via 192.0.2.2", "via 192.0.2.2 dev eth0"),
        ("10.244.2.128/25 dev eth0", "dev eth0"),
        ("blackhole 10.244.9.0/24", "refused or discarded"),
    ] {
        let prefix = route.split(' ').find(|word| word.contains('/')).unwrap();
        node.ip_words(&format!("route add {route}"));
        eventually("the route is told", || node.tartan(&["status"]).0 == 1);
        let (_, status) = node.tartan(&["status"]);
        let problem = status.lines().next().unwrap();
        let remedy = format!("(`ip route show {prefix} proto ");
        told(
            problem,
            &["PROBLEM: ", prefix, "bypasses Tartan", says, &remedy],
        );
        let (code, routes) = node.tartan(&["routes"]);
        assert_eq!(code, 1, "{routes}");
        told(&routes, &["BYPASS", prefix]);
        node.ip_words(&format!("route delete {prefix}"));
        eventually("all is well", || node.tartan(&["status"]).0 == 0);
        assert_eq!(node.tartan(&["routes"]).0, 0);
    }
    node.ping("10.244.2.0", 3);
}
