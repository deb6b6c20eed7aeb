//! What container runtimes read to find `tartan-cni`: its configuration and its program, installed, removed, looked at.

pub mod chain;
pub mod conf_dir;
pub mod conf_list;
pub mod install;
pub mod installed;
pub mod lost;
pub mod uninstall;
pub mod version;
