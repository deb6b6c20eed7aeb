//! Chains of others that cut pods off, with nft and iptables-nft as independent
//! oracles: our accept rules stand where they count and no earlier, and go
//! without a trace.

use tartan::host::Change;

use crate::namespace::Namespace;
use crate::rules::{apply_firewall, nft, rules, ruleset};
use crate::text;
use crate::{dual, v4};

/// A chain's rules as `nft` prints them, without counters; ours are marked.
fn body(namespace: &Namespace, chain: &str) -> Vec<String> {
    let text = namespace.shell(&format!("nft -s list chain {chain}"));
    text.lines()
        .map(str::trim)
        .filter(|line| {
            !["table ", "chain ", "type ", "}"]
                .iter()
                .any(|start| line.starts_with(start))
        })
        .map(|line| {
            line.replace(" comment \"tartan: pod traffic\"", " # ours")
                .replace("counter ", "")
                .replace(" packets 0 bytes 0", "")
        })
        .collect()
}

/// A firewall that cuts pods off, and its chain with our rules in it.
struct Shape {
    whose: &'static str,
    chain: &'static str,
    script: &'static str,
    /// "OURS" is in our rules' place.
    with_ours: &'static [&'static str],
}

const SHAPES: [Shape; 9] = [
    Shape {
        whose: "Docker's",
        chain: "ip filter FORWARD",
        script: "add table ip filter
            add chain ip filter FORWARD { type filter hook forward priority filter; policy drop; }
            add chain ip filter DOCKER-USER
            add chain ip filter DOCKER-FORWARD
            add rule ip filter FORWARD counter jump DOCKER-USER
            add rule ip filter FORWARD counter jump DOCKER-FORWARD
            add rule ip filter DOCKER-FORWARD iifname docker0 counter accept",
        with_ours: &["jump DOCKER-USER", "jump DOCKER-FORWARD", "OURS"],
    },
    Shape {
        whose: "ufw's, deny (routed)",
        chain: "ip6 filter FORWARD",
        script: "add table ip6 filter
            add chain ip6 filter FORWARD { type filter hook forward priority filter; policy drop; }
            add chain ip6 filter ufw6-before-forward
            add rule ip6 filter FORWARD counter jump ufw6-before-forward
            add rule ip6 filter ufw6-before-forward icmpv6 type echo-request counter accept",
        with_ours: &["jump ufw6-before-forward", "OURS"],
    },
    Shape {
        whose: "ufw's, reject (routed)",
        chain: "ip filter FORWARD",
        script: "add table ip filter
            add chain ip filter FORWARD { type filter hook forward priority filter; policy drop; }
            add chain ip filter ufw-user-forward
            add chain ip filter ufw-reject-forward
            add chain ip filter ufw-track-forward
            add rule ip filter FORWARD counter jump ufw-user-forward
            add rule ip filter FORWARD counter jump ufw-reject-forward
            add rule ip filter FORWARD counter jump ufw-track-forward
            add rule ip filter ufw-user-forward ip saddr 10.244.1.9 counter drop
            add rule ip filter ufw-reject-forward counter reject",
        with_ours: &[
            "jump ufw-user-forward",
            "OURS",
            "jump ufw-reject-forward",
            "jump ufw-track-forward",
        ],
    },
    Shape {
        whose: "Red Hat's",
        chain: "ip filter FORWARD",
        script: "add table ip filter
            add chain ip filter FORWARD { type filter hook forward priority filter; policy accept; }
            add rule ip filter FORWARD ct state related,established counter accept
            add rule ip filter FORWARD ip protocol icmp counter accept
            add rule ip filter FORWARD counter reject with icmp host-prohibited",
        with_ours: &[
            "ct state established,related accept",
            "ip protocol icmp accept",
            "OURS",
            "reject with icmp host-prohibited",
        ],
    },
    Shape {
        whose: "firewalld's",
        chain: "inet firewalld filter_FORWARD",
        script: "add table inet firewalld
            add chain inet firewalld filter_FORWARD { type filter hook forward priority filter + 10; policy accept; }
            add chain inet firewalld filter_FORWARD_ZONES
            add chain inet firewalld filter_FWD_public
            add chain inet firewalld filter_FWD_public_deny
            add rule inet firewalld filter_FORWARD ct state { established, related } accept
            add rule inet firewalld filter_FORWARD iifname lo accept
            add rule inet firewalld filter_FORWARD jump filter_FORWARD_ZONES
            add rule inet firewalld filter_FORWARD ct state invalid drop
            add rule inet firewalld filter_FORWARD reject with icmpx admin-prohibited
            add rule inet firewalld filter_FORWARD_ZONES iifname eth0 goto filter_FWD_public
            add rule inet firewalld filter_FORWARD_ZONES goto filter_FWD_public
            add rule inet firewalld filter_FWD_public jump filter_FWD_public_deny
            add rule inet firewalld filter_FWD_public_deny tcp dport 25 reject
            add rule inet firewalld filter_FWD_public reject with icmpx admin-prohibited",
        with_ours: &[
            "ct state { established, related } accept",
            "iifname \"lo\" accept",
            "OURS",
            "jump filter_FORWARD_ZONES",
            "ct state invalid drop",
            "reject with icmpx admin-prohibited",
        ],
    },
    Shape {
        whose: "OpenWrt's",
        chain: "inet fw4 forward",
        script: "add table inet fw4
            add chain inet fw4 forward { type filter hook forward priority filter; policy drop; }
            add chain inet fw4 handle_reject
            add rule inet fw4 forward ct state vmap { established : accept, related : accept }
            add rule inet fw4 forward jump handle_reject
            add rule inet fw4 handle_reject meta l4proto tcp reject with tcp reset
            add rule inet fw4 handle_reject reject with icmpx port-unreachable",
        with_ours: &[
            "ct state vmap { established : accept, related : accept }",
            "OURS",
            "jump handle_reject",
        ],
    },
    Shape {
        whose: "an administrator's",
        chain: "inet firewall routed",
        script: "add table inet firewall
            add set inet firewall friends { type ipv4_addr; elements = { 192.0.2.7 }; }
            add chain inet firewall routed { type filter hook forward priority 10; policy drop; }
            add rule inet firewall routed ct state established,related accept comment \"mine\"
            add rule inet firewall routed ip saddr @friends log prefix \"hello \" accept",
        with_ours: &[
            "ct state established,related accept comment \"mine\"",
            "ip saddr @friends log prefix \"hello \" accept",
            "OURS",
        ],
    },
    Shape {
        whose: "one that logs and drops",
        chain: "ip last forward",
        script: "add table ip last
            add chain ip last forward { type filter hook forward priority filter; policy accept; }
            add rule ip last forward ip saddr 10.244.3.0/24 tcp dport 25 reject
            add rule ip last forward meta mark set 0x00000007 counter log prefix \"no \" drop
            add rule ip last forward accept",
        with_ours: &[
            "ip saddr 10.244.3.0/24 tcp dport 25 reject",
            "OURS",
            "meta mark set 0x00000007 log prefix \"no \" drop",
            "accept",
        ],
    },
    Shape {
        whose: "an empty one",
        chain: "ip bare f",
        script: "add table ip bare
            add chain ip bare f { type filter hook forward priority -5; policy drop; }",
        with_ours: &["OURS"],
    },
];

