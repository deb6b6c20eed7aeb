//! The netlink socket of netfilter: one question at a time, each answer waited
//! for a bounded time.

use std::fmt;
use std::io;
use std::time::Duration;

use netlink_packet_core::NLM_F_DUMP;
use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use rtnetlink::sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size_force;
use tokio::time::timeout;

use super::NftError;
use super::message::{self, BatchStep};
use crate::nfnetlink::attribute::Attribute;
use crate::nfnetlink::message::{Content, first};

/// An open socket of the network namespace it was opened in.
pub(in crate::host) struct Socket {
    socket: TokioSocket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket")
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

/// An object of a list, its attributes unread.
pub(in crate::host) struct Listed {
    pub(in crate::host) family: u8,
    pub(in crate::host) attributes: Vec<u8>,
}

impl Socket {
    /// # Errors
    /// [`NftError::Unsupported`] where the kernel has no netfilter, or the
    /// kernel's reason not to open a socket.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub(in crate::host) fn open() -> Result<Socket, NftError> {
        let open = || {
            let mut socket = TokioSocket::new(NETLINK_NETFILTER)?;
            socket.socket_mut().bind(&SocketAddr::new(0, 0))?;
            // A batch is one message: 20,000 elements are 600 KB. Without the right to it the kernel's limit holds.
            let _ = set_socket_send_buffer_size_force(socket.socket_ref(), SEND_BUFFER);
            Ok(socket)
        };
        let socket = open().map_err(|source: io::Error| match Errno::from_io_error(&source) {
            Some(Errno::PROTONOSUPPORT) => NftError::Unsupported,
            _ => NftError::Socket { source },
        })?;
        Ok(Socket {
            socket,
            sequence: 0,
            buffer: Vec::with_capacity(DATAGRAM),
        })
    }

    /// Asks for one object.
    pub(super) async fn one(&mut self, kind: u8) -> Result<Option<Listed>, NftError> {
        let sequence = self.take_sequence(1);
        self.send(&message::question(kind, 0, 0, &[], sequence))
            .await?;
        let mut found = None;
        self.answers(sequence, sequence, |content| match content {
            Content::Object { family, attributes } => {
                found = Some(listed(family, attributes));
                true
            }
            _ => true,
        })
        .await
        .map_err(question_error)?;
        Ok(found)
    }

    /// Asks for all objects of a kind that match the attributes.
    pub(super) async fn list(
        &mut self,
        kind: u8,
        family: u8,
        matching: &[Attribute],
    ) -> Result<Vec<Listed>, NftError> {
        self.list_by(|sequence| message::question(kind, NLM_F_DUMP, family, matching, sequence))
            .await
    }

    /// Asks any part of netfilter for a list, by the message that `question` makes with a number.
    pub(in crate::host) async fn list_by(
        &mut self,
        question: impl FnOnce(u32) -> Vec<u8>,
    ) -> Result<Vec<Listed>, NftError> {
        let sequence = self.take_sequence(1);
        self.send(&question(sequence)).await?;
        let mut found = Vec::new();
        let mut too_many = false;
        self.answers(sequence, sequence, |content| match content {
            Content::Object { family, attributes } => {
                found.push(listed(family, attributes));
                too_many = found.len() > MOST_OBJECTS;
                too_many
            }
            Content::End(_) => true,
            Content::Other => false,
        })
        .await
        .map_err(question_error)?;
        if too_many {
            return Err(NftError::TooMany);
        }
        Ok(found)
    }

    /// Has any part of netfilter do what the message says that `order` makes with a number, which asks for an answer.
    pub(in crate::host) async fn order_by(
        &mut self,
        order: impl FnOnce(u32) -> Vec<u8>,
    ) -> Result<(), NftError> {
        let sequence = self.take_sequence(1);
        self.send(&order(sequence)).await?;
        self.answers(sequence, sequence, |_| true).await
    }

    /// Takes all steps, or none and the kernel's reason.
    pub(in crate::host) async fn commit(&mut self, steps: &[BatchStep]) -> Result<(), NftError> {
        let count = u32::try_from(steps.len()).unwrap_or(u32::MAX);
        let begin = self.take_sequence(count.saturating_add(2));
        let last = begin.wrapping_add(count);
        self.send(&message::batch(steps, begin)).await?;
        self.answers(begin, last, |_| true).await
    }

    /// Reads messages that answer the questions `begin` to `last`, until one of
    /// them is an error or `enough` says so of one that answers the last.
    async fn answers(
        &mut self,
        begin: u32,
        last: u32,
        mut enough: impl FnMut(Content<'_>) -> bool,
    ) -> Result<(), NftError> {
        loop {
            self.receive().await?;
            let mut rest = &self.buffer[..];
            while let Some((reply, after)) = first(rest) {
                rest = after;
                // Anything else answers a question given up earlier.
                if !(begin..=last).contains(&reply.sequence) {
                    continue;
                }
                if reply.interrupted {
                    return Err(NftError::Interrupted);
                }
                if let Content::End(code @ ..0) = reply.content {
                    return Err(NftError::from_code(code));
                }
                if reply.sequence == last && enough(reply.content) {
                    return Ok(());
                }
            }
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), NftError> {
        let sent = self.socket.send_to(bytes, &SocketAddr::new(0, 0)).await;
        sent.map(drop).map_err(|source| NftError::Socket { source })
    }

    async fn receive(&mut self) -> Result<(), NftError> {
        self.buffer.clear();
        match timeout(ANSWER_TIMEOUT, self.socket.recv_from(&mut self.buffer)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(source)) => Err(NftError::Socket { source }),
            Err(_) => Err(NftError::NoAnswer),
        }
    }

    /// The first of `count` numbers, none of which is used again soon; a
    /// question's numbers never wrap.
    fn take_sequence(&mut self, count: u32) -> u32 {
        let first = match self.sequence.checked_add(count) {
            Some(_) => self.sequence,
            None => 0,
        };
        self.sequence = first.saturating_add(count);
        first
    }
}

/// A question that makes no sense to nfnetlink is one to a part it lacks
/// (`nfnetlink_rcv_msg`).
fn question_error(error: NftError) -> NftError {
    match error {
        NftError::Refused {
            source: Errno::INVAL,
        } => NftError::Unsupported,
        error => error,
    }
}

fn listed(family: u8, attributes: &[u8]) -> Listed {
    Listed {
        family,
        attributes: attributes.to_vec(),
    }
}

/// Room for the largest batch, in bytes.
const SEND_BUFFER: usize = 4 << 20;
/// The kernel's lists come in parts of at most 32 KiB.
const DATAGRAM: usize = 64 * 1024;
/// More chains, or rules of one chain, than any node has.
const MOST_OBJECTS: usize = 1 << 20;
/// The kernel answers at once; a transaction of another process may hold it up.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
