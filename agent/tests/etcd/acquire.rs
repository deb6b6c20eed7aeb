//! How a node comes to its subnets.

use std::time::Instant;

use dataplane::families::PublicAddresses;
use tartan::registry::Contact;

use super::node::{DUAL, Node, UDP, VXLAN, announcement, config, run};
use super::server::{PREFIX, Server};

#[test]
fn a_new_node_takes_a_free_subnet_with_a_lease_of_a_day() {
    run(async {
        let server = Server::start().await;
        server.configure(VXLAN).await;
        let node = Node::start(&server, 1, VXLAN).await;
        assert_eq!(node.settings.as_deref(), Some(VXLAN));
        assert_eq!(node.contact, Some(Contact::InTouch));
        assert_eq!(node.names(), ["n1"]);
        let (value, lease, _) = server.get(&node.own_key()).await.unwrap();
        assert_eq!(
            value,
            r#"{"PublicIP":"192.0.2.1","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}}"#
        );
        let left = server.time_to_live(lease).await;
        assert!((86_390..=86_400).contains(&left), "{left}");
    });
}

#[test]
fn a_restarted_node_finds_its_lease_and_writes_nothing() {
    run(async {
        let server = Server::start().await;
        server.configure(VXLAN).await;
        let node = Node::start(&server, 1, VXLAN).await;
        let before = server.get(&node.own_key()).await;
        drop(node);
        // Another MAC is announced, as after a loss of the state directory: the one in the lease is kept.
        let mut other = announcement(1, VXLAN);
        other.vtep_mac = announcement(9, VXLAN).vtep_mac;
        let node = Node::start_with(&server, other).await;
        assert_eq!(server.get(&node.own_key()).await, before);
        assert_eq!(node.leases[0].vtep_mac, announcement(1, VXLAN).vtep_mac);
    });
}

/// Two nodes that flanneld served, in both formats: ours leave the same keys and values behind.
#[test]
fn what_is_written_equals_what_flanneld_wrote() {
    run(async {
        let fixtures = [
            include_str!("../flannel/etcd-udp.txt"),
            include_str!("../flannel/etcd-vxlan.txt"),
        ];
        for text in fixtures {
            let lines: Vec<_> = text.lines().collect();
            let server = Server::start().await;
            server.configure(lines[1]).await;
            let macs = ["2e:fd:04:c7:59:61", "a6:f0:fb:55:d5:ec"];
            let mut nodes = Vec::new();
            for (number, mac) in (1..).zip(macs) {
                let mut announced = announcement(number, lines[1]);
                announced.vtep_mac.v4 = mac.parse().unwrap();
                announced.vtep_mac.v6 = mac.parse().unwrap();
                announced.previous = vec![format!("10.244.{number}.0/24").parse().unwrap()];
                nodes.push(Node::start_with(&server, announced).await);
            }
            let written = server.leases().await;
            let written = written
                .iter()
                .flat_map(|(key, value)| [format!("{PREFIX}/subnets/{key}"), value.clone()]);
            assert_eq!(written.collect::<Vec<_>>(), lines[2..]);
        }
    });
}

/// And those that it wrote are read as its nodes.
#[test]
fn a_node_that_flanneld_served_keeps_its_subnet_and_mac() {
    run(async {
        let server = Server::start().await;
        let text = include_str!("../flannel/etcd-vxlan.txt");
        let lines: Vec<_> = text.lines().collect();
        for pair in lines.chunks(2) {
            let key = pair[0].strip_prefix(&format!("{PREFIX}/")).unwrap();
            match key {
                "config" => server.put(key, pair[1]).await,
                _ => drop(server.put_for(key, pair[1], 86_400).await),
            }
        }
        let before = server.get("subnets/10.244.1.0-24").await;
        let node = Node::start(&server, 1, lines[1]).await;
        assert_eq!(node.names(), ["n1", "10.244.2.0-24"]);
        assert_eq!(node.leases[0].vtep_mac.v4.to_string(), "2e:fd:04:c7:59:61");
        assert_eq!(node.leases[1].vtep_mac.v4.to_string(), "a6:f0:fb:55:d5:ec");
        assert_eq!(
            server.get("subnets/10.244.1.0-24").await,
            before,
            "no write"
        );
    });
}

#[test]
fn a_subnet_of_a_wrong_length_is_given_back() {
    run(async {
        let server = Server::start().await;
        server.configure(UDP).await;
        let own = r#"{"PublicIP":"192.0.2.1","PublicIPv6":null}"#;
        server.put_for("subnets/10.244.8.0-25", own, 600).await;
        let node = Node::start(&server, 1, UDP).await;
        assert!(node.own_subnets()[0].ends_with("/24"));
        assert_eq!(server.leases().await.len(), 1);
    });
}

