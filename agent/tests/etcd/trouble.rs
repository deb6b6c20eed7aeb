//! Trouble with this node's own key does not hold up what is learned of peers.

use std::time::Duration;

use etcd_client::Permission;

use super::access::{guarded, with_user};
use super::node::{Node, UDP, VXLAN, announcement, run};
use super::server::{PREFIX, Server};

const PEER: &str = r#"{"PublicIP":"192.0.2.5"}"#;

/// A peer joins, changes and leaves.
async fn peers_are_followed(server: &Server, node: &mut Node) {
    let is_refused = |node: &Node| node.refused.is_some();
    server.put("subnets/10.244.205.0-24", PEER).await;
    node.until("the peer", |node| {
        node.leases.len() == 2 && is_refused(node)
    })
    .await;
    server
        .put("subnets/10.244.205.0-24", r#"{"PublicIP":"192.0.2.6"}"#)
        .await;
    node.until("its new address", |node| {
        node.leases[1].public.to_string() == "192.0.2.6" && is_refused(node)
    })
    .await;
    server.delete("subnets/10.244.205.0-24").await;
    node.until("its end", |node| node.leases.len() == 1 && is_refused(node))
        .await;
    let updates = node.updates;
    node.pause(Duration::from_millis(500)).await;
    assert_eq!(node.updates, updates, "nothing is said twice");
}

#[test]
fn peers_are_followed_while_flanneld_overwrites_the_own_key() {
    run(async {
        let server = Server::start().await;
        server.configure(VXLAN).await;
        let mut node = Node::start(&server, 1, VXLAN).await;
        let key = node.own_key();
        let (ours, ..) = server.get(&key).await.unwrap();
        let theirs = ours.replace("02:00:00:00:00:01", "fe:00:00:00:00:07");
        for time in 1..=3 {
            server.put_for(&key, &theirs, 86_400).await;
            let mut is_ours = false;
            for _ in 0..50 {
                node.pause(Duration::from_millis(100)).await;
                is_ours = server.get(&key).await.unwrap().0 == ours;
                if is_ours {
                    break;
                }
            }
            assert!(is_ours, "time {time}");
        }
        assert!(node.refused.is_none());
        server.put_for(&key, &theirs, 86_400).await;
        node.until("a refusal", |node| node.refused.is_some()).await;
        let (_, reason) = node.refused.clone().unwrap();
        assert!(reason.contains("stop flanneld"), "{reason}");
        peers_are_followed(&server, &mut node).await;
        assert_eq!(node.own_key(), key);
        assert_eq!(node.leases[0].vtep_mac.v4.to_string(), "02:00:00:00:00:01");
        // It is over.
        server.put_for(&key, &ours, 86_400).await;
        node.until("the end of it", |node| node.refused.is_none())
            .await;
    });
}

/// A user that may read alone, of a node whose key is there.
#[test]
fn peers_are_followed_while_the_own_key_may_not_be_written() {
    run(async {
        let server = guarded().await;
        let mut root = server.client().await;
        root.role_add("readers").await.unwrap();
        let below = Permission::read(format!("{PREFIX}/")).with_prefix();
        root.role_grant_permission("readers", below).await.unwrap();
        root.user_grant_role("stranger", "readers").await.unwrap();
        server.configure(VXLAN).await;
        let reserved = r#"{"PublicIP":"192.0.2.1","PublicIPv6":null}"#;
        server.put("subnets/10.244.7.0-24", reserved).await;
        let mut node = Node::open(&with_user(&server, "stranger", "secret"));
        node.announce(announcement(1, VXLAN));
        node.until("a refusal", |node| node.refused.is_some()).await;
        assert_eq!(node.own_subnets(), ["10.244.7.0/24"]);
        let (_, reason) = node.refused.clone().unwrap();
        assert!(reason.contains("grant-permission"), "{reason}");
        peers_are_followed(&server, &mut node).await;
        root.user_grant_role("stranger", "pods").await.unwrap();
        node.reread();
        node.until("the end of it", |node| node.refused.is_none())
            .await;
    });
}

#[test]
fn peers_are_followed_while_the_own_key_is_deleted_again_and_again() {
    run(async {
        let server = Server::start().await;
        server.configure(UDP).await;
        let mut node = Node::start(&server, 1, UDP).await;
        let key = node.own_key();
        for _ in 0..30 {
            server.delete(&key).await;
            node.pause(Duration::from_millis(200)).await;
            if node.refused.is_some() {
                break;
            }
        }
        let (_, reason) = node.refused.clone().unwrap();
        assert!(reason.contains("keeps deleting"), "{reason}");
        peers_are_followed(&server, &mut node).await;
        assert_eq!(node.own_key(), key);
    });
}

/// Another node has its subnet, and there is no other.
#[test]
fn a_subnet_that_is_no_longer_owned_is_named() {
    run(async {
        let server = Server::start().await;
        let conf =
            r#"{"Network":"10.244.0.0/16","SubnetMin":"10.244.1.0","SubnetMax":"10.244.1.0"}"#;
        server.configure(conf).await;
        let mut node = Node::start(&server, 1, conf).await;
        server.put(&node.own_key(), PEER).await;
        node.until("a refusal", |node| node.refused.is_some()).await;
        let (_, reason) = node.refused.clone().unwrap();
        assert!(reason.starts_with("out of subnets"), "{reason}");
        assert!(reason.contains("no longer owns 10.244.1.0/24"), "{reason}");
        server.delete(&node.own_key()).await;
        node.until("the subnet", |node| node.refused.is_none())
            .await;
        assert_eq!(node.own_subnets(), ["10.244.1.0/24"]);
    });
}
