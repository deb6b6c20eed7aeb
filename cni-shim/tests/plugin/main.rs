//! `tartan-cni` as a runtime runs it: real network namespaces, real veth
//! pairs, and an agent that is a few lines long. Needs root.
//!
//! ```text
//!  cs-…-p0, cs-…-p1, …  (pods)      cs-…-n  (the node, one per test)
//!    eth0 ───────────────────────────── ttXXXXXXXXXX
//!                                       lo 10.244.7.0/32, as the tunnel address
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod attach;
mod beside;
mod check;
mod checklist;
mod corpus;
mod damaged;
mod disk;
mod faults;
mod interface;
mod protocol;
mod recover;
mod refuse;
mod removal;
mod requested;
mod rig;
