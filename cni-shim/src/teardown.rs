//! Taking an attachment away, for ADD that fails, DEL and GC alike: first what
//! the interface would leave behind in the pod, then the interface, then the
//! addresses, then the record. While a link is there its record is there: an
//! address is never free while somebody can still use it.
//!
//! Another call for the same attachment that did not wait for us any more may
//! have been faster, and an ADD after that has a record of its own: what is
//! found then, under the same names, is left to it.

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
    if is_anothers(run, record) {
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
        // The record is the only note of whom they are from: it stays until they are given back. Of a plugin that is
        // not there and has given nothing as far as we know, nothing is to be had.
        return Ok(freed?);
    }
    if !is_anothers(run, record) {
        record.remove(run)?;
    }
    failpoint::after("record-removed")?;
    Ok(freed?)
}

/// Removes the rules in a pod that lives on, the interface, and what shapes its
/// traffic. What is not there is success; what cannot be removed keeps nothing
/// of the rest, and the first such is told.
pub(crate) fn remove_links(host: &mut Netlink, record: &Attachment) -> Result<(), Error> {
    // Before the interface: while that is there the agent leaves us the record, the only note of them.
    let rules = remove_rules(record);
    let interface = removal::remove(host, &record.host_ifname);
    let limiter = match &record.bandwidth {
        Some(_) => removal::remove(host, &record.limiter_ifname()),
        None => Ok(()),
    };
    rules.and(interface).and(limiter)
}

/// A pod that is gone, or a path that leads to another one, has none of ours.
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

fn is_anothers(run: &RunDir, record: &Attachment) -> bool {
    matches!(owner(run, record), Ok(Owner::Other))
}
