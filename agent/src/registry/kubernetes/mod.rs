//! The `kubernetes` registry: flannel's annotations of Nodes (flannel `pkg/subnet/kube`).

use super::remote::{Ended, RemoteRegistry, Seat};
use super::{RegistryError, RegistryPlace};
use crate::config::node::registry::KubernetesConfig;

/// Starts the registry's thread for the node `node_name`. It reports whether the API answers.
///
/// # Errors
/// [`RegistryError`].
pub fn open(config: &KubernetesConfig, node_name: &str) -> Result<RemoteRegistry, RegistryError> {
    let place = RegistryPlace::Kubernetes { node: None };
    let description = format!("kubernetes node {node_name}");
    let config = config.clone();
    RemoteRegistry::start(description, place, move |seat| serve(config, seat))
}

async fn serve(_config: KubernetesConfig, seat: Seat) -> Ended {
    seat.ended().await;
    Ended
}
