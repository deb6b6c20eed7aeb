//! Tartan's host service, as a library so that its parts can be tested: the binary `tartan` runs it.

pub mod api;
pub mod attachments;
mod callers;
pub mod capture;
mod causes;
pub mod check;
pub mod cli;
pub mod cni;
pub mod config;
mod configuration;
mod confinement;
pub mod control;
pub mod doctor;
mod file_state;
pub mod gathering;
pub mod health;
pub mod host;
pub mod keeper;
pub mod kernel_path;
pub mod last_good;
pub mod lease;
mod log;
pub mod metrics;
mod nfnetlink;
pub mod peer_health;
pub mod problems;
pub mod reconcile;
pub mod registry;
pub mod report;
pub mod service;
mod signals;
pub mod start_failure;
pub mod takeover;
#[cfg(test)]
mod test_run;
mod ticker;
pub mod trace;
