//! What the plugin learns from the agent about the node.

use std::io;
use std::path::PathBuf;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::RunDir;
use crate::run_dir::LONGEST_FILE;
use crate::{FileAction, FileError, atomic_file};

/// The node as the plugin needs to know it: `node.json` in the run directory.
///
/// Written by the agent whenever its lease or its MTU changes, read by the
/// plugin at every ADD.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFile {
    /// The node's own subnets, from which pods get addresses.
    pub subnets: Vec<IpNet>,
    /// The cluster's networks: where pods of all nodes live.
    pub cluster: Vec<IpNet>,
    /// The MTU of the pods' interfaces, in bytes of an IP packet.
    pub mtu: u16,
    /// The MTU of their IPv6 routes, where it is less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu_v6: Option<u16>,
    /// Whether small packets of pods are gathered at the host's ends ([`crate::ethtool`]). Absent in a file of an
    /// older agent: no.
    #[serde(default)]
    pub gather: bool,
    /// Whether the pods' ends get a queue, so that a sender waits where packets come faster than the host takes them.
    /// Absent in a file of an older agent: no.
    #[serde(default)]
    pub pod_queue: bool,
}

/// Why the node file could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The agent has not written it yet.
    #[error("{path} does not exist: start the agent with `tartan run`")]
    Missing {
        /// The file looked for.
        path: PathBuf,
    },
    /// It is there and cannot be read, or cannot be replaced.
    #[error(transparent)]
    File(#[from] FileError),
    /// Its content is not what the agent writes.
    #[error("{path} is not a node file: restart the agent, which writes it anew")]
    Parse {
        /// The file in question.
        path: PathBuf,
        /// Where parsing stopped.
        source: serde_json::Error,
    },
}

impl NodeFile {
    /// Reads the file.
    ///
    /// # Errors
    /// [`Error::Missing`] before the agent's first write; [`Error::File`] and
    /// [`Error::Parse`] when another program wrote there.
    pub fn read(run: &RunDir) -> Result<NodeFile, Error> {
        let path = run.node();
        let bytes = match atomic_file::read(&path, LONGEST_FILE) {
            Ok(bytes) => bytes,
            Err(source) if source.kind() == io::ErrorKind::NotFound => {
                return Err(Error::Missing { path });
            }
            Err(source) => return Err(FileAction::Read.failed(&path)(source).into()),
        };
        serde_json::from_slice(&bytes).map_err(|source| Error::Parse { path, source })
    }

    /// Replaces the file; a reader sees the old one or the new one, whole.
    /// The run directory must exist ([`RunDir::make`]).
    ///
    /// # Errors
    /// [`Error::File`] when the file cannot be replaced; the old one stays.
    pub fn write(&self, run: &RunDir) -> Result<(), Error> {
        let path = run.node();
        serde_json::to_vec(self)
            .map_err(io::Error::from)
            .and_then(|bytes| atomic_file::replace(&path, &bytes))
            .map_err(FileAction::Write.failed(&path))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> NodeFile {
        NodeFile {
            subnets: vec!["10.244.1.0/24".parse().unwrap()],
            cluster: vec!["10.244.0.0/16".parse().unwrap()],
            mtu: 1450,
            mtu_v6: Some(1430),
            gather: true,
            pod_queue: true,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::under(root.path());
        run.make().unwrap();
        node().write(&run).unwrap();
        assert_eq!(NodeFile::read(&run).unwrap(), node());
    }

    #[test]
    fn each_failure_is_its_own() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::under(root.path());
        assert!(matches!(
            node().write(&run),
            Err(Error::File(FileError {
                action: FileAction::Write,
                ..
            }))
        ));
        assert!(matches!(NodeFile::read(&run), Err(Error::Missing { .. })));
        run.make().unwrap();
        std::fs::write(run.node(), b"{\"subnets\":[").unwrap();
        assert!(matches!(NodeFile::read(&run), Err(Error::Parse { .. })));
        std::fs::remove_file(run.node()).unwrap();
        std::fs::create_dir(run.node()).unwrap();
        assert!(matches!(
            NodeFile::read(&run),
            Err(Error::File(FileError {
                action: FileAction::Read,
                ..
            }))
        ));
    }
}
