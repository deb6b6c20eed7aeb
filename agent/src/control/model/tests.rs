use ipnet::IpNet;

use super::*;
use crate::config::RunArgs;
use crate::control::diagnosis;
use crate::host::{ForeignBridge, Underlay};
use crate::last_good::LastGood;
use crate::registry::{RegistryPlace, parse};

const NET_CONF: &str = r#"{"Network":"10.244.0.0/16"}"#;

fn leases(net_conf: &NetConf, numbers: &[u8]) -> Vec<Lease> {
    let entry = |n: &u8| {
        format!(
            "[[node]]\nname = \"n{n}\"\nsubnets = [\"10.244.{n}.0/24\"]\npublic-ip = \"192.0.2.{n}\"\n"
        )
    };
    parse(&numbers.iter().map(entry).collect::<String>(), net_conf).unwrap()
}

/// Of a node with one peer.
pub(crate) fn model(root: &std::path::Path, past: u64) -> Model {
    let args = RunArgs {
        root: Some(root.to_owned()),
        node_name: Some("n1".into()),
        ..RunArgs::default()
    };
    let net_conf = NetConf::parse(NET_CONF).unwrap();
    let leases = leases(&net_conf, &[1, 2]);
    let own = leases[0].clone();
    let underlay = Underlay {
        name: "eth0".into(),
        mtu: 1500,
        out_of_service: Vec::new(),
    };
    let facts = Facts {
        underlay,
        prefixes: Vec::new(),
        pod_links: Vec::new(),
        addresses: Vec::new(),
        released: Vec::new(),
        bypassing: Arc::default(),
        direct: Arc::default(),
        flannel_devices: Vec::new(),
        foreign_bridges: Vec::new(),
    };
    let config = Arc::new(NodeConfig::load(&args).unwrap());
    Model::new(
        Known {
            config,
            net_conf,
            net_conf_text: NET_CONF.into(),
            leases: leases.into(),
            external: None,
            bound: own.public,
            device_mac: None,
            own,
            facts,
        },
        past,
    )
}

#[test]
fn versions_grow_with_differences_alone_and_above_those_used_up() {
    let root = tempfile::tempdir().unwrap();
    let mut model = model(root.path(), 41);
    assert_eq!(model.desired.spec.version, 42);
    assert!(model.decide().is_none());
    // The host's side may differ where the tables do not.
    Arc::make_mut(&mut model.known.config).device_name = "other0".into();
    assert!(model.decide().is_none());
    assert_eq!(model.desired.host.device, "other0");
    model.known.facts.underlay.mtu = 9000;
    assert_eq!(model.decide().map(|spec| spec.version), Some(43));
    assert!(model.decide().is_none());
}

#[test]
fn a_refusal_changes_nothing_but_its_reason_and_a_list_takes_it_back() {
    let root = tempfile::tempdir().unwrap();
    let mut model = model(root.path(), 0);
    let before = model.desired.clone();
    let refused = Update::Refused {
        place: RegistryPlace::File {
            path: "/etc/tartan/nodes.toml".into(),
            line: Some(7),
        },
        reason: "no".into(),
    };
    let problem = model.learn(refused).unwrap();
    assert!(model.decide().is_none());
    assert_eq!(model.desired, before);
    let sentence = problem.sentence();
    assert!(sentence.ends_with("nodes.toml line 7: no"), "{sentence}");
    assert!(
        sentence.contains("the old one stays in force"),
        "{sentence}"
    );
    let list = leases(&model.known.net_conf, &[1, 2, 3]);
    assert_eq!(model.learn(Update::Leases(list)), None);
    assert_eq!(model.decide().map(|spec| spec.cluster.peers.len()), Some(2));
}

#[test]
fn leases_from_the_last_good_state_are_told_as_such_until_a_list_is_adopted() {
    let root = tempfile::tempdir().unwrap();
    let mut model = model(root.path(), 0);
    let hour = Duration::from_secs(3600);
    model.cached.leases = Some(hour);
    assert!(model.cached.is_any() && model.leases_age() >= hour);
    let refused = Update::Refused {
        place: RegistryPlace::File {
            path: "/etc/tartan/nodes.toml".into(),
            line: None,
        },
        reason: "no".into(),
    };
    let problem = model.learn(refused).unwrap();
    assert!(
        problem
            .sentence()
            .contains("leases from cache stay in force")
    );
    assert_eq!(model.cached.leases, Some(hour));
    model.cached.is_held = true;
    assert!(!model.cached.is_any() && model.leases_age() >= hour);
    let refused = Update::Refused {
        place: RegistryPlace::File {
            path: "/etc/tartan/nodes.toml".into(),
            line: None,
        },
        reason: "no".into(),
    };
    model.learn(refused);
    assert!(model.cached.is_any(), "the list that was held back is gone");
    model.learn(Update::Leases(model.known.leases.to_vec()));
    assert!(!model.cached.is_any() && model.leases_age() < hour);
}

