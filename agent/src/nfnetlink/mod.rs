//! Messages of nfnetlink, the kernel's netlink family of netfilter (linux/netfilter/nfnetlink.h): framed, and their
//! attributes built and searched, all of it pure bytes; and a socket for requests with one answer. Lists of rules and sets
//! have a socket of their own ([`nf_tables`](crate::host)).

pub(crate) mod attribute;
pub(crate) mod message;
pub(crate) mod requests;
