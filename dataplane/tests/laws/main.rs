//! The laws of the dataplane, in whole clusters of it and in single nodes: without root, without a clock, by seed.
//!
//! Each law is tried twice: with devices that take and give wire packets alone, and with devices that have every
//! offload. Those of whole clusters also with 2 and with 4 workers in every node.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub
)]

mod captures;
mod chaos;
mod cluster;
mod coalescing;
mod decisions;
mod drops;
mod families;
mod golden;
mod inbound;
mod neighbours;
mod outbound;
mod outbound_gso;
mod path_mtu;
mod path_reports;
mod probes;
mod random_traffic;
mod reasons;
mod sabotage;
mod steered;
mod super_packets;
mod work;
mod world;

/// Whether devices have offloads in this run.
fn with_offloads() -> bool {
    std::env::var_os(WITH_OFFLOADS).is_some()
}

/// This program once more. Where it is emulated, so is that (scripts/cross-test).
fn this_program() -> std::process::Command {
    let this = std::env::current_exe().unwrap();
    let Some(emulator) = std::env::var_os(EMULATOR) else {
        return std::process::Command::new(this);
    };
    let mut emulated = std::process::Command::new(emulator);
    emulated.arg(this);
    emulated
}

/// All tests once more, in a process of their own.
#[test]
fn every_law_holds_with_offloads() {
    if with_offloads() {
        return;
    }
    let output = this_program().env(WITH_OFFLOADS, "yes").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
}

/// Workers of every node in this run.
fn workers() -> usize {
    let count = std::env::var(WORKERS).ok();
    count.map_or(1, |count| count.parse().unwrap())
}

/// The clusters once more, each run in a process of its own.
#[test]
fn clusters_hold_with_2_workers() {
    clusters_hold_with(2);
}

#[test]
fn clusters_hold_with_4_workers() {
    clusters_hold_with(4);
}

fn clusters_hold_with(count: usize) {
    if workers() > 1 {
        return;
    }
    let output = this_program()
        .arg("cluster::")
        .env(WORKERS, count.to_string())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
}

const WORKERS: &str = "LAWS_WORKERS";
const EMULATOR: &str = "LAWS_EMULATOR";
const WITH_OFFLOADS: &str = "LAWS_WITH_OFFLOADS";
