//! The place of a socket.

use std::net::IpAddr;

use encap::Format;

use crate::underlay::Port;

/// What a socket is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketSpec {
    /// A public address of the node: outer source of what we send, and the only outer destination accepted.
    pub address: IpAddr,
    /// The format's UDP port; 0 for a transmit socket, which has one of the kernel's choice.
    pub port: u16,
    /// What is spoken on it.
    pub format: Format,
    /// The number of a transmit socket, below [`TRANSMIT_SOCKETS`]; `None` for the one that receives.
    pub lane: Option<usize>,
}

impl SocketSpec {
    /// The port that the socket serves.
    pub const fn underlay_port(&self) -> Port {
        Port::towards(self.address, self.format)
    }
}
