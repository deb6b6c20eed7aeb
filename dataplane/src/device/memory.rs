//! A device of plain memory: what a pod sends is pushed in, what is delivered is taken out.
//!
//! With [`Memory::offloads`] it is to the worker what a kernel with all offloads is: packets that wait together are
//! handed over as super-packets with unfinished checksums, and such packets are taken and cut. Outside of it there are
//! wire packets either way. With [`Memory::mac`] it is a TAP: it also hands over whole frames, and takes ARP packets.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::RawFd;

use encap::checksum;
use encap::coalesce::{Coalescer, FrameSlice};
use encap::inner::Inner;
use encap::offload::{Cut, Unfinished};
use encap::protocol::{TCP, UDP};
use encap::segment::{self, MAX_HEADER};
use encap::transport::{self, ChecksumState};

use encap::Mac;

use super::{Content, Device, GsoType, Offload, Offloads, Read, ethernet};
use crate::limits::FRAME;
use crate::now::Now;
use crate::probation::Probation;

/// Two queues of IP packets.
#[derive(Default)]
pub struct Memory {
    /// Packets on their way to the worker, oldest first.
    pub to_worker: VecDeque<Vec<u8>>,
    /// Packets that the worker wrote, oldest first.
    pub delivered: VecDeque<Vec<u8>>,
    /// Have a link layer, with this address.
    pub mac: Option<Mac>,
    /// Ethernet frames on their way to the worker, in front of `to_worker`; of use only with an address.
    pub frames: VecDeque<Vec<u8>>,
    /// ARP packets that the worker wrote, oldest first.
    pub arp: VecDeque<Vec<u8>>,
    /// Refuse every write, as a device that is down does.
    pub down: bool,
    /// Hand over and take super-packets and unfinished checksums.
    pub offloads: bool,
    /// Refuse every super-packet with `EINVAL`, as a kernel that does not support the offload it granted.
    pub refuses_cuts: bool,
    /// Super-packets that the worker wrote.
    pub cuts: usize,
    /// Packets gathered and not handed over yet, and how many wire packets each is.
    gathered: VecDeque<(Offload, Vec<u8>, usize)>,
    probation: Probation,
    given_up: u64,
}

/// Which of `workers` workers gets `packet`, as the kernel chooses among a device's queues: by the inner flow, the same
/// for both directions.
pub fn queue(packet: &[u8], workers: usize) -> usize {
    let hash = Inner::parse(packet).map_or(0, |inner| inner.flow_hash());
    // Not as flows are steered: that a flow's directions meet on one worker is no law.
    hash.rotate_left(16) as usize % workers.max(1)
}

impl Memory {
    /// Wire packets on their way to the worker.
    pub fn waiting(&self) -> usize {
        let gathered = self.gathered.iter().map(|(_, _, count)| count);
        self.to_worker.len() + gathered.sum::<usize>()
    }

    /// Puts a super-packet of the caller's making behind what waits, whatever is wrong with it.
    pub fn push(&mut self, offload: Offload, packet: Vec<u8>) {
        self.gathered.push_back((offload, packet, 1));
    }

    /// Gathers what waits, as the kernel's own stack would have left it.
    fn gather(&mut self) {
        let packets: Vec<_> = self
            .to_worker
            .drain(..self.to_worker.len().min(BATCH.into()))
            .collect();
        let mut coalescer = Coalescer::new(BATCH, BATCH);
        for (frame, bytes) in (0..).zip(&packets) {
            let Ok(inner) = Inner::parse(bytes) else {
                self.hand_over(&mut coalescer, &packets);
                self.gathered.push_back((Offload::NONE, bytes.clone(), 1));
                continue;
            };
            let packet = bytes.get(..inner.len).unwrap_or_default();
            let place = FrameSlice {
                frame,
                len: inner.len as u16,
                start: 0,
            };
            let verdict = transport::checksum_state(packet, &inner);
            // There is room for all.
            let _ = coalescer.push(packet, &inner, verdict, place, 0);
        }
        self.hand_over(&mut coalescer, &packets);
    }

    fn hand_over(&mut self, coalescer: &mut Coalescer, packets: &[Vec<u8>]) {
        let bytes = |place: FrameSlice| {
            let start = place.start as usize;
            let packet = packets.get(usize::from(place.frame));
            packet
                .and_then(|packet| packet.get(start..start + usize::from(place.len)))
                .unwrap_or_default()
        };
        coalescer.drain(|packet| {
            let mut joined = packet.header.to_vec();
            packet
                .pieces()
                .for_each(|place| joined.extend_from_slice(bytes(place)));
            let offload = if packet.count == 1 {
                leave_unfinished(&mut joined)
            } else {
                packet.offload
            };
            self.gathered.push_back((offload, joined, packet.count));
        });
    }

