//! Theory of operation
//!
//! iptables-legacy keeps its rules outside nf_tables (`ip_tables`, `ip6_tables`). Tartan neither reads nor changes
//! them: the kernel hands a table out as one binary block, and takes a change only as a whole table, which would undo
//! what another program changed at the same moment.
//!
//! All that is known of them is which tables exist. A table exists as soon as any program has asked for it, so most
//! are empty and harmless, and an existing table alone is no problem. It is logged once, and added to the sentence of
//! a firewall problem, with the command that prints the rules.

use std::fmt;
use std::path::Path;

use crate::config::text_file;

/// Existing tables of iptables-legacy that have a chain FORWARD. Its `Display` is a sentence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LegacyTables(Vec<Tables>);

/// The tables of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Tables {
    /// The command that prints their rules.
    command: &'static str,
    names: Vec<String>,
}

impl LegacyTables {
    /// Reads which tables the calling thread's network namespace has; none where they cannot be read.
    pub(super) fn read() -> LegacyTables {
        let families = FAMILIES.iter().filter_map(|(command, path)| {
            let text = text_file::read(Path::new(path), LONGEST_LIST).ok()?;
            Some(Tables {
                command,
                names: with_forward(&text),
            })
        });
        LegacyTables(families.filter(|tables| !tables.names.is_empty()).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for LegacyTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tables = self.0.iter();
        let tables =
            tables.map(|Tables { command, names }| format!("{command} {}", names.join(" ")));
        let commands = self
            .0
            .iter()
            .map(|tables| format!("`{}-save`", tables.command));
        write!(
            f,
            "tables of iptables-legacy exist ({}), and Tartan does not read their rules: \
             if pods are cut off, run {} and look for a policy DROP, or a rule DROP or REJECT, in the chain FORWARD",
            tables.collect::<Vec<_>>().join(", "),
            commands.collect::<Vec<_>>().join(" and ")
        )
    }
}

/// The tables of a list that have a chain FORWARD: `nat` and `raw` have none.
fn with_forward(list: &str) -> Vec<String> {
    let mut names: Vec<String> = list
        .lines()
        .filter(|name| ["filter", "mangle", "security"].contains(name))
        .map(str::to_owned)
        .collect();
    names.sort_unstable();
    names
}

/// The command of each family, and where the kernel lists the tables of this thread's network namespace.
const FAMILIES: [(&str, &str); 2] = [
    ("iptables-legacy", "/proc/thread-self/net/ip_tables_names"),
    ("ip6tables-legacy", "/proc/thread-self/net/ip6_tables_names"),
];
/// Longest list read, in bytes: there are five tables.
const LONGEST_LIST: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tables_with_a_forward_chain_are_named() {
        assert_eq!(
            with_forward("nat\nmangle\nraw\nfilter\n"),
            ["filter", "mangle"]
        );
        assert!(with_forward("nat\nraw\n").is_empty());
        assert!(with_forward("").is_empty());
    }

    #[test]
    fn the_sentence_names_the_tables_and_the_commands() {
        let tables = |command, names: &[&str]| Tables {
            command,
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        let both = LegacyTables(vec![
            tables("iptables-legacy", &["filter", "mangle"]),
            tables("ip6tables-legacy", &["filter"]),
        ]);
        assert_eq!(
            both.to_string(),
            "tables of iptables-legacy exist (iptables-legacy filter mangle, ip6tables-legacy filter), and Tartan \
             does not read their rules: if pods are cut off, run `iptables-legacy-save` and `ip6tables-legacy-save` \
             and look for a policy DROP, or a rule DROP or REJECT, in the chain FORWARD"
        );
    }
}
