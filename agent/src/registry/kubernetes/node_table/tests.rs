use super::*;
use crate::registry::kubernetes::node::Annotations;
use crate::registry::records;

const DUAL: &str = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48","Backend":{"Type":"vxlan"}}"#;

fn names() -> Names {
    Names::below("flannel.alpha.coreos.com")
}

fn net_conf() -> NetConf {
    NetConf::parse(DUAL).unwrap()
}

/// The vxlan node number `i`, of version `version`.
fn node(i: u8, version: u64, change: (&str, &str)) -> Node {
    let data = format!(r#"{{"VNI":1,"VtepMAC":"02:00:00:00:04:{i:02x}"}}"#);
    let v6_data = format!(r#"{{"VNI":1,"VtepMAC":"02:00:00:00:06:{i:02x}"}}"#);
    let mut pairs = vec![
        ("kube-subnet-manager", "true".to_owned()),
        ("backend-type", "vxlan".to_owned()),
        ("backend-data", data),
        ("backend-v6-data", v6_data),
        ("public-ip", format!("192.0.2.{i}")),
        ("public-ipv6", format!("2001:db8::{i}")),
    ];
    pairs.retain(|(name, _)| *name != change.0);
    pairs.push((change.0, change.1.to_owned()));
    let pairs: Vec<_> = pairs
        .into_iter()
        .map(|(name, value)| (format!("flannel.alpha.coreos.com/{name}"), value))
        .collect();
    let mut node: Node = serde_json::from_str(&format!(
        r#"{{"metadata":{{"name":"n{i}","uid":"u{i}","resourceVersion":"{version}",
            "creationTimestamp":"2026-01-01T00:00:{i:02}Z"}},
            "spec":{{"podCIDRs":["10.244.{i}.0/24","fd00:244:0:{i}::/64"]}}}}"#
    ))
    .unwrap();
    let pairs = pairs
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    node.metadata.annotations = Annotations::of(pairs);
    node
}

const AS_IT_IS: (&str, &str) = ("", "");

fn own() -> Lease {
    let own = lease(&node(1, 1, AS_IT_IS), &names(), &net_conf());
    own.unwrap().unwrap()
}

fn table(nodes: impl IntoIterator<Item = Node>) -> NodeTable {
    let mut table = NodeTable::default();
    table.replace(nodes.into_iter().collect());
    table
}

#[test]
fn the_oldest_node_comes_first_and_ours_before_it() {
    let table = table([3, 1, 2, 4].map(|i| node(i, 1, AS_IT_IS)));
    let (candidates, refused) = table.candidates(own(), &names(), &net_conf());
    let order: Vec<_> = candidates.iter().map(|c| c.lease.name.as_str()).collect();
    assert_eq!(order, ["n1", "n2", "n3", "n4"]);
    assert!(candidates[0].is_own && !candidates[1].is_own);
    assert_eq!(refused, []);
    let (leases, refused) = records::check(candidates, &net_conf());
    assert_eq!((leases.len(), refused.len()), (4, 0));
}

#[test]
fn a_record_that_cannot_be_read_costs_no_other() {
    let bad = node(2, 1, ("public-ip", "nonsense"));
    let table = table([node(1, 1, AS_IT_IS), bad, node(3, 1, AS_IT_IS)]);
    let (candidates, refused) = table.candidates(own(), &names(), &net_conf());
    assert_eq!(candidates.len(), 2);
    let [refused] = refused.as_slice() else {
        panic!("{refused:?}");
    };
    assert_eq!(refused.place.to_string(), "Kubernetes node n2");
    assert_eq!(refused.public, Some("2001:db8::2".parse().unwrap()));
    assert_eq!(refused.subnets.len(), 2);
    assert!(refused.reason.contains("public-ip"), "{}", refused.reason);
}

/// flannel's second comparison, of the IPv6 annotations, replaces the result of the first.
#[test]
fn a_dual_stack_partial_update_is_not_missed() {
    let mut table = table([node(2, 1, AS_IT_IS)]);
    let mac = r#"{"VNI":1,"VtepMAC":"02:00:00:00:00:99"}"#;
    for (version, change) in [
        (2, ("backend-data", mac)),
        (3, ("backend-v6-data", mac)),
        (4, ("public-ip", "192.0.2.9")),
        (5, ("public-ipv6", "2001:db8::9")),
    ] {
        assert!(table.apply(node(2, version, change)), "{change:?}");
        assert!(!table.apply(node(2, version, change)), "again {change:?}");
    }
}

#[test]
fn a_change_of_something_else_is_none() {
    let mut table = table([node(2, 1, AS_IT_IS)]);
    assert!(!table.apply(node(2, 2, AS_IT_IS)));
    assert_eq!(table.get("n2").unwrap().metadata.resource_version, "2");
}

#[test]
fn an_older_state_is_passed_over_unless_the_node_was_made_anew() {
    let mut table = table([node(2, 7, AS_IT_IS)]);
    assert!(!table.apply(node(2, 6, ("public-ip", "192.0.2.9"))));
    let mut anew = node(2, 5, AS_IT_IS);
    anew.metadata.uid = "another".to_owned();
    assert!(table.apply(anew.clone()));
    assert!(!table.remove(&node(2, 8, AS_IT_IS)), "the one before");
    assert!(table.remove(&anew));
    assert!(table.get("n2").is_none());
}

#[test]
fn pod_cidrs_are_one_of_each_family() {
    let read = |text: &str| pod_cidrs(&serde_json::from_str(text).unwrap());
    assert_eq!(
        read(r#"{"podCIDRs":["10.244.1.7/24"]}"#).unwrap()[0].to_string(),
        "10.244.1.0/24"
    );
    assert_eq!(read("{}"), Err(PodCidrFault::Missing));
    assert_eq!(
        read(r#"{"podCIDRs":["10.244.1.0/24","fd00::/64","fd01::/64"]}"#),
        Err(PodCidrFault::Many(3))
    );
    assert!(matches!(
        read(r#"{"podCIDRs":["10.244.1.0/24","10.244.2.0/24"]}"#),
        Err(PodCidrFault::SameFamily(..))
    ));
    assert!(matches!(
        read(r#"{"podCIDR":"10.244.1.0"}"#),
        Err(PodCidrFault::Malformed(_))
    ));
}

#[test]
fn the_pod_cidr_of_a_family_without_network_is_not_used() {
    let v4 = NetConf::parse(r#"{"Network":"10.244.0.0/16"}"#).unwrap();
    let lease = lease(&node(2, 1, AS_IT_IS), &names(), &v4)
        .unwrap()
        .unwrap();
    assert_eq!(lease.subnets, ["10.244.2.0/24".parse().unwrap()]);
}
