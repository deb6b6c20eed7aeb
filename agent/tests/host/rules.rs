//! The packet filter, with nft and iptables-nft as independent oracles: our own
//! table, and chains of others that drop what they do not know.

use std::time::{Duration, Instant};

use serde_json::Value;
use tartan::host::{Change, Host, HostError};
use tartan::reconcile::HostState;

use crate::namespace::Namespace;
use crate::{dual, nets, v4};

/// One call by an agent just started.
pub(crate) fn apply_rules(
    namespace: &Namespace,
    desired: &HostState,
) -> Result<Vec<Change>, HostError> {
    let state = namespace.state_dir();
    namespace.inside(|| async move { Host::open(&state).await?.apply_rules(desired).await })
}

/// The rules of one chain as `nft` prints them, without counters and comments.
fn rules(namespace: &Namespace, chain: &str) -> Vec<String> {
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

fn ruleset(namespace: &Namespace) -> String {
    namespace.shell("nft list ruleset")
}

/// The ruleset as nft tells programs, without what it numbers and counts.
fn json(namespace: &Namespace) -> Vec<Value> {
    let text = namespace.shell("nft -j list ruleset");
    let all: Value = serde_json::from_str(&text).unwrap();
    all["nftables"].as_array().unwrap().clone()
}

fn nft(namespace: &Namespace, script: &str) {
    let file = namespace.root().join("script.nft");
    std::fs::write(&file, script).unwrap();
    namespace.shell(&format!("nft -f {}", file.display()));
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn the_rules_of_a_node_are_flannels_in_flannels_order() {
    let namespace = Namespace::new();
    let changes = apply_rules(&namespace, &v4()).unwrap();
    assert_eq!(changes, [Change::TableWritten("inet tartan".to_owned())]);
    assert_eq!(
        rules(&namespace, "inet tartan postrouting"),
        [
            "meta mark & 0x00004000 == 0x00004000 return",
            "ip saddr 10.244.1.0/24 ip daddr 10.244.0.0/16 return",
            "ip saddr 10.244.0.0/16 ip daddr 10.244.1.0/24 return",
            "ip saddr != 10.244.0.0/16 ip daddr 10.244.1.0/24 return",
            "ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random",
            "ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade fully-random",
        ]
    );
    assert_eq!(
        rules(&namespace, "inet tartan forward"),
        [
            "ip saddr 10.244.0.0/16 accept",
            "ip daddr 10.244.0.0/16 accept"
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
            "inet tartan forward filter forward accept 0",
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
    apply_rules(&namespace, &desired).unwrap();
    assert_eq!(
        rules(&namespace, "inet tartan postrouting"),
        [
            "meta mark & 0x00004000 == 0x00004000 return",
            "ip saddr 10.244.1.0/24 ip daddr 10.244.0.0/16 return",
            "ip saddr 10.244.9.0/24 ip daddr 10.244.0.0/16 return",
            "ip saddr 10.244.0.0/16 ip daddr 10.244.1.0/24 return",
            "ip saddr 10.244.0.0/16 ip daddr 10.244.9.0/24 return",
            "ip saddr != 10.244.0.0/16 ip daddr 10.244.1.0/24 return",
            "ip saddr != 10.244.0.0/16 ip daddr 10.244.9.0/24 return",
            "ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random",
            "ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade fully-random",
            "ip6 saddr fd00:244:0:1::/64 ip6 daddr fd00:244::/48 return",
            "ip6 saddr fd00:244::/48 ip6 daddr fd00:244:0:1::/64 return",
            "ip6 saddr != fd00:244::/48 ip6 daddr fd00:244:0:1::/64 return",
            "ip6 saddr fd00:244::/48 ip6 daddr != ff00::/8 masquerade fully-random",
            "ip6 saddr != fd00:244::/48 ip6 daddr fd00:244::/48 masquerade fully-random",
        ]
    );
    assert_eq!(apply_rules(&namespace, &desired).unwrap(), []);
}

#[test]
fn without_masquerade_nothing_is_translated() {
    let namespace = Namespace::new();
    apply_rules(&namespace, &v4()).unwrap();
    let plain = HostState {
        masquerade: false,
        ..v4()
    };
    assert_eq!(apply_rules(&namespace, &plain).unwrap().len(), 1);
    let text = ruleset(&namespace);
    assert!(!text.contains("nat"), "{text}");
    assert!(text.contains("chain forward"), "{text}");
    assert_eq!(apply_rules(&namespace, &plain).unwrap(), []);
}

#[test]
fn whatever_is_done_to_our_table_is_mended_and_a_sound_one_is_left_alone() {
    let namespace = Namespace::new();
    apply_rules(&namespace, &dual()).unwrap();
    let whole = ruleset(&namespace);
    assert_eq!(apply_rules(&namespace, &dual()).unwrap(), []);
    for damage in [
        "flush ruleset",
        "delete table inet tartan",
        "flush chain inet tartan postrouting",
        "flush table inet tartan",
        "add rule inet tartan forward drop",
        "insert rule inet tartan postrouting accept",
        "add chain inet tartan other { type filter hook input priority 0; }",
        "add table inet tartan { flags dormant; }",
        "add chain inet tartan forward { policy drop; }",
        "flush chain inet tartan forward; add rule inet tartan forward ip saddr 10.244.0.0/16 counter accept; \
         add rule inet tartan forward ip daddr 10.99.0.0/16 counter accept",
    ] {
        nft(&namespace, damage);
        assert_ne!(ruleset(&namespace), whole, "{damage} does nothing");
        let changes = apply_rules(&namespace, &dual()).unwrap();
        assert_eq!(
            changes,
            [Change::TableWritten("inet tartan".to_owned())],
            "{damage}"
        );
        assert_eq!(ruleset(&namespace), whole, "after {damage}");
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
        assert_eq!(host.apply_rules(&v4()).await.unwrap(), written);
        let whole = ruleset(&namespace);
        nft(&namespace, "flush ruleset");
        let mut calls = 0;
        while host.apply_rules(&v4()).await.unwrap().is_empty() {
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
        assert_eq!(host.apply_rules(&dual()).await.unwrap(), written);
        tokio::time::sleep(Duration::from_millis(600)).await;
        for _ in 0..2 {
            assert_eq!(host.apply_rules(&dual()).await.unwrap(), []);
        }
        // What is found well is found wrong again after the next change.
        nft(&namespace, "delete table inet tartan");
        assert_eq!(host.apply_rules(&dual()).await.unwrap(), written);
    });
}

/// What Docker 28 leaves on a host (through iptables-nft), and ufw's `deny
/// (routed)`; and the same by hand in nft's own words.
const FOREIGN: [(&str, &str, &str); 4] = [
    (
        "Docker's",
        "ip filter FORWARD",
        "add table ip filter
         add chain ip filter FORWARD { type filter hook forward priority filter; policy drop; }
         add chain ip filter DOCKER-USER
         add chain ip filter DOCKER-FORWARD
         add rule ip filter FORWARD counter jump DOCKER-USER
         add rule ip filter FORWARD counter jump DOCKER-FORWARD
         add rule ip filter DOCKER-FORWARD iifname docker0 counter accept",
    ),
    (
        "ufw's",
        "ip6 filter FORWARD",
        "add table ip6 filter
         add chain ip6 filter FORWARD { type filter hook forward priority filter; policy drop; }
         add chain ip6 filter ufw6-before-forward
         add rule ip6 filter FORWARD counter jump ufw6-before-forward
         add rule ip6 filter ufw6-before-forward icmpv6 type echo-request counter accept",
    ),
    (
        "an administrator's",
        "inet firewall routed",
        "add table inet firewall
         add set inet firewall friends { type ipv4_addr; elements = { 192.0.2.7 }; }
         add chain inet firewall routed { type filter hook forward priority 10; policy drop; }
         add rule inet firewall routed ct state established,related accept comment \"mine\"
         add rule inet firewall routed ip saddr @friends log prefix \"hello \" accept",
    ),
    (
        "an empty one",
        "ip bare f",
        "add table ip bare
         add chain ip bare f { type filter hook forward priority -5; policy drop; }",
    ),
];

fn expected(chain: &str) -> Vec<&'static str> {
    let v4 = [
        "ip saddr 10.244.0.0/16 accept",
        "ip daddr 10.244.0.0/16 accept",
    ];
    let v6 = [
        "ip6 saddr fd00:244::/48 accept",
        "ip6 daddr fd00:244::/48 accept",
    ];
    match chain.split(' ').next() {
        Some("ip") => v4.to_vec(),
        Some("ip6") => v6.to_vec(),
        _ => [v4, v6].concat(),
    }
}

#[test]
fn a_forward_policy_of_drop_lets_pods_through_whether_it_came_first_or_later() {
    for (whose, chain, script) in FOREIGN {
        for first in [true, false] {
            let namespace = Namespace::new();
            if first {
                nft(&namespace, script);
            }
            let alone = Namespace::new();
            nft(&alone, script);
            let before = ruleset(&alone);
            apply_rules(&namespace, &dual()).unwrap();
            if !first {
                nft(&namespace, script);
                let changes = apply_rules(&namespace, &dual()).unwrap();
                assert_eq!(changes, [Change::AcceptPlaced(chain.to_owned())], "{whose}");
            }
            let placed = expected(chain);
            let found = rules(&namespace, chain);
            assert_eq!(found[..placed.len()], placed, "{whose}, first: {first}");
            assert_eq!(apply_rules(&namespace, &dual()).unwrap(), [], "{whose}");

            crate::cleanup::clean(&namespace);
            assert_eq!(ruleset(&namespace), before, "{whose} after the clean-up");
        }
    }
}

#[test]
fn accept_rules_taken_out_or_moved_are_put_back_once_each() {
    let namespace = Namespace::new();
    let (_, chain, script) = FOREIGN[0];
    nft(&namespace, script);
    apply_rules(&namespace, &v4()).unwrap();
    let whole = ruleset(&namespace);
    for damage in [
        "insert rule ip filter FORWARD counter drop",
        "add rule ip filter FORWARD ip saddr 10.244.0.0/16 counter accept comment \"tartan: pod traffic\"",
    ] {
        nft(&namespace, damage);
        apply_rules(&namespace, &v4()).unwrap();
        let found = rules(&namespace, chain);
        assert_eq!(found[..2], expected(chain)[..], "{damage}");
        let text = ruleset(&namespace);
        let in_filter = text.split("table ip filter").nth(1).unwrap();
        let ours = in_filter.split("table ").next().unwrap();
        assert_eq!(
            ours.matches("comment \"tartan: pod traffic\"").count(),
            2,
            "{text}"
        );
    }
    // Docker starts again and fills its chain anew.
    nft(
        &namespace,
        &format!("flush chain ip filter FORWARD\n{script}"),
    );
    nft(
        &namespace,
        "flush chain ip filter DOCKER-FORWARD; add rule ip filter DOCKER-FORWARD iifname docker0 counter accept",
    );
    let changes = apply_rules(&namespace, &v4()).unwrap();
    assert_eq!(changes, [Change::AcceptPlaced(chain.to_owned())]);
    assert_eq!(ruleset(&namespace), whole);
}

#[test]
fn a_rule_of_somebody_who_only_mentions_us_is_theirs() {
    let namespace = Namespace::new();
    let (_, _, script) = FOREIGN[0];
    nft(&namespace, script);
    nft(
        &namespace,
        "insert rule ip filter FORWARD udp dport 8472 counter accept comment \"tartan\"",
    );
    let before = ruleset(&namespace);
    apply_rules(&namespace, &v4()).unwrap();
    crate::cleanup::clean(&namespace);
    assert_eq!(ruleset(&namespace), before);
}

#[test]
fn a_policy_that_drops_no_longer_needs_no_rules() {
    let namespace = Namespace::new();
    let (_, chain, script) = FOREIGN[0];
    nft(&namespace, script);
    apply_rules(&namespace, &v4()).unwrap();
    nft(&namespace, "add chain ip filter FORWARD { policy accept; }");
    let changes = apply_rules(&namespace, &v4()).unwrap();
    assert_eq!(changes, [Change::AcceptRemoved(chain.to_owned())]);
    assert!(!rules(&namespace, chain).join("").contains("10.244"));
}

#[test]
fn chains_that_decide_on_nothing_of_ours_are_not_touched() {
    let namespace = Namespace::new();
    nft(
        &namespace,
        "add table bridge b
         add chain bridge b forward { type filter hook forward priority 0; policy drop; }
         add table ip t
         add chain ip t input { type filter hook input priority 0; policy drop; }
         add chain ip t forward { type filter hook forward priority 0; policy accept; }
         add chain ip t plain
         add table inet u
         add chain inet u postrouting { type nat hook postrouting priority 100; policy drop; }",
    );
    let before = ruleset(&namespace);
    apply_rules(&namespace, &dual()).unwrap();
    nft(&namespace, "delete table inet tartan");
    assert_eq!(ruleset(&namespace), before);
}

#[test]
fn iptables_goes_on_with_a_chain_that_holds_our_rules() {
    let namespace = Namespace::new();
    namespace.shell("iptables-nft -P FORWARD DROP");
    namespace.shell("iptables-nft -N DOCKER-USER");
    namespace.shell("iptables-nft -A FORWARD -j DOCKER-USER");
    namespace.shell(
        "iptables-nft -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    );
    let before = (ruleset(&namespace), namespace.shell("iptables-nft -S"));
    apply_rules(&namespace, &v4()).unwrap();
    let listed = namespace.shell("iptables-nft -S FORWARD");
    let lines: Vec<&str> = listed.lines().collect();
    assert_eq!(lines[0], "-P FORWARD DROP");
    assert!(
        lines[1].starts_with("-A FORWARD -s 10.244.0.0/16 "),
        "{listed}"
    );
    assert!(
        lines[2].starts_with("-A FORWARD -d 10.244.0.0/16 "),
        "{listed}"
    );
    for line in &lines[1..3] {
        assert!(
            line.contains("--comment \"tartan: pod traffic\""),
            "{listed}"
        );
        assert!(line.ends_with("-j ACCEPT"), "{listed}");
    }
    // Somebody else goes on working in the chain, and saves and restores it.
    namespace.shell("iptables-nft -A FORWARD -s 192.0.2.9 -j DROP");
    namespace.shell("iptables-nft -D FORWARD -s 192.0.2.9 -j DROP");
    assert_eq!(apply_rules(&namespace, &v4()).unwrap(), []);
    crate::cleanup::clean(&namespace);
    let after = (ruleset(&namespace), namespace.shell("iptables-nft -S"));
    assert_eq!(after, before);
}

#[test]
fn a_chain_that_may_not_be_changed_is_named_and_keeps_nobody_waiting() {
    let namespace = Namespace::new();
    // A table with an owner belongs to the process that made it, while it runs.
    let owner = namespace.spawn_nft(
        "add table ip owned { flags owner; }
         add chain ip owned f { type filter hook forward priority 0; policy drop; }",
    );
    nft(&namespace, FOREIGN[3].2);
    let error = apply_rules(&namespace, &v4()).unwrap_err().to_string();
    assert!(error.contains("ip owned f"), "{error}");
    assert!(error.contains("not permit"), "{error}");
    assert_eq!(rules(&namespace, "ip bare f"), expected("ip bare f"));
    assert_eq!(rules(&namespace, "inet tartan forward").len(), 2);
    drop(owner);
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
        host.apply_rules(&desired).await.unwrap_err().to_string()
    });
    assert!(error.contains("CAP_NET_ADMIN"), "{error}");
}
