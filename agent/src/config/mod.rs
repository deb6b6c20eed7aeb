//! Configuration: what holds for the cluster (`net_conf`) and what holds for this node (`node`).

mod backend;
pub(crate) mod document;
pub mod net_conf;
mod net_conf_error;
pub mod node;
mod spin;
pub(crate) mod subnet_range;
pub(crate) mod text_file;
mod unknown_key;
pub mod workers;

pub use backend::Backend;
pub use document::{Fault, Misread};
pub use net_conf::NetConf;
pub use net_conf_error::NetConfError;
pub use node::{ConfigError, Device, NodeConfig, RunArgs};
pub use spin::Spin;
pub use subnet_range::SubnetRange;
pub use text_file::TextFileError;
pub use unknown_key::UnknownKey;
