//! Tartan's packet engine: takes pod traffic from a tunnel device, carries it to other nodes over UDP, and accounts for
//! every packet.
//!
//! A packet's way out is [`device`] → `outbound` → [`underlay`], its way in [`underlay`] → `inbound` → [`device`]. A
//! [`worker`] drives both by the tables of one immutable [`snapshot`] ([`cluster`] with [`fib`] and [`peers`], [`pods`]), which control
//! builds of a [`spec`]. Whatever is not forwarded has a [`drops::DropReason`] and a place in [`counters`].
//!
//! Time is an argument ([`now`]), descriptors are handed in, and [`device::memory`] with [`underlay::memory`] let whole
//! clusters run inside one process. `unsafe` is confined to `sys`.

pub mod batch;
pub mod capture;
pub mod cluster;
pub mod counters;
pub mod decision;
pub mod device;
pub mod drop_counts;
pub mod drops;
pub mod engine;
mod fair_shares;
pub mod families;
pub mod fib;
pub mod heavy_flows;
mod icmp_errors;
mod inbound;
pub mod kernel_path;
pub mod limits;
pub mod mtu;
mod mtu_reports;
pub mod now;
mod outbound;
mod peer_id;
pub mod peers;
pub mod pods;
mod probation;
pub mod probe;
pub mod publication;
pub mod sent;
pub mod snapshot;
pub mod spec;
pub mod steer;
mod sys;
mod token_bucket;
pub mod underlay;
pub mod worker;

#[doc(hidden)]
pub use sys::filter_trial;
pub use sys::{execute, faults, inherited, landlock, priority};
