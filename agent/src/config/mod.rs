//! Configuration: of the cluster (`net_conf`) and of this node (`node`).

mod backend;
pub mod difference;
pub(crate) mod document;
pub mod net_conf;
mod net_conf_error;
pub mod node;
mod plain_words;
mod spin;
pub(crate) mod subnet_range;
pub(crate) mod text_file;
mod unknown_key;
pub mod workers;

pub use backend::Backend;
pub use difference::Difference;
pub use document::{TomlError, TomlFault};
pub use net_conf::NetConf;
pub use net_conf_error::NetConfError;
pub use node::{
    ConfigError, ConfigFile, DeviceKind, DeviceType, KernelPathMode, NodeConfig, RunArgs,
};
pub use spin::SpinSetting;
pub use subnet_range::SubnetRange;
pub use text_file::TextFileError;
pub use unknown_key::UnknownKey;
