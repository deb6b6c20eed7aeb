//! How a node comes to its subnets.

use tartan::registry::Contact;

use super::node::{DUAL, Node, UDP, VXLAN, announcement, config, run};
use super::server::Server;

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
