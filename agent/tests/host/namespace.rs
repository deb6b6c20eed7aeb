//! A network namespace with an underlay and the paths of a node.

use std::future::Future;
use std::io::Write;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use dataplane::device::plain;
use testbed::{Census, run};

/// A namespace with a loopback device and an "underlay" of its own: `eth0`,
/// one end of a veth pair, with 192.0.2.1/24. Deleted when dropped.
pub(crate) struct Namespace {
    space: testbed::Namespace,
    files: tempfile::TempDir,
}

impl Namespace {
    pub(crate) fn new() -> Namespace {
        let namespace = Namespace {
            space: testbed::Namespace::new("host"),
            files: tempfile::tempdir().unwrap(),
        };
        namespace.ip("link set lo up");
        namespace.ip("link add eth0 mtu 1500 type veth peer name wire0");
        // What is announced late (a link-local address after duplicate
        // detection) would blur the census.
        namespace.ip("link set eth0 addrgenmode none");
        namespace.ip("link set wire0 addrgenmode none");
        namespace.ip("link set eth0 up");
        namespace.ip("link set wire0 up");
        namespace.ip("address add 192.0.2.1/24 dev eth0");
        namespace
    }

    /// A namespace with a TUN `tartan0` that no process holds, as an agent leaves it that ends.
    pub(crate) fn with_tun() -> Namespace {
        let namespace = Namespace::new();
        namespace.ip("tuntap add tartan0 mode tun");
        namespace
    }

    /// A queue of the TUN `name`: while it is held the device has a carrier, as under an agent.
    pub(crate) fn hold(&self, name: &str) -> OwnedFd {
        self.space.inside(|| plain::open(name).unwrap())
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.files.path().join("var/lib/tartan")
    }

    pub(crate) fn root(&self) -> &Path {
        self.files.path()
    }

    /// `tartan cleanup` where the kernel's settings cannot be written; its code
    /// and what it said. `ip netns exec` gives the mounts a namespace of their own.
    pub(crate) fn clean_with_read_only_settings(&self) -> (Option<i32>, String) {
        let script = "mount --bind /proc/sys/net /proc/sys/net \
            && mount -o remount,bind,ro /proc/sys/net && exec \"$0\" --root \"$1\" cleanup";
        let output = self
            .program("sh")
            .args(["-c", script])
            .arg(env!("CARGO_BIN_EXE_tartan"))
            .arg(self.root())
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8_lossy(&said).into_owned(),
        )
    }

    /// The namespace itself.
    pub(crate) fn space(&self) -> &testbed::Namespace {
        &self.space
    }

    /// Runs `body` on a thread inside the namespace, under a runtime there.
    pub(crate) fn inside<T, F>(&self, body: impl FnOnce() -> F + Send) -> T
    where
        T: Send,
        F: Future<Output = T>,
    {
        self.space.inside(|| {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap()
                .block_on(body())
        })
    }

    /// Everything a clean-up must leave as it was, the files below the node's root too.
    pub(crate) fn census(&self) -> Census {
        let files = run(Command::new("find")
            .arg(self.files.path())
            .args(["-type", "f"]));
        let files = files.lines().map(|line| format!("file {line}"));
        Census::of(&self.space, files)
    }

    /// `nft` that goes on running after a script, as the owner of its tables.
    /// Ends when dropped.
    pub(crate) fn spawn_nft(&self, script: &str) -> Running {
        let mut child = self
            .program("nft")
            .arg("-i")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        for line in script.lines() {
            writeln!(input, "{}", line.trim()).unwrap();
        }
        let running = Running { child, input };
        self.until("nft list ruleset", "policy drop");
        running
    }

    /// Sends a router advertisement out of `device`: a default router for half an hour, and no prefix (RFC 4861 section
    /// 4.2). The kernel adds the checksum, as it does for every raw ICMPv6 socket.
    pub(crate) fn advertise(&self, device: &str) {
        let script = format!(
            "import socket, struct\n\
             s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)\n\
             s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)\n\
             s.sendto(struct.pack('!BBHBBHII', 134, 0, 0, 64, 0, 1800, 0, 0), \
             ('ff02::1', 0, 0, socket.if_nametoindex('{device}')))"
        );
        run(self.program("python3").args(["-c", &script]));
    }
}

impl Deref for Namespace {
    type Target = testbed::Namespace;

    fn deref(&self) -> &testbed::Namespace {
        &self.space
    }
}

/// A program that runs until it is dropped.
pub(crate) struct Running {
    child: Child,
    input: ChildStdin,
}

impl Running {
    /// Types a line.
    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // No unwrap in a drop that may run while a test fails.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
