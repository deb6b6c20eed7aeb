//! The programs of the kernel path, run by the kernel on packets of ours (`BPF_PROG_TEST_RUN`): each reason to pass a
//! packet on and each drop, and the law that nothing is admitted that user space refuses, nor changed otherwise than user
//! space changes it.
//!
//! Loading the object is a test too: the kernel's verifier accepts each program. Needs root, or CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN;
//! fails, never skips, without them. Those with devices also need `ip`, `bridge` and python3.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    unreachable_pub
)]

mod devices;
mod flows;
mod forgotten;
mod inbound;
mod laws;
mod outbound;
mod packets;
mod pod_sockets;
mod rig;
mod vectors;
mod vxlan_device;
