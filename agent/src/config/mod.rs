//! Configuration: what holds for the cluster (`net_conf`) and what holds for this node (`node`).

pub mod net_conf;
pub mod node;

pub use net_conf::{Backend, NetConf, SubnetRange};
pub use node::{Device, NodeConfig, RunArgs};
