//! Theory of operation
//!
//! What another CNI left on this node: found, shown, and removed where the operator says so. None of it is Tartan's, so
//! nothing here is done by an agent, and nothing without being told.
//!
//! A thing is taken for a CNI's by its name and its kind alone, as that project's source gives them: each project has a
//! file with its [`Catalogue`]. A name that others could have by chance (`cni0`, `weave`) counts for a device of that kind
//! alone. What Tartan made or uses is found too, and kept with the reason: its devices by their alias, flannel's place
//! under `replace-flannel`, and the bridge, `subnet.env` and configuration of flannel's plugin as long as that plugin
//! attaches pods beside Tartan. Use decides that, not authorship: `subnet.env` has the same bytes whichever program wrote it.
//!
//! While the CNI's daemon runs here nothing is removed: it would put everything back, or fail halfway. It is found as a
//! process of this network namespace, or, where processes are hidden, by a port that it listens on.
//!
//! Order of removal: the configuration first, so that no runtime attaches another pod; then the rules that drop packets,
//! and the sets that they refer to; programs at devices; rules and routes; devices; and last the files and pinned maps,
//! which programs may use until they are gone. Each step is tried even if others failed, and one whose thing is gone
//! already has succeeded, so that the whole can be repeated. Rules of one table go in one transaction.
//!
//! Rules of iptables-legacy are outside nf_tables. They are read and removed by the programs `iptables-legacy-save` and
//! `iptables-legacy-restore`; where those are missing, that is reported.

mod calico;
mod catalogue;
mod chains;
mod cilium;
mod daemon;
mod devices;
mod files;
mod flannel;
mod in_use;
mod legacy;
mod mounts;
mod sets;
mod weave;

use std::path::{Path, PathBuf};

use super::Netlink;
use super::cleanup::Traces;
use super::error::HostError;
use super::firewall::nft::NftError;
use crate::causes::causes;
use crate::problems::HostProblem;
use catalogue::Catalogue;
use chains::Chains;
use devices::InKernel;
use in_use::InUse;
use legacy::LegacyTable;

pub use daemon::Daemon;

/// A CNI whose leftovers are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PreviousCni {
    /// flannel, with the plugin `flannel` and its bridge
    Flannel,
    /// Calico, and the Calico half of Canal
    Calico,
    /// Cilium
    Cilium,
    /// Weave Net
    Weave,
}

impl PreviousCni {
    fn catalogue(self) -> &'static Catalogue {
        match self {
            PreviousCni::Flannel => &flannel::CATALOGUE,
            PreviousCni::Calico => &calico::CATALOGUE,
            PreviousCni::Cilium => &cilium::CATALOGUE,
            PreviousCni::Weave => &weave::CATALOGUE,
        }
    }

    /// The project's own name.
    pub fn name(self) -> &'static str {
        self.catalogue().project
    }

    /// A daemon of it that runs on this node.
    pub fn daemon(self) -> Option<Daemon> {
        daemon::running(self.catalogue())
    }
}

/// What a thing is. The order is that of removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeftoverKind {
    /// A file from which runtimes learn which plugin to call.
    CniConfiguration,
    /// Chains and rules in a table of the packet filter that others use too.
    Chains,
    /// A table of the packet filter.
    Table,
    /// A set of addresses.
    IpSet,
    /// A BPF program at a device.
    BpfFilter,
    /// A rule of the routing policy.
    Rule,
    /// A route.
    Route,
    /// A network interface.
    Device,
    /// A file, or a map or program pinned in the BPF file system.
    File,
    /// A directory with all that it holds.
    Directory,
}

impl LeftoverKind {
    /// In words for tables and scripts.
    pub fn name(self) -> &'static str {
        match self {
            LeftoverKind::CniConfiguration => "cni-configuration",
            LeftoverKind::Chains => "chains",
            LeftoverKind::Table => "table",
            LeftoverKind::IpSet => "ipset",
            LeftoverKind::BpfFilter => "bpf-filter",
            LeftoverKind::Rule => "rule",
            LeftoverKind::Route => "route",
            LeftoverKind::Device => "device",
            LeftoverKind::File => "file",
            LeftoverKind::Directory => "directory",
        }
    }
}

/// One thing that a CNI left.
#[derive(Debug)]
pub struct Leftover {
    /// What it is.
    pub kind: LeftoverKind,
    /// Where it is, or its name, as the usual tools print it.
    pub place: String,
    /// Why it is taken for that CNI's: the pattern, and where the project's source has it.
    pub why: String,
    /// What its removal does.
    pub effect: String,
    /// The rules in chains of others that go with it, each with what it was known by.
    pub rules: Vec<String>,
    /// Why it is kept in any case, if so.
    pub kept: Option<String>,
    thing: Thing,
}

