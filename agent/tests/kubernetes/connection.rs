//! Watches that end, servers that stop, answer errors or nothing.

use std::time::{Duration, Instant};

use testbed::apiserver::ApiServer;

use super::cluster::{Cluster, Observed, V4, bare, flannel_node, outside};

/// A change is seen within this time.
const SEEN: Duration = Duration::from_secs(2);

async fn joined() -> (Cluster, Observed) {
    let cluster = Cluster::of_testbed().await;
    cluster.create(bare("n1", &["10.244.1.0/24"])).await;
    cluster.create(flannel_node(2)).await;
    let mut n1 = Observed::joined(&cluster, V4).await;
    // The condition's patch.
    n1.for_a_while(Duration::from_millis(300)).await;
    (cluster, n1)
}

#[tokio::test]
async fn a_dropped_watch_goes_on_from_the_last_version() {
    let (cluster, mut n1) = joined().await;
    let (lists, watches) = cluster.lists_and_watches();
    cluster.server().drop_watches();
    cluster.create(flannel_node(3)).await;
    n1.within(SEEN, "n3", |now| now.lease("n3").is_some()).await;
    assert!(n1.is_in_touch());
    assert_eq!(cluster.lists_and_watches(), (lists, watches + 1));
}

#[tokio::test]
async fn a_line_that_is_cut_comes_again() {
    let (cluster, mut n1) = joined().await;
    let (lists, _) = cluster.lists_and_watches();
    cluster.server().cut_watches();
    cluster.create(flannel_node(3)).await;
    n1.within(SEEN, "n3", |now| now.lease("n3").is_some()).await;
    assert_eq!(cluster.lists_and_watches().0, lists);
}

#[tokio::test]
async fn a_watch_from_a_forgotten_version_lists_again() {
    let (cluster, mut n1) = joined().await;
    let (lists, _) = cluster.lists_and_watches();
    let server = cluster.server();
    server.write_elsewhere();
    server.compact();
    server.drop_watches();
    cluster.create(flannel_node(3)).await;
    cluster.delete("n2").await;
    n1.within(SEEN, "n3", |now| now.names() == ["n1", "n3"])
        .await;
    assert_eq!(cluster.lists_and_watches().0, lists + 1);
    assert!(n1.is_in_touch());
}

#[tokio::test]
async fn a_bookmark_spares_the_list() {
    let (cluster, mut n1) = joined().await;
    let (lists, _) = cluster.lists_and_watches();
    let server = cluster.server();
    server.write_elsewhere();
    server.bookmark();
    n1.for_a_while(Duration::from_millis(300)).await;
    server.compact();
    server.drop_watches();
    cluster.create(flannel_node(3)).await;
    n1.within(SEEN, "n3", |now| now.lease("n3").is_some()).await;
    assert_eq!(cluster.lists_and_watches().0, lists);
}

/// The server comes back with an older copy of its data. A watch from the version seen last would say nothing.
#[tokio::test]
async fn a_server_with_older_data_is_listed_again() {
    let (cluster, mut n1) = joined().await;
    let server = cluster.server();
    for _ in 0..20 {
        server.write_elsewhere();
    }
    server.bookmark();
    n1.for_a_while(Duration::from_millis(300)).await;
    let (address, own) = (server.address(), server.node("n1").unwrap());
    outside(|| server.stop());
    let older = outside(|| ApiServer::start_on(address));
    older.put_node(own);
    older.put_node(flannel_node(3));
    assert!(older.revision() < server.revision());
    n1.within(Duration::from_secs(5), "n3", |now| {
        now.names() == ["n1", "n3"]
    })
    .await;
    outside(|| older.stop());
}

#[tokio::test]
async fn a_list_comes_in_pages() {
    let cluster = Cluster::of_testbed().await;
    cluster.server().generate(1200);
    let mut own = cluster.open("node-00007");
    own.until("settings", |now| now.settings.is_some()).await;
    assert_eq!(cluster.lists_and_watches().0, 3);
    let requests = cluster.server().requests();
    let pages = requests.iter().filter(|r| r.query.contains("limit=500"));
    assert_eq!(pages.count(), 3);
}

