//! This node's own record cannot be written or read: the other nodes are followed all the same, and the refusal stays.

use std::time::Duration;

use dataplane::families::PublicAddresses;
use serde_json::json;

use super::cluster::{Cluster, Observed, V4, announcement, bare, data, flannel_node};

/// Changes a Node, adds one and deletes one; each must be followed, and `reason` be the refusal in the end.
async fn is_followed_beside(reason: &str, cluster: &Cluster, n1: &mut Observed) {
    n1.until("refusal", |now| now.reason().contains(reason))
        .await;
    let server = cluster.server();
    server.put_node(flannel_node(2));
    n1.until("n2", |now| now.names() == ["n1", "n2"]).await;
    server.put_node(flannel_node(3));
    n1.until("n3", |now| now.names() == ["n1", "n2", "n3"])
        .await;
    let mut moved = flannel_node(2);
    let annotations = &mut moved["metadata"]["annotations"];
    annotations["flannel.alpha.coreos.com/public-ip"] = json!("192.0.2.222");
    annotations["flannel.alpha.coreos.com/backend-data"] = json!(data(4, 22));
    server.put_node(moved);
    let address = PublicAddresses::V4([192, 0, 2, 222].into());
    n1.until("address", |now| now.lease("n2").unwrap().public == address)
        .await;
    assert_eq!(
        n1.lease("n2").unwrap().vtep_mac.v4.to_string(),
        "02:00:00:00:04:16"
    );
    server.delete_node("n2");
    n1.until("list", |now| now.names() == ["n1", "n3"]).await;
    n1.until("refusal", |now| now.reason().contains(reason))
        .await;
    assert_eq!(n1.for_a_while(Duration::from_millis(500)).await, 0);
}

/// A flanneld beside us writes its own MAC each time that we write ours.
#[tokio::test]
async fn nodes_are_followed_while_the_own_record_is_contested() {
    let cluster = Cluster::of_testbed().await;
    cluster.create(bare("n1", &["10.244.1.0/24"])).await;
    let mut n1 = Observed::joined(&cluster, V4).await;
    for round in 0..4 {
        cluster.wait_for("n1", "backend-data", &data(4, 1)).await;
        cluster
            .annotate("n1", &[("backend-data", json!(data(9, round)))])
            .await;
    }
    is_followed_beside("flanneld", &cluster, &mut n1).await;
    let own = n1.lease("n1").unwrap();
    assert_eq!(own.vtep_mac, announcement(1, V4).vtep_mac);
}

/// The first list is reported too: the credentials never allowed a write.
#[tokio::test]
async fn nodes_are_followed_while_writing_is_forbidden() {
    let cluster = Cluster::of_testbed().await;
    cluster.create(bare("n1", &["10.244.1.0/24"])).await;
    let server = cluster.server();
    server.allow("reader", "reader", &["list nodes", "watch nodes"]);
    let config = cluster.config_with("reader");
    let mut n1 = cluster.open_with(&config, "n1");
    n1.until("settings", |now| now.settings.is_some()).await;
    n1.registry.announce(announcement(1, V4));
    n1.until("leases", |now| now.names() == ["n1"]).await;
    is_followed_beside("403", &cluster, &mut n1).await;
    assert!(n1.is_in_touch());
}

#[tokio::test]
async fn nodes_are_followed_while_writing_fails() {
    let cluster = Cluster::of_testbed().await;
    cluster.create(bare("n1", &["10.244.1.0/24"])).await;
    let mut n1 = Observed::joined(&cluster, V4).await;
    n1.for_a_while(Duration::from_millis(500)).await;
    // The watch is open, so what fails are the patches that write the annotations back.
    cluster.server().fail(500, 1000, None);
    cluster.server().put_node(bare("n1", &["10.244.1.0/24"]));
    is_followed_beside("500", &cluster, &mut n1).await;
}

#[tokio::test]
async fn nodes_are_followed_beside_a_malformed_annotation() {
    for name in ["node-public-ip", "public-ip-overwrite"] {
        let cluster = Cluster::of_testbed().await;
        cluster.create(bare("n1", &["10.244.1.0/24"])).await;
        let mut n1 = Observed::joined(&cluster, V4).await;
        cluster.annotate("n1", &[(name, json!("eth0"))]).await;
        is_followed_beside(name, &cluster, &mut n1).await;
        cluster.annotate("n1", &[(name, json!(null))]).await;
        n1.until("list", |now| now.refusal.is_none()).await;
    }
}

/// A Node that was re-created after its machine died has the address that the dead Node still names.
#[tokio::test]
async fn the_younger_of_two_nodes_with_one_address_is_in_force() {
    let cluster = Cluster::of_testbed().await;
    let created = |mut node: serde_json::Value, at: &str| {
        node["metadata"]["creationTimestamp"] = json!(at);
        node
    };
    let server = cluster.server();
    server.put_node(bare("n1", &["10.244.1.0/24"]));
    server.put_node(created(flannel_node(2), "2026-01-01T00:00:00Z"));
    let mut n1 = Observed::joined(&cluster, V4).await;
    n1.until("n2", |now| now.names() == ["n1", "n2"]).await;
    let mut younger = flannel_node(3);
    younger["metadata"]["annotations"]["flannel.alpha.coreos.com/public-ip"] = json!("192.0.2.2");
    server.put_node(created(younger, "2026-02-01T00:00:00Z"));
    n1.until("n3", |now| now.names() == ["n1", "n3"]).await;
    n1.until("refused record", |now| !now.refused_records.is_empty())
        .await;
    let refused = &n1.refused_records[0];
    assert_eq!(refused.name, "n2");
    assert!(refused.reason.contains("n3"), "{}", refused.reason);
    server.delete_node("n2");
    n1.until("no refused record", |now| now.refused_records.is_empty())
        .await;
    assert_eq!(n1.names(), ["n1", "n3"]);
}

/// Of a Node that says already what it must, nothing is written when the service starts anew.
#[tokio::test]
async fn a_restart_writes_nothing() {
    let cluster = Cluster::of_testbed().await;
    cluster.create(bare("n1", &["10.244.1.0/24"])).await;
    let mut n1 = Observed::joined(&cluster, V4).await;
    let patches = || {
        let requests = cluster.server().requests();
        requests.iter().filter(|r| r.method == "PATCH").count()
    };
    n1.for_a_while(Duration::from_millis(500)).await;
    assert_eq!(patches(), 2, "annotations and condition");
    drop(n1);
    let mut n1 = Observed::joined(&cluster, V4).await;
    n1.for_a_while(Duration::from_millis(500)).await;
    assert_eq!(patches(), 2);
    drop(n1);
    let unavailable = json!({"status": {"conditions": [
        {"type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated"},
    ]}});
    cluster.patch_status("n1", unavailable).await;
    let before = patches();
    let mut n1 = Observed::joined(&cluster, V4).await;
    n1.for_a_while(Duration::from_millis(500)).await;
    assert_eq!(patches(), before + 1);
}
