//! Plain UDP sockets: one per port that receives, and beside it transmit sockets for VXLAN.
//!
//! Theory of operation: flannel sends all of `udp` from its one port, so that port's socket does both. VXLAN wants the
//! outer source port to vary with the flow, so it leaves through transmit sockets with ports of their own, which never
//! receive. Each socket may send several datagrams as one message until the kernel refuses such messages
//! ([`crate::probation`]).
//!
//! Where a node has several workers, each has a socket for every port, and those of one port are a group
//! (`SO_REUSEPORT`): the kernel gives all datagrams from one outer address and port to one of them, which
//! [`mod@reuseport`] selects. The first is bound alone, which fails if another process holds the port; only then the
//! others join it. So the group has no socket of another program. A program can join later only as the same user, in the
//! same network namespace, and with the same option; the kernel refuses a program of another user, or one that just
//! binds the port. No socket can join a single worker's. A group is complete before its first socket is read: a socket
//! that joins later would take flows from the others.

mod bind;
mod error;
mod options;
mod reuseport;
mod spec;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use socket2::Socket;

use super::{ErrorReport, Outgoing, Port, Received, TxSlot, Underlay};
use crate::batch::InboundBatch;
use crate::limits::{INBOUND_BUFFERS, INBOUND_BYTES, TRANSMIT_SOCKETS};
use crate::now::Now;
use crate::probation::Probation;
use crate::sys::sendmmsg::SendBuffers;
use crate::sys::{recvmmsg, sockopt};

pub use bind::{bind, bind_in_group, bind_transmit, set_group_open};
pub use error::UnderlayError;
pub(crate) use options::send_only;
use options::{prepare, receive_nothing, supports_gso};
pub use reuseport::select_by_source_port;
pub use spec::SocketSpec;

/// The sockets of one worker.
pub struct Sockets {
    /// By [`Port::index`].
    receive: [Option<Socket>; Port::ALL.len()],
    /// By [`TxSlot::index`]; without one, the socket of lane 0 sends, or else the port's own.
    transmit: [Option<Socket>; TxSlot::COUNT],
    /// Whether each slot sends several datagrams as one message, by [`TxSlot::index`].
    batches: [Probation; TxSlot::COUNT],
    /// The kernel supports `UDP_SEGMENT`.
    supports_gso: bool,
    given_up: u64,
    outbox: SendBuffers,
    /// Buffers that the next receive call fills at most.
    buffers: usize,
}

/// What the kernel keeps of a socket for its reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveQueue {
    /// Memory of the datagrams that wait, bytes: more than they have themselves.
    pub waiting: u64,
    /// How much may wait, bytes.
    pub limit: u64,
    /// Datagrams that the kernel dropped before we could read them: the buffer was full, or the checksum bad.
    pub drops: u64,
}

/// What waits at a socket, and what was lost there.
///
/// # Errors
/// What getsockopt(2) gives; `ENOPROTOOPT` before Linux 4.12.
pub fn receive_queue(socket: BorrowedFd<'_>) -> io::Result<ReceiveQueue> {
    let memory = sockopt::receive_memory(socket)?;
    Ok(ReceiveQueue {
        waiting: memory.waiting.into(),
        limit: memory.limit.into(),
        drops: memory.drops.into(),
    })
}

