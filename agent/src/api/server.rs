//! The listening side: bounded connections, checked callers, one request each.
//!
//! Theory of operation. Two sockets are served alike, and share nothing but the loop that answers: one for all callers, one
//! for the plugin. A connection is first *waiting*, until its request is whole and a seat for the answer is free. Any
//! process of root can connect and say nothing, so no caller has long for the first byte, and where too many wait the one that
//! waits longest is closed for the next. The plugin, which connects before it has anything to ask, connects again.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;
use tracing::{debug, warn};

use super::wire::{Reply, Request};

/// Why there is no socket to answer on.
#[derive(Debug, Error)]
pub enum ServerError {
    /// The path cannot be bound.
    #[error(
        "cannot listen on {path}; move what is there elsewhere, or choose another directory with --root"
    )]
    Bind {
        /// The socket's path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A deposited descriptor is no listener of this path any more.
    #[error(
        "the listener kept for {path} is no longer what callers reach there; it is opened anew"
    )]
    Stale {
        /// The socket's path.
        path: PathBuf,
    },
    /// The runtime refuses it.
    #[error("cannot serve the API socket; check the limit of open descriptors (ulimit -n)")]
    Register(#[source] io::Error),
}

/// A request and where its answer goes.
#[derive(Debug)]
pub struct Call {
    /// What was asked.
    pub request: Request,
    /// Where the answer goes; the caller may have disconnected.
    pub answer: oneshot::Sender<Reply>,
    /// The connection itself, of a request whose answer goes on ([`Request::Capture`], [`Request::Upgrade`],
    /// [`Request::HandOver`]): then all of it goes there, and nothing to `answer`.
    pub connection: Option<StdStream>,
}

/// Binds the path, mode 0600, in place of a socket that an earlier agent left. The caller holds the run
/// directory's lock, so no other agent answers there.
///
/// # Errors
/// `Bind`, also when something that is no socket is in the way.
pub fn bind(path: &Path) -> Result<StdListener, ServerError> {
    let failed = |source: io::Error| ServerError::Bind {
        path: path.to_owned(),
        source,
    };
    if is_socket(path) {
        std::fs::remove_file(path).map_err(failed)?;
    }
    let listener = StdListener::bind(path).map_err(failed)?;
    // The directory is 0700, so no other user reaches the socket in between.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

/// Takes a listener that the keeper held.
///
/// # Errors
/// `Stale` when it is not bound to that path, or the path was removed.
pub fn adopt(descriptor: OwnedFd, path: &Path) -> Result<StdListener, ServerError> {
    let listening = rustix::net::sockopt::socket_acceptconn(&descriptor).unwrap_or(false);
    let listener = StdListener::from(descriptor);
    let bound = listener.local_addr().ok();
    let here = bound.as_ref().and_then(|address| address.as_pathname()) == Some(path);
    if listening && here && is_socket(path) {
        Ok(listener)
    } else {
        Err(ServerError::Stale {
            path: path.to_owned(),
        })
    }
}

/// The two sockets that callers reach the agent by.
#[derive(Debug)]
pub struct Listeners {
    /// For all callers.
    pub general: StdListener,
    /// For the plugin.
    pub plugin: StdListener,
}

impl Listeners {
    /// The same listeners; none where no descriptor is left.
    pub fn duplicate(&self) -> Option<Listeners> {
        Some(Listeners {
            general: self.general.try_clone().ok()?,
            plugin: self.plugin.try_clone().ok()?,
        })
    }
}

/// Over which of them a caller comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Socket {
    General,
    Plugin,
}

impl Socket {
    /// How long a caller has for its first byte: the plugin connects before it has work.
    const fn first_byte(self) -> Duration {
        match self {
            Socket::General => FIRST_BYTE,
            Socket::Plugin => LINE_PATIENCE,
        }
    }
}

/// Answers callers of both sockets for as long as the control loop takes calls.
///
/// # Errors
/// `Register` when a listener cannot be watched.
pub async fn serve_both(
    listeners: Listeners,
    calls: mpsc::Sender<Call>,
) -> Result<(), ServerError> {
    let Listeners { general, plugin } = listeners;
    tokio::select! {
        served = serve(general, Socket::General, calls.clone()) => served,
        served = serve(plugin, Socket::Plugin, calls) => served,
    }
}

