//! Two nodes that have one public address have one lease: it says who wrote it.

use std::time::Duration;

use etcd_client::Permission;

use super::access::{guarded, with_user};
use super::node::{Node, UDP, VXLAN, announcement, config, run};
use super::server::{PREFIX, Server};

fn owner_key(node: &Node) -> String {
    node.own_key().replace("subnets/", "tartan/owners/")
}

#[test]
fn the_owner_of_a_key_is_beside_it_and_ends_with_it() {
    run(async {
        let server = Server::start().await;
        server.configure(VXLAN).await;
        let mut node = Node::start(&server, 1, VXLAN).await;
        let (key, owner) = (node.own_key(), owner_key(&node));
        let (_, lease, _) = server.get(&key).await.unwrap();
        let found = server.get(&owner).await.unwrap();
        assert_eq!((found.0.as_str(), found.1), (r#"{"node":"n1"}"#, lease));
        // So it is after the key was written anew.
        server.client().await.lease_revoke(lease).await.unwrap();
        node.pause(Duration::from_millis(500)).await;
        let (_, second, _) = server.get(&key).await.unwrap();
        assert_ne!(second, lease);
        assert_eq!(server.get(&owner).await.unwrap().1, second);
        assert!(node.refused.is_none());
    });
}

#[test]
fn two_nodes_with_one_public_address_are_told() {
    run(async {
        let server = Server::start().await;
        server.configure(VXLAN).await;
        let mut first = Node::start(&server, 1, VXLAN).await;
        let before = server.get(&first.own_key()).await;
        let mut twin = announcement(1, VXLAN);
        twin.node_name = "n2".to_owned();
        let mut second = Node::start_with(&server, twin.clone()).await;
        second
            .until("a refusal", |node| node.refused.is_some())
            .await;
        let (place, reason) = second.refused.clone().unwrap();
        assert_eq!(
            place.to_string(),
            format!("etcd key {PREFIX}/{}", owner_key(&first))
        );
        for word in ["n1", "n2", "192.0.2.1", "--public-ip"] {
            assert!(reason.contains(word), "{word}: {reason}");
        }
        assert_eq!(server.get(&first.own_key()).await, before, "left alone");
        assert!(first.refused.is_none());
        // It gets an address of its own.
        twin.public = announcement(2, VXLAN).public;
        twin.vtep_mac = announcement(2, VXLAN).vtep_mac;
        second.announce(twin);
        second
            .until("a subnet of its own", |node| {
                node.refused.is_none() && node.leases.len() == 2
            })
            .await;
        first
            .until("the other", |node| node.leases.len() == 2)
            .await;
        assert_eq!(server.get(&first.own_key()).await, before);
    });
}

/// A user that may write flannel's keys alone.
#[test]
fn a_node_that_may_not_say_its_name_carries_on() {
    run(async {
        let server = guarded().await;
        let mut root = server.client().await;
        root.role_add("flannel").await.unwrap();
        let leases = Permission::read_write(format!("{PREFIX}/subnets/")).with_prefix();
        let config = Permission::read(format!("{PREFIX}/config"));
        for permission in [leases, config] {
            root.role_grant_permission("flannel", permission)
                .await
                .unwrap();
        }
        root.user_grant_role("stranger", "flannel").await.unwrap();
        let mut node = Node::open(&with_user(&server, "stranger", "secret"));
        node.announce(announcement(1, UDP));
        node.until("a list", |node| !node.leases.is_empty()).await;
        node.pause(Duration::from_millis(300)).await;
        assert!(node.refused.is_none());
        assert!(server.get(&node.own_key()).await.is_some());
        assert!(server.get(&owner_key(&node)).await.is_none());
    });
}

/// A key that cannot be read is not this node's where it is said to be another's.
#[test]
fn a_spoilt_key_of_another_node_is_left_alone() {
    run(async {
        let server = Server::start().await;
        server.configure(UDP).await;
        server.put("subnets/10.244.7.0-24", "hi").await;
        let owner = r#"{"node":"n9"}"#;
        server
            .put_for("tartan/owners/10.244.7.0-24", owner, 600)
            .await;
        let mut announced = announcement(1, UDP);
        announced.previous = vec!["10.244.7.0/24".parse().unwrap()];
        let mut node = Node::open(&config(&server));
        node.announce(announced);
        node.until("a refusal", |node| node.refused.is_some()).await;
        let (_, reason) = node.refused.clone().unwrap();
        assert!(reason.contains("n9"), "{reason}");
        assert!(node.leases.is_empty());
        let (value, ..) = server.get("subnets/10.244.7.0-24").await.unwrap();
        assert_eq!(value, "hi");
        // An operator removes what is left of it.
        server.delete("subnets/10.244.7.0-24").await;
        node.until("a list", |node| !node.leases.is_empty()).await;
        assert_eq!(node.own_subnets(), ["10.244.7.0/24"]);
    });
}