/// Bytes of memory that datagrams take which wait to be read from a socket, and the most that they may take.
///
/// # Errors
/// As [`kernel_drops`].
pub fn kernel_backlog(socket: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    sockopt::backlog(socket)
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
            batches: Default::default(),
            supports_gso: true,
            given_up: 0,
            outbox: SendBuffers::new(),
            buffers: INBOUND_BUFFERS,
        };
        for (descriptor, spec) in bound {
            let socket = prepare(descriptor, &spec)?;
            sockets.supports_gso &= supports_gso(&socket);
            let port = spec.underlay_port();
            let place = match spec.lane {
                None => sockets.receive.get_mut(port.index()),
                Some(lane) => {
                    receive_nothing(&socket).map_err(|e| UnderlayError::Kernel(spec, e))?;
                    sockets.transmit.get_mut(TxSlot { port, lane }.index())
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

    fn receiving(&self, port: Port) -> Option<&Socket> {
        self.receive.get(port.index())?.as_ref()
    }

    fn sending(&self, slot: TxSlot) -> Option<&Socket> {
        sending(&self.receive, &self.transmit, slot)
    }
}

impl Underlay for Sockets {
    fn receive(&mut self, port: Port, batch: &mut InboundBatch) -> io::Result<Received> {
        let socket = self.receiving(port).ok_or(io::ErrorKind::WouldBlock)?;
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
        slot: TxSlot,
        messages: impl Iterator<Item = Outgoing<'a>>,
    ) -> io::Result<usize> {
        let Sockets {
            receive,
            transmit,
            batches,
            outbox,
            ..
        } = self;
        let socket = sending(receive, transmit, slot).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let mut batch = None;
        let count = outbox.send(
            socket,
            messages.enumerate().map(|(place, message)| {
                if message.segment.is_some() && batch.is_none() {
                    batch = Some(place);
                }
                message
            }),
        )?;
        if batch.is_some_and(|place| place < count)
            && let Some(probation) = batches.get_mut(slot.index())
        {
            probation.note_success();
        }
        Ok(count)
    }

    fn send_single(&mut self, slot: TxSlot, to: SocketAddr, payload: &[u8]) -> io::Result<()> {
        let socket = self.sending(slot).ok_or(io::ErrorKind::AddrNotAvailable)?;
        socket.send_to(payload, &to.into()).map(drop)
    }

    fn takes_gso(&mut self, slot: TxSlot, now: Now) -> bool {
        let probation = self.batches.get_mut(slot.index());
        self.supports_gso && probation.is_some_and(|probation| probation.in_use(now))
    }

    fn offload_failed(&mut self, slot: TxSlot, now: Now) {
        let probation = self.batches.get_mut(slot.index());
        if probation.is_some_and(|probation| probation.note_failure(now)) {
            self.given_up += 1;
        }
    }

    fn given_up(&self) -> u64 {
        self.given_up
    }

    fn socket(&self, slot: TxSlot) -> usize {
        let TxSlot { port, lane } = slot;
        let has = |lane| {
            let place = self.transmit.get(TxSlot { port, lane }.index());
            place.is_some_and(Option::is_some)
        };
        // As in `sending`.
        let first = if has(0) { 1 } else { 0 };
        if has(lane) { 1 + lane } else { first }
    }

    fn error_report(&mut self, port: Port) -> Option<ErrorReport> {
        let lanes = (0..TRANSMIT_SOCKETS).map(|lane| TxSlot { port, lane }.index());
        let transmit = lanes.map(|index| self.transmit.get(index)?.as_ref());
        let sockets = std::iter::once(self.receiving(port)).chain(transmit);
        sockets.enumerate().find_map(|(number, socket)| {
            let report = recvmmsg::error_report(socket?).ok()?;
            Some(ErrorReport {
                socket: number,
                ..report
            })
        })
    }

    fn descriptor(&self, port: Port) -> Option<RawFd> {
        Some(self.receiving(port)?.as_fd().as_raw_fd())
    }

    fn tx_descriptor(&self, slot: TxSlot) -> Option<RawFd> {
        Some(self.sending(slot)?.as_fd().as_raw_fd())
    }
}

/// The socket that sends for a slot. Flows of a lane without one share that of lane 0, so their outer port is still that
/// of a transmit socket.
fn sending<'a>(
    receive: &'a [Option<Socket>],
    transmit: &'a [Option<Socket>],
    slot: TxSlot,
) -> Option<&'a Socket> {
    let TxSlot { port, lane: _ } = slot;
    let of = |slot: TxSlot| transmit.get(slot.index())?.as_ref();
    let first = || of(TxSlot { port, lane: 0 });
    of(slot)
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
