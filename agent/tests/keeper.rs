//! The keeper against a child whose every step is known: this test binary, run again.
//!
//! ```text
//!   test ── starts ──▶ keeper_process ── starts ──▶ service_process      both write what they see into `log`
//! ```
// threads: 4: its tests wait for processes most of the time

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::fs::{self, OpenOptions};
use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant, SystemTime};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, kill_process};
use tartan::keeper::channel::{Channel, FromKeeper, FromService, TablePart};
use tartan::keeper::child::Program;
use tartan::keeper::{self, COUNTERS, Identity, handed_state};
use tokio::signal::unix::{SignalKind, signal};

#[path = "keeper/handover.rs"]
mod handover;
#[path = "keeper/upgrade.rs"]
mod upgrade;

const DIRECTORY: &str = "TARTAN_TEST_DIRECTORY";
const SCRIPT: &str = "TARTAN_TEST_SCRIPT";

// What the tests see.

#[test]
fn descriptors_and_what_waits_in_them_survive_a_killed_service() {
    let mut rig = Rig::start("forward");
    let port: u16 = rig.word_after("port").parse().unwrap();
    rig.wait_for("forwarding", 1);
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.connect(("127.0.0.1", port)).unwrap();
    for life in 2..=4 {
        rig.kill_service(life - 2, Signal::KILL);
        for _ in 0..10 {
            // No process reads, and yet no sender learns that the port is closed.
            sender.send(b"kept").unwrap();
        }
        rig.wait_for("forwarding", life);
    }
    let lives = rig.lines("life");
    assert!(
        lives[0].contains("restarts=0 names= heard=0 last=-"),
        "{}",
        lives[0]
    );
    for (index, life) in lives.iter().enumerate().skip(1) {
        let expected =
            format!("restarts={index} names=kept,udp heard=10 last=was killed by signal 9");
        assert!(life.contains(&expected), "{life}");
    }
    rig.stop_with_code(0);
}

#[test]
fn go_comes_after_ready_and_not_before() {
    let mut rig = Rig::start("forward");
    rig.wait_for("forwarding", 1);
    let order: Vec<String> = rig
        .log()
        .lines()
        .filter_map(|line| line.split(' ').nth(1).map(str::to_owned))
        .collect();
    assert_eq!(
        order,
        ["life", "port", "silence", "ready", "go", "forwarding"]
    );
    rig.stop_with_code(0);
    assert_eq!(
        rig.lines("term").len(),
        1,
        "the service was asked to stop, not killed"
    );
}

#[test]
fn deaths_are_followed_at_once_then_later_and_later() {
    let mut rig = Rig::start("abort");
    rig.wait_for("life", 5);
    let at: Vec<u64> = rig
        .lines("life")
        .iter()
        .map(|line| line.split(' ').next().unwrap().parse().unwrap())
        .collect();
    let gaps: Vec<u64> = at
        .windows(2)
        .take(4)
        .map(|pair| pair[1] - pair[0])
        .collect();
    // Each wait is a lower bound; starting a process on a busy machine comes on top.
    for (gap, least) in gaps.iter().zip([0, 100, 200, 400]) {
        assert!(*gap >= least, "{gaps:?}");
    }
    assert!(gaps[0] < 2000, "the first restart does not wait: {gaps:?}");
    rig.stop_with_code(0);
}

#[test]
fn a_start_that_fails_by_itself_is_final_and_its_code_is_ours() {
    let mut rig = Rig::start("refuse");
    assert_eq!(rig.ended().code(), Some(7));
    assert_eq!(rig.lines("life").len(), 1);
}

#[test]
fn a_service_that_once_forwarded_is_started_again_however_it_ends() {
    let mut rig = Rig::start("forward");
    rig.wait_for("forwarding", 1);
    rig.kill_service(0, Signal::TERM);
    rig.wait_for("forwarding", 2);
    assert!(rig.lines("life")[1].contains("last=ended with exit code 0"));
    rig.stop_with_code(0);
}

