//! The `etcd` registry: flannel's keys (flannel `pkg/subnet/etcd`).

use super::remote::{Ended, RemoteRegistry, Seat};
use super::{RegistryError, RegistryPlace};
use crate::config::node::registry::EtcdConfig;

/// Starts the registry's thread. It reports whether the servers answer.
///
/// # Errors
/// [`RegistryError`].
pub fn open(config: &EtcdConfig) -> Result<RemoteRegistry, RegistryError> {
    let place = RegistryPlace::Etcd {
        key: config.prefix.clone(),
    };
    let description = format!("etcd {} {}", config.endpoints.join(","), config.prefix);
    let config = config.clone();
    RemoteRegistry::start(description, place, move |seat| serve(config, seat))
}

async fn serve(_config: EtcdConfig, seat: Seat) -> Ended {
    seat.ended().await;
    Ended
}
