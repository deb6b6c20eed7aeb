//! `sendmmsg` of messages that are gathered from many pieces, and cut into datagrams by the kernel or the network card.
//!
//! The arrays that one call needs are too large for the stack and are kept from call to call. They hold pointers only
//! between the lines that fill them and the end of the call.

use std::ffi::c_uint;
use std::io;
use std::mem::zeroed;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use encap::Ecn;
use socket2::SockAddr;

use super::cmsg;
use super::faults::{self, InjectedFault};
use crate::limits::{GSO_SEGMENTS, SEND_MESSAGES, SEND_PIECES};
use crate::underlay::Outgoing;

/// Room for the messages of one call.
pub(crate) struct SendBuffers {
    rows: Vec<Row>,
    pieces: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
}

/// What a message points to.
struct Row {
    to: SockAddr,
    control: Control,
    control_len: usize,
    /// Its pieces: the first and how many.
    pieces: (usize, usize),
}

/// Control space aligned as `cmsghdr` asks.
#[repr(C, align(8))]
struct Control([u8; 2 * cmsg::INT_SPACE]);

// WHY: the raw pointers inside make it neither by default, and a worker moves to its thread once.
// SAFETY: no pointer in it is ever used outside of `send`, which fills all of them anew before the kernel sees them.
unsafe impl Send for SendBuffers {}

impl SendBuffers {
    pub(crate) fn new() -> SendBuffers {
        SendBuffers {
            rows: Vec::with_capacity(SEND_MESSAGES),
            pieces: Vec::with_capacity(SEND_PIECES),
            messages: Vec::with_capacity(SEND_MESSAGES),
        }
    }

    /// Sends messages in order until one is refused, and returns how many were sent. Messages that do not fit one call
    /// are left to the next.
    ///
    /// # Errors
    /// Only if the first was refused: then none was sent.
    pub(crate) fn send<'a>(
        &mut self,
        socket: impl AsFd,
        messages: impl Iterator<Item = Outgoing<'a>>,
    ) -> io::Result<usize> {
        self.gather(messages)?;
        // WHY: no crate gives sendmmsg with control messages into memory that it does not allocate. By its number, because
        // musl's function of that name sends one message after the other: it does not know the padding of its own
        // `msghdr` to be zero, as `point` leaves it, so that the kernel reads the lengths beside it right.
        // SAFETY: each of the messages was filled by `point` with a name, control and pieces that lie in `rows` and
        // `pieces`, untouched since, or in the slices of `messages`, which are borrowed for longer than this call. The
        // kernel only reads them, and writes `msg_len` of each message (sendmmsg(2)).
        let sent = unsafe {
            libc::syscall(
                libc::SYS_sendmmsg,
                socket.as_fd().as_raw_fd(),
                self.messages.as_mut_ptr(),
                self.messages.len() as c_uint,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        if sent < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(sent as usize)
        }
    }

    /// Makes the kernel's structures of as many messages as fit one call.
    fn gather<'a>(&mut self, messages: impl Iterator<Item = Outgoing<'a>>) -> io::Result<()> {
        self.rows.clear();
        self.pieces.clear();
        self.messages.clear();
        for message in messages {
            if message.segment.is_some() && faults::is_set(InjectedFault::GsoSends) {
                if self.rows.is_empty() {
                    return Err(io::Error::from_raw_os_error(libc::EINVAL));
                }
                break;
            }
            self.fill(message);
            let full = self.pieces.len() + 2 * GSO_SEGMENTS > SEND_PIECES;
            if full || self.rows.len() == SEND_MESSAGES {
                break;
            }
        }
        self.point();
        Ok(())
    }

    fn fill(&mut self, message: Outgoing<'_>) {
        let first = self.pieces.len();
        for piece in message.pieces {
            self.pieces.push(libc::iovec {
                iov_base: piece.as_ptr().cast_mut().cast(),
                iov_len: piece.len(),
            });
        }
        let ecn = (message.ecn != Ecn::NotEct).then(|| ecn_control(message.to, message.ecn));
        let segment = message
            .segment
            .map(|size| cmsg::with_u16(libc::SOL_UDP, super::sockopt::UDP_SEGMENT, size));
        let mut control = Control([0; 2 * cmsg::INT_SPACE]);
        let mut control_len = 0;
        for (place, used) in control
            .0
            .chunks_exact_mut(cmsg::INT_SPACE)
            .zip([ecn, segment].iter().flatten())
        {
            place.copy_from_slice(used);
            control_len += cmsg::INT_SPACE;
        }
        self.rows.push(Row {
            to: SockAddr::from(message.to),
            control,
            control_len,
            pieces: (first, self.pieces.len() - first),
        });
    }

    /// Makes the kernel's structures of the rows; from here on neither they nor the pieces may move.
    fn point(&mut self) {
        // All pointers into the pieces come from this one: to borrow the array once more for a later message would
        // invalidate those of the messages before.
        let pieces = self.pieces.as_mut_ptr();
        for row in &mut self.rows {
            // WHY: libc's structs have private padding, so they cannot be written as literals.
            // SAFETY: all-zero is a valid value of this plain C struct: null pointers and zero lengths.
            let mut message: libc::mmsghdr = unsafe { zeroed() };
            let header = &mut message.msg_hdr;
            header.msg_name = row.to.as_ptr().cast_mut().cast();
            header.msg_namelen = row.to.len();
            let (first, count) = row.pieces;
            // `fill` put them there, so the range lies in the array.
            header.msg_iov = pieces.wrapping_add(first);
            header.msg_iovlen = count as _;
            if row.control_len > 0 {
                header.msg_control = row.control.0.as_mut_ptr().cast();
                header.msg_controllen = row.control_len as _;
            }
            self.messages.push(message);
        }
    }
}

