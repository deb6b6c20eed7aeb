//! What the benches share: packets, a cluster, and a worker between a device and an underlay that cost next to nothing.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a bench that cannot be set up should fail loudly"
)]

pub mod cluster;
pub mod packets;
pub mod repeat;
