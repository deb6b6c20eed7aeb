//! Tables of iptables-legacy on the node: Tartan makes none and changes none, takes an existing one for no problem,
//! and names it beside a firewall problem.

use crate::namespace::Namespace;
use crate::rules::apply_firewall;
use crate::text;
use crate::{dual, v4};

const NAMES: &str = "/proc/net/ip_tables_names";

#[test]
fn no_table_is_made() {
    let namespace = Namespace::new();
    apply_firewall(&namespace, &v4()).unwrap();
    assert_eq!(namespace.shell(&format!("cat {NAMES}")), "");
}

#[test]
fn existing_tables_are_left_alone_and_are_no_problem() {
    let namespace = Namespace::new();
    for command in [
        "iptables-legacy -P FORWARD DROP",
        "iptables-legacy -t mangle -A FORWARD -s 10.244.0.0/16 -j DROP",
        "ip6tables-legacy -A FORWARD -j REJECT",
    ] {
        namespace.shell(command);
    }
    // Without the counters and the time.
    let saved = || {
        namespace.shell("(iptables-legacy-save; ip6tables-legacy-save) | sed 's/^#.*//; s/\\[.*//'")
    };
    let before = saved();
    apply_firewall(&namespace, &dual()).unwrap();
    assert_eq!(saved(), before);
}

#[test]
fn a_firewall_problem_names_the_tables_and_the_command_that_shows_their_rules() {
    let namespace = Namespace::new();
    let refused = || {
        let error = text(&apply_firewall(&namespace, &v4()).unwrap_err());
        assert!(
            error.contains("the policy drop of the nft chain ip owned f cuts pods off"),
            "{error}"
        );
        error
    };
    let _owner = namespace.spawn_nft(
        "add table ip owned { flags owner; }
         add chain ip owned f { type filter hook forward priority 0; policy drop; }",
    );
    assert!(!refused().contains("legacy"), "there is no table");
    namespace.shell("iptables-legacy -t nat -A POSTROUTING -j MASQUERADE");
    assert!(
        !refused().contains("legacy"),
        "no table with a chain FORWARD"
    );
    namespace.shell("iptables-legacy -P FORWARD DROP");
    let error = refused();
    assert!(
        error.contains("tables of iptables-legacy exist (iptables-legacy filter)"),
        "{error}"
    );
    // The command, as a reader copies it.
    let command = error
        .split('`')
        .find(|part| part.ends_with("-save"))
        .unwrap();
    assert!(
        namespace.shell(command).contains(":FORWARD DROP"),
        "{command}"
    );
}
