//! Theory of operation
//!
//! Removes what an agent left on the node, whether it was stopped, killed or
//! removed long ago; no agent is needed. An agent that still runs would put
//! everything back, so stop it first. While a process holds the device, nothing
//! is touched: an agent with another root may run here.
//!
//! Order: programs and VXLAN device of the kernel path, the device (its addresses and routes go with it) and any other that
//! an agent left under another name, routes that carry
//! our protocol number, limiters of pods that are gone, nft rules, settings,
//! files. Each step is tried even if others failed; the returned list has an
//! outcome for each trace found.
//!
//! The record of settings names its network namespace. In another one nothing is
//! touched: the traces here may be another node's. The record is removed only
//! when every setting on it is restored or left alone on purpose, so that a
//! clean-up that failed can be repeated.
//!
//! Four things stay on purpose, and are listed with the reason. A setting that
//! another process changed after us is left as it is. Where another process, a
//! flanneld, has written `subnet.env` since, pods of its own depend on that file
//! and on forwarding, which both stay; so they do where Tartan gives flannel's place
//! back. The limiter of a pod that
//! still runs goes with the pod, which would be cut off without it. Attachment
//! records stay, with their directory: they belong to pods that still run, and
//! `tartan-cni` DEL, which works without an agent, reads the address to free
//! from them.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cni_shim::{RunDir, pod_end};
use dataplane::kernel_path::Pins;
use tokio::time::sleep;

use super::Netlink;
use super::error::HostError;
use super::firewall;
use super::flannel_place;
use super::gathered::GatheredEnd;
use super::idle_device;
use super::kernel_path;
use super::leftovers::{SET_ASIDE, is_vxlan};
use super::net::links::{self, Link};
use super::net::pod_links::{self, remove_orphaned_limiter};
use super::net::routes;
use super::settings::record::{self, RecordOnDisk, RecordedChange, Scope, SettingsRecord};
use super::settings::setting::Setting;
use super::subnet_env::{self, Cleared};
use crate::cni;
use crate::gathering::end;

/// Where an agent leaves traces.
#[derive(Clone, Debug)]
pub struct Traces {
    /// Name of its device.
    pub device: String,
    /// Its run directory.
    pub run_dir: RunDir,
    /// Its state directory.
    pub state_dir: PathBuf,
    /// Where it writes `subnet.env`.
    pub subnet_file: PathBuf,
    /// Where programs and tables of its kernel path are pinned.
    pub pins: Pins,
    /// It took flannel's place, and gives it back: `subnet.env` stays, and forwarding.
    pub for_flannel: bool,
}

/// What became of one trace. Its `Display` is a line for people, without a remedy.
#[derive(Debug)]
pub enum Outcome {
    /// It is gone; a setting: it has its old value.
    Removed(String),
    /// It was left alone on purpose.
    Kept {
        /// The thing.
        what: String,
        /// The reason.
        why: String,
    },
    /// It could not be removed, or not even looked for.
    Failed {
        /// The thing.
        what: String,
        /// Why.
        error: HostError,
    },
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Removed(what) => write!(f, "removed {what}"),
            Outcome::Kept { what, why } => write!(f, "kept {what}: {why}"),
            Outcome::Failed { what, error } => write!(f, "failed on {what}: {error}"),
        }
    }
}

/// Removes every trace an agent left in the calling thread's network namespace
/// and in its directories. An empty list: there was none.
///
/// # Panics
/// Outside a tokio runtime with I/O enabled.
pub async fn cleanup(traces: &Traces) -> Vec<Outcome> {
    let mut list = Outcomes::default();
    let record = Scope::here().and_then(|here| SettingsRecord::read(&traces.state_dir, &here));
    if let Ok(RecordOnDisk::OtherNamespace(namespace)) = record {
        let path = traces.state_dir.join(record::NAME);
        let error = HostError::OtherNamespace { path, namespace };
        list.failed("all of it", error);
        return list.outcomes;
    }
    match Netlink::open() {
        Ok(netlink) => {
            if let Some(error) = held_for_long(&netlink, &traces.device).await {
                list.failed("all of it", error);
                return list.outcomes;
            }
            remove_kernel_path(&netlink, traces, &mut list).await;
            remove_device(&netlink, &traces.device, &mut list).await;
            remove_idle_devices(&netlink, &mut list).await;
            remove_set_aside(&netlink, &mut list).await;
            remove_routes(&netlink, &traces.device, &mut list).await;
            remove_limiters(&netlink, &mut list).await;
            remove_napi_threads(&netlink, record.as_ref().ok(), &mut list).await;
        }
        Err(error) => list.failed("the device and the routes", error),
    }
    for (what, gone) in firewall::clear().await {
        list.done(what, gone);
    }
    let subnet_file = subnet_env::clear(&traces.state_dir, traces.for_flannel);
    let successor = match &subnet_file {
        Cleared::Foreign(path) | Cleared::KeptForFlannel(path) => Some(path.clone()),
        _ => None,
    };
    let settled = restore_settings(record, successor.as_deref(), &mut list);
    let cleared = report_subnet_file(subnet_file, &mut list);
    let keep = [
        (settled, record::NAME),
        (cleared, subnet_env::NOTE),
        // A repeated clean-up goes by it again.
        (settled && cleared, flannel_place::NAME),
    ];
    // The plugin stays until `tartan cni uninstall`, which finds it by this record.
    let keep: Vec<&str> = keep
        .iter()
        .filter_map(|(done, name)| (!done).then_some(*name))
        .chain([cni::installed::NAME])
        .collect();
    remove_directory(&traces.state_dir, &keep, &mut list);
    remove_attachments_directory(&traces.run_dir, &mut list);
    remove_directory(traces.run_dir.path(), &[], &mut list);
    list.outcomes
}

