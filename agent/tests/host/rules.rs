//! Our own table of the packet filter, with nft as independent oracle.

use std::time::{Duration, Instant};

use serde_json::Value;
use tartan::host::HostState;
use tartan::host::{Change, Host, HostError};

use crate::namespace::Namespace;
use crate::text;
use crate::{dual, nets, v4};

/// One call by an agent just started.
pub(crate) fn apply_firewall(
    namespace: &Namespace,
    desired: &HostState,
) -> Result<Vec<Change>, HostError> {
    let state = namespace.state_dir();
    namespace.inside(|| async move { Host::open(&state).await?.apply_firewall(desired).await })
}

/// The rules of one chain as `nft` prints them, without counters and comments.
pub(crate) fn rules(namespace: &Namespace, chain: &str) -> Vec<String> {
    let text = namespace.shell(&format!("nft -s list chain {chain}"));
    let inside = text.lines().map(str::trim);
    inside
        .filter(|line| line.contains("comment \"tartan: pod traffic\"") || line.contains("counter"))
        .map(|line| {
            line.replace(" comment \"tartan: pod traffic\"", "")
                .replace(" counter", "")
                .replace(" packets 0 bytes 0", "")
        })
        .collect()
}

pub(crate) fn ruleset(namespace: &Namespace) -> String {
    namespace.shell("nft list ruleset")
}

/// The ruleset as nft tells programs, without what it numbers and counts.
fn json(namespace: &Namespace) -> Vec<Value> {
    let text = namespace.shell("nft -j list ruleset");
    let all: Value = serde_json::from_str(&text).unwrap();
    all["nftables"].as_array().unwrap().clone()
}

