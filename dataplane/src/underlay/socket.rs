//! Plain UDP sockets: one per port that receives, and beside it transmit sockets for VXLAN.
//!
//! Theory of operation: flannel sends all of `udp` from its one port, so that port's socket does both. VXLAN wants the
//! outer source port to vary with the flow, so it leaves through transmit sockets with ports of their own, which never
//! receive. Each socket may send several datagrams as one message until the kernel proves that it does not take them
//! ([`crate::probation`]).
//!
//! Where a node has several workers, each has a socket for every port, and those of one port are a group
//! (`SO_REUSEPORT`): the kernel gives all datagrams from one outer address and port to one of them, to which
//! [`reuseport`] tells. The first is bound for itself alone, which fails if anybody holds the port; only then is it
//! opened to others, which join it. So no other program can have been joined. Whoever comes later gets in only as the
//! same user, in the same network namespace, and asking for it by the same option; a program of another user, or one
//! that just binds the port, is refused. A single worker's socket is open to nobody. A group is complete before its
//! first socket is read: one more would take its share of the flows away from the others.

mod bind;
mod error;
mod options;
mod reuseport;
mod spec;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use socket2::Socket;

use super::{Exit, Failure, Outgoing, Port, Received, Underlay};
use crate::batch::InboundBatch;
use crate::limits::{INBOUND_BUFFERS, INBOUND_BYTES, TRANSMIT_SOCKETS};
use crate::now::Now;
use crate::probation::Probation;
use crate::sys::sendmmsg::Outbox;
use crate::sys::{recvmmsg, sockopt};

pub use bind::{bind, join, share, transmit};
pub use error::UnderlayError;
use options::{knows_trains, prepare, receive_nothing};
pub use reuseport::spread;
pub use spec::SocketSpec;

/// The sockets of one worker.
pub struct Sockets {
    /// By [`Port::index`].
    receive: [Option<Socket>; Port::ALL.len()],
    /// By [`Exit::index`]; where there is none, that of lane 0 sends, or else the port's own.
    transmit: [Option<Socket>; Exit::COUNT],
    /// Whether each exit sends several datagrams as one message, by [`Exit::index`].
    trains: [Probation; Exit::COUNT],
    /// The kernel knows of such messages at all.
    knows_trains: bool,
    given_up: u64,
    outbox: Outbox,
    /// Buffers that the next receive call fills at most.
    buffers: usize,
}

/// Datagrams that the kernel dropped at a socket before we could read them: its buffer was full, or the checksum bad.
///
/// # Errors
/// What getsockopt(2) gives; `ENOPROTOOPT` before Linux 4.12.
pub fn kernel_drops(socket: BorrowedFd<'_>) -> io::Result<u64> {
    sockopt::drops(socket).map(u64::from)
}

impl Sockets {
    /// Makes an underlay of bound sockets, one per port and its transmit sockets, opened here or by an earlier service:
    /// checks what they are bound to, sets every option again, and clears errors of the past. A port without transmit
    /// sockets sends by itself.
    ///
    /// # Errors
    /// [`UnderlayError::Foreign`] if one is bound to something else.
    pub fn adopt(
        bound: impl IntoIterator<Item = (OwnedFd, SocketSpec)>,
    ) -> Result<Sockets, UnderlayError> {
        let mut sockets = Sockets {
            receive: Default::default(),
            transmit: Default::default(),
            trains: Default::default(),
            knows_trains: true,
            given_up: 0,
            outbox: Outbox::new(),
            buffers: INBOUND_BUFFERS,
        };
        for (descriptor, spec) in bound {
            let socket = prepare(descriptor, &spec)?;
            sockets.knows_trains &= knows_trains(&socket);
            let port = spec.underlay_port();
            let place = match spec.lane {
                None => sockets.receive.get_mut(port.index()),
                Some(lane) => {
                    receive_nothing(&socket).map_err(|e| UnderlayError::Kernel(spec, e))?;
                    sockets.transmit.get_mut(Exit { port, lane }.index())
                }
            };
            if let Some(place) = place {
                *place = Some(socket);
            }
        }
        Ok(sockets)
    }

    /// The sockets that receive, with their ports.
    pub fn descriptors(&self) -> impl Iterator<Item = (Port, RawFd)> {
        let receive = Port::ALL.into_iter().zip(&self.receive);
        receive.filter_map(|(port, socket)| Some((port, socket.as_ref()?.as_raw_fd())))
    }

