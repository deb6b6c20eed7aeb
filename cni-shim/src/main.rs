//! `tartan-cni`, Tartan's CNI plugin.
//!
//! A container runtime runs it once per verb, with the request in the
//! environment and on standard input; one JSON value comes back on standard
//! output. It leaves no process behind, and runs no other program but a
//! delegated `ipam` plugin where the configuration names one.

#![forbid(unsafe_code)]

mod add;
mod agent;
mod announce;
mod check;
mod child;
mod command;
mod delegate;
mod delete;
mod error;
mod fault;
mod gc;
mod inventory;
mod link_name;
mod netns;
mod reserve;
mod status;
mod sysctl;
mod taken;
mod teardown;
mod veth;
mod wanted;

use std::process::ExitCode;

fn main() -> ExitCode {
    command::run()
}
