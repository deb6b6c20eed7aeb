//! Runs a program to its end, within bounds of time and output. What the program
//! started is ended with it.
//!
//! It is a process group of its own. Its input and output are fed and read side
//! by side, so that neither waits for the other, and what it left behind with
//! its output open is not waited for.
//!
//! Where this process is killed the program goes on to its end. PR_SET_PDEATHSIG would have to
//! be set between fork and exec, where only unsafe code runs; and an IPAM plugin
//! that is ended in the middle leaves worse than one that finishes: what a
//! finished one gave is known, by the record, and DEL, a repeated ADD or GC gives it back.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// How it ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// By itself; what it printed.
    Itself { status: ExitStatus, output: Vec<u8> },
    /// By us, because its time was over.
    Late,
    /// By us, because it printed more than it may.
    TooLong,
}

/// Runs `command`, whose standard error is ours, with `input` and at most
/// `longest` bytes of output, for at most `patience`.
pub(crate) fn run(
    mut command: Command,
    input: &[u8],
    longest: usize,
    patience: Duration,
) -> io::Result<Ended> {
    let deadline = Instant::now() + patience;
    let mut child = command
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let talked = talk(&mut child, input, longest, deadline);
    if !matches!(talked, Ok(Talk::Over(_))) {
        // The kernel gives this id to no other process before it is waited for.
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    }
    let status = child.wait()?;
    Ok(match talked? {
        Talk::Over(output) => Ended::Itself { status, output },
        Talk::Late => Ended::Late,
        Talk::TooLong => Ended::TooLong,
    })
}

enum Talk {
    Over(Vec<u8>),
    Late,
    TooLong,
}

/// Until it has ended, or must be.
fn talk(child: &mut Child, input: &[u8], longest: usize, deadline: Instant) -> io::Result<Talk> {
    let end: OwnedFd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let mut stdin = child.stdin.take();
    let mut stdout = child.stdout.take();
    for end in [
        stdin.as_ref().map(ChildStdin::as_fd),
        stdout.as_ref().map(ChildStdout::as_fd),
    ] {
        end.map_or(Ok(()), |end| rustix::io::ioctl_fionbio(end, true))?;
    }
    let mut rest = input;
    let mut output = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Talk::Late);
        }
        let ended = wait(end.as_fd(), stdin.as_ref(), stdout.as_ref(), left)?;
        feed(&mut stdin, &mut rest);
        if !listen(&mut stdout, &mut output, longest)? {
            return Ok(Talk::TooLong);
        }
        if ended {
            return Ok(Talk::Over(output));
        }
    }
}

/// Waits until one of them has something to do; whether the process has ended.
fn wait(
    end: BorrowedFd<'_>,
    stdin: Option<&ChildStdin>,
    stdout: Option<&ChildStdout>,
    left: Duration,
) -> io::Result<bool> {
    let mut watched = vec![PollFd::from_borrowed_fd(end, PollFlags::IN)];
    watched.extend(stdin.map(|stdin| PollFd::new(stdin, PollFlags::OUT)));
    watched.extend(stdout.map(|stdout| PollFd::new(stdout, PollFlags::IN)));
    let left = Timespec::try_from(left).map_err(io::Error::other)?;
    match rustix::event::poll(&mut watched, Some(&left)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let end = watched.first();
    Ok(end.is_some_and(|end| !end.revents().is_empty()))
}

/// Writes what fits. One that does not read all of it need not.
fn feed(stdin: &mut Option<ChildStdin>, rest: &mut &[u8]) {
    let Some(open) = stdin else {
        return;
    };
    loop {
        match open.write(rest) {
            Ok(0) => break,
            Ok(written) => *rest = rest.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    *stdin = None;
}

/// Reads what is there. False when it is more than may be.
fn listen(
    stdout: &mut Option<ChildStdout>,
    output: &mut Vec<u8>,
    longest: usize,
) -> io::Result<bool> {
    let Some(open) = stdout else {
        return Ok(true);
    };
    let mut part = [0; 16 * 1024];
    while output.len() <= longest {
        match open.read(&mut part) {
            Ok(0) => {
                *stdout = None;
                return Ok(true);
            }
            Ok(length) => output.extend_from_slice(part.get(..length).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}
