//! The underlay: our sockets, and how they follow the node's address.

mod delay;
mod follow;
mod slot;
pub mod sockets;
