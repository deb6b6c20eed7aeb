//! Faults of the node that packets meet outside of Tartan: settings, rules and bridges of other programs, broken checksums,
//! the clock.
//!
//! Theory of operation. Each is judged by a pure function, one file a fault. The control loop calls them while the service
//! runs ([`watch`]), and posts what they find; `tartan doctor` calls the same ones while it does not. Nothing is changed: what
//! other programs set is theirs.

pub mod bridge_netfilter;
pub mod checksum_errors;
pub mod clock;
pub mod flannel_rules;
pub mod reverse_path_filter;
pub mod watch;
