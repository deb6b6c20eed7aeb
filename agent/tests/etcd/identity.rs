//! How a node knows its own key: whatever happens to its address, to the configuration or to the store.

use std::time::Duration;

use dataplane::families::PublicAddresses;
use etcd_client::PutOptions;
use tartan::config::NetConf;

use super::node::{DUAL, Node, UDP, VXLAN, announcement, run};
use super::server::Server;

const NARROW: &str = r#"{"Network":"10.244.0.0/16","SubnetLen":26,"SubnetMin":"10.244.128.0","Backend":{"Type":"vxlan"}}"#;
const ELSEWHERE: &str = r#"{"Network":"10.99.0.0/16","Backend":{"Type":"vxlan"}}"#;

/// The configuration is changed under a running node, and the control loop announces it.
async fn reconfigure(server: &Server, node: &mut Node, net_conf: &str) {
    server.configure(net_conf).await;
    node.until("the settings", |node| {
        node.settings.as_deref() == Some(net_conf)
    })
    .await;
    let mut announced = announcement(node.number, VXLAN);
    announced.net_conf = NetConf::parse(net_conf).unwrap();
    node.announce(announced);
    node.pause(Duration::from_millis(500)).await;
}

#[test]
fn another_range_in_the_configuration_takes_no_subnet_away() {
    run(async {
        let server = Server::start().await;
        server.configure(VXLAN).await;
        let mut node = Node::start(&server, 1, VXLAN).await;
        let (key, subnets) = (node.own_key(), node.own_subnets());
        let before = server.get(&key).await;
        assert!(before.is_some());
        reconfigure(&server, &mut node, NARROW).await;
        assert_eq!(server.get(&key).await, before, "the key is left alone");
        assert_eq!(node.own_subnets(), subnets);
        assert_eq!(server.leases().await.len(), 1);
        // And taken again as it was.
        server.delete(&key).await;
        node.pause(Duration::from_millis(500)).await;
        assert_eq!(server.get(&key).await.unwrap().0, before.unwrap().0);
        assert_eq!(server.leases().await.len(), 1);
    });
}

#[test]
fn another_network_in_the_configuration_deletes_no_key() {
    run(async {
        let server = Server::start().await;
        server.configure(VXLAN).await;
        let mut node = Node::start(&server, 1, VXLAN).await;
        let (key, subnets) = (node.own_key(), node.own_subnets());
        let before = server.get(&key).await;
        reconfigure(&server, &mut node, ELSEWHERE).await;
        assert_eq!(server.get(&key).await, before);
        assert_eq!(server.leases().await.len(), 1);
        assert_eq!(node.own_subnets(), subnets, "the list stays in force");
        assert!(node.refused.is_some());
    });
}

#[test]
fn a_restart_after_another_range_keeps_the_subnet_that_the_node_had() {
    run(async {
        let server = Server::start().await;
        server.configure(NARROW).await;
        let own = r#"{"PublicIP":"192.0.2.1","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}}"#;
        server.put_for("subnets/10.244.7.0-24", own, 86_400).await;
        let mut announced = announcement(1, NARROW);
        announced.previous = vec!["10.244.7.0/24".parse().unwrap()];
        let node = Node::start_with(&server, announced).await;
        assert_eq!(node.own_subnets(), ["10.244.7.0/24"]);
        assert_eq!(server.leases().await.len(), 1);
    });
}

/// The families of a key cannot be changed but by another key; the subnet that the node had is in it.
#[test]
fn a_restart_after_a_second_family_was_added_keeps_the_first() {
    run(async {
        let server = Server::start().await;
        server.configure(DUAL).await;
        let own = r#"{"PublicIP":"192.0.2.1","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}}"#;
        server.put_for("subnets/10.244.7.0-24", own, 86_400).await;
        let mut announced = announcement(1, DUAL);
        announced.public =
            PublicAddresses::Dual([192, 0, 2, 1].into(), "2001:db8::1".parse().unwrap());
        announced.previous = vec!["10.244.7.0/24".parse().unwrap()];
        let node = Node::start_with(&server, announced).await;
        assert_eq!(node.own_subnets()[0], "10.244.7.0/24");
        assert_eq!(node.own_subnets().len(), 2);
        assert_eq!(server.leases().await.len(), 1);
    });
}

