//! The attachments that this node serves: what the directory of records holds, less what cannot be right.
//!
//! A record counts from the moment it is written, whether its interface stands already or not: the plugin asks
//! for adoption before it notes that the pod is attached, and a record left by a crash only makes the kernel
//! answer for an address that nobody holds.
//!
//! An attachment may outlive the subnet that its address is of: then it is *stranded*. It stays listed, but peers
//! send that address elsewhere, so nothing is delivered to it and nothing is taken from it (`reconcile` leaves it
//! out). Another address of the same pod that still fits is served on.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use cni_shim::{Attachment, RunDir};
use ipnet::IpNet;

/// What one look at the directory found.
#[derive(Debug, Default)]
pub struct RecordScan {
    /// Attachments to serve, in the order of their files' names; [`stranded`] says what of them cannot be.
    pub adopted: Vec<Arc<Attachment>>,
    /// Records that are not served.
    pub refused: Vec<UnservedRecord>,
}

/// A record that is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnservedRecord {
    /// The record, or the directory where that could not be listed.
    pub path: PathBuf,
    /// Why, and what would mend it: one sentence for people.
    pub reason: String,
}

/// Why a readable record is not served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordFault {
    /// Nothing to deliver to.
    #[error("it holds no address: delete and recreate its pod")]
    NoAddress,
    /// A prefix where one address belongs.
    #[error("{0} is not a single address: delete and recreate its pod")]
    NotOneAddress(IpNet),
    /// The tunnel device's own address.
    #[error("{0} is the address of the tunnel device: delete and recreate its pod")]
    Tunnel(IpAddr),
    /// An address that another record holds too.
    #[error(
        "{address} is held by container {container} too: delete and recreate one of the two pods"
    )]
    Taken {
        /// The address.
        address: IpAddr,
        /// Container of the record that is served.
        container: String,
    },
}

/// The addresses of an attachment that lie in none of `subnets`, our own.
pub fn stranded(attachment: &Attachment, subnets: &[IpNet]) -> Vec<IpAddr> {
    let addresses = attachment.addresses.iter().map(IpNet::addr);
    addresses
        .filter(|address| !subnets.iter().any(|subnet| subnet.contains(address)))
        .collect()
}

/// `namespace/name` of an attachment's pod, where the runtime named it.
pub fn pod_name(attachment: &Attachment) -> Option<String> {
    let pod = attachment.pod.as_ref()?;
    Some(match pod.namespace.as_str() {
        "" => pod.name.clone(),
        namespace => format!("{namespace}/{}", pod.name),
    })
}

/// Reads every record in the run directory and adopts those that fit `subnets`, our own.
pub fn scan(run: &RunDir, subnets: &[IpNet]) -> RecordScan {
    let mut scan = RecordScan::default();
    let records = match cni_shim::list(run) {
        Ok(records) => records,
        Err(error) => {
            scan.refuse(run.attachments(), with_source(&error));
            return scan;
        }
    };
    let mut holders: HashMap<IpAddr, String> = HashMap::new();
    for (path, record) in records {
        match record {
            Err(error) => scan.refuse(path, with_source(&error)),
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

/// Reads one record again, `adopted` being what a scan that refused nothing found. False where only another scan can tell:
/// the record cannot be served, or another holds an address of it.
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
    let place =
        adopted.binary_search_by_key(&name, |a| Attachment::file_name(&a.container, &a.ifname));
    match (read, place) {
        (Err(error), place) if error.is_not_found() => {
            place.map(|known| adopted.remove(known)).ok();
            true
        }
        (Err(_), _) => false,
        (Ok(record), place) => {
            let other =
                |one: &&Arc<Attachment>| (&*one.container, &*one.ifname) != (container, ifname);
            let holder = |address| {
                let mut others = adopted.iter().filter(other);
                others
                    .find(|one| holds(one, address))
                    .map(|one| one.container.clone())
            };
            if check(&record, subnets, holder).is_err() {
                return false;
            }
            match place {
                Ok(known) => adopted
                    .splice(known..=known, [Arc::new(record)])
                    .for_each(drop),
                Err(free) => adopted.insert(free, Arc::new(record)),
            }
            true
        }
    }
}

fn holds(attachment: &Attachment, address: IpAddr) -> bool {
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

/// One bad address spoils the record: half a pod would be harder to understand than none.
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

fn with_source(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error} ({source})"),
        None => error.to_string(),
    }
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
            .map(|attachment| attachment.container)
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
    fn what_fits_our_subnets_is_adopted() {
        let mut reserved = record("b", &["10.244.1.3/32", "fd00:1::3/128"]);
        reserved.state = State::Reserved;
        let (adopted, refused) = scanned(&[record("a", &["10.244.1.2/32"]), reserved]);
        assert_eq!(adopted, ["a", "b"]);
        assert!(refused.is_empty(), "{refused:?}");
    }

    #[test]
    fn what_does_not_fit_is_refused_with_a_remedy() {
        let cases = [
            (&[][..], "holds no address"),
            (&["10.244.1.0/24"], "10.244.1.0/24 is not a single address"),
            (
                &["10.244.1.0/32"],
                "10.244.1.0 is the address of the tunnel device",
            ),
        ];
        for (addresses, expected) in cases {
            let (adopted, refused) =
                scanned(&[record("a", addresses), record("z", &["10.244.1.9/32"])]);
            assert_eq!(adopted, ["z"], "the others are served: {addresses:?}");
            assert!(
                refused[0].contains(expected) && refused[0].contains("recreate"),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn what_lies_in_no_subnet_of_ours_is_stranded_and_listed() {
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
    fn of_two_with_one_address_the_first_is_served() {
        let (adopted, refused) = scanned(&[
            record("b", &["10.244.1.2/32"]),
            record("a", &["10.244.1.2/32"]),
        ]);
        assert_eq!(adopted, ["a"]);
        assert!(
            refused[0].contains("10.244.1.2 is held by container a too"),
            "{refused:?}"
        );
    }

    /// Whether one record of `now` can be read again alone, and what is adopted then; `before` is what was scanned.
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
            "a new one, in its place: {served:?}"
        );
        let before = [a.clone(), b.clone(), c.clone()];
        let (alone, served) = rescanned(&before, &[a.clone(), moved.clone(), c.clone()], "b");
        assert!(
            alone && served[1] == "b 10.244.1.9",
            "a changed one: {served:?}"
        );
        let (alone, served) = rescanned(&before, &[a.clone(), c.clone()], "b");
        assert!(
            alone && served == [&*all[0], &*all[2]],
            "one that is gone: {served:?}"
        );
        let (alone, served) = rescanned(&before, &[c], "b");
        assert!(
            alone && served == [&*all[0], &*all[2]],
            "and no other is looked for: {served:?}"
        );
    }

    #[test]
    fn what_one_record_alone_cannot_tell_is_left_to_a_scan() {
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
    fn a_garbage_record_is_refused_and_no_directory_is_no_attachment() {
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
