//! The agent's Unix socket: one JSON line in, one JSON line out.
//!
//! Theory of operation. `<root>/run/tartan/tartan.sock`, mode 0600; a caller must be root or the agent's own
//! user by the kernel's word (`SO_PEERCRED`). A connection carries one request,
//! `{"call":"status"}`, and one reply, `{"ok":…}` or `{"error":"…"}`, and is closed. `tartan status` and its
//! sisters and `tartan-cni` are the callers. The server only reads and writes lines; the control loop
//! of the service answers, so a reply is one consistent view.
//!
//! `<root>/run/tartan/cni.sock` is the same for `tartan-cni`, which uses the other where this one is missing.
//!
//! Limits, of each of the two: a request of 4 KiB, 32 answers at a time, 256 connections whose request is not whole (the one
//! that waits longest is closed for the next), 2 s for the first byte (10 s on the plugin's), 10 s for the request to
//! arrive and for the reply to be taken, 30 s for the control loop to answer.
//!
//! The listeners are among the descriptors that the keeper holds: while the service is restarted, callers
//! wait in the backlog instead of being refused.

pub mod client;
pub mod server;
pub mod wire;
