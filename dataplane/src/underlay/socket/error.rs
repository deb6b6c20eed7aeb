//! Errors of opening a socket; each sentence names the remedy.

use std::io;

use super::SocketSpec;

/// Why a socket cannot be opened or adopted.
#[derive(Debug)]
pub enum UnderlayError {
    /// Another process, or a kernel device, holds the port.
    PortTaken(SocketSpec),
    /// No interface of this host has the address.
    NotOurAddress(SocketSpec),
    /// The descriptor is bound to something else than its name says.
    Foreign {
        /// What it should be bound to.
        wanted: SocketSpec,
        /// What the kernel says.
        found: String,
    },
    /// Anything else the kernel says.
    Kernel(SocketSpec, io::Error),
}

impl UnderlayError {
    /// The socket that was wanted.
    pub const fn spec(&self) -> &SocketSpec {
        match self {
            UnderlayError::PortTaken(spec)
            | UnderlayError::NotOurAddress(spec)
            | UnderlayError::Foreign { wanted: spec, .. }
            | UnderlayError::Kernel(spec, _) => spec,
        }
    }
}

impl std::fmt::Display for UnderlayError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            UnderlayError::PortTaken(SocketSpec {
                address,
                port,
                format,
                lane: _,
            }) => write!(
                f,
                "UDP port {port} of {address} (format {format}) is taken: 'ss -lunp sport = :{port}' names the \
                 process; a kernel VXLAN device shows in 'ip -d link show type vxlan' and must be deleted first"
            ),
            UnderlayError::NotOurAddress(SocketSpec { address, .. }) => write!(
                f,
                "no interface of this host has the address {address}: correct public-ip of this node, or bring the \
                 interface up"
            ),
            UnderlayError::Foreign { wanted, found } => write!(
                f,
                "a descriptor handed over as socket of {}:{} is bound to something else: {found}",
                wanted.address, wanted.port
            ),
            UnderlayError::Kernel(SocketSpec { address, port, .. }, error) => {
                write!(f, "the kernel refuses UDP socket {address}:{port}: {error}")
            }
        }
    }
}

impl std::error::Error for UnderlayError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            UnderlayError::Kernel(_, error) => Some(error),
            _ => None,
        }
    }
}
