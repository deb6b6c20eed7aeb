//! One process of the service: starts it by path, waits for its end, stops or kills it.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::service_manager::VARIABLES;

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
    child: Child,
    born: Instant,
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
            .kill_on_drop(true)
            .spawn()?;
        Ok(Service {
            child,
            born: Instant::now(),
        })
    }

    /// Its process id; `None` once it has ended.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits for its end and takes the status. Dropping the future loses nothing.
    ///
    /// # Errors
    /// When the kernel refuses to wait.
    pub async fn ended(&mut self) -> io::Result<Ending> {
        let status = self.child.wait().await?;
        Ok(Ending {
            status,
            lived: self.born.elapsed(),
        })
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
        let id = self
            .child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw);
        match id {
            Some(id) => Ok(kill_process(id, signal)?),
            None => Ok(()),
        }
    }
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
