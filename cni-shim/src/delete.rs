//! DEL: detach a pod.
//!
//! Whatever is missing (the namespace, the record, the link, the agent, a
//! usable configuration) is success; DEL may come twice, late, or without any
//! ADD. The link is found by its host's end, so a namespace path that was given
//! to another pod since does no harm; and by that one's own name and alias, so
//! neither does a damaged record ([`crate::end`]).
//!
//! DEL waits for an ADD of the same attachment that is still at work, and removes
//! what that ADD made.

use cni_shim::api::Request;
use cni_shim::attachment::Lock;
use cni_shim::protocol::request::Target;
use cni_shim::protocol::{AttachmentKey, NetConf};
use cni_shim::{Attachment, RunDir, attachment, link_name};

use crate::agent;
use crate::delegate::Delegate;
use crate::end;
use crate::error::Error;
use crate::failpoint;
use crate::netlink::Netlink;
use crate::owner;
use crate::teardown;

/// Serves DEL.
pub(crate) fn delete(target: &Target, conf: &NetConf) -> Result<(), Error> {
    let run = RunDir::under(&conf.root);
    let key = &target.key;
    let path = Attachment::path(&run, &key.container, &key.ifname)?;
    let mut host = Netlink::open()?;
    let lock = owner::lock_or_seize(&run, key);
    match Attachment::read(&path) {
        Ok(record) => teardown::remove(&mut host, &run, &record, &target.path, conf, &lock)?,
        Err(error) => {
            remove_unrecorded(&mut host, &run, key, conf)?;
            failpoint::after("link-removed")?;
            if !error.is_not_found() {
                let aside = attachment::set_aside(&path)?;
                eprintln!("tartan-cni: {error}; set aside as {}", aside.display());
            }
            free_by_delegate(target, conf, &lock)?;
            attachment::remove(&path)?;
        }
    }
    agent::notify(&run, &Request::release(key));
    Ok(())
}

/// Removes what an ADD of this attachment made, by name and alias.
fn remove_unrecorded(
    host: &mut Netlink,
    run: &RunDir,
    key: &AttachmentKey,
    conf: &NetConf,
) -> Result<(), Error> {
    let mut ends = end::find(host, key, &[&conf.name], None)?;
    if ends.iter().any(|end| end.alias.is_empty()) {
        // Of those only the name says whose they are, and names can collide.
        let records = attachment::list(run).unwrap_or_default();
        let records = records
            .iter()
            .filter_map(|(_, record)| record.as_ref().ok());
        let claimed: Vec<&str> = records.map(|record| &*record.host_ifname).collect();
        ends.retain(|end| !end.alias.is_empty() || !claimed.contains(&&*end.name));
    }
    end::remove_at_once(host, &ends)?;
    if ends.is_empty() {
        let name = link_name::host_ifname(&conf.name, key, 0);
        if host.link(&name)?.is_none() {
            end::remove_limiter(host, &name)?;
        }
    }
    Ok(())
}

/// Asks the IPAM plugin to free what it may hold although no record says so: the
/// ADD was killed before, or the record was lost.
fn free_by_delegate(target: &Target, conf: &NetConf, lock: &Lock) -> Result<(), Error> {
    let Some(kind) = &conf.ipam else {
        return Ok(());
    };
    match Delegate::find(kind, &target.path, conf) {
        Ok(delegate) => Ok(delegate.delete(&target.key, lock)?),
        Err(missing) => {
            // Perhaps there was no ADD at all: the pod must not stay because of that.
            eprintln!("tartan-cni: {missing}");
            Ok(())
        }
    }
}
