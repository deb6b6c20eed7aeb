//! The agent's side of an attachment: one JSON line there, one back, over its
//! Unix socket.
//!
//! ADD connects *before* it makes anything, so that an agent that is down
//! costs no unwinding; a connection that breaks later (the agent restarted)
//! is made again and the request repeated, which the agent takes as the same.
//! Every wait is bounded.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cni_shim::RunDir;
use cni_shim::api::{Reply, Request};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// A connected agent.
#[derive(Debug)]
pub(crate) struct Agent {
    run: RunDir,
    stream: UnixStream,
}

/// Why the agent did not serve a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(
        "the Tartan agent does not answer on {socket}: start it with `tartan run`, \
         or see its log; the pod will be tried again"
    )]
    Unreachable { socket: PathBuf, source: io::Error },
    #[error("the Tartan agent refused: {reason}")]
    Refused { reason: String },
}

impl Agent {
    /// Connects, trying again until `deadline`.
    pub(crate) fn connect(run: &RunDir, deadline: Instant) -> Result<Agent, Error> {
        loop {
            match connect_once(run, deadline) {
                Ok(stream) => {
                    return Ok(Agent {
                        run: run.clone(),
                        stream,
                    });
                }
                Err(source) => pause(run, deadline, source)?,
            }
        }
    }

    /// Sends one request and waits for its answer until `deadline`, over a new
    /// connection when the old one breaks.
    pub(crate) fn call(mut self, request: &Request, deadline: Instant) -> Result<(), Error> {
        loop {
            match exchange(&mut self.stream, request, deadline) {
                Ok(answer) => return answer,
                Err(source) => pause(&self.run, deadline, source)?,
            }
            self = Agent::connect(&self.run, deadline)?;
        }
    }
}

/// Tries once to notify the agent, for at most [`NOTIFY_WAIT`]. An agent that
/// is down finds the record missing when it starts.
pub(crate) fn notify(run: &RunDir, request: &Request) {
    let deadline = Instant::now() + NOTIFY_WAIT;
    let notified =
        connect_once(run, deadline).and_then(|mut stream| exchange(&mut stream, request, deadline));
    if let Ok(Err(refused)) = notified {
        eprintln!("tartan-cni: {refused}");
    }
}

/// One request and its answer on one connection. The outer error is the
/// transport's.
fn exchange(
    stream: &mut UnixStream,
    request: &Request,
    deadline: Instant,
) -> io::Result<Result<(), Error>> {
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.set_write_timeout(Some(left(deadline)?))?;
    stream.write_all(&line)?;
    stream.set_read_timeout(Some(left(deadline)?))?;
    let mut answer = Vec::new();
    BufReader::new(stream.take(LONGEST_ANSWER)).read_until(b'\n', &mut answer)?;
    if answer.last() != Some(&b'\n') {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the agent closed the connection without an answer",
        ));
    }
    Ok(match serde_json::from_slice(&answer)? {
        Reply::Ok(_) => Ok(()),
        Reply::Error(reason) => Err(Error::Refused { reason }),
    })
}

/// By the plugin's own socket, or where no agent listens there (an older one, or another process removed the name) by the
/// one for all callers.
fn connect_once(run: &RunDir, deadline: Instant) -> io::Result<UnixStream> {
    match connect_to(&run.plugin_socket(), deadline) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ) =>
        {
            connect_to(&run.socket(), deadline)
        }
        connected => connected,
    }
}

/// connect(2) blocks while the listener's backlog is full; SO_SNDTIMEO bounds
/// that, and has to be set before.
fn connect_to(socket: &Path, deadline: Instant) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(socket)?;
    let kind = SocketType::STREAM;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&fd, Timeout::Send, Some(left(deadline)?))?;
    rustix::net::connect(&fd, &address)?;
    Ok(UnixStream::from(fd))
}

/// Waits a little before the next try, or gives up with the last error.
fn pause(run: &RunDir, deadline: Instant, source: io::Error) -> Result<(), Error> {
    if left(deadline).is_ok_and(|left| left > RETRY_EVERY) {
        std::thread::sleep(RETRY_EVERY);
        return Ok(());
    }
    Err(Error::Unreachable {
        socket: run.socket(),
        source,
    })
}

fn left(deadline: Instant) -> io::Result<Duration> {
    deadline
        .checked_duration_since(Instant::now())
        .filter(|left| !left.is_zero())
        .ok_or_else(|| io::Error::from(io::ErrorKind::TimedOut))
}

