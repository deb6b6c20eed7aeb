//! The removal of one interface of a pod.
//!
//! Theory of operation. An interface is gone a millisecond after the request to
//! remove it, but the process that made the request waits for two RCU grace periods,
//! ten times as long and more, until its memory can be given back. A runtime need
//! not wait so long, so a process of its own does: this program, started with
//! [`WORD`], makes the one request and ends. We go on when the interface is
//! gone, and init reaps the other.
//!
//! It is a process of its own because the wait may have no end. A
//! kernel that has lost count of an interface's users (`netdev_wait_allrefs_any`
//! in net/core/dev.c) waits for them for ever, where no signal reaches, and the
//! waiting process keeps all its descriptors and locks: were it the agent, the node would
//! have no overlay until it is rebooted. This one holds nothing but a netlink
//! socket.
//!
//! To start it costs time of a core. Where every core is taken that is more than
//! it saves, and we make the request ourselves, as we do where it cannot be
//! started or is late.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::failpoint;
use crate::netlink::{self, Link, Netlink};

/// Removes the interface, which is gone afterwards with its addresses and routes. One that is gone is success, and another
/// of its name stays.
pub(crate) fn remove(host: &mut Netlink, link: &Link) -> Result<(), Error> {
    if (is_a_core_free() || failpoint::is_set(BEGUN))
        && let Ok(mut child) = begin(link.index, &link.name)
    {
        failpoint::after(BEGUN)?;
        wait_until_gone(host, &link.name, link.index, &mut child);
    }
    // By its index: a later interface may have the name by now, but none has the index.
    Ok(host.remove_link(link.index)?)
}

/// Serves as the process that waits; none where the arguments do not say so.
/// `WORD INDEX NAME` removes the interface of that index if it has that name.
pub(crate) fn serve(mut arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    if arguments.next()? != WORD {
        return None;
    }
    let index = arguments.next().and_then(|i| i.to_str()?.parse().ok());
    let name = arguments.next().and_then(|name| name.into_string().ok());
    let (Some(index), Some(name)) = (index, name) else {
        eprintln!("tartan-cni: the plugin calls {WORD} itself, with an index and a name");
        return Some(ExitCode::FAILURE);
    };
    Some(match remove_if_named(index, &name) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tartan-cni: {error}");
            ExitCode::FAILURE
        }
    })
}

fn remove_if_named(index: u32, name: &str) -> Result<(), netlink::Error> {
    let mut host = Netlink::open()?;
    match host.link(name)? {
        Some(link) if link.index == index => host.remove_link(index),
        _ => Ok(()),
    }
}

/// Starts the process that waits. Of ours it has nothing: neither what the
/// runtime reads until it is closed, nor its process group, nor a directory.
fn begin(index: u32, name: &str) -> io::Result<Child> {
    Command::new(OURSELVES)
        .arg0("tartan-cni")
        .args([WORD, &index.to_string(), name])
        .env_clear()
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

/// Waits until that interface is gone, for at most [`GONE_WAIT`] and while
/// the other process runs.
fn wait_until_gone(host: &mut Netlink, name: &str, index: u32, child: &mut Child) {
    let deadline = Instant::now() + GONE_WAIT;
    while Instant::now() < deadline && matches!(child.try_wait(), Ok(None)) {
        match host.link(name) {
            Ok(Some(link)) if link.index == index => std::thread::sleep(GONE_STEP),
            _ => return,
        }
    }
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

/// What the first argument of the process that waits is.
const WORD: &str = "remove-link";

/// The program that runs, even where it was exchanged since.
const OURSELVES: &str = "/proc/self/exe";

/// The fail point after which the other process runs.
const BEGUN: &str = "removal-begun";

/// Longer than the other takes to begin, and no longer than doing it ourselves takes.
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
