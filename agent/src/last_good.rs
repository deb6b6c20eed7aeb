//! The last good state: what a service starts from when its configuration files are missing or broken.
//!
//! Theory of operation. `last-good.json` of the state directory holds the list of nodes adopted last, ours among
//! them (subnets, public address, VTEP MAC), and the net-conf it was adopted with. It is replaced after each
//! adoption, by temporary file, fsync and rename. A service that can read its files does not need it; one that
//! cannot forwards from it until the registry has answered completely once.
//!
//! It is checked like any hostile input. The net-conf is kept as the text it was read from and the list as the
//! text of a `nodes.toml`, so both pass the same checks as the files they stand for. The node's name must be
//! ours, and a digest shows damage and edits; it is no signature, because only root can write the directory.
//! Bound: 64 MiB, more than the longest list that is read becomes.

pub mod configuration;

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use cni_shim::atomic_file;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::config::{NetConf, NetConfError};
use crate::lease::Lease;
use crate::registry::{self, NodeListError};

/// What was adopted last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastGood {
    /// The cluster's configuration.
    pub net_conf: NetConf,
    /// The text it was read from.
    pub net_conf_text: String,
    /// Every lease.
    pub leases: Vec<Lease>,
    /// Our own.
    pub own: Lease,
    /// How long ago the registry gave the list. 0 where the clock was set back since.
    pub age: Duration,
}

/// Why the last good state was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum LastGoodError {
    /// It cannot be used.
    #[error("the last good state {path} is refused; the next list of nodes adopted replaces it")]
    Refused {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Refusal,
    },
    /// It cannot be written.
    #[error(
        "cannot write {path}, so a restart without the list of nodes would not forward: check that the state directory is writable by root and its disk not full"
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// What is wrong with a last good state.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// No file of ours.
    #[error("it cannot be read: {0}")]
    Read(io::Error),
    /// Not the JSON that is written here: cut off, or another file.
    #[error("it is damaged: {0}")]
    Form(serde_json::Error),
    /// Of another Tartan.
    #[error("it is of version {0}, this Tartan reads version {VERSION}")]
    Version(u32),
    /// Some bytes are not those that were written.
    #[error("its content is not what Tartan wrote: it was edited or damaged")]
    Digest,
    /// Of another node.
    #[error("it is of the node {found:?}, this node is {ours:?}")]
    OtherNode {
        /// The name in it.
        found: String,
        /// Our own.
        ours: String,
    },
    /// Its net-conf has a fault.
    #[error("its net-conf has a fault: {0}")]
    NetConf(NetConfError),
    /// Its list of nodes has a fault.
    #[error("its list of nodes has a fault: {0}")]
    Leases(Box<NodeListError>),
    /// Its list is wrong for this node.
    #[error("its list of nodes has a fault: {0}")]
    Own(String),
    /// Of another cluster.
    #[error("it is of a cluster with the network {}, ours has {}", list(.found), list(.ours))]
    OtherCluster {
        /// The cluster networks in it.
        found: Vec<IpNet>,
        /// Those of the net-conf in force.
        ours: Vec<IpNet>,
    },
}

impl LastGood {
    /// Reads the last good state of the node `node_name`; `None` where there is none. Its age is counted up to `now`.
    ///
    /// # Errors
    /// [`LastGoodError::Refused`] with the first thing that is wrong.
    pub fn read(
        state_dir: &Path,
        node_name: &str,
        now: SystemTime,
    ) -> Result<Option<LastGood>, LastGoodError> {
        read(state_dir, Some(node_name), now)
    }

    /// The same of whichever node it is: to be shown, not to forward by.
    ///
    /// # Errors
    /// [`LastGoodError::Refused`] with the first thing that is wrong.
    pub fn read_of_any_node(
        state_dir: &Path,
        now: SystemTime,
    ) -> Result<Option<LastGood>, LastGoodError> {
        read(state_dir, None, now)
    }

