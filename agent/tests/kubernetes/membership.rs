//! Nodes join, change and leave.

use std::time::Duration;

use dataplane::families::PublicAddresses;
use encap::Format;
use serde_json::json;
use tartan::registry;

use super::cluster::{Cluster, DUAL, Observed, UDP, V4, bare, data, dual_node, flannel_node};

/// A change is seen within this time.
const SEEN: Duration = Duration::from_secs(2);

#[tokio::test]
async fn nodes_join_change_and_leave() {
    let cluster = Cluster::start().await;
    cluster.create(bare("n1", &["10.244.1.0/24"])).await;
    cluster.create(flannel_node(2)).await;
    let mut n1 = Observed::joined(&cluster, V4).await;
    assert_eq!(n1.names(), ["n1", "n2"]);
    assert!(n1.is_in_touch());

    cluster.create(flannel_node(3)).await;
    let took = n1.until("n3", |now| now.lease("n3").is_some()).await;
    assert!(took < SEEN, "{took:?}");

    cluster
        .annotate("n3", &[("backend-data", json!(data(4, 99)))])
        .await;
    n1.within(SEEN, "MAC", |now| {
        now.lease("n3").unwrap().vtep_mac.v4.to_string() == "02:00:00:00:04:63"
    })
    .await;

    cluster
        .annotate("n3", &[("public-ip", json!("192.0.2.99"))])
        .await;
    let moved = PublicAddresses::V4([192, 0, 2, 99].into());
    n1.within(SEEN, "address", |now| {
        now.lease("n3").unwrap().public == moved
    })
    .await;

    cluster.delete("n3").await;
    n1.within(SEEN, "leaving", |now| now.lease("n3").is_none())
        .await;

    cluster
        .annotate("n2", &[("kube-subnet-manager", json!(null))])
        .await;
    n1.within(SEEN, "n2 unmanaged", |now| now.names() == ["n1"])
        .await;
    assert_eq!(n1.refused_records, []);
}

#[tokio::test]
async fn what_is_reported_passes_the_checks_of_a_list() {
    let cluster = Cluster::start().await;
    cluster
        .create(bare("n1", &["10.244.1.0/24", "fd00:244:0:1::/64"]))
        .await;
    for i in 2..8 {
        cluster.create(dual_node(i)).await;
    }
    let n1 = Observed::joined(&cluster, DUAL).await;
    assert_eq!(n1.leases.len(), 7);
    let net_conf = tartan::config::NetConf::parse(DUAL).unwrap();
    let read = registry::parse(&registry::render(&n1.leases), &net_conf).unwrap();
    assert_eq!(read, n1.leases);
    registry::own(&n1.leases, "n1").unwrap();
}

#[tokio::test]
async fn udp_nodes_have_no_data() {
    let cluster = Cluster::start().await;
    cluster.create(bare("n1", &["10.244.1.0/24"])).await;
    cluster.create(flannel_node(2)).await;
    let change = [("backend-type", json!("")), ("backend-data", json!("null"))];
    cluster.annotate("n2", &change).await;
    let n1 = Observed::joined(&cluster, UDP).await;
    assert!(n1.leases.iter().all(|lease| lease.format == Format::Udp));
    assert_eq!(n1.names(), ["n1", "n2"]);
    let expected = [
        "backend-data=null",
        "backend-type=",
        "kube-subnet-manager=true",
        "public-ip=192.0.2.1",
    ];
    assert_eq!(cluster.annotations("n1").await, expected);
}

#[tokio::test]
async fn a_malformed_record_costs_no_other() {
    let cluster = Cluster::start().await;
    cluster.create(bare("n1", &["10.244.1.0/24"])).await;
    for i in 2..=5 {
        cluster.create(flannel_node(i)).await;
    }
    let mut n1 = Observed::joined(&cluster, V4).await;
    for (name, key, value) in [
        ("n2", "backend-data", "nonsense"),
        ("n3", "public-ip", "10.244.9.9"),
        ("n4", "backend-type", "host-gw"),
    ] {
        cluster.annotate(name, &[(key, json!(value))]).await;
    }
    n1.until("refusals", |now| now.refused_records.len() == 3)
        .await;
    n1.until("the rest", |now| now.names() == ["n1", "n5"])
        .await;
    let reasons: Vec<_> = n1
        .refused_records
        .iter()
        .map(|r| (r.name.as_str(), r.reason.as_str()))
        .collect();
    for (name, part) in [
        ("n2", "backend-data"),
        ("n3", "10.244.0.0/16"),
        ("n4", "host-gw"),
    ] {
        let found = reasons.iter().find(|(of, _)| *of == name).unwrap();
        assert!(found.1.contains(part), "{found:?}");
    }
    cluster
        .annotate("n2", &[("backend-data", json!(data(4, 2)))])
        .await;
    n1.until("n2 again", |now| now.lease("n2").is_some()).await;
}

/// Of two Nodes with one subnet the older is in force.
#[tokio::test]
async fn the_older_node_keeps_its_subnet() {
    let cluster = Cluster::start().await;
    cluster.create(bare("n1", &["10.244.1.0/24"])).await;
    cluster.create(flannel_node(3)).await;
    // Times of creation have whole seconds.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let mut twin = flannel_node(2);
    twin["spec"] = json!({"podCIDR": "10.244.3.0/24", "podCIDRs": ["10.244.3.0/24"]});
    cluster.create(twin).await;
    let n1 = Observed::joined(&cluster, V4).await;
    assert_eq!(n1.names(), ["n1", "n3"]);
    assert_eq!(n1.refused_records[0].name, "n2");
    assert!(
        n1.refused_records[0].reason.contains("n3"),
        "{:?}",
        n1.refused_records
    );
}

/// flannel compares the IPv4 annotations, then the IPv6 ones, and keeps the second result alone.
#[tokio::test]
async fn a_dual_stack_partial_update_is_not_missed() {
    let cluster = Cluster::start().await;
    cluster
        .create(bare("n1", &["10.244.1.0/24", "fd00:244:0:1::/64"]))
        .await;
    cluster.create(dual_node(2)).await;
    let mut n1 = Observed::joined(&cluster, DUAL).await;
    cluster
        .annotate("n2", &[("backend-v6-data", json!(data(6, 99)))])
        .await;
    n1.within(SEEN, "MAC of IPv6", |now| {
        now.lease("n2").unwrap().vtep_mac.v6.to_string() == "02:00:00:00:06:63"
    })
    .await;
    cluster
        .annotate("n2", &[("backend-data", json!(data(4, 98)))])
        .await;
    n1.within(SEEN, "MAC of IPv4", |now| {
        now.lease("n2").unwrap().vtep_mac.v4.to_string() == "02:00:00:00:04:62"
    })
    .await;
    cluster
        .annotate("n2", &[("public-ipv6", json!("2001:db8::99"))])
        .await;
    n1.within(SEEN, "IPv6 address", |now| {
        now.lease("n2")
            .unwrap()
            .public
            .iter()
            .any(|a| a.to_string() == "2001:db8::99")
    })
    .await;
}
