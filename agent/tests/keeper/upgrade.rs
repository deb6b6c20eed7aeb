//! Upgrades, with a program that is a shell script: it tells a version, and is this test binary else.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use tartan::keeper::channel::{PROTOCOL, UpgradeRequest};
use tartan::keeper::handed_state::FORMAT;
use tokio::signal::unix::Signal as Signals;

use super::*;

/// What scripts of this file begin with.
pub(crate) const SCRIPTS: &str = "upgrade-";

/// What the old service and the new one do by a script, and what becomes of it.
fn outcome(script: &str) -> (Rig, serde_json::Value) {
    let mut rig = Rig::start(script);
    rig.wait_for("ended", 1);
    let line = rig.lines("ended").remove(0);
    let ended = serde_json::from_str(line.splitn(3, ' ').nth(2).unwrap()).unwrap();
    // Whatever happened, a service forwards, and the keeper has it under control.
    if ended_outcome(&ended) == "upgraded" {
        rig.wait_for("executed", 1);
    }
    assert!(rig.keeper.try_wait().unwrap().is_none(), "the keeper runs");
    (rig, ended)
}

fn ended_outcome(ended: &serde_json::Value) -> &str {
    ended["outcome"].as_str().unwrap()
}

#[test]
fn upgrade_the_new_service_forwards_before_the_old_one_ends() {
    let (mut rig, ended) = outcome("upgrade-good");
    assert_eq!(ended_outcome(&ended), "upgraded", "{ended}");
    assert_eq!((&ended["from"], &ended["to"]), (&"1".into(), &"2".into()));
    assert_eq!(ended["keeper"], true);
    let log = rig.log();
    let place = |word: &str| {
        log.find(word)
            .unwrap_or_else(|| panic!("no {word} in {log}"))
    };
    let order = [
        "old-paused",
        "new-go",
        "new-forwarding",
        "old-end",
        "executed",
    ];
    assert!(
        order.windows(2).all(|pair| place(pair[0]) < place(pair[1])),
        "{log}"
    );
    // The keeper of the new program has the table, and what the new service gave: the next one gets it.
    rig.kill_service(1, Signal::KILL);
    rig.wait_for("life", 3);
    let third = rig.lines("life").remove(2);
    assert!(third.contains("restarts=1 names=given,kept"), "{third}");
    rig.stop_with_code(0);
}

#[test]
fn upgrade_to_what_never_forwards_goes_back_within_its_second() {
    for (script, words) in [
        ("upgrade-mute", "did not forward within 1 s"),
        ("upgrade-exits", "exit code 5"),
    ] {
        let began = Instant::now();
        let (mut rig, ended) = outcome(script);
        assert_eq!(ended_outcome(&ended), "returned", "{ended}");
        assert!(ended["reason"].as_str().unwrap().contains(words), "{ended}");
        assert!(began.elapsed() < Duration::from_secs(10));
        assert_eq!(rig.lines("old-resumed").len(), 1);
        // What the one that is gone gave and took back is forgotten.
        rig.kill_service(0, Signal::KILL);
        rig.wait_for("life", 3);
        let third = rig.lines("life").remove(2);
        assert!(third.contains("names=kept "), "{third}");
        rig.stop_with_code(0);
    }
}

#[test]
fn upgrade_to_what_changes_the_table_before_go_touches_nothing() {
    let (mut rig, ended) = outcome("upgrade-early");
    assert_eq!(ended_outcome(&ended), "unchanged", "{ended}");
    assert!(rig.lines("old-paused").is_empty());
    rig.stop_with_code(0);
}

#[test]
fn upgrade_of_a_service_that_changes_its_descriptors_touches_nothing() {
    let (mut rig, ended) = outcome("upgrade-moving");
    assert_eq!(ended_outcome(&ended), "unchanged", "{ended}");
    assert!(
        ended["reason"].as_str().unwrap().contains("try again"),
        "{ended}"
    );
    rig.stop_with_code(0);
}

#[test]
fn upgrade_of_a_service_that_does_not_pause_goes_back() {
    let (mut rig, ended) = outcome("upgrade-busy");
    assert_eq!(ended_outcome(&ended), "returned", "{ended}");
    assert!(
        ended["reason"].as_str().unwrap().contains("did not pause"),
        "{ended}"
    );
    assert!(rig.lines("new-go").is_empty());
    rig.stop_with_code(0);
}

#[test]
fn upgrade_of_a_service_that_dies_while_it_pauses_goes_on() {
    let (mut rig, ended) = outcome("upgrade-dies");
    assert_eq!(ended_outcome(&ended), "upgraded", "{ended}");
    assert_eq!(rig.lines("new-forwarding").len(), 1);
    rig.stop_with_code(0);
}

