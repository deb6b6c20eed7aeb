//! The sources that a worker reads from, and which of them may have something.

use super::steered::is_steered;
use crate::underlay::Port;

/// A source that a worker reads from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The device queue.
    Device,
    /// A port of the underlay.
    Port(Port),
    /// The error queue of a port: the kernel's reports about datagrams that it sent.
    ErrorQueue(Port),
}

/// Sources that may have something to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub(super) device: bool,
    /// By [`Port::index`].
    pub(super) ports: [bool; Port::ALL.len()],
    /// The ports' error queues, by [`Port::index`].
    pub(super) error_queues: [bool; Port::ALL.len()],
}

impl Ready {
    pub(super) fn is(&self, source: Source) -> bool {
        match source {
            Source::Device => self.device,
            Source::Port(port) => self.ports.get(port.index()) == Some(&true),
            Source::ErrorQueue(port) => self.error_queues.get(port.index()) == Some(&true),
        }
    }

    pub(super) fn set(&mut self, source: Source, ready: bool) {
        let place = match source {
            Source::Device => Some(&mut self.device),
            Source::Port(port) => self.ports.get_mut(port.index()),
            Source::ErrorQueue(port) => self.error_queues.get_mut(port.index()),
        };
        if let Some(place) = place {
            *place = ready;
        }
    }

    /// Whether any port or error queue is ready. A steered port does not count while the worker waits for others (`wait`).
    pub(super) fn is_any_port(&self, wait: bool) -> bool {
        let mut ports = Port::ALL.into_iter().zip(self.ports);
        ports.any(|(port, ready)| ready && !(wait && is_steered(port)))
            || self.error_queues.contains(&true)
    }
}
