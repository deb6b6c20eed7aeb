//! The calling side, for the command line: blocking, bounded.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use thiserror::Error;

use super::wire::{Reply, Request};
use crate::keeper::LOCK_FILE;
use crate::keeper::lock::is_signed_by_an_agent;
use crate::start_failure;

/// Why a call brought no answer.
#[derive(Debug, Error)]
pub enum ClientError {
    /// No agent listens.
    #[error(
        "no agent answers on {path}; start it with `tartan run`, or name its directory with --root"
    )]
    Unreachable {
        /// The socket's path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// No agent answers, and the last start is known to have failed.
    #[error(
        "no agent answers on {path}; its last start failed: {reason} (correct that; where `tartan run` runs, it then tries again by itself)"
    )]
    NotStarted {
        /// The socket's path.
        path: PathBuf,
        /// Why not, with the remedy, as the service wrote it down.
        reason: String,
    },
    /// The agent runs, and its service does not answer before its registry does.
    #[error("the agent runs and waits for its registry: {reason}")]
    Waiting {
        /// What it waits for, with the remedy, as the service wrote it down.
        reason: String,
    },
    /// The caller may not ask.
    #[error("not allowed to ask the agent on {path}: run as root (sudo)")]
    NotAllowed {
        /// The socket's path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// An agent listens and does not answer.
    #[error("the agent on {path} does not answer; see its log")]
    Silent {
        /// The socket's path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The answer is none.
    #[error("the agent's answer is not understood; use the `tartan` of the agent's version")]
    Answer(#[source] serde_json::Error),
    /// The agent said no.
    #[error("{0}")]
    Refused(String),
}

/// Asks the agent that listens on `path`.
///
/// # Errors
/// [`ClientError`]; its [`is_no_answer`](ClientError::is_no_answer) means "no agent".
pub fn call(path: &Path, request: &Request) -> Result<serde_json::Value, ClientError> {
    ask(path, request).map_err(|error| match path.parent() {
        Some(run_dir) if error.is_no_answer() => explained(error, path, run_dir),
        _ => error,
    })
}

/// Asks for an answer that goes on behind its line: the line, and the connection.
///
/// # Errors
/// As [`call`].
pub fn open(
    path: &Path,
    request: &Request,
) -> Result<(serde_json::Value, BufReader<UnixStream>), ClientError> {
    let explain = |error: ClientError| match path.parent() {
        Some(run_dir) if error.is_no_answer() => explained(error, path, run_dir),
        _ => error,
    };
    let stream = send(path, request).map_err(explain)?;
    let mut reader = BufReader::with_capacity(READ_AT_ONCE, stream);
    let value = read_reply(path, &mut (&mut reader).take(ANSWER_LIMIT)).map_err(explain)?;
    let silent = |source| ClientError::Silent {
        path: path.to_owned(),
        source,
    };
    // What comes next may take its time.
    reader.get_ref().set_read_timeout(None).map_err(silent)?;
    Ok((value, reader))
}

/// Why there is no answer, by what the service has written down.
fn explained(error: ClientError, path: &Path, run_dir: &Path) -> ClientError {
    let Some(reason) = start_failure::read(run_dir) else {
        return error;
    };
    match start_failure::awaited(&reason) {
        None => ClientError::NotStarted {
            path: path.to_owned(),
            reason,
        },
        Some(awaited) if is_signed_by_an_agent(&run_dir.join(LOCK_FILE)) => ClientError::Waiting {
            reason: awaited.to_owned(),
        },
        // It was killed while it waited.
        Some(_) => error,
    }
}

impl ClientError {
    /// Whether no agent answered, as opposed to an answer that is of no use.
    pub fn is_no_answer(&self) -> bool {
        match self {
            ClientError::Unreachable { .. }
            | ClientError::NotStarted { .. }
            | ClientError::Waiting { .. }
            | ClientError::Silent { .. } => true,
            ClientError::NotAllowed { .. } | ClientError::Answer(_) | ClientError::Refused(_) => {
                false
            }
        }
    }

    /// A stable name for scripts.
    pub fn code(&self) -> &'static str {
        match self {
            ClientError::Unreachable { .. }
            | ClientError::NotStarted { .. }
            | ClientError::Silent { .. } => "no-agent",
            ClientError::Waiting { .. } => "waiting",
            ClientError::NotAllowed { .. } => "not-allowed",
            ClientError::Answer(_) => "not-understood",
            ClientError::Refused(_) => "refused",
        }
    }

    /// What to do, in one clause.
    pub fn remedy(&self) -> &'static str {
        match self {
            ClientError::Unreachable { .. } => {
                "start it with `tartan run`, or name its directory with --root"
            }
            ClientError::NotStarted { .. } => {
                "correct the reason; where `tartan run` runs, it then tries again by itself"
            }
            ClientError::Waiting { .. } => {
                "bring the registry back, or correct the reason: the agent then goes on by itself"
            }
            ClientError::NotAllowed { .. } => "run as root (sudo)",
            ClientError::Silent { .. } => "see its log",
            ClientError::Answer(_) => "use the `tartan` of the agent's version",
            ClientError::Refused(_) => "correct what the error names",
        }
    }

    fn of_connecting(path: &Path, source: io::Error) -> ClientError {
        let path = path.to_owned();
        // EACCES and EPERM: the directory is root's.
        if source.kind() == io::ErrorKind::PermissionDenied {
            ClientError::NotAllowed { path, source }
        } else {
            ClientError::Unreachable { path, source }
        }
    }
}

