//! The attachment record: which pod owns which address on this node.
//!
//! Theory of operation. One file per (container, interface name) in the run
//! directory's `attachments/`, named `CONTAINER:IFNAME.json`. The plugin
//! writes it, addresses included, *before* it makes anything, so whatever a
//! crash leaves behind has a record that names it; DEL removes it last.
//!
//! | state | written when | what may exist |
//! |---|---|---|
//! | `Reserved` | an address was taken | any part of the attachment, or none of it |
//! | `Attached` | the agent would deliver to the pod | all of it |
//!
//! A record is replaced whole by rename and is never edited in place. A file
//! that does not parse is reported and left alone until the ADD, DEL or GC of
//! its own container sets it aside ([`set_aside`]). Files that start with a dot
//! (the locks, the range's notes, temporaries, what was set aside) are no
//! records.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::run_dir::LONGEST_FILE;
use crate::{FileAction, RunDir, atomic_file};

pub use error::Error;
pub use lock::Lock;

mod error;
pub mod lock;

/// How the name of every attachment's end on the host begins: the agent's
/// check of sources knows pods by it.
pub const HOST_IFNAME_PREFIX: &str = "tt";

/// How the name of every device begins that shapes what comes from a pod. No
/// packet is ever seen coming from it, so it is not one of [`HOST_IFNAME_PREFIX`].
pub const LIMITER_IFNAME_PREFIX: &str = "tl";

/// One interface of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Format of the record: [`Attachment::VERSION`].
    pub version: u32,
    /// Name of the CNI network that made it.
    pub network: String,
    /// The runtime's container id (`CNI_CONTAINERID`).
    pub container: String,
    /// Name of the interface inside the pod (`CNI_IFNAME`).
    pub ifname: String,
    /// Path of the pod's network namespace, as the runtime gave it.
    pub netns: String,
    /// Inode of that namespace: paths are reused, inodes of living namespaces are not.
    pub netns_inode: u64,
    /// Name of the interface's end on the host.
    pub host_ifname: String,
    /// The pod's addresses, each a host prefix (/32 or /128).
    pub addresses: Vec<IpNet>,
    /// MAC of the pod's end, `xx:xx:xx:xx:xx:xx`.
    pub mac: String,
    /// The Kubernetes pod, where the runtime named it.
    pub pod: Option<PodName>,
    /// When the record was first written, in Unix seconds. Shown to users, not acted upon.
    pub created: u64,
    /// The ADD that wrote it, unique: process id and clock.
    /// Empty in a record of an older plugin.
    #[serde(default)]
    pub written_by: String,
    /// How far the attachment had come when the record was written.
    #[serde(default)]
    pub state: State,
    /// What the runtime allows the pod to send and receive; none: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Bandwidth>,
    /// MTU of both ends, in bytes; 0 in a record of an older plugin.
    #[serde(default)]
    pub mtu: u16,
    /// Type of the delegated IPAM plugin that the addresses are from, and to
    /// which they are given back; none: the node's own range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipam: Option<String>,
    /// The pod's routing table for what leaves from this interface's addresses,
    /// where another interface had the default route; none: `main`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// What the pod may send from beside its addresses (virtual addresses). The
    /// node routes it to the pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_sources: Vec<IpNet>,
    /// The pod's annotations, where the runtime sends them, without the long ones.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// Limits of a pod's traffic, as the capability `bandwidth` gives them
/// (containernetworking/cni CONVENTIONS.md). The agent enforces them when it
/// adopts the attachment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Towards the pod: `ingressRate` and `ingressBurst`.
    pub ingress: Option<RateLimit>,
    /// From the pod: `egressRate` and `egressBurst`.
    pub egress: Option<RateLimit>,
}

/// A limit of one direction, as the runtime gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimit {
    /// Bits per second, at least 1: a rate of 0 is no limit.
    pub rate: u64,
    /// Bits that may pass at once; 0 where the runtime named none.
    pub burst: u64,
}

