//! Connections of callers over HTTP, bounded in number, time and size.
//!
//! Anyone in the network can connect and say nothing. Every connection ends after [`MOST_READ`] bytes, and after
//! [`LIFETIME`] where answers are short; when there are [`CONNECTIONS`], the oldest is closed for the next, so that a probe
//! is always accepted.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};
use tracing::warn;

/// A listener of such connections.
pub(crate) struct Connections {
    listener: TcpListener,
    /// How long a connection lasts at most.
    lifetime: Option<Duration>,
    /// Oldest first. Dropping one ends the connection; one that has ended has dropped its receiver.
    open: VecDeque<oneshot::Sender<()>>,
}

/// One connection.
pub(crate) struct Connection {
    stream: TcpStream,
    /// When it ends, if ever by itself.
    end: Option<Pin<Box<Sleep>>>,
    /// Ready when it gives way to another.
    ended: oneshot::Receiver<()>,
    /// Bytes that it may still send.
    left: usize,
}

impl Connections {
    /// Those that `listener` accepts, for answers that take no longer than [`LIFETIME`].
    pub(crate) fn of(listener: TcpListener) -> Connections {
        Connections {
            listener,
            lifetime: Some(LIFETIME),
            open: VecDeque::new(),
        }
    }

    /// Those that `listener` accepts, for answers without an end.
    pub(crate) fn without_end(listener: TcpListener) -> Connections {
        Connections {
            lifetime: None,
            ..Connections::of(listener)
        }
    }
}

impl Listener for Connections {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, caller)) => {
                    self.open.retain(|connection| !connection.is_closed());
                    if self.open.len() >= CONNECTIONS {
                        self.open.pop_front();
                    }
                    let (open, ended) = oneshot::channel();
                    self.open.push_back(open);
                    let connection = Connection {
                        stream,
                        end: self.lifetime.map(|lifetime| Box::pin(sleep(lifetime))),
                        ended,
                        left: MOST_READ,
                    };
                    return (connection, caller);
                }
                Err(error) => {
                    // Out of descriptors, most likely: without a pause this would spin.
                    warn!(%error, "cannot accept a caller over HTTP");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl Connection {
    /// Fails once the connection is over; the task is woken then.
    fn poll_end(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let end = self.end.as_mut();
        let is_over = end.is_some_and(|end| end.as_mut().poll(context).is_ready());
        // It may be asked again after its end, and a receiver may not.
        if is_over
            || self.ended.is_terminated()
            || Pin::new(&mut self.ended).poll(context).is_ready()
        {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_end(context)?;
        if self.left == 0 {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let more = buffer.filled().len().saturating_sub(before);
        self.left = self.left.saturating_sub(more);
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_end(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_end(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Open at a time.
pub(crate) const CONNECTIONS: usize = 64;
/// Longer than the kubelet waits for a probe by default (1 s).
const LIFETIME: Duration = Duration::from_secs(5);
/// Many times the size of a probe's request.
pub(crate) const MOST_READ: usize = 16 * 1024;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
