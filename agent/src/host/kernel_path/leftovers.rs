//! What the kernel path leaves on a node: found without an agent, and removed.

use std::os::fd::BorrowedFd;
use std::path::Path;

use dataplane::kernel_path::program_id;
use encap::Mac;
use rtnetlink::Handle;

use super::filters::{self, Attached, Direction, Hook};
use super::made;
use super::vxlan_device::is_ours;
use crate::host::Host;
use crate::host::error::HostError;
use crate::host::net::links;

impl Host {
    /// Where programs of ours are attached, on any device.
    ///
    /// # Errors
    /// The kernel's refusal to list.
    pub async fn hooks_of_kernel_path(&self) -> Result<Vec<Hook>, HostError> {
        let found = found_filters(&self.netlink.handle).await?;
        Ok(found.into_iter().map(|(hook, _)| hook).collect())
    }

    /// Whether that very program is attached anywhere, and not another one of its name.
    ///
    /// # Errors
    /// The kernel's refusal to list.
    pub async fn is_attached(&self, program: BorrowedFd<'_>) -> Result<bool, HostError> {
        let Some(id) = program_id(program) else {
            return Ok(false);
        };
        let found = found_filters(&self.netlink.handle).await?;
        Ok(found.iter().any(|(_, attached)| attached.id == id))
    }

    /// Detaches the programs of ours of that name from every device. Returns the devices.
    ///
    /// # Errors
    /// The kernel's refusal to list, or to detach one.
    pub async fn detach_everywhere(&self, program: &str) -> Result<Vec<String>, HostError> {
        let handle = &self.netlink.handle;
        let mut devices = Vec::new();
        for (hook, attached) in found_filters(handle).await? {
            if attached.program == program && filters::detach(handle, &hook).await? {
                devices.push(hook.device);
            }
        }
        Ok(devices)
    }

    /// Index and MAC of the interface of that name, if there is one.
    ///
    /// # Errors
    /// The kernel's refusal to look it up.
    pub async fn index_and_mac(&self, name: &str) -> Result<Option<(u32, Option<Mac>)>, HostError> {
        let found = links::named_with_mac(&self.netlink.handle, name).await?;
        Ok(found.map(|(link, mac)| (link.index, mac)))
    }
}

async fn found_filters(handle: &Handle) -> Result<Vec<(Hook, Attached)>, HostError> {
    let mut found = Vec::new();
    for message in links::messages(handle).await? {
        let link = links::parse(&message);
        for direction in [Direction::Ingress, Direction::Egress] {
            let hook = Hook {
                index: link.index,
                device: link.name.clone(),
                direction,
            };
            let attached = filters::attached(handle, &hook).await?;
            found.extend(attached.map(|attached| (hook, attached)));
        }
    }
    Ok(found)
}

/// Removes the queueing disciplines that Tartan made on devices of others and that no filter hangs from.
async fn remove_qdiscs(handle: &Handle, state_dir: &Path) -> Result<(), HostError> {
    for device in made::noted(state_dir) {
        if let Some(link) = links::named(handle, &device).await? {
            let hook = Hook {
                index: link.index,
                device,
                direction: Direction::Ingress,
            };
            filters::remove_empty_clsact(handle, &hook).await?;
        }
    }
    Ok(())
}

/// Removes the filters of ours from every device; what became of each.
pub(in crate::host) async fn remove_filters(
    handle: &Handle,
    state_dir: &Path,
) -> Result<Vec<(String, Result<(), HostError>)>, HostError> {
    let mut outcomes = Vec::new();
    for (hook, found) in found_filters(handle).await? {
        let gone = filters::detach(handle, &hook).await.map(drop);
        let what = format!("the program {} at {}", found.program, hook.device);
        outcomes.push((what, gone));
    }
    remove_qdiscs(handle, state_dir).await?;
    Ok(outcomes)
}

/// Removes VXLAN devices of ours; what became of each.
pub(in crate::host) async fn remove_device(
    handle: &Handle,
) -> Result<Vec<(String, Result<(), HostError>)>, HostError> {
    let mut outcomes = Vec::new();
    for message in links::messages(handle).await? {
        let link = links::parse(&message);
        if is_ours(&link) {
            let gone = links::delete(handle, &link).await;
            outcomes.push((format!("the device {}", link.name), gone));
        }
    }
    Ok(outcomes)
}
