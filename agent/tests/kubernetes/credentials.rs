//! What the credentials allow.

use std::fs;

use tartan::config::node::registry::KubernetesConfig;

use super::cluster::{Cluster, V4, announcement, bare};

const FLANNELS: [&str; 4] = [
    "get nodes",
    "list nodes",
    "watch nodes",
    "patch nodes/status",
];

#[tokio::test]
async fn flannels_rights_are_enough() {
    let cluster = Cluster::of_testbed().await;
    cluster.create(bare("n1", &["10.244.1.0/24"])).await;
    let user = "system:serviceaccount:kube-system:tartan";
    cluster.server().allow("good", user, &FLANNELS);
    let mut n1 = cluster.open_with(&cluster.config_with("good"), "n1");
    n1.until("settings", |now| now.settings.is_some()).await;
    n1.registry.announce(announcement(1, V4));
    n1.until("leases", |now| now.names() == ["n1"]).await;
}

/// A kubelet may read its own Node and no list.
#[tokio::test]
async fn a_kubelets_credentials_are_refused_with_the_answer_and_the_remedy() {
    let cluster = Cluster::of_testbed().await;
    cluster.create(bare("n1", &["10.244.1.0/24"])).await;
    let server = cluster.server();
    server.allow(
        "kubelet",
        "system:node:n1",
        &["get nodes", "patch nodes/status"],
    );
    let mut n1 = cluster.open_with(&cluster.config_with("kubelet"), "n1");
    n1.until("refusal", |now| now.reason().contains("403"))
        .await;
    let reason = n1.reason();
    assert!(reason.contains("system:node:n1"), "{reason}");
    assert!(reason.contains("deploy/kubernetes"), "{reason}");
    assert!(n1.is_in_touch());
    server.allow("kubelet", "system:node:n1", &FLANNELS);
    n1.until("settings", |now| now.settings.is_some()).await;
}

#[tokio::test]
async fn a_node_that_may_not_be_patched_is_refused() {
    let cluster = Cluster::of_testbed().await;
    cluster.create(bare("n1", &["10.244.1.0/24"])).await;
    let server = cluster.server();
    server.allow("reader", "reader", &["list nodes", "watch nodes"]);
    let mut n1 = cluster.open_with(&cluster.config_with("reader"), "n1");
    n1.until("settings", |now| now.settings.is_some()).await;
    n1.registry.announce(announcement(1, V4));
    n1.until("refusal", |now| now.reason().contains("nodes/status"))
        .await;
    server.allow("reader", "reader", &FLANNELS);
    n1.until("leases", |now| {
        now.names() == ["n1"] && now.refusal.is_none()
    })
    .await;
}

/// A token that is renewed in the file is in force without a restart.
#[tokio::test]
async fn an_unknown_token_is_lost_contact_until_the_file_has_another() {
    let cluster = Cluster::of_testbed().await;
    cluster.create(bare("n1", &["10.244.1.0/24"])).await;
    cluster.server().allow("good", "tartan", &FLANNELS);
    let config = cluster.config_with("expired");
    let mut n1 = cluster.open_with(&config, "n1");
    n1.until("loss", |now| now.lost().contains("401")).await;
    assert!(n1.lost().contains("make-kubeconfig"), "{}", n1.lost());
    let path = config.kubeconfig.unwrap();
    let renewed = fs::read_to_string(&path)
        .unwrap()
        .replace("expired", "good");
    fs::write(&path, renewed).unwrap();
    n1.until("contact", |now| now.is_in_touch()).await;
}

#[tokio::test]
async fn a_kubeconfig_that_cannot_be_used_is_named() {
    let cluster = Cluster::of_testbed().await;
    let path = cluster.config().kubeconfig.unwrap();
    let good = fs::read_to_string(&path).unwrap();
    let mut n1 = {
        fs::remove_file(&path).unwrap();
        cluster.open("n1")
    };
    n1.until("loss", |now| now.lost().contains("kubeconfig"))
        .await;
    let program = good.replace(
        "user: {}",
        "user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/false}}",
    );
    assert_ne!(program, good);
    fs::write(&path, program).unwrap();
    n1.until("refusal of a program", |now| {
        now.lost().contains("executes none")
    })
    .await;
    fs::write(&path, good).unwrap();
    n1.until("contact", |now| now.is_in_touch()).await;
}

#[tokio::test]
async fn kube_api_url_replaces_the_server() {
    let (cluster, other) = (Cluster::of_testbed().await, Cluster::of_testbed().await);
    other.create(bare("n1", &["10.244.1.0/24"])).await;
    let config = KubernetesConfig {
        api_url: Some(other.server().url()),
        ..cluster.config()
    };
    let mut n1 = cluster.open_with(&config, "n1");
    n1.until("settings", |now| now.settings.is_some()).await;
    let config = KubernetesConfig {
        api_url: Some("192.0.2.1:6443".to_owned()),
        ..cluster.config()
    };
    let mut n1 = cluster.open_with(&config, "n1");
    n1.until("loss", |now| now.lost().contains("kube-api-url"))
        .await;
}
