//! `tartan-cni`, Tartan's CNI plugin.
fn main() {}