/// A pod as the runtime names it in `CNI_ARGS`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodName {
    /// `K8S_POD_NAMESPACE`; empty where the runtime knows none (podman).
    pub namespace: String,
    /// `K8S_POD_NAME`.
    pub name: String,
}

/// How far an attachment had come when its record was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The address is taken; the interface may or may not exist.
    #[default]
    Reserved,
    /// The interface is complete and the agent has adopted it.
    Attached,
}

impl Attachment {
    /// The only format there is.
    pub const VERSION: u32 = 1;

    /// Name of the device that shapes what comes from the pod. It is there
    /// while there is a limit of that direction; a caller that removes the host's
    /// end must remove it too, because the kernel does not.
    pub fn limiter_ifname(&self) -> String {
        limiter_ifname(&self.host_ifname)
    }

    /// `CONTAINER:IFNAME.json`. Two attachments never share a name, because
    /// the CNI specification allows `:` in neither part.
    pub fn file_name(container: &str, ifname: &str) -> String {
        format!("{container}:{ifname}{SUFFIX}")
    }

    /// Where the record of (container, ifname) is or would be.
    ///
    /// # Errors
    /// [`Error::Name`] for anything the specification does not allow, so no
    /// caller can be led out of the directory.
    pub fn path(run: &RunDir, container: &str, ifname: &str) -> Result<PathBuf, Error> {
        check_container(container)?;
        check_ifname(ifname)?;
        Ok(run.attachments().join(Self::file_name(container, ifname)))
    }

    /// Writes or replaces the record. Its directory must exist
    /// ([`RunDir::make`]).
    ///
    /// # Errors
    /// [`Error::Name`] for an impossible name, [`Error::File`] when the disk
    /// is full or the directory is missing; an older record then stays.
    pub fn write(&self, run: &RunDir) -> Result<(), Error> {
        let path = Self::path(run, &self.container, &self.ifname)?;
        serde_json::to_vec(self)
            .map_err(io::Error::from)
            .and_then(|bytes| atomic_file::replace(&path, &bytes))
            .map_err(FileAction::Write.failed(&path))?;
        Ok(())
    }

    /// Reads one record.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Parse`], [`Error::Version`], or
    /// [`Error::Misnamed`] when the file bears another attachment's name.
    pub fn read(path: &Path) -> Result<Attachment, Error> {
        let bytes = atomic_file::read(path, LONGEST_FILE).map_err(FileAction::Read.failed(path))?;
        let record: Attachment = serde_json::from_slice(&bytes).map_err(|source| Error::Parse {
            path: path.to_path_buf(),
            source,
        })?;
        if record.version != Self::VERSION {
            return Err(Error::Version {
                path: path.to_path_buf(),
                version: record.version,
            });
        }
        let name = Self::file_name(&record.container, &record.ifname);
        if path.file_name() != Some(name.as_ref()) {
            return Err(Error::Misnamed {
                path: path.to_path_buf(),
            });
        }
        Ok(record)
    }

    /// Removes the record, which frees its addresses. Removing one that is
    /// already gone is success.
    ///
    /// # Errors
    /// [`Error::Name`] and [`Error::File`].
    pub fn remove(&self, run: &RunDir) -> Result<(), Error> {
        remove(&Self::path(run, &self.container, &self.ifname)?)
    }
}

/// The name of the limiter that belongs to the host's end `host_ifname`.
pub fn limiter_ifname(host_ifname: &str) -> String {
    let own = host_ifname.strip_prefix(HOST_IFNAME_PREFIX);
    format!("{LIMITER_IFNAME_PREFIX}{}", own.unwrap_or(host_ifname))
}

/// A file of the run directory's `attachments/`, and the record in it or why
/// there is none.
pub type Listed = (PathBuf, Result<Attachment, Error>);

