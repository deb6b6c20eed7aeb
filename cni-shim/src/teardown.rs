//! Removes an attachment, for a failed ADD, DEL and GC: first what the interface
//! would leave behind in the pod, then the interface, then the addresses, then the
//! record. A link never outlives its record, so an address is never free while a
//! pod can still use it.
//!
//! Another call for the same attachment that stopped waiting for us may have
//! removed it already, and a later ADD may have written a record of its own: then
//! what is found under the same names is left to that ADD.

use cni_shim::attachment::Lock;
use cni_shim::protocol::request::SearchPath;
use cni_shim::protocol::{AttachmentKey, NetConf};
use cni_shim::{Attachment, RunDir, pod_end, range};

use crate::delegate::Delegate;
use crate::end;
use crate::error::Error;
use crate::failpoint;
use crate::netlink::{Link, Netlink};
use crate::netns::Netns;
use crate::owner::{Owner, owner};
use crate::removal;
use crate::veth;

/// Removes everything of `record`, the record last.
pub(crate) fn remove(
    host: &mut Netlink,
    run: &RunDir,
    record: &Attachment,
    path: &SearchPath,
    conf: &NetConf,
    lock: &Lock,
) -> Result<(), Error> {
    remove_links(host, record, &conf.name)?;
    failpoint::after("link-removed")?;
    if is_of_another_add(run, record) {
        return Ok(());
    }
    let freed = match &record.ipam {
        Some(kind) => Delegate::find(kind, path, conf).and_then(|delegate| {
            let (container, ifname) = (record.container.clone(), record.ifname.clone());
            delegate.delete(&AttachmentKey { container, ifname }, lock)
        }),
        None => {
            range::release(run, &record.addresses);
            Ok(())
        }
    };
    failpoint::after("ipam-freed")?;
    if let Err(error) = &freed
        && !(record.addresses.is_empty() && error.is_not_found())
    {
        // Only the record says which plugin gave the addresses: it stays until they are given back. A plugin that does
        // not exist, and of which the record holds no address, has nothing to give back.
        return Ok(freed?);
    }
    if !is_of_another_add(run, record) {
        record.remove(run)?;
    }
    failpoint::after("record-removed")?;
    Ok(freed?)
}

/// Removes the rules in a pod that lives on, the interface, and what shapes its
/// traffic. What is not there is success; an error stops
/// nothing, and the first one is returned. A record may be damaged: what it names and is not the attachment's stays.
pub(crate) fn remove_links(
    host: &mut Netlink,
    record: &Attachment,
    network: &str,
) -> Result<(), Error> {
    let (container, ifname) = (record.container.clone(), record.ifname.clone());
    let key = AttachmentKey { container, ifname };
    let networks = [network, &record.network];
    let ends = end::find(host, &key, &networks, Some(&record.host_ifname))?;
    // Before the interface: while that exists the agent does not remove the record, which alone names the rules.
    let mut done = remove_rules(record, &ends);
    for end in &ends {
        done = done.and(removal::remove(host, end));
    }
    if record.bandwidth.is_some() {
        let mut limited: Vec<&str> = ends.iter().map(|end| &*end.name).collect();
        // The interface may be gone already; a name that is no other attachment's names its limiter.
        let of = |network: &&str| pod_end::is_named_for(&record.host_ifname, &key, network);
        if ends.is_empty() && networks.iter().any(of) {
            limited.push(&record.host_ifname);
        }
        for end in limited {
            done = done.and(end::remove_limiter(host, end));
        }
    }
    done
}

/// A pod that is gone, or another pod at that path, has no rule of ours.
fn remove_rules(record: &Attachment, ends: &[Link]) -> Result<(), Error> {
    if record.table.is_some()
        && let Ok((netns, mut pod)) = Netns::open(&record.netns)
        && netns.inode() == record.netns_inode
    {
        let interface = pod.links()?.into_iter().find(|link| {
            let is_other_end =
                |end: &Link| end.peer == Some(link.index) && link.peer == Some(end.index);
            link.name == record.ifname && ends.iter().any(is_other_end)
        });
        veth::remove_rules(&mut pod, record, interface.map(|link| link.index))?;
        failpoint::after("rules-removed")?;
    }
    Ok(())
}

fn is_of_another_add(run: &RunDir, record: &Attachment) -> bool {
    matches!(owner(run, record), Ok(Owner::Other))
}
