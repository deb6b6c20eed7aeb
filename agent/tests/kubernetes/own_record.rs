//! This node's own Node.

use std::time::Duration;

use dataplane::families::PublicAddresses;
use serde_json::json;
use tartan::config::node::registry::KubernetesConfig;
use tartan::registry::Announcement;

use super::cluster::{
    Cluster, DUAL, Observed, PREFIX, UDP, V4, announcement, bare, data, flannel_node,
};

/// flannel assigns to the nil map of a Node without annotations, and panics.
#[tokio::test]
async fn nil_annotations_do_not_panic() {
    let cluster = Cluster::start().await;
    cluster.create(bare("n1", &["10.244.1.0/24"])).await;
    let n1 = Observed::joined(&cluster, V4).await;
    assert_eq!(n1.names(), ["n1"]);
    let expected = [
        &format!("backend-data={}", data(4, 1)),
        "backend-type=vxlan",
        "kube-subnet-manager=true",
        "public-ip=192.0.2.1",
    ];
    assert_eq!(cluster.annotations("n1").await, expected);
}

#[tokio::test]
async fn annotations_are_flannels_byte_for_byte() {
    let cluster = Cluster::start().await;
    cluster
        .create(bare("n1", &["10.244.1.0/24", "fd00:244:0:1::/64"]))
        .await;
    let n1 = Observed::joined(&cluster, DUAL).await;
    let expected = [
        r#"backend-data={"VNI":1,"VtepMAC":"02:00:00:00:04:01"}"#,
        "backend-type=vxlan",
        r#"backend-v6-data={"VNI":1,"VtepMAC":"02:00:00:00:06:01"}"#,
        "kube-subnet-manager=true",
        "public-ip=192.0.2.1",
        "public-ipv6=2001:db8::1",
    ];
    assert_eq!(cluster.annotations("n1").await, expected);
    let lease = n1.lease("n1").unwrap();
    // An old API server keeps one podCIDR alone.
    let assigned = cluster.node("n1").await.spec.unwrap().pod_cidrs.unwrap();
    assert_eq!(lease.subnets.len(), assigned.len());
    assert_eq!(lease.vtep_mac, announcement(1, DUAL).vtep_mac);
}

#[tokio::test]
async fn a_mac_that_is_there_is_kept_and_nothing_else_is_written() {
    let cluster = Cluster::of_testbed().await;
    let mut node = flannel_node(1);
    node["metadata"]["annotations"]["flannel.alpha.coreos.com/backend-data"] = json!(data(9, 9));
    cluster.create(node).await;
    let config = KubernetesConfig {
        set_network_unavailable: false,
        ..cluster.config()
    };
    let mut n1 = cluster.open_with(&config, "n1");
    n1.until("settings", |now| now.settings.is_some()).await;
    n1.registry.announce(announcement(1, V4));
    n1.until("leases", |now| !now.leases.is_empty()).await;
    assert_eq!(
        n1.lease("n1").unwrap().vtep_mac.v4.to_string(),
        "02:00:00:00:09:09"
    );
    let requests = cluster.server().requests();
    assert!(
        requests.iter().all(|request| request.method != "PATCH"),
        "{requests:?}"
    );
}

#[tokio::test]
async fn another_announcement_changes_what_differs() {
    let cluster = Cluster::start().await;
    cluster.create(bare("n1", &["10.244.1.0/24"])).await;
    let mut n1 = Observed::joined(&cluster, V4).await;
    let moved = PublicAddresses::V4([192, 0, 2, 77].into());
    let mut other = announcement(1, V4);
    other.public = moved;
    n1.registry.announce(other);
    n1.until("address", |now| now.lease("n1").unwrap().public == moved)
        .await;
    assert!(
        cluster
            .annotations("n1")
            .await
            .contains(&"public-ip=192.0.2.77".to_owned())
    );
}