/// The keeper finds its word and its end at once.
#[test]
fn a_service_that_ended_before_its_word_was_read_has_forwarded() {
    let mut rig = Rig::start("unread");
    rig.wait_for("forwarding", 1);
    rig.kill_service(0, Signal::TERM);
    let status = format!("/proc/{}/stat", rig.service(0));
    testbed::eventually("the service ends", || {
        fs::read_to_string(&status).unwrap().contains(") Z ")
    });
    kill_process(Pid::from_child(&rig.keeper), Signal::CONT).unwrap();
    rig.wait_for("forwarding", 2);
    rig.stop_with_code(0);
}

/// Its files may be other ones since it read them.
#[test]
fn a_hangup_while_a_service_begins_to_wait_has_the_next_one_read_again() {
    let mut rig = Rig::start("waits");
    rig.wait_for("forwarding", 1);
    assert_eq!(rig.lines("life").len(), 2);
    rig.stop_with_code(0);
}

#[test]
fn a_binary_that_is_away_for_a_while_is_waited_for() {
    let mut rig = Rig::start("replaced");
    rig.wait_for("forwarding", 1);
    let (binary, away) = (rig.binary(), rig.binary().with_extension("away"));
    fs::rename(&binary, &away).unwrap();
    rig.kill_service(0, Signal::KILL);
    std::thread::sleep(Duration::from_millis(500));
    assert!(rig.keeper.try_wait().unwrap().is_none(), "the keeper stays");
    fs::rename(&away, &binary).unwrap();
    rig.wait_for("forwarding", 2);
    let life = &rig.lines("life")[1];
    let expected = "restarts=1 names=kept,udp heard=0 last=was killed by signal 9";
    assert!(life.contains(expected), "{life}");
    rig.stop_with_code(0);
}

#[test]
fn a_binary_that_was_never_there_is_final() {
    let mut rig = Rig::start("missing");
    assert_eq!(rig.ended().code(), Some(99));
}

#[test]
fn a_killed_keeper_takes_its_service_with_it() {
    let mut rig = Rig::start("forward");
    rig.wait_for("forwarding", 1);
    let service = rig.service(0);
    rig.keeper.kill().unwrap();
    rig.keeper.wait().unwrap();
    rig.wait_for("eof", 1);
    let deadline = Instant::now() + PATIENCE;
    while Path::new(&format!("/proc/{service}")).exists() {
        assert!(Instant::now() < deadline, "the service outlives its keeper");
        std::thread::sleep(STEP);
    }
}

#[test]
fn a_service_that_will_not_stop_is_killed_after_a_bounded_wait() {
    let mut rig = Rig::start("deaf");
    rig.wait_for("forwarding", 1);
    let asked = Instant::now();
    rig.stop_with_code(0);
    assert!(
        asked.elapsed() >= Duration::from_secs(5),
        "{:?}",
        asked.elapsed()
    );
    assert!(
        asked.elapsed() < Duration::from_secs(15),
        "{:?}",
        asked.elapsed()
    );
}

#[test]
fn the_keeper_kills_a_service_with_a_stalled_worker() {
    let mut rig = Rig::start("stall");
    rig.wait_for("forwarding", 1);
    rig.wait_for("life", 2);
    let lives = rig.lines("life");
    assert!(
        lives[1].contains("last=was killed by signal 9"),
        "{}",
        lives[1]
    );
    rig.stop_with_code(0);
}

#[test]
fn a_second_keeper_on_one_directory_is_refused_with_the_first_ones_id() {
    let mut rig = Rig::start("forward");
    rig.wait_for("forwarding", 1);
    let second = keeper_command(rig.directory.path(), "forward")
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(99));
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(
        said.contains(&format!("process {}", rig.keeper.id())),
        "{said}"
    );
    rig.stop_with_code(0);
}

