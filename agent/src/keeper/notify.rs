//! Tells systemd that a unit of `Type=notify` is up, as `sd_notify(3)` describes the protocol.
//!
//! It is the keeper's word: systemd takes it from the unit's main process alone unless the unit says otherwise. flanneld
//! says it once `subnet.env` is written and routes are there (flannel `main.go`), which is when a service forwards.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tracing::warn;

/// Says that the unit is up, where a service manager waits for that.
pub(super) fn ready() {
    let Some(socket) = std::env::var_os(VARIABLE) else {
        return;
    };
    if let Err(error) = send(&socket, READY) {
        warn!(%error, "cannot tell the service manager that the unit is up: check {VARIABLE}, or use Type=simple");
    }
}

/// A name that begins with `@` is one of Linux's abstract namespace.
fn send(socket: &OsStr, message: &[u8]) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(socket)?,
        _ => return Err(io::ErrorKind::Unsupported.into()),
    };
    let datagrams = UnixDatagram::unbound()?;
    // A service manager that hangs must not keep the keeper waiting.
    datagrams.set_nonblocking(true)?;
    datagrams.send_to_addr(message, &address).map(drop)
}

const VARIABLE: &str = "NOTIFY_SOCKET";
const READY: &[u8] = b"READY=1";

#[cfg(test)]
mod tests {
    use super::*;

    fn received(listener: &UnixDatagram) -> Vec<u8> {
        let mut buffer = [0; 64];
        let length = listener.recv(&mut buffer).unwrap();
        buffer[..length].to_vec()
    }

    #[test]
    fn a_path_and_an_abstract_name_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let listener = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), READY).unwrap();
        assert_eq!(received(&listener), READY);
        let name = format!("tartan-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let listener = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), READY).unwrap();
        assert_eq!(received(&listener), READY);
    }

    #[test]
    fn what_cannot_be_told_is_an_error_and_no_wait() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("none");
        for socket in [missing.as_os_str(), OsStr::new("vsock:2:7"), OsStr::new("")] {
            assert!(send(socket, READY).is_err(), "{socket:?}");
        }
    }
}
