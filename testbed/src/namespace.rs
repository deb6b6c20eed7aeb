//! A network namespace of a test's own.

use std::fs::File;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

use crate::{ip, run};

/// A network namespace; it goes, with its devices, when it is dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// An empty namespace. Its name holds `role`, this process's id and a number.
    ///
    /// # Panics
    /// Without root.
    pub fn new(role: &str) -> Namespace {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        assert!(
            rustix::process::geteuid().is_root(),
            "these tests make network namespaces: run them as root"
        );
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tb-{role}-{}-{number}", std::process::id());
        ip(&["netns", "add", &name]);
        Namespace { name }
    }

    /// As `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that names it.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/run/netns/{}", self.name))
    }

    /// Runs `ip` in the namespace, its arguments in one line; it must succeed.
    #[track_caller]
    pub fn ip(&self, words: &str) -> String {
        run(Command::new("ip")
            .args(["-n", &self.name])
            .args(words.split_whitespace()))
    }

    /// Runs `ip`, which must fail; returns what it complains of.
    #[track_caller]
    pub fn ip_fails(&self, words: &str) -> String {
        let output = Command::new("ip")
            .args(["-n", &self.name])
            .args(words.split_whitespace())
            .output()
            .unwrap();
        assert!(!output.status.success(), "`ip {words}` was to fail");
        String::from_utf8(output.stderr).unwrap()
    }

    /// What `ip -j` lists.
    #[track_caller]
    pub fn list(&self, words: &str) -> Vec<Value> {
        let text = self.ip(&format!("-j {words}"));
        // `ip` prints nothing at all, or "[{}]", for an empty list.
        if text.trim().is_empty() {
            return Vec::new();
        }
        serde_json::from_str(&text).unwrap()
    }

    /// A batch of `ip` commands, one a line.
    #[track_caller]
    pub fn ip_batch(&self, lines: &str) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), lines).unwrap();
        self.ip(&format!("-batch {}", file.path().display()));
    }

    /// Runs `tc` in the namespace, its arguments in one line; it must succeed.
    #[track_caller]
    pub fn tc(&self, words: &str) -> String {
        run(Command::new("tc")
            .args(["-n", &self.name])
            .args(words.split_whitespace()))
    }

    /// A setting of the kernel, by its path below `/proc/sys`.
    #[track_caller]
    pub fn setting(&self, path: &str) -> String {
        self.shell(&format!("cat /proc/sys/{path}"))
            .trim()
            .to_owned()
    }

    /// Changes a setting of the kernel.
    #[track_caller]
    pub fn set(&self, path: &str, value: &str) {
        self.shell(&format!("echo {value} > /proc/sys/{path}"));
    }

    /// Runs a line of shell in the namespace; it must succeed.
    #[track_caller]
    pub fn shell(&self, script: &str) -> String {
        run(self.program("sh").args(["-c", script]))
    }

    /// A program in the namespace, not started yet.
    pub fn program(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Waits until what a line of shell prints contains something.
    ///
    /// # Panics
    /// After 4 seconds.
    #[track_caller]
    pub fn until(&self, script: &str, part: &str) {
        for _ in 0..200 {
            if self.shell(script).contains(part) {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("{part:?} never comes up in `{script}`");
    }

    /// Runs `body` on a thread of its own inside the namespace.
    pub fn inside<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let file = File::open(self.path()).unwrap();
        let enter = move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            body()
        };
        thread::scope(|scope| match scope.spawn(enter).join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // No unwrap in a drop that may run while a test fails.
        let _ = Command::new("ip")
            .args(["netns", "delete", &self.name])
            .status();
    }
}

/// Two namespaces and the link between them, `u0` on either side; a /24 or a /64 around each address.
pub fn linked(near_addresses: &[&str], far_addresses: &[&str]) -> [Namespace; 2] {
    let [near, far] = ["near", "far"].map(Namespace::new);
    near.ip(&format!(
        "link add u0 type veth peer name u0 netns {}",
        far.name()
    ));
    for (space, addresses) in [(&near, near_addresses), (&far, far_addresses)] {
        for address in addresses {
            if address.contains(':') {
                space.ip(&format!("addr add {address}/64 dev u0 nodad"));
            } else {
                space.ip(&format!("addr add {address}/24 dev u0"));
            }
        }
        space.ip("link set u0 up");
    }
    [near, far]
}

/// Waits until a link carries datagrams from `near` to `listener`, which has a read timeout: a link that has just come up
/// carries no IPv6 yet.
///
/// # Panics
/// When none of 500 datagrams arrives.
pub fn await_link(near: &Namespace, listener: &UdpSocket) {
    let to = listener.local_addr().unwrap();
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let sender = near.inside(|| UdpSocket::bind(any).unwrap());
    let arrives = |_| {
        // Without a route yet the send itself fails.
        let _ = sender.send_to(b"up?", to);
        listener.recv(&mut [0; 16]).is_ok()
    };
    assert!((0..500).any(arrives), "no link to {to}");
    while listener.recv(&mut [0; 16]).is_ok() {}
}
