//! The system calls that no safe crate offers. This folder is the only place of the workspace with `unsafe`.
#![allow(unsafe_code)]

pub(crate) mod bpf;
pub(crate) mod call;
mod cmsg;
pub mod execute;
pub mod faults;
pub mod filter_trial;
pub mod inherited;
pub mod landlock;
pub(crate) mod page;
pub mod priority;
pub(crate) mod recvmmsg;
pub(crate) mod sendmmsg;
pub(crate) mod simd;
pub(crate) mod sockopt;
pub(crate) mod tun;