#[test]
fn what_is_saved_is_what_is_in_force_at_its_age() {
    let root = tempfile::tempdir().unwrap();
    let mut model = model(root.path(), 0);
    model.cached.leases = Some(Duration::from_secs(3600));
    model.save().unwrap();
    let (config, now) = (&model.known.config, SystemTime::now());
    let saved = LastGood::read(&config.state_dir(), "n1", now);
    let saved = saved.unwrap().unwrap();
    assert_eq!(saved.leases, *model.known.leases);
    assert_eq!(
        (saved.own, saved.net_conf),
        (model.known.own.clone(), model.known.net_conf.clone())
    );
    assert!(
        (3600..3610).contains(&saved.age.as_secs()),
        "{:?}",
        saved.age
    );
}

/// The kernel's route of a pod may be seen before its record goes and after, and by a look that is out of date.
#[test]
fn a_pods_route_is_published_with_its_record_and_no_longer() {
    let root = tempfile::tempdir().unwrap();
    let mut model = model(root.path(), 0);
    let run = model.known.config.run_dir();
    run.make().unwrap();
    let pod: IpAddr = [10, 244, 1, 2].into();
    let prefixes = |model: &Model| model.desired.spec.local.kernel_prefixes.clone();
    let looked = |model: &mut Model, routed: bool| {
        let prefixes = routed.then(|| pod.into());
        model.known.facts.prefixes = prefixes.into_iter().collect();
        model.known.facts.forget_released();
    };
    let record = Attachment {
        version: Attachment::VERSION,
        container: "a".into(),
        ifname: "eth0".into(),
        addresses: vec![pod.into()],
        ..Attachment::default()
    };
    for routed_before in [true, false] {
        record.write(&run).unwrap();
        model.reread_record("a", "eth0");
        assert!(model.decide().is_some());
        looked(&mut model, routed_before);
        assert!(model.decide().is_none(), "its route changes nothing");
        record.remove(&run).unwrap();
        model.reread_record("a", "eth0");
        let spec = model.decide().unwrap();
        assert_eq!(
            (&spec.local.attachments, &spec.local.kernel_prefixes),
            (&vec![], &vec![])
        );
        // Its interface is still there, and then it is gone.
        for routed in [true, true, false] {
            looked(&mut model, routed);
            assert!(model.decide().is_none() && prefixes(&model).is_empty());
        }
    }
    // A pod of another plugin has the address now.
    looked(&mut model, true);
    assert!(model.decide().is_some());
    assert_eq!(prefixes(&model), [IpNet::from(pod)]);
}

/// The kernel announces the pod's route before its plugin asks, and long before a limit is in force.
#[test]
fn an_attachment_that_waits_for_its_limit_is_not_served_by_its_route() {
    let root = tempfile::tempdir().unwrap();
    let mut model = model(root.path(), 0);
    let run = model.known.config.run_dir();
    run.make().unwrap();
    let pod: IpAddr = [10, 244, 1, 2].into();
    let limit = cni_shim::RateLimit {
        rate: 1_000_000,
        burst: 100_000,
    };
    let record = Attachment {
        version: Attachment::VERSION,
        container: "a".into(),
        ifname: "eth0".into(),
        addresses: vec![pod.into()],
        bandwidth: Some(cni_shim::Bandwidth {
            ingress: Some(limit),
            egress: None,
        }),
        ..Attachment::default()
    };
    record.write(&run).unwrap();
    model.reread_record("a", "eth0");
    model.known.facts.prefixes = vec![pod.into()];
    assert!(model.decide().is_none());
    let key = super::super::records::key(&record);
    model.records.limit_is_in_force(key);
    let spec = model.decide().unwrap();
    assert_eq!(
        (&spec.local.attachments, spec.local.kernel_prefixes.len()),
        (&vec![pod], 0)
    );
}