impl Shape {
    /// The chain as it is to be.
    fn expected(&self) -> Vec<String> {
        let ours = ours(self.chain);
        let lines = self.with_ours.iter();
        lines
            .flat_map(|line| match *line {
                "OURS" => ours.clone(),
                line => vec![line.to_owned()],
            })
            .collect()
    }
}

/// Our rules in a chain of a dual-stack node.
fn ours(chain: &str) -> Vec<String> {
    let v4 = ["ip saddr 10.244.0.0/16", "ip daddr 10.244.0.0/16"];
    let v6 = ["ip6 saddr fd00:244::/48", "ip6 daddr fd00:244::/48"];
    let terms = match chain.split(' ').next() {
        Some("ip") => v4.to_vec(),
        Some("ip6") => v6.to_vec(),
        _ => [v4, v6].concat(),
    };
    let rule = |term: &&str| format!("{term} accept # ours");
    terms.iter().map(rule).collect()
}

#[test]
fn what_cuts_pods_off_lets_them_through_whether_it_came_first_or_later() {
    for shape in SHAPES {
        let Shape { whose, chain, .. } = shape;
        for first in [true, false] {
            let namespace = Namespace::new();
            if first {
                nft(&namespace, shape.script);
            }
            let alone = Namespace::new();
            nft(&alone, shape.script);
            let before = ruleset(&alone);
            apply_firewall(&namespace, &dual()).unwrap();
            if !first {
                nft(&namespace, shape.script);
                let changes = apply_firewall(&namespace, &dual()).unwrap();
                assert_eq!(
                    changes,
                    [Change::AcceptRulesAdded(chain.to_owned())],
                    "{whose}"
                );
            }
            let found = body(&namespace, chain);
            assert_eq!(found, shape.expected(), "{whose}, first: {first}");
            assert_eq!(apply_firewall(&namespace, &dual()).unwrap(), [], "{whose}");

            crate::cleanup::clean(&namespace);
            assert_eq!(ruleset(&namespace), before, "{whose} after the clean-up");
        }
    }
}

