//! Why the kernel did not do what was asked.

use std::io;

/// Why the kernel did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// There is no socket.
    #[error("cannot open a netlink socket")]
    Open {
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel's answer was not read to its end.
    #[error("the netlink exchange ended early; the request was to {doing}")]
    Exchange {
        /// What was asked for.
        doing: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel's answer is malformed.
    #[error("cannot parse the kernel's netlink answer; the request was to {doing}: {what}")]
    Nonsense {
        /// What was asked for.
        doing: &'static str,
        /// What is wrong with the answer.
        what: &'static str,
    },
    /// The list changed at each try while the kernel sent it.
    #[error("the kernel's list kept changing; the request was to {doing}: try again")]
    Interrupted {
        /// What was asked for.
        doing: &'static str,
    },
    /// The kernel did not do it.
    #[error("the kernel refused to {doing}{}{detail}", if detail.is_empty() { "" } else { ": " })]
    Refused {
        /// What was asked for.
        doing: &'static str,
        /// The kernel's own words, if it had any.
        detail: String,
        /// Its error.
        source: io::Error,
    },
}

impl Error {
    /// Whether the kernel refused with this errno.
    pub(crate) fn is(&self, errno: rustix::io::Errno) -> bool {
        matches!(self, Error::Refused { source, .. }
            if source.raw_os_error() == Some(errno.raw_os_error()))
    }
}
