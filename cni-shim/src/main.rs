//! `tartan-cni`, Tartan's CNI plugin.
//!
//! A container runtime runs it once per verb, with the request in the
//! environment and on standard input; one JSON value comes back on standard
//! output. It runs no other program and leaves no process behind.

#![forbid(unsafe_code)]

mod add;
mod agent;
mod command;
mod delete;
mod error;
mod link_name;
mod net_conf;
mod netlink;
mod netns;
mod request;
mod result;
mod status;
mod sysctl;
mod veth;

use std::process::ExitCode;

fn main() -> ExitCode {
    command::run()
}
