//! What the tests share that make network namespaces: a development dependency of `agent`, `cni-shim` and `dataplane`.
//!
//! Theory of operation. A test makes a [`Namespace`] and runs iproute2 in it, which is the independent oracle of what
//! the code under test did to the kernel. [`linked`] joins two of them by a veth pair, [`Cluster`] also runs an agent in
//! each. [`apiserver`] is a Kubernetes API server for Nodes. [`packets`] builds packets with `etherparse` alone. The crate depends on nothing of ours, so none of it can
//! share a fault with the code that it tests; a test passes in the path of a program that it runs
//! (`CARGO_BIN_EXE_...`).
//!
//! Everything ends when it is dropped, also while a test fails; a killed test program leaves its namespaces
//! (`tb-ROLE-PID-N`) behind. No `Drop` here panics. Everything else panics on the first failure, with what the command
//! printed: these are tests. They need root, `ip`, `tc` and `nft`; without them they fail, and are never skipped.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

pub mod apiserver;
mod census;
mod cluster;
mod mount;
mod namespace;
pub mod packets;
mod port_owner;
mod program;
mod wait;

pub use census::Census;
pub use cluster::{Cluster, Node, answered};
pub use mount::Mount;
pub use namespace::{Namespace, await_link, linked};
pub use port_owner::PortOwner;
pub use program::{command, ip, ping, run};
pub use wait::eventually;
