//! DEL: detach a pod.
//!
//! Whatever is missing (the namespace, the record, the link, the agent) is
//! success; DEL may come twice, late, or without any ADD. The link goes
//! first, by the name of its host's end, so a namespace path that was given
//! to another pod meanwhile harms nobody. The record goes only when the link
//! is gone: an address is never free while somebody can still use it.

use std::io;

use cni_shim::{Attachment, RunDir, attachment};

use crate::agent::{self, Call};
use crate::error::Error;
use crate::link_name;
use crate::net_conf::NetConf;
use crate::netlink::Netlink;
use crate::request::Key;
use crate::veth;

/// Serves DEL.
pub(crate) fn delete(key: &Key, conf: &NetConf) -> Result<(), Error> {
    let run = RunDir::under(&conf.root);
    let path = Attachment::path(&run, &key.container, &key.ifname)?;
    let mut host = Netlink::open()?;
    let recorded = match Attachment::read(&path) {
        Ok(record) => {
            if record.bandwidth.is_some() {
                veth::remove(&mut host, &record.limiter_ifname())?;
            }
            Some(record.host_ifname)
        }
        Err(attachment::Error::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            unclaimed_name(&run, key, conf)
        }
        Err(error) => {
            eprintln!("tartan-cni: clearing an unreadable record: {error}");
            unclaimed_name(&run, key, conf)
        }
    };
    if let Some(host_ifname) = recorded {
        veth::remove(&mut host, &host_ifname)?;
    }
    attachment::remove(&path)?;
    agent::tell(&run.socket(), Call::release(key));
    Ok(())
}

/// The name the link would have, unless a record says that it is another's.
fn unclaimed_name(run: &RunDir, key: &Key, conf: &NetConf) -> Option<String> {
    let name = link_name::host_ifname(&conf.name, key, 0);
    let claimed = attachment::list(run)
        .unwrap_or_default()
        .iter()
        .any(|(_, record)| {
            record
                .as_ref()
                .is_ok_and(|record| record.host_ifname == name)
        });
    (!claimed).then_some(name)
}
