//! iptables-legacy beside us: it is read, never written, and named where it
//! cuts pods off.

use crate::namespace::Namespace;
use crate::rules::apply_rules;
use crate::{dual, v4};

const NAMES: &str = "/proc/net/ip_tables_names";

fn legacy(namespace: &Namespace, lines: &[&str]) {
    for line in lines {
        namespace.shell(line);
    }
}

/// What is told of rules made by these commands.
fn told(namespace: &Namespace) -> Option<String> {
    let told = apply_rules(namespace, &dual()).err();
    told.map(|error| error.to_string())
}

#[test]
fn a_table_that_nobody_uses_is_not_made() {
    let namespace = Namespace::new();
    apply_rules(&namespace, &v4()).unwrap();
    assert_eq!(namespace.shell(&format!("cat {NAMES}")), "");
}

#[test]
fn what_cuts_pods_off_is_named_and_the_remedy_helps() {
    for (making, named, remedy) in [
        (
            &["iptables-legacy -P FORWARD DROP"][..],
            "the policy DROP of iptables-legacy's chain FORWARD (table filter) cuts pods off",
            "filter",
        ),
        (
            &[
                "iptables-legacy -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
                "iptables-legacy -A FORWARD -m comment --comment last -j REJECT --reject-with icmp-host-prohibited",
            ],
            "rule 2 (REJECT) of iptables-legacy's chain FORWARD",
            "filter",
        ),
        (
            &[
                "iptables-legacy -N zone",
                "iptables-legacy -N deny",
                "iptables-legacy -A FORWARD",
                "iptables-legacy -A FORWARD -j zone",
                "iptables-legacy -A zone -p tcp --dport 25 -j ACCEPT",
                "iptables-legacy -A zone -g deny",
                "iptables-legacy -A deny -s 10.0.0.0/8 ! -d 192.0.2.0/24 -j DROP",
            ],
            "rule 2 (DROP) of iptables-legacy's chain FORWARD",
            "filter",
        ),
        (
            &["iptables-legacy -t mangle -A FORWARD -j DROP"],
            "rule 1 (DROP) of iptables-legacy's chain FORWARD (table mangle)",
            "mangle",
        ),
        (
            &["ip6tables-legacy -P FORWARD DROP"],
            "the policy DROP of ip6tables-legacy's chain FORWARD (table filter)",
            "filter",
        ),
    ] {
        let namespace = Namespace::new();
        legacy(&namespace, making);
        let error = told(&namespace).unwrap_or_else(|| panic!("not told: {making:?}"));
        assert!(error.contains(named), "{error}");
        // Both commands of the remedy, as a reader copies them.
        let commands: Vec<&str> = error
            .split('`')
            .filter(|part| part.contains("-I FORWARD"))
            .collect();
        assert_eq!(commands.len(), 2, "{error}");
        for command in commands {
            assert!(command.contains(&format!("-t {remedy} ")), "{error}");
            namespace.shell(command);
        }
        assert_eq!(told(&namespace), None, "after {making:?} and its remedy");
    }
}

#[test]
fn what_leaves_pods_alone_is_not_told() {
    let namespace = Namespace::new();
    legacy(
        &namespace,
        &[
            "iptables-legacy -N after",
            "iptables-legacy -A FORWARD -s 10.244.3.0/24 -j DROP",
            "iptables-legacy -A FORWARD -i eth7 -j DROP",
            "iptables-legacy -A FORWARD -p tcp -j REJECT",
            "iptables-legacy -A FORWARD -m conntrack --ctstate INVALID -j DROP",
            "iptables-legacy -A FORWARD ! -s 10.244.0.0/16 -j DROP",
            "iptables-legacy -A FORWARD -j after",
            "iptables-legacy -A after -j RETURN",
            "iptables-legacy -A after -j DROP",
            "iptables-legacy -P INPUT DROP",
            "iptables-legacy -t nat -A POSTROUTING -j MASQUERADE",
            "iptables-legacy -t raw -A PREROUTING -p udp -j DROP",
            "ip6tables-legacy -A FORWARD -s fd00:244:0:3::/64 -j DROP",
            "ip6tables-legacy -A FORWARD -p udp -j DROP",
        ],
    );
    assert_eq!(told(&namespace), None);
    // Of the network that there is not.
    legacy(&namespace, &["ip6tables-legacy -A FORWARD -j DROP"]);
    assert!(apply_rules(&namespace, &v4()).is_ok());
    assert!(told(&namespace).is_some());
}
