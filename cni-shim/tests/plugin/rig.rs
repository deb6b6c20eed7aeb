//! The rig: a node, its pods, its agent, and a census of what is there.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cni_shim::{Attachment, NodeFile, RunDir};
use serde_json::{Value, json};
use testbed::Namespace;
pub(crate) use testbed::{ip, ping};

/// A node with its namespaces and run directory, all gone when dropped.
pub(crate) struct Rig {
    /// The name of the node's namespace.
    pub(crate) node: String,
    space: Namespace,
    pods: Vec<Namespace>,
    root: tempfile::TempDir,
    agent: Option<FakeAgent>,
}

/// What the plugin answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) ok: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// What the fake agent does with `adopt`.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Mood {
    Adopt,
    Refuse,
    Stall,
    /// Says that its dataplane does not work.
    Dead,
    /// Listens and does not answer.
    Mute,
}

/// Everything a plugin could leak, as text.
#[derive(Debug, PartialEq)]
pub(crate) struct Census {
    node: String,
    pods: Vec<String>,
    records: Vec<String>,
}

impl Rig {
    /// A node with these subnets, its tunnel address, and a willing agent.
    pub(crate) fn new(subnets: &[&str]) -> Rig {
        let space = Namespace::new("cni");
        space.ip("link set lo up");
        let mut rig = Rig {
            node: space.name().to_owned(),
            space,
            pods: Vec::new(),
            root: tempfile::tempdir().unwrap(),
            agent: None,
        };
        rig.run().make().unwrap();
        rig.lease(subnets);
        rig.start_agent(Mood::Adopt);
        rig
    }

    /// From now on these are the node's subnets.
    pub(crate) fn lease(&self, subnets: &[&str]) {
        let node = NodeFile {
            subnets: subnets.iter().map(|s| s.parse().unwrap()).collect(),
            cluster: vec![
                "10.244.0.0/16".parse().unwrap(),
                "fd00::/16".parse().unwrap(),
            ],
            mtu: 1450,
            mtu_v6: Some(1430),
            gather: true,
            pod_queue: true,
        };
        for subnet in &node.subnets {
            let tunnel = subnet.network().to_string();
            ip(&["-n", &self.node, "addr", "replace", &tunnel, "dev", "lo"]);
        }
        node.write(&self.run()).unwrap();
    }

    pub(crate) fn run(&self) -> RunDir {
        RunDir::under(self.root.path())
    }

    /// Makes a pod's namespace and returns its path.
    pub(crate) fn pod(&mut self) -> String {
        let pod = Namespace::new("pod");
        let path = pod.path().into_os_string().into_string().unwrap();
        self.pods.push(pod);
        path
    }

    /// Replaces the agent. Dropping the old one first frees the socket.
    pub(crate) fn start_agent(&mut self, mood: Mood) {
        self.stop_agent();
        let agent = FakeAgent::start(self.run().socket(), mood);
        self.agent = Some(agent);
    }

    pub(crate) fn stop_agent(&mut self) {
        self.agent = None;
        let _ = std::fs::remove_file(self.run().socket());
    }

    /// Every line the present agent was sent.
    pub(crate) fn calls(&self) -> Vec<String> {
        let agent = self.agent.as_ref().unwrap();
        agent.calls.lock().unwrap().clone()
    }

    /// The plain configuration of this node in `version`.
    pub(crate) fn conf(&self, version: &str) -> Value {
        json!({"cniVersion": version, "name": "pods", "type": "tartan-cni",
               "root": self.root.path()})
    }

    pub(crate) fn add(&self, container: &str, ifname: &str, netns: &str) -> Answer {
        let variables = variables("ADD", container, ifname, netns);
        self.call(&variables, self.conf("1.0.0").to_string())
    }

    pub(crate) fn del(&self, container: &str, ifname: &str, netns: &str) -> Answer {
        let variables = variables("DEL", container, ifname, netns);
        self.call(&variables, self.conf("1.0.0").to_string())
    }

    /// Runs the plugin in the node's namespace.
    pub(crate) fn call(&self, variables: &[(&str, &str)], stdin: impl AsRef<[u8]>) -> Answer {
        Answer::of(self.spawn(variables, stdin).wait_with_output().unwrap())
    }

    pub(crate) fn spawn(&self, variables: &[(&str, &str)], stdin: impl AsRef<[u8]>) -> Child {
        feed(self.command(variables), stdin)
    }