fn ask(path: &Path, request: &Request) -> Result<serde_json::Value, ClientError> {
    let stream = send(path, request)?;
    read_reply(path, &mut BufReader::new(stream.take(ANSWER_LIMIT)))
}

fn send(path: &Path, request: &Request) -> Result<UnixStream, ClientError> {
    let silent = |source| ClientError::Silent {
        path: path.to_owned(),
        source,
    };
    let connected = connect(path);
    let mut stream = connected.map_err(|source| ClientError::of_connecting(path, source))?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(silent)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(silent)?;
    let mut line = serde_json::to_vec(request).map_err(ClientError::Answer)?;
    line.push(b'\n');
    stream.write_all(&line).map_err(silent)?;
    Ok(stream)
}

/// An agent that has just been started has no socket yet: it is waited for.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let asked = Instant::now();
    loop {
        let result = UnixStream::connect(path);
        let is_absent = |error: &io::Error| {
            matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            )
        };
        let waits = result.as_ref().err().is_some_and(is_absent)
            && asked.elapsed() < STARTING
            && path.parent().is_some_and(is_starting);
        if !waits {
            return result;
        }
        std::thread::sleep(STARTING_STEP);
    }
}

/// Whether an agent has the run directory, and has not said why it does not start.
fn is_starting(run_dir: &Path) -> bool {
    is_signed_by_an_agent(&run_dir.join(LOCK_FILE)) && start_failure::read(run_dir).is_none()
}

fn read_reply(path: &Path, reader: &mut impl BufRead) -> Result<serde_json::Value, ClientError> {
    let silent = |source| ClientError::Silent {
        path: path.to_owned(),
        source,
    };
    let mut answer = Vec::new();
    reader.read_until(b'\n', &mut answer).map_err(silent)?;
    if answer.is_empty() {
        return Err(silent(io::ErrorKind::UnexpectedEof.into()));
    }
    match serde_json::from_slice(&answer).map_err(ClientError::Answer)? {
        Reply::Ok(value) => Ok(value),
        Reply::Error(reason) => Err(ClientError::Refused(reason)),
    }
}

/// Bytes read of an answer that goes on.
const READ_AT_ONCE: usize = 256 * 1024;
/// A running agent answers within milliseconds; a keeper without a service lets callers wait.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a start is waited for: it takes tens of milliseconds.
const STARTING: Duration = Duration::from_secs(1);
const STARTING_STEP: Duration = Duration::from_millis(10);
const ANSWER_LIMIT: u64 = 64 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_call_to_a_keeper_without_a_service_ends_with_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api.sock");
        // The kernel accepts connections, and no process answers.
        let _listener = UnixListener::bind(&path).unwrap();
        start_failure::note(directory.path(), "line 3 is wrong: correct it");
        let asked = std::time::Instant::now();
        let error = call(&path, &Request::Status).unwrap_err();
        assert!(asked.elapsed() < Duration::from_secs(10));
        assert!(error.is_no_answer());
        assert!(
            error.to_string().contains("line 3 is wrong: correct it"),
            "{error}"
        );
    }

    /// The lock file holds the id of a process of this program, or of one that is gone.
    #[test]
    fn an_agent_that_waits_for_its_registry_is_no_failed_start() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api.sock");
        let lock = directory.path().join(LOCK_FILE);
        let reason = format!("{}: etcd: refused; check it", start_failure::WAITS);
        start_failure::note(directory.path(), &reason);
        std::fs::write(&lock, format!("{}\n", std::process::id())).unwrap();
        let error = call(&path, &Request::Status).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the agent runs and waits for its registry: etcd: refused; check it"
        );
        assert_eq!((error.code(), error.is_no_answer()), ("waiting", true));
        std::fs::write(&lock, "4294967295\n").unwrap();
        let error = call(&path, &Request::Status).unwrap_err();
        assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
    }

    #[test]
    fn a_caller_without_permission_gets_a_message_that_says_so() {
        for errno in [rustix::io::Errno::ACCESS, rustix::io::Errno::PERM] {
            let error = ClientError::of_connecting(Path::new("/x"), errno.into());
            assert!(!error.is_no_answer());
            assert!(error.to_string().contains("sudo"), "{error}");
        }
    }

    #[test]
    fn no_agent_no_answer_and_nonsense_are_different_errors() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api.sock");
        let no_agent = call(&path, &Request::Status).unwrap_err();
        assert!(matches!(no_agent, ClientError::Unreachable { .. }));
        assert!(no_agent.to_string().contains("tartan run"), "{no_agent}");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let mut line = String::new();
            BufReader::new(listener.accept().unwrap().0)
                .read_line(&mut line)
                .unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"{\"maybe\":1}\n").unwrap();
            BufReader::new(stream).read_line(&mut line).unwrap();
            line
        });
        assert!(matches!(
            call(&path, &Request::Peers),
            Err(ClientError::Silent { .. })
        ));
        assert!(matches!(
            call(&path, &Request::Drops),
            Err(ClientError::Answer(_))
        ));
        assert_eq!(
            server.join().unwrap(),
            "{\"call\":\"peers\"}\n{\"call\":\"drops\"}\n"
        );
        // The listener is gone, its file is not: still no agent.
        assert!(matches!(
            call(&path, &Request::Status),
            Err(ClientError::Unreachable { .. })
        ));
    }
}
