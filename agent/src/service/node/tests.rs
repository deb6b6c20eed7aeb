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
    };
    let facts = Facts {
        underlay,
        prefixes: Vec::new(),
        addresses: Vec::new(),
        bypassing: Vec::new(),
    };
    let config = NodeConfig::load(&args).unwrap();
    Node::new(
        Known {
            config,
            net_conf,
            net_conf_text: NET_CONF.into(),
            leases,
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
    assert!(!node.learn(refused));
    assert!(node.decide().is_none());
    assert_eq!(node.desired, before);
    assert!(
        node.refused_leases
            .as_ref()
            .unwrap()
            .ends_with("nodes.toml line 7: no")
    );
    let list = leases(&node.known.net_conf, &[1, 2, 3]);
    assert!(!node.learn(Update::Leases(list)));
    assert_eq!(node.refused_leases, None);
    assert_eq!(node.decide().map(|spec| spec.peers.len()), Some(2));
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
    node.learn(Update::Leases(node.known.leases.clone()));
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
    assert_eq!(saved.leases, node.known.leases);
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
fn a_list_without_us_is_ignored_and_another_address_of_ours_is_told() {
    let root = tempfile::tempdir().unwrap();
    let mut node = node(root.path(), 0);
    let others = leases(&node.known.net_conf, &[2, 3]);
    assert!(!node.learn(Update::Leases(others)));
    assert!(node.decide().is_none());
    let mut moved = leases(&node.known.net_conf, &[1, 2]);
    moved[0].public = PublicAddresses::V4([192, 0, 2, 9].into());
    assert!(node.learn(Update::Leases(moved)));
}