#[test]
fn the_previous_subnet_is_taken_again() {
    run(async {
        let server = Server::start().await;
        server.configure(UDP).await;
        let mut announced = announcement(1, UDP);
        announced.previous = vec!["10.244.200.0/24".parse().unwrap()];
        let node = Node::start_with(&server, announced.clone()).await;
        assert_eq!(node.own_subnets(), ["10.244.200.0/24"]);
        // Another node had the same one: it is not free.
        let mut other = announcement(2, UDP);
        other.previous = announced.previous;
        let other = Node::start_with(&server, other).await;
        assert_ne!(other.own_subnets(), ["10.244.200.0/24"]);
        assert_eq!(other.names().len(), 2);
    });
}

/// flannel's defect: its create race is fatal. Eight nodes start at once where there are eight subnets.
#[test]
fn a_create_race_is_not_fatal() {
    run(async {
        let server = Server::start().await;
        let conf =
            r#"{"Network":"10.244.0.0/16","SubnetMin":"10.244.1.0","SubnetMax":"10.244.8.0"}"#;
        server.configure(conf).await;
        let mut nodes: Vec<_> = (1..=8).map(|_| Node::open(&config(&server))).collect();
        for (node, number) in nodes.iter_mut().zip(1..) {
            node.announce(announcement(number, conf));
        }
        let mut subnets = Vec::new();
        for node in &mut nodes {
            node.until("a list of all", |node| node.leases.len() == 8)
                .await;
            subnets.extend(node.own_subnets());
        }
        subnets.sort();
        subnets.dedup();
        assert_eq!(subnets.len(), 8);
        assert_eq!(server.leases().await.len(), 8);
    });
}

#[test]
fn a_node_without_a_subnet_says_so_and_takes_the_first_that_becomes_free() {
    run(async {
        let server = Server::start().await;
        let conf =
            r#"{"Network":"10.244.0.0/16","SubnetMin":"10.244.1.0","SubnetMax":"10.244.1.0"}"#;
        server.configure(conf).await;
        let other = r#"{"PublicIP":"192.0.2.9","PublicIPv6":null}"#;
        server.put("subnets/10.244.1.0-24", other).await;
        let mut node = Node::open(&config(&server));
        node.announce(announcement(1, conf));
        node.until("a refusal", |node| node.refused.is_some()).await;
        let (place, reason) = node.refused.clone().unwrap();
        assert_eq!(place.to_string(), format!("etcd key {PREFIX}/subnets/"));
        assert!(
            reason.starts_with("out of subnets") && reason.contains("etcdctl del"),
            "{reason}"
        );
        assert!(node.leases.is_empty());
        server.delete("subnets/10.244.1.0-24").await;
        node.until("a list", |node| !node.leases.is_empty()).await;
        assert_eq!(node.own_subnets(), ["10.244.1.0/24"]);
    });
}

/// flannel's defect: a reservation becomes a lease of a day.
#[test]
fn a_reservation_stays_without_an_end() {
    run(async {
        let server = Server::start().await;
        server.configure(VXLAN).await;
        // As an operator writes it: no backend yet.
        let reserved = r#"{"PublicIP":"192.0.2.1","PublicIPv6":null}"#;
        server.put("subnets/10.244.77.0-24", reserved).await;
        let node = Node::start(&server, 1, VXLAN).await;
        assert_eq!(node.own_subnets(), ["10.244.77.0/24"]);
        let (value, lease, _) = server.get("subnets/10.244.77.0-24").await.unwrap();
        assert!(value.contains("VtepMAC"), "{value}");
        assert_eq!(lease, 0, "it does not end");
    });
}