/// Every record in the run directory, sorted by path, a bad one as its error.
/// A directory that does not exist holds none.
///
/// # Errors
/// [`Error::File`] when the directory itself cannot be listed.
pub fn list(run: &RunDir) -> Result<Vec<Listed>, Error> {
    let directory = run.attachments();
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(FileAction::Read.failed(&directory)(source).into()),
    };
    let mut records = Vec::new();
    for entry in entries {
        let path = entry.map_err(FileAction::Read.failed(&directory))?.path();
        if !is_record(&path) {
            continue;
        }
        match Attachment::read(&path) {
            // Its DEL came between our listing and our reading.
            Err(error) if error.is_not_found() => {}
            read => records.push((path, read)),
        }
    }
    records.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(records)
}

/// Removes the record at `path`, readable or not, and what a writer of it left
/// that was killed; gone already is success.
///
/// # Errors
/// [`Error::File`].
pub fn remove(path: &Path) -> Result<(), Error> {
    // They hold no address, so one that cannot be removed is left.
    if let Some(directory) = path.parent() {
        atomic_file::remove_temporaries(path, directory);
    }
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(FileAction::Remove.failed(path)(source).into())
        }
        _ => Ok(()),
    }
}

/// Renames a record that cannot be read to `.damaged-NAME`, where it is no
/// record any more and can still be looked at, and returns the new path. An
/// older one of that name is replaced; gone already is success.
///
/// # Errors
/// [`Error::File`].
pub fn set_aside(path: &Path) -> Result<PathBuf, Error> {
    let mut name = std::ffi::OsString::from(DAMAGED);
    name.push(path.file_name().unwrap_or_default());
    let aside = path.with_file_name(name);
    match fs::rename(path, &aside) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(FileAction::Remove.failed(path)(source).into())
        }
        _ => Ok(aside),
    }
}

/// The container and interface name in the name of a record's file,
/// whatever its content.
pub fn named_by(path: &Path) -> Option<(String, String)> {
    let name = path.file_name()?.to_str()?.strip_suffix(SUFFIX)?;
    let (container, ifname) = name.split_once(':')?;
    let proven = check_container(container).and_then(|()| check_ifname(ifname));
    proven.ok()?;
    Some((container.to_owned(), ifname.to_owned()))
}

/// Accepts a container id: `^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$` (CNI
/// pkg/utils/utils.go), at most 200 bytes so that it fits a file name.
///
/// # Errors
/// [`Error::Name`].
pub fn check_container(container: &str) -> Result<(), Error> {
    if container.len() <= LONGEST_CONTAINER && is_identifier(container) {
        return Ok(());
    }
    Err(Error::Name {
        what: "container id",
        value: container.to_owned(),
        rule: "letters, digits, '_', '.', '-', the first a letter or digit, at most 200",
    })
}

/// Accepts an interface name: 1 to 15 bytes, not `.` or `..`, no `/`, `:`,
/// white space (CNI pkg/utils/utils.go) or control characters.
///
/// # Errors
/// [`Error::Name`].
pub fn check_ifname(ifname: &str) -> Result<(), Error> {
    let forbidden = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    let fits = (1..=LONGEST_IFNAME).contains(&ifname.len());
    if fits && ifname != "." && ifname != ".." && !ifname.contains(forbidden) {
        return Ok(());
    }
    Err(Error::Name {
        what: "interface name",
        value: ifname.to_owned(),
        rule: "1 to 15 bytes, not '.' or '..', no '/', ':' or white space",
    })
}

/// Whether `name` is an identifier of the CNI specification: a network name
/// or a container id.
pub fn is_identifier(name: &str) -> bool {
    let mut characters = name.chars();
    characters
        .next()
        .is_some_and(|first| first.is_ascii_alphanumeric())
        && characters.all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

fn is_record(path: &Path) -> bool {
    path.file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| !name.starts_with('.') && name.ends_with(SUFFIX))
}

const SUFFIX: &str = ".json";

const DAMAGED: &str = ".damaged-";

/// Leaves room for the interface name, the suffix and a temporary's prefix in
/// the 255 bytes of a file name.
const LONGEST_CONTAINER: usize = 200;

/// IFNAMSIZ less its terminating zero.
const LONGEST_IFNAME: usize = 15;

#[cfg(test)]
mod tests;