    /// The plugin in the node's namespace, its input and outputs piped.
    pub(crate) fn command(&self, variables: &[(&str, &str)]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.node, PLUGIN]);
        prepare(command, variables)
    }

    /// Runs the plugin without the detour that enters the node's namespace.
    pub(crate) fn direct(&self, variables: &[(&str, &str)], stdin: impl AsRef<[u8]>) -> Answer {
        let child = feed(prepare(Command::new(PLUGIN), variables), stdin);
        Answer::of(child.wait_with_output().unwrap())
    }

    /// Runs another copy of the plugin in the node's namespace.
    pub(crate) fn run_program(
        &self,
        program: &Path,
        variables: &[(&str, &str)],
        stdin: impl AsRef<[u8]>,
    ) -> Answer {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.node]).arg(program);
        let child = feed(prepare(command, variables), stdin);
        Answer::of(child.wait_with_output().unwrap())
    }

    /// Runs the plugin in the node's namespace through another program.
    pub(crate) fn run_inside(
        &self,
        through: &[&str],
        variables: &[(&str, &str)],
        stdin: impl AsRef<[u8]>,
    ) -> Answer {
        self.run_by(&[through, &[PLUGIN]].concat(), variables, stdin)
    }

    /// Runs a program that runs the plugin, in the node's namespace.
    pub(crate) fn run_by(
        &self,
        program: &[&str],
        variables: &[(&str, &str)],
        stdin: impl AsRef<[u8]>,
    ) -> Answer {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.node]).args(program);
        let child = feed(prepare(command, variables), stdin);
        Answer::of(child.wait_with_output().unwrap())
    }

    /// A call of `VERB CONTAINER IFNAME` that stands still after a step.
    pub(crate) fn stopped(&self, call: [&str; 3], pod: &str, step: &str) -> Child {
        let [verb, container, ifname] = call;
        let fault = format!("{step}:stop");
        let mut call = variables(verb, container, ifname, pod).to_vec();
        call.push(("TARTAN_CNI_FAULT", &fault));
        let child = self.spawn(&call, self.conf("1.0.0").to_string());
        self.stands_still(&child);
        child
    }

    /// Waits until a plugin stands still (`STEP:stop`).
    pub(crate) fn stands_still(&self, child: &Child) {
        let stat = format!("/proc/{}/stat", child.id());
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let text = std::fs::read_to_string(&stat).unwrap();
            if text.rsplit(')').next().unwrap().starts_with(" T") {
                return;
            }
            assert!(Instant::now() < deadline, "{text}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Lets it go on, and waits for its end.
    pub(crate) fn go_on(&self, child: Child) -> Answer {
        self.stands_still(&child);
        let id = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(id, rustix::process::Signal::CONT).unwrap();
        Answer::of(child.wait_with_output().unwrap())
    }

    /// `ip` in the node's namespace.
    pub(crate) fn ip(&self, arguments: &str) -> String {
        self.space.ip(arguments)
    }

    /// The record of an attachment.
    pub(crate) fn record(&self, container: &str, ifname: &str) -> Attachment {
        Attachment::read(&Attachment::path(&self.run(), container, ifname).unwrap()).unwrap()
    }

    /// What the node's paths hang off.
    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    /// Links, addresses, routes, neighbours and records, now.
    pub(crate) fn census(&self) -> Census {
        let run = self.run();
        let mut records: Vec<String> = std::fs::read_dir(run.attachments())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| {
                !name.starts_with('.')
                    || name.ends_with(".json") && !name.contains("damaged")
                    || name.starts_with(".lock-")
            })
            .collect();
        records.sort();
        Census {
            node: describe(&self.space),
            pods: self.pods.iter().map(describe).collect(),
            records,
        }
    }
}

impl Census {
    /// The names of the records alone.
    pub(crate) fn records(&self) -> Vec<String> {
        self.records.clone()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stop_agent();
    }
}