    fn socket(&self, port: Port) -> Option<&Socket> {
        self.receive.get(port.index())?.as_ref()
    }

    fn sending(&self, exit: Exit) -> Option<&Socket> {
        sending(&self.receive, &self.transmit, exit)
    }
}

impl Underlay for Sockets {
    fn receive(&mut self, port: Port, batch: &mut InboundBatch) -> io::Result<Received> {
        let socket = self.socket(port).ok_or(io::ErrorKind::WouldBlock)?;
        let most = self.buffers.min(batch.frames.len());
        let frames = batch.frames.get_mut(..most).unwrap_or_default();
        let count = recvmmsg::receive(socket, frames, &mut batch.metas)?;
        let bytes = batch.metas.iter().take(count).map(|meta| meta.len).sum();
        self.buffers = buffers_for(count, bytes);
        Ok(Received {
            buffers: count,
            emptied: count < most,
        })
    }

    fn send<'a>(
        &mut self,
        exit: Exit,
        messages: impl Iterator<Item = Outgoing<'a>>,
    ) -> io::Result<usize> {
        let Sockets {
            receive,
            transmit,
            trains,
            outbox,
            ..
        } = self;
        let socket = sending(receive, transmit, exit).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let mut train = None;
        let count = outbox.send(
            socket,
            messages.enumerate().map(|(place, message)| {
                if message.segment.is_some() && train.is_none() {
                    train = Some(place);
                }
                message
            }),
        )?;
        if train.is_some_and(|place| place < count)
            && let Some(standing) = trains.get_mut(exit.index())
        {
            standing.took();
        }
        Ok(count)
    }

    fn takes_trains(&mut self, exit: Exit, now: Now) -> bool {
        let standing = self.trains.get_mut(exit.index());
        self.knows_trains && standing.is_some_and(|standing| standing.in_use(now))
    }

    fn proved(&mut self, exit: Exit, now: Now) {
        let standing = self.trains.get_mut(exit.index());
        if standing.is_some_and(|standing| standing.prove(now)) {
            self.given_up += 1;
        }
    }

    fn given_up(&self) -> u64 {
        self.given_up
    }

    fn failure(&mut self, port: Port) -> Option<Failure> {
        let lanes = (0..TRANSMIT_SOCKETS).map(|lane| Exit { port, lane }.index());
        let transmit = lanes.filter_map(|index| self.transmit.get(index)?.as_ref());
        let mut sockets = self.socket(port).into_iter().chain(transmit);
        sockets.find_map(|socket| recvmmsg::failure(socket).ok())
    }

    fn descriptor(&self, port: Port) -> Option<RawFd> {
        Some(self.socket(port)?.as_fd().as_raw_fd())
    }

    fn exit_descriptor(&self, exit: Exit) -> Option<RawFd> {
        Some(self.sending(exit)?.as_fd().as_raw_fd())
    }
}

/// The socket that sends for an exit. Flows of a lane without one share that of lane 0, so their outer port is still that
/// of a transmit socket.
fn sending<'a>(
    receive: &'a [Option<Socket>],
    transmit: &'a [Option<Socket>],
    exit: Exit,
) -> Option<&'a Socket> {
    let Exit { port, lane: _ } = exit;
    let of = |exit: Exit| transmit.get(exit.index())?.as_ref();
    let first = || of(Exit { port, lane: 0 });
    of(exit)
        .or_else(first)
        .or_else(|| receive.get(port.index())?.as_ref())
}

/// Buffers that hold [`INBOUND_BYTES`] if they are as full as the `count` last ones, which held `bytes`.
fn buffers_for(count: usize, bytes: usize) -> usize {
    let fitting = INBOUND_BYTES * count / bytes.max(1);
    fitting.clamp(1, INBOUND_BUFFERS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::FRAME;

    #[test]
    fn buffers_hold_as_much_as_a_step_takes() {
        // Small ones all, full ones as many as a step's bytes, whatever the number of those before.
        assert_eq!(buffers_for(16, 16 * 64), INBOUND_BUFFERS);
        assert_eq!(buffers_for(1, 0), INBOUND_BUFFERS);
        for count in 1..=INBOUND_BUFFERS {
            let full = buffers_for(count, count * FRAME);
            assert_eq!(full * FRAME, INBOUND_BYTES);
        }
        assert_eq!(buffers_for(8, 4 * FRAME), INBOUND_BUFFERS);
        assert_eq!(buffers_for(12, 9 * FRAME), 10);
    }
}