    /// Whether it is of the cluster that `net_conf` describes. Everything but the networks may have changed.
    ///
    /// # Errors
    /// [`LastGoodError::Refused`] with the networks of both.
    pub fn belongs_to(&self, net_conf: &NetConf, state_dir: &Path) -> Result<(), LastGoodError> {
        let (found, ours) = (self.net_conf.cluster(), net_conf.cluster());
        if found == ours {
            return Ok(());
        }
        Err(LastGoodError::Refused {
            path: state_dir.join(NAME),
            source: Refusal::OtherCluster { found, ours },
        })
    }
}

fn read(
    state_dir: &Path,
    node_name: Option<&str>,
    now: SystemTime,
) -> Result<Option<LastGood>, LastGoodError> {
    let path = state_dir.join(NAME);
    let parsed = match atomic_file::read(&path, MOST_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => Err(Refusal::Read(error)),
        Ok(bytes) => parse(&bytes, node_name, now),
    };
    parsed
        .map(Some)
        .map_err(|source| LastGoodError::Refused { path, source })
}

/// Writes what was adopted at `adopted`: the list `leases` of the node `node_name`, read with the net-conf of the
/// text `net_conf_text`.
///
/// # Errors
/// [`LastGoodError::Write`]; the state before is there as it was.
pub fn write(
    state_dir: &Path,
    node_name: &str,
    net_conf_text: &str,
    leases: &[Lease],
    adopted: SystemTime,
) -> Result<(), LastGoodError> {
    let path = state_dir.join(NAME);
    let mut file = StateFile {
        version: VERSION,
        node: node_name.to_owned(),
        adopted: adopted
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
        net_conf: net_conf_text.to_owned(),
        nodes: registry::render(leases),
        digest: String::new(),
    };
    file.digest = file.digest_of_rest();
    let written = serde_json::to_vec_pretty(&file)
        .map_err(io::Error::from)
        .and_then(|text| atomic_file::replace_for_good(&path, &text));
    written.map_err(|source| LastGoodError::Write { path, source })
}

/// The file's shape.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct StateFile {
    version: u32,
    node: String,
    /// Seconds since 1970.
    adopted: u64,
    net_conf: String,
    nodes: String,
    digest: String,
}

impl StateFile {
    fn digest_of_rest(&self) -> String {
        let adopted = self.adopted.to_string();
        digest([&self.node, &adopted, &self.net_conf, &self.nodes])
    }
}

/// 64-bit FNV-1a of the fields.
fn digest<const N: usize>(fields: [&str; N]) -> String {
    let mut hash = FNV_OFFSET;
    for field in fields {
        // The length keeps a byte that moves from one field to the next from going unseen.
        for byte in field.len().to_be_bytes().iter().chain(field.as_bytes()) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME);
        }
    }
    format!("{hash:016x}")
}

/// Parses a state of the node `node_name`, or of any.
fn parse(bytes: &[u8], node_name: Option<&str>, now: SystemTime) -> Result<LastGood, Refusal> {
    let file: StateFile = serde_json::from_slice(bytes).map_err(Refusal::Form)?;
    if file.version != VERSION {
        return Err(Refusal::Version(file.version));
    }
    if file.digest != file.digest_of_rest() {
        return Err(Refusal::Digest);
    }
    if let Some(ours) = node_name.filter(|name| file.node != **name) {
        return Err(Refusal::OtherNode {
            found: file.node,
            ours: ours.to_owned(),
        });
    }
    let net_conf = NetConf::parse(&file.net_conf).map_err(Refusal::NetConf)?;
    let leases = registry::parse(&file.nodes, &net_conf)
        .map_err(|fault| Refusal::Leases(Box::new(fault)))?;
    let own = registry::own(&leases, &file.node)
        .map_err(Refusal::Own)?
        .clone();
    let now = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    Ok(LastGood {
        net_conf,
        net_conf_text: file.net_conf,
        leases,
        own,
        age: now.saturating_sub(Duration::from_secs(file.adopted)),
    })
}

fn list(networks: &[IpNet]) -> String {
    let names: Vec<_> = networks.iter().map(IpNet::to_string).collect();
    names.join(" and ")
}

/// The file's name in the state directory.
const NAME: &str = "last-good.json";
const VERSION: u32 = 1;
const MOST_BYTES: u64 = 64 << 20;
// The published parameters of 64-bit FNV-1a.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

#[cfg(test)]
mod tests;
