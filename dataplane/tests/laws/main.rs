//! The laws of the dataplane, in whole clusters of it and in single nodes: without root, without a clock, by seed.
//!
//! Each law is tried twice: with devices that take and give wire packets alone, and with devices that have every
//! offload.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub
)]

mod chaos;
mod cluster;
mod departures;
mod drops;
mod families;
mod gathering;
mod golden;
mod inbound;
mod noise;
mod outbound;
mod path_mtu;
mod path_reports;
mod reasons;
mod sabotage;
mod super_packets;
mod world;

/// Whether devices have offloads in this run.
fn with_offloads() -> bool {
    std::env::var_os(WITH_OFFLOADS).is_some()
}

/// All tests once more, in a process of their own.
#[test]
fn every_law_holds_with_offloads() {
    if with_offloads() {
        return;
    }
    let this = std::env::current_exe().unwrap();
    let output = std::process::Command::new(this)
        .env(WITH_OFFLOADS, "yes")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
}

const WITH_OFFLOADS: &str = "LAWS_WITH_OFFLOADS";
