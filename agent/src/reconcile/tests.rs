use crate::config::node::registry::RegistryConfig;
use std::path::PathBuf;
use std::time::Duration;

use cni_shim::attachment::State;
use encap::Mac;
use proptest::prelude::*;

use super::*;
use dataplane::families::PerFamily;
use dataplane::spec::PeerSpec;
use encap::Format;

use crate::config::{DeviceKind, DeviceType, KernelPathMode, SpinSetting};
use crate::lease::default_vtep_mac;

const DUAL: &str = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48","Backend":{"Type":"vxlan"}}"#;
const V4: &str =
    r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","VNI":7,"Port":4789,"GBP":true}}"#;

fn conf(text: &str) -> NetConf {
    NetConf::parse(text).unwrap()
}

fn config() -> NodeConfig {
    NodeConfig {
        instance: None,
        root: PathBuf::from("/"),
        node_name: "n1".to_owned(),
        net_conf: PathBuf::new(),
        node_file: PathBuf::new(),
        registry: RegistryConfig::default(),
        local_v4: None,
        local_v6: None,
        device: DeviceKind::Auto,
        device_type: DeviceType::Auto,
        device_name: "tartan0".to_owned(),
        names_device_as_flannel: false,
        strict_pods: false,
        gather: true,
        probe: true,
        ipv6_over_udp: false,
        masquerade: true,
        subnet_file: PathBuf::from("/run/flannel/subnet.env"),
        log: "info".to_owned(),
        workers: None,
        cores: Vec::new(),
        spin: SpinSetting::Auto,
        reclaim_after: Duration::from_secs(60),
        shrink_grace: Duration::from_secs(600),
        replace_flannel: false,
        forward_rules: true,
        kernel_path: KernelPathMode::Off,
        kernel_path_port: 18472,
        healthz: None,
        metrics: None,
        metrics_limit: 256,
    }
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn lease(name: &str, public: &str, subnets: &[&str], format: Format) -> Lease {
    let public = match public.split_once(" and ") {
        None => public.parse::<IpAddr>().unwrap().into(),
        Some((v4, v6)) => PublicAddresses::Dual(v4.parse().unwrap(), v6.parse().unwrap()),
    };
    Lease {
        name: name.to_owned(),
        subnets: nets(subnets),
        public,
        format,
        vtep_mac: PerFamily::each(|_| default_vtep_mac(public.first())),
        accept_sources: vec![],
        underlay_sources: vec![],
        kernel_path: None,
    }
}

fn own() -> Lease {
    lease("n1", "192.0.2.1", &["10.244.1.0/24"], Format::Vxlan)
}

fn attachment(held: &[&str]) -> Arc<Attachment> {
    Arc::new(Attachment {
        version: Attachment::VERSION,
        network: "tartan".to_owned(),
        container: "c".to_owned(),
        ifname: "eth0".to_owned(),
        netns: String::new(),
        netns_inode: 0,
        host_ifname: String::new(),
        addresses: nets(held),
        mac: String::new(),
        pod: None,
        created: 0,
        state: State::Attached,
        ..Attachment::default()
    })
}

/// Everything that decides, owned, so that a test can change one part.
struct World {
    net_conf: NetConf,
    config: NodeConfig,
    leases: Arc<[Lease]>,
    own: Lease,
    attachments: Vec<Arc<Attachment>>,
    kernel_prefixes: Vec<IpNet>,
    pod_links: Vec<String>,
    released: Vec<IpAddr>,
    host_addresses: Vec<IpAddr>,
    underlay_mtu: u16,
}

impl World {
    fn of(net_conf: &str, own: Lease, leases: Vec<Lease>) -> World {
        World {
            net_conf: conf(net_conf),
            config: config(),
            leases: leases.into(),
            own,
            attachments: vec![],
            kernel_prefixes: vec![],
            pod_links: vec!["cni0".to_owned()],
            released: vec![],
            host_addresses: vec![],
            underlay_mtu: 1500,
        }
    }

    fn desired(&self) -> Desired {
        self.after(None)
    }

    /// What is desired after something else was.
    fn after(&self, previous: Option<&Desired>) -> Desired {
        let inputs = Inputs {
            net_conf: &self.net_conf,
            config: &self.config,
            leases: &self.leases,
            own: &self.own,
            bound: self.config.underlay(self.own.public),
            attachments: &self.attachments,
            kernel_prefixes: &self.kernel_prefixes,
            pod_links: &self.pod_links,
            released: &self.released,
            host_addresses: &self.host_addresses,
            underlay_mtu: self.underlay_mtu,
            device_mac: None,
            version: 3,
        };
        reconcile(&inputs, previous)
    }
}

#[test]
fn a_small_cluster_in_full() {
    let peer = lease("n2", "192.0.2.2", &["10.244.2.0/24"], Format::Udp);
    let mut world = World::of(V4, own(), vec![peer.clone(), own()]);
    world.attachments = vec![
        attachment(&["10.244.1.7/32"]),
        attachment(&["10.244.1.2/32"]),
    ];
    world.kernel_prefixes = nets(&["10.244.1.1/24"]);
    world.host_addresses = addresses(&["192.0.2.1", "10.244.1.1", "10.244.1.0"]);
    let spec = Spec {
        version: 3,
        cluster: Arc::new(ClusterSpec {
            node: NodeSpec {
                networks: nets(&["10.244.0.0/16"]),
                public: own().public,
                vtep_mac: own().vtep_mac,
                vni: encap::Vni::new(7).unwrap(),
                gbp: true,
                ipv6_over_udp: false,
                inner_mtu: PerFamily::each(|_| 1450),
                underlay_mtu: 1500,
                udp_port: 8285,
                vxlan_port: 4789,
            },
            peers: vec![Arc::new(PeerSpec {
                name: "n2".to_owned(),
                public: peer.public,
                underlay_sources: vec![],
                subnets: nets(&["10.244.2.0/24"]),
                accept_sources: vec![],
                format: Format::Udp,
                vtep_mac: peer.vtep_mac,
            })],
        }),
        local: Arc::new(LocalSpec {
            subnets: nets(&["10.244.1.0/24"]),
            tunnel: addresses(&["10.244.1.0"]),
            addresses: addresses(&["10.244.1.1", "192.0.2.1"]),
            attachments: addresses(&["10.244.1.2", "10.244.1.7"]),
            pods: world
                .attachments
                .iter()
                .map(|pod| (pod.addresses[0].addr(), pod_id(&pod.container, &pod.ifname)))
                .collect(),
            kernel_prefixes: nets(&["10.244.1.0/24"]),
            allowed_sources: vec![],
        }),
    };
    let expected = (
        spec,
        HostState {
            device: "tartan0".to_owned(),
            addresses: nets(&["10.244.1.0/32"]),
            mtu: 1450,
            inner_mtu: PerFamily::each(|_| 1450),
            cluster_routes: nets(&["10.244.0.0/16"]),
            unreachable: nets(&["10.244.1.0/24"]),
            masquerade: true,
            encapsulation: Encapsulation {
                ports: [8285, 4789],
                private_port: Some(18_472),
                is_private_port_ours: false,
                own: addresses(&["192.0.2.1"]),
                nodes: addresses(&["10.244.2.0", "10.244.2.1", "192.0.2.2"]).into(),
                pod_links: vec!["cni0".to_owned()],
            },
            subnet_file: PathBuf::from("/run/flannel/subnet.env"),
            mac: None,
            subnet_env: SubnetEnv {
                v4: Some((
                    "10.244.0.0/16".parse().unwrap(),
                    "10.244.1.0/24".parse().unwrap(),
                )),
                v6: None,
                mtu: 1450,
                masquerade: true,
            },
        },
        1500,
    );
    let desired = world.desired();
    assert_eq!(
        (desired.spec, desired.host, desired.largest_datagram),
        expected
    );
}

/// The kernel path's port of other nodes is guarded whatever this node has, unless it is a format's.
#[test]
fn the_private_port_is_guarded_with_and_without_the_kernel_path() {
    for (mode, port, expected) in [
        (KernelPathMode::Off, 18_472, (Some(18_472), false)),
        (KernelPathMode::Auto, 20_000, (Some(20_000), true)),
        (KernelPathMode::Off, 8285, (None, false)),
    ] {
        let mut world = World::of(r#"{"Network": "10.244.0.0/16"}"#, own(), vec![]);
        world.config.kernel_path = mode;
        world.config.kernel_path_port = port;
        let guard = world.desired().host.encapsulation;
        assert_eq!((guard.private_port, guard.is_private_port_ours), expected);
    }
}

#[test]
fn leases_with_one_public_address_are_one_peer() {
    let mut a = lease("a", "192.0.2.9", &["10.244.9.0/24"], Format::Vxlan);
    a.accept_sources = nets(&["10.9.0.0/16"]);
    let mut b = lease("b", "192.0.2.9", &["10.244.8.0/24"], Format::Vxlan);
    b.underlay_sources = addresses(&["198.51.100.1"]);
    b.accept_sources = nets(&["10.9.0.0/16"]);
    let spec = World::of(V4, own(), vec![b, a, own()]).desired().spec;
    let [peer] = &spec.cluster.peers[..] else {
        panic!("{:?}", spec.cluster.peers)
    };
    assert_eq!(
        (peer.name.as_str(), &peer.subnets),
        ("a", &nets(&["10.244.8.0/24", "10.244.9.0/24"]))
    );
    assert_eq!(peer.accept_sources, nets(&["10.9.0.0/16"]));
    assert_eq!(peer.underlay_sources, addresses(&["198.51.100.1"]));
}

#[test]
fn we_are_never_our_own_peer() {
    let twin = lease("twin", "192.0.2.1", &["10.244.3.0/24"], Format::Vxlan);
    let half = lease(
        "half",
        "192.0.2.1 and 2001:db8::9",
        &["10.244.4.0/24"],
        Format::Vxlan,
    );
    let renumbered = lease("n1", "192.0.2.77", &["10.244.1.0/24"], Format::Vxlan);
    for stranger in [twin, half, renumbered, own()] {
        assert_eq!(
            World::of(V4, own(), vec![stranger])
                .desired()
                .spec
                .cluster
                .peers,
            []
        );
    }
}

#[test]
fn the_device_mtu_is_what_the_widest_format_in_use_leaves() {
    let mtu = |own_format, own_public: &str, peer_format, peer_public: &str| {
        let own = lease("n1", own_public, &["10.244.1.0/24"], own_format);
        let peer = lease("n2", peer_public, &["10.244.2.0/24"], peer_format);
        World::of(V4, own, vec![peer]).desired().host.mtu
    };
    let (udp, vxlan) = (Format::Udp, Format::Vxlan);
    assert_eq!(mtu(udp, "192.0.2.1", udp, "192.0.2.2"), 1500 - 28);
    assert_eq!(mtu(vxlan, "192.0.2.1", vxlan, "192.0.2.2"), 1500 - 50);
    assert_eq!(
        mtu(udp, "192.0.2.1", vxlan, "192.0.2.2"),
        1500 - 50,
        "what we send it"
    );
    assert_eq!(
        mtu(vxlan, "192.0.2.1", udp, "192.0.2.2"),
        1500 - 50,
        "what it sends us"
    );
    assert_eq!(mtu(udp, "2001:db8::1", udp, "2001:db8::2"), 1500 - 48);
    assert_eq!(mtu(vxlan, "2001:db8::1", vxlan, "2001:db8::2"), 1500 - 70);
}

#[test]
fn an_underlay_can_be_too_narrow_for_the_least_device() {
    let largest = |cluster, inside: &[&str], underlay_mtu| {
        let own = lease("n1", "192.0.2.1", inside, Format::Vxlan);
        let mut world = World::of(cluster, own, vec![]);
        world.underlay_mtu = underlay_mtu;
        let desired = world.desired();
        (desired.host.mtu, desired.largest_datagram)
    };
    assert_eq!(largest(V4, &["10.244.1.0/24"], 626), (576, 626));
    assert_eq!(largest(V4, &["10.244.1.0/24"], 600), (576, 626));
    let both = &["10.244.1.0/24", "fd00:10:244:1::/64"];
    assert_eq!(largest(DUAL, both, 1330), (1280, 1330));
    assert_eq!(largest(DUAL, both, 1300), (1280, 1330));
}

/// Each inner family counts with the underlay that it rides on.
#[test]
fn the_device_mtu_of_a_dual_stack_cluster() {
    let (v4, both) = (
        &["10.244.1.0/24"][..],
        &["10.244.1.0/24", "fd00:0:0:1::/64"][..],
    );
    let (outside4, outside6) = ("192.0.2.1", "2001:db8::1");
    let dual = "192.0.2.1 and 2001:db8::1";
    let each = |inside: &[&str], public: &str, peers: Vec<Lease>, format| {
        let own = lease("n1", public, inside, format);
        let desired = World::of(DUAL, own, peers).desired();
        let PerFamily { v4, v6 } = desired.host.inner_mtu;
        assert_eq!(desired.spec.cluster.node.inner_mtu, desired.host.inner_mtu);
        assert_eq!(desired.host.mtu, v4.max(v6));
        assert_eq!(desired.host.subnet_env.mtu, desired.host.mtu);
        (1500 - v4, 1500 - v6)
    };
    let (udp, vxlan) = (Format::Udp, Format::Vxlan);
    // Without any peer, as towards a node like us.
    assert_eq!(each(both, dual, vec![], vxlan), (50, 70));
    assert_eq!(each(both, outside4, vec![], vxlan), (50, 50));
    assert_eq!(each(both, outside6, vec![], vxlan), (70, 70));
    assert_eq!(each(v4, dual, vec![], vxlan), (50, 50));
    assert_eq!(each(v4, dual, vec![], udp), (28, 28));
    // The udp format carries no IPv6 unless it is told to.
    assert_eq!(each(both, dual, vec![], udp), (28, 28));
    let mut world = World::of(DUAL, lease("n1", dual, both, udp), vec![]);
    world.config.ipv6_over_udp = true;
    assert_eq!(world.desired().host.mtu, 1500 - 28);
    assert_eq!(world.desired().host.inner_mtu.v6, 1500 - 48);
    let peer = |public, inside: &[&str], format| vec![lease("n2", public, inside, format)];
    // What rides by another family than its own is bound by that.
    let narrow = peer("2001:db8::2", &["10.244.2.0/24"], vxlan);
    assert_eq!(each(v4, dual, narrow, vxlan), (70, 70));
    let wide = peer("192.0.2.2", &["10.244.2.0/24", "fd00:0:0:2::/64"], udp);
    assert_eq!(each(both, outside4, wide, udp), (28, 28));
    // A family that one of the two does not have inside is not in use between them.
    let v4_alone = peer("192.0.2.2 and 2001:db8::2", &["10.244.2.0/24"], vxlan);
    assert_eq!(each(both, dual, v4_alone, udp), (50, 50));
    let theirs = peer(
        "192.0.2.2 and 2001:db8::2",
        &["10.244.2.0/24", "fd00:0:0:2::/64"],
        vxlan,
    );
    assert_eq!(each(v4, dual, theirs.clone(), udp), (50, 50));
    assert_eq!(each(both, dual, theirs, udp), (50, 70));
    // Nothing goes to a node without an address of a family of ours.
    let apart = peer("2001:db8::2", &["10.244.2.0/24"], vxlan);
    assert_eq!(each(v4, outside4, apart, udp), (28, 28));
}

#[test]
fn the_underlay_mtu_is_found_again() {
    let inside = &["10.244.1.0/24", "fd00:0:0:1::/64"];
    for (public, format) in [
        ("192.0.2.1 and 2001:db8::1", Format::Vxlan),
        ("192.0.2.1", Format::Udp),
    ] {
        let own = lease("n1", public, inside, format);
        let peer = lease("n2", "192.0.2.2", &["10.244.2.0/24"], Format::Udp);
        let world = World::of(DUAL, own.clone(), vec![own.clone(), peer]);
        let mtu = world.desired().host.mtu;
        assert_eq!(underlay_mtu(mtu, &world.config, &own, &world.leases), 1500);
    }
}

#[test]
fn local_addresses_are_those_of_the_configuration() {
    let own = lease(
        "n1",
        "198.51.100.1 and 2001:db8::1",
        &["10.244.1.0/24"],
        Format::Vxlan,
    );
    let mut world = World::of(V4, own, vec![]);
    world.config.local_v4 = Some([192, 0, 2, 1].into());
    let public = world.desired().spec.cluster.node.public;
    assert_eq!(public.to_string(), "192.0.2.1, 2001:db8::1");
}

/// Entries of some registries may share one address and not the other.
#[test]
fn leases_that_share_one_address_are_one_peer() {
    let a = lease("a", "192.0.2.9", &["10.244.9.0/24"], Format::Vxlan);
    let b = lease(
        "b",
        "192.0.2.9 and 2001:db8::9",
        &["10.244.8.0/24"],
        Format::Vxlan,
    );
    let c = lease("c", "2001:db8::9", &["10.244.7.0/24"], Format::Vxlan);
    let spec = World::of(V4, own(), vec![c, b, a]).desired().spec;
    let [peer] = &spec.cluster.peers[..] else {
        panic!("{:?}", spec.cluster.peers)
    };
    assert_eq!((peer.name.as_str(), peer.subnets.len()), ("a", 3));
    assert_eq!(peer.public, PublicAddresses::V4([192, 0, 2, 9].into()));
    assert_eq!(peer.underlay_sources, addresses(&["2001:db8::9"]));
}

#[test]
fn the_mtu_of_the_file_is_the_underlays() {
    let capped = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","MTU":1400}}"#;
    let mut world = World::of(capped, own(), vec![]);
    let desired = world.desired();
    assert_eq!(
        (desired.host.mtu, desired.spec.cluster.node.underlay_mtu),
        (1350, 1400)
    );
    assert_eq!(desired.spec.cluster.node.inner_mtu.v4, desired.host.mtu);
    world.underlay_mtu = 1300;
    assert_eq!(world.desired().host.mtu, 1250);
}

#[test]
fn the_device_mtu_stays_usable() {
    for (text, least) in [(V4, 576), (DUAL, 1280)] {
        let mut world = World::of(text, own(), vec![]);
        for underlay_mtu in [0, 60, 625] {
            world.underlay_mtu = underlay_mtu;
            assert_eq!(world.desired().host.mtu, least);
        }
    }
}

#[test]
fn both_families_are_carried() {
    let own = lease(
        "n1",
        "192.0.2.1",
        &["fd00:0:0:1::/64", "10.244.1.0/24"],
        Format::Vxlan,
    );
    let desired = World::of(DUAL, own, vec![]).desired();
    assert_eq!(
        desired.host.addresses,
        nets(&["10.244.1.0/32", "fd00:0:0:1::/128"])
    );
    assert_eq!(
        desired.host.cluster_routes,
        nets(&["10.244.0.0/16", "fd00::/48"])
    );
    assert_eq!(
        desired.spec.local.tunnel,
        addresses(&["10.244.1.0", "fd00:0:0:1::"])
    );
}

#[test]
fn a_family_in_which_we_have_no_subnet_is_not_routed() {
    let desired = World::of(DUAL, own(), vec![]).desired();
    assert_eq!(desired.host.cluster_routes, nets(&["10.244.0.0/16"]));
    assert_eq!(
        desired.spec.cluster.node.networks.len(),
        2,
        "and yet part of the cluster"
    );
}

#[test]
fn only_what_lies_in_our_subnets_is_local() {
    let mut world = World::of(V4, own(), vec![]);
    world.kernel_prefixes = nets(&[
        "10.244.1.5/32",
        "10.244.0.0/16",
        "10.244.2.0/24",
        "0.0.0.0/0",
    ]);
    world.attachments = vec![attachment(&[
        "10.244.2.5/32",
        "10.244.1.9/32",
        "10.244.1.0/32",
    ])];
    let spec = world.desired().spec;
    assert_eq!(spec.local.kernel_prefixes, nets(&["10.244.1.5/32"]));
    assert_eq!(spec.local.attachments, addresses(&["10.244.1.9"]));
    world.config.strict_pods = true;
    let strict = world.desired().spec;
    assert_eq!(
        (
            strict.local.kernel_prefixes.len(),
            &strict.local.attachments
        ),
        (0, &spec.local.attachments)
    );
}

fn any_lease() -> impl Strategy<Value = Lease> {
    let sources = || prop::collection::vec(0..4u8, 0..3);
    let hosts = (1..6u8, 1..6u8, 0..4u8);
    (0..6u8, hosts, 1..9u8, any::<bool>(), sources(), sources()).prop_map(
        |(name, (host, host6, kind), subnet, udp, underlay, accept)| Lease {
            name: format!("n{name}"),
            subnets: vec![IpNet::new(IpAddr::from([10, 244, subnet, 0]), 24).unwrap()],
            public: match (
                [192, 0, 2, host].into(),
                [0x2001, 0xdb8, 0, 0, 0, 0, 0, host6.into()].into(),
            ) {
                (v4, _) if kind == 0 => PublicAddresses::V4(v4),
                (_, v6) if kind == 1 => PublicAddresses::V6(v6),
                (v4, v6) => PublicAddresses::Dual(v4, v6),
            },
            format: if udp { Format::Udp } else { Format::Vxlan },
            vtep_mac: PerFamily::each(|_| Mac([2, 0, 0, 0, name, host])),
            accept_sources: accept
                .iter()
                .map(|n| IpNet::new(IpAddr::from([10, *n, 0, 0]), 16).unwrap())
                .collect(),
            kernel_path: None,
            underlay_sources: underlay
                .iter()
                .map(|n| IpAddr::from([198, 51, 100, *n]))
                .collect(),
        },
    )
}

/// Leases as a registry yields them, of unique names, and the same in another order.
fn shuffled() -> impl Strategy<Value = (Vec<Lease>, Vec<Lease>)> {
    prop::collection::vec(any_lease(), 0..6).prop_flat_map(|mut leases| {
        leases.sort_by(|a, b| a.name.cmp(&b.name));
        leases.dedup_by(|a, b| a.name == b.name);
        (Just(leases.clone()), Just(leases).prop_shuffle())
    })
}

#[test]
fn what_a_served_pod_was_allowed_it_may_send_from() {
    let mut world = World::of(V4, own(), vec![own()]);
    let mut served = attachment(&["10.244.1.2/32"]);
    Arc::make_mut(&mut served).allowed_sources = nets(&["203.0.113.0/24"]);
    let mut stranded = attachment(&["10.244.9.2/32"]);
    Arc::make_mut(&mut stranded).allowed_sources = nets(&["198.51.100.0/24"]);
    world.attachments = vec![stranded, served.clone(), served];
    assert_eq!(
        world.desired().spec.local.allowed_sources,
        nets(&["203.0.113.0/24"])
    );
}

/// What is counted of a pod is not its successor's at the same address.
#[test]
fn every_served_address_has_its_pod() {
    let mut world = World::of(DUAL, own(), vec![own()]);
    let served = ["10.244.1.2/32", "10.244.9.2/32"];
    world.attachments = vec![attachment(&served), attachment(&["10.244.1.3/32"])];
    Arc::make_mut(&mut world.attachments[1]).container = "d".to_owned();
    let before = world.desired();
    let pods = |desired: &Desired| desired.spec.local.pods.clone();
    let of = |pod: &Arc<Attachment>| pod_id(&pod.container, &pod.ifname);
    let [first, second] = [0, 1].map(|place| of(&world.attachments[place]));
    assert_ne!(first, second);
    let [one, two] = ["10.244.1.2", "10.244.1.3"].map(|text| text.parse().unwrap());
    assert_eq!(pods(&before), [(one, first), (two, second)].into());
    // Another container has the address now.
    Arc::make_mut(&mut world.attachments[0]).container = "e".to_owned();
    let after = world.after(Some(&before));
    assert_eq!(after.spec.local.attachments, before.spec.local.attachments);
    assert_ne!(pods(&after), pods(&before));
    assert!(!Arc::ptr_eq(&after.spec.local, &before.spec.local));
}

/// The record alone decides whether a pod is delivered to. Its host route neither adds to it nor outlives it.
#[test]
fn an_attachments_own_address_is_no_kernel_prefix() {
    let mut world = World::of(V4, own(), vec![own()]);
    let prefixes = |desired: &Desired| desired.spec.local.kernel_prefixes.clone();
    world.attachments = vec![attachment(&["10.244.1.2/32"])];
    world.kernel_prefixes = nets(&["10.244.1.9/32"]);
    let added = world.desired();
    world.kernel_prefixes = nets(&["10.244.1.2/32", "10.244.1.9/32"]);
    let routed = world.after(Some(&added));
    assert!(
        Arc::ptr_eq(&added.spec.local, &routed.spec.local),
        "nothing to publish"
    );
    world.attachments.clear();
    world.released = addresses(&["10.244.1.2"]);
    assert_eq!(
        prefixes(&world.after(Some(&routed))),
        nets(&["10.244.1.9/32"])
    );
    // A wider prefix is of another, whatever pods lie in it.
    world.kernel_prefixes = nets(&["10.244.1.2/31"]);
    assert_eq!(prefixes(&world.desired()), nets(&["10.244.1.2/31"]));
}

#[test]
fn what_did_not_change_is_the_same_allocation() {
    let leases = |third: &str| {
        let one = |n: u8, name: &str| {
            let (public, subnet) = (format!("192.0.2.{n}"), format!("10.244.{n}.0/24"));
            lease(name, &public, &[&subnet], Format::Vxlan)
        };
        vec![own(), one(2, "n2"), one(3, third), one(4, "n4")]
    };
    let mut world = World::of(V4, own(), leases("n3"));
    let first = world.desired();
    world.attachments = vec![attachment(&["10.244.1.2/32"])];
    let added = world.after(Some(&first));
    assert!(Arc::ptr_eq(&added.spec.cluster, &first.spec.cluster));
    assert!(!Arc::ptr_eq(&added.spec.local, &first.spec.local));
    world.leases = leases("n3").into();
    let read = world.after(Some(&added));
    assert!(
        Arc::ptr_eq(&read.spec.cluster, &added.spec.cluster),
        "equal leases"
    );
    world.leases = leases("renamed").into();
    let renamed = world.after(Some(&read));
    assert!(Arc::ptr_eq(&renamed.spec.local, &read.spec.local));
    let pairs = renamed
        .spec
        .cluster
        .peers
        .iter()
        .zip(&read.spec.cluster.peers);
    let same: Vec<bool> = pairs.map(|(a, b)| Arc::ptr_eq(a, b)).collect();
    assert_eq!(same, [true, false, true]);
    // From nothing, because we are another: and still.
    world.own.format = Format::Udp;
    let other = world.after(Some(&renamed));
    let mut pairs = other
        .spec
        .cluster
        .peers
        .iter()
        .zip(&renamed.spec.cluster.peers);
    assert!(pairs.all(|(a, b)| Arc::ptr_eq(a, b)));
}

/// More leases change than are followed one by one.
/// The last peer that needs as many bytes in front takes the lower MTU with it.
#[test]
fn the_mtu_rises_when_the_last_peer_of_the_widest_format_goes() {
    let own = lease("n1", "192.0.2.1", &["10.244.1.0/24"], Format::Udp);
    let peer = |n: u8, format| {
        let (name, public) = (format!("m{n}"), format!("192.0.2.{n}"));
        lease(&name, &public, &[&format!("10.244.{n}.0/24")], format)
    };
    let [narrow, wide, other] =
        [(2, Format::Udp), (3, Format::Vxlan), (4, Format::Vxlan)].map(|(n, f)| peer(n, f));
    let mut world = World::of(V4, own, vec![narrow.clone(), wide.clone(), other]);
    let both = world.desired();
    world.leases = vec![narrow.clone(), wide].into();
    let one = world.after(Some(&both));
    world.leases = vec![narrow].into();
    let none = world.after(Some(&one));
    let mtu = |desired: &Desired| desired.host.mtu;
    assert_eq!((mtu(&both), mtu(&one), mtu(&none)), (1450, 1450, 1472));
    assert_eq!(none, world.desired());
}

#[test]
fn a_great_change_is_decided_as_from_nothing() {
    let many = |range: std::ops::Range<u8>| {
        let one = |n| {
            let (name, public) = (format!("m{n}"), format!("192.0.2.{n}"));
            lease(
                &name,
                &public,
                &[&format!("10.244.{n}.0/24")],
                Format::Vxlan,
            )
        };
        range.map(one).collect::<Vec<_>>()
    };
    let mut world = World::of(V4, own(), many(2..120));
    let mut before = world.desired();
    for leases in [many(60..250), many(2..250), many(250..250), many(2..5)] {
        world.leases = leases.into();
        let after = world.after(Some(&before));
        assert_eq!(after, world.desired());
        before = after;
    }
}

proptest! {
    #[test]
    fn order_and_repetition_do_not_matter(
        (leases, others) in shuffled(),
        hosts in prop::collection::vec(0..9u8, 0..6),
        mtu in any::<u16>(),
    ) {
        let mut world = World::of(V4, own(), leases);
        world.underlay_mtu = mtu;
        world.host_addresses = hosts.iter().map(|n| IpAddr::from([192, 0, 2, *n])).collect();
        world.kernel_prefixes = hosts.iter().map(|n| IpNet::from(IpAddr::from([10, 244, 1, *n]))).collect();
        world.attachments = hosts.iter().map(|n| attachment(&[&format!("10.244.1.{n}/32")])).collect();
        let first = world.desired();
        prop_assert_eq!(&first, &world.desired());
        world.leases = [others.clone(), others].concat().into();
        world.host_addresses.reverse();
        world.kernel_prefixes.reverse();
        world.attachments.reverse();
        world.attachments.extend(world.attachments.clone());
        prop_assert_eq!(first, world.desired());
    }

    /// However leases came about, one by one and in whatever order, what is desired is what they alone decide.
    #[test]
    fn the_decision_before_makes_no_difference(
        lists in prop::collection::vec(shuffled(), 1..6),
        mtu in prop::option::of(1300..1500u16),
        others in prop::collection::vec(0..4u8, 1..6),
    ) {
        // In the format and by the family with the fewest bytes in front, so that each peer's count decides the MTU.
        let own = lease("n1", "192.0.2.1", &["10.244.1.0/24"], Format::Udp);
        let mut world = World::of(DUAL, own, vec![]);
        let mut before = world.desired();
        for ((leases, shuffled), other) in lists.into_iter().zip(others) {
            for leases in [leases.clone(), leases.iter().rev().skip(1).cloned().collect(), shuffled] {
                world.leases = leases.into();
                match other {
                    0 => world.own.subnets = nets(&["10.244.1.0/24", "fd00:0:0:1::/64"]),
                    1 => world.config.ipv6_over_udp = !world.config.ipv6_over_udp,
                    2 => world.underlay_mtu = mtu.unwrap_or(1500),
                    _ => {}
                }
                let after = world.after(Some(&before));
                prop_assert_eq!(&after, &world.desired());
                before = after;
            }
        }
    }

    /// No subnet of another node is lost, none is invented, each stays with an address of its node, and no public
    /// address is in two peers.
    #[test]
    fn every_subnet_of_another_node_has_its_peer((leases, _) in shuffled(), dual in any::<bool>()) {
        let own = lease("n1", if dual { "192.0.2.1 and 2001:db8::1" } else { "192.0.2.1" }, &["10.244.1.0/24"], Format::Vxlan);
        let spec = World::of(V4, own.clone(), leases.clone()).desired().spec;
        let others: Vec<&Lease> = leases
            .iter()
            .filter(|lease| lease.name != own.name && !lease.public.iter().any(|a| own.public.contains(a)))
            .collect();
        let stays = |lease: &Lease, subnet: &IpNet| spec.cluster.peers.iter().any(|peer| {
            let known = |address: IpAddr| peer.public.contains(address) || peer.underlay_sources.contains(&address);
            peer.subnets.contains(subnet) && lease.public.iter().any(known)
        });
        for lease in &others {
            prop_assert!(lease.subnets.iter().all(|subnet| stays(lease, subnet)), "{lease:?}: {:?}", spec.cluster.peers);
        }
        for peer in &spec.cluster.peers {
            for subnet in &peer.subnets {
                prop_assert!(others.iter().any(|lease| lease.subnets.contains(subnet)), "invented: {peer:?}");
            }
        }
        let mut publics: Vec<IpAddr> = spec.cluster.peers.iter().flat_map(|peer| peer.public.iter()).collect();
        let count = publics.len();
        publics.sort_unstable();
        publics.dedup();
        prop_assert_eq!(publics.len(), count, "one peer per address");
    }
}
