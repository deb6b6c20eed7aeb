//! A socket for questions that the kernel answers while they are sent (`nfnetlink_rcv`): an answer is there at once or
//! never, so nothing waits. What a list of any length is asked for has a socket that does wait (`host::firewall::nft`).

use std::io;

use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use rtnetlink::sys::{Socket, SocketAddr};

use super::message::{Content, first};

/// A socket to ask by. Its network namespace is that of the thread that opened it.
pub(crate) struct Questions {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Questions {
    /// # Errors
    /// The kernel's reason not to open a socket.
    pub(crate) fn open() -> io::Result<Questions> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind(&SocketAddr::new(0, 0))?;
        Ok(Questions {
            socket,
            sequence: 0,
            buffer: Vec::with_capacity(DATAGRAM),
        })
    }

    /// Asks by the message that `question` makes of a sequence number, which has to ask for one object or for an
    /// acknowledgement. Returns what `read` makes of the kind and the attributes of the first object that it knows; `None`
    /// where the kernel acknowledges and tells none.
    ///
    /// # Errors
    /// The kernel's refusal; WouldBlock where it answers nothing.
    pub(crate) fn ask<T>(
        &mut self,
        question: impl FnOnce(u32) -> Vec<u8>,
        read: impl Fn(u16, &[u8]) -> Option<T>,
    ) -> io::Result<Option<T>> {
        self.sequence = self.sequence.wrapping_add(1);
        let question = question(self.sequence);
        self.socket.send_to(&question, &SocketAddr::new(0, 0), 0)?;
        loop {
            self.buffer.clear();
            let flags = libc::MSG_DONTWAIT;
            let (_, sender) = self.socket.recv_from(&mut self.buffer, flags)?;
            // Port 0 is the kernel; messages of other processes are ignored.
            if sender.port_number() != 0 {
                continue;
            }
            let mut rest = &self.buffer[..];
            while let Some((reply, after)) = first(rest) {
                rest = after;
                if reply.sequence != self.sequence {
                    continue;
                }
                match reply.content {
                    Content::End(0) => return Ok(None),
                    Content::End(code) => {
                        return Err(io::Error::from_raw_os_error(code.saturating_neg()));
                    }
                    Content::Object { attributes, .. } => {
                        if let Some(told) = read(reply.kind, attributes) {
                            return Ok(Some(told));
                        }
                    }
                    Content::Other => {}
                }
            }
        }
    }
}

/// Longest answer, in bytes: an entry of connection tracking has a few hundred.
const DATAGRAM: usize = 8 * 1024;
