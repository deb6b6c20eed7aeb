//! Two nodes in namespaces: made, started, asked, and taken away again.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

/// Two nodes and the cable between them.
pub(crate) struct Cluster {
    nodes: Vec<Node>,
    _directory: tempfile::TempDir,
}

/// One node.
pub(crate) struct Node {
    pub(crate) root: PathBuf,
    name: String,
    space: String,
    keeper: Option<Child>,
}

impl Cluster {
    /// Namespaces, cable and files; no agent yet.
    pub(crate) fn empty(backend: &str) -> Cluster {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test makes network namespaces: run it as root"
        );
        let directory = tempfile::tempdir().unwrap();
        let tag = format!(
            "{:x}{:x}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let mut nodes = Vec::new();
        let list: String = (1..=2)
            .map(|i| format!("[[node]]\nname = \"node{i}\"\nsubnets = [\"10.244.{i}.0/24\"]\npublic-ip = \"192.0.2.{i}\"\n"))
            .collect();
        for number in 1..=2 {
            let root = directory.path().join(format!("node{number}"));
            std::fs::create_dir(&root).unwrap();
            let net_conf =
                format!("{{\"Network\":\"10.244.0.0/16\",\"Backend\":{{\"Type\":\"{backend}\"}}}}");
            std::fs::write(root.join("net-conf.json"), net_conf).unwrap();
            std::fs::write(root.join("nodes.toml"), &list).unwrap();
            let space = format!("af-{tag}-{number}");
            command("ip", &["netns", "add", &space]);
            nodes.push(Node {
                root,
                name: format!("node{number}"),
                space,
                keeper: None,
            });
        }
        let [first, second] = [&nodes[0], &nodes[1]];
        first.ip(&[
            "link",
            "add",
            "eth0",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            &second.space,
        ]);
        for (number, node) in [(1, first), (2, second)] {
            node.ip(&["link", "set", "lo", "up"]);
            node.ip(&[
                "address",
                "add",
                &format!("192.0.2.{number}/24"),
                "dev",
                "eth0",
            ]);
            node.ip(&["link", "set", "eth0", "addrgenmode", "none", "up"]);
        }
        Cluster {
            nodes,
            _directory: directory,
        }
    }

    /// A running cluster.
    pub(crate) fn up(backend: &str) -> Cluster {
        let mut cluster = Cluster::empty(backend);
        cluster.start();
        cluster
    }

    pub(crate) fn start(&mut self) {
        for node in &mut self.nodes {
            node.start();
        }
        for node in &self.nodes {
            node.wait();
        }
    }

    /// Starts one node's agent and waits until it answers.
    pub(crate) fn start_node(&mut self, number: usize) {
        self.nodes[number - 1].start();
        self.nodes[number - 1].wait();
    }

    /// Starts one node's agent and leaves it to itself.
    pub(crate) fn launch(&mut self, number: usize) {
        self.nodes[number - 1].start();
    }

    pub(crate) fn kill_keeper(&mut self, number: usize) {
        let mut keeper = self.nodes[number - 1].keeper.take().unwrap();
        keeper.kill().unwrap();
        keeper.wait().unwrap();
    }

    pub(crate) fn node(&self, number: usize) -> &Node {
        &self.nodes[number - 1]
    }

    /// Stops a node's agent; its exit code.
    pub(crate) fn stop(&mut self, number: usize) -> Option<i32> {
        let mut keeper = self.nodes[number - 1].keeper.take().unwrap();
        kill_process(Pid::from_child(&keeper), Signal::TERM).unwrap();
        keeper.wait().unwrap().code()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            if std::thread::panicking() {
                let log = std::fs::read_to_string(node.root.join("log")).unwrap_or_default();
                eprintln!("--- log of {}\n{log}", node.name);
            }
            if let Some(mut keeper) = node.keeper.take() {
                // No unwrap in a drop that may run while a test fails: every step is tried.
                let _ = kill_process(Pid::from_child(&keeper), Signal::TERM);
                let _ = keeper.wait();
            }
            let _ = Command::new("ip")
                .args(["netns", "delete", &node.space])
                .status();
        }
    }
}

