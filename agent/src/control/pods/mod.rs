//! What the agent does for attached pods beside delivering to them.

pub mod orphans;
pub mod upkeep;
