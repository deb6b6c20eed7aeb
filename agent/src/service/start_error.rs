//! Why a start ends before it has begun to forward.

use std::io;
use std::path::PathBuf;

use dataplane::engine::EngineError;
use dataplane::underlay::socket::UnderlayError;
use thiserror::Error;

use super::descriptors::DescriptorsError;
use super::device::ObtainError;
use crate::api::server::ServerError;
use crate::config::NetConfError;
use crate::host::HostError;
use crate::registry::file::FileRegistryError;

/// Why the service could not start. Each sentence names the remedy.
#[derive(Debug, Error)]
pub enum StartError {
    /// The keeper's table.
    #[error(transparent)]
    Descriptors(#[from] DescriptorsError),
    /// The run directory.
    #[error(transparent)]
    RunDir(#[from] cni_shim::FileError),
    /// The cluster's configuration is not there, or not to be read.
    #[error(transparent)]
    NoNetConf(NetConfError),
    /// The cluster's configuration is wrong.
    #[error("{path}: {source}")]
    NetConf {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        source: NetConfError,
    },
    /// The list of nodes cannot be watched.
    #[error(transparent)]
    Registry(#[from] FileRegistryError),
    /// The list of nodes cannot be used.
    #[error("{file}{line}: {reason}")]
    Leases {
        /// The list.
        file: String,
        /// ` line N`, or nothing.
        line: String,
        /// What is wrong and what would mend it.
        reason: String,
    },
    /// The kernel's tables.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A descriptor could not be opened, or is not what it should be.
    #[error("{name}: {reason}")]
    Descriptor {
        /// Its name in the keeper's table.
        name: String,
        /// Why, with the remedy.
        reason: String,
    },
    /// The tunnel device.
    #[error(transparent)]
    Device(#[from] ObtainError),
    /// The sockets.
    #[error("{0}")]
    Underlay(UnderlayError),
    /// The API.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The control loop's clock.
    #[error("cannot have a timer; check the limit of open descriptors (ulimit -n)")]
    Clock(#[source] io::Error),
    /// The workers.
    #[error("{0}")]
    Engine(EngineError),
    /// The node file.
    #[error(transparent)]
    NodeFile(#[from] cni_shim::node_file::Error),
}