#[test]
fn accept_rules_taken_out_or_moved_behind_are_put_back_once_each() {
    let shape = &SHAPES[0];
    let placed = [Change::AcceptRulesAdded(shape.chain.to_owned())];
    let ours_again = "ip saddr 10.244.0.0/16 counter accept comment \"tartan: pod traffic\"";
    for (damage, place) in [
        ("insert rule ip filter FORWARD counter drop", 0),
        (&format!("add rule ip filter FORWARD {ours_again}"), 2),
        (&format!("insert rule ip filter FORWARD {ours_again}"), 2),
        ("insert rule ip filter DOCKER-FORWARD reject", 1),
        // Docker starts again and fills its chains anew.
        (
            "flush chain ip filter FORWARD
             add rule ip filter FORWARD counter jump DOCKER-USER
             add rule ip filter FORWARD counter jump DOCKER-FORWARD",
            2,
        ),
    ] {
        let namespace = Namespace::new();
        nft(&namespace, shape.script);
        apply_firewall(&namespace, &v4()).unwrap();
        nft(&namespace, damage);
        assert_eq!(
            apply_firewall(&namespace, &v4()).unwrap(),
            placed,
            "{damage}"
        );
        let found = body(&namespace, shape.chain);
        let ours = ours(shape.chain);
        assert_eq!(found[place..place + 2], ours, "{damage}: {found:?}");
        let count = found.iter().filter(|line| line.contains("# ours")).count();
        assert_eq!(count, 2, "{damage}: {found:?}");
        assert_eq!(apply_firewall(&namespace, &v4()).unwrap(), [], "{damage}");
    }
}

#[test]
fn where_they_count_they_are_left_alone() {
    let namespace = Namespace::new();
    let shape = &SHAPES[0];
    nft(&namespace, shape.script);
    apply_firewall(&namespace, &v4()).unwrap();
    for others in [
        "insert rule ip filter FORWARD ip saddr 10.244.1.7 drop",
        "add rule ip filter FORWARD ip saddr 10.244.1.8 drop",
        "add rule ip filter FORWARD drop",
    ] {
        nft(&namespace, others);
        assert_eq!(apply_firewall(&namespace, &v4()).unwrap(), [], "{others}");
    }
}

#[test]
fn a_rule_of_another_program_that_mentions_tartan_is_kept() {
    let namespace = Namespace::new();
    nft(&namespace, SHAPES[0].script);
    nft(
        &namespace,
        "insert rule ip filter FORWARD udp dport 8472 counter accept comment \"tartan\"",
    );
    let before = ruleset(&namespace);
    apply_firewall(&namespace, &v4()).unwrap();
    crate::cleanup::clean(&namespace);
    assert_eq!(ruleset(&namespace), before);
}