#[test]
fn upgrade_of_a_service_that_does_not_go_on_is_a_restart() {
    let (mut rig, ended) = outcome("upgrade-lost");
    assert_eq!(ended_outcome(&ended), "restarted", "{ended}");
    assert!(
        ended["reason"].as_str().unwrap().contains("killed"),
        "{ended}"
    );
    rig.wait_for("life", 3);
    rig.stop_with_code(0);
}

#[test]
fn upgrade_of_a_service_that_dies_while_the_new_one_starts_is_a_restart() {
    let (mut rig, ended) = outcome("upgrade-gone");
    assert_eq!(ended_outcome(&ended), "restarted", "{ended}");
    rig.wait_for("life", 3);
    rig.stop_with_code(0);
}

#[test]
fn upgrade_of_a_service_with_a_stalled_worker_is_a_restart() {
    let (mut rig, ended) = outcome("upgrade-stalls");
    assert_eq!(ended_outcome(&ended), "restarted", "{ended}");
    let reason = ended["reason"].as_str().unwrap();
    assert!(reason.contains("worker 0 has stood still"), "{ended}");
    rig.wait_for("life", 3);
    rig.stop_with_code(0);
}

#[test]
fn upgrade_to_what_closes_its_channel_and_lives_goes_back_at_once() {
    let (mut rig, ended) = outcome("upgrade-closes");
    assert_eq!(ended_outcome(&ended), "returned", "{ended}");
    let pause = ended["pause_us"].as_u64().unwrap();
    assert!(pause < 900_000, "{ended}");
    rig.stop_with_code(0);
}

/// A signal that comes after the new service forwards, and before the keeper executes its program.
#[test]
fn upgrade_loses_no_signal_to_stop() {
    for script in ["upgrade-term", "upgrade-int"] {
        let mut rig = Rig::start(script);
        rig.wait_for("old-end", 1);
        assert_eq!(rig.ended().code(), Some(0), "{script}");
        assert!(rig.lines("executed").is_empty(), "{script}");
        // The command is told, by its own process.
        rig.wait_for("ended", 1);
        assert!(rig.lines("ended")[0].contains("asked to stop"));
    }
}

#[test]
fn upgrade_loses_no_signal_to_read_files_again() {
    // While the old service ends, and before the new one is ready, which has read its files by then.
    for script in ["upgrade-hup", "upgrade-hup-early"] {
        let (mut rig, ended) = outcome(script);
        assert_eq!(ended_outcome(&ended), "upgraded", "{ended}");
        let deadline = Instant::now() + PATIENCE;
        while !rig
            .lines("reloads")
            .iter()
            .any(|line| line.ends_with("beside=true"))
        {
            assert!(Instant::now() < deadline, "{script}: {}", rig.log());
            std::thread::sleep(STEP);
        }
        rig.stop_with_code(0);
    }
}

#[test]
fn upgrade_that_comes_to_nothing_loses_no_signal_to_read_files_again() {
    let (mut rig, ended) = outcome("upgrade-unready");
    assert_eq!(ended_outcome(&ended), "unchanged", "{ended}");
    rig.wait_for("reloads", 1);
    assert!(rig.lines("reloads")[0].ends_with("beside=false"));
    rig.stop_with_code(0);
}

#[test]
fn upgrade_without_a_program_is_to_the_file_by_which_the_agent_was_started() {
    let (mut rig, _) = outcome("upgrade-twice");
    rig.wait_for("ended", 2);
    let second = rig.lines("ended").remove(1);
    // It is this test, which tells no version.
    let own = std::env::current_exe().unwrap();
    assert!(second.contains(own.to_str().unwrap()), "{second}");
    rig.stop_with_code(0);
}

#[test]
fn upgrade_to_a_file_that_is_removed_restarts_from_the_first_one() {
    let (mut rig, ended) = outcome("upgrade-good");
    assert_eq!(ended_outcome(&ended), "upgraded", "{ended}");
    fs::remove_file(rig.directory.path().join("program")).unwrap();
    rig.kill_service(1, Signal::KILL);
    rig.wait_for("life", 3);
    rig.stop_with_code(0);
}

/// That this program was executed in the place of another.
pub(crate) fn say_executed(directory: &Path) {
    say(directory, "executed");
}

