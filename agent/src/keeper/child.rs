//! One process of the service: starts it by path, waits for its end, stops or kills it.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

use super::VARIABLES;

/// How the service is started.
#[derive(Clone, Debug)]
pub struct Program {
    /// The binary, resolved once: an upgrade replaces the file, not what `/proc/self/exe` means.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// How the process ended.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    /// What the kernel reports.
    pub status: ExitStatus,
    /// How long it lived.
    pub lived: Duration,
}

impl Ending {
    /// The exit code of a service that ended by itself; `None` when a signal ended it.
    pub fn code(&self) -> Option<u8> {
        self.status.code().and_then(|code| u8::try_from(code).ok())
    }

    /// In words, for the log and `tartan status`.
    pub fn words(&self) -> String {
        let lived = self.lived.as_secs_f32();
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("ended with exit code {code} after {lived:.1} s"),
            (_, Some(signal)) => format!(
                "was killed by signal {}{} after {lived:.1} s",
                signal_name(signal),
                if self.status.core_dumped() {
                    " (core dumped)"
                } else {
                    ""
                },
            ),
            _ => format!("ended in an unknown way after {lived:.1} s"),
        }
    }
}

/// The running service. Dropping it kills the process: no service outlives its keeper.
#[derive(Debug)]
pub struct Service {
    id: Pid,
    /// Readable once the process has ended (pidfd_open(2)).
    process: AsyncFd<OwnedFd>,
    born: Instant,
    /// Its status is taken, and its id may be another process's.
    ending: Option<Ending>,
}

impl Service {
    /// Starts it with the channel as its standard input, in a process group of its own, so that a Ctrl-C in
    /// the terminal reaches the keeper alone and the keeper decides. What a service manager says to the keeper by
    /// variables is not handed on. Needs a tokio runtime.
    ///
    /// # Errors
    /// When the file cannot be executed or the kernel has no process or descriptor left.
    pub fn start(program: &Program, channel: OwnedFd) -> io::Result<Service> {
        let mut command = Command::new(&program.path);
        for variable in VARIABLES {
            command.env_remove(variable);
        }
        let child = command
            // By its own name it would read the arguments as flanneld's, where the file is a copy of that name.
            .arg0("tartan")
            .args(&program.arguments)
            .stdin(Stdio::from(channel))
            .process_group(0)
            .spawn()?;
        let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let id = id.ok_or(io::ErrorKind::InvalidData)?;
        Service::adopt(id, Instant::now())
    }

    /// A child that the program before this one has started in this process.
    ///
    /// # Errors
    /// When there is no such process, or the kernel has no descriptor left.
    pub fn adopt(id: Pid, born: Instant) -> io::Result<Service> {
        let watched = pidfd_open(id, PidfdFlags::empty())
            .map_err(io::Error::from)
            .and_then(watch);
        match watched {
            Ok(process) => Ok(Service {
                id,
                process,
                born,
                ending: None,
            }),
            Err(error) => {
                // It is not watched, so it must not run.
                let _ = kill_process(id, Signal::KILL);
                let _ = waitpid(Some(id), WaitOptions::empty());
                Err(error)
            }
        }
    }

    /// Its process id.
    pub fn id(&self) -> i32 {
        self.id.as_raw_nonzero().get()
    }

    /// How long it has lived.
    pub fn age(&self) -> Duration {
        self.born.elapsed()
    }

    /// Waits for its end and takes the status. Dropping the future loses nothing.
    ///
    /// # Errors
    /// When the kernel refuses to wait.
    pub async fn ended(&mut self) -> io::Result<Ending> {
        if let Some(ending) = self.ending {
            return Ok(ending);
        }
        loop {
            let mut readable = self.process.readable().await?;
            if let Some((_, status)) = waitpid(Some(self.id), WaitOptions::NOHANG)? {
                let ending = Ending {
                    status: ExitStatus::from_raw(status.as_raw()),
                    lived: self.born.elapsed(),
                };
                self.ending = Some(ending);
                return Ok(ending);
            }
            readable.clear_ready();
        }
    }

    /// Has it read its files again.
    ///
    /// # Errors
    /// When the kernel refuses to signal.
    pub fn reload(&self) -> io::Result<()> {
        self.signal(Signal::HUP)
    }

    /// Asks it to stop, waits, and kills it when it does not.
    ///
    /// # Errors
    /// When the kernel refuses to signal or to wait.
    pub async fn stop(&mut self, patience: Duration) -> io::Result<Ending> {
        self.signal(Signal::TERM)?;
        self.end_within(patience).await
    }

    /// Waits for its end, and kills it when that does not come.
    ///
    /// # Errors
    /// When the kernel refuses to signal or to wait.
    pub async fn end_within(&mut self, patience: Duration) -> io::Result<Ending> {
        match timeout(patience, self.ended()).await {
            Ok(ending) => ending,
            Err(_elapsed) => {
                tracing::warn!(
                    pid = self.id(),
                    "the service did not stop in time and is killed"
                );
                self.kill().await
            }
        }
    }

    /// Kills it.
    ///
    /// # Errors
    /// When the kernel refuses to signal or to wait.
    pub async fn kill(&mut self) -> io::Result<Ending> {
        self.signal(Signal::KILL)?;
        self.ended().await
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        // The id stays ours until the status is taken, so it cannot be another process's by now.
        match self.ending {
            None => Ok(kill_process(self.id, signal)?),
            Some(_) => Ok(()),
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if self.ending.is_none() && self.signal(Signal::KILL).is_ok() {
            let _ = waitpid(Some(self.id), WaitOptions::empty());
        }
    }
}

fn watch(process: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(
        deprecated,
        reason = "its successor is unsafe: the caller vouches for the descriptor, as the type OwnedFd does here"
    )]
    AsyncFd::with_interest(process, Interest::READABLE)
}

fn signal_name(signal: i32) -> String {
    let named = Signal::from_named_raw(signal).and_then(|signal| {
        NAMES
            .iter()
            .find(|(known, _)| *known == signal)
            .map(|(_, name)| *name)
    });
    match named {
        Some(name) => format!("{signal} ({name})"),
        None => signal.to_string(),
    }
}

const NAMES: [(Signal, &str); 10] = [
    (Signal::KILL, "SIGKILL"),
    (Signal::TERM, "SIGTERM"),
    (
        Signal::ABORT,
        "SIGABRT: a panic, its reason is in the log above",
    ),
    (Signal::SEGV, "SIGSEGV"),
    (Signal::BUS, "SIGBUS"),
    (Signal::ILL, "SIGILL"),
    (Signal::SYS, "SIGSYS: a system call the filter forbids"),
    (Signal::INT, "SIGINT"),
    (Signal::HUP, "SIGHUP"),
    (Signal::QUIT, "SIGQUIT"),
];
