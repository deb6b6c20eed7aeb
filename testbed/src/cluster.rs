//! Two nodes in namespaces, each with its agent: made, started, asked, and taken away again.
//!
//! ```text
//!   node1 (namespace) eth0 192.0.2.1 ═══ veth ═══ eth0 192.0.2.2 (namespace) node2
//! ```

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{Namespace, command, eventually, run};

/// Two nodes and the cable between them.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
    _directory: tempfile::TempDir,
}

/// One node.
#[derive(Debug)]
pub struct Node {
    /// What the agent's paths hang off (`--root`).
    pub root: PathBuf,
    name: String,
    space: Namespace,
    program: PathBuf,
    keeper: Option<Child>,
}

impl Cluster {
    /// Namespaces, cable and files, for agents of the program `tartan`; none is started yet.
    pub fn empty(tartan: &str, backend: &str) -> Cluster {
        let directory = tempfile::tempdir().unwrap();
        let list: String = (1..=2)
            .map(|i| format!("[[node]]\nname = \"node{i}\"\nsubnets = [\"10.244.{i}.0/24\"]\npublic-ip = \"192.0.2.{i}\"\n"))
            .collect();
        let nodes = (1..=2).map(|number| {
            let name = format!("node{number}");
            let root = directory.path().join(&name);
            std::fs::create_dir(&root).unwrap();
            let net_conf =
                format!("{{\"Network\":\"10.244.0.0/16\",\"Backend\":{{\"Type\":\"{backend}\"}}}}");
            std::fs::write(root.join("net-conf.json"), net_conf).unwrap();
            std::fs::write(root.join("nodes.toml"), &list).unwrap();
            Node {
                root,
                space: Namespace::new(&name),
                name,
                program: tartan.into(),
                keeper: None,
            }
        });
        let nodes = Vec::from_iter(nodes);
        let [first, second] = [&nodes[0].space, &nodes[1].space];
        first.ip(&format!(
            "link add eth0 type veth peer name eth0 netns {}",
            second.name()
        ));
        for (number, space) in [(1, first), (2, second)] {
            space.ip("link set lo up");
            space.ip(&format!("address add 192.0.2.{number}/24 dev eth0"));
            space.ip("link set eth0 addrgenmode none up");
        }
        Cluster {
            nodes,
            _directory: directory,
        }
    }

    /// A running cluster.
    pub fn up(tartan: &str, backend: &str) -> Cluster {
        let mut cluster = Cluster::empty(tartan, backend);
        cluster.start();
        cluster
    }

    /// Starts both agents and waits until both answer.
    pub fn start(&mut self) {
        for node in &mut self.nodes {
            node.start();
        }
        for node in &self.nodes {
            node.wait();
        }
    }

    /// Starts one node's agent and waits until it answers.
    pub fn start_node(&mut self, number: usize) {
        self.nodes[number - 1].start();
        self.nodes[number - 1].wait();
    }

    /// Starts one node's agent and leaves it to itself.
    pub fn launch(&mut self, number: usize) {
        self.nodes[number - 1].start();
    }

    /// Kills one node's keeper; the service ends with it.
    pub fn kill_keeper(&mut self, number: usize) {
        let mut keeper = self.nodes[number - 1].keeper.take().unwrap();
        keeper.kill().unwrap();
        keeper.wait().unwrap();
    }

    /// Node 1 or 2.
    pub fn node(&self, number: usize) -> &Node {
        &self.nodes[number - 1]
    }

