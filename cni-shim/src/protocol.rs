//! The CNI protocol: what a runtime asks and what it is answered, as values.
//!
//! Everything in here is pure: bytes and environment variables in, a checked
//! [`Request`] and [`NetConf`] out, or an error that says which code of the
//! specification it bears; a [`CniResult`] in the words of any version. No
//! input makes it panic, and none is followed into the file system.
//!
//! The order of the checks is that of the reference plugins (libcni
//! pkg/skel): environment (code 4), standard input (5), JSON (6), name (7),
//! whether the version knows the verb (1), whether we know the version (1).

pub mod net_conf;
pub mod request;
pub mod result;
pub mod version;

pub use net_conf::NetConf;
pub use request::{AttachmentKey, Request, Target, Verb};
pub use result::CniResult;
pub use version::Version;
