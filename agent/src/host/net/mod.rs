//! Interfaces, addresses and routes over rtnetlink: what the kernel lists, and
//! the requests that change it.

pub(super) mod addresses;
pub(super) mod dev_conf;
pub(super) mod links;
pub(super) mod neighbours;
pub(super) mod pod_links;
pub(super) mod prefixes;
pub(super) mod routes;
pub(super) mod routes_of_packets;
