//! Taking an attachment away, for ADD that fails, DEL and GC alike: first the
//! interface, then what it leaves behind in the pod, then the addresses, then
//! the record. While a link is there its record is there: an address is never
//! free while somebody can still use it.
//!
//! An interface is gone a millisecond after the kernel was told to remove it,
//! but whoever told it waits for two RCU grace periods, ten times as long and
//! more, until its memory can be given back. So the agent is asked to tell it,
//! which has somebody to do the waiting. Without an agent, or with one that is
//! late, we do it ourselves; and whatever the agent did, we see that it is done.
//! Nor is it asked where every core is taken: what asking costs others then is
//! more than what it saves us.

use std::time::{Duration, Instant};

use cni_shim::netlink::Netlink;
use cni_shim::protocol::request::SearchPath;
use cni_shim::protocol::{Key, NetConf};
use cni_shim::{Attachment, RunDir, range};

use crate::agent::{self, Call};
use crate::delegate::Delegate;
use crate::error::Error;
use crate::fault;
use crate::netns::Netns;
use crate::veth;

/// Removes everything of `record`, the record last.
pub(crate) fn remove(
    host: &mut Netlink,
    run: &RunDir,
    record: &Attachment,
    path: &SearchPath,
    conf: &NetConf,
) -> Result<(), Error> {
    remove_links(host, run, record)?;
    fault::after("link-removed")?;
    let freed = match &record.ipam {
        Some(kind) => Delegate::find(kind, path, conf).and_then(|delegate| {
            let (container, ifname) = (record.container.clone(), record.ifname.clone());
            delegate.delete(&Key { container, ifname })
        }),
        None => {
            range::release(run, &record.addresses);
            Ok(())
        }
    };
    fault::after("ipam-freed")?;
    if let Err(error) = &freed
        && !(record.addresses.is_empty() && error.is_not_found())
    {
        // The record is the only note of whom they are from: it stays until they are given back. Of a plugin that is
        // not there and has given nothing as far as we know, nothing is to be had.
        return Ok(freed?);
    }
    record.remove(run)?;
    fault::after("record-removed")?;
    Ok(freed?)
}

/// Removes the interface, what shapes its traffic, and the rules in a pod that
/// lives on. What is not there is success.
pub(crate) fn remove_links(
    host: &mut Netlink,
    run: &RunDir,
    record: &Attachment,
) -> Result<(), Error> {
    remove_link(host, run, record, &record.host_ifname)?;
    if record.bandwidth.is_some() {
        remove_link(host, run, record, &record.limiter_ifname())?;
    }
    if record.table.is_some() {
        // A pod that is gone, or a path that leads to another one, has none
        // of our rules.
        if let Ok((netns, mut pod)) = Netns::open(&record.netns)
            && netns.inode() == record.netns_inode
        {
            veth::remove_rules(&mut pod, record)?;
        }
    }
    Ok(())
}

fn remove_link(
    host: &mut Netlink,
    run: &RunDir,
    record: &Attachment,
    name: &str,
) -> Result<(), Error> {
    // By its index: no later interface has it, however late the agent is.
    if is_a_core_free()
        && let Some(link) = host.link(name)?
    {
        let call = Call::Detach {
            container: &record.container,
            ifname: &record.ifname,
            index: link.index,
        };
        if agent::ask(&run.socket(), call) {
            wait_until_gone(host, name)?;
        }
    }
    // Answered under the kernel's own lock, so what it finds gone is gone with its addresses and routes.
    Ok(veth::remove(host, name)?)
}

/// Whether no more tasks want to run, ourselves among them, than we have cores.
fn is_a_core_free() -> bool {
    let cores = rustix::thread::sched_getaffinity(None);
    let loads = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    cores.is_ok_and(|cores| running(&loads).is_some_and(|running| running <= cores.count()))
}

/// The fourth field of proc_loadavg(5) begins with it: `0.20 0.18 0.12 1/80 11206`.
fn running(loads: &str) -> Option<u32> {
    let tasks = loads.split_whitespace().nth(3)?;
    tasks.split_once('/')?.0.parse().ok()
}

/// Waits until there is no interface of that name, for at most [`GONE_WAIT`].
fn wait_until_gone(host: &mut Netlink, name: &str) -> Result<(), Error> {
    let deadline = Instant::now() + GONE_WAIT;
    while host.link(name)?.is_some() && Instant::now() < deadline {
        std::thread::sleep(GONE_STEP);
    }
    Ok(())
}

/// Longer than the agent takes to begin, and no longer than doing it ourselves takes.
const GONE_WAIT: Duration = Duration::from_millis(20);
const GONE_STEP: Duration = Duration::from_micros(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tasks_that_run_are_read_and_nonsense_is_not() {
        assert_eq!(running("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        for nonsense in ["", "0.20 0.18 0.12", "a b c d/e f", "0 0 0 7 1"] {
            assert_eq!(running(nonsense), None, "{nonsense}");
        }
        let loads = std::fs::read_to_string("/proc/loadavg").unwrap();
        assert!(running(&loads).unwrap() >= 1, "{loads}");
    }
}