pub(crate) fn nft(namespace: &Namespace, script: &str) {
    let file = namespace.root().join("script.nft");
    std::fs::write(&file, script).unwrap();
    namespace.shell(&format!("nft -f {}", file.display()));
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn the_rules_of_a_node_are_flannels_in_flannels_order_but_for_forged_sources() {
    let namespace = Namespace::new();
    let changes = apply_firewall(&namespace, &v4()).unwrap();
    assert_eq!(changes, [Change::TableWritten("inet tartan".to_owned())]);
    assert_eq!(
        rules(&namespace, "inet tartan postrouting"),
        [
            "meta mark & 0x00004000 == 0x00004000 return",
            "iifname \"tartan0\" ct status dnat ip saddr 10.244.0.0/16 ip saddr != 10.244.1.0/24 \
             ip daddr 10.244.0.0/16 ip daddr != 10.244.1.0/24 masquerade fully-random",
            "ip saddr 10.244.0.0/16 ip daddr 10.244.0.0/16 return",
            "ip saddr != 10.244.0.0/16 ip daddr 10.244.1.0/24 return",
            "ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random",
            "ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade fully-random",
        ]
    );
    assert_eq!(
        rules(&namespace, "inet tartan prerouting"),
        [
            "iifname != \"tt*\" return",
            "ip6 saddr fe80::/10 icmpv6 type 131-133 return",
            "ip6 saddr fe80::/10 icmpv6 type 135-136 return",
            "ip6 saddr fe80::/10 icmpv6 type mld2-listener-report return",
            "ip6 saddr :: icmpv6 type 131-133 return",
            "ip6 saddr :: icmpv6 type nd-neighbor-solicit return",
            "ip6 saddr :: icmpv6 type mld2-listener-report return",
            "ip saddr 0.0.0.0 drop",
            "fib saddr . iif oif missing drop",
        ]
    );
    assert_eq!(
        rules(&namespace, "inet tartan guard"),
        [
            "meta l4proto != udp meta l4proto != icmp meta l4proto != ipv6-icmp return",
            "iifname \"tt*\" icmp type destination-unreachable icmp code frag-needed @th,136,8 0x11 \
             ip daddr 192.0.2.1 drop",
            "iifname @pod_links icmp type destination-unreachable icmp code frag-needed @th,136,8 0x11 \
             ip daddr 192.0.2.1 drop",
            "iifname \"tt*\" icmp type destination-unreachable icmp code frag-needed @th,136,8 0x11 \
             ip daddr @nodes4 drop",
            "iifname @pod_links icmp type destination-unreachable icmp code frag-needed @th,136,8 0x11 \
             ip daddr @nodes4 drop",
            "iifname \"tt*\" icmpv6 type packet-too-big @th,112,8 != 0x6 ip6 daddr @nodes6 drop",
            "iifname @pod_links icmpv6 type packet-too-big @th,112,8 != 0x6 ip6 daddr @nodes6 drop",
            "meta l4proto != udp return",
            "udp dport != 8285 udp dport != 8472 return",
            "ip frag-off & 8191 != 0 return",
            "frag frag-off != 0 return",
            "ip daddr 192.0.2.1 ct status dnat drop",
            "ip daddr @nodes4 ct status dnat drop",
            "ip6 daddr @nodes6 ct status dnat drop",
            "iifname \"tt*\" ip daddr 192.0.2.1 drop",
            "iifname @pod_links ip daddr 192.0.2.1 drop",
            "ip daddr 192.0.2.1 ip saddr @nodes4 fib saddr . iif oif missing \
             fib daddr . iif type != local drop",
            "ip daddr != @nodes4 return",
            "ip6 daddr != @nodes6 return",
            "ip saddr @nodes4 fib saddr . iif oif != missing return",
            "ip6 saddr @nodes6 fib saddr . iif oif != missing return",
            "counter drop",
        ]
    );
    assert_eq!(
        rules(&namespace, "inet tartan translated"),
        [
            "meta l4proto != udp return",
            "udp dport != 8285 udp dport != 8472 return",
            "iif 0 return",
            "meta iifkind \"vxlan\" return",
            "ip daddr != @nodes4 return",
            "ip6 daddr != @nodes6 return",
            "fib saddr type != local return",
            "counter drop",
        ]
    );
    assert_eq!(
        rules(&namespace, "inet tartan tracking"),
        [
            "meta l4proto != udp return",
            "udp dport != 8285 udp dport != 8472 return",
            "ip daddr != 192.0.2.1 return",
            "meta nfproto ipv6 return",
            "ip saddr @nodes4 udp sport 8285 return",
            "ip saddr @nodes4 update @peers4 { ip saddr . th sport } return",
            "ip saddr != @nodes4 update @strangers4 { ip saddr . th sport } return",
            "ip6 saddr @nodes6 udp sport 8285 return",
            "ip6 saddr @nodes6 update @peers6 { ip6 saddr . th sport } return",
            "ip6 saddr != @nodes6 update @strangers6 { ip6 saddr . th sport } return",
            "counter notrack",
        ]
    );
    let found = json(&namespace);
    let chains: Vec<String> = found
        .iter()
        .filter_map(|item| item.get("chain"))
        .map(|chain| {
            let text = |key: &str| chain[key].as_str().unwrap().to_owned();
            let words = ["family", "table", "name", "type", "hook", "policy"].map(text);
            format!("{} {}", words.join(" "), chain["prio"])
        })
        .collect();
    assert_eq!(
        chains,
        [
            "inet tartan prerouting filter prerouting accept -300",
            "inet tartan tracking filter prerouting accept -300",
            "inet tartan guard filter prerouting accept -90",
            "inet tartan translated filter postrouting accept 110",
            "inet tartan postrouting nat postrouting accept 100"
        ]
    );
}

#[test]
fn two_families_and_several_subnets_have_all_rules() {
    let namespace = Namespace::new();
    let desired = HostState {
        unreachable: nets(&["10.244.1.0/24", "10.244.9.0/24", "fd00:244:0:1::/64"]),
        ..dual()
    };
    apply_firewall(&namespace, &desired).unwrap();
    assert_eq!(
        rules(&namespace, "inet tartan postrouting"),
        [
            "meta mark & 0x00004000 == 0x00004000 return",
            "iifname \"tartan0\" ct status dnat ip saddr 10.244.0.0/16 ip saddr != 10.244.1.0/24 \
             ip saddr != 10.244.9.0/24 ip daddr 10.244.0.0/16 ip daddr != 10.244.1.0/24 \
             ip daddr != 10.244.9.0/24 masquerade fully-random",
            "ip saddr 10.244.0.0/16 ip daddr 10.244.0.0/16 return",
            "ip saddr != 10.244.0.0/16 ip daddr 10.244.1.0/24 return",
            "ip saddr != 10.244.0.0/16 ip daddr 10.244.9.0/24 return",
            "ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random",
            "ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade fully-random",
            "iifname \"tartan0\" ct status dnat ip6 saddr fd00:244::/48 ip6 saddr != fd00:244:0:1::/64 \
             ip6 daddr fd00:244::/48 ip6 daddr != fd00:244:0:1::/64 masquerade fully-random",
            "ip6 saddr fd00:244::/48 ip6 daddr fd00:244::/48 return",
            "ip6 saddr != fd00:244::/48 ip6 daddr fd00:244:0:1::/64 return",
            "ip6 saddr fd00:244::/48 ip6 daddr != ff00::/8 masquerade fully-random",
            "ip6 saddr != fd00:244::/48 ip6 daddr fd00:244::/48 masquerade fully-random",
        ]
    );
    assert_eq!(apply_firewall(&namespace, &desired).unwrap(), []);
}

#[test]
fn without_masquerade_nothing_is_translated() {
    let namespace = Namespace::new();
    apply_firewall(&namespace, &v4()).unwrap();
    let plain = HostState {
        masquerade: false,
        ..v4()
    };
    assert_eq!(apply_firewall(&namespace, &plain).unwrap().len(), 1);
    let text = ruleset(&namespace);
    assert!(!text.contains("type nat"), "{text}");
    assert!(text.contains("fib saddr . iif oif missing"), "{text}");
    assert_eq!(apply_firewall(&namespace, &plain).unwrap(), []);
}

#[test]
fn whatever_is_done_to_our_table_is_mended_and_a_sound_one_is_left_alone() {
    let namespace = Namespace::new();
    apply_firewall(&namespace, &dual()).unwrap();
    let whole = ruleset(&namespace);
    assert_eq!(apply_firewall(&namespace, &dual()).unwrap(), []);
    for damage in [
        "flush ruleset",
        "delete table inet tartan",
        "flush chain inet tartan postrouting",
        "flush table inet tartan",
        "flush chain inet tartan prerouting",
        "insert rule inet tartan prerouting accept",
        "flush chain inet tartan guard",
        "delete chain inet tartan translated",
        "insert rule inet tartan guard accept",
        "insert rule inet tartan tracking notrack",
        "add rule inet tartan prerouting drop",
        "insert rule inet tartan postrouting accept",
        "add chain inet tartan other { type filter hook input priority 0; }",
        "add table inet tartan { flags dormant; }",
        "add chain inet tartan prerouting { policy drop; }",
        // What our table had once, and what cuts pods off there.
        "add chain inet tartan forward { type filter hook forward priority filter; policy accept; }; \
         add rule inet tartan forward ip saddr 10.244.0.0/16 counter accept",
        "add chain inet tartan forward { type filter hook forward priority filter; policy drop; }",
        "flush chain inet tartan postrouting; add rule inet tartan postrouting ip saddr 10.99.0.0/16 counter return",
    ] {
        nft(&namespace, damage);
        assert_ne!(ruleset(&namespace), whole, "{damage} does nothing");
        let changes = apply_firewall(&namespace, &dual()).unwrap();
        assert_eq!(
            changes,
            [Change::TableWritten("inet tartan".to_owned())],
            "{damage}"
        );
        assert_eq!(ruleset(&namespace), whole, "after {damage}");
    }
}

#[test]
fn a_node_that_moves_costs_an_element_and_a_changed_set_is_repaired() {
    let namespace = Namespace::new();
    apply_firewall(&namespace, &dual()).unwrap();
    let whole = ruleset(&namespace);
    let mut moved = dual();
    let nodes = ["10.244.2.0", "10.244.2.1", "192.0.2.77", "2001:db8::2"];
    moved.encapsulation.nodes = nodes.map(|address| address.parse().unwrap()).into();
    moved.encapsulation.pod_links = vec!["cni0".to_owned(), "cali1".to_owned()];
    let changed = |set: &str, added, removed| Change::SetChanged {
        set: format!("inet tartan {set}"),
        added,
        removed,
    };
    assert_eq!(
        apply_firewall(&namespace, &moved).unwrap(),
        [changed("nodes4", 1, 1), changed("pod_links", 1, 0)]
    );
    let text = ruleset(&namespace);
    assert!(
        text.contains("192.0.2.77") && !text.contains("192.0.2.2,"),
        "{text}"
    );
    assert_eq!(apply_firewall(&namespace, &moved).unwrap(), []);
    apply_firewall(&namespace, &dual()).unwrap();
    assert_eq!(ruleset(&namespace), whole);
    for (damage, change) in [
        ("flush set inet tartan nodes6", changed("nodes6", 1, 0)),
        (
            "add element inet tartan nodes4 { 198.51.100.7 }",
            changed("nodes4", 0, 1),
        ),
        (
            "delete element inet tartan pod_links { \"cni0\" }",
            changed("pod_links", 1, 0),
        ),
    ] {
        nft(&namespace, damage);
        assert_eq!(
            apply_firewall(&namespace, &dual()).unwrap(),
            [change],
            "{damage}"
        );
        assert_eq!(ruleset(&namespace), whole, "after {damage}");
    }
}

#[test]
fn five_thousand_nodes_are_one_batch() {
    let namespace = Namespace::new();
    let mut many = dual();
    let node = |number: u32| {
        let v4 = std::net::Ipv4Addr::from_bits(0x0a00_0000 + number);
        let v6 = std::net::Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(number));
        [v4.into(), v6.into()]
    };
    many.encapsulation.nodes = (0..15_000).flat_map(node).collect();
    let written = [Change::TableWritten("inet tartan".to_owned())];
    assert_eq!(apply_firewall(&namespace, &many).unwrap(), written);
    assert_eq!(apply_firewall(&namespace, &many).unwrap(), []);
    let mut fewer = many.clone();
    fewer.encapsulation.nodes = (0..14_999).flat_map(node).collect();
    assert_eq!(apply_firewall(&namespace, &fewer).unwrap().len(), 2);
}

