//! The etcd registry against a real etcd (Debian `etcd-server`), on the loopback interface.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

#[path = "etcd/access.rs"]
mod access;
#[path = "etcd/acquire.rs"]
mod acquire;
#[path = "etcd/contact.rs"]
mod contact;
#[path = "etcd/content.rs"]
mod content;
#[path = "etcd/identity.rs"]
mod identity;
#[path = "etcd/node.rs"]
mod node;
#[path = "etcd/own_key.rs"]
mod own_key;
#[path = "etcd/owner.rs"]
mod owner;
#[path = "etcd/server.rs"]
mod server;
#[path = "etcd/trouble.rs"]
mod trouble;