/// What has been done so far.
#[derive(Default)]
struct Outcomes {
    outcomes: Vec<Outcome>,
}

impl Outcomes {
    fn done(&mut self, what: impl Into<String>, result: Result<(), HostError>) {
        match result {
            Ok(()) => self.outcomes.push(Outcome::Removed(what.into())),
            Err(error) => self.failed(what, error),
        }
    }

    fn failed(&mut self, what: impl Into<String>, error: HostError) {
        let what = what.into();
        self.outcomes.push(Outcome::Failed { what, error });
    }

    fn kept(&mut self, what: impl Into<String>, why: impl Into<String>) {
        let (what, why) = (what.into(), why.into());
        self.outcomes.push(Outcome::Kept { what, why });
    }
}

/// The device of ours that a process holds: a TUN has a carrier while one of its queues is open. The caller has the locks
/// below its own root, so that is an agent with another one.
async fn held_by_an_agent(netlink: &Netlink, name: &str) -> Option<HostError> {
    let link = links::named(&netlink.handle, name).await.ok()??;
    (link.is_ours() && link.carrier).then(|| HostError::DeviceInUse {
        name: name.to_owned(),
    })
}

/// The same where it lasts: a service manager that kept the descriptors closes them a moment after the agent has ended.
async fn held_for_long(netlink: &Netlink, name: &str) -> Option<HostError> {
    let deadline = Instant::now() + RELEASE;
    loop {
        let error = held_by_an_agent(netlink, name).await?;
        if Instant::now() >= deadline {
            return Some(error);
        }
        sleep(RELEASE_STEP).await;
    }
}

const RELEASE: Duration = Duration::from_secs(3);
const RELEASE_STEP: Duration = Duration::from_millis(50);

async fn remove_device(netlink: &Netlink, name: &str, list: &mut Outcomes) {
    match links::named(&netlink.handle, name).await {
        Ok(Some(link)) if link.is_ours() => {
            let gone = links::delete(&netlink.handle, &link).await;
            list.done(format!("the device {name}, its addresses and routes"), gone);
        }
        Ok(Some(_)) => list.kept(
            format!("the device {name}"),
            "it does not have the alias that Tartan sets",
        ),
        Ok(None) => {}
        Err(error) => list.failed(format!("the device {name}"), error),
    }
}

/// Devices of ours that no process holds: they had another `device-name`.
async fn remove_idle_devices(netlink: &Netlink, list: &mut Outcomes) {
    match idle_device::list(&netlink.handle).await {
        Ok(found) => {
            for link in &found {
                let gone = links::delete(&netlink.handle, link).await;
                let name = &link.name;
                list.done(format!("the device {name}, its addresses and routes"), gone);
            }
        }
        Err(error) => list.failed("the devices", error),
    }
}

/// Programs, pins and the VXLAN device of the kernel path. The programs of a pod's end go too: it needs none.
async fn remove_kernel_path(netlink: &Netlink, traces: &Traces, list: &mut Outcomes) {
    let handle = &netlink.handle;
    // The filters first: what arrives in between is refused by the kernel, as without an agent.
    let filters = kernel_path::remove_filters(handle, &traces.state_dir).await;
    let devices = kernel_path::remove_device(handle).await;
    for (what, found) in [("programs", filters), ("VXLAN device", devices)] {
        match found {
            Ok(outcomes) => {
                for (what, gone) in outcomes {
                    list.done(what, gone);
                }
            }
            Err(error) => list.failed(format!("the {what} of the kernel path"), error),
        }
    }
    let what = format!(
        "programs and tables in {}",
        traces.pins.directory().display()
    );
    match traces.pins.remove() {
        Ok(true) => list.done(what, Ok(())),
        Ok(false) => {}
        Err(error) => {
            let path = traces.pins.directory().to_owned();
            let source = io::Error::other(error);
            list.failed(what, HostError::RemoveFile { path, source });
        }
    }
}

