//! The names that mark rules as ours: our table, and the comment of our rules in chains of other programs.

use super::nft::{BaseChain, INET, NftTable};

pub(super) fn is_own(table: &NftTable) -> bool {
    table.family == INET && table.name == TABLE
}

pub(super) fn is_in_own_table(chain: &BaseChain) -> bool {
    chain.family == INET && chain.table == TABLE
}

/// The table's name, in the family `inet`.
pub(super) const TABLE: &str = "tartan";
/// The comment that marks our rules.
pub(super) const COMMENT: &str = "tartan: pod traffic";