/// Answers callers for as long as the control loop takes calls. Each has as long for its first byte as the socket gives.
///
/// # Errors
/// `Register` when the listener cannot be watched.
async fn serve(
    listener: StdListener,
    socket: Socket,
    calls: mpsc::Sender<Call>,
) -> Result<(), ServerError> {
    listener
        .set_nonblocking(true)
        .map_err(ServerError::Register)?;
    let listener = UnixListener::from_std(listener).map_err(ServerError::Register)?;
    let seats = Arc::new(Semaphore::new(CONNECTIONS));
    // Oldest first. One that has a seat has dropped its receiver.
    let mut waiting: VecDeque<(Instant, oneshot::Sender<()>)> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                make_room(&mut waiting).await;
                let (wait, ended) = oneshot::channel();
                waiting.push_back((Instant::now(), wait));
                let (calls, seats) = (calls.clone(), Arc::clone(&seats));
                tokio::spawn(async move {
                    if let Err(error) = converse(stream, socket, ended, &seats, calls).await {
                        debug!(%error, "a caller of the API left early");
                    }
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: without a pause this would spin.
                warn!(%error, "cannot accept a caller of the API");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Closes the connection that has waited longest where too many wait. None is closed at once: its request may be on its way.
async fn make_room(waiting: &mut VecDeque<(Instant, oneshot::Sender<()>)>) {
    if waiting.len() >= WAITING {
        waiting.retain(|(_, wait)| !wait.is_closed());
    }
    if waiting.len() >= WAITING
        && let Some((since, _)) = waiting.front()
    {
        tokio::time::sleep(LEAST_WAIT.saturating_sub(since.elapsed())).await;
        waiting.pop_front();
    }
}

async fn converse(
    mut stream: UnixStream,
    socket: Socket,
    ended: oneshot::Receiver<()>,
    seats: &Semaphore,
    calls: mpsc::Sender<Call>,
) -> io::Result<()> {
    let caller = stream.peer_cred()?;
    let reply = if may_call(caller.uid(), rustix::process::geteuid().as_raw()) {
        // A caller that sends nothing gets no reply: the plugin connects before it has work and sends its request
        // later. It retries after a closed connection and takes an error as a refusal.
        let read = async {
            timeout(socket.first_byte(), stream.readable()).await??;
            let request = timeout(LINE_PATIENCE, read_request(&mut stream)).await?;
            let seat = seats.acquire().await.map_err(io::Error::other)?;
            Ok::<_, io::Error>((request, seat))
        };
        let (request, _seat) = tokio::select! {
            seated = read => seated?,
            _ = ended => return Ok(()),
        };
        match request {
            // A container that attaches pods need not read what they say.
            Ok(Request::Capture { .. }) if socket == Socket::Plugin => Reply::Error(
                "packets are captured over the agent's general socket alone".to_owned(),
            ),
            Ok(Request::Trace { .. }) if socket == Socket::Plugin => {
                Reply::Error("packets are traced over the agent's general socket alone".to_owned())
            }
            Ok(Request::Reports { .. }) if socket == Socket::Plugin => Reply::Error(
                "other nodes are asked over the agent's general socket alone".to_owned(),
            ),
            Ok(Request::Upgrade { .. } | Request::HandOver { .. }) if socket == Socket::Plugin => {
                Reply::Error("the agent is upgraded over its general socket alone".to_owned())
            }
            Ok(
                request @ (Request::Capture { .. }
                | Request::Upgrade { .. }
                | Request::HandOver { .. }),
            ) => {
                return hand_over(request, stream, &calls).await;
            }
            Ok(request) => ask(request, &calls).await,
            Err(reason) => Reply::Error(reason),
        }
    } else {
        warn!(uid = caller.uid(), "a caller of the API is refused");
        Reply::Error("only root and the agent's own user may call; use sudo".to_owned())
    };
    let mut line = serde_json::to_vec(&reply).map_err(io::Error::from)?;
    line.push(b'\n');
    timeout(LINE_PATIENCE, stream.write_all(&line)).await?
}

fn may_call(caller: u32, own: u32) -> bool {
    caller == 0 || caller == own
}

async fn read_request(stream: &mut UnixStream) -> Result<Request, String> {
    let mut line = Vec::new();
    let mut reader = BufReader::new(stream.take(REQUEST_LIMIT + 1));
    reader
        .read_until(b'\n', &mut line)
        .await
        .map_err(|error| error.to_string())?;
    if line.len() as u64 > REQUEST_LIMIT {
        return Err(format!("a request has at most {REQUEST_LIMIT} bytes"));
    }
    serde_json::from_slice(&line).map_err(|error| format!("not a request: {error}"))
}

async fn ask(request: Request, calls: &mpsc::Sender<Call>) -> Reply {
    let (answer, answered) = oneshot::channel();
    let stopping = || Reply::Error("the agent is stopping; try again".to_owned());
    // A loop that hangs takes no call either.
    let asked = async {
        let call = Call {
            request,
            answer,
            connection: None,
        };
        calls.send(call).await.ok()?;
        answered.await.ok()
    };
    match timeout(ANSWER_PATIENCE, asked).await {
        Ok(Some(reply)) => reply,
        Ok(None) => stopping(),
        Err(_elapsed) => Reply::Error(format!(
            "no answer within {} s; see the agent's log",
            ANSWER_PATIENCE.as_secs()
        )),
    }
}

/// Gives the connection to the one that answers.
async fn hand_over(
    request: Request,
    stream: UnixStream,
    calls: &mpsc::Sender<Call>,
) -> io::Result<()> {
    let connection = stream.into_std()?;
    connection.set_nonblocking(false)?;
    let (answer, _) = oneshot::channel();
    let call = Call {
        request,
        answer,
        connection: Some(connection),
    };
    calls.send(call).await.map_err(io::Error::other)
}

/// Whether a socket lies there; it need not be ours.
pub fn is_socket(path: &Path) -> bool {
    path.symlink_metadata()
        .is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// Requests of one socket that are answered at a time.
const CONNECTIONS: usize = 32;
/// Connections of one socket that have no seat yet.
const WAITING: usize = 256;
/// How long a caller of the socket for all may say nothing.
const FIRST_BYTE: Duration = Duration::from_secs(2);
/// How long the connection that is closed for another has waited at least.
const LEAST_WAIT: Duration = Duration::from_millis(50);
const REQUEST_LIMIT: u64 = 4096;
const LINE_PATIENCE: Duration = Duration::from_secs(10);
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
