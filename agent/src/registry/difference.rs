//! What differs between two lists of nodes, by name, for the log and `tartan check`.

use std::collections::HashMap;
use std::fmt;

use serde::Serialize;

use crate::lease::Lease;

/// Nodes that one list has and the other has not, or has otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ListDifference {
    /// Names that are new.
    pub added: Vec<String>,
    /// Names that are gone.
    pub removed: Vec<String>,
    /// Nodes of both lists that differ.
    pub changed: Vec<ChangedNode>,
}

/// A node whose entry differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChangedNode {
    /// Its name.
    pub name: String,
    /// The keys that differ.
    pub keys: Vec<&'static str>,
}

impl ListDifference {
    /// From one list to the next, in the order of the lists.
    pub fn between(before: &[Lease], after: &[Lease]) -> ListDifference {
        let named = |leases: &'_ [Lease]| -> HashMap<String, usize> {
            let names = leases.iter().enumerate();
            names.map(|(at, lease)| (lease.name.clone(), at)).collect()
        };
        let (old, new) = (named(before), named(after));
        let missing = |leases: &[Lease], from: &HashMap<String, usize>| {
            let missing = leases
                .iter()
                .filter(|lease| !from.contains_key(&lease.name));
            missing.map(|lease| lease.name.clone()).collect()
        };
        let changed = after.iter().filter_map(|lease| {
            let earlier = before.get(*old.get(&lease.name)?)?;
            let keys = differing_keys(earlier, lease);
            let name = lease.name.clone();
            (!keys.is_empty()).then_some(ChangedNode { name, keys })
        });
        ListDifference {
            added: missing(after, &old),
            removed: missing(before, &new),
            changed: changed.collect(),
        }
    }

    /// Whether the lists have the same nodes.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }
}

/// The first few of each kind: `2 added (n4, n5), 1 removed (n2), 1 changed (n3: public-ip)`.
impl fmt::Display for ListDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changed = self.changed.iter();
        let changed: Vec<String> = changed
            .map(|node| format!("{}: {}", node.name, node.keys.join(" and ")))
            .collect();
        let kinds = [
            ("added", &self.added),
            ("removed", &self.removed),
            ("changed", &changed),
        ];
        let parts = kinds.iter().filter(|(_, nodes)| !nodes.is_empty());
        let parts = parts.map(|(what, nodes)| format!("{} {what} ({})", nodes.len(), few(nodes)));
        let parts: Vec<String> = parts.collect();
        match parts.is_empty() {
            true => f.write_str("no node differs"),
            false => f.write_str(&parts.join(", ")),
        }
    }
}

/// The first names, and how many more there are.
pub fn few(names: &[String]) -> String {
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn differing_keys(before: &Lease, after: &Lease) -> Vec<&'static str> {
    let pairs = [
        ("subnets", before.subnets != after.subnets),
        ("public-ip", before.public != after.public),
        ("backend", before.format != after.format),
        ("vtep-mac", before.vtep_mac != after.vtep_mac),
        (
            "accept-sources",
            before.accept_sources != after.accept_sources,
        ),
        (
            "underlay-sources",
            before.underlay_sources != after.underlay_sources,
        ),
        ("kernel-path", before.kernel_path != after.kernel_path),
    ];
    let differing = pairs.into_iter().filter(|(_, differs)| *differs);
    // The default VTEP MAC follows from the address.
    let is_consequence = before.public != after.public;
    differing
        .map(|(key, _)| key)
        .filter(|key| !(is_consequence && *key == "vtep-mac"))
        .collect()
}

/// A line of a log.
const SHOWN: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NetConf;
    use crate::registry::parse;

    fn list(numbers: std::ops::RangeInclusive<u8>, address: u8) -> Vec<Lease> {
        let net_conf = NetConf::parse("{\"Network\":\"10.244.0.0/16\"}").unwrap();
        let entry = |i: u8| {
            format!(
                "[[node]]\nname = \"n{i}\"\nsubnets = [\"10.244.{i}.0/24\"]\npublic-ip = \"192.0.{address}.{i}\"\n"
            )
        };
        parse(&numbers.map(entry).collect::<String>(), &net_conf).unwrap()
    }

    #[test]
    fn names_are_given_and_many_are_counted() {
        let between = |a: &[Lease], b: &[Lease]| ListDifference::between(a, b).to_string();
        let three = list(1..=3, 2);
        assert_eq!(between(&three, &three), "no node differs");
        assert_eq!(
            between(&three, &list(2..=4, 2)),
            "1 added (n4), 1 removed (n1)"
        );
        assert_eq!(
            between(&list(1..=1, 2), &list(1..=1, 3)),
            "1 changed (n1: public-ip)"
        );
        let removed = between(&list(1..=20, 2), &list(1..=1, 2));
        assert_eq!(
            removed,
            "19 removed (n2, n3, n4, n5, n6, n7, n8, n9, n10, n11 and 9 more)"
        );
    }
}