fn ecn_control(to: SocketAddr, ecn: Ecn) -> [u8; cmsg::INT_SPACE] {
    match to {
        SocketAddr::V4(_) => cmsg::with_int(libc::SOL_IP, libc::IP_TOS, ecn as i32),
        SocketAddr::V6(_) => cmsg::with_int(libc::SOL_IPV6, libc::IPV6_TCLASS, ecn as i32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{OutboundBatch, Retry};
    use crate::underlay::{Port, TxSlot};
    use encap::{Family, Format};

    /// What a message says, read as the kernel does: through the pointers.
    // The lengths have other types with musl.
    #[allow(clippy::unnecessary_cast)]
    fn read(message: &libc::mmsghdr) -> (usize, Vec<u8>, usize) {
        let header = &message.msg_hdr;
        // WHY: that the pointers are good is what is to be shown; Miri checks it.
        // SAFETY: they point into the buffers' arrays and a batch's frames, which live and are not written meanwhile.
        let pieces =
            unsafe { std::slice::from_raw_parts(header.msg_iov, header.msg_iovlen as usize) };
        let bytes = pieces.iter().flat_map(|piece| {
            // WHY: as above.
            // SAFETY: as above.
            unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len) }
        });
        let bytes: Vec<u8> = bytes.copied().collect();
        // WHY: as above.
        // SAFETY: as above.
        let name = unsafe {
            std::slice::from_raw_parts(header.msg_name.cast::<u8>(), header.msg_namelen as usize)
        };
        let control = match header.msg_controllen as usize {
            0 => 0,
            length => {
                // WHY: as above.
                // SAFETY: as above.
                let control =
                    unsafe { std::slice::from_raw_parts(header.msg_control.cast::<u8>(), length) };
                cmsg::walk(control).count()
            }
        };
        (name.len(), bytes, control)
    }

    #[test]
    fn every_message_can_be_read_through_its_pointers() {
        let port = Port::new(Format::Vxlan, Family::V4);
        let slot = TxSlot { port, lane: 0 };
        let mut batch = OutboundBatch::new();
        let mut expected = Vec::new();
        for (number, ecn, datagrams) in [(1, Ecn::NotEct, 1), (2, Ecn::Ect0, 3), (3, Ecn::Ce, 2)] {
            let to = SocketAddr::from(([192, 0, 2, number], 8472));
            let mut bytes = Vec::new();
            for place in 0..datagrams {
                let head = batch.head(&[number; 22], 1, |_, inner| {
                    inner.fill(place);
                    Some(1)
                });
                batch.bytes_mut(usize::from(number), 0..4).fill(number);
                let payload = (usize::from(number), 0..4);
                assert!(batch.push(slot, (to, ecn), head.unwrap(), payload, Retry::Never));
                bytes.extend([number; 22]);
                bytes.push(place);
                bytes.extend([number; 4]);
            }
            let control = usize::from(ecn != Ecn::NotEct) + usize::from(datagrams > 1);
            let name = size_of::<libc::sockaddr_in>();
            expected.push((name, bytes, control));
        }
        let mut buffers = SendBuffers::new();
        // The second time everything is in place already.
        for _ in 0..2 {
            buffers.gather(batch.messages(slot)).unwrap();
            let said: Vec<_> = buffers.messages.iter().map(read).collect();
            assert_eq!(said, expected);
        }
    }
}
