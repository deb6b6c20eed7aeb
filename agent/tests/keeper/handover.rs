//! Two agents on one run directory, one of which takes over from the other.
//!
//! A service of these scripts reads only while it holds a lock of its own file, as the real one does, and says so in the log
//! by the name of its agent: `a-forwarding`. It answers the API for the one request that matters here.

use std::fs::TryLockError;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};

use tartan::keeper::channel::HandOverRequest;
use tokio::signal::unix::Signal as Signals;
use tokio::sync::mpsc;

use super::*;

/// What scripts of this file begin with.
pub(crate) const SCRIPTS: &str = "handover-";

/// An agent beside the first, which the rig has.
struct Second(Child);

impl Second {
    fn start(rig: &Rig, name: &str, script: &str) -> Second {
        let mut command = keeper_command(rig.directory.path(), script);
        Second(command.env(INSTANCE, name).spawn().unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    fn runs(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    fn stop_with_code(mut self, code: i32) {
        self.signal(Signal::TERM);
        assert_eq!(self.0.wait().unwrap().code(), Some(code));
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        if self.runs() {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }
}

fn first(script: &str) -> Rig {
    let directory = tempfile::tempdir().unwrap();
    let mut command = keeper_command(directory.path(), script);
    let keeper = command.env(INSTANCE, "a").spawn().unwrap();
    let rig = Rig { directory, keeper };
    rig.wait_for("a-forwarding", 1);
    rig
}

/// The table of the service that begins after this one is killed.
fn table_after_death(rig: &Rig, life: usize) -> String {
    let lives = rig.lines("life").len();
    rig.kill_service(life, Signal::KILL);
    rig.wait_for("life", lives + 1);
    rig.lines("life").remove(lives)
}

/// The files of the rig, and of its deposits, that the keeper has open.
fn held_by(rig: &Rig) -> Vec<PathBuf> {
    let open = fs::read_dir(format!("/proc/{}/fd", rig.keeper.id())).unwrap();
    open.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .filter(|path| path.starts_with(rig.directory.path()) || path.ends_with("kept"))
        .collect()
}

fn in_order(rig: &Rig, words: &[&str]) {
    let log = rig.log();
    let place = |word: &&str| {
        log.find(*word)
            .unwrap_or_else(|| panic!("no {word} in {log}"))
    };
    let places: Vec<usize> = words.iter().map(place).collect();
    assert!(places.is_sorted(), "{words:?} in {log}");
}

#[test]
fn handover_the_second_agent_forwards_and_the_first_holds_nothing() {
    let mut rig = first("handover-good");
    let mut second = Second::start(&rig, "b", "handover-good");
    rig.wait_for("a-end", 1);
    in_order(&rig, &["a-paused", "b-go", "b-forwarding", "a-end"]);
    assert_eq!(rig.lines("a-resumed").len(), 0);
    // It stays, and what it had open is the other's alone, as soon as it has seen its service's end.
    assert!(rig.keeper.try_wait().unwrap().is_none());
    let deadline = Instant::now() + PATIENCE;
    while !held_by(&rig).is_empty() {
        assert!(Instant::now() < deadline, "{:?}", held_by(&rig));
        std::thread::sleep(STEP);
    }
    // The lock has never been free, and is the second's.
    let third = keeper_command(rig.directory.path(), "forward")
        .output()
        .unwrap();
    assert_eq!(third.status.code(), Some(99));
    let said = String::from_utf8_lossy(&third.stderr).into_owned();
    assert!(
        said.contains(&format!("process {}", second.0.id())),
        "{said}"
    );
    rig.stop_with_code(0);
    assert!(second.runs());
    assert_eq!(rig.lines("b-term").len(), 0);
    let table = table_after_death(&rig, 1);
    assert!(
        table.contains("restarts=1 names=given-a,given-b,kept"),
        "{table}"
    );
    second.stop_with_code(0);
}

#[test]
fn handover_back_is_not_asked_for_and_comes_when_the_other_ends() {
    let mut rig = first("handover-good");
    let second = Second::start(&rig, "b", "handover-good");
    rig.wait_for("a-end", 1);
    // In another process it is the same instance.
    rig.keeper.kill().unwrap();
    rig.keeper.wait().unwrap();
    let again = Second::start(&rig, "a", "handover-good");
    std::thread::sleep(Duration::from_millis(1500));
    assert!(rig.lines("b-paused").is_empty(), "{}", rig.log());
    second.kill();
    rig.wait_for("a-forwarding", 2);
    // It has the lock again, and hands over again.
    let third = Second::start(&rig, "c", "handover-good");
    rig.wait_for("a-end", 2);
    again.stop_with_code(0);
    third.stop_with_code(0);
}

#[test]
fn handover_the_first_goes_on_where_the_second_is_killed_later() {
    let mut rig = first("handover-good");
    let second = Second::start(&rig, "b", "handover-good");
    rig.wait_for("a-end", 1);
    second.kill();
    rig.wait_for("a-forwarding", 2);
    rig.stop_with_code(0);
}

#[test]
fn handover_to_what_does_not_come_to_it_goes_back() {
    for script in ["handover-mute", "handover-exits", "handover-closes"] {
        let mut rig = first("handover-good");
        let mut second = Second::start(&rig, "b", script);
        rig.wait_for("a-resumed", 1);
        in_order(&rig, &["a-paused", "b-go", "a-resumed"]);
        // It does not cost a pause again soon.
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(rig.lines("a-resumed").len(), 1, "{script}");
        assert!(second.runs(), "{script}");
        second.stop_with_code(0);
        rig.stop_with_code(0);
        assert!(rig.lines("a-end").is_empty());
    }
}

#[test]
fn handover_to_what_is_never_ready_touches_nothing() {
    for script in ["handover-refuses", "handover-early"] {
        let mut rig = first("handover-good");
        let second = Second::start(&rig, "b", script);
        rig.wait_for("life", 3);
        assert!(rig.lines("a-paused").is_empty(), "{script}");
        second.stop_with_code(0);
        rig.stop_with_code(0);
    }
}

/// The old service ends, and the next one is started by the other keeper from its table.
#[test]
fn handover_to_what_needs_other_descriptors_is_a_start() {
    let mut rig = first("handover-good");
    let second = Second::start(&rig, "b", "handover-differs");
    rig.wait_for("b-forwarding", 1);
    in_order(&rig, &["b-table", "a-term", "b-forwarding"]);
    assert!(rig.lines("a-paused").is_empty());
    let third = rig.lines("life").remove(2);
    assert!(third.contains("restarts=0 names=given-a,kept"), "{third}");
    assert!(rig.keeper.try_wait().unwrap().is_none());
    second.kill();
    rig.wait_for("a-forwarding", 2);
    rig.stop_with_code(0);
}

#[test]
fn handover_of_a_service_that_does_not_pause_goes_back() {
    let mut rig = first("handover-busy");
    let second = Second::start(&rig, "b", "handover-good");
    rig.wait_for("a-resumed", 1);
    assert!(rig.lines("b-go").is_empty());
    second.stop_with_code(0);
    rig.stop_with_code(0);
}

#[test]
fn handover_of_a_service_that_dies_while_it_pauses_goes_on() {
    let mut rig = first("handover-dies");
    let second = Second::start(&rig, "b", "handover-good");
    rig.wait_for("b-forwarding", 1);
    rig.stop_with_code(0);
    second.stop_with_code(0);
}

#[test]
fn handover_the_second_keeper_killed_on_the_way_leaves_all_to_the_first() {
    for (script, step, more) in [
        ("handover-unready", "b-table", "life"),
        ("handover-mute", "b-go", "a-resumed"),
    ] {
        let mut rig = first("handover-good");
        let second = Second::start(&rig, "b", script);
        rig.wait_for(step, 1);
        second.kill();
        rig.wait_for(more, 1);
        let table = table_after_death(&rig, 0);
        assert!(table.contains("restarts=1 names=given-a,kept"), "{table}");
        rig.wait_for("a-forwarding", 2);
        rig.stop_with_code(0);
    }
}

#[test]
fn handover_the_first_keeper_killed_on_the_way_leaves_all_to_the_second() {
    for (script, step) in [
        ("handover-slow", "b-table"),
        ("handover-late", "b-go"),
        ("handover-good", "b-forwarding"),
    ] {
        let mut rig = first("handover-good");
        let second = Second::start(&rig, "b", script);
        rig.wait_for(step, 1);
        rig.keeper.kill().unwrap();
        rig.keeper.wait().unwrap();
        rig.wait_for("b-forwarding", 1);
        let table = table_after_death(&rig, 1);
        assert!(
            table.contains("restarts=1 names=given-a,given-b,kept"),
            "{script}: {table}"
        );
        rig.wait_for("b-forwarding", 2);
        second.stop_with_code(0);
    }
}

/// The one keeper cannot kill the other's service: it waits for its lock.
#[test]
fn handover_to_a_keeper_that_hangs_never_makes_two_that_read() {
    let mut rig = first("handover-good");
    let second = Second::start(&rig, "b", "handover-hangs");
    rig.wait_for("b-forwarding", 1);
    // The first keeper's patience is over, and the second's service has the lock.
    rig.wait_for("life", 3);
    assert!(rig.lines("a-resumed").is_empty(), "{}", rig.log());
    assert_eq!(rig.lines("a-forwarding").len(), 1);
    second.signal(Signal::CONT);
    rig.wait_for("a-forwarding", 2);
    second.stop_with_code(0);
    rig.stop_with_code(0);
}

#[test]
fn handover_an_agent_without_a_name_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let keeper = keeper_command(directory.path(), "handover-good")
        .spawn()
        .unwrap();
    let mut rig = Rig { directory, keeper };
    rig.wait_for("-forwarding", 1);
    let second = Second::start(&rig, "b", "handover-good");
    std::thread::sleep(Duration::from_millis(500));
    assert!(rig.lines("-paused").is_empty());
    rig.stop_with_code(0);
    rig.wait_for("b-forwarding", 1);
    second.stop_with_code(0);
}

#[test]
fn handover_to_two_at_once_is_to_one_after_the_other() {
    let mut rig = first("handover-good");
    let seconds = ["b", "c"].map(|name| Second::start(&rig, name, "handover-good"));
    rig.wait_for("a-end", 1);
    // The one that was refused has the other's place a second later.
    let deadline = Instant::now() + PATIENCE;
    let count = |words: [&str; 2]| {
        words
            .map(|word| rig.lines(word).len())
            .iter()
            .sum::<usize>()
    };
    while count(["b-end", "c-end"]) < 1 {
        assert!(Instant::now() < deadline, "{}", rig.log());
        std::thread::sleep(STEP);
    }
    assert_eq!(count(["b-forwarding", "c-forwarding"]), 2);
    assert_eq!(count(["b-resumed", "c-resumed"]), 0);
    rig.stop_with_code(0);
    for second in seconds {
        second.stop_with_code(0);
    }
}

#[test]
fn handover_a_stop_meanwhile_is_not_lost() {
    let mut rig = first("handover-good");
    let second = Second::start(&rig, "b", "handover-mute");
    rig.wait_for("b-go", 1);
    rig.stop_with_code(0);
    // The lock is free, and it starts as any agent.
    rig.wait_for("b-go", 2);
    second.stop_with_code(0);
}

/// What its agent is called.
const INSTANCE: &str = "TARTAN_TEST_INSTANCE";

pub(crate) fn instance() -> Option<String> {
    std::env::var(INSTANCE).ok()
}

/// A service of these scripts.
pub(crate) async fn serve(
    directory: &Path,
    script: &str,
    channel: Channel,
    part: TablePart,
    mut terminate: Signals,
) {
    let name = instance().unwrap_or_default();
    let say = |what: &str| say(directory, &format!("{name}-{what}"));
    if part.beside {
        say("table");
        match script {
            "handover-refuses" => std::process::exit(6),
            "handover-differs" => std::process::exit(keeper::DIFFERS.into()),
            "handover-early" => give(&channel, "early").await,
            "handover-unready" => until_alone(&channel).await,
            "handover-slow" => tokio::time::sleep(Duration::from_millis(500)).await,
            _ => {}
        }
    }
    channel.send(&FromService::Ready, &[]).await.unwrap();
    let Some((message, _)) = channel.receive::<FromKeeper>().await.unwrap() else {
        return;
    };
    assert_eq!(message, FromKeeper::Go);
    say("go");
    let mut lock = Some(reading(directory));
    if part.names.is_empty() {
        give(&channel, "kept").await;
    }
    give(&channel, &format!("given-{name}")).await;
    if part.beside {
        match script {
            "handover-exits" => std::process::exit(5),
            "handover-mute" => until_alone(&channel).await,
            "handover-closes" => {
                rustix::net::shutdown(std::io::stdin(), rustix::net::Shutdown::Both).unwrap();
                std::future::pending().await
            }
            "handover-late" => tokio::time::sleep(Duration::from_millis(500)).await,
            "handover-hangs" => {
                let keeper = rustix::process::getppid().unwrap();
                kill_process(keeper, Signal::STOP).unwrap();
                while !is_stopped(keeper) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            _ => {}
        }
    }
    say("forwarding");
    channel.send(&FromService::Forwarding, &[]).await.unwrap();
    let mut calls = answers(directory);
    loop {
        let message = tokio::select! {
            _ = terminate.recv() => {
                say("term");
                std::process::exit(0)
            }
            Some((request, connection)) = calls.recv() => {
                let asked = FromService::HandOver(request);
                channel.send(&asked, &[connection.as_fd()]).await.unwrap();
                continue;
            }
            message = channel.receive::<FromKeeper>() => message.unwrap(),
        };
        match message {
            Some((FromKeeper::Pause, _)) => match script {
                "handover-busy" => {}
                "handover-dies" if !part.beside => std::process::exit(1),
                _ => {
                    lock = None;
                    say("paused");
                    channel.send(&FromService::Paused, &[]).await.unwrap();
                }
            },
            Some((FromKeeper::Resume, _)) => {
                if lock.is_none() {
                    lock = Some(reading(directory));
                }
                say("resumed");
                channel.send(&FromService::Resumed, &[]).await.unwrap();
            }
            Some((FromKeeper::End, _)) => {
                say("end");
                std::process::exit(0);
            }
            Some((message, _)) => panic!("{message:?}"),
            None => std::process::exit(0),
        }
    }
}

/// Says nothing any more, and ends with its keeper.
async fn until_alone(channel: &Channel) {
    while let Ok(Some(_)) = channel.receive::<FromKeeper>().await {}
    std::process::exit(0);
}

async fn give(channel: &Channel, name: &str) {
    let file = tempfile::tempfile().unwrap();
    let deposit = FromService::Deposit(name.into());
    channel.send(&deposit, &[file.as_fd()]).await.unwrap();
}

/// Whether all its threads are: the others stop after the one that gets the signal.
fn is_stopped(process: Pid) -> bool {
    let tasks = format!("/proc/{}/task", process.as_raw_nonzero());
    let mut tasks = fs::read_dir(tasks).unwrap();
    tasks.all(|task| {
        let stat = fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('T')
    })
}

/// The lock without which no service reads.
fn reading(directory: &Path) -> fs::File {
    let file = fs::File::create(directory.join("reads")).unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match file.try_lock() {
            Ok(()) => return file,
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(STEP),
            Err(_) => std::process::exit(1),
        }
    }
}

/// The API, as far as it is needed here.
fn answers(directory: &Path) -> mpsc::UnboundedReceiver<(HandOverRequest, UnixStream)> {
    let path = directory.join("run/tartan.sock");
    let _ = fs::remove_file(&path);
    let listener = UnixListener::bind(path).unwrap();
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            let call: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert_eq!(call["call"], "hand-over");
            let request = HandOverRequest {
                instance: call["instance"].as_str().unwrap().to_owned(),
                version: call["version"].as_str().unwrap().to_owned(),
                format: u32::try_from(call["format"].as_u64().unwrap()).unwrap(),
                ends_first: call["ends_first"].as_bool().unwrap(),
                from: "1".to_owned(),
            };
            stream.write_all(b"{\"ok\":{}}\n").unwrap();
            stream.set_nonblocking(true).unwrap();
            if sender.send((request, stream)).is_err() {
                return;
            }
        }
    });
    receiver
}
