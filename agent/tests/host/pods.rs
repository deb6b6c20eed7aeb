//! What is done for pods beside delivering to them, and taken back when they are gone.

use std::path::Path;
use std::sync::Arc;

use cni_shim::pod_link::PodNetworks;
use cni_shim::{Attachment, RunDir, State};
use tartan::host::{Change, Host, HostError, Outcome, Traces, cleanup};

use super::namespace::Namespace;
use super::nets;

const END: &str = "tt0123456789";
const LIMITER: &str = "tl0123456789";
const PROXY_ARP: &str = "net/ipv4/conf/cni0/proxy_arp";

fn has(namespace: &Namespace, name: &str) -> bool {
    let links = namespace.list("link show");
    links.iter().any(|link| link["ifname"] == name)
}

fn attach(namespace: &Namespace) {
    namespace.ip(&format!("link add {END} type veth peer name eth9"));
    let alias = ["link", "set", END, "alias", "Tartan pod c1:eth0"];
    testbed::run(namespace.program("ip").args(alias));
}

/// What was changed, where nothing was refused.
fn changed((changes, refused): (Vec<Change>, Option<HostError>)) -> Vec<Change> {
    assert!(refused.is_none(), "{refused:?}");
    changes
}

/// The attachment of the pod at `END`, whose way in is limited.
fn limited() -> Attachment {
    let record = serde_json::json!({
        "version": Attachment::VERSION, "network": "pods", "container": "c1", "ifname": "eth0",
        "netns": "/run/netns/none", "netns_inode": 1, "host_ifname": END, "addresses": ["10.244.1.7/32"],
        "mac": "02:00:00:00:00:01", "pod": null, "created": 1,
        "bandwidth": {"ingress": {"rate": 1_000_000, "burst": 0}, "egress": null},
    });
    serde_json::from_value(record).unwrap()
}

fn traces(root: &Path) -> Traces {
    Traces {
        device: "tartan0".to_owned(),
        run_dir: RunDir::under(root),
        state_dir: root.join("var/lib/tartan"),
        subnet_file: root.join("run/flannel/subnet.env"),
        pins: dataplane::kernel_path::Pins::below(root),
        for_flannel: false,
    }
}

#[test]
fn a_limiter_is_kept_where_its_pod_was_attached_since_the_list() {
    let namespace = Namespace::new();
    namespace.ip(&format!("link add {LIMITER} type ifb"));
    namespace.ip("link add tl9876543210 type bridge");
    namespace.ip("link add tlx type ifb");
    let state = namespace.state_dir();
    namespace.inside(|| async {
        let host = Host::open(&state).await.unwrap();
        let before = host.pod_links().await.unwrap();
        attach(&namespace);
        assert_eq!(changed(host.shape(&[], &before).await), []);
        assert!(has(&namespace, LIMITER), "its pod came between two looks");
        namespace.ip(&format!("link delete {END}"));
        let removed = [Change::LimiterRemoved(LIMITER.to_owned())];
        assert_eq!(changed(host.shape(&[], &before).await), removed);
        // One that is gone already is no error, and what others made stays.
        assert_eq!(changed(host.shape(&[], &before).await), []);
    });
    assert!(!has(&namespace, LIMITER));
    assert!(has(&namespace, "tl9876543210") && has(&namespace, "tlx"));
}

/// A record that names another interface: the pod's own counts, by its alias.
#[test]
fn a_damaged_record_neither_hides_its_pod_nor_shapes_another() {
    let namespace = Namespace::new();
    attach(&namespace);
    let state = namespace.state_dir();
    namespace.inside(|| async {
        let host = Host::open(&state).await.unwrap();
        let links = host.pod_links().await.unwrap();
        for name in ["eth0", "lo", "tt9999999999", ""] {
            let mut damaged = limited();
            damaged.host_ifname = name.to_owned();
            assert!(links.has_end_of(&damaged), "{name:?}");
        }
        let mut other = limited();
        other.container = "c2".to_owned();
        assert!(!links.has_end_of(&other), "it names the end of c1");
        assert_eq!(changed(host.apply_limits(&[other], &links).await), []);
        assert_eq!(
            changed(host.apply_limits(&[limited()], &links).await).len(),
            1
        );
    });
}

/// Routes of IPv4, each in a line.
fn routes(namespace: &Namespace) -> String {
    testbed::run(namespace.program("ip").args(["route", "show"]))
}

