use ipnet::IpNet;

use super::*;
use crate::config::RunArgs;
use crate::host::Underlay;
use crate::last_good::LastGood;
use crate::registry::parse;

const NET_CONF: &str = r#"{"Network":"10.244.0.0/16"}"#;

fn leases(net_conf: &NetConf, numbers: &[u8]) -> Vec<Lease> {
    let entry = |n: &u8| {
        format!(
            "[[node]]\nname = \"n{n}\"\nsubnets = [\"10.244.{n}.0/24\"]\npublic-ip = \"192.0.2.{n}\"\n"
        )
    };
    parse(&numbers.iter().map(entry).collect::<String>(), net_conf).unwrap()
}

fn node(root: &std::path::Path, past: u64) -> Node {
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
        released: Vec::new(),
        addresses: Vec::new(),
        bypassing: Vec::new(),
    };
    let config = NodeConfig::load(&args).unwrap();
    Node::new(
        Known {
            config,
            net_conf,
            net_conf_text: NET_CONF.into(),
            leases: leases.into(),
            bound: own.public,
            own,
            attachments: Vec::new(),
            facts,
        },
        past,
    )
}

#[test]
fn versions_grow_with_differences_alone_and_above_those_used_up() {
    let root = tempfile::tempdir().unwrap();
    let mut node = node(root.path(), 41);
    assert_eq!(node.desired.spec.version, 42);
    assert!(node.decide().is_none());
    // The host's side may differ where the tables do not.
    node.known.config.device_name = "other0".into();
    assert!(node.decide().is_none());
    assert_eq!(node.desired.host.device, "other0");
    node.known.facts.underlay.mtu = 9000;
    assert_eq!(node.decide().map(|spec| spec.version), Some(43));
    assert!(node.decide().is_none());
}

#[test]
fn a_refusal_changes_nothing_but_its_reason_and_a_list_takes_it_back() {
    let root = tempfile::tempdir().unwrap();
    let mut node = node(root.path(), 0);
    let before = node.desired.clone();
    let refused = Update::Refused {
        line: Some(7),
        reason: "no".into(),
    };
    node.learn(refused);
    assert!(node.decide().is_none());
    assert_eq!(node.desired, before);
    assert!(
        node.refused_leases
            .as_ref()
            .unwrap()
            .ends_with("nodes.toml line 7: no")
    );
    let list = leases(&node.known.net_conf, &[1, 2, 3]);
    node.learn(Update::Leases(list));
    assert_eq!(node.refused_leases, None);
    assert_eq!(node.decide().map(|spec| spec.cluster.peers.len()), Some(2));
}

#[test]
fn leases_from_the_last_good_state_are_told_as_such_until_a_list_is_adopted() {
    let root = tempfile::tempdir().unwrap();
    let mut node = node(root.path(), 0);
    let hour = Duration::from_secs(3600);
    node.cached.leases = Some(hour);
    assert!(node.cached.is_any() && node.leases_age() >= hour);
    let refused = Update::Refused {
        line: None,
        reason: "no".into(),
    };
    node.learn(refused);
    assert_eq!(node.cached.leases, Some(hour));
    node.learn(Update::Leases(node.known.leases.to_vec()));
    assert!(!node.cached.is_any() && node.leases_age() < hour);
}

#[test]
fn what_is_saved_is_what_is_in_force_at_its_age() {
    let root = tempfile::tempdir().unwrap();
    let mut node = node(root.path(), 0);
    node.cached.leases = Some(Duration::from_secs(3600));
    node.save().unwrap();
    let (config, now) = (&node.known.config, SystemTime::now());
    let saved = LastGood::read(&config.state_dir(), "n1", now);
    let saved = saved.unwrap().unwrap();
    assert_eq!(saved.leases, *node.known.leases);
    assert_eq!(
        (saved.own, saved.net_conf),
        (node.known.own.clone(), node.known.net_conf.clone())
    );
    assert!(
        (3600..3610).contains(&saved.age.as_secs()),
        "{:?}",
        saved.age
    );
}