/// The test plays systemd: it keeps what it is given, and starts the next agent with it.
#[test]
fn the_service_manager_is_told_and_keeps_the_table() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let manager = Manager::listen(&path);
    let mut command = keeper_command(directory.path(), "forward");
    command
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "20000000");
    let keeper = command.spawn().unwrap();
    let mut rig = Rig { directory, keeper };
    rig.wait_for("forwarding", 1);
    let mut said = manager.until("STATUS=the service forwards");
    manager.until("WATCHDOG=1");
    let texts: Vec<&str> = said.iter().map(|(text, _)| &**text).collect();
    let place = |part: &str| {
        texts
            .iter()
            .position(|text| *text == part)
            .unwrap_or_else(|| panic!("{part:?} is not in {texts:?}"))
    };
    let store = |name: &str| format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0");
    assert!(place("STATUS=the service starts") < place(&store("udp")));
    assert!(place(&store("udp")) < place("READY=1"));
    assert!(place(&store("gone")) < place("FDSTOREREMOVE=1\nFDNAME=gone"));
    assert!(place("READY=1") < place("STATUS=the service forwards"));
    let mut kept = |name: &str| {
        let found = said.iter_mut().find(|(text, _)| *text == store(name));
        found.unwrap().1.take().unwrap()
    };
    let (udp, file) = (kept("udp"), kept("kept"));
    let port: u16 = rig.word_after("port").parse().unwrap();
    rig.keeper.kill().unwrap();
    rig.keeper.wait().unwrap();
    rig.wait_for("eof", 1);
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.connect(("127.0.0.1", port)).unwrap();
    for _ in 0..10 {
        sender.send(b"kept").unwrap();
    }
    // Number 5 is not open, one name comes three times, and the last is none.
    let names = "udp:kept:broken:thrice:thrice:thrice:";
    let script = format!(
        "exec 3<&0 4<&1 </dev/null >&2 6<&4 7<&4 8<&4 9<&4; export LISTEN_PID=$$ LISTEN_FDS=7 LISTEN_FDNAMES='{names}'; exec \"$0\" \"$@\""
    );
    let inner = keeper_command(rig.directory.path(), "forward");
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(script)
        .arg(inner.get_program())
        .args(inner.get_args());
    command.envs(
        inner
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    command.env("NOTIFY_SOCKET", &path).stdin(udp).stdout(file);
    rig.keeper = command.spawn().unwrap();
    rig.wait_for("forwarding", 2);
    let life = &rig.lines("life")[1];
    assert!(
        life.contains("restarts=0 names=kept,udp heard=10 last=-"),
        "{life}"
    );
    let said = manager.until("STATUS=the service forwards");
    for name in ["broken", "thrice"] {
        let removed = format!("FDSTOREREMOVE=1\nFDNAME={name}");
        assert!(said.iter().any(|(text, _)| *text == removed), "{name}");
    }
    // This service does not know the signal, and the next one has read its files.
    kill_process(Pid::from_child(&rig.keeper), Signal::HUP).unwrap();
    manager.until("RELOADING=1");
    manager.until("READY=1");
    rig.wait_for("forwarding", 3);
    rig.stop_with_code(0);
    manager.until("STOPPING=1");
}

/// The socket of a service manager.
struct Manager(UnixDatagram);

impl Manager {
    fn listen(path: &Path) -> Manager {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Manager(socket)
    }

    /// What comes until a message that begins so, with the descriptor beside each.
    fn until(&self, beginning: &str) -> Vec<(String, Option<OwnedFd>)> {
        let mut all = Vec::new();
        loop {
            let (text, descriptor) = self.next();
            let is_last = text.starts_with(beginning);
            all.push((text, descriptor));
            if is_last {
                return all;
            }
        }
    }

    fn next(&self) -> (String, Option<OwnedFd>) {
        let mut text = [0; 512];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(&mut text)];
        let received = recvmsg(&self.0, parts, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
        let descriptor = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
            _ => None,
        });
        (
            String::from_utf8(text[..received.bytes].to_vec()).unwrap(),
            descriptor,
        )
    }
}

// The other two processes.

