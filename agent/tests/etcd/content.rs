//! What others write, right and wrong.

use std::time::{Duration, Instant};

use super::node::{Node, UDP, VXLAN, announcement, config, run};
use super::server::{PREFIX, Server};

const PEER: &str = r#"{"PublicIP":"192.0.2.5","PublicIPv6":null}"#;
const OTHER: &str = r#"{"PublicIP":"192.0.2.6","PublicIPv6":null}"#;

/// Nodes take subnets at random: none that a test writes a record of.
const ABOVE: &str = r#"{"Network":"10.244.0.0/16","SubnetMin":"10.244.210.0"}"#;

async fn cluster() -> (Server, Node) {
    let server = Server::start().await;
    server.configure(ABOVE).await;
    server.put("subnets/10.244.205.0-24", PEER).await;
    let node = Node::start(&server, 1, ABOVE).await;
    assert_eq!(node.names(), ["n1", "10.244.205.0-24"]);
    (server, node)
}

#[test]
fn peers_come_change_and_go() {
    run(async {
        let (server, mut node) = cluster().await;
        server.put("subnets/10.244.206.0-24", OTHER).await;
        node.until("the new one", |node| node.leases.len() == 3)
            .await;
        server
            .put("subnets/10.244.206.0-24", r#"{"PublicIP":"192.0.2.7"}"#)
            .await;
        let is_moved = |node: &Node| node.leases[2].public.to_string() == "192.0.2.7";
        node.until("its new address", is_moved).await;
        server.delete("subnets/10.244.206.0-24").await;
        node.until("its end", |node| node.leases.len() == 2).await;
        assert!(node.refused_records.is_empty());
    });
}

/// flannel's defect: a malformed key or value wipes all routes.
#[test]
fn a_malformed_key_costs_no_routes() {
    run(async {
        let (server, mut node) = cluster().await;
        for key in ["subnets/10.244.9.0-24hi", "subnets/", "subnets/x/y"] {
            server.put(key, PEER).await;
        }
        node.until("three refused records", |node| {
            node.refused_records.len() == 3
        })
        .await;
        server.put("subnets/10.244.206.0-24", OTHER).await;
        node.until("a list with both peers", |node| node.leases.len() == 3)
            .await;
        let record = &node.refused_records[1];
        assert_eq!(
            record.place.to_string(),
            format!("etcd key {PREFIX}/subnets/10.244.9.0-24hi")
        );
        assert!(record.reason.contains("etcdctl del"), "{}", record.reason);
        for key in ["subnets/10.244.9.0-24hi", "subnets/", "subnets/x/y"] {
            server.delete(key).await;
        }
        node.until("none", |node| node.refused_records.is_empty())
            .await;
        assert_eq!(node.leases.len(), 3);
        // And where it was there before the node.
        server.put("subnets/10.244.9.0-24hi", PEER).await;
        let second = Node::start(&server, 2, ABOVE).await;
        assert_eq!(second.leases.len(), 4);
    });
}

#[test]
fn a_malformed_value_leaves_the_last_one_in_force() {
    run(async {
        let (server, mut node) = cluster().await;
        let lists = node.lists;
        server
            .put("subnets/10.244.205.0-24", "{\"PublicIP\":")
            .await;
        node.until("a refused record", |node| node.refused_records.len() == 1)
            .await;
        assert_eq!((node.lists, node.leases.len()), (lists, 2));
        assert_eq!(node.refused_records[0].name, "10.244.205.0-24");
        node.reread();
        node.pause(Duration::from_secs(1)).await;
        assert_eq!(
            (node.lists, node.leases.len()),
            (lists, 2),
            "a new list changes nothing"
        );
        server.put("subnets/10.244.205.0-24", OTHER).await;
        node.until("the correction", |node| node.refused_records.is_empty())
            .await;
        assert_eq!(node.leases[1].public.to_string(), "192.0.2.6");
    });
}

#[test]
fn hostile_values_are_refused_one_by_one() {
    run(async {
        let (server, mut node) = cluster().await;
        for (key, value) in [
            ("10.244.1.0-24", r#"{"PublicIP":"127.0.0.1"}"#),
            ("10.244.2.0-24", r#"{"PublicIP":"10.244.9.9"}"#),
            (
                "10.244.4.0-24",
                r#"{"PublicIP":"192.0.2.8","BackendType":"wireguard"}"#,
            ),
            ("10.244.204.0-23", r#"{"PublicIP":"192.0.2.8"}"#),
            ("10.9.0.0-24", r#"{"PublicIP":"192.0.2.8"}"#),
            ("10.244.5.0-24", "[[[[[["),
        ] {
            server.put(&format!("subnets/{key}"), value).await;
        }
        node.until("six refused records", |node| {
            node.refused_records.len() == 6
        })
        .await;
        let reason = |name: &str| {
            let mut records = node.refused_records.iter();
            let record = records.find(|record| record.name == name).unwrap();
            record.reason.clone()
        };
        assert!(reason("10.244.1.0-24").contains("loopback"));
        assert!(reason("10.244.2.0-24").contains("inside the cluster network"));
        assert!(reason("10.244.4.0-24").contains("\"wireguard\""));
        assert!(reason("10.244.204.0-23").contains("of 10.244.205.0-24"));
        assert!(reason("10.9.0.0-24").contains("outside"));
        assert!(reason("10.244.5.0-24").contains("not JSON"));
        assert_eq!(node.leases.len(), 2);
    });
}

#[test]
fn a_second_node_at_this_nodes_address_is_refused() {
    run(async {
        let (server, mut node) = cluster().await;
        server
            .put("subnets/10.244.9.0-24", r#"{"PublicIP":"192.0.2.1"}"#)
            .await;
        node.until("a refused record", |node| node.refused_records.len() == 1)
            .await;
        assert!(node.refused_records[0].reason.contains("this node's own"));
        assert_eq!(node.leases.len(), 2);
    });
}

#[test]
fn a_huge_value_is_listed_without_harm() {
    run(async {
        let server = Server::start().await;
        server.configure(UDP).await;
        let huge = "x".repeat(1 << 20);
        for number in 1..=6 {
            server
                .put(&format!("subnets/10.244.{number}.0-24"), &huge)
                .await;
        }
        server.put("subnets/10.244.205.0-24", PEER).await;
        let mut node = Node::start(&server, 1, UDP).await;
        assert_eq!(node.leases.len(), 2);
        node.until("six refused records", |node| {
            node.refused_records.len() == 6
        })
        .await;
    });
}

#[test]
fn a_missing_configuration_is_refused_until_it_is_written() {
    run(async {
        let server = Server::start().await;
        let mut node = Node::open(&config(&server));
        node.until("a refusal", |node| node.refused.is_some()).await;
        let (place, reason) = node.refused.clone().unwrap();
        assert_eq!(place.to_string(), format!("etcd key {PREFIX}/config"));
        assert!(
            reason.contains(&format!("etcdctl put {PREFIX}/config")),
            "{reason}"
        );
        server.configure("{\"Network\":7}").await;
        node.until("another", |node| {
            node.refused.as_ref().is_some_and(|(_, reason)| {
                reason.contains("cannot be used") && !reason.contains("etcdctl")
            })
        })
        .await;
        assert_eq!(node.settings, None);
        server.configure(UDP).await;
        node.until("settings", |node| node.settings.as_deref() == Some(UDP))
            .await;
        node.announce(announcement(1, UDP));
        node.until("a list", |node| node.leases.len() == 1).await;
    });
}

#[test]
fn a_changed_configuration_is_reported_and_a_broken_one_changes_nothing() {
    run(async {
        let (server, mut node) = cluster().await;
        server.configure(VXLAN).await;
        node.until("settings", |node| node.settings.as_deref() == Some(VXLAN))
            .await;
        node.announce(announcement(1, VXLAN));
        node.until("the format", |node| {
            node.leases[0].format.to_string() == "vxlan"
        })
        .await;
        let (value, ..) = server.get(&node.own_key()).await.unwrap();
        assert!(value.contains("VtepMAC"), "{value}");
        server.configure("{").await;
        node.until("a refusal", |node| node.refused.is_some()).await;
        let before = node.subnets();
        server.delete("subnets/10.244.205.0-24").await;
        node.pause(Duration::from_millis(500)).await;
        assert_eq!(node.subnets(), before, "the last list stays in force");
        server.configure(VXLAN).await;
        node.until("settings and a list", |node| {
            node.refused.is_none() && node.leases.len() == 1
        })
        .await;
    });
}

/// Each list that is reported is written to the disk and to the log.
#[test]
fn a_record_that_changes_all_the_time_is_reported_now_and_then() {
    run(async {
        let (server, mut node) = cluster().await;
        let (before, began) = (node.updates, Instant::now());
        for number in 0..300u32 {
            let address = 100 + number % 97;
            let value = format!(r#"{{"PublicIP":"192.0.2.{address}"}}"#);
            server.put("subnets/10.244.99.0-24", &value).await;
            node.pause(Duration::from_millis(10)).await;
        }
        let (reported, took) = (node.updates - before, began.elapsed().as_secs());
        // Some at once, then one a second for as long as it goes on: three, on a machine that is not busy.
        let most = 9 + usize::try_from(took).unwrap();
        assert!(
            (2..=most).contains(&reported),
            "{reported} lists in {took} s"
        );
        server.delete("subnets/10.244.99.0-24").await;
        node.within(Duration::from_secs(2), "the last change", |node| {
            !node.names().contains(&"10.244.99.0-24")
        })
        .await;
    });
}

/// Of more keys than are read, the first deletion makes room for one that was passed over.
#[test]
fn a_key_that_found_no_room_is_read_when_there_is_some() {
    run(async {
        let (server, mut node) = cluster().await;
        let mut client = server.client().await;
        let own_and_peers = server.leases().await.len();
        let surplus: Vec<_> = (own_and_peers..40_000)
            .map(|number| format!("{PREFIX}/subnets/x{number}"))
            .collect();
        for keys in surplus.chunks(120) {
            let puts: Vec<_> = keys
                .iter()
                .map(|key| etcd_client::TxnOp::put(key.as_str(), "", None))
                .collect();
            client
                .txn(etcd_client::Txn::new().and_then(puts))
                .await
                .unwrap();
        }
        let passed_over = "10.244.206.0-24";
        let peer = r#"{"PublicIP":"192.0.2.6"}"#;
        server.put(&format!("subnets/{passed_over}"), peer).await;
        let long = Duration::from_secs(60);
        node.within(long, "the fault", |node| {
            let mut records = node.refused_records.iter();
            records.any(|record| record.reason.contains("more than 40000 keys"))
        })
        .await;
        assert!(!node.names().contains(&passed_over));
        client.delete(surplus[0].as_str(), None).await.unwrap();
        node.within(long, "the key", |node| node.names().contains(&passed_over))
            .await;
    });
}