#[test]
fn a_record_that_was_refused_is_served_once_what_was_in_its_way_is_gone() {
    let root = tempfile::tempdir().unwrap();
    let mut node = node(root.path(), 0);
    let run = node.known.config.run_dir();
    run.make().unwrap();
    let record = |container: &str| Attachment {
        version: Attachment::VERSION,
        container: container.into(),
        ifname: "eth0".into(),
        addresses: vec!["10.244.1.2/32".parse().unwrap()],
        ..Attachment::default()
    };
    record("a").write(&run).unwrap();
    node.reread_record("a", "eth0");
    record("b").write(&run).unwrap();
    node.reread_record("b", "eth0");
    let served = |node: &Node| {
        node.known
            .attachments
            .iter()
            .map(|a| a.container.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (served(&node), node.refused_records.len()),
        (vec!["a".to_owned()], 1)
    );
    record("a").remove(&run).unwrap();
    node.reread_record("a", "eth0");
    assert_eq!(
        (served(&node), node.refused_records.len()),
        (vec!["b".to_owned()], 0)
    );
    // Nobody asked for this one.
    record("b").remove(&run).unwrap();
    assert!(node.have_records_changed());
    node.reread_changed_records();
    assert!(served(&node).is_empty());
}

/// The kernel's route of a pod may be seen before its record goes and after, and by a look that is out of date.
#[test]
fn a_pods_route_is_published_with_its_record_and_no_longer() {
    let root = tempfile::tempdir().unwrap();
    let mut node = node(root.path(), 0);
    let pod: IpAddr = [10, 244, 1, 2].into();
    let prefixes = |node: &Node| node.desired.spec.local.kernel_prefixes.clone();
    let looked = |node: &mut Node, routed: bool| {
        let prefixes = routed.then(|| pod.into());
        node.known.facts.prefixes = prefixes.into_iter().collect();
        node.known.facts.forget_released();
    };
    let record = Attachment {
        version: Attachment::VERSION,
        addresses: vec![pod.into()],
        ..Attachment::default()
    };
    for routed_before in [true, false] {
        node.known.attachments = vec![record.clone()];
        assert!(node.decide().is_some());
        looked(&mut node, routed_before);
        assert!(node.decide().is_none(), "its route changes nothing");
        node.known.attachments.clear();
        let spec = node.decide().unwrap();
        assert_eq!(
            (&spec.local.attachments, &spec.local.kernel_prefixes),
            (&vec![], &vec![])
        );
        // Its interface is still there, and then it is gone.
        for routed in [true, true, false] {
            looked(&mut node, routed);
            assert!(node.decide().is_none() && prefixes(&node).is_empty());
        }
    }
    // A pod of another plugin has the address now.
    looked(&mut node, true);
    assert!(node.decide().is_some());
    assert_eq!(prefixes(&node), [IpNet::from(pod)]);
}

#[test]
fn a_list_without_us_is_ignored() {
    let root = tempfile::tempdir().unwrap();
    let mut node = node(root.path(), 0);
    node.learn(Update::Leases(leases(&node.known.net_conf, &[2, 3])));
    assert!(node.decide().is_none());
}

#[test]
fn until_the_sockets_move_nothing_of_ours_changes() {
    let root = tempfile::tempdir().unwrap();
    let mut node = node(root.path(), 0);
    let list = |address: &str, mac: &str| {
        let text = format!(
            "[[node]]\nname = \"n1\"\nsubnets = [\"10.244.1.0/24\"]\npublic-ip = \"{address}\"\n{mac}\
             [[node]]\nname = \"n2\"\nsubnets = [\"10.244.2.0/24\"]\npublic-ip = \"192.0.2.2\"\n"
        );
        Update::Leases(parse(&text, &NetConf::parse(NET_CONF).unwrap()).unwrap())
    };
    let mac = |text: &str| -> encap::Mac { text.parse().unwrap() };
    let before = node.desired.spec.cluster.node.clone();
    assert_eq!(before.vtep_mac, mac("0a:74:c0:00:02:01"));
    node.learn(list("192.0.2.9", ""));
    assert_eq!(node.known.wanted(), v4(9));
    assert!(node.decide().is_none());
    // A MAC that the list names follows the list.
    node.learn(list("192.0.2.9", "vtep-mac = \"02:00:00:00:00:09\"\n"));
    let spec = node.decide().unwrap();
    assert_eq!(
        (spec.cluster.node.public, spec.cluster.node.vtep_mac),
        (before.public, mac("02:00:00:00:00:09"))
    );
    node.learn(list("192.0.2.9", ""));
    node.known.bound = v4(9);
    let spec = node.decide().unwrap();
    assert_eq!(
        (spec.cluster.node.public, spec.cluster.node.vtep_mac),
        (v4(9), mac("0a:74:c0:00:02:09"))
    );
}

#[test]
fn behind_a_translator_the_listed_address_stays_in_force() {
    let root = tempfile::tempdir().unwrap();
    let mut node = node(root.path(), 0);
    node.known.config.public_v4 = Some([10, 0, 0, 1].into());
    node.known.bound = PublicAddresses::V4([10, 0, 0, 1].into());
    assert_eq!(node.known.own_in_force(), node.known.own);
    // Another local address that the host does not have yet: peers go on by the list, and our sockets are where they are.
    node.known.config.public_v4 = Some([10, 0, 0, 2].into());
    assert_eq!(node.known.own_in_force(), node.known.own);
    let spec = node.decide().unwrap().clone();
    assert_eq!(spec.cluster.node.public, node.known.bound);
    assert_eq!(spec.cluster.node.vtep_mac, node.known.own.vtep_mac.v4);
}

#[test]
fn a_family_without_sockets_is_not_in_force() {
    let root = tempfile::tempdir().unwrap();
    let mut node = node(root.path(), 0);
    let v6 = "2001:db8::1".parse().unwrap();
    node.known.own.public = PublicAddresses::Dual([192, 0, 2, 1].into(), v6);
    assert_eq!(node.known.own_in_force().public, v4(1));
    // Whoever reads the list computes the MAC from the IPv4 address.
    node.known.bound = PublicAddresses::V6(v6);
    let own = node.known.own_in_force();
    assert_eq!(own.public, PublicAddresses::V6(v6));
    assert_eq!(own.vtep_mac, node.known.own.vtep_mac);
}

fn v4(last: u8) -> PublicAddresses {
    PublicAddresses::V4([192, 0, 2, last].into())
}
