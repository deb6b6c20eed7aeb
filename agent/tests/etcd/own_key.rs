//! This node's own key: renewed, taken again, written back.

use std::time::Duration;

use dataplane::families::PublicAddresses;
use etcd_client::PutOptions;

use super::node::{Node, UDP, VXLAN, announcement, run};
use super::server::{PREFIX, Server};

async fn cluster() -> (Server, Node) {
    let server = Server::start().await;
    server.configure(VXLAN).await;
    let node = Node::start(&server, 1, VXLAN).await;
    (server, node)
}

const OWN_UDP: &str = r#"{"PublicIP":"192.0.2.1","PublicIPv6":null}"#;

/// The etcd lease found has 30 seconds left, less than the margin.
#[test]
fn a_lease_that_ends_soon_is_renewed() {
    run(async {
        let server = Server::start().await;
        server.configure(UDP).await;
        let old = server.put_for("subnets/10.244.9.0-24", OWN_UDP, 30).await;
        let node = Node::start(&server, 1, UDP).await;
        assert_eq!(node.own_subnets(), ["10.244.9.0/24"]);
        let (value, lease, _) = server.get(&node.own_key()).await.unwrap();
        assert_eq!(value, OWN_UDP);
        assert_ne!(lease, old);
        assert!(server.time_to_live(lease).await > 86_000);
        assert_eq!(server.time_to_live(old).await, -1, "the old one is revoked");
    });
}

#[test]
fn an_etcd_lease_that_another_key_hangs_on_is_left_alone() {
    run(async {
        let server = Server::start().await;
        server.configure(UDP).await;
        let old = server.put_for("subnets/10.244.9.0-24", OWN_UDP, 30).await;
        let with = Some(PutOptions::new().with_lease(old));
        server
            .client()
            .await
            .put("/elsewhere", "x", with)
            .await
            .unwrap();
        let _node = Node::start(&server, 1, UDP).await;
        assert!(server.time_to_live(old).await > 0);
        assert_eq!(server.leases().await.len(), 1);
    });
}

#[test]
fn an_own_lease_that_was_deleted_or_revoked_is_taken_again_at_once() {
    run(async {
        let (server, mut node) = cluster().await;
        let (key, subnets) = (node.own_key(), node.own_subnets());
        let (value, lease, _) = server.get(&key).await.unwrap();
        server.client().await.lease_revoke(lease).await.unwrap();
        node.pause(Duration::from_millis(500)).await;
        let (again, second, _) = server.get(&key).await.expect("the key again");
        assert_eq!(again, value);
        assert_ne!(second, lease);
        server.delete(&key).await;
        node.pause(Duration::from_millis(500)).await;
        assert_eq!(server.get(&key).await.expect("the key again").0, value);
        assert_eq!(node.own_subnets(), subnets);
    });
}

#[test]
fn a_subnet_that_another_node_has_taken_is_left_to_it() {
    run(async {
        let (server, mut node) = cluster().await;
        let (key, subnets) = (node.own_key(), node.own_subnets());
        let theirs = r#"{"PublicIP":"192.0.2.66","PublicIPv6":null}"#;
        server.put(&key, theirs).await;
        node.until("another subnet", |node| node.own_subnets() != subnets)
            .await;
        assert_eq!(node.leases.len(), 2);
        assert_eq!(node.leases[1].public.to_string(), "192.0.2.66");
        assert_eq!(server.get(&key).await.unwrap().0, theirs);
        assert!(
            server
                .get(&node.own_key())
                .await
                .unwrap()
                .0
                .contains("192.0.2.1")
        );
    });
}

