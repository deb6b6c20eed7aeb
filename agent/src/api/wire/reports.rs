//! What other nodes say is wrong with them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// What one node says. The answer to `reports` is a list of these, in the order of the names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerReport {
    /// The node's name.
    pub name: String,
    /// The address at which it is reached best; absent where no path leads there.
    pub address: Option<IpAddr>,
    /// How it is reached there, as of a path in `peers`.
    pub state: String,
    /// It has said what is wrong with it.
    pub told: bool,
    /// Why it has not, in words; empty where it has.
    pub reason: String,
    /// Until its answer to the probe that asked, microseconds; absent without one.
    pub round_trip: Option<u64>,
    /// How many problems it has; 0 where it has not told.
    pub problem_count: u32,
    /// Those of them that its message had room for, errors first.
    pub problems: Vec<PeerProblem>,
}

/// A problem as another node names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerProblem {
    /// The stable name of its kind.
    pub code: String,
    /// What it concerns; empty where the code says all.
    pub subject: String,
    /// `error` or `warning`.
    pub severity: String,
}