/// A device of flannel's that a start which ended halfway has set aside: flanneld could not make another of its VNI.
async fn remove_set_aside(netlink: &Netlink, list: &mut Outcomes) {
    let what = format!("the device {SET_ASIDE}, which was flannel's");
    match links::named(&netlink.handle, SET_ASIDE).await {
        Ok(Some(link)) if is_vxlan(&link) => {
            let gone = links::delete(&netlink.handle, &link).await;
            list.done(what, gone);
        }
        Ok(_) => {}
        Err(error) => list.failed(what, error),
    }
}

async fn remove_routes(netlink: &Netlink, device: &str, list: &mut Outcomes) {
    // The device may be there still, if its removal failed.
    let index = match links::named(&netlink.handle, device).await {
        Ok(link) => link.filter(links::Link::is_ours).map(|link| link.index),
        Err(_) => None,
    };
    match routes::list(&netlink.handle).await {
        Ok(found) => {
            for route in found.iter().filter(|route| route.is_ours(index)) {
                let gone = routes::remove(&netlink.handle, route).await;
                list.done(format!("the route {route}"), gone);
            }
        }
        Err(error) => list.failed("the routes", error),
    }
}

/// Limiters of pods that are gone.
async fn remove_limiters(netlink: &Netlink, list: &mut Outcomes) {
    let found = match pod_links::list(&netlink.handle).await {
        Ok(found) => found,
        Err(error) => return list.failed("the limiters of pods", error),
    };
    for name in found.limiters() {
        let what = format!("the device {name}");
        match remove_orphaned_limiter(&netlink.handle, name, &found).await {
            Ok(true) => list.done(what, Ok(())),
            Ok(false) => list.kept(
                what,
                "its pod still runs and sends through it; it is removed with the pod",
            ),
            Err(error) => list.failed(what, error),
        }
    }
}

/// NAPI threads of pods' ends, of tartan-cni's and of those on record, that a killed service left.
async fn remove_napi_threads(
    netlink: &Netlink,
    record: Option<&RecordOnDisk>,
    list: &mut Outcomes,
) {
    let links = match links::messages(&netlink.handle).await {
        Ok(messages) => messages.iter().map(links::parse).collect::<Vec<_>>(),
        Err(error) => return list.failed("the NAPI threads of pods' ends", error),
    };
    let recorded = |name: &str| {
        match record {
        Some(RecordOnDisk::Current(record)) => record.changes().iter().any(|change| {
            matches!(&change.setting, Setting::Gro(end) | Setting::UdpGroForwarding(end) if end.name() == name)
        }),
        _ => false,
    }
    };
    let is_end = |link: &&Link| pod_end::has_form(&link.name) || recorded(&link.name);
    for link in links.iter().filter(is_end) {
        let end = GatheredEnd {
            index: link.index,
            name: link.name.clone(),
        };
        // One that cannot be read has none, or is gone.
        if end::is_threaded(&end).is_ok_and(|is_threaded| is_threaded) {
            let what = format!("the NAPI thread of {}", end.name);
            let gone = end::set_threaded(&end, false);
            list.done(
                what,
                gone.map_err(|source| HostError::WriteSetting {
                    key: format!("/sys/class/net/{}/threaded", end.name),
                    value: 0,
                    source,
                }),
            );
        }
    }
}

/// Returns whether the record is no longer needed. `successor` is a `subnet.env` that another process has written.
fn restore_settings(
    record: Result<RecordOnDisk, HostError>,
    successor: Option<&Path>,
    list: &mut Outcomes,
) -> bool {
    match record {
        Ok(RecordOnDisk::Current(record)) => {
            let mut changes = record.changes().to_vec();
            // Forwarding first: accept_ra=2 is harmless on a host, accept_ra=1
            // on a router loses its default route.
            changes.sort_by(|a, b| a.setting.cmp(&b.setting));
            let mut settled = true;
            for change in &changes {
                if let Some(path) = successor.filter(|_| change.setting.is_of_forwarding()) {
                    list.kept(
                        format!("{} at {}", change.setting, change.wrote),
                        format!("pods that depend on {} need it", path.display()),
                    );
                    continue;
                }
                settled &= restore_setting(change, list);
            }
            settled
        }
        Ok(RecordOnDisk::EarlierBoot) => {
            list.kept(
                "the kernel settings",
                "those on record were changed before a reboot",
            );
            true
        }
        Ok(RecordOnDisk::Nothing | RecordOnDisk::OtherNamespace(_)) => true,
        Err(error) => {
            list.failed("the kernel settings", error);
            false
        }
    }
}

