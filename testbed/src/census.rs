//! What a namespace holds, as text: what a clean-up must leave as it was.

use std::collections::BTreeSet;

use crate::Namespace;

/// What a namespace held at one moment: links, addresses, routes of all tables, rules, nft rules and settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Census(BTreeSet<String>);

impl Census {
    /// Of a namespace, now, and of further lines that the caller counts in.
    pub fn of(namespace: &Namespace, further: impl IntoIterator<Item = String>) -> Census {
        let mut lines = BTreeSet::from_iter(further);
        for (what, words) in [
            ("link", "-o -d link show"),
            ("address", "-o address show"),
            ("route4", "-4 route show table all"),
            ("route6", "-6 route show table all"),
            ("rule4", "-4 rule show"),
            ("rule6", "-6 rule show"),
        ] {
            let text = namespace.ip(words);
            lines.extend(text.lines().map(|line| format!("{what} {}", steady(line))));
        }
        let settings = namespace.shell(
            "grep -rs . /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv4/conf /proc/sys/net/ipv6/conf; true",
        );
        lines.extend(settings.lines().map(|line| format!("setting {line}")));
        let ruleset = namespace.shell("nft -s list ruleset");
        lines.extend(ruleset.lines().map(|line| format!("nft {line}")));
        Census(lines)
    }

    /// Fails with the differences, if there are any.
    #[track_caller]
    pub fn must_be(&self, before: &Census, when: &str) {
        assert!(
            self == before,
            "{when}: lost {:#?}, gained {:#?}",
            before.lost(self),
            self.lost(before)
        );
    }

    /// What is here and not in `later`.
    pub fn lost<'a>(&'a self, later: &'a Census) -> Vec<&'a str> {
        self.0.difference(&later.0).map(String::as_str).collect()
    }
}

/// A line of `ip` without what the kernel settles in its own time after a link's carrier was read.
fn steady(line: &str) -> String {
    let mut words = line.split(' ').peekable();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match word {
            "linkdown" => {}
            "state" | "qdisc" => drop(words.next()),
            other => kept.push(other.replace("NO-CARRIER,", "")),
        }
    }
    kept.join(" ")
}
