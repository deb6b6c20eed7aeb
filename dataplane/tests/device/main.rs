//! Laws that rest on what this kernel's TUN devices really do: super-packets both ways, measured against the kernel's own
//! cutting; queues and writers; a take-over; a kernel that refuses.
//!
//! ```text
//!   we ── ta ── kernel, forwarding ── tb ── we
//! ```
//!
//! Needs root and `ip`; fails, never skips, without them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    unreachable_pub
)]

mod coalesced;
mod offloads;
mod packets;
mod queues;
mod rig;
