//! Why the kernel's rules are not as they should be.

use std::io;

use rustix::io::Errno;

/// Why nf_tables could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// The kernel has no nf_tables, or not all of it that the rules need.
    #[error(
        "this kernel lacks nf_tables or a part of it, so no pod's source is checked at its interface and nothing is masqueraded"
    )]
    Unsupported,
    /// The socket cannot be opened or used.
    #[error("the netlink socket of netfilter fails")]
    Socket {
        /// What the kernel said.
        source: io::Error,
    },
    /// A capability is missing.
    #[error("the kernel does not permit it")]
    NotPermitted,
    /// The kernel refuses for another reason.
    #[error("the kernel refuses ({source})")]
    Refused {
        /// What the kernel said.
        source: Errno,
    },
    /// The rules changed while they were read.
    #[error("the rules changed while they were read")]
    Interrupted,
    /// No answer came.
    #[error("the kernel does not answer within 2 s")]
    NoAnswer,
    /// A list without a plausible end.
    #[error("the kernel lists more than 1,048,576 rules or chains")]
    TooMany,
}

impl NftError {
    /// The error of an answer: an errno, negated.
    pub(super) fn from_code(code: i32) -> NftError {
        match Errno::from_raw_os_error(code.saturating_neg()) {
            Errno::PERM | Errno::ACCESS => NftError::NotPermitted,
            Errno::OPNOTSUPP => NftError::Unsupported,
            Errno::INTR => NftError::Interrupted,
            source => NftError::Refused { source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_errno_has_its_sentence() {
        for (errno, part) in [
            (Errno::PERM, "does not permit"),
            (Errno::OPNOTSUPP, "lacks nf_tables"),
            (Errno::INTR, "changed while"),
            (Errno::NOENT, "refuses"),
        ] {
            let sentence = NftError::from_code(-errno.raw_os_error()).to_string();
            assert!(sentence.contains(part), "{errno}: {sentence}");
        }
    }
}
