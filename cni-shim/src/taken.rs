//! Which addresses of the node's subnets are in use, and by what.
//!
//! | holder | found in | because |
//! |---|---|---|
//! | our attachments | their records | we wrote them |
//! | host-local | the names of its files | the stock plugins' pods keep running beside ours |
//! | any interface | the kernel's host routes | a record that cannot be read still has its route |
//! | any interface | the kernel's neighbours | pods on a bridge have no route of their own |
//!
//! Where a route appears after this, the kernel refuses ours later.

use std::collections::HashSet;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cni_shim::protocol::AttachmentKey;
use cni_shim::{Attachment, range};
use ipnet::IpNet;

use crate::inventory;
use crate::netlink::{self, Netlink};

/// What the kernel and host-local have, before the records are looked at.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    kernel: HashSet<IpAddr>,
    host_local: Vec<(IpAddr, PathBuf)>,
    records: Vec<Attachment>,
}

impl Taken {
    /// Reads the kernel's routes and neighbours and host-local's files for
    /// addresses of `subnets`.
    pub(crate) fn read(
        host: &mut Netlink,
        root: &Path,
        subnets: &[IpNet],
    ) -> Result<Taken, netlink::Error> {
        let mut kernel = HashSet::new();
        let ours = |address: &IpAddr| range::is_for_pods(subnets, *address);
        for v4 in [true, false] {
            if !subnets.iter().any(|subnet| subnet.addr().is_ipv4() == v4) {
                continue;
            }
            let routes = inventory::routes(host, v4)?.into_iter();
            let single = routes.filter(|route| {
                route.leads && route.destination.prefix_len() == route.destination.max_prefix_len()
            });
            kernel.extend(single.map(|route| route.destination.addr()).filter(ours));
            let neighbours = inventory::neighbours(host, v4)?.into_iter();
            kernel.extend(neighbours.map(|neighbour| neighbour.address).filter(ours));
        }
        Ok(Taken {
            kernel,
            host_local: host_local(root, subnets),
            records: Vec::new(),
        })
    }

    /// Adds an attachment's addresses.
    pub(crate) fn add(&mut self, record: Attachment) {
        self.records.push(record);
    }

    /// The records added.
    pub(crate) fn records(&self) -> &[Attachment] {
        &self.records
    }

    /// Forgets what host-local holds for the network `name`.
    pub(crate) fn forget_network(&mut self, name: &str) {
        let of = |path: &Path| path.parent().and_then(Path::file_name) == Some(name.as_ref());
        self.host_local.retain(|(_, path)| !of(path));
    }

    /// Every address in use.
    pub(crate) fn addresses(&self) -> HashSet<IpAddr> {
        let mut all = self.kernel.clone();
        all.extend(self.host_local.iter().map(|(address, _)| *address));
        let held = self.records.iter().flat_map(|record| &record.addresses);
        all.extend(held.map(IpNet::addr));
        all
    }

    /// What holds `address`, in words; None when it is free.
    pub(crate) fn holder(&self, address: IpAddr) -> Option<String> {
        if let Some(record) = self.attachment(address) {
            return Some(describe(record));
        }
        let file = self.host_local.iter().find(|(held, _)| *held == address);
        if let Some((_, path)) = file {
            let owner = fs::read_to_string(path).unwrap_or_default();
            let owner: String = owner.chars().take(80).filter(|c| !c.is_control()).collect();
            return Some(format!(
                "host-local, for container {owner} ({})",
                path.display()
            ));
        }
        let known = self.kernel.contains(&address);
        known.then(|| format!("an interface of this node (see `ip route get {address}`)"))
    }

    /// The attachment that has `address`.
    pub(crate) fn attachment(&self, address: IpAddr) -> Option<&Attachment> {
        self.records
            .iter()
            .find(|record| record.addresses.iter().any(|held| held.addr() == address))
    }

