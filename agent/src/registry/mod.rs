//! Registries: who owns which subnet. Each kind yields the same [`Update`]s.

mod conflicts;
mod fault;
pub mod file;
mod nodes;
mod own;
mod parsed_node;

pub use fault::{NodeListError, NodeListFault};
pub use file::{FileRegistry, FileRegistryError};
pub use nodes::{parse, render};
pub use own::own;

use crate::lease::Lease;

/// What a registry has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// The complete list of nodes, ours among them. It replaces every earlier one.
    Leases(Vec<Lease>),
    /// What the registry holds now cannot be used. The last list stays in force.
    Refused {
        /// Line of the file, counted from 1, where a line is at fault.
        line: Option<usize>,
        /// What is wrong and what would mend it, one sentence for people.
        reason: String,
    },
}