/// Its lease of a day has still the address that it had.
#[test]
fn a_node_that_returns_with_another_address_keeps_its_subnet() {
    run(async {
        let server = Server::start().await;
        server.configure(VXLAN).await;
        let mut peer = Node::start(&server, 2, VXLAN).await;
        let node = Node::start(&server, 1, VXLAN).await;
        let (key, previous) = (node.own_key(), node.leases[0].subnets.clone());
        drop(node);
        let mut moved = announcement(1, VXLAN);
        moved.public = PublicAddresses::V4([192, 0, 2, 99].into());
        moved.previous = previous;
        let node = Node::start_with(&server, moved.clone()).await;
        assert_eq!(node.own_key(), key);
        let (value, ..) = server.get(&key).await.unwrap();
        assert!(value.contains("192.0.2.99"), "{value}");
        assert_eq!(server.leases().await.len(), 2);
        peer.until("the new address", |peer| {
            peer.leases
                .iter()
                .any(|lease| lease.public.to_string() == "192.0.2.99")
        })
        .await;
        assert!(
            peer.refused_records.is_empty(),
            "{:?}",
            peer.refused_records
        );
        // Another node that has had that subnet, with another MAC, leaves it alone.
        let mut other = announcement(3, VXLAN);
        other.previous = moved.previous;
        let other = Node::start_with(&server, other).await;
        assert_ne!(other.own_key(), key);
    });
}

/// A copy of the store from before this node moved, and so no theft.
#[test]
fn an_older_copy_of_the_own_key_is_this_nodes() {
    run(async {
        let server = Server::start().await;
        server.configure(VXLAN).await;
        let mut node = Node::start(&server, 1, VXLAN).await;
        let key = node.own_key();
        let (old, ..) = server.get(&key).await.unwrap();
        let mut moved = announcement(1, VXLAN);
        moved.public = PublicAddresses::V4([192, 0, 2, 99].into());
        node.announce(moved);
        node.until("the address", |node| {
            node.leases[0].public.to_string() == "192.0.2.99"
        })
        .await;
        server.put_for(&key, &old, 86_400).await;
        node.pause(Duration::from_millis(600)).await;
        assert_eq!(node.own_key(), key);
        let (value, ..) = server.get(&key).await.unwrap();
        assert!(value.contains("192.0.2.99"), "{value}");
        assert_eq!(server.leases().await.len(), 1);
    });
}

#[test]
fn an_own_key_that_cannot_be_read_at_the_start_is_written_anew() {
    run(async {
        let server = Server::start().await;
        server.configure(UDP).await;
        server.put("subnets/10.244.7.0-24", "hi").await;
        let mut announced = announcement(1, UDP);
        announced.previous = vec!["10.244.7.0/24".parse().unwrap()];
        let node = Node::start_with(&server, announced).await;
        assert_eq!(node.own_subnets(), ["10.244.7.0/24"]);
        let (value, lease, _) = server.get("subnets/10.244.7.0-24").await.unwrap();
        assert_eq!(value, r#"{"PublicIP":"192.0.2.1","PublicIPv6":null}"#);
        assert!(server.time_to_live(lease).await > 86_000, "it has an end");
        assert!(node.refused_records.is_empty());
    });
}

/// Another node takes this node's key again and again, and each time a lease of a day is left behind.
#[test]
fn the_etcd_lease_of_a_lost_key_is_revoked() {
    run(async {
        let server = Server::start().await;
        server.configure(VXLAN).await;
        let mut node = Node::start(&server, 1, VXLAN).await;
        let key = node.own_key();
        let (_, first, _) = server.get(&key).await.unwrap();
        server.delete(&key).await;
        node.pause(Duration::from_millis(500)).await;
        let (_, second, _) = server.get(&key).await.unwrap();
        assert_eq!(server.time_to_live(first).await, -1, "deleted");
        let theirs = r#"{"PublicIP":"192.0.2.66","PublicIPv6":null}"#;
        let mut client = server.client().await;
        client
            .put(
                format!("{}/{key}", super::server::PREFIX),
                theirs,
                None::<PutOptions>,
            )
            .await
            .unwrap();
        node.until("another subnet", |node| node.own_key() != key)
            .await;
        node.pause(Duration::from_millis(300)).await;
        assert_eq!(server.time_to_live(second).await, -1, "overwritten");
        assert_eq!(client.leases().await.unwrap().leases().len(), 1);
    });
}
