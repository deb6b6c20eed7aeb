//! etcd goes and comes back.

use std::time::{Duration, Instant};

use etcd_client::ConnectOptions;
use tartan::registry::Contact;

use super::node::{Node, UDP, announcement, config, run};
use super::server::Server;

const PEER: &str = r#"{"PublicIP":"192.0.2.5","PublicIPv6":null}"#;

async fn cluster() -> (Server, Node) {
    let server = Server::start().await;
    server.configure(UDP).await;
    server.put("subnets/10.244.205.0-24", PEER).await;
    let node = Node::start(&server, 1, UDP).await;
    (server, node)
}

#[test]
fn an_etcd_that_is_not_there_is_reported_with_the_remedy() {
    run(async {
        let server = Server::new("http", Vec::new(), ConnectOptions::new());
        let mut node = Node::open(&config(&server));
        node.until("the loss", Node::is_lost).await;
        let Some(Contact::Lost { reason }) = &node.contact else {
            panic!("{:?}", node.contact);
        };
        assert!(reason.starts_with(&server.url()), "{reason}");
        assert!(reason.contains("Connection refused"), "{reason}");
        assert!(reason.contains("etcd-endpoints"), "{reason}");
    });
}

#[test]
fn an_outage_withdraws_nothing_and_is_caught_up_with() {
    run(async {
        let (mut server, mut node) = cluster().await;
        let (before, lists) = (node.subnets(), node.lists);
        server.kill();
        node.until("the loss", Node::is_lost).await;
        node.pause(Duration::from_secs(3)).await;
        assert_eq!((node.subnets(), node.lists), (before, lists));
        server.run().await;
        let start = Instant::now();
        let other = r#"{"PublicIP":"192.0.2.6","PublicIPv6":null}"#;
        server.put("subnets/10.244.206.0-24", other).await;
        node.until("the change", |node| node.leases.len() == 3)
            .await;
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "{:?}",
            start.elapsed()
        );
        assert_eq!(node.contact, Some(Contact::InTouch));
    });
}

#[test]
fn changes_that_were_compacted_away_are_listed() {
    run(async {
        let (mut server, mut node) = cluster().await;
        server.kill();
        server
            .elsewhere(async |server| {
                server.delete("subnets/10.244.205.0-24").await;
                for octet in 0..20 {
                    let peer = format!(r#"{{"PublicIP":"192.0.2.{}"}}"#, 100 + octet);
                    server
                        .put(&format!("subnets/10.244.{}.0-24", 220 + octet), &peer)
                        .await;
                }
                server.compact().await;
            })
            .await;
        server.run().await;
        node.until("the new list", |node| node.leases.len() == 21)
            .await;
        assert!(!node.names().contains(&"10.244.205.0-24"));
    });
}

#[test]
fn an_empty_etcd_withdraws_nothing_and_gets_this_nodes_lease_again() {
    run(async {
        let (mut server, mut node) = cluster().await;
        let (before, subnets) = (node.subnets(), node.own_subnets());
        server.kill();
        server.wipe();
        server.run().await;
        node.until("a refusal", |node| node.refused.is_some()).await;
        assert!(
            node.refused
                .as_ref()
                .unwrap()
                .0
                .to_string()
                .ends_with("/config")
        );
        node.pause(Duration::from_millis(500)).await;
        assert_eq!(node.subnets(), before, "the last list stays in force");
        assert!(
            server.leases().await.is_empty(),
            "no lease without a configuration"
        );
        server.configure(UDP).await;
        // The list is reported as it is; whether to adopt it is the control loop's choice.
        node.until("a list", |node| node.leases.len() == 1).await;
        assert_eq!(node.own_subnets(), subnets);
        server.put("subnets/10.244.205.0-24", PEER).await;
        node.until("the peer", |node| node.leases.len() == 2).await;
    });
}

#[test]
fn another_server_is_used_before_a_loss_is_reported() {
    run(async {
        let (server, _node) = cluster().await;
        let dead = Server::new("http", Vec::new(), ConnectOptions::new());
        let mut both = config(&server);
        both.endpoints.insert(0, dead.url());
        let mut node = Node::open(&both);
        node.announce(announcement(2, UDP));
        node.until("a list", |node| node.leases.len() == 3).await;
        assert_eq!(node.contact, Some(Contact::InTouch));
    });
}

/// The processes stop without closing anything, as behind a path that drops every packet. Asked in turn they take longer.
#[test]
fn a_silent_etcd_is_noticed_within_thirty_seconds() {
    run(async {
        let (server, node) = cluster().await;
        drop(node);
        let mut many = config(&server);
        many.endpoints = vec![server.url(); 8];
        let mut node = Node::open(&many);
        node.announce(announcement(1, UDP));
        node.until("a list", |node| node.leases.len() == 2).await;
        server.signal("-STOP");
        let start = Instant::now();
        node.within(Duration::from_secs(30), "the loss", Node::is_lost)
            .await;
        assert!(
            start.elapsed() > Duration::from_secs(2),
            "not by a closed connection"
        );
        assert_eq!(node.leases.len(), 2);
        server.signal("-CONT");
        let start = Instant::now();
        node.until("contact", |node| !node.is_lost()).await;
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "{:?}",
            start.elapsed()
        );
    });
}
