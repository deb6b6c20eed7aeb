//! ADD and DEL when all is well.

use std::collections::HashSet;

use cni_shim::{Attachment, PodName, State};
use serde_json::json;

use crate::rig::{Rig, ip, ping, variables};

const SUBNET: &[&str] = &["10.244.7.0/24"];
const BOTH: &[&str] = &["10.244.7.0/24", "fd00:7::/64"];

#[test]
fn a_pod_is_attached_reached_and_detached_in_every_version() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    // Loopback comes up with the first ADD and stays.
    rig.add("warm", "eth0", &pod).result();
    rig.del("warm", "eth0", &pod).silent();
    let before = rig.census();
    for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let conf = rig.conf(version).to_string();
        let added = rig.call(&variables("ADD", "c1", "eth0", &pod), &conf);
        assert_eq!(added.stderr, "");
        let result = added.result();
        assert_eq!(result["cniVersion"], version);
        assert_eq!(result["interfaces"][1]["sandbox"], pod);
        assert_eq!(result["ips"][0]["gateway"], "169.254.1.1");
        assert_eq!(result["ips"][0]["interface"], 1);
        let old = version.starts_with("0.");
        assert_eq!(result["ips"][0].get("version").is_some(), old);
        assert!(ping(&rig.node, &added.address()), "host to pod");
        assert!(ping(&pod, "10.244.7.0"), "pod to host");
        let removed = rig.call(&variables("DEL", "c1", "eth0", &pod), &conf);
        removed.silent();
        assert_eq!(removed.stderr, "");
        assert_eq!(rig.census(), before, "{version}");
    }
    assert_eq!(
        rig.calls()[..2],
        [
            r#"{"call":"adopt","container":"warm","ifname":"eth0"}"#,
            r#"{"call":"release","container":"warm","ifname":"eth0"}"#
        ]
    );
}

#[test]
fn the_record_the_result_and_the_kernel_agree() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    let name = pod.trim_start_matches("/run/netns/");
    let mut variables = variables("ADD", "c1", "eth0", &pod).to_vec();
    variables.push(("CNI_ARGS", "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0"));
    let mut conf = rig.conf("1.1.0");
    conf["mtu"] = json!(1400);
    conf["dns"] = json!({"nameservers": ["10.0.0.10"]});
    let added = rig.call(&variables, conf.to_string());
    let result = added.result();
    assert_eq!(added.address(), "10.244.7.2");
    assert_eq!(result["dns"], conf["dns"]);
    assert_eq!(result["interfaces"][1]["mtu"], 1400);

    let record = Attachment::read(&Attachment::path(&rig.run(), "c1", "eth0").unwrap()).unwrap();
    assert_eq!(record.state, State::Attached);
    assert_eq!(record.network, "pods");
    assert_eq!(record.netns, pod);
    assert_eq!(record.addresses, ["10.244.7.2/32".parse().unwrap()]);
    assert_eq!(record.mac, result["interfaces"][1]["mac"]);
    assert_eq!(record.host_ifname, result["interfaces"][0]["name"]);
    let named = PodName {
        namespace: "shop".to_owned(),
        name: "web-0".to_owned(),
    };
    assert_eq!(record.pod, Some(named));

    let link = ip(&["-n", name, "-d", "link", "show", "eth0"]);
    for part in [record.mac.as_str(), "mtu 1400", "gso_max_segs 46"] {
        assert!(link.contains(part), "{part}: {link}");
    }
    let host = ip(&["-n", &rig.node, "link", "show", &record.host_ifname]);
    for part in ["ee:ee:ee:ee:ee:ee", "mtu 1400"] {
        assert!(host.contains(part), "{part}: {host}");
    }
    let routes = ip(&["-n", name, "route"]);
    assert!(
        routes.contains("default via 169.254.1.1 dev eth0"),
        "{routes}"
    );
    assert!(routes.contains("169.254.1.1 dev eth0"), "{routes}");
    // One ADD, and no host had to ask for a hardware address.
    let neighbours = ip(&["-n", name, "neigh", "show", "nud", "permanent"]);
    assert!(
        neighbours.contains("169.254.1.1 dev eth0 lladdr ee:ee"),
        "{neighbours}"
    );
    for (key, value) in [
        ("forwarding", "1"),
        ("rp_filter", "1"),
        ("accept_redirects", "0"),
        ("send_redirects", "0"),
        ("accept_source_route", "0"),
        ("arp_ignore", "1"),
    ] {
        assert_eq!(
            sysctl(&rig.node, "ipv4", &record.host_ifname, key),
            value,
            "{key}"
        );
    }
    // A node without IPv6 subnets speaks none to its pods.
    assert_eq!(
        sysctl(&rig.node, "ipv6", &record.host_ifname, "disable_ipv6"),
        "1"
    );
    assert_eq!(sysctl(name, "ipv6", "eth0", "disable_ipv6"), "1");
    assert_eq!(sysctl(name, "ipv4", "eth0", "arp_notify"), "1");
}

