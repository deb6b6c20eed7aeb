//! Why a start ends before it has begun to forward.

use std::io;

use dataplane::engine::EngineError;
use dataplane::underlay::socket::UnderlayError;
use thiserror::Error;

use super::device::ObtainError;
use crate::api::server::ServerError;
use crate::host::HostError;
use crate::keeper::descriptors::DescriptorsError;
use crate::keeper::lock::LockError;
use crate::problems::{HostProblem, Problem};
use crate::registry::RegistryError;

/// Why the service could not start. Each sentence names the remedy.
#[derive(Debug, Error)]
pub enum StartError {
    /// What a running service would only report: see [`Problem::ends_first_start`].
    #[error("{0}")]
    Problem(Box<Problem>),
    /// The keeper's table.
    #[error(transparent)]
    Descriptors(#[from] DescriptorsError),
    /// An earlier service still runs.
    #[error("an earlier service does not end")]
    Lock(#[from] LockError),
    /// It cannot take the place of the service that runs.
    #[error("{reason}: restart the agent instead (systemctl restart tartan)")]
    Beside {
        /// Why not.
        reason: String,
    },
    /// The run directory.
    #[error(transparent)]
    RunDir(#[from] cni_shim::FileError),
    /// The registry cannot be opened.
    #[error(transparent)]
    Registry(#[from] RegistryError),
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
}

impl From<Problem> for StartError {
    fn from(problem: Problem) -> StartError {
        StartError::Problem(Box::new(problem))
    }
}

impl From<HostError> for StartError {
    fn from(error: HostError) -> StartError {
        Problem::Host(HostProblem::of(&error)).into()
    }
}
