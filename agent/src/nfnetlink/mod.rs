//! Messages of nfnetlink, the kernel's netlink family of netfilter (linux/netfilter/nfnetlink.h): framed, and their
//! attributes built and searched. Pure bytes; the sockets are those of [`nf_tables`](crate::host) and of connection
//! tracking.

pub(crate) mod attribute;
pub(crate) mod message;