/// The server compacts while pages are read: their token ends with 410, and the list is begun again.
#[tokio::test]
async fn a_forgotten_continue_token_begins_the_list_again() {
    let cluster = Cluster::of_testbed().await;
    cluster.server().generate(1200);
    let mut own = cluster.open("node-00007");
    own.until("settings", |now| now.settings.is_some()).await;
    let gone = || {
        let requests = cluster.server().requests();
        let pages = requests.iter().filter(|r| r.query.contains("continue="));
        pages.filter(|r| r.code == Some(410)).count()
    };
    // The moment between two pages is not always met.
    for attempt in 0.. {
        assert!(attempt < 50);
        let (lists, _) = cluster.lists_and_watches();
        own.registry.reread();
        let began = Instant::now();
        while cluster.lists_and_watches().0 == lists {
            assert!(began.elapsed() < Duration::from_secs(10));
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        tokio::time::sleep(Duration::from_millis(attempt)).await;
        cluster.server().write_elsewhere();
        cluster.server().compact();
        own.for_a_while(Duration::from_millis(500)).await;
        if gone() > 0 {
            break;
        }
    }
    own.registry.announce(tartan::registry::Announcement {
        node_name: "node-00007".to_owned(),
        net_conf: tartan::config::NetConf::parse(
            r#"{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}"#,
        )
        .unwrap(),
        ..super::cluster::announcement(7, V4)
    });
    own.until("leases", |now| now.leases.len() == 1200).await;
    assert!(own.is_in_touch());
}

#[tokio::test]
async fn a_server_that_stops_withdraws_nothing_and_is_caught_up_with() {
    let (cluster, mut n1) = joined().await;
    let server = cluster.server();
    server.stop();
    n1.until("loss", |now| !now.lost().is_empty()).await;
    server.put_node(flannel_node(3));
    server.delete_node("n2");
    n1.for_a_while(Duration::from_secs(8)).await;
    assert_eq!(n1.names(), ["n1", "n2"], "the last list is in force");
    outside(|| server.start_again());
    let took = n1.until("n3", |now| now.names() == ["n1", "n3"]).await;
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(n1.is_in_touch());
}

/// Connections stay open and nothing is answered.
#[tokio::test]
async fn a_black_hole_is_noticed_within_30_seconds() {
    let (cluster, mut n1) = joined().await;
    let server = cluster.server();
    server.black_hole(true);
    let began = Instant::now();
    n1.within(Duration::from_secs(30), "loss", |now| {
        !now.lost().is_empty()
    })
    .await;
    assert!(
        began.elapsed() > Duration::from_secs(5),
        "the fault came at once"
    );
    assert!(n1.lost().contains("does not answer"), "{}", n1.lost());
    server.put_node(flannel_node(3));
    server.black_hole(false);
    let took = n1.until("n3", |now| now.lease("n3").is_some()).await;
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert_eq!(n1.names(), ["n1", "n2", "n3"]);
}

/// Where no Node changes, watches are replaced, and that is all.
#[tokio::test]
async fn a_quiet_cluster_costs_a_request_every_20_seconds() {
    let (cluster, mut n1) = joined().await;
    let before = cluster.server().requests().len();
    assert_eq!(n1.for_a_while(Duration::from_secs(25)).await, 0);
    assert_eq!(cluster.server().requests().len(), before + 1);
}

#[tokio::test]
async fn errors_are_lost_contact_and_tried_again() {
    let cluster = Cluster::of_testbed().await;
    cluster.create(bare("n1", &["10.244.1.0/24"])).await;
    cluster.server().fail(500, 3, None);
    let mut n1 = cluster.open("n1");
    n1.until("loss", |now| now.lost().contains("500")).await;
    n1.until("contact", |now| now.is_in_touch()).await;
    n1.until("settings", |now| now.settings.is_some()).await;
}

/// kube-apiserver refuses everybody until it has read its roles.
#[tokio::test]
async fn a_server_that_has_just_started_is_not_said_to_refuse() {
    let (cluster, mut n1) = joined().await;
    cluster.server().fail(403, 3, None);
    cluster.server().drop_watches();
    n1.until("loss", |now| now.lost().contains("403")).await;
    n1.until("contact", |now| now.is_in_touch()).await;
    n1.for_a_while(Duration::from_secs(1)).await;
    assert_eq!(n1.reason(), "");
    // It does not get better: the rights are gone.
    cluster.server().fail(403, 1000, None);
    cluster.server().drop_watches();
    n1.until("loss", |now| now.lost().contains("403")).await;
    let limit = Duration::from_secs(40);
    let took = n1.within(limit, "refusal", |now| now.reason().contains("403"));
    assert!(took.await > Duration::from_secs(10), "it says so too early");
}

#[tokio::test]
async fn a_server_that_asks_to_wait_is_not_asked_again_before() {
    let cluster = Cluster::of_testbed().await;
    cluster.create(bare("n1", &["10.244.1.0/24"])).await;
    cluster.server().fail(429, 1, Some(2));
    let mut n1 = cluster.open("n1");
    let took = n1.until("contact", |now| now.is_in_touch()).await;
    let limits = Duration::from_millis(1900)..Duration::from_secs(5);
    assert!(limits.contains(&took), "{took:?}");
}

#[tokio::test]
async fn everything_is_read_again_on_request() {
    let (cluster, mut n1) = joined().await;
    let (lists, _) = cluster.lists_and_watches();
    n1.registry.reread();
    n1.for_a_while(Duration::from_millis(500)).await;
    assert_eq!(cluster.lists_and_watches().0, lists + 1);
}