/// How it is removed.
#[derive(Debug)]
enum Thing {
    InKernel(Box<InKernel>),
    Table { family: u8, name: String },
    Chains(Chains),
    Legacy(LegacyTable),
    IpSet(String),
    File(PathBuf),
    Tree(PathBuf),
}

/// Why something could not be read or removed.
#[derive(Debug, thiserror::Error)]
pub enum LeftoverError {
    /// The kernel or a file system refused.
    #[error(transparent)]
    Host(#[from] HostError),
    /// Something is mounted below a directory.
    #[error("{0} is a mount point, and what is mounted there need not be the CNI's")]
    MountPoint(PathBuf),
    /// It cannot be told what is mounted.
    #[error("the list of mounts cannot be read: {0}")]
    NoMounts(std::io::Error),
    /// It holds more than any CNI leaves.
    #[error("{0} holds more than {MOST_FILES} files")]
    TooMany(PathBuf),
    /// A program is needed and missing, or it failed.
    #[error("{program}: {said}")]
    Program {
        /// The program.
        program: String,
        /// Why it could not be started, or what it said.
        said: String,
    },
}

impl LeftoverError {
    /// What is wrong, in words.
    pub fn sentence(&self) -> String {
        causes(self)
    }

    /// What to do.
    pub fn remedy(&self) -> String {
        match self {
            LeftoverError::Host(error) => HostProblem::of(error).remedy,
            LeftoverError::MountPoint(path) => {
                format!(
                    "look at what is there, `umount {}`, and repeat the command",
                    path.display()
                )
            }
            LeftoverError::NoMounts(_) => "mount /proc, and repeat the command".to_owned(),
            LeftoverError::TooMany(path) => {
                format!(
                    "look at what is in {}, and remove it by hand",
                    path.display()
                )
            }
            LeftoverError::Program { program, .. } => format!(
                "run the command on the host, where the package iptables has {program}, or remove the rules by hand"
            ),
        }
    }
}

/// What was found, in the order of removal, and what could not be looked for.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// Things of the CNI.
    pub found: Vec<Leftover>,
    /// What could not be read, and why.
    pub unread: Vec<(&'static str, LeftoverError)>,
}

impl Leftovers {
    fn add(&mut self, what: &'static str, read: Result<Vec<Leftover>, LeftoverError>) {
        match read {
            Ok(found) => self.found.extend(found),
            Err(error) => self.unread.push((what, error)),
        }
    }
}

/// Looks for what a CNI left in the calling thread's network namespace and below `root`. `traces` are those of Tartan's
/// agent on this node.
///
/// # Panics
/// Outside a tokio runtime with I/O enabled.
pub async fn find(cni: PreviousCni, root: &Path, traces: &Traces) -> Leftovers {
    let catalogue = cni.catalogue();
    let mut list = Leftovers::default();
    let netlink = Netlink::open();
    let in_use = match (cni, &netlink) {
        (PreviousCni::Flannel, Ok(netlink)) => InUse::read(root, traces, &netlink.handle).await,
        // Without rtnetlink nothing of the kernel's is removed, and all that may be in use is kept.
        (PreviousCni::Flannel, Err(_)) => InUse::of(root, traces, None),
        (PreviousCni::Calico | PreviousCni::Cilium | PreviousCni::Weave, _) => InUse::default(),
    };
    list.add("files", files::find(catalogue, root, &in_use));
    list.add("the packet filter", chains::find(catalogue).await);
    list.add("iptables-legacy", legacy::find(catalogue).await);
    list.add("the sets of addresses", sets::find(catalogue).await);
    match netlink {
        Ok(netlink) => {
            devices::find(catalogue, root, &in_use, &netlink.handle, &mut list).await;
        }
        Err(error) => list.unread.push(("devices and routes", error.into())),
    }
    list.found.sort_by_key(|leftover| leftover.kind);
    list
}

/// Removes one thing. One that is gone already is no error.
///
/// # Errors
/// Why it is still there.
///
/// # Panics
/// Outside a tokio runtime with I/O enabled.
pub async fn remove(cni: PreviousCni, leftover: &Leftover) -> Result<(), LeftoverError> {
    let catalogue = cni.catalogue();
    match &leftover.thing {
        Thing::InKernel(thing) => {
            let netlink = Netlink::open()?;
            Ok(devices::remove(&netlink.handle, thing).await?)
        }
        Thing::Table { family, name } => chains::remove_table(*family, name).await,
        Thing::Chains(chains) => chains::remove(catalogue, chains).await,
        Thing::Legacy(table) => legacy::remove(catalogue, table).await,
        Thing::IpSet(name) => sets::remove(name).await,
        Thing::File(path) => files::remove_file(path),
        Thing::Tree(path) => files::remove_tree(path),
    }
}

/// A refusal of netfilter, as what it is for an operator.
fn refused(doing: String, source: NftError) -> LeftoverError {
    HostError::Rules { doing, source }.into()
}

/// Files below one directory: more than the largest node has maps.
const MOST_FILES: usize = 1 << 16;