impl Answer {
    pub(crate) fn of(output: Output) -> Answer {
        Answer {
            ok: output.status.success(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The one JSON value of a success.
    pub(crate) fn result(&self) -> Value {
        assert!(self.ok, "{self:?}");
        serde_json::from_str(&self.stdout).unwrap()
    }

    /// A success that says nothing.
    pub(crate) fn silent(&self) {
        assert!(self.ok, "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
    }

    /// The code and message of a failure, a whole error result.
    pub(crate) fn error(&self) -> (u64, String) {
        assert!(!self.ok, "{self:?}");
        let error: Value = serde_json::from_str(&self.stdout).unwrap();
        assert!(error["cniVersion"].is_string(), "{self:?}");
        assert!(error["details"].is_string(), "{self:?}");
        let message = error["msg"].as_str().unwrap().to_owned();
        (error["code"].as_u64().unwrap(), message)
    }

    /// The first address of a result, without its length.
    pub(crate) fn address(&self) -> String {
        let address = self.result()["ips"][0]["address"].clone();
        let address = address.as_str().unwrap();
        address.split('/').next().unwrap().to_owned()
    }

    /// The host's end of a result.
    pub(crate) fn host_ifname(&self) -> String {
        let name = self.result()["interfaces"][0]["name"].clone();
        name.as_str().unwrap().to_owned()
    }
}

/// The environment of one call.
pub(crate) fn variables<'a>(
    verb: &'a str,
    container: &'a str,
    ifname: &'a str,
    netns: &'a str,
) -> [(&'static str, &'a str); 4] {
    [
        ("CNI_COMMAND", verb),
        ("CNI_CONTAINERID", container),
        ("CNI_IFNAME", ifname),
        ("CNI_NETNS", netns),
    ]
}

/// The program under test.
pub(crate) const PLUGIN: &str = env!("CARGO_BIN_EXE_tartan-cni");

fn prepare(mut command: Command, variables: &[(&str, &str)]) -> Command {
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("CNI_PATH", "/usr/lib/cni")
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn feed(mut command: Command, stdin: impl AsRef<[u8]>) -> Child {
    let mut child = command.spawn().unwrap();
    // A plugin that refuses its environment does not read this.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_ref());
    child
}

/// What is configured in a namespace. The state of links and link-local
/// addresses are left out: the kernel may take a second to come by them.
fn describe(space: &Namespace) -> String {
    let mut text = String::new();
    for what in [
        "-br link show type veth",
        "-br addr show type veth",
        "-4 route show table main",
        "-6 route show table main",
        "neigh show nud permanent",
        "-4 rule show",
        "-6 rule show",
    ] {
        let said = space.ip(what);
        let mut lines: Vec<&str> = said.lines().collect();
        lines.sort_unstable();
        for line in lines {
            let passing = |word: &&str| {
                !["UP", "DOWN"].contains(word)
                    && !word.starts_with('<')
                    && !word.starts_with("fe80:")
            };
            let words: Vec<&str> = line.split_whitespace().filter(passing).collect();
            text += &words.join(" ");
            text.push('\n');
        }
    }
    text
}

struct FakeAgent {
    calls: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FakeAgent {
    fn start(socket: PathBuf, mood: Mood) -> FakeAgent {
        let listener = UnixListener::bind(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let calls = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let (calls, stop) = (calls.clone(), stop.clone());
            move || {
                while !stop.load(Ordering::Relaxed) {
                    match listener.accept() {
                        Ok((stream, _)) => {
                            let (calls, stop) = (calls.clone(), stop.clone());
                            std::thread::spawn(move || answer(stream, mood, &calls, &stop));
                        }
                        Err(_) => std::thread::sleep(Duration::from_millis(1)),
                    }
                }
            }
        });
        FakeAgent {
            calls,
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for FakeAgent {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

/// Serves one connection; one that is to get no answer is kept open.
fn answer(mut stream: UnixStream, mood: Mood, calls: &Mutex<Vec<String>>, stop: &AtomicBool) {
    stream.set_nonblocking(false).unwrap();
    let mut line = String::new();
    if BufReader::new(&stream).read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    calls.lock().unwrap().push(line.trim_end().to_owned());
    let adopt = line.contains("\"adopt\"");
    let ready = line.contains("\"ready\"");
    let reply: &[u8] = match mood {
        Mood::Mute => b"",
        Mood::Stall if adopt => b"",
        Mood::Dead if ready => b"{\"error\":\"no worker forwards\"}\n",
        Mood::Refuse if adopt => b"{\"error\":\"not today\"}\n",
        _ => b"{\"ok\":{}}\n",
    };
    while reply.is_empty() && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = stream.write_all(reply);
}
