//! Changes are announced, and a lost announcement too.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::StreamExt;
use tartan::host::{HostEvent, Watch, watch};
use tokio::time::timeout;

use crate::namespace::Namespace;

/// Events until none comes for 200 ms.
async fn drain(watch: &mut Watch) -> Vec<HostEvent> {
    let mut events = Vec::new();
    while let Ok(event) = timeout(Duration::from_millis(200), watch.next()).await {
        events.push(event.expect("the watch ended"));
    }
    events
}

#[test]
fn each_kind_of_change_is_announced() {
    let namespace = Namespace::with_tun();
    namespace.inside(|| async {
        let mut watch = watch().unwrap();
        assert_eq!(drain(&mut watch).await, []);
        for (words, expected) in [
            ("link set tartan0 mtu 1400", HostEvent::Link),
            ("address add 10.1.1.1/32 dev eth0", HostEvent::Address),
            (
                "-6 address add 2001:db8::1/128 dev eth0 nodad",
                HostEvent::Address,
            ),
            ("route add 10.2.0.0/16 dev eth0", HostEvent::Route),
            ("-6 route add 2001:db8:1::/48 dev eth0", HostEvent::Route),
            ("route delete 10.2.0.0/16", HostEvent::Route),
            ("address delete 10.1.1.1/32 dev eth0", HostEvent::Address),
            ("link set tartan0 up", HostEvent::Link),
            ("link set tartan0 txqueuelen 100", HostEvent::Link),
            ("link set tartan0 alias somebody", HostEvent::Link),
            ("link set tartan0 multicast off", HostEvent::Link),
            ("link set tartan0 multicast on", HostEvent::Link),
            ("link set tartan0 down", HostEvent::Link),
            ("link delete tartan0", HostEvent::Link),
        ] {
            namespace.ip(words);
            let events = drain(&mut watch).await;
            assert!(events.contains(&expected), "`ip {words}`: {events:?}");
        }
        for words in [
            "tc qdisc replace dev eth0 root tbf rate 1mbit burst 10kb latency 70ms",
            "tc qdisc delete dev eth0 root",
            "tc qdisc add dev eth0 ingress",
            "tc filter add dev eth0 ingress protocol all u32 match u32 0 0 action mirred egress redirect dev wire0",
            "tc filter delete dev eth0 ingress",
        ] {
            namespace.shell(words);
            let events = drain(&mut watch).await;
            assert!(events.contains(&HostEvent::Shaping), "`{words}`: {events:?}");
        }
        namespace.shell("nft add table ip t");
        assert_eq!(drain(&mut watch).await, [HostEvent::Rules]);
        for path in [
            "net/ipv4/ip_forward",
            "net/ipv4/conf/eth0/rp_filter",
            "net/ipv4/conf/eth0/proxy_arp",
            "net/ipv6/conf/all/forwarding",
        ] {
            namespace.set(path, "1");
            let events = drain(&mut watch).await;
            assert!(events.contains(&HostEvent::Setting), "{path}: {events:?}");
        }
    });
}

#[test]
fn each_change_of_a_next_hop_is_noted_and_none_of_another_neighbour() {
    let namespace = Namespace::with_tun();
    namespace.inside(|| async {
        let index = namespace.shell("cat /proc/net/dev_snmp6/eth0");
        let index = index.lines().find_map(|line| line.strip_prefix("ifIndex"));
        let index = index.unwrap().trim().parse().unwrap();
        let mut watch = watch().unwrap();
        watch.set_next_hops(HashSet::from([(index, "10.9.0.2".parse().unwrap())]));
        assert_eq!(drain(&mut watch).await, []);
        assert!(watch.take_next_hop_change(), "nothing was watched before");
        for (words, expected) in [
            (
                "neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev eth0 nud stale",
                true,
            ),
            (
                "neigh add 10.9.0.3 lladdr 02:00:00:00:00:03 dev eth0 nud stale",
                false,
            ),
            (
                "neigh change 10.9.0.2 lladdr 02:00:00:00:00:04 dev eth0 nud stale",
                true,
            ),
            ("neigh change 10.9.0.2 dev eth0 nud failed", true),
            ("neigh delete 10.9.0.2 dev eth0", true),
        ] {
            namespace.ip(words);
            assert_eq!(drain(&mut watch).await, [], "`ip {words}`");
            assert_eq!(watch.take_next_hop_change(), expected, "`ip {words}`");
        }
    });
}

#[test]
fn a_burst_that_does_not_fit_is_an_overrun_and_the_watch_goes_on() {
    let namespace = Namespace::new();
    let burst: String = (0..2000)
        .map(|n| format!("route add 10.9.{}.{}/32 dev eth0\n", n / 250, n % 250))
        .collect();
    namespace.inside(|| async {
        let mut watch = watch().unwrap();
        namespace.ip_batch(&burst);
        let events = drain(&mut watch).await;
        assert!(
            events.contains(&HostEvent::Overrun),
            "{} events",
            events.len()
        );
        assert!(events.len() < 2000);
        namespace.ip("link set wire0 mtu 1400");
        assert!(drain(&mut watch).await.contains(&HostEvent::Link));
    });
}