/// A flanneld that was left running beside us writes its own MAC into our lease.
#[test]
fn a_lease_that_flanneld_overwrites_is_written_back_three_times() {
    run(async {
        let (server, mut node) = cluster().await;
        let key = node.own_key();
        let (ours, ..) = server.get(&key).await.unwrap();
        let theirs = ours.replace("02:00:00:00:00:01", "fe:00:00:00:00:07");
        for time in 1..=3 {
            server.put_for(&key, &theirs, 86_400).await;
            for _ in 0..100 {
                if server.get(&key).await.unwrap().0 == ours {
                    break;
                }
                node.pause(Duration::from_millis(100)).await;
            }
            assert_eq!(server.get(&key).await.unwrap().0, ours, "time {time}");
        }
        assert!(node.refused.is_none());
        server.put_for(&key, &theirs, 86_400).await;
        node.until("a refusal", |node| node.refused.is_some()).await;
        let (place, reason) = node.refused.clone().unwrap();
        assert_eq!(place.to_string(), format!("etcd key {PREFIX}/{key}"));
        assert!(reason.contains("stop flanneld"), "{reason}");
        assert!(reason.contains("fe:00:00:00:00:07"), "{reason}");
        node.pause(Duration::from_millis(400)).await;
        assert_eq!(server.get(&key).await.unwrap().0, theirs, "left alone");
        assert_eq!(node.leases[0].vtep_mac.v4.to_string(), "02:00:00:00:00:01");
    });
}

#[test]
fn a_renewal_by_flanneld_beside_us_is_no_fault() {
    run(async {
        let (server, mut node) = cluster().await;
        let key = node.own_key();
        let (ours, ..) = server.get(&key).await.unwrap();
        let updates = node.updates;
        for _ in 0..5 {
            let lease = server.put_for(&key, &ours, 86_400).await;
            node.pause(Duration::from_millis(200)).await;
            assert_eq!(server.get(&key).await.unwrap().1, lease, "left as it is");
        }
        assert_eq!(node.updates, updates);
    });
}

#[test]
fn an_own_value_that_is_spoilt_is_written_back() {
    run(async {
        let (server, mut node) = cluster().await;
        let key = node.own_key();
        let (ours, ..) = server.get(&key).await.unwrap();
        server.put(&key, "hi").await;
        node.pause(Duration::from_millis(500)).await;
        let (value, lease, _) = server.get(&key).await.unwrap();
        assert_eq!(value, ours);
        assert!(
            server.time_to_live(lease).await > 86_000,
            "it has an end again"
        );
        assert!(node.refused_records.is_empty() && node.refused.is_none());
    });
}

