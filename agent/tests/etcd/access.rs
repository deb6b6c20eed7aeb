//! Users, roles and certificates.

use std::path::Path;
use std::process::Command;

use etcd_client::{ConnectOptions, Permission};
use tartan::config::node::registry::{EtcdConfig, Secret};
use tartan::registry::Contact;
use tempfile::TempDir;

use super::node::{Node, UDP, announcement, config, run};
use super::server::{PREFIX, Server};

fn reason(node: &Node) -> &str {
    match &node.contact {
        Some(Contact::Lost { reason }) => reason,
        other => panic!("{other:?}"),
    }
}

/// Why the registry of `config` is lost.
async fn loss(config: &EtcdConfig) -> String {
    let mut node = Node::open(config);
    node.until("the loss", Node::is_lost).await;
    reason(&node).to_owned()
}

pub(crate) fn with_user(server: &Server, name: &str, password: &str) -> EtcdConfig {
    let mut config = config(server);
    config.user = Some((name.to_owned(), Secret(password.to_owned())));
    config
}

/// A server that asks for users: `root`, and `pods` who may use the keys below the prefix alone.
pub(crate) async fn guarded() -> Server {
    let mut server = Server::start().await;
    server.configure(UDP).await;
    let mut client = server.client().await;
    client.user_add("root", "r", None).await.unwrap();
    client.user_grant_role("root", "root").await.unwrap();
    client.role_add("pods").await.unwrap();
    let below = Permission::read_write(format!("{PREFIX}/")).with_prefix();
    client.role_grant_permission("pods", below).await.unwrap();
    for name in ["pods", "stranger"] {
        client.user_add(name, "secret", None).await.unwrap();
    }
    client.user_grant_role("pods", "pods").await.unwrap();
    client.auth_enable().await.unwrap();
    server.options = ConnectOptions::new().with_user("root", "r");
    server
}