    /// The wire packets of a packet that was written.
    fn wire(offload: Offload, mut bytes: Vec<u8>) -> io::Result<Vec<Vec<u8>>> {
        let refused = || io::Error::from_raw_os_error(libc::EINVAL);
        let inner = Inner::parse(&bytes).map_err(|_| refused())?;
        let Some(cut) = offload.cut else {
            if let Some(Unfinished { start, offset }) = offload.checksum {
                checksum::finish(&mut bytes, start.into(), offset.into()).map_err(|_| refused())?;
            }
            return Ok(vec![bytes]);
        };
        let plan = segment::plan(&bytes, &inner, cut.size).map_err(|_| refused())?;
        if offload.checksum.is_none() || !fits(cut, &inner, plan.header_len()) {
            return Err(refused());
        }
        let one = |index| {
            let mut header = [0; MAX_HEADER];
            let length = plan.header(&bytes, index, &mut header)?;
            let payload = bytes.get(plan.payload(index))?;
            Some([header.get(..length)?, payload].concat())
        };
        (0..plan.count())
            .map(|index| one(index).ok_or_else(refused))
            .collect()
    }
}

impl Device for Memory {
    fn read(&mut self, frame: &mut [u8; FRAME]) -> io::Result<Read> {
        if self.offloads && self.gathered.is_empty() {
            self.gather();
        }
        if let Some(bytes) = self.frames.pop_front() {
            let header = bytes.first_chunk().ok_or(io::ErrorKind::InvalidData)?;
            let packet = bytes.get(header.len()..).unwrap_or_default();
            let content = ethernet::content(header, packet.first().copied().unwrap_or_default());
            return Ok(Read {
                len: put(packet, frame),
                offload: Offload::NONE,
                content,
            });
        }
        let (offload, packet) = match self.gathered.pop_front() {
            Some((offload, packet, _)) => (offload, packet),
            None => {
                let packet = self.to_worker.pop_front();
                (Offload::NONE, packet.ok_or(io::ErrorKind::WouldBlock)?)
            }
        };
        Ok(Read {
            len: put(&packet, frame),
            offload,
            content: Content::Ip,
        })
    }

    fn write(&mut self, offload: Offload, parts: &[IoSlice<'_>]) -> io::Result<()> {
        if self.down {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let refused = offload != Offload::NONE && !self.offloads;
        if refused || offload.cut.is_some() && self.refuses_cuts {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let bytes = parts
            .iter()
            .map(|part| &**part)
            .collect::<Vec<_>>()
            .concat();
        if offload == Offload::NONE {
            self.delivered.push_back(bytes);
            return Ok(());
        }
        self.delivered.extend(Memory::wire(offload, bytes)?);
        if offload.cut.is_some() {
            self.cuts += 1;
            self.probation.note_success();
        }
        Ok(())
    }

    fn mac(&self) -> Option<Mac> {
        self.mac
    }

    fn write_arp(&mut self, packet: &[u8]) -> io::Result<()> {
        if self.down {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        if self.mac.is_none() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.arp.push_back(packet.to_vec());
        Ok(())
    }

    fn offloads(&mut self, now: Now) -> Offloads {
        let cuts = self.offloads && self.probation.in_use(now);
        Offloads {
            checksum: self.offloads,
            tcp: cuts,
            udp: cuts,
        }
    }

    fn offload_failed(&mut self, refused: Offload, now: Now) {
        if refused.cut.is_some() && self.probation.note_failure(now) {
            self.given_up += 1;
        }
    }

    fn given_up(&self) -> u64 {
        self.given_up
    }

    fn descriptor(&self) -> Option<RawFd> {
        None
    }
}

/// Puts `packet` into `frame`, and returns how many bytes found room.
fn put(packet: &[u8], frame: &mut [u8; FRAME]) -> usize {
    for (place, byte) in frame.iter_mut().zip(packet) {
        *place = *byte;
    }
    packet.len().min(FRAME)
}

/// Replaces the checksum of a wire packet by the pseudo-header's sum, as a sender with checksum offload leaves it.
fn leave_unfinished(packet: &mut [u8]) -> Offload {
    let Ok(inner) = Inner::parse(packet) else {
        return Offload::NONE;
    };
    let offset = match inner.protocol {
        TCP => 16,
        UDP => 6,
        _ => return Offload::NONE,
    };
    if transport::checksum_state(packet, &inner) != ChecksumState::Valid {
        return Offload::NONE;
    }
    let len = inner.len - inner.transport;
    let pseudo = checksum::pseudo(inner.source, inner.destination, inner.protocol, len);
    let place = inner.transport + offset;
    if let Some(field) = packet.get_mut(place..place + 2) {
        field.copy_from_slice(&pseudo.to_be_bytes());
    }
    Offload {
        checksum: Some(Unfinished {
            start: inner.transport as u16,
            offset: offset as u16,
        }),
        cut: None,
    }
}

/// Whether a cut is of the kind and header length that the packet has.
fn fits(cut: Cut, inner: &Inner, header: usize) -> bool {
    let kind = match (inner.protocol, inner.family) {
        (TCP, encap::Family::V4) => GsoType::Tcp4,
        (TCP, encap::Family::V6) => GsoType::Tcp6,
        _ => GsoType::Udp,
    };
    cut.kind == kind && usize::from(cut.header) == header
}

/// Packets gathered at a time.
const BATCH: u16 = 64;