    /// What holds the addresses of `subnets`, in words.
    pub(crate) fn summary(&self, subnets: &[IpNet]) -> String {
        let inside = |address: &IpAddr| range::is_for_pods(subnets, *address);
        let ours = |record: &&Attachment| {
            let mut addresses = record.addresses.iter().map(IpNet::addr);
            addresses.any(|address| inside(&address))
        };
        let count = self.records.iter().filter(ours).count();
        let oldest = self.records.iter().min_by_key(|record| record.created);
        let files: HashSet<IpAddr> = self.host_local.iter().map(|(a, _)| *a).collect();
        let files = files.iter().filter(|a| self.attachment(**a).is_none());
        let files = files.count();
        let others = self.kernel.iter().filter(|a| inside(a) && !self.known(**a));
        let others = others.count();
        let mut text = format!("held by {count} attachments of tartan-cni");
        if let Some(oldest) = oldest {
            text += &format!(" (the oldest: {})", describe(oldest));
        }
        text + &format!(", {files} of host-local, {others} of other interfaces of this node")
    }

    fn known(&self, address: IpAddr) -> bool {
        self.attachment(address).is_some()
            || self.host_local.iter().any(|(held, _)| *held == address)
    }
}

/// `pod NAMESPACE/NAME, container ID, interface IFNAME`.
fn describe(record: &Attachment) -> String {
    let key = AttachmentKey {
        container: record.container.clone(),
        ifname: record.ifname.clone(),
    };
    match &record.pod {
        Some(pod) if pod.namespace.is_empty() => format!("pod {}, {key}", pod.name),
        Some(pod) => format!("pod {}/{}, {key}", pod.namespace, pod.name),
        None => key.to_string(),
    }
}

/// Every address of `subnets` that has a file in a directory of host-local
/// (plugins/ipam/host-local/backend/disk: `<dataDir>/<network>/<address>`).
/// What cannot be read holds none.
fn host_local(root: &Path, subnets: &[IpNet]) -> Vec<(IpAddr, PathBuf)> {
    let Ok(networks) = fs::read_dir(root.join(HOST_LOCAL)) else {
        return Vec::new();
    };
    networks
        .flatten()
        .filter_map(|network| fs::read_dir(network.path()).ok())
        .flat_map(|files| files.flatten())
        .filter_map(|file| {
            let address: IpAddr = file.file_name().to_str()?.parse().ok()?;
            Some((address, file.path()))
        })
        .filter(|(address, _)| range::is_for_pods(subnets, *address))
        .collect()
}

/// Below the root, host-local's default.
const HOST_LOCAL: &str = "var/lib/cni/networks";

#[cfg(test)]
mod tests {
    use super::*;

    fn subnets() -> Vec<IpNet> {
        vec!["10.1.0.0/29".parse().unwrap()]
    }

    fn record(container: &str, address: &str) -> Attachment {
        Attachment {
            container: container.to_owned(),
            ifname: "eth0".to_owned(),
            addresses: vec![address.parse().unwrap()],
            ..Attachment::default()
        }
    }

    #[test]
    fn host_locals_files_are_addresses_and_name_their_holder() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join(HOST_LOCAL).join("cbr0");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("10.1.0.3"), b"c7\r\neth0").unwrap();
        fs::write(directory.join("10.9.0.3"), b"c8\r\neth0").unwrap();
        fs::write(directory.join("last_reserved_ip.0"), b"10.1.0.4").unwrap();
        fs::write(directory.join("lock"), b"").unwrap();
        let taken = Taken {
            host_local: host_local(root.path(), &subnets()),
            ..Taken::default()
        };
        assert_eq!(
            taken.addresses(),
            HashSet::from(["10.1.0.3".parse().unwrap()])
        );
        let holder = taken.holder("10.1.0.3".parse().unwrap()).unwrap();
        assert!(
            holder.contains("host-local") && holder.contains("c7"),
            "{holder}"
        );
        assert!(host_local(Path::new("/nonexistent"), &subnets()).is_empty());
    }

    #[test]
    fn every_holder_is_counted_once_and_named() {
        let mut taken = Taken {
            kernel: ["10.1.0.2", "10.1.0.3", "10.1.0.6"]
                .map(|a| a.parse().unwrap())
                .into(),
            host_local: vec![("10.1.0.3".parse().unwrap(), PathBuf::new())],
            records: Vec::new(),
        };
        taken.add(record("c2", "10.1.0.2/32"));
        let text = taken.summary(&subnets());
        let expected = "held by 1 attachments of tartan-cni (the oldest: container c2, interface eth0), \
                        1 of host-local, 1 of other interfaces of this node";
        assert_eq!(text, expected);
        assert!(
            taken
                .holder("10.1.0.6".parse().unwrap())
                .unwrap()
                .contains("ip route get")
        );
        assert_eq!(taken.holder("10.1.0.5".parse().unwrap()), None);
    }
}