#[test]
fn a_user_with_a_password_is_let_in() {
    run(async {
        let server = guarded().await;
        let mut node = Node::open(&with_user(&server, "pods", "secret"));
        node.announce(announcement(1, UDP));
        node.until("a list", |node| node.leases.len() == 1).await;
        server
            .put("subnets/10.244.205.0-24", r#"{"PublicIP":"192.0.2.5"}"#)
            .await;
        node.until("a change", |node| node.leases.len() == 2).await;
    });
}

#[test]
fn what_etcd_denies_is_reported_with_the_remedy() {
    run(async {
        let server = guarded().await;
        let anonymous = loss(&config(&server)).await;
        assert!(anonymous.contains("set etcd-username"), "{anonymous}");
        assert!(!anonymous.contains("everyone"), "{anonymous}");
        let wrong = loss(&with_user(&server, "pods", "wrong")).await;
        assert!(
            wrong.contains("check etcd-username and etcd-password"),
            "{wrong}"
        );
        assert!(!wrong.contains("\"wrong\""), "{wrong}");
        let stranger = loss(&with_user(&server, "stranger", "secret")).await;
        assert!(
            stranger.contains(
                "allow the user stranger to read and write the keys below /coreos.com/network/"
            ),
            "{stranger}"
        );
        assert!(
            stranger.contains("etcdctl user grant-role stranger ROLE"),
            "{stranger}"
        );
    });
}

/// A user that may read alone: the refusal is reported, and etcd is not asked at each change of a peer's lease.
#[test]
fn a_write_that_etcd_denies_is_not_repeated_at_every_change() {
    run(async {
        let server = guarded().await;
        let mut root = server.client().await;
        root.role_add("readers").await.unwrap();
        let below = Permission::read(format!("{PREFIX}/")).with_prefix();
        root.role_grant_permission("readers", below).await.unwrap();
        root.user_grant_role("stranger", "readers").await.unwrap();
        let mut node = Node::open(&with_user(&server, "stranger", "secret"));
        node.announce(announcement(1, UDP));
        node.until("a refusal", |node| node.refused.is_some()).await;
        let (_, reason) = node.refused.clone().unwrap();
        assert!(reason.contains("grant-permission"), "{reason}");
        let before = root.get("x", None).await.unwrap();
        let asked =
            async |root: &mut etcd_client::Client| root.leases().await.unwrap().leases().len();
        let granted = asked(&mut root).await;
        for octet in 100..120 {
            let peer = format!(r#"{{"PublicIP":"192.0.2.{octet}"}}"#);
            server
                .put(&format!("subnets/10.244.{octet}.0-24"), &peer)
                .await;
            node.pause(std::time::Duration::from_millis(40)).await;
        }
        assert_eq!(asked(&mut root).await, granted);
        let after = root.get("x", None).await.unwrap();
        let revision = |answer: &etcd_client::GetResponse| answer.header().unwrap().revision();
        assert_eq!(
            revision(&after) - revision(&before),
            20,
            "the peers' writes alone"
        );
        root.user_grant_role("stranger", "pods").await.unwrap();
        node.reread();
        node.until("a list", |node| node.leases.len() == 21).await;
    });
}

/// As etcd's own client, so that flannel's options keep working.
#[test]
fn a_user_where_etcd_asks_for_none_is_no_fault() {
    run(async {
        let server = Server::start().await;
        server.configure(UDP).await;
        let mut node = Node::open(&with_user(&server, "pods", "secret"));
        node.announce(announcement(1, UDP));
        node.until("a list", |node| node.leases.len() == 1).await;
    });
}

/// A token that etcd has forgotten, as after its restart.
#[test]
fn a_token_that_has_ended_is_replaced() {
    run(async {
        let mut server = guarded().await;
        let mut node = Node::open(&with_user(&server, "pods", "secret"));
        node.announce(announcement(1, UDP));
        node.until("a list", |node| node.leases.len() == 1).await;
        server.kill();
        server.run().await;
        server
            .put("subnets/10.244.205.0-24", r#"{"PublicIP":"192.0.2.5"}"#)
            .await;
        node.until("a change", |node| node.leases.len() == 2).await;
        server.delete(&node.own_key()).await;
        node.pause(std::time::Duration::from_millis(700)).await;
        assert!(server.get(&node.own_key()).await.is_some());
    });
}

fn openssl(directory: &Path, arguments: &str) {
    let output = Command::new("openssl")
        .args(arguments.split_whitespace())
        .current_dir(directory)
        .output()
        .expect("openssl starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A certificate authority, and what it signed for the server and a client.
fn certificates() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let new = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(
        path,
        &format!("req -x509 {new} -keyout ca.key -out ca.pem -subj /CN=ca -days 2"),
    );
    for (name, extension) in [
        (
            "server",
            "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n",
        ),
        ("client", "extendedKeyUsage=clientAuth\n"),
    ] {
        std::fs::write(path.join("extension"), extension).unwrap();
        openssl(
            path,
            &format!("req {new} -keyout {name}.key -out {name}.csr -subj /CN={name}"),
        );
        openssl(
            path,
            &format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out {name}.pem -days 2 -extfile extension"
            ),
        );
    }
    directory
}

#[test]
fn certificates_of_both_sides_are_checked() {
    run(async {
        let certificates = certificates();
        let path = |name: &str| certificates.path().join(name);
        let server = Server::start_tls(&certificates).await;
        server.configure(UDP).await;
        let mut whole = config(&server);
        whole.cafile = Some(path("ca.pem"));
        whole.identity = Some((path("client.pem"), path("client.key")));
        let mut node = Node::open(&whole);
        node.announce(announcement(1, UDP));
        node.until("a list", |node| node.leases.len() == 1).await;

        let mut anonymous = whole.clone();
        anonymous.identity = None;
        let reason = loss(&anonymous).await;
        assert!(reason.contains("etcd-certfile"), "{reason}");
        let mut distrustful = whole.clone();
        distrustful.cafile = None;
        let reason = loss(&distrustful).await;
        assert!(
            reason.contains("UnknownIssuer") && reason.contains("etcd-cafile"),
            "{reason}"
        );
        let mut absent = whole.clone();
        absent.cafile = Some(path("absent.pem"));
        let reason = loss(&absent).await;
        assert!(reason.contains("cannot read etcd-cafile"), "{reason}");
    });
}

/// Unlike flannel, which then uses no certificate authority at all.
#[test]
fn a_certificate_authority_alone_is_enough_where_etcd_asks_for_no_certificate() {
    run(async {
        let certificates = certificates();
        let mut server = Server::new_tls(&certificates, false);
        server.run().await;
        server.configure(UDP).await;
        let mut trusting = config(&server);
        trusting.cafile = Some(certificates.path().join("ca.pem"));
        let mut node = Node::open(&trusting);
        node.announce(announcement(1, UDP));
        node.until("a list", |node| node.leases.len() == 1).await;
    });
}

/// https:// for a server without TLS.
#[test]
fn a_server_without_tls_is_named() {
    run(async {
        let server = Server::start().await;
        let mut config = config(&server);
        let http = |server: &String| server.replace("http://", "https://");
        config.endpoints = config.endpoints.iter().map(http).collect();
        let mut node = Node::open(&config);
        // Where the server's reset overtakes its answer, a try says only that.
        let is_named = |node: &Node| {
            node.is_lost()
                && reason(node).ends_with(
                    ": it answers no TLS handshake: if it has no TLS, use http:// in etcd-endpoints",
                )
        };
        node.until("the reason", is_named).await;
    });
}