const RETRY_EVERY: Duration = Duration::from_millis(50);

/// How long [`notify`] may take.
const NOTIFY_WAIT: Duration = Duration::from_secs(1);

/// Bytes of an answer read at most.
const LONGEST_ANSWER: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use cni_shim::protocol::AttachmentKey;
    use std::os::unix::net::UnixListener;

    fn key() -> AttachmentKey {
        AttachmentKey {
            container: "c1".to_owned(),
            ifname: "eth0".to_owned(),
        }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    fn run_dir() -> (tempfile::TempDir, RunDir) {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::under(root.path());
        run.make().unwrap();
        (root, run)
    }

    #[test]
    fn an_agent_that_has_no_socket_for_the_plugin_is_asked_by_the_other() {
        let (_root, run) = run_dir();
        let server = serve(run.socket(), vec![Some("{\"ok\":{}}\n"); 2]);
        let ask = || {
            let agent = Agent::connect(&run, soon()).unwrap();
            agent.call(&Request::adopt(&key()), soon()).unwrap();
        };
        ask();
        // One without a listener: the agent was replaced by an older one.
        drop(UnixListener::bind(run.plugin_socket()).unwrap());
        ask();
        assert_eq!(server.join().unwrap().len(), 2);
    }

    /// Answers one connection after the other, `None` by closing it, and
    /// returns what it was asked.
    fn serve(
        socket: PathBuf,
        answers: Vec<Option<&'static str>>,
    ) -> std::thread::JoinHandle<Vec<String>> {
        let listener = UnixListener::bind(socket).unwrap();
        std::thread::spawn(move || {
            let mut asked = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                asked.push(line);
                if let Some(answer) = answer {
                    stream.write_all(answer.as_bytes()).unwrap();
                }
            }
            asked
        })
    }

    fn ask(answers: Vec<Option<&'static str>>) -> (Result<(), Error>, Vec<String>) {
        let (_root, run) = run_dir();
        let server = serve(run.plugin_socket(), answers);
        // What others do there is of no concern.
        let _general = UnixListener::bind(run.socket()).unwrap();
        let agent = Agent::connect(&run, soon()).unwrap();
        let answer = agent.call(&Request::adopt(&key()), soon());
        (answer, server.join().unwrap())
    }

    #[test]
    fn a_call_is_one_line_and_so_is_its_answer() {
        let (answer, asked) = ask(vec![Some("{\"ok\":{}}\n")]);
        answer.unwrap();
        assert_eq!(
            asked,
            ["{\"call\":\"adopt\",\"container\":\"c1\",\"ifname\":\"eth0\"}\n"]
        );
        let release = serde_json::to_string(&Request::release(&key())).unwrap();
        assert_eq!(
            release,
            r#"{"call":"release","container":"c1","ifname":"eth0"}"#
        );
    }

    #[test]
    fn a_refusal_carries_its_reason() {
        let (answer, _) = ask(vec![Some("{\"error\":\"no such record\"}\n")]);
        let error = answer.unwrap_err();
        assert!(error.to_string().ends_with("no such record"), "{error}");
    }

    #[test]
    fn a_request_is_repeated_when_the_agent_restarts() {
        let broken = [None, Some("{\"ok\":"), Some("nonsense\n")];
        for first in broken {
            let (answer, asked) = ask(vec![first, Some("{\"ok\":null}\n")]);
            answer.unwrap();
            assert_eq!(asked.len(), 2);
            assert_eq!(asked[0], asked[1]);
        }
    }

    #[test]
    fn a_silent_or_absent_agent_is_given_up_in_time() {
        let (_root, run) = run_dir();
        let start = Instant::now();
        let deadline = start + Duration::from_millis(200);
        let absent = Agent::connect(&run, deadline);
        assert!(matches!(absent, Err(Error::Unreachable { .. })));
        let _silent = UnixListener::bind(run.plugin_socket()).unwrap();
        let deadline = Instant::now() + Duration::from_millis(200);
        let agent = Agent::connect(&run, deadline).unwrap();
        let silent = agent.call(&Request::adopt(&key()), deadline);
        assert!(matches!(silent, Err(Error::Unreachable { .. })));
        assert!(start.elapsed() < Duration::from_secs(2));
    }
}