/// nft is the oracle byte for byte: what it writes is what we would write.
#[test]
fn a_source_check_that_nft_wrote_is_ours_and_any_other_is_not() {
    let namespace = Namespace::new();
    apply_firewall(&namespace, &dual()).unwrap();
    let check = |last: &str| {
        [
            "flush chain inet tartan prerouting",
            "add rule inet tartan prerouting iifname != \"tt*\" counter return",
            "add rule inet tartan prerouting ip6 saddr fe80::/10 icmpv6 type 131-133 counter return",
            "add rule inet tartan prerouting ip6 saddr fe80::/10 icmpv6 type 135-136 counter return",
            "add rule inet tartan prerouting ip6 saddr fe80::/10 icmpv6 type 143 counter return",
            "add rule inet tartan prerouting ip6 saddr :: icmpv6 type 131-133 counter return",
            "add rule inet tartan prerouting ip6 saddr :: icmpv6 type 135 counter return",
            "add rule inet tartan prerouting ip6 saddr :: icmpv6 type 143 counter return",
            "add rule inet tartan prerouting ip saddr 0.0.0.0 counter drop",
            &format!("add rule inet tartan prerouting {last}"),
        ]
        .join("\n")
    };
    let ours = "fib saddr . iif oif missing counter drop";
    nft(&namespace, &check(ours));
    assert_eq!(apply_firewall(&namespace, &dual()).unwrap(), []);
    for (from, to) in [
        ("missing", "exists"),
        ("saddr . iif", "saddr"),
        ("drop", "accept"),
    ] {
        nft(&namespace, &check(&ours.replace(from, to)));
        assert_eq!(
            apply_firewall(&namespace, &dual()).unwrap().len(),
            1,
            "{to}"
        );
    }
}

