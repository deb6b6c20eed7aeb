//! A process that holds a UDP port and does nothing else.

use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};

use crate::Namespace;

/// A process with a UDP socket, `sleep` by name. A test that holds the port itself shares it for a moment with each process
/// that another test of the same program starts: until that executes its program it has all descriptors.
pub struct PortOwner(Child);

impl PortOwner {
    /// Binds `address` in `namespace`.
    pub fn bind(namespace: &Namespace, address: &str) -> PortOwner {
        let socket = namespace.inside(|| UdpSocket::bind(address).unwrap());
        let mut command = Command::new("sleep");
        command.arg("60").stdin(OwnedFd::from(socket));
        PortOwner(command.spawn().unwrap())
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for PortOwner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