#[test]
#[ignore = "the keeper of the tests above, not a test"]
fn keeper_process() {
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).expect("started by a test"));
    if let Some(state) = handed_state::take() {
        upgrade::say_executed(&directory);
        let code = block_on(keeper::go_on(state.unwrap())).unwrap();
        std::process::exit(code.into());
    }
    let arguments = ["--exact", "service_process", "--ignored", "--nocapture"];
    let own = std::env::current_exe().unwrap();
    let path = match std::env::var(SCRIPT).unwrap().as_str() {
        "replaced" => {
            std::os::unix::fs::symlink(own, directory.join(BINARY)).unwrap();
            directory.join(BINARY)
        }
        "missing" => directory.join(BINARY),
        _ => own,
    };
    let program = Program {
        path,
        arguments: arguments.map(Into::into).to_vec(),
    };
    let identity = Identity {
        run_dir: directory.join("run"),
        program,
        log: "info".to_owned(),
        instance: handover::instance(),
    };
    let code = block_on(keeper::run(identity)).unwrap_or_else(|error| {
        eprintln!("{error}");
        99
    });
    std::process::exit(code.into());
}

#[test]
#[ignore = "the service of the tests above, not a test"]
fn service_process() {
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).expect("started by a test"));
    let script = std::env::var(SCRIPT).unwrap();
    block_on(serve(&directory, &script));
}

async fn serve(directory: &Path, script: &str) {
    let mut terminate = signal(SignalKind::terminate()).unwrap();
    let inherited = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let channel = Channel::adopt(inherited).unwrap();
    let (part, descriptors) = table(&channel).await;
    let mut descriptors: Vec<(String, OwnedFd)> =
        part.names.iter().cloned().zip(descriptors).collect();
    let adopted = descriptors
        .iter()
        .position(|(name, _)| name == "udp")
        .map(|index| UdpSocket::from(descriptors.swap_remove(index).1));
    say(
        directory,
        &format!(
            "life pid={} restarts={} names={} heard={} last={}",
            std::process::id(),
            part.restarts,
            part.names.join(","),
            adopted.as_ref().map_or(0, heard),
            part.last_end.as_deref().unwrap_or("-"),
        ),
    );
    match script {
        "abort" => std::process::abort(),
        "refuse" => std::process::exit(7),
        "waits" if part.restarts == 0 => {
            kill_process(rustix::process::getppid().unwrap(), Signal::HUP).unwrap();
            // It is read before the word.
            tokio::time::sleep(Duration::from_millis(200)).await;
            channel.send(&FromService::Waiting, &[]).await.unwrap();
            std::future::pending().await
        }
        _ => {}
    }
    if script.starts_with(upgrade::SCRIPTS) {
        return upgrade::serve(directory, script, channel, part, terminate).await;
    }
    if script.starts_with(handover::SCRIPTS) {
        return handover::serve(directory, script, channel, part, terminate).await;
    }
    if adopted.is_none() {
        open_and_deposit(&channel, directory, script).await;
    }
    let early = tokio::time::timeout(Duration::from_millis(200), channel.receive::<FromKeeper>());
    assert!(early.await.is_err(), "nothing comes before ready");
    say(directory, "silence");
    say(directory, "ready");
    channel.send(&FromService::Ready, &[]).await.unwrap();
    let (message, _) = channel.receive::<FromKeeper>().await.unwrap().unwrap();
    assert_eq!(message, FromKeeper::Go);
    say(directory, "go");
    if script == "unread" && part.restarts == 0 {
        stop_wholly(rustix::process::getppid().unwrap());
    }
    channel.send(&FromService::Forwarding, &[]).await.unwrap();
    say(directory, "forwarding");
    loop {
        tokio::select! {
            _ = terminate.recv() => {
                if script != "deaf" {
                    say(directory, "term");
                    std::process::exit(0);
                }
            }
            message = channel.receive::<FromKeeper>() => {
                assert!(matches!(message, Ok(None)), "{message:?}");
                say(directory, "eof");
                std::process::exit(0);
            }
        }
    }
}

/// Stops each of its threads, once they wait for something to be said.
fn stop_wholly(process: Pid) {
    let threads = format!("/proc/{}/task", process.as_raw_nonzero());
    let are_all = |state: &str| {
        fs::read_dir(&threads).unwrap().all(|thread| {
            let status = fs::read_to_string(thread.unwrap().path().join("stat")).unwrap();
            status.contains(state)
        })
    };
    while !are_all(") S ") {
        std::thread::sleep(STEP);
    }
    kill_process(process, Signal::STOP).unwrap();
    while !are_all(") T ") {
        std::thread::sleep(STEP);
    }
}

