//! The kubernetes registry against an API server: the small one of `testbed`, and for what needs no faults also a real one
//! where the variable `TARTAN_TEST_KUBECONFIG` names its kubeconfig (one test at a time then: they share its Nodes).
// threads: 4: its tests wait for watches and timeouts most of the time

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod cluster;
mod connection;
mod credentials;
mod membership;
mod own_record;
mod own_trouble;