/// As flannel documents it: the key with the address alone, without an etcd lease.
#[test]
fn a_reservation_made_while_the_node_runs_stays_one() {
    run(async {
        let (server, mut node) = cluster().await;
        let key = node.own_key();
        let (ours, ..) = server.get(&key).await.unwrap();
        server.put(&key, r#"{"PublicIP":"192.0.2.1"}"#).await;
        node.pause(Duration::from_millis(500)).await;
        let (value, lease, _) = server.get(&key).await.unwrap();
        assert_eq!((value, lease), (ours, 0));
        assert!(node.refused.is_none());
    });
}

#[test]
fn a_node_whose_address_changes_keeps_its_subnet() {
    run(async {
        let (server, mut node) = cluster().await;
        let mut peer = Node::start(&server, 2, VXLAN).await;
        node.until("the peer", |node| node.leases.len() == 2).await;
        let key = node.own_key();
        let mut moved = announcement(1, VXLAN);
        moved.public = PublicAddresses::V4([192, 0, 2, 99].into());
        node.announce(moved);
        let is_moved = |node: &Node| {
            node.leases
                .iter()
                .any(|l| l.public.to_string() == "192.0.2.99")
        };
        peer.until("the new address", is_moved).await;
        node.until("the new address", is_moved).await;
        assert_eq!(node.own_key(), key);
        assert_eq!(server.leases().await.len(), 2);
        let (value, ..) = server.get(&key).await.unwrap();
        assert!(value.contains("192.0.2.99") && value.contains("02:00:00:00:00:01"));
    });
}

/// flannel's defect: a second snapshot removes the own lease and misses changes of known ones.
#[test]
fn a_second_list_keeps_the_own_lease_and_sees_changes() {
    run(async {
        let (mut server, mut node) = cluster().await;
        server
            .put("subnets/10.244.205.0-24", r#"{"PublicIP":"192.0.2.5"}"#)
            .await;
        node.until("the peer", |node| node.leases.len() == 2).await;
        let before = server.get(&node.own_key()).await;
        let updates = node.updates;
        node.reread();
        node.pause(Duration::from_millis(700)).await;
        assert_eq!(node.updates, updates, "the same list is not reported again");
        // A change that only the second list shows.
        server.kill();
        server
            .elsewhere(async |server| {
                let moved = r#"{"PublicIP":"192.0.2.6"}"#;
                server.put("subnets/10.244.205.0-24", moved).await;
                server.compact().await;
            })
            .await;
        server.run().await;
        node.until("the change", |node| {
            node.leases[1].public.to_string() == "192.0.2.6"
        })
        .await;
        assert_eq!(node.names(), ["n1", "10.244.205.0-24"]);
        assert_eq!(server.get(&node.own_key()).await, before);
    });
}

/// flannel's defect: a lease whose end the watch of the own key has missed is never renewed.
#[test]
fn an_own_lease_that_ended_unseen_is_taken_again() {
    run(async {
        let (mut server, mut node) = cluster().await;
        let key = node.own_key();
        let (value, ..) = server.get(&key).await.unwrap();
        server.kill();
        server
            .elsewhere(async |server| {
                server.delete(&key).await;
                server.compact().await;
            })
            .await;
        server.run().await;
        node.until("the loss", Node::is_lost).await;
        node.until("contact", |node| !node.is_lost()).await;
        node.pause(Duration::from_millis(500)).await;
        let (again, lease, _) = server.get(&key).await.expect("the key again");
        assert_eq!(again, value);
        assert!(server.time_to_live(lease).await > 86_000);
    });
}

/// A program that cleans up keys: each time that the key is written anew an etcd lease of a day is granted.
#[test]
fn a_key_that_is_deleted_again_and_again_is_not_written_as_often() {
    run(async {
        let (server, mut node) = cluster().await;
        let key = node.own_key();
        let mut written = 0;
        for _ in 0..12 {
            if server.get(&key).await.is_some() {
                written += 1;
                server.delete(&key).await;
            }
            node.pause(Duration::from_millis(200)).await;
        }
        assert!(written <= 4, "written {written} times in 2.4 s");
        let (place, reason) = node.refused.clone().unwrap();
        assert_eq!(place.to_string(), format!("etcd key {PREFIX}/{key}"));
        assert!(reason.contains("keeps deleting"), "{reason}");
        assert_eq!(node.own_key(), key, "the list stays in force");
    });
}

/// A program that writes another address into whichever key is ours would have this node leave subnet after subnet, and
/// strand its pods each time.
#[test]
fn a_node_is_not_driven_through_all_subnets() {
    run(async {
        let (server, mut node) = cluster().await;
        let (ours, ..) = server.get(&node.own_key()).await.unwrap();
        let theirs = ours.replace("192.0.2.1\"", "192.0.2.77\"");
        let theirs = theirs.replace("02:00:00:00:00:01", "02:00:00:00:00:77");
        assert_ne!(ours, theirs);
        let mut taken = std::collections::BTreeSet::new();
        for _ in 0..14 {
            let key = node.own_key();
            server.put_for(&key, &theirs, 86_400).await;
            taken.insert(key);
            node.pause(Duration::from_millis(250)).await;
        }
        assert!(taken.len() <= 4, "{taken:?}");
        let (_, reason) = node.refused.clone().unwrap();
        assert!(reason.contains("192.0.2.77"), "{reason}");
        assert!(taken.contains(&node.own_key()), "the list stays in force");
    });
}