#[test]
fn what_other_programs_left_and_a_narrow_underlay_are_problems() {
    let root = tempfile::tempdir().unwrap();
    let mut model = model(root.path(), 0);
    let codes = |model: &Model| -> Vec<&'static str> {
        let problems = diagnosis::problems(model, &[]);
        problems.iter().map(Problem::code).collect()
    };
    assert_eq!(codes(&model), [""; 0]);
    model.known.net_conf = NetConf::parse(
        r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "MTU": 1600}}"#,
    )
    .unwrap();
    let facts = &mut model.known.facts;
    facts.flannel_devices = vec![("flannel.1".into(), "10.244.1.0/32".parse().unwrap())];
    facts.foreign_bridges = vec![ForeignBridge {
        name: "cni0".into(),
        address: "10.244.9.1/24".parse().unwrap(),
    }];
    let found = [
        "underlay-below-mtu",
        "flannel-left-over",
        "bridge-other-subnet",
    ];
    assert_eq!(codes(&model), found);
    model.known.facts.underlay.mtu = 1600;
    assert_eq!(codes(&model), &found[1..]);
}

#[test]
fn a_list_without_us_is_ignored() {
    let root = tempfile::tempdir().unwrap();
    let mut model = model(root.path(), 0);
    model.learn(Update::Leases(leases(&model.known.net_conf, &[2, 3])));
    assert!(model.decide().is_none());
}

#[test]
fn until_the_sockets_move_nothing_of_ours_changes() {
    let root = tempfile::tempdir().unwrap();
    let mut model = model(root.path(), 0);
    let list = |address: &str, mac: &str| {
        let text = format!(
            "[[node]]\nname = \"n1\"\nsubnets = [\"10.244.1.0/24\"]\npublic-ip = \"{address}\"\n{mac}\
             [[node]]\nname = \"n2\"\nsubnets = [\"10.244.2.0/24\"]\npublic-ip = \"192.0.2.2\"\n"
        );
        Update::Leases(parse(&text, &NetConf::parse(NET_CONF).unwrap()).unwrap())
    };
    let mac = |text: &str| -> encap::Mac { text.parse().unwrap() };
    let before = model.desired.spec.cluster.node.clone();
    assert_eq!(before.vtep_mac.v4, mac("0a:74:c0:00:02:01"));
    model.learn(list("192.0.2.9", ""));
    assert_eq!(model.known.wanted(), v4(9));
    assert!(model.decide().is_none());
    // A MAC that the list names follows the list.
    model.learn(list("192.0.2.9", "vtep-mac = \"02:00:00:00:00:09\"\n"));
    let spec = model.decide().unwrap();
    assert_eq!(
        (spec.cluster.node.public, spec.cluster.node.vtep_mac.v4),
        (before.public, mac("02:00:00:00:00:09"))
    );
    model.learn(list("192.0.2.9", ""));
    model.known.bound = v4(9);
    let spec = model.decide().unwrap();
    assert_eq!(
        (spec.cluster.node.public, spec.cluster.node.vtep_mac.v4),
        (v4(9), mac("0a:74:c0:00:02:09"))
    );
}

#[test]
fn behind_a_translator_the_listed_address_stays_in_force() {
    let root = tempfile::tempdir().unwrap();
    let mut model = model(root.path(), 0);
    Arc::make_mut(&mut model.known.config).local_v4 = Some([10, 0, 0, 1].into());
    model.known.bound = PublicAddresses::V4([10, 0, 0, 1].into());
    assert_eq!(model.known.own_in_force(), model.known.own);
    // Another local address that the host does not have yet: peers go on by the list, and our sockets are where they are.
    Arc::make_mut(&mut model.known.config).local_v4 = Some([10, 0, 0, 2].into());
    assert_eq!(model.known.own_in_force(), model.known.own);
    let spec = model.decide().unwrap().clone();
    assert_eq!(spec.cluster.node.public, model.known.bound);
    assert_eq!(spec.cluster.node.vtep_mac, model.known.own.vtep_mac);
}

#[test]
fn a_family_without_sockets_is_not_in_force() {
    let root = tempfile::tempdir().unwrap();
    let mut model = model(root.path(), 0);
    let v6 = "2001:db8::1".parse().unwrap();
    model.known.own.public = PublicAddresses::Dual([192, 0, 2, 1].into(), v6);
    assert_eq!(model.known.own_in_force().public, v4(1));
    // A peer that reads the list computes the MAC from the IPv4 address.
    model.known.bound = PublicAddresses::V6(v6);
    let own = model.known.own_in_force();
    assert_eq!(own.public, PublicAddresses::V6(v6));
    assert_eq!(own.vtep_mac, model.known.own.vtep_mac);
}

fn v4(last: u8) -> PublicAddresses {
    PublicAddresses::V4([192, 0, 2, last].into())
}