    /// Stops a node's agent; its exit code.
    pub fn stop(&mut self, number: usize) -> Option<i32> {
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

    /// The list of nodes that the agent watches.
    pub fn nodes(&self) -> PathBuf {
        self.root.join("nodes.toml")
    }

    /// The network configuration that the agent reads.
    pub fn net_conf(&self) -> PathBuf {
        self.root.join("net-conf.json")
    }

    /// The agent's state directory.
    pub fn state_dir(&self) -> PathBuf {
        self.root.join("var/lib/tartan")
    }

    /// `tartan run` in the namespace; words after the defaults win.
    fn run(&self, words: &[&str]) -> Command {
        self.run_by(&[], words)
    }

    /// The same by another program, which gets all of that as its last words.
    fn run_by(&self, program: &[&str], words: &[&str]) -> Command {
        let whole = [program, &[self.program.to_str().unwrap()]].concat();
        let mut command = self.space.program(whole[0]);
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
        // Tests count every packet, and bring about what probes would report.
        command.env("TARTAN_PROBE", "false");
        command.args(words).stdin(Stdio::null());
        command
    }

    /// Runs an agent that is expected to end; its code and all that it said.
    pub fn run_to_end(&self, words: &[&str]) -> (Option<i32>, String) {
        self.run_to_end_by(&[], words)
    }

    /// The same, run by another program.
    pub fn run_to_end_by(&self, program: &[&str], words: &[&str]) -> (Option<i32>, String) {
        let output = self.run_by(program, words).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }

    /// Asks the agent by its command line; exit code and all that it said.
    pub fn tartan(&self, words: &[&str]) -> (i32, String) {
        let output = self
            .space
            .program(self.program.to_str().unwrap())
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

    /// What a command of the agent says with `-o json`; what is no JSON comes as a string.
    pub fn json(&self, what: &str) -> Value {
        let (_, text) = self.tartan(&[what, "-o", "json"]);
        serde_json::from_str(&text).unwrap_or(Value::String(text))
    }

    /// Says one line to the agent's socket.
    pub fn call(&self, line: &str) -> Value {
        let socket = self.root.join("run/tartan/tartan.sock");
        let mut stream = UnixStream::connect(socket).unwrap();
        writeln!(stream, "{line}").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        serde_json::from_str(&reply).unwrap()
    }

    /// Sends a signal to the service, the keeper's child.
    pub fn kill_service(&self, signal: Signal) {
        let pid = self.json("status")["service_pid"].as_i64().unwrap();
        kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
    }

    /// Runs `ip` in the node's namespace.
    pub fn ip(&self, words: &[&str]) -> String {
        command("ip", &[&["-n", self.space.name()], words].concat())
    }

    /// The same, its words in one line.
    pub fn ip_words(&self, words: &str) -> String {
        self.space.ip(words)
    }

    /// Runs `nft` in the node's namespace, its words in one line.
    pub fn nft(&self, words: &str) -> String {
        self.run_in_space("nft", words)
    }

    /// A program in the node's namespace, its words in one line; what it prints.
    pub fn run_in_space(&self, program: &str, words: &str) -> String {
        run(self.space.program(program).args(words.split(' ')))
    }

    /// Changes a setting of the kernel: `name=value`, as sysctl(8) takes it.
    pub fn sysctl(&self, setting: &str) {
        run(self.space.program("sysctl").args(["-q", setting]));
    }

    /// The node's network namespace.
    pub fn space(&self) -> &Namespace {
        &self.space
    }

    /// Fails unless each of `count` echo requests is answered.
    pub fn ping(&self, to: &str, count: u32) {
        let answered = answered(self.start_ping(to, count, "0.01"));
        assert_eq!(answered, count, "{} does not reach {to}", self.name);
    }

    /// One request, waited for no longer than 1 s.
    pub fn reaches(&self, to: &str) -> bool {
        let mut ping = self.space.program("ping");
        let output = ping.args(["-q", "-c", "1", "-W", "1", to]).output();
        output.unwrap().status.success()
    }

    /// So many echo requests and no more, one every so many seconds, each with 5 s at the least for its answer. ping(8)
    /// would take an answer that a busy machine delivers late for lost, or send another request in its place.
    pub fn start_ping(&self, to: &str, count: u32, every: &str) -> Child {
        self.space
            .program("python3")
            .args(["-B", PINGS, to, &count.to_string(), every, "5"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Runs code on a thread of its own in the node's namespace.
    pub fn inside<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        self.space.inside(body)
    }
}

/// How many requests were answered, when all have been or had their time.
pub fn answered(ping: Child) -> u32 {
    let output = ping.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let number = text.trim_end().strip_suffix(" received");
    number.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

const PINGS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../scripts/tests.d/tools/pings.py"
);
