//! A socket for requests that the kernel answers while they are sent (`nfnetlink_rcv`): an answer is there at once or
//! never, so nothing waits. Requests for a list, which may take several datagrams, have a socket that waits
//! (`host::firewall::nft`).

use std::io;

use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use rtnetlink::sys::{Socket, SocketAddr};

use super::message::{Content, first};

/// A socket of nfnetlink. Its network namespace is that of the thread that opened it.
pub(crate) struct RequestSocket {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl RequestSocket {
    /// # Errors
    /// The kernel's reason not to open a socket.
    pub(crate) fn open() -> io::Result<RequestSocket> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind(&SocketAddr::new(0, 0))?;
        Ok(RequestSocket {
            socket,
            sequence: 0,
            buffer: Vec::with_capacity(DATAGRAM),
        })
    }

    /// Sends the message that `write` makes of a sequence number, which has to ask for one object or for an
    /// acknowledgement. Returns what `read` makes of the kind and the attributes of the first object that it knows; `None`
    /// where the kernel acknowledges without such an object.
    ///
    /// # Errors
    /// The kernel's refusal; WouldBlock where it answers nothing.
    pub(crate) fn request<T>(
        &mut self,
        write: impl FnOnce(u32) -> Vec<u8>,
        read: impl Fn(u16, &[u8]) -> Option<T>,
    ) -> io::Result<Option<T>> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = write(self.sequence);
        self.socket.send_to(&request, &SocketAddr::new(0, 0), 0)?;
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
                        if let Some(found) = read(reply.kind, attributes) {
                            return Ok(Some(found));
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

#[cfg(test)]
mod tests {
    use netlink_packet_core::NLM_F_ACK;
    use testbed::Namespace;

    use super::*;
    use crate::nfnetlink::message::{message_type, request};

    const TABLES: u8 = libc::NFNL_SUBSYS_NFTABLES as u8;
    const GETGEN: u16 = message_type(TABLES, libc::NFT_MSG_GETGEN as u8);
    const NEWGEN: u16 = message_type(TABLES, libc::NFT_MSG_NEWGEN as u8);

    /// nf_tables has no such request.
    const UNKNOWN: u16 = message_type(TABLES, u8::MAX);

    fn message(kind: u16, flags: u16, sequence: u32) -> Vec<u8> {
        request(kind, flags, libc::AF_UNSPEC as u8, &[], sequence)
    }

    fn kind_of_answer(kind: u16, _: &[u8]) -> Option<u16> {
        Some(kind)
    }

    fn generation(socket: &mut RequestSocket) -> io::Result<Option<u16>> {
        socket.request(|sequence| message(GETGEN, 0, sequence), kind_of_answer)
    }

    #[test]
    fn messages_of_other_processes_and_late_answers_are_ignored() {
        Namespace::new("netfilter").inside(|| {
            let mut socket = RequestSocket::open().unwrap();
            let mut own = SocketAddr::new(0, 0);
            socket.socket.get_address(&mut own).unwrap();
            let other = Socket::new(NETLINK_NETFILTER).unwrap();
            // With the number of the next request: an object of another kind, and an acknowledgement.
            for kind in [NEWGEN + 1, libc::NLMSG_ERROR as u16] {
                other.send_to(&message(kind, 0, 1), &own, 0).unwrap();
            }
            assert_eq!(generation(&mut socket).unwrap(), Some(NEWGEN));
            // The refusal of an earlier request, which was not read.
            let unread = message(UNKNOWN, 0, 1);
            let kernel = SocketAddr::new(0, 0);
            socket.socket.send_to(&unread, &kernel, 0).unwrap();
            assert_eq!(generation(&mut socket).unwrap(), Some(NEWGEN));
        });
    }

    #[test]
    fn an_acknowledgement_tells_no_object() {
        Namespace::new("netfilter").inside(|| {
            let mut socket = RequestSocket::open().unwrap();
            let acknowledged = |sequence| message(GETGEN, NLM_F_ACK, sequence);
            let found = socket.request(acknowledged, |_, _| None::<()>).unwrap();
            assert_eq!(found, None);
        });
    }

    #[test]
    fn a_refusal_is_an_error_and_silence_is_one() {
        Namespace::new("netfilter").inside(|| {
            let mut socket = RequestSocket::open().unwrap();
            let refused = socket.request(|sequence| message(UNKNOWN, 0, sequence), kind_of_answer);
            let code = refused.unwrap_err().raw_os_error();
            assert_eq!(code, Some(libc::EINVAL));
            // The kernel does not answer a message without NLM_F_REQUEST.
            let silent = |sequence| {
                let mut message = message(GETGEN, 0, sequence);
                message[6..8].fill(0);
                message
            };
            let error = socket.request(silent, kind_of_answer).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            assert_eq!(generation(&mut socket).unwrap(), Some(NEWGEN));
        });
    }
}
