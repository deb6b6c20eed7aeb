//! `tartan-cni`, Tartan's CNI plugin.
//!
//! A container runtime runs it once per verb, with the request in the
//! environment and on standard input; one JSON value comes back on standard
//! output. It runs no other program but a delegated `ipam` plugin where the
//! configuration names one, and leaves no process behind but itself, started once
//! more to wait for the kernel (`removal.rs`), which ends by itself.

#![forbid(unsafe_code)]

mod add;
mod agent;
mod announce;
mod check;
mod check_error;
mod child;
mod code;
mod command;
mod delegate;
mod delete;
mod end;
mod error;
mod failpoint;
mod gc;
mod inventory;
mod netlink;
mod netns;
mod owner;
mod removal;
mod requested;
mod reserve;
mod status;
mod sysctl;
mod taken;
mod teardown;
mod veth;

use std::process::ExitCode;

fn main() -> ExitCode {
    cni_shim::panics::abort_at_panic();
    match removal::serve(std::env::args_os().skip(1)) {
        Some(served) => served,
        None => command::run(),
    }
}
