//! The pod's network namespace: proven before anything is made, entered only
//! by a thread that ends at once.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use rustix::thread::LinkNameSpaceType;

use crate::netlink::{self, Netlink};

/// An open network namespace that is not our own.
#[derive(Debug)]
pub(crate) struct Netns {
    file: File,
    inode: u64,
}

/// Why a path is no namespace for a pod.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot open the network namespace {path}: the pod is gone, or the path is wrong")]
    Open { path: String, source: io::Error },
    #[error("{path} is not a network namespace: it must name an nsfs file of that kind")]
    NotNetns { path: String },
    #[error("{path} is the network namespace tartan-cni runs in: a pod needs one of its own")]
    Own { path: String },
    #[error("cannot find out which network namespace tartan-cni runs in: is /proc mounted?")]
    Unknown { source: io::Error },
    #[error("cannot enter the network namespace: tartan-cni needs CAP_SYS_ADMIN")]
    Enter { source: io::Error },
    #[error("cannot open a netlink socket in the network namespace")]
    Socket { source: netlink::Error },
}

impl Netns {
    /// Opens the namespace, proves that it is one and not ours, and opens a
    /// netlink socket inside.
    pub(crate) fn open(path: &str) -> Result<(Netns, Netlink), Error> {
        let open = |source| Error::Open {
            path: path.to_owned(),
            source,
        };
        // Without O_NONBLOCK a named pipe would hang us.
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(nonblocking)
            .open(path)
            .map_err(open)?;
        let metadata = file.metadata().map_err(open)?;
        let kind = rustix::fs::fstatfs(&file).map_err(|errno| open(errno.into()))?;
        if kind.f_type != NSFS_MAGIC {
            return Err(Error::NotNetns {
                path: path.to_owned(),
            });
        }
        let own = std::fs::metadata(OWN).map_err(|source| Error::Unknown { source })?;
        if (own.dev(), own.ino()) == (metadata.dev(), metadata.ino()) {
            return Err(Error::Own {
                path: path.to_owned(),
            });
        }
        let netns = Netns {
            file,
            inode: metadata.ino(),
        };
        // A namespace of another kind is refused by setns(2) with EINVAL.
        match netns.inside(Netlink::open) {
            Err(Error::Enter { source }) if source.kind() == io::ErrorKind::InvalidInput => {
                Err(Error::NotNetns {
                    path: path.to_owned(),
                })
            }
            Err(error) => Err(error),
            Ok(Err(source)) => Err(Error::Socket { source }),
            Ok(Ok(socket)) => Ok((netns, socket)),
        }
    }

    /// The namespace's inode, its identity while it lives.
    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }

    /// For IFLA_NET_NS_FD.
    pub(crate) fn raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Runs `work` on a new thread inside the namespace. The thread ends with
    /// it, so no thread of ours is ever in the wrong namespace afterwards.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        let body = || {
            let kind = Some(LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(self.file.as_fd(), kind)?;
            Ok(work())
        };
        std::thread::scope(|scope| {
            std::thread::Builder::new()
                .spawn_scoped(scope, body)?
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the thread inside it failed")))
        })
        .map_err(|source| Error::Enter { source })
    }
}

/// nsfs, from linux/magic.h.
const NSFS_MAGIC: i64 = 0x6e73_6673;

const OWN: &str = "/proc/thread-self/ns/net";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_network_namespace_is_refused() {
        let open = |path: &str| Netns::open(path).map(|_| ()).unwrap_err();
        assert!(matches!(open("/run/netns/cs-none"), Error::Open { .. }));
        assert!(matches!(open("/etc/hostname"), Error::NotNetns { .. }));
        assert!(matches!(open("/"), Error::NotNetns { .. }));
        assert!(matches!(open("/proc/self/ns/net"), Error::Own { .. }));
        assert!(matches!(open("/proc/self/ns/mnt"), Error::NotNetns { .. }));
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(matches!(
            open(pipe.to_str().unwrap()),
            Error::NotNetns { .. }
        ));
    }
}