#[tokio::test]
async fn an_overwrite_is_followed() {
    let cluster = Cluster::start().await;
    cluster.create(bare("n1", &["10.244.1.0/24"])).await;
    let mut n1 = Observed::joined(&cluster, V4).await;
    let outside = PublicAddresses::V4([198, 51, 100, 7].into());
    cluster
        .annotate("n1", &[("public-ip-overwrite", json!("198.51.100.7"))])
        .await;
    let limit = Duration::from_secs(2);
    n1.within(limit, "overwrite", |now| {
        now.lease("n1").unwrap().public == outside
    })
    .await;
    assert!(
        cluster
            .annotations("n1")
            .await
            .contains(&"public-ip=198.51.100.7".to_owned())
    );
    cluster
        .annotate("n1", &[("public-ip-overwrite", json!(null))])
        .await;
    let own = announcement(1, V4).public;
    n1.within(limit, "own address", |now| {
        now.lease("n1").unwrap().public == own
    })
    .await;
    cluster
        .annotate("n1", &[("public-ip-overwrite", json!("nat.example.com"))])
        .await;
    n1.within(limit, "refusal", |now| {
        now.reason().contains("public-ip-overwrite")
    })
    .await;
    assert_eq!(n1.names(), ["n1"], "the last list is in force");
}

#[tokio::test]
async fn node_public_ip_is_a_setting() {
    let cluster = Cluster::start().await;
    let mut node = bare("n1", &["10.244.1.0/24"]);
    node["metadata"]["annotations"] = json!({format!("{PREFIX}/node-public-ip"): "192.0.2.50"});
    cluster.create(node).await;
    let mut n1 = cluster.open("n1");
    let v4 = |now: &Observed| now.settings.as_ref()?.public_v4;
    n1.until("setting", |now| v4(now) == Some([192, 0, 2, 50].into()))
        .await;
    cluster
        .annotate("n1", &[("node-public-ipv6", json!("2001:db8::50"))])
        .await;
    n1.until("IPv6", |now| {
        now.settings.as_ref().is_some_and(|s| s.public_v6.is_some())
    })
    .await;
    assert_eq!(n1.settings.unwrap().net_conf, None);
}

/// It is refused until it is corrected, beside the list.
#[tokio::test]
async fn a_malformed_setting_is_refused() {
    let cluster = Cluster::start().await;
    cluster.create(bare("n1", &["10.244.1.0/24"])).await;
    let mut n1 = Observed::joined(&cluster, V4).await;
    cluster
        .annotate("n1", &[("node-public-ip", json!("eth0"))])
        .await;
    n1.until("refusal", |now| now.reason().contains("node-public-ip"))
        .await;
    cluster.create(flannel_node(2)).await;
    n1.for_a_while(Duration::from_millis(500)).await;
    assert!(n1.reason().contains("node-public-ip"), "{}", n1.reason());
    assert_eq!(n1.names(), ["n1", "n2"]);
    cluster
        .annotate("n1", &[("node-public-ip", json!(null))])
        .await;
    n1.until("list", |now| now.refusal.is_none()).await;
    assert_eq!(n1.names(), ["n1", "n2"]);
}

