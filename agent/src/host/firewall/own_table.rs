//! What is ours among the rules of a host: a table, and rules in the chains of others.

use super::nft::{BaseChain, INET, Table};

pub(super) fn is_own(table: &Table) -> bool {
    table.family == INET && table.name == TABLE
}

pub(super) fn is_in_own_table(chain: &BaseChain) -> bool {
    chain.family == INET && chain.table == TABLE
}

/// The table's name, in the family `inet`.
pub(super) const TABLE: &str = "tartan";
/// How our rules are known among those of others.
pub(super) const COMMENT: &str = "tartan: pod traffic";
