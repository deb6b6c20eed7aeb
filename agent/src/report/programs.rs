//! Programs of the host: what the kernel holds, in the words of the tools that operators know.

use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::PATIENCE;

/// A program, its words, and the part that its output becomes.
pub(super) struct Program {
    /// Path within the bundle.
    pub(super) part: &'static str,
    /// The program and its words.
    pub(super) words: &'static [&'static str],
    /// Its end says more than its beginning.
    pub(super) is_log: bool,
}

const fn shows(part: &'static str, words: &'static [&'static str]) -> Program {
    Program {
        part,
        words,
        is_log: false,
    }
}

const fn logs(part: &'static str, words: &'static [&'static str]) -> Program {
    Program {
        part,
        words,
        is_log: true,
    }
}

/// All of them. None changes anything.
pub(super) const PROGRAMS: [Program; 17] = [
    shows("kernel/links", &["ip", "-d", "-s", "link", "show"]),
    shows("kernel/addresses", &["ip", "address", "show"]),
    shows(
        "kernel/routes4",
        &["ip", "-d", "route", "show", "table", "all"],
    ),
    shows(
        "kernel/routes6",
        &["ip", "-d", "-6", "route", "show", "table", "all"],
    ),
    shows("kernel/policy4", &["ip", "rule", "show"]),
    shows("kernel/policy6", &["ip", "-6", "rule", "show"]),
    shows("kernel/neighbours", &["ip", "neighbour", "show"]),
    shows("kernel/forwarding-entries", &["bridge", "fdb", "show"]),
    shows("kernel/queueing", &["tc", "-s", "qdisc", "show"]),
    shows("kernel/udp-sockets", &["ss", "-lunpm"]),
    shows("kernel/rules", &["nft", "-a", "list", "ruleset"]),
    shows("kernel/rules-legacy4", &["iptables-legacy-save"]),
    shows("kernel/rules-legacy6", &["ip6tables-legacy-save"]),
    shows("kernel/modules", &["lsmod"]),
    shows("host/time", &["timedatectl", "status"]),
    logs(
        "log/journal",
        &[
            "journalctl",
            "-u",
            "tartan",
            "-n",
            "5000",
            "--no-pager",
            "-o",
            "short-iso",
        ],
    ),
    logs("log/kernel", &["dmesg"]),
];

/// Runs a program, and returns what it printed on both outputs, at most `limit` bytes of each: the last ones of a log, else
/// the first ones.
///
/// # Errors
/// It cannot be started, or does not end in time: what it printed by then is lost.
pub(super) fn run(words: &[&str], limit: usize, is_log: bool) -> io::Result<String> {
    run_until(words, limit, is_log, None)
}

/// The same of a program that goes on until it is interrupted, which it is after `lasts`.
///
/// # Errors
/// As [`run`].
pub(super) fn run_for(words: &[&str], limit: usize, lasts: Duration) -> io::Result<String> {
    run_until(words, limit, true, Some(lasts))
}

fn run_until(
    words: &[&str],
    limit: usize,
    is_log: bool,
    lasts: Option<Duration>,
) -> io::Result<String> {
    let (name, words) = words
        .split_first()
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let mut child = Command::new(name)
        .args(words)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let readers = [
        child.stdout.take().map(|pipe| reader(pipe, limit, is_log)),
        child.stderr.take().map(|pipe| reader(pipe, limit, is_log)),
    ];
    let begun = Instant::now();
    let deadline = begun + PATIENCE;
    let mut lasts = lasts;
    let ended = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if lasts.take_if(|lasts| begun.elapsed() >= *lasts).is_some() => {
                if let Some(id) = Pid::from_raw(child.id().cast_signed()) {
                    kill_process(id, Signal::INT)?;
                }
            }
            None if Instant::now() > deadline => {
                child.kill()?;
                child.wait()?;
                return Err(io::ErrorKind::TimedOut.into());
            }
            None => thread::sleep(STEP),
        }
    };
    let mut text = String::new();
    for reader in readers.into_iter().flatten() {
        // It ends with the program's end of the pipe.
        text.push_str(&reader.join().unwrap_or_default());
    }
    if !ended.success() {
        text.push_str(&format!("\n({name} ended with {ended})\n"));
    }
    Ok(text)
}

/// Reads all of a pipe, so that the program does not wait, and keeps the first bytes, or the last ones of a log.
fn reader(
    mut pipe: impl Read + Send + 'static,
    limit: usize,
    is_log: bool,
) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut kept = Vec::new();
        let mut part = vec![0; PART];
        // What was read before an error is as good.
        while let Ok(length @ 1..) = pipe.read(&mut part) {
            let read = part.get(..length).unwrap_or_default();
            if is_log {
                kept.extend_from_slice(read);
                if kept.len() > limit + PART {
                    kept.drain(..kept.len() - limit);
                }
            } else {
                let room = limit.saturating_sub(kept.len()).min(read.len());
                kept.extend_from_slice(read.get(..room).unwrap_or_default());
            }
        }
        let last = kept.len().saturating_sub(limit);
        String::from_utf8_lossy(kept.get(last..).unwrap_or_default()).into_owned()
    })
}

/// Bytes that are read at a time.
const PART: usize = 64 << 10;
const STEP: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_bounded_in_bytes_and_its_failure_is_told() {
        let text = run(
            &["sh", "-c", "echo 12345678; echo no >&2; exit 3"],
            4,
            false,
        )
        .unwrap();
        assert!(text.starts_with("1234no"), "{text}");
        assert!(text.contains("exit status: 3"), "{text}");
        let missing = run(&["tartan-has-no-such-program"], 4, false).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_program_that_goes_on_is_interrupted() {
        let words = [
            "sh",
            "-c",
            "trap 'echo end; exit' INT; echo begin; while :; do sleep 0.01; done",
        ];
        let text = run_for(&words, 100, Duration::from_millis(200)).unwrap();
        assert_eq!(text, "begin\nend\n");
    }

    #[test]
    fn the_end_of_a_long_log_is_kept() {
        let numbers = ["seq", "100000"];
        assert_eq!(run(&numbers, 7, true).unwrap(), "100000\n");
        assert_eq!(run(&numbers, 6, false).unwrap(), "1\n2\n3\n");
    }
}