/// A service of these scripts: the first old, one beside it new, and the rest as the old.
pub(crate) async fn serve(
    directory: &Path,
    script: &str,
    channel: Channel,
    part: TablePart,
    mut terminate: Signals,
) {
    let mut hangup = signal(SignalKind::hangup()).unwrap();
    let is_first = part.names.is_empty();
    if is_first {
        give(&channel, "kept").await;
        if script == "upgrade-stalls" {
            let counters = dataplane::counters::Counters::create(1).unwrap();
            let deposit = FromService::Deposit(COUNTERS.into());
            let counters = counters.descriptor();
            channel.send(&deposit, &[counters]).await.unwrap();
        }
    }
    if part.beside && script == "upgrade-early" {
        give(&channel, "early").await;
    }
    if part.beside && ["upgrade-unready", "upgrade-hup-early"].contains(&script) {
        signal_keeper(Signal::HUP);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    if part.beside && script == "upgrade-unready" {
        std::process::exit(6);
    }
    if part.beside && ["upgrade-gone", "upgrade-stalls"].contains(&script) {
        std::future::pending::<()>().await;
    }
    channel.send(&FromService::Ready, &[]).await.unwrap();
    let Some((message, _)) = channel.receive::<FromKeeper>().await.unwrap() else {
        return;
    };
    assert_eq!(message, FromKeeper::Go);
    if part.beside {
        say(directory, "new-go");
        give(&channel, "given").await;
        match script {
            "upgrade-exits" => std::process::exit(5),
            "upgrade-closes" => {
                rustix::net::shutdown(std::io::stdin(), rustix::net::Shutdown::Both).unwrap();
                std::future::pending().await
            }
            "upgrade-mute" | "upgrade-lost" => std::future::pending().await,
            _ => {}
        }
    }
    // Before it is said: the next line of the log is that of the one that learns of it.
    if part.beside {
        say(directory, "new-forwarding");
    }
    channel.send(&FromService::Forwarding, &[]).await.unwrap();
    if is_first {
        ask(directory, &channel, Some(program(directory))).await;
        if script == "upgrade-gone" {
            // The new one has its table, and is not ready.
            while !fs::read_to_string(directory.join("log"))
                .is_ok_and(|log| log.matches(" life ").count() == 2)
            {
                tokio::time::sleep(STEP).await;
            }
            std::process::exit(1);
        }
        if script == "upgrade-moving" {
            tokio::time::sleep(Duration::from_millis(5)).await;
            give(&channel, "moved").await;
        }
    }
    if part.beside && script == "upgrade-twice" {
        ask(directory, &channel, None).await;
    }
    loop {
        let message = tokio::select! {
            _ = terminate.recv() => std::process::exit(0),
            _ = hangup.recv() => {
                say(directory, &format!("reloads beside={}", part.beside));
                channel.send(&FromService::Reloaded, &[]).await.unwrap();
                continue;
            }
            message = channel.receive::<FromKeeper>() => message.unwrap(),
        };
        match message {
            Some((FromKeeper::Pause, _)) => match script {
                "upgrade-busy" => {}
                "upgrade-dies" => std::process::exit(1),
                _ => {
                    say(directory, "old-paused");
                    channel.send(&FromService::Paused, &[]).await.unwrap();
                }
            },
            Some((FromKeeper::Resume, _)) if script == "upgrade-lost" => {}
            Some((FromKeeper::Resume, _)) => {
                say(directory, "old-resumed");
                channel.send(&FromService::Resumed, &[]).await.unwrap();
            }
            Some((FromKeeper::End, _)) => {
                match script {
                    "upgrade-term" => signal_keeper(Signal::TERM),
                    "upgrade-int" => signal_keeper(Signal::INT),
                    "upgrade-hup" => signal_keeper(Signal::HUP),
                    _ => {}
                }
                say(directory, "old-end");
                std::process::exit(0);
            }
            Some((message, _)) => panic!("{message:?}"),
            None => std::process::exit(0),
        }
    }
}

async fn give(channel: &Channel, name: &str) {
    let file = tempfile::tempfile().unwrap();
    let deposit = FromService::Deposit(name.into());
    channel.send(&deposit, &[file.as_fd()]).await.unwrap();
}

fn signal_keeper(signal: Signal) {
    kill_process(rustix::process::getppid().unwrap(), signal).unwrap();
}

/// What the upgrade is to.
fn program(directory: &Path) -> PathBuf {
    let program = directory.join("program");
    let own = std::env::current_exe().unwrap();
    let text = format!(
        "#!/bin/sh\n[ \"$1\" != version ] || {{ sleep 0.05; echo '{{\"version\":\"2\",\"protocol\":{PROTOCOL},\"keeper_state\":{FORMAT}}}'; exit; }}\nexec '{}' \"$@\"\n",
        own.display()
    );
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

/// Asks for the upgrade, and writes down what the keeper says at the end, from a process that outlives this one.
async fn ask(directory: &Path, channel: &Channel, program: Option<PathBuf>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let listener = Command::new("/bin/sh")
        .args(["-c", "grep -m 1 ended | sed \"s/^/0 ended /\" >>\"$0\""])
        .arg(directory.join("log"))
        .stdin(OwnedFd::from(ours))
        .spawn();
    drop(listener.unwrap());
    let request = UpgradeRequest {
        program: program.map(Into::into),
        version: "1".to_owned(),
    };
    let asked = FromService::Upgrade(request);
    channel.send(&asked, &[theirs.as_fd()]).await.unwrap();
}
