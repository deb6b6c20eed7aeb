//! Registries: where a node reads the leases of all nodes.
//!
//! Theory of operation. Each kind of registry is a module with one type and a variant of [`Registry`]. All kinds
//! yield the same [`Update`]s, made of the same [`Lease`]s, and keep this contract:
//!
//! - The first [`Update::Leases`] is the complete answer to a start. A kind waits until it has all of it.
//! - [`Update::Leases`] is the complete list, never a difference, and holds this node's own lease ([`own`]).
//! - Content that cannot be read or used yields [`Update::Refused`], never a shorter list: the last list stays in
//!   force, so no peer is withdrawn because a registry is broken or cannot be reached.
//! - An update that equals the last one is not reported.
//! - Dropping the future of [`Registry::next`] loses nothing: the control loop waits for other events beside it.

mod announcement;
mod conflicts;
mod difference;
pub mod etcd;
mod fault;
mod file;
mod foreign_text;
pub mod kubernetes;
mod nodes;
mod own;
mod pace;
mod parsed_node;
mod place;
mod record_fault;
mod records;
mod refused_record;
mod remote;
mod transport;

pub use announcement::{Announcement, RegistrySettings};
pub use difference::{ChangedNode, ListDifference, few};
pub use fault::{NodeListError, NodeListFault};
pub use file::{FileRegistry, FileRegistryError, read_once};
pub use nodes::{parse, render};
pub use own::own;
pub use place::RegistryPlace;
pub use refused_record::RefusedRecord;
pub use remote::RemoteRegistry;

use std::io;

use crate::config::node::registry::RegistryKind;
use crate::config::{NetConf, NodeConfig};
use crate::lease::Lease;

/// The registry of this node.
#[derive(Debug)]
pub enum Registry {
    /// A list of nodes in a file.
    File(Box<FileRegistry>),
    /// etcd or the Kubernetes API.
    Remote(RemoteRegistry),
}

/// What a registry reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// What it says beside the leases; the first update of a remote registry.
    Settings(RegistrySettings),
    /// The complete list of nodes, this node among them. It replaces every earlier list.
    Leases(Vec<Lease>),
    /// The complete list of the records that are passed over. It replaces every earlier one; empty at the start.
    RefusedRecords(Vec<RefusedRecord>),
    /// Whether the registry answers. Reported when that changes; a file always answers.
    Contact(Contact),
    /// The registry's content cannot be used. The last list stays in force.
    Refused {
        /// Where in the content the fault is.
        place: RegistryPlace,
        /// What is wrong and how to correct it: one sentence for the operator.
        reason: String,
    },
}

/// Whether a remote registry answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contact {
    /// It does.
    InTouch,
    /// It does not, or refuses us. What it said last stays in force.
    Lost {
        /// Why, and what would correct it: one sentence for the operator.
        reason: String,
    },
}

/// Why a registry cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The list of nodes cannot be watched.
    #[error(transparent)]
    File(#[from] FileRegistryError),
    /// No thread for a remote registry.
    #[error(
        "cannot start the registry's thread; raise the limits of processes and open descriptors"
    )]
    Thread(#[source] io::Error),
}

impl Registry {
    /// Opens the list of nodes in a file. Must be called within a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// [`RegistryError`]. Content that cannot be read is not an error here: the first [`Update`] reports it.
    pub fn open_file(config: &NodeConfig, net_conf: &NetConf) -> Result<Registry, RegistryError> {
        let file = FileRegistry::watch(&config.node_file, net_conf, &config.node_name)?;
        Ok(Registry::File(Box::new(file)))
    }

    /// Opens the remote registry that `config` names; `None` where it names the file.
    ///
    /// # Errors
    /// [`RegistryError`]. A registry that does not answer is not an error here: an [`Update`] reports it.
    pub fn open_remote(config: &NodeConfig) -> Result<Option<Registry>, RegistryError> {
        let remote = match config.registry.kind {
            RegistryKind::File => return Ok(None),
            RegistryKind::Etcd => etcd::open(&config.registry.etcd)?,
            RegistryKind::Kubernetes => {
                kubernetes::open(&config.registry.kubernetes, &config.node_name)?
            }
        };
        Ok(Some(Registry::Remote(remote)))
    }

    /// Announces this node. Without effect where an operator writes the list.
    pub fn announce(&self, announcement: Announcement) {
        match self {
            Registry::File(_) => {}
            Registry::Remote(remote) => remote.announce(announcement),
        }
    }

    /// Waits for the next update. Dropping the future before it is ready loses nothing.
    pub async fn next(&mut self) -> Update {
        match self {
            Registry::File(file) => file.next().await,
            Registry::Remote(remote) => remote.next().await,
        }
    }

    /// Reads the content soon, whether it has changed or not.
    pub fn reread(&mut self) {
        match self {
            Registry::File(file) => file.reread(),
            Registry::Remote(remote) => remote.reread(),
        }
    }

    /// The registry's content as a whole, for a fault that has no narrower place.
    pub fn place(&self) -> RegistryPlace {
        match self {
            Registry::File(file) => file.place(None),
            Registry::Remote(remote) => remote.place(),
        }
    }

    /// The kind and what it reads, for `tartan status`: `file /etc/tartan/nodes.toml`.
    pub fn describe(&self) -> String {
        match self {
            Registry::File(_) => format!("file {}", self.place()),
            Registry::Remote(remote) => remote.describe().to_owned(),
        }
    }
}