/// flannel's file, by the note that says where it is and what we wrote. Whether
/// the note is of no more use.
fn report_subnet_file(cleared: Cleared, list: &mut Outcomes) -> bool {
    match cleared {
        Cleared::Nothing => {}
        Cleared::Removed(path) => list.done(path.display().to_string(), Ok(())),
        Cleared::Foreign(path) => list.kept(
            path.display().to_string(),
            "another process has written it since",
        ),
        Cleared::KeptForFlannel(path) => list.kept(
            path.display().to_string(),
            "flannel's CNI plugin and flanneld read it (replace-flannel)",
        ),
        Cleared::Failed(path, error) => {
            list.failed(path.display().to_string(), error);
            return false;
        }
    }
    true
}

/// Returns whether the setting has its old value again, or one that another process set since.
fn restore_setting(change: &RecordedChange, list: &mut Outcomes) -> bool {
    let what = format!("the change of {} to {}", change.setting, change.wrote);
    match change.setting.read() {
        Ok(Some(now)) if now == change.wrote => {
            let written = change.setting.write(change.found);
            let settled = written.is_ok();
            list.done(format!("{what} (it is {} again)", change.found), written);
            settled
        }
        // Back already, or gone with its interface: no trace.
        Ok(Some(now)) if now == change.found => true,
        Ok(None) => true,
        Ok(Some(now)) => {
            list.kept(what, format!("another process has set it to {now} since"));
            true
        }
        Err(error) => {
            list.failed(what, error);
            false
        }
    }
}

/// Empties `attachments/` of the plugin's own files and removes it, unless a
/// pod's record lies there.
fn remove_attachments_directory(run_dir: &RunDir, list: &mut Outcomes) {
    let path = run_dir.attachments();
    let records = entries(&path)
        .unwrap_or_default()
        .iter()
        .filter(|entry| !is_hidden(entry))
        .count();
    if records == 0 {
        remove_directory(&path, &[], list);
    } else {
        list.kept(
            format!("{records} attachment record(s) in {}", path.display()),
            "their pods still run; CNI DEL removes them and needs no agent",
        );
    }
}

/// Removes the files that lie directly in a directory of ours, but the one of
/// the names to `keep`, then the directory if nothing is left in it.
fn remove_directory(path: &Path, keep: &[&str], list: &mut Outcomes) {
    if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink()) {
        return list.kept(path.display().to_string(), SYMBOLIC_LINK);
    }
    let found = match entries(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(source) => {
            let path = path.to_path_buf();
            return list.failed(
                path.display().to_string(),
                HostError::RemoveFile { path, source },
            );
        }
    };
    let mut left = 0_usize;
    for file in found {
        let name = file.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| keep.contains(&name)) {
            left += 1;
            continue;
        }
        let gone = match fs::symlink_metadata(&file) {
            Ok(metadata) if metadata.is_dir() => {
                left += 1;
                continue;
            }
            // None is ours; the one in the place of a directory is listed already.
            Ok(metadata) if metadata.is_symlink() => {
                left += 1;
                let what = file.display().to_string();
                let is_same = |outcome: &Outcome| matches!(outcome, Outcome::Kept { what: kept, .. } if kept.contains(&what));
                if !list.outcomes.iter().any(is_same) {
                    list.kept(what, SYMBOLIC_LINK);
                }
                continue;
            }
            _ => fs::remove_file(&file),
        };
        if gone.is_err() {
            left += 1;
        }
        removed(file, gone, list);
    }
    if left > 0 {
        return;
    }
    match fs::remove_dir(path) {
        // In a container it is the host's, mounted.
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            list.kept(
                path.display().to_string(),
                "it is empty, and a mount point: remove it on the host",
            );
        }
        gone => removed(path.to_path_buf(), gone, list),
    }
}

fn removed(path: PathBuf, gone: io::Result<()>, list: &mut Outcomes) {
    list.done(
        path.display().to_string(),
        gone.map_err(|source| HostError::RemoveFile { path, source }),
    );
}

fn entries(path: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(path)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect()
}

fn is_hidden(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

const SYMBOLIC_LINK: &str =
    "it is a symbolic link, and what lies where it leads need not be Tartan's";
