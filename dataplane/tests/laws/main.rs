//! The laws of the dataplane, in whole clusters of it and in single nodes: without root, without a clock, by seed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub
)]

mod chaos;
mod cluster;
mod drops;
mod families;
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
