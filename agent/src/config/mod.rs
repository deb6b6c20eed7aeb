//! Configuration: what holds for the cluster (`net_conf`) and what holds for this node (`node`).

mod backend;
mod json;
pub mod net_conf;
pub mod node;
mod subnet_range;

pub use backend::Backend;
pub use net_conf::{NetConf, NetConfError};
pub use node::{Device, NodeConfig, RunArgs};
pub use subnet_range::SubnetRange;
