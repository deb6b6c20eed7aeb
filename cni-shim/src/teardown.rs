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
use cni_shim::{Attachment, RunDir, range};

use crate::delegate::Delegate;
use crate::error::Error;
use crate::failpoint;
use crate::netlink::Netlink;
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
    remove_links(host, record)?;
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
/// nothing, and the first one is returned.
pub(crate) fn remove_links(host: &mut Netlink, record: &Attachment) -> Result<(), Error> {
    // Before the interface: while that exists the agent does not remove the record, which alone names the rules.
    let rules = remove_rules(record);
    let interface = removal::remove(host, &record.host_ifname);
    let limiter = match &record.bandwidth {
        Some(_) => removal::remove(host, &record.limiter_ifname()),
        None => Ok(()),
    };
    rules.and(interface).and(limiter)
}

/// A pod that is gone, or another pod at that path, has no rule of ours.
fn remove_rules(record: &Attachment) -> Result<(), Error> {
    if record.table.is_some()
        && let Ok((netns, mut pod)) = Netns::open(&record.netns)
        && netns.inode() == record.netns_inode
    {
        veth::remove_rules(&mut pod, record)?;
        failpoint::after("rules-removed")?;
    }
    Ok(())
}

fn is_of_another_add(run: &RunDir, record: &Attachment) -> bool {
    matches!(owner(run, record), Ok(Owner::Other))
}