#[test]
fn a_node_of_both_families_has_one_key() {
    run(async {
        let server = Server::start().await;
        server.configure(DUAL).await;
        let mut announced = announcement(1, DUAL);
        announced.public =
            PublicAddresses::Dual([192, 0, 2, 1].into(), "2001:db8::1".parse().unwrap());
        announced.previous = vec![
            "fd00:10:244:7::/64".parse().unwrap(),
            "10.244.7.0/24".parse().unwrap(),
        ];
        let mut node = Node::start_with(&server, announced).await;
        assert_eq!(node.own_subnets(), ["10.244.7.0/24", "fd00:10:244:7::/64"]);
        let leases = server.leases().await;
        assert_eq!(leases.len(), 1);
        assert_eq!(leases[0].0, "10.244.7.0-24&fd00:10:244:7::-64");
        assert_eq!(
            leases[0].1,
            r#"{"PublicIP":"192.0.2.1","PublicIPv6":"2001:db8::1","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:01"},"BackendV6Data":{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}}"#
        );
        let peer = r#"{"PublicIP":"192.0.2.2","PublicIPv6":"2001:db8::2","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:02"},"BackendV6Data":{"VNI":1,"VtepMAC":"02:00:00:00:00:12"}}"#;
        server
            .put("subnets/10.244.8.0-24&fd00:10:244:8::-64", peer)
            .await;
        node.until("the peer", |node| node.leases.len() == 2).await;
        let peer = &node.leases[1];
        assert_eq!(
            (peer.name.as_str(), peer.subnets.len()),
            ("10.244.8.0-24", 2)
        );
        assert_eq!(peer.vtep_mac.v6.to_string(), "02:00:00:00:00:12");
    });
}

/// flannel has a device, and so a MAC, for each family.
#[test]
fn a_node_that_flanneld_served_in_both_families_keeps_both_macs() {
    run(async {
        let server = Server::start().await;
        server.configure(DUAL).await;
        let value = r#"{"PublicIP":"192.0.2.1","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"2e:00:00:00:00:04"},"BackendV6Data":{"VNI":1,"VtepMAC":"2e:00:00:00:00:06"}}"#;
        let key = "subnets/10.244.7.0-24&fd00:10:244:7::-64";
        server.put_for(key, value, 86_400).await;
        let before = server.get(key).await;
        let node = Node::start(&server, 1, DUAL).await;
        assert_eq!(server.get(key).await, before, "no write");
        let macs = node.leases[0].vtep_mac;
        assert_eq!(macs.v4.to_string(), "2e:00:00:00:00:04");
        assert_eq!(macs.v6.to_string(), "2e:00:00:00:00:06");
    });
}

/// Keys of two families differ where their IPv4 subnets are the same: the first writer keeps it.
#[test]
fn nodes_of_both_families_never_share_one_subnet() {
    run(async {
        let server = Server::start().await;
        let conf = r#"{"Network":"10.244.0.0/16","SubnetMin":"10.244.1.0","SubnetMax":"10.244.3.0","EnableIPv6":true,"IPv6Network":"fd00:10:244::/48"}"#;
        server.configure(conf).await;
        let mut nodes: Vec<_> = (1..=3).map(|_| Node::open(&config(&server))).collect();
        for (node, number) in nodes.iter_mut().zip(1..) {
            node.announce(announcement(number, conf));
        }
        let mut subnets = Vec::new();
        for node in &mut nodes {
            node.until("a list of all", |node| node.leases.len() == 3)
                .await;
            subnets.extend(node.own_subnets());
        }
        subnets.sort();
        subnets.dedup();
        assert_eq!(subnets.len(), 6, "{subnets:?}");
        assert_eq!(server.leases().await.len(), 3);
    });
}

#[test]
fn five_thousand_leases_are_listed() {
    run(async {
        let server = Server::start().await;
        let conf = r#"{"Network":"10.0.0.0/8","SubnetLen":26,"Backend":{"Type":"vxlan"}}"#;
        server.configure(conf).await;
        let mut client = server.client().await;
        for first in (0..5000u32).step_by(100) {
            let puts: Vec<_> = (first..first + 100).map(peer).collect();
            let txn = etcd_client::Txn::new().and_then(puts);
            client.txn(txn).await.unwrap();
        }
        let start = Instant::now();
        let mut node = Node::start(&server, 1, conf).await;
        let took = start.elapsed();
        assert_eq!(node.leases.len(), 5001);
        let most = if cfg!(debug_assertions) { 6 } else { 2 };
        assert!(took.as_secs() < most, "{took:?}");
        let start = Instant::now();
        client
            .txn(etcd_client::Txn::new().and_then([peer(5000)]))
            .await
            .unwrap();
        node.until("one more", |node| node.leases.len() == 5002)
            .await;
        assert!(start.elapsed().as_secs() < most, "{:?}", start.elapsed());
    });
}

fn peer(number: u32) -> etcd_client::TxnOp {
    let subnet = std::net::Ipv4Addr::from_bits(0x0a80_0000 + number * 64);
    let public = std::net::Ipv4Addr::from_bits(0xac10_0000 + number);
    let [_, _, high, low] = number.to_be_bytes();
    let value = format!(
        r#"{{"PublicIP":"{public}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"06:00:00:00:{high:02x}:{low:02x}"}}}}"#
    );
    etcd_client::TxnOp::put(format!("{PREFIX}/subnets/{subnet}-26"), value, None)
}
