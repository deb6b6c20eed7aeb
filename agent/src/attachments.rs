//! The attachments that this node serves: the valid records of the run directory.
//!
//! Theory of operation. The plugin writes one record per pod interface. This module reads the records, adopts the
//! valid ones and returns a reason for each other one. A record is adopted as soon as it exists, before the
//! interface does: the plugin requests adoption before it marks the pod as attached. A record that a crash left
//! behind does no harm: the kernel answers for an address without a pod.
//!
//! When the node's subnets change, an address of an attachment may lie outside them. Such an address is
//! *stranded*: it stays listed, but peers send packets for it to another node, so `reconcile` neither delivers to
//! it nor accepts packets from it. Other addresses of the same pod are served as before.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use cni_shim::{Attachment, RunDir};
use ipnet::IpNet;

use crate::causes::causes;

/// The result of reading all records.
#[derive(Debug, Default)]
pub struct RecordScan {
    /// Attachments to serve, in the order of their file names. [`stranded`] lists addresses not to serve.
    pub adopted: Vec<Arc<Attachment>>,
    /// Records that cannot be served.
    pub refused: Vec<UnservedRecord>,
    /// Whether the directory could not be listed: then no record is known to be gone.
    pub is_unlisted: bool,
}

/// A record that cannot be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnservedRecord {
    /// The record, or the directory if that could not be listed.
    pub path: PathBuf,
    /// What is wrong and how to correct it: one sentence for the operator.
    pub reason: String,
}

/// Why a readable record cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum RecordFault {
    /// No address to deliver to.
    #[error("the record has no address: delete and recreate its pod")]
    NoAddress,
    /// A prefix instead of one address.
    #[error("{0} is not a single address: delete and recreate its pod")]
    NotOneAddress(IpNet),
    /// The address of the tunnel device.
    #[error("{0} is the address of the tunnel device: delete and recreate its pod")]
    Tunnel(IpAddr),
    /// An address that another record has too.
    #[error(
        "container {container} has the address {address} too: delete and recreate one of the two pods"
    )]
    Taken {
        /// The address.
        address: IpAddr,
        /// Container of the adopted record.
        container: String,
    },
}

/// The addresses of an attachment outside `subnets`, those of this node.
pub fn stranded(attachment: &Attachment, subnets: &[IpNet]) -> Vec<IpAddr> {
    let addresses = attachment.addresses.iter().map(IpNet::addr);
    addresses
        .filter(|address| !subnets.iter().any(|subnet| subnet.contains(address)))
        .collect()
}

/// `namespace/name` of an attachment's pod, if the runtime named it.
pub fn pod_name(attachment: &Attachment) -> Option<String> {
    let pod = attachment.pod.as_ref()?;
    Some(match pod.namespace.as_str() {
        "" => pod.name.clone(),
        namespace => format!("{namespace}/{}", pod.name),
    })
}

/// Reads every record in the run directory and adopts the valid ones. `subnets` are those of this node.
pub fn scan(run: &RunDir, subnets: &[IpNet]) -> RecordScan {
    let mut scan = RecordScan::default();
    let records = match cni_shim::list(run) {
        Ok(records) => records,
        Err(error) => {
            scan.is_unlisted = true;
            scan.refuse(run.attachments(), causes(&error));
            return scan;
        }
    };
    let mut holders: HashMap<IpAddr, String> = HashMap::new();
    for (path, record) in records {
        match record {
            Err(error) => scan.refuse(path, causes(&error)),
            Ok(attachment) => match check(&attachment, subnets, |address| {
                holders.get(&address).cloned()
            }) {
                Err(fault) => scan.refuse(path, fault.to_string()),
                Ok(()) => {
                    let held = attachment.addresses.iter().map(IpNet::addr);
                    holders.extend(held.map(|address| (address, attachment.container.clone())));
                    scan.adopted.push(Arc::new(attachment));
                }
            },
        }
    }
    scan
}

/// Reads one record again and updates `adopted`, the result of a scan that refused nothing. Returns false if the caller
/// must scan all records: this one cannot be served, or another one has an address of it.
pub fn rescan(
    run: &RunDir,
    subnets: &[IpNet],
    container: &str,
    ifname: &str,
    adopted: &mut Vec<Arc<Attachment>>,
) -> bool {
    let Ok(path) = Attachment::path(run, container, ifname) else {
        return false;
    };
    let read = Attachment::read(&path);
    let name = Attachment::file_name(container, ifname);
    let position =
        adopted.binary_search_by_key(&name, |a| Attachment::file_name(&a.container, &a.ifname));
    match (read, position) {
        (Err(error), position) if error.is_not_found() => {
            position.map(|known| adopted.remove(known)).ok();
            true
        }
        (Err(_), _) => false,
        (Ok(record), position) => {
            let other =
                |one: &&Arc<Attachment>| (&*one.container, &*one.ifname) != (container, ifname);
            let holder = |address| {
                let mut others = adopted.iter().filter(other);
                others
                    .find(|one| has_address(one, address))
                    .map(|one| one.container.clone())
            };
            if check(&record, subnets, holder).is_err() {
                return false;
            }
            match position {
                Ok(known) => adopted
                    .splice(known..=known, [Arc::new(record)])
                    .for_each(drop),
                Err(free) => adopted.insert(free, Arc::new(record)),
            }
            true
        }
    }
}