#[test]
fn an_agent_that_goes_on_sees_each_change_and_writes_no_more_than_twice_a_second() {
    let namespace = Namespace::new();
    let state = namespace.state_dir();
    let written = [Change::TableWritten("inet tartan".to_owned())];
    namespace.inside(|| async {
        let mut host = Host::open(&state).await.unwrap();
        let started = Instant::now();
        assert_eq!(host.apply_firewall(&v4()).await.unwrap(), written);
        let whole = ruleset(&namespace);
        nft(&namespace, "flush ruleset");
        let mut calls = 0;
        while host.apply_firewall(&v4()).await.unwrap().is_empty() {
            calls += 1;
            assert!(started.elapsed() < Duration::from_secs(20), "never mended");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(
            started.elapsed() >= Duration::from_millis(500),
            "{calls} calls"
        );
        assert_eq!(ruleset(&namespace), whole);
        // Other wishes do not wait.
        assert_eq!(host.apply_firewall(&dual()).await.unwrap(), written);
        tokio::time::sleep(Duration::from_millis(600)).await;
        for _ in 0..2 {
            assert_eq!(host.apply_firewall(&dual()).await.unwrap(), []);
        }
        // What is found well is found wrong again after the next change.
        nft(&namespace, "delete table inet tartan");
        assert_eq!(host.apply_firewall(&dual()).await.unwrap(), written);
    });
}

#[test]
fn without_permission_the_sentence_says_what_is_missing() {
    let namespace = Namespace::new();
    let state = namespace.state_dir();
    let desired = v4();
    let error = namespace.inside(|| async {
        let mut host = Host::open(&state).await.unwrap();
        rustix::thread::set_capabilities(
            None,
            rustix::thread::CapabilitySets {
                effective: rustix::thread::CapabilitySet::empty(),
                permitted: rustix::thread::CapabilitySet::empty(),
                inheritable: rustix::thread::CapabilitySet::empty(),
            },
        )
        .unwrap();
        text(&host.apply_firewall(&desired).await.unwrap_err())
    });
    assert!(error.contains("CAP_NET_ADMIN"), "{error}");
}
