//! A process that holds a UDP port and does nothing else.

use std::fs;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::{Namespace, eventually};

/// A process with a UDP socket, `sleep` by name. A test that holds the port itself shares it for a moment with each process
/// that another test of the same program starts: until that executes its program it has all descriptors.
pub struct PortOwner(Child);

impl PortOwner {
    /// Binds `address` in `namespace`.
    pub fn bind(namespace: &Namespace, address: &str) -> PortOwner {
        let socket = namespace.inside(|| UdpSocket::bind(address).unwrap());
        let inode = inode(socket.as_fd());
        let mut command = Command::new("sleep");
        command.arg("60").stdin(OwnedFd::from(socket));
        let owner = PortOwner(command.spawn().unwrap());
        drop(command);
        eventually("no other process has the socket", || {
            holders(&inode) == [owner.pid()]
        });
        owner
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

/// What `/proc` calls a socket.
fn inode(socket: BorrowedFd<'_>) -> PathBuf {
    fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap()
}

/// The processes that have it; what ends meanwhile has none.
fn holders(inode: &Path) -> Vec<u32> {
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    let processes = entries(Path::new("/proc"));
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter(|pid: &u32| {
            let descriptors = PathBuf::from(format!("/proc/{pid}/fd"));
            entries(&descriptors).any(|fd| fs::read_link(fd.path()).is_ok_and(|it| it == inode))
        })
        .collect()
}

impl Drop for PortOwner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