#[test]
fn a_damaged_record_takes_no_route_of_the_node() {
    let namespace = Namespace::new();
    attach(&namespace);
    namespace.ip("route add default via 192.0.2.254");
    let (state, run) = (namespace.state_dir(), RunDir::under(namespace.root()));
    run.make().unwrap();
    let repaired = |record: Attachment| {
        record.write(&run).unwrap();
        let (state, run) = (&state, &run);
        namespace.inside(|| async move {
            let mut host = Host::open(state).await.unwrap();
            host.set_pod_networks(PodNetworks {
                own: nets(&["10.244.1.0/24"]),
                cluster: nets(&["10.244.0.0/16"]),
            });
            let picture = host.picture().await.unwrap();
            let records = [Arc::new(record)];
            host.mend_pods(&picture, run, &records).await.faults.len()
        })
    };
    let mut whole = limited();
    whole.state = State::Attached;
    assert_eq!(repaired(whole.clone()), 0);
    let before = routes(&namespace);
    assert!(
        before.contains(&format!("10.244.1.7 dev {END}")),
        "{before}"
    );
    for source in ["0.0.0.0/0", "192.0.2.254/32", "192.0.2.0/24"] {
        let mut damaged = whole.clone();
        damaged.allowed_sources = nets(&[source]);
        assert_eq!(repaired(damaged), 1, "{source} is told");
        assert_eq!(routes(&namespace), before, "{source}");
    }
    let mut damaged = whole.clone();
    damaged.addresses = nets(&["192.0.2.254/32"]);
    repaired(damaged);
    assert_eq!(routes(&namespace), before);
    // A route of another program in the place of ours stays until it is gone.
    namespace.ip("route replace 10.244.1.7 dev eth0");
    let taken = routes(&namespace);
    assert_eq!(repaired(whole.clone()), 1);
    assert_eq!(routes(&namespace), taken);
    namespace.ip("route delete 10.244.1.7 dev eth0");
    assert_eq!(repaired(whole), 0);
    assert_eq!(routes(&namespace), before);
}

#[test]
fn a_limit_that_is_refused_hides_nothing_that_was_done() {
    let namespace = Namespace::new();
    namespace.ip("link add tlaaaaaaaaaa type ifb");
    attach(&namespace);
    let state = namespace.state_dir();
    namespace.inside(|| async {
        let host = Host::open(&state).await.unwrap();
        let links = host.pod_links().await.unwrap();
        // Its limit finds no interface.
        namespace.ip(&format!("link delete {END}"));
        let (changes, refused) = host.shape(&[limited()], &links).await;
        let removed = [Change::LimiterRemoved("tlaaaaaaaaaa".to_owned())];
        assert_eq!(changes, removed);
        assert!(refused.is_some());
    });
}

#[test]
fn a_clean_up_takes_what_shaped_a_pod_that_is_gone() {
    let namespace = Namespace::new();
    namespace.ip(&format!("link add {LIMITER} type ifb"));
    namespace.ip("link add tlaaaaaaaaaa type ifb");
    attach(&namespace);
    let root = namespace.root().to_owned();
    let clean = || namespace.inside(|| async { cleanup(&traces(&root)).await });
    let outcomes = clean();
    assert!(!has(&namespace, "tlaaaaaaaaaa"), "{outcomes:?}");
    assert!(has(&namespace, LIMITER), "a pod sends through it");
    let lines: Vec<String> = outcomes.iter().map(Outcome::to_string).collect();
    assert!(
        lines.contains(&"removed the device tlaaaaaaaaaa".to_owned()),
        "{lines:?}"
    );
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("kept the device tl0123456789: its pod")),
        "{lines:?}"
    );
    namespace.ip(&format!("link delete {END}"));
    clean();
    assert!(!has(&namespace, LIMITER));
}

#[test]
fn a_bridge_is_answered_on_only_as_long_as_pods_of_ours_are_there() {
    let namespace = Namespace::new();
    namespace.ip("link add cni0 type bridge");
    namespace.ip("address add 10.244.1.1/24 dev cni0");
    let (state, own) = (namespace.state_dir(), nets(&["10.244.1.0/24"]));
    // A new agent each time: what it knows of the setting is on record.
    let answer = |own: &[ipnet::IpNet]| {
        let state = state.clone();
        namespace.inside(|| async move {
            let mut host = Host::open(&state).await.unwrap();
            let picture = host.picture().await.unwrap();
            let (bridges, changes) = host.set_proxy_arp_on_bridges(&picture, own).unwrap();
            (bridges.join(" "), changes.len())
        })
    };
    assert_eq!(answer(&own), ("cni0".to_owned(), 1));
    assert_eq!(namespace.setting(PROXY_ARP), "1");
    assert_eq!(answer(&own), ("cni0".to_owned(), 0));
    assert_eq!(answer(&[]), (String::new(), 1));
    assert_eq!(namespace.setting(PROXY_ARP), "0");
    assert_eq!(answer(&[]), (String::new(), 0));
    // Another subnet of the node: the bridge holds nothing of ours any more.
    answer(&own);
    assert_eq!(answer(&nets(&["10.244.9.0/24"])), (String::new(), 1));
    assert_eq!(namespace.setting(PROXY_ARP), "0");
    // A value that another process set stays.
    answer(&own);
    namespace.set(PROXY_ARP, "0");
    assert_eq!(answer(&[]), (String::new(), 0));
    namespace.set(PROXY_ARP, "1");
    answer(&own);
    assert_eq!(answer(&[]), (String::new(), 0));
    assert_eq!(namespace.setting(PROXY_ARP), "1");
    // A bridge that is gone is no error.
    namespace.set(PROXY_ARP, "0");
    answer(&own);
    namespace.ip("link delete cni0");
    assert_eq!(answer(&[]), (String::new(), 0));
}
