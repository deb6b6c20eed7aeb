//! Registries: where a node reads the leases of all nodes.
//!
//! Theory of operation. Each kind of registry is a module with one type and a variant of [`Registry`]. All kinds
//! yield the same [`Update`]s, made of the same [`Lease`]s, and keep this contract:
//!
//! - The first update is the complete answer to a start. A kind waits until it has all of it.
//! - [`Update::Leases`] is the complete list, never a difference, and holds this node's own lease ([`own`]).
//! - Content that cannot be read or used yields [`Update::Refused`], never a shorter list: the last list stays in
//!   force, so no peer is withdrawn because a registry is broken or cannot be reached.
//! - An update that equals the last one is not reported.
//! - Dropping the future of [`Registry::next`] loses nothing: the control loop waits for other events beside it.

mod conflicts;
mod difference;
mod fault;
mod file;
mod nodes;
mod own;
mod parsed_node;
mod place;

pub use difference::{ChangedNode, ListDifference, few};
pub use fault::{NodeListError, NodeListFault};
pub use file::{FileRegistry, FileRegistryError, read_once};
pub use nodes::{parse, render};
pub use own::own;
pub use place::RegistryPlace;

use crate::config::{NetConf, NodeConfig};
use crate::lease::Lease;

/// The registry of this node.
#[derive(Debug)]
pub enum Registry {
    /// A list of nodes in a file.
    File(FileRegistry),
}

/// What a registry reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// The complete list of nodes, this node among them. It replaces every earlier list.
    Leases(Vec<Lease>),
    /// The registry's content cannot be used. The last list stays in force.
    Refused {
        /// Where in the content the fault is.
        place: RegistryPlace,
        /// What is wrong and how to correct it: one sentence for the operator.
        reason: String,
    },
}

/// Why a registry cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The list of nodes cannot be watched.
    #[error(transparent)]
    File(#[from] FileRegistryError),
}

impl Registry {
    /// Opens the registry that `config` names. Must be called within a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// [`RegistryError`]. Content that cannot be read is not an error here: the first [`Update`] reports it.
    pub fn open(config: &NodeConfig, net_conf: &NetConf) -> Result<Registry, RegistryError> {
        let file = FileRegistry::watch(&config.node_file, net_conf, &config.node_name)?;
        Ok(Registry::File(file))
    }

    /// Waits for the next update. Dropping the future before it is ready loses nothing.
    pub async fn next(&mut self) -> Update {
        match self {
            Registry::File(file) => file.next().await,
        }
    }

    /// Reads the content soon, whether it has changed or not.
    pub fn reread(&mut self) {
        match self {
            Registry::File(file) => file.reread(),
        }
    }

    /// The registry's content as a whole, for a fault that has no narrower place.
    pub fn place(&self) -> RegistryPlace {
        match self {
            Registry::File(file) => file.place(None),
        }
    }

    /// The kind and what it reads, for `tartan status`: `file /etc/tartan/nodes.toml`.
    pub fn describe(&self) -> String {
        match self {
            Registry::File(_) => format!("file {}", self.place()),
        }
    }
}
