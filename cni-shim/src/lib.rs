//! What Tartan's CNI plugin and its agent share: the run directory, the note
//! the agent leaves about the node, the attachment record, the address range, the
//! requests on the agent's socket, and how files and JSON are read. The parsing of
//! the CNI protocol is the plugin's alone; it is here because fuzzing needs a
//! library (`fuzz/`).
//!
//! The run directory *is* the database of attachments. The plugin writes one
//! record per (container, interface name) before it makes anything; the agent
//! lists the directory when it starts, and the plugin reports each change after that.
//! There is nothing to replay and nothing to compact, and DEL works with the
//! agent down.
//!
//! Nothing in here panics, whatever bytes the directory holds.

#![forbid(unsafe_code)]

pub mod api;
pub mod atomic_file;
pub mod attachment;
pub mod ethtool;
pub mod file_error;
mod holder;
pub mod json;
pub mod link_name;
pub mod nlmsg;
pub mod node_file;
pub mod panics;
pub mod pod_end;
pub mod pod_link;
pub mod protocol;
pub mod range;
pub mod run_dir;

pub use attachment::{Attachment, Bandwidth, PodName, RateLimit, State, list};
pub use file_error::{FileAction, FileError};
pub use json::Json;
pub use node_file::NodeFile;
pub use run_dir::RunDir;