async fn table(channel: &Channel) -> (TablePart, Vec<OwnedFd>) {
    match channel.receive::<FromKeeper>().await.unwrap().unwrap() {
        (FromKeeper::Table(part), descriptors) => {
            assert!(part.last);
            assert_eq!(part.names.len(), descriptors.len());
            (part, descriptors)
        }
        (other, _) => panic!("the table comes first, not {other:?}"),
    }
}

async fn open_and_deposit(channel: &Channel, directory: &Path, script: &str) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let file = tempfile::tempfile().unwrap();
    for (name, descriptor) in [
        ("udp", socket.as_fd()),
        ("kept", file.as_fd()),
        ("gone", file.as_fd()),
    ] {
        channel
            .send(&FromService::Deposit(name.into()), &[descriptor])
            .await
            .unwrap();
    }
    channel
        .send(&FromService::Withdraw("gone".into()), &[])
        .await
        .unwrap();
    if script == "stall" {
        let counters = dataplane::counters::Counters::create(1).unwrap();
        let deposit = FromService::Deposit(COUNTERS.into());
        channel
            .send(&deposit, &[counters.descriptor()])
            .await
            .unwrap();
    }
    say(
        directory,
        &format!("port {}", socket.local_addr().unwrap().port()),
    );
}

fn heard(socket: &UdpSocket) -> usize {
    socket
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    std::iter::from_fn(|| socket.recv(&mut [0; 16]).ok()).count()
}

fn say(directory: &Path, what: &str) {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_millis();
    let mut log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(directory.join("log"))
        .unwrap();
    // In one call: two processes that say something at once have a line each.
    log.write_all(format!("{now} {what}\n").as_bytes()).unwrap();
}

fn block_on<F: Future>(body: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(body)
}

// The rig.

struct Rig {
    directory: tempfile::TempDir,
    keeper: Child,
}

impl Rig {
    fn start(script: &str) -> Rig {
        let directory = tempfile::tempdir().unwrap();
        let keeper = keeper_command(directory.path(), script).spawn().unwrap();
        Rig { directory, keeper }
    }

    /// The service's path under the script "replaced".
    fn binary(&self) -> PathBuf {
        self.directory.path().join(BINARY)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    fn lines(&self, word: &str) -> Vec<String> {
        let log = self.log();
        log.lines()
            .filter(|line| line.split(' ').nth(1) == Some(word))
            .map(str::to_owned)
            .collect()
    }

    fn wait_for(&self, word: &str, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.lines(word).len() < count {
            assert!(
                Instant::now() < deadline,
                "no {count}. {word:?} in:\n{}",
                self.log()
            );
            std::thread::sleep(STEP);
        }
    }

    fn word_after(&self, word: &str) -> String {
        self.wait_for(word, 1);
        self.lines(word)[0].split(' ').nth(2).unwrap().to_owned()
    }

    fn service(&self, life: usize) -> i32 {
        let lives = self.lines("life");
        let (_, rest) = lives[life].split_once("pid=").unwrap();
        rest.split(' ').next().unwrap().parse().unwrap()
    }

    fn kill_service(&self, life: usize, signal: Signal) {
        kill_process(Pid::from_raw(self.service(life)).unwrap(), signal).unwrap();
    }

    fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.keeper.try_wait().unwrap() {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "the keeper does not end:\n{}",
                self.log()
            );
            std::thread::sleep(STEP);
        }
    }

    fn stop_with_code(&mut self, code: i32) {
        kill_process(Pid::from_child(&self.keeper), Signal::TERM).unwrap();
        assert_eq!(self.ended().code(), Some(code));
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Ok(None) = self.keeper.try_wait() {
            self.keeper.kill().unwrap();
            self.keeper.wait().unwrap();
        }
    }
}

fn keeper_command(directory: &Path, script: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "keeper_process", "--ignored", "--nocapture"])
        .env(DIRECTORY, directory)
        .env(SCRIPT, script);
    command
}

const BINARY: &str = "service";
const PATIENCE: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(10);