#[test]
fn what_no_longer_cuts_pods_off_needs_no_rules() {
    for (whose, mended) in [
        (0, "add chain ip filter FORWARD { policy accept; }"),
        // flanneld comes beside us.
        (
            0,
            "add chain ip filter FLANNEL-FWD
             insert rule ip filter FORWARD counter jump FLANNEL-FWD
             add rule ip filter FLANNEL-FWD ip saddr 10.244.0.0/16 counter accept
             add rule ip filter FLANNEL-FWD ip daddr 10.244.0.0/16 counter accept",
        ),
        (3, "insert rule ip filter FORWARD counter accept"),
    ] {
        let namespace = Namespace::new();
        nft(&namespace, SHAPES[whose].script);
        apply_firewall(&namespace, &v4()).unwrap();
        nft(&namespace, mended);
        let changes = apply_firewall(&namespace, &v4()).unwrap();
        let removed = Change::AcceptRulesRemoved("ip filter FORWARD".to_owned());
        assert_eq!(changes, [removed], "{mended}");
        let text = ruleset(&namespace);
        assert_eq!(
            text.matches("tartan: pod").count(),
            56,
            "in our table: {text}"
        );
    }
}

#[test]
fn chains_that_do_not_cut_pods_off_are_not_touched() {
    let namespace = Namespace::new();
    nft(
        &namespace,
        "add table bridge b
         add chain bridge b forward { type filter hook forward priority 0; policy drop; }
         add table ip t
         add chain ip t input { type filter hook input priority 0; policy drop; }
         add chain ip t unused
         add rule ip t unused drop
         add chain ip t returns
         add rule ip t returns return
         add rule ip t returns drop
         add chain ip t forward { type filter hook forward priority 0; policy accept; }
         add rule ip t forward ip saddr 10.244.3.0/24 drop
         add rule ip t forward ip daddr 198.51.100.0/24 reject
         add rule ip t forward ip daddr != 198.51.100.0/24 iifname eth7 reject
         add rule ip t forward ip protocol tcp drop
         add rule ip t forward limit rate 1/second drop
         add rule ip t forward ip saddr { 10.0.0.0/8, 192.0.2.0/24 } drop
         add rule ip t forward meta mark and 0x4 == 0x4 drop
         add rule ip t forward jump returns
         add table inet six
         add chain inet six forward { type filter hook forward priority 0; policy accept; }
         add rule inet six forward meta nfproto ipv6 drop
         add table inet u
         add chain inet u postrouting { type nat hook postrouting priority 100; policy drop; }",
    );
    let before = ruleset(&namespace);
    apply_firewall(&namespace, &v4()).unwrap();
    nft(&namespace, "delete table inet tartan");
    assert_eq!(ruleset(&namespace), before);
    // The same for a node that has IPv6, but for the one that drops that.
    apply_firewall(&namespace, &dual()).unwrap();
    let six = body(&namespace, "inet six forward");
    assert_eq!(six[..2], ours("ip6"), "{six:?}");
    nft(
        &namespace,
        "delete table inet tartan; delete table inet six",
    );
    assert!(!ruleset(&namespace).contains("tartan"));
}

#[test]
fn iptables_goes_on_with_a_chain_that_holds_our_rules() {
    for (last, place) in [("-P FORWARD DROP", 3), ("-A FORWARD -j REJECT", 3)] {
        let namespace = Namespace::new();
        for words in [
            "-N DOCKER-USER",
            "-A FORWARD -m comment --comment first -j DOCKER-USER",
            "-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            last,
        ] {
            namespace.shell(&format!("iptables-nft {words}"));
        }
        let before = (ruleset(&namespace), namespace.shell("iptables-nft -S"));
        apply_firewall(&namespace, &v4()).unwrap();
        let listed = namespace.shell("iptables-nft -S FORWARD");
        let lines: Vec<&str> = listed.lines().collect();
        for (line, start) in lines[place..].iter().zip(["-s", "-d"]) {
            let start = format!("-A FORWARD {start} 10.244.0.0/16 ");
            assert!(line.starts_with(&start), "{listed}");
            assert!(
                line.contains("--comment \"tartan: pod traffic\""),
                "{listed}"
            );
            assert!(line.ends_with("-j ACCEPT"), "{listed}");
        }
        // Somebody else goes on working in the chain.
        namespace.shell("iptables-nft -A FORWARD -s 192.0.2.9 -j DROP");
        namespace.shell("iptables-nft -I FORWARD 2 -s 192.0.2.9 -j DROP");
        namespace.shell("iptables-nft -D FORWARD -s 192.0.2.9 -j DROP");
        namespace.shell("iptables-nft -D FORWARD -s 192.0.2.9 -j DROP");
        assert_eq!(apply_firewall(&namespace, &v4()).unwrap(), []);
        crate::cleanup::clean(&namespace);
        let after = (ruleset(&namespace), namespace.shell("iptables-nft -S"));
        assert_eq!(after, before);
    }
}