#[test]
fn both_families_at_once() {
    let mut rig = Rig::new(BOTH);
    let pod = rig.pod();
    let name = pod.trim_start_matches("/run/netns/").to_owned();
    let added = rig.add("c1", "eth0", &pod);
    let result = added.result();
    assert_eq!(result["ips"][1]["address"], "fd00:7::2/128");
    assert_eq!(result["ips"][1]["gateway"], "fe80::1");
    assert!(ping(&rig.node, "10.244.7.2"));
    assert!(ping(&rig.node, "fd00:7::2"), "no DAD, so at once");
    assert!(ping(&pod, "fd00:7::"));
    assert_eq!(sysctl(&name, "ipv6", "eth0", "accept_ra"), "0");
    assert_eq!(
        sysctl(&rig.node, "ipv6", &added.host_ifname(), "accept_ra"),
        "0"
    );
    rig.del("c1", "eth0", &pod).silent();
    assert!(!ip(&["-n", &rig.node, "-6", "route"]).contains("fd00:7::2"));
}

/// A node without IPv4 subnets: everything that a pod of IPv4 has, in IPv6.
#[test]
fn a_pod_of_ipv6_alone() {
    let mut rig = Rig::new(&["fd00:7::/64"]);
    let pod = rig.pod();
    let name = pod.trim_start_matches("/run/netns/").to_owned();
    rig.add("warm", "eth0", &pod).result();
    rig.del("warm", "eth0", &pod).silent();
    let before = rig.census();
    let conf = rig.conf("0.4.0").to_string();
    let added = rig.call(&variables("ADD", "c1", "eth0", &pod), &conf);
    let result = added.result();
    let expected =
        json!([{"address": "fd00:7::3/128", "gateway": "fe80::1", "interface": 1, "version": "6"}]);
    assert_eq!(result["ips"], expected);
    assert_eq!(result["routes"], json!([{"dst": "::/0", "gw": "fe80::1"}]));
    assert!(ping(&rig.node, "fd00:7::3"), "host to pod");
    assert!(ping(&pod, "fd00:7::"), "pod to host");

    // Nothing is asked on the way: no duplicate detection, no neighbour discovery, no router.
    let address = ip(&[
        "-n",
        &name,
        "-6",
        "address",
        "show",
        "dev",
        "eth0",
        "to",
        "fd00::/16",
    ]);
    assert!(address.contains("/128 scope global nodad"), "{address}");
    let neighbours = ip(&["-n", &name, "neigh", "show", "nud", "permanent"]);
    assert!(
        neighbours.contains("fe80::1 dev eth0 lladdr ee:ee"),
        "{neighbours}"
    );
    let routes = ip(&["-n", &name, "-6", "route", "show", "default"]);
    assert!(routes.contains("default via fe80::1 dev eth0"), "{routes}");
    assert_eq!(ip(&["-n", &name, "-4", "route"]), "");
    let host = added.host_ifname();
    let route = ip(&["-n", &rig.node, "-6", "route", "get", "fd00:7::3"]);
    assert!(route.contains(&format!("dev {host}")), "{route}");
    let addresses = ip(&["-n", &rig.node, "address", "show", "dev", &host]);
    assert!(!addresses.contains("inet"), "{addresses}");
    for (netns, ifname) in [(&rig.node, host.as_str()), (&name, "eth0")] {
        assert_eq!(sysctl(netns, "ipv6", ifname, "accept_ra"), "0");
        assert_eq!(sysctl(netns, "ipv6", ifname, "accept_redirects"), "0");
    }
    assert_eq!(sysctl(&rig.node, "ipv6", &host, "forwarding"), "1");

    rig.del("c1", "eth0", &pod).silent();
    assert_eq!(rig.census(), before);
}

