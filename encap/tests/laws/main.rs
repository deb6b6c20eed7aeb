//! The crate's laws, over generated packets and over arbitrary bytes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod arbitrary;
mod checksums;
mod coalescing;
mod differential;
mod errors;
mod fragments;
mod oracle;
mod packets;
mod push_pull;
mod segments;
mod streams;
mod tun_rs;