#[test]
fn rules_as_iptables_writes_them_are_understood() {
    let namespace = Namespace::new();
    let iptables = |words: &str| drop(namespace.shell(&format!("iptables-nft {words}")));
    iptables("-P FORWARD DROP");
    let changes = |what: &str| {
        let changes = apply_firewall(&namespace, &v4()).unwrap();
        changes
            .iter()
            .map(|change| match change {
                Change::AcceptRulesAdded(_) => "placed",
                Change::AcceptRulesRemoved(_) => "removed",
                Change::TableWritten(_) => "",
                other => panic!("{what}: {other}"),
            })
            .collect::<String>()
    };
    assert_eq!(changes("the policy"), "placed");
    for (pair, accepted) in [
        (["-s 10.0.0.0/8", "-d 10.240.0.0/12"], true),
        (["-s 10.244.0.0/17", "-d 10.244.0.0/16"], false),
        (["! -s 192.0.2.0/24", "! -d 192.0.2.0/25"], true),
        (["! -s 10.244.1.0/24", "! -d 10.244.1.1"], false),
        (["-s 10.244.0.0/16 -p tcp", "-d 10.244.0.0/16"], false),
        (["-s 10.0.244.0/255.0.255.0", "-d 10.244.0.0/16"], false),
    ] {
        for side in pair {
            iptables(&format!(
                "-A FORWARD {side} -m comment --comment x -j ACCEPT"
            ));
        }
        let what = pair.join(" and ");
        let found = changes(&what);
        let remain = body(&namespace, "ip filter FORWARD");
        let ours = remain.iter().filter(|line| line.contains("# ours")).count();
        assert_eq!(ours == 0, accepted, "{what}: {found}, {remain:?}");
        for side in pair {
            iptables(&format!(
                "-D FORWARD {side} -m comment --comment x -j ACCEPT"
            ));
        }
        changes(&what);
    }
}

#[test]
fn a_chain_that_cannot_be_changed_is_named_and_the_others_are_changed() {
    let namespace = Namespace::new();
    // A table with an owner belongs to the process that made it, while it runs.
    let mut owner = namespace.spawn_nft(
        "add table ip owned { flags owner; }
         add chain ip owned f { type filter hook forward priority 0; policy drop; }
         add chain ip owned zone",
    );
    nft(&namespace, SHAPES[8].script);
    let refused = || text(&apply_firewall(&namespace, &v4()).unwrap_err());
    let error = refused();
    for part in [
        "the policy drop of the nft chain ip owned f cuts pods off",
        "the table belongs to the program that made it",
        "from and to 10.244.0.0/16",
        "--add-source=10.244.0.0/16",
    ] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
    assert_eq!(body(&namespace, "ip bare f"), ours("ip"));
    assert_eq!(rules(&namespace, "inet tartan prerouting").len(), 9);

    owner.say("add rule ip owned zone tcp dport 25 accept");
    owner.say("add rule ip owned zone reject");
    owner.say("add rule ip owned f goto zone");
    namespace.until("nft list ruleset", "goto zone");
    let error = refused();
    let part = "the rule `reject` in the nft chain ip owned zone cuts pods off";
    assert!(error.contains(part), "{error}");

    // What the sentence asks for helps.
    owner.say("insert rule ip owned f ip saddr 10.244.0.0/16 accept");
    namespace.until("nft list ruleset", "saddr 10.244.0.0/16 accept");
    assert_eq!(apply_firewall(&namespace, &v4()).unwrap(), []);
    drop(owner);
}
