//! The `kubernetes` registry: flannel's annotations of Nodes (flannel `pkg/subnet/kube`).
//!
//! Theory of operation. All Nodes are listed once, in pages, and watched from the version of that list on. A watch that
//! ends goes on from the last version seen; only where the server no longer has that version (HTTP 410) is everything
//! listed again, so that an API server that comes back is not asked by every node of the cluster for all of it. A watch
//! without a line for 20 s is replaced by a new one: that proves that the server answers and that the connection is not
//! dead, costs nothing where Nodes change often, and little in a small cluster. After several such in a row everything
//! is listed again, in case the server holds a state older than ours.
//!
//! From the Nodes the list of leases is made anew after each change that matters here ([`node_table`]), at most as often
//! as leaves the thread idle nine tenths of the time. This node's own Node is patched where its annotations are not what
//! is announced ([`own_node`]).
//!
//! ```text
//! session ── list ── watch ──► node_table ──► records::check ──► Update::Leases
//!                                  │    ▲
//!                                  ▼    │
//!                             own_node ─┴─ patch ──► API server
//! ```

mod annotations;
mod api;
mod backoff;
mod node;
mod node_sync;
mod node_table;
mod own_node;
mod pod_node;
mod reports;
mod session;
mod watch;

pub use pod_node::{PodNodeError, node_of_pod};

use super::remote::RemoteRegistry;
use super::{RegistryError, RegistryPlace};
use crate::config::node::registry::KubernetesConfig;

/// Starts the registry's thread for the node `node_name`. It reports whether the API answers.
///
/// # Errors
/// [`RegistryError`].
pub fn open(config: &KubernetesConfig, node_name: &str) -> Result<RemoteRegistry, RegistryError> {
    let place = RegistryPlace::Kubernetes { node: None };
    let description = format!("kubernetes node {node_name}");
    let (config, node_name) = (config.clone(), node_name.to_owned());
    RemoteRegistry::start(description, place, move |seat| {
        node_sync::NodeSync::new(config, node_name, seat).serve()
    })
}
