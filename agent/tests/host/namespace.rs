//! A network namespace of a test's own, and iproute2 in it as independent oracle.

use std::collections::BTreeSet;
use std::fs::File;
use std::future::Future;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

/// A namespace with a loopback device and an "underlay" of its own: `eth0`,
/// one end of a veth pair, with 192.0.2.1/24. Deleted when dropped.
pub(crate) struct Namespace {
    name: String,
    files: tempfile::TempDir,
}

impl Namespace {
    pub(crate) fn new() -> Namespace {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        assert!(
            rustix::process::geteuid().is_root(),
            "these tests make network namespaces: run them as root"
        );
        let name = format!(
            "af-h{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        run(Command::new("ip").args(["netns", "add", &name]));
        let namespace = Namespace {
            name,
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

    /// A namespace with a TUN `tartan0`, as an agent's open descriptor makes it.
    pub(crate) fn with_tun() -> Namespace {
        let namespace = Namespace::new();
        namespace.ip("tuntap add tartan0 mode tun");
        namespace
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.files.path().join("var/lib/tartan")
    }

    pub(crate) fn root(&self) -> &Path {
        self.files.path()
    }

    /// Runs `ip` in the namespace; it must succeed.
    pub(crate) fn ip(&self, words: &str) -> String {
        run(Command::new("ip")
            .args(["-n", &self.name])
            .args(words.split_whitespace()))
    }

    /// Runs `ip`, which must fail; returns what it complains of.
    pub(crate) fn ip_fails(&self, words: &str) -> String {
        let output = Command::new("ip")
            .args(["-n", &self.name])
            .args(words.split_whitespace())
            .output()
            .unwrap();
        assert!(!output.status.success(), "`ip {words}` was to fail");
        String::from_utf8(output.stderr).unwrap()
    }

    /// What `ip -j` lists.
    pub(crate) fn list(&self, words: &str) -> Vec<Value> {
        let text = self.ip(&format!("-j {words}"));
        // `ip` prints nothing at all, or "[{}]", for an empty list.
        if text.trim().is_empty() {
            return Vec::new();
        }
        serde_json::from_str(&text).unwrap()
    }

    /// A batch of `ip` commands, one a line.
    pub(crate) fn ip_batch(&self, lines: &str) {
        let file = self.files.path().join("batch");
        std::fs::write(&file, lines).unwrap();
        self.ip(&format!("-batch {}", file.display()));
        std::fs::remove_file(&file).unwrap();
    }

    /// A setting, by its path below `/proc/sys`.
    pub(crate) fn setting(&self, path: &str) -> String {
        self.shell(&format!("cat /proc/sys/{path}"))
            .trim()
            .to_owned()
    }

    pub(crate) fn set(&self, path: &str, value: &str) {
        self.shell(&format!("echo {value} > /proc/sys/{path}"));
    }

    /// `tartan cleanup` where the kernel's settings cannot be written; its code
    /// and what it said. `ip netns exec` gives the mounts a namespace of their own.
    pub(crate) fn clean_with_read_only_settings(&self) -> (Option<i32>, String) {
        let script = "mount --bind /proc/sys/net /proc/sys/net \
            && mount -o remount,bind,ro /proc/sys/net && exec \"$0\" --root \"$1\" cleanup";
        let output = Command::new("ip")
            .args(["netns", "exec", &self.name, "sh", "-c", script])
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

    /// Runs `body` on a thread inside the namespace, under a runtime there.
    pub(crate) fn inside<T, F>(&self, body: impl FnOnce() -> F + Send) -> T
    where
        T: Send,
        F: Future<Output = T>,
    {
        let namespace = File::open(format!("/run/netns/{}", self.name)).unwrap();
        let work = move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap()
                .block_on(body())
        };
        thread::scope(|scope| match scope.spawn(work).join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }

    /// Everything a clean-up must leave as it was: links, addresses, routes of
    /// all tables, rules, nft rules, settings, and files below the node's root.
    pub(crate) fn census(&self) -> Census {
        let mut lines = BTreeSet::new();
        for (what, words) in [
            ("link", "-o -d link show"),
            ("address", "-o address show"),
            ("route4", "-4 route show table all"),
            ("route6", "-6 route show table all"),
            ("rule4", "-4 rule show"),
            ("rule6", "-6 rule show"),
        ] {
            let text = self.ip(words);
            lines.extend(text.lines().map(|line| format!("{what} {}", steady(line))));
        }
        let settings = self.shell(
            "grep -rs . /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv4/conf /proc/sys/net/ipv6/conf; true",
        );
        lines.extend(settings.lines().map(|line| format!("setting {line}")));
        let ruleset = self.shell("nft -s list ruleset");
        lines.extend(ruleset.lines().map(|line| format!("nft {line}")));
        let files = run(Command::new("find")
            .arg(self.files.path())
            .args(["-type", "f"]));
        lines.extend(files.lines().map(|line| format!("file {line}")));
        Census(lines)
    }

    /// `nft` that goes on running after a script, as the owner of its tables.
    /// Ends when dropped.
    pub(crate) fn spawn_nft(&self, script: &str) -> Running {
        let mut child = Command::new("ip")
            .args(["netns", "exec", &self.name, "nft", "-i"])
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

    /// Waits until a command's answer contains something.
    pub(crate) fn until(&self, script: &str, part: &str) {
        for _ in 0..200 {
            if self.shell(script).contains(part) {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("{part:?} never comes up in `{script}`");
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
        run(Command::new("ip").args(["netns", "exec", &self.name, "python3", "-c", &script]));
    }

    pub(crate) fn shell(&self, script: &str) -> String {
        run(Command::new("ip").args(["netns", "exec", &self.name, "sh", "-c", script]))
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

/// What a namespace held at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Census(BTreeSet<String>);

impl Census {
    /// Fails with the differences, if there are any.
    #[track_caller]
    pub(crate) fn must_be(&self, before: &Census, when: &str) {
        assert!(
            self == before,
            "{when}: lost {:#?}, gained {:#?}",
            before.lost(self),
            self.lost(before)
        );
    }

    /// What is here and not in `later`.
    pub(crate) fn lost<'a>(&'a self, later: &'a Census) -> Vec<&'a str> {
        self.0.difference(&later.0).map(String::as_str).collect()
    }
}

/// A line of `ip` without what the kernel settles in its own time after a
/// link's carrier was looked at.
fn steady(line: &str) -> String {
    let mut words = line.split(' ').peekable();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match word {
            "linkdown" => {}
            "state" | "qdisc" => drop(words.next()),
            other => kept.push(other.replace("NO-CARRIER,", "")),
        }
    }
    kept.join(" ")
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["netns", "del", &self.name])
            .status();
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}