impl Node {
    fn start(&mut self) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.root.join("log"))
            .unwrap();
        self.keeper = Some(self.run(&[]).stderr(log).spawn().unwrap());
    }

    fn wait(&self) {
        eventually("the agent answers", || self.tartan(&["status"]).0 == 0);
    }

    pub(crate) fn nodes(&self) -> PathBuf {
        self.root.join("nodes.toml")
    }

    pub(crate) fn net_conf(&self) -> PathBuf {
        self.root.join("net-conf.json")
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.root.join("var/lib/tartan")
    }

    /// `tartan run` in the namespace; words after the defaults win.
    fn run(&self, words: &[&str]) -> Command {
        self.run_by(&[], words)
    }

    /// The same by another program, which gets all of that as its last words.
    fn run_by(&self, program: &[&str], words: &[&str]) -> Command {
        let whole = [program, &[TARTAN]].concat();
        let mut command = self.in_space(whole[0]);
        command
            .args(&whole[1..])
            .args(["--root", self.root.to_str().unwrap(), "run"]);
        for (flag, value) in [
            ("--node-name", self.name.clone()),
            ("--net-conf", self.net_conf().display().to_string()),
            ("--node-file", self.nodes().display().to_string()),
        ] {
            if !words.contains(&flag) {
                command.args([flag, &value]);
            }
        }
        command.args(words).stdin(Stdio::null());
        command
    }

    /// Runs an agent that is expected to end; its code and all that it said.
    pub(crate) fn run_to_end(&self, words: &[&str]) -> (Option<i32>, String) {
        self.run_to_end_by(&[], words)
    }

    /// The same, run by another program.
    pub(crate) fn run_to_end_by(&self, program: &[&str], words: &[&str]) -> (Option<i32>, String) {
        let output = self.run_by(program, words).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }

    /// Asks the agent by its command line; exit code and all that it said.
    pub(crate) fn tartan(&self, words: &[&str]) -> (i32, String) {
        let mut command = self.in_space(TARTAN);
        let output = command
            .env("TARTAN_ROOT", &self.root)
            .args(words)
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.code().unwrap(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }

    pub(crate) fn json(&self, what: &str) -> Value {
        let (_, text) = self.tartan(&[what, "-o", "json"]);
        serde_json::from_str(&text).unwrap_or(Value::String(text))
    }

    /// Says one line to the agent's socket.
    pub(crate) fn call(&self, line: &str) -> Value {
        let socket = cni_shim::RunDir::under(&self.root).socket();
        let mut stream = UnixStream::connect(socket).unwrap();
        writeln!(stream, "{line}").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        serde_json::from_str(&reply).unwrap()
    }

    pub(crate) fn kill_service(&self, signal: Signal) {
        let pid = self.json("status")["service_pid"].as_i64().unwrap();
        kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
    }

    pub(crate) fn ip(&self, words: &[&str]) -> String {
        command("ip", &[&["-n", &self.space], words].concat())
    }

    /// `ip`, its words in one line.
    pub(crate) fn ip_words(&self, words: &str) -> String {
        self.ip(&words.split(' ').collect::<Vec<_>>())
    }

    pub(crate) fn nft(&self, words: &str) -> String {
        self.run_in_space("nft", words)
    }

    /// A program in the node's namespace, its words in one line; what it prints.
    pub(crate) fn run_in_space(&self, program: &str, words: &str) -> String {
        let words: Vec<&str> = words.split(' ').collect();
        let start = ["netns", "exec", &self.space, program];
        command("ip", &[&start[..], &words].concat())
    }

    pub(crate) fn sysctl(&self, setting: &str) {
        command(
            "ip",
            &["netns", "exec", &self.space, "sysctl", "-q", setting],
        );
    }

    pub(crate) fn space(&self) -> &str {
        &self.space
    }

    pub(crate) fn ping(&self, to: &str, count: u32) {
        let answered = answered(self.start_ping(to, count, "0.01"));
        assert_eq!(answered, count, "{} does not reach {to}", self.name);
    }

    /// One request, waited for no longer than 1 s.
    pub(crate) fn reaches(&self, to: &str) -> bool {
        let mut ping = self.in_space("ping");
        let output = ping.args(["-q", "-c", "1", "-W", "1", to]).output();
        output.unwrap().status.success()
    }

    /// So many echo requests and no more, one every so many seconds, each with 5 s at the least for its answer. ping(8)
    /// would take an answer that a busy machine delivers late for lost, or send another request in its place.
    pub(crate) fn start_ping(&self, to: &str, count: u32, every: &str) -> Child {
        self.in_space("python3")
            .args(["-B", PINGS, to, &count.to_string(), every, "5"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Runs code on a thread in the node's namespace.
    pub(crate) fn inside<T: Send + 'static>(&self, body: impl FnOnce() -> T + Send + 'static) -> T {
        let space = File::open(format!("/run/netns/{}", self.space)).unwrap();
        std::thread::spawn(move || {
            let network = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(std::os::fd::AsFd::as_fd(&space), network).unwrap();
            body()
        })
        .join()
        .unwrap()
    }

    fn in_space(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space, program]);
        command
    }
}

/// A file system mounted for a test, taken away when dropped.
pub(crate) struct Mount(PathBuf);

impl Mount {
    /// A small one in memory.
    pub(crate) fn tmpfs(at: &std::path::Path, options: &str) -> Mount {
        std::fs::create_dir_all(at).unwrap();
        let at = at.to_owned();
        let place = at.to_str().unwrap();
        command("mount", &["-t", "tmpfs", "-o", options, "tmpfs", place]);
        Mount(at)
    }

    /// A file on itself, which then cannot be removed.
    pub(crate) fn over(file: &std::path::Path) -> Mount {
        let place = file.to_str().unwrap();
        command("mount", &["--bind", place, place]);
        Mount(file.to_owned())
    }

    pub(crate) fn make_read_only(&self) {
        command("mount", &["-o", "remount,ro", self.0.to_str().unwrap()]);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily: an agent may still have files open there.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// How many requests were answered, when all have been or had their time.
pub(crate) fn answered(ping: Child) -> u32 {
    let output = ping.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let number = text.trim_end().strip_suffix(" received");
    number.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

/// Waits until something holds, for a bounded time.
pub(crate) fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub(crate) fn command(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program} {words:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

static NEXT: AtomicU32 = AtomicU32::new(0);
const TARTAN: &str = env!("CARGO_BIN_EXE_tartan");
const PINGS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../scripts/tests.d/tools/pings.py"
);