fn has_address(attachment: &Attachment, address: IpAddr) -> bool {
    attachment
        .addresses
        .iter()
        .any(|held| held.addr() == address)
}

impl RecordScan {
    fn refuse(&mut self, path: PathBuf, reason: String) {
        self.refused.push(UnservedRecord { path, reason });
    }
}

/// One invalid address refuses the whole record: a pod with some of its addresses is harder to diagnose than a pod
/// with none.
fn check(
    attachment: &Attachment,
    subnets: &[IpNet],
    holder: impl Fn(IpAddr) -> Option<String>,
) -> Result<(), RecordFault> {
    if attachment.addresses.is_empty() {
        return Err(RecordFault::NoAddress);
    }
    for prefix in &attachment.addresses {
        let address = prefix.addr();
        if prefix.prefix_len() != prefix.max_prefix_len() {
            return Err(RecordFault::NotOneAddress(*prefix));
        }
        if subnets.iter().any(|subnet| subnet.network() == address) {
            return Err(RecordFault::Tunnel(address));
        }
        if let Some(container) = holder(address) {
            return Err(RecordFault::Taken { address, container });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use cni_shim::attachment::State;

    use super::*;

    fn record(container: &str, addresses: &[&str]) -> Attachment {
        Attachment {
            version: Attachment::VERSION,
            network: "tartan".to_owned(),
            container: container.to_owned(),
            ifname: "eth0".to_owned(),
            netns: "/run/netns/pod".to_owned(),
            netns_inode: 1,
            host_ifname: "tt0".to_owned(),
            addresses: addresses
                .iter()
                .map(|address| address.parse().unwrap())
                .collect(),
            mac: "0a:00:00:00:00:01".to_owned(),
            pod: None,
            created: 0,
            state: State::Attached,
            ..Attachment::default()
        }
    }

    fn scanned(records: &[Attachment]) -> (Vec<String>, Vec<String>) {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::under(root.path());
        run.make().unwrap();
        records
            .iter()
            .for_each(|record| record.write(&run).unwrap());
        let subnets = [
            "10.244.1.0/24".parse().unwrap(),
            "fd00:1::/64".parse().unwrap(),
        ];
        let scan = scan(&run, &subnets);
        let adopted = scan
            .adopted
            .into_iter()
            .map(|attachment| attachment.container.clone())
            .collect();
        (
            adopted,
            scan.refused
                .into_iter()
                .map(|refused| refused.reason)
                .collect(),
        )
    }

    #[test]
    fn addresses_in_this_nodes_subnets_are_adopted() {
        let mut reserved = record("b", &["10.244.1.3/32", "fd00:1::3/128"]);
        reserved.state = State::Reserved;
        let (adopted, refused) = scanned(&[record("a", &["10.244.1.2/32"]), reserved]);
        assert_eq!(adopted, ["a", "b"]);
        assert!(refused.is_empty(), "{refused:?}");
    }

    #[test]
    fn an_invalid_record_is_refused_with_a_remedy() {
        let cases = [
            (&[][..], "has no address"),
            (&["10.244.1.0/24"], "10.244.1.0/24 is not a single address"),
            (
                &["10.244.1.0/32"],
                "10.244.1.0 is the address of the tunnel device",
            ),
        ];
        for (addresses, expected) in cases {
            let (adopted, refused) =
                scanned(&[record("a", addresses), record("z", &["10.244.1.9/32"])]);
            assert_eq!(
                adopted,
                ["z"],
                "the other records are served: {addresses:?}"
            );
            assert!(
                refused[0].contains(expected) && refused[0].contains("recreate"),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn an_address_outside_this_nodes_subnets_is_stranded_and_listed() {
        let subnets = [
            "10.244.1.0/24".parse().unwrap(),
            "fd00:1::/64".parse().unwrap(),
        ];
        let of = |addresses: &[&str]| stranded(&record("a", addresses), &subnets);
        assert!(of(&["10.244.1.2/32", "fd00:1::2/128"]).is_empty());
        let half = ["10.244.1.2/32", "fd00:2::2/128"];
        assert_eq!(of(&half), ["fd00:2::2".parse::<IpAddr>().unwrap()]);
        assert_eq!(of(&["10.244.2.2/32", "10.99.0.2/32"]).len(), 2);
        let (adopted, refused) = scanned(&[record("a", &half), record("b", &["10.244.2.2/32"])]);
        assert_eq!(adopted, ["a", "b"]);
        assert!(refused.is_empty(), "{refused:?}");
    }

    #[test]
    fn of_two_records_with_one_address_the_first_is_served() {
        let (adopted, refused) = scanned(&[
            record("b", &["10.244.1.2/32"]),
            record("a", &["10.244.1.2/32"]),
        ]);
        assert_eq!(adopted, ["a"]);
        assert!(
            refused[0].contains("container a has the address 10.244.1.2 too"),
            "{refused:?}"
        );
    }

    /// Scans `before`, replaces the records by `now` and rescans one. Returns whether that sufficed, and what is adopted.
    fn rescanned(
        before: &[Attachment],
        now: &[Attachment],
        container: &str,
    ) -> (bool, Vec<String>) {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::under(root.path());
        run.make().unwrap();
        let subnets = ["10.244.1.0/24".parse().unwrap()];
        before.iter().for_each(|record| record.write(&run).unwrap());
        let mut adopted = scan(&run, &subnets).adopted;
        before
            .iter()
            .for_each(|record| record.remove(&run).unwrap());
        now.iter().for_each(|record| record.write(&run).unwrap());
        let alone = rescan(&run, &subnets, container, "eth0", &mut adopted);
        let served = adopted
            .into_iter()
            .map(|a| format!("{} {}", a.container, a.addresses[0].addr()));
        (alone, served.collect())
    }

    #[test]
    fn one_record_is_read_again_alone() {
        let [a, b, c] = [("a", 2), ("b", 3), ("c", 4)]
            .map(|(name, last)| record(name, &[&format!("10.244.1.{last}/32")]));
        let moved = record("b", &["10.244.1.9/32"]);
        let before = [a.clone(), c.clone()];
        let all = ["a 10.244.1.2", "b 10.244.1.3", "c 10.244.1.4"].map(str::to_owned);
        let (alone, served) = rescanned(&before, &[a.clone(), b.clone(), c.clone()], "b");
        assert!(
            alone && served == all,
            "a new record, at its position: {served:?}"
        );
        let before = [a.clone(), b.clone(), c.clone()];
        let (alone, served) = rescanned(&before, &[a.clone(), moved.clone(), c.clone()], "b");
        assert!(
            alone && served[1] == "b 10.244.1.9",
            "a changed record: {served:?}"
        );
        let (alone, served) = rescanned(&before, &[a.clone(), c.clone()], "b");
        assert!(
            alone && served == [&*all[0], &*all[2]],
            "a removed record: {served:?}"
        );
        let (alone, served) = rescanned(&before, &[c], "b");
        assert!(
            alone && served == [&*all[0], &*all[2]],
            "other records are not read: {served:?}"
        );
    }

    #[test]
    fn a_record_that_cannot_be_served_needs_a_scan_of_all() {
        let before = [record("a", &["10.244.1.2/32"])];
        let twice = record("b", &["10.244.1.2/32"]);
        let tunnel = record("b", &["10.244.1.0/32"]);
        for other in [twice, tunnel, record("b", &[])] {
            let now = [before[0].clone(), other];
            let (alone, served) = rescanned(&before, &now, "b");
            assert!(!alone && served == ["a 10.244.1.2"], "{served:?}");
        }
        assert!(!rescanned(&before, &before, "../b").0);
    }

    #[test]
    fn a_malformed_record_is_refused_and_a_missing_directory_is_empty() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::under(root.path());
        let nothing = scan(&run, &[]);
        assert!(nothing.adopted.is_empty() && nothing.refused.is_empty());
        run.make().unwrap();
        let path = run.attachments().join("a:eth0.json");
        std::fs::write(&path, "{").unwrap();
        let garbage = scan(&run, &[]);
        assert_eq!(garbage.refused[0].path, path);
        assert!(
            garbage.refused[0]
                .reason
                .contains("is no attachment record"),
            "{garbage:?}"
        );
    }

    #[test]
    fn a_directory_that_cannot_be_listed_is_named() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::under(root.path());
        std::fs::create_dir_all(run.path()).unwrap();
        std::fs::write(run.attachments(), "").unwrap();
        let scan = scan(&run, &[]);
        assert_eq!(scan.refused[0].path, run.attachments());
        assert!(scan.refused[0].reason.contains("cannot read"), "{scan:?}");
    }
}