/// A cluster that gets its second family later: pods from before stay, new ones have both.
#[test]
fn a_second_family_is_for_new_pods() {
    let mut rig = Rig::new(SUBNET);
    let (old, new) = (rig.pod(), rig.pod());
    assert_eq!(
        rig.add("c1", "eth0", &old).result()["ips"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    rig.lease(BOTH);
    let addresses = rig.add("c2", "eth0", &new).result()["ips"].clone();
    assert_eq!(addresses[0]["address"], "10.244.7.3/32");
    assert_eq!(addresses[1]["address"], "fd00:7::2/128");
    assert!(ping(&old, "10.244.7.3") && ping(&new, "10.244.7.2"));
    rig.del("c1", "eth0", &old).silent();
    rig.del("c2", "eth0", &new).silent();
    assert_eq!(ip(&["-n", &rig.node, "link", "show", "type", "veth"]), "");
}

#[test]
fn a_second_interface_leaves_the_default_route_to_the_first() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    let first = rig.add("c1", "eth0", &pod);
    let second = rig.add("c1", "net.1", &pod);
    assert_eq!(first.result()["routes"][0]["dst"], "0.0.0.0/0");
    assert_eq!(second.result()["routes"], json!([]));
    assert_ne!(first.host_ifname(), second.host_ifname());
    assert!(ping(&rig.node, &first.address()));
    rig.del("c1", "net.1", &pod).silent();
    assert!(ping(&rig.node, &first.address()), "the first still works");
}

#[test]
fn parallel_adds_get_addresses_of_their_own() {
    let mut rig = Rig::new(SUBNET);
    let pods: Vec<String> = (0..20).map(|_| rig.pod()).collect();
    let rig = &rig;
    let before = rig.census().records();
    let addresses: Vec<String> = std::thread::scope(|scope| {
        let adds: Vec<_> = pods
            .iter()
            .enumerate()
            .map(|(n, pod)| scope.spawn(move || rig.add(&format!("c{n}"), "eth0", pod).address()))
            .collect();
        adds.into_iter().map(|add| add.join().unwrap()).collect()
    });
    let distinct: HashSet<&String> = addresses.iter().collect();
    assert_eq!(distinct.len(), pods.len(), "{addresses:?}");
    for address in &addresses {
        assert!(ping(&rig.node, address), "{address}");
    }
    std::thread::scope(|scope| {
        for (n, pod) in pods.iter().enumerate() {
            scope.spawn(move || rig.del(&format!("c{n}"), "eth0", pod).silent());
        }
    });
    assert_eq!(rig.census().records(), before);
    assert_eq!(ip(&["-n", &rig.node, "link", "show", "type", "veth"]), "");
}

#[test]
fn an_address_that_the_kernel_routes_is_not_given() {
    let mut rig = Rig::new(SUBNET);
    let pod = rig.pod();
    ip(&[
        "-n",
        &rig.node,
        "route",
        "add",
        "10.244.7.2/32",
        "dev",
        "lo",
    ]);
    assert_eq!(rig.add("c1", "eth0", &pod).address(), "10.244.7.3");
}

#[test]
fn version_and_status_answer_and_a_person_gets_a_hint() {
    let rig = Rig::new(SUBNET);
    let version = rig.call(&[("CNI_COMMAND", "VERSION")], "").result();
    assert_eq!(
        version,
        json!({"cniVersion": "1.1.0",
               "supportedVersions": ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]})
    );
    let conf = rig.conf("1.1.0").to_string();
    rig.call(&[("CNI_COMMAND", "STATUS")], &conf).silent();
    let hint = rig.call(&[], "");
    hint.silent();
    assert!(hint.stderr.contains("1.1.0"), "{hint:?}");
}

fn sysctl(netns: &str, family: &str, ifname: &str, key: &str) -> String {
    let path = format!("/proc/sys/net/{family}/conf/{ifname}/{key}");
    ip(&["netns", "exec", netns, "cat", &path])
        .trim()
        .to_owned()
}