#[tokio::test]
async fn a_pod_cidr_may_come_later() {
    let cluster = Cluster::start().await;
    let mut node = bare("n1", &[]);
    node["spec"] = json!({});
    cluster.create(node).await;
    cluster.create(flannel_node(2)).await;
    let mut n1 = cluster.open("n1");
    n1.until("settings", |now| now.settings.is_some()).await;
    n1.registry.announce(announcement(1, V4));
    n1.until("refusal", |now| {
        now.reason().contains("--allocate-node-cidrs")
    })
    .await;
    assert!(n1.refusal.as_ref().unwrap().0.to_string().contains("n1"));
    let spec = json!({"spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]}});
    cluster.patch("n1", spec).await;
    n1.until("leases", |now| now.names() == ["n1", "n2"]).await;
}

#[tokio::test]
async fn a_pod_cidr_outside_the_network_names_both() {
    let cluster = Cluster::start().await;
    cluster.create(bare("n1", &["10.42.1.0/24"])).await;
    let mut n1 = cluster.open("n1");
    n1.until("settings", |now| now.settings.is_some()).await;
    n1.registry.announce(announcement(1, V4));
    n1.until("refusal", |now| {
        now.reason().contains("10.42.1.0/24") && now.reason().contains("10.244.0.0/16")
    })
    .await;
}

#[tokio::test]
async fn an_ipv6_pod_cidr_needs_an_ipv6_network() {
    let cluster = Cluster::start().await;
    cluster.create(bare("n1", &["fd00:244:0:1::/64"])).await;
    let mut n1 = cluster.open("n1");
    n1.until("settings", |now| now.settings.is_some()).await;
    n1.registry.announce(announcement(1, UDP));
    n1.until("refusal", |now| now.reason().contains("IPv6Network"))
        .await;
}

#[tokio::test]
async fn a_node_that_is_missing_is_waited_for() {
    let cluster = Cluster::start().await;
    cluster.create(flannel_node(2)).await;
    let mut n1 = cluster.open("n1");
    n1.until("refusal", |now| now.reason().contains("node-name"))
        .await;
    assert_eq!(n1.settings, None);
    cluster.create(bare("n1", &["10.244.1.0/24"])).await;
    n1.until("settings", |now| now.settings.is_some()).await;
    n1.registry.announce(announcement(1, V4));
    n1.until("leases", |now| now.names() == ["n1", "n2"]).await;
    cluster.delete("n1").await;
    n1.until("refusal", |now| now.reason().contains("node-name"))
        .await;
    assert_eq!(n1.names(), ["n1", "n2"], "the last list is in force");
    cluster.create(bare("n1", &["10.244.1.0/24"])).await;
    n1.until("leases", |now| now.refusal.is_none()).await;
    cluster.wait_for("n1", "backend-data", &data(4, 1)).await;
}

/// A flanneld beside us writes its own MAC.
#[tokio::test]
async fn changes_of_others_are_written_back_then_refused() {
    let cluster = Cluster::start().await;
    cluster.create(bare("n1", &["10.244.1.0/24"])).await;
    let mut n1 = Observed::joined(&cluster, V4).await;
    for round in 0..3 {
        cluster
            .annotate("n1", &[("backend-data", json!(data(9, round)))])
            .await;
        cluster.wait_for("n1", "backend-data", &data(4, 1)).await;
    }
    cluster
        .annotate("n1", &[("backend-data", json!(data(9, 9)))])
        .await;
    n1.until("refusal", |now| now.reason().contains("flanneld"))
        .await;
    n1.for_a_while(Duration::from_millis(500)).await;
    let annotations = cluster.annotations("n1").await;
    assert!(annotations.contains(&format!("backend-data={}", data(9, 9))));
    assert_eq!(
        n1.lease("n1").unwrap().vtep_mac.v4.to_string(),
        "02:00:00:00:04:01"
    );
    cluster
        .annotate("n1", &[("backend-data", json!(data(4, 1)))])
        .await;
    n1.until("list", |now| now.refusal.is_none()).await;
}

#[tokio::test]
async fn the_condition_is_flannels() {
    let cluster = Cluster::start().await;
    cluster.create(bare("n1", &["10.244.1.0/24"])).await;
    let mut n1 = Observed::joined(&cluster, V4).await;
    n1.for_a_while(Duration::from_millis(500)).await;
    let status = cluster.node("n1").await.status.unwrap();
    let conditions = status.conditions.unwrap();
    let [condition] = conditions.as_slice() else {
        panic!("{conditions:?}");
    };
    assert_eq!(condition.type_, "NetworkUnavailable");
    assert_eq!(condition.status, "False");
    assert_eq!(condition.reason.as_deref(), Some("FlannelIsUp"));
    let message = condition.message.as_deref();
    assert_eq!(message, Some("Flannel is running on this node"));
}

/// Before that the scheduler would place pods that have no network.
#[tokio::test]
async fn the_condition_is_set_once_this_node_forwards() {
    let cluster = Cluster::start().await;
    cluster.create(bare("n1", &["10.244.1.0/24"])).await;
    let mut n1 = cluster.open("n1");
    n1.until("settings", |now| now.settings.is_some()).await;
    n1.registry.announce(Announcement {
        forwarding: false,
        ..announcement(1, V4)
    });
    n1.until("leases", |now| now.names() == ["n1"]).await;
    n1.for_a_while(Duration::from_millis(500)).await;
    let conditions = async || {
        let status = cluster.node("n1").await.status;
        let conditions = status.and_then(|status| status.conditions);
        conditions.unwrap_or_default()
    };
    assert_eq!(conditions().await, []);
    n1.registry.announce(announcement(1, V4));
    assert_eq!(n1.for_a_while(Duration::from_millis(500)).await, 0);
    assert_eq!(conditions().await[0].status, "False");
}

#[tokio::test]
async fn a_conflict_is_tried_again() {
    let cluster = Cluster::of_testbed().await;
    cluster.create(bare("n1", &["10.244.1.0/24"])).await;
    let mut n1 = cluster.open("n1");
    n1.until("settings", |now| now.settings.is_some()).await;
    cluster.server().fail(409, 2, None);
    n1.registry.announce(announcement(1, V4));
    n1.until("leases", |now| now.names() == ["n1"]).await;
    assert_eq!(n1.refusal, None);
    assert!(n1.is_in_touch());
}
