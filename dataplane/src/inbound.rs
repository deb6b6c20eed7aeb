//! Peer → pod: the inbound stages. Each can refuse the packet, and each refusal has its own counter.
//!
//! length → format → known peer → inner packet → its source is the peer's → its destination is ours → its pod's share →
//! ECN → delivery.
//!
//! Two properties of kernel VXLAN senders are handled here. A sender on this host hands over packets with an unfinished checksum (only
//! the pseudo-header sum), and super-packets far larger than any MTU. And the `UDP_GRO` mark of such a buffer is the
//! *inner* segment size: cutting there would make packets of bytes that a pod controls. So before
//! a buffer is split, the length of the first inner packet is compared with the buffer: if it spans all of it, the
//! buffer is one inner super-packet, whatever its mark.

mod captured;
mod datagrams;
mod delivery;
mod frames;
mod peer_cache;
mod probes;
mod writer;

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use crossbeam_queue::ArrayQueue;
use encap::coalesce::FrameSlice;
use encap::inner::Inner;
use encap::protocol::{TCP, UDP};
use encap::pull::{self, Pulled};
use encap::segment::{self, SegmentPlan};
use encap::{Ecn, Format, Mac, ecn};

use crate::batch::Meta;
use crate::counters::Tally;
use crate::device::Device;
use crate::drops::{Direction, DropReason};
use crate::fair_shares::FairShares;
use crate::families::PerFamily;
use crate::heavy_flows::FlowRecorder;
use crate::now::Now;
use crate::peers::{Peer, PeerId};
use crate::probe::Answers;
use crate::snapshot::Snapshot;
use crate::steer::SteeredDatagram;

pub(crate) use datagrams::Datagrams;
pub(crate) use delivery::Delivery;
pub(crate) use frames::Frames;
pub(crate) use peer_cache::PeerCache;
pub(crate) use writer::Writer;

/// What is refused and reported to the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// An outer source of no peer, with an inner source of one.
    Source { outer: IpAddr, inner: IpAddr },
    /// A peer's datagram of another VXLAN network.
    Vni { outer: IpAddr, vni: u32 },
}

/// What the stages need.
pub(crate) struct Inbound<'a, D> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) tally: &'a Tally,
    pub(crate) refused: &'a ArrayQueue<Refused>,
    pub(crate) shares: &'a mut FairShares,
    pub(crate) answers: &'a mut Answers,
    pub(crate) flows: &'a mut FlowRecorder,
    pub(crate) now: Now,
    pub(crate) peer_cache: PeerCache<'a>,
    pub(crate) delivery: Delivery<'a, D>,
}

/// One datagram of a buffer.
struct Datagram {
    format: Format,
    /// Number of the buffer, and where in it the datagram lies.
    frame: usize,
    range: Range<usize>,
    source: SocketAddr,
    ecn: Ecn,
    /// The size at which a pod cut its own UDP super-packet, if the buffer is one.
    inner_segment: Option<u16>,
}

impl<D: Device> Inbound<'_, D> {
    /// Walks buffer number `frame`, which was counted as one received packet. Accepted packets are written at the latest
    /// by [`Delivery::flush`]. Returns how many datagrams lay in it.
    pub(crate) fn buffer(&mut self, format: Format, frame: usize, meta: &Meta) -> usize {
        if meta.truncated {
            self.drop_truncated(format, frame, meta);
            return 1;
        }
        let bytes = self.delivery.writer.frames.bytes(frame, 0..meta.len);
        let datagrams = Datagrams::of(format, bytes, meta.segment);
        self.capture_received(format, meta, bytes, &datagrams);
        self.tally
            .receive(Direction::Inbound, datagrams.count() - 1);
        let inner_segment = datagrams.inner_segment;
        for range in datagrams.ranges() {
            self.datagram(Datagram {
                format,
                frame,
                range,
                source: meta.source,
                ecn: meta.ecn,
                inner_segment,
            });
        }
        datagrams.count()
    }

    /// Walks one datagram of a share, which was counted as one received packet.
    pub(crate) fn steered_datagram(&mut self, part: &SteeredDatagram, meta: &Meta) {
        if meta.truncated {
            return self.drop_truncated(Format::Udp, part.frame.into(), meta);
        }
        self.datagram(Datagram {
            format: Format::Udp,
            frame: part.frame.into(),
            range: part.range(),
            source: meta.source,
            ecn: meta.ecn,
            inner_segment: part.inner_segment(),
        });
    }

    fn datagram(&mut self, datagram: Datagram) {
        let format = datagram.format;
        let frames = &mut self.delivery.writer.frames;
        let bytes = frames.bytes(datagram.frame, datagram.range.clone());
        let pulled = match format {
            Format::Udp => pull::udp(bytes, self.snapshot.cluster.ipv6_over_udp),
            Format::Vxlan => pull::vxlan(bytes, &self.snapshot.cluster.vtep),
        };
        let peer = self.peer_cache.sender(self.snapshot, datagram.source.ip());
        let Some((id, peer)) = peer else {
            return self.drop_unknown_peer(&datagram, &pulled);
        };
        let Pulled {
            offset,
            inner,
            source_mac,
        } = match &pulled {
            Ok(pulled) => pulled,
            Err(refusal) => return self.refuse((id, peer), &datagram, *refusal),
        };
        let outer_ecn = (format == Format::Vxlan).then_some(datagram.ecn);
        let allowed = self
            .peer_cache
            .check_addresses(self.snapshot, (id, peer), inner);
        if let (Ok(()), Some(mac)) = (allowed, source_mac) {
            peer.note_source_mac(inner.family, *mac);
        }
        let start = datagram.range.start + offset;
        let place = start..start + inner.len;
        let packet = frames.bytes(datagram.frame, place.clone());
        let plan = super_packet(
            packet,
            inner,
            datagram.inner_segment,
            self.snapshot.cluster.inner_mtu,
        );
        let count = plan
            .as_ref()
            .map_or(1, |plan| plan.as_ref().map_or(1, SegmentPlan::count));
        self.tally.receive(Direction::Inbound, count - 1);
        let allowed = allowed.and_then(|()| {
            let within = self.shares.charge(inner.source, count, inner.len, self.now);
            if within {
                Ok(())
            } else {
                Err(DropReason::OverShare)
            }
        });
        let marked = allowed.and_then(|()| congestion_mark(inner, outer_ecn));
        match marked.and_then(|marked| Ok((marked, plan.transpose()?))) {
            Ok((marked, plan)) => {
                self.peer_cache.note_heard(peer, self.now);
                let header = plan.as_ref().map_or(0, SegmentPlan::header_len);
                self.flows.count(Direction::Inbound, inner, count, header);
                if let Some(marked) = marked
                    && let Some(packet) = frames.bytes_mut(datagram.frame, place)
                {
                    ecn::set(packet, inner.family, marked);
                }
                // The frame number and the packet's length fit 16 bits.
                let place = FrameSlice {
                    frame: datagram.frame as u16,
                    len: inner.len as u16,
                    start: start as u32,
                };
                self.delivery.deliver(id, place, inner, plan);
            }
            Err(reason) => {
                let of = self.snapshot.parties(Some(peer), Some(inner.destination));
                self.drop(&datagram, reason, count, of);
            }
        }
    }

    /// Takes a peer's datagram that holds no packet for us: a probe, or one to drop.
    fn refuse(&mut self, (id, peer): (PeerId, &Peer), datagram: &Datagram, refusal: pull::Refusal) {
        let format = datagram.format;
        let frames = &self.delivery.writer.frames;
        let bytes = frames.bytes(datagram.frame, datagram.range.clone());
        let reason = match refusal {
            pull::Refusal::Probe => {
                let station = bytes.get(FRAME_SOURCE..).and_then(|b| b.first_chunk());
                let station = station.filter(|_| format == Format::Vxlan).copied();
                match self.probe((id, peer), datagram) {
                    Ok(inner) => {
                        if let Some(mac) = station {
                            peer.note_source_mac(inner, Mac(mac));
                        }
                        return;
                    }
                    Err(reason) => reason,
                }
            }
            refusal => {
                self.note_refusal(peer, datagram.source.ip(), bytes, refusal);
                reason(refusal)
            }
        };
        let of = self.snapshot.parties(Some(peer), None);
        self.drop(datagram, reason, 1, of);
    }

    /// Notes for control what a frame of a peer had instead of our network or our station.
    fn note_refusal(&self, peer: &Peer, outer: IpAddr, bytes: &[u8], refusal: pull::Refusal) {
        match refusal {
            pull::Refusal::Vni => {
                if let Some(vni) = other_vni(bytes) {
                    // As for sources, a full ring forgets it.
                    let _ = self.refused.push(Refused::Vni { outer, vni });
                    peer.note_other_vni(vni, self.now);
                }
            }
            pull::Refusal::DestinationMac => {
                let mac = bytes.get(FRAME_DESTINATION..).and_then(|b| b.first_chunk());
                if let Some(mac) = mac {
                    peer.note_other_station(Mac(*mac), self.now);
                }
            }
            _ => {}
        }
    }

    /// Drops a datagram from no peer. A malformed inner packet is counted as such only of a peer.
    fn drop_unknown_peer(&self, datagram: &Datagram, pulled: &Result<Pulled, pull::Refusal>) {
        let reason = match pulled {
            Ok(pulled) => {
                self.notice(datagram.source.ip(), pulled.inner.source);
                DropReason::UnknownPeer
            }
            Err(pull::Refusal::Malformed(_) | pull::Refusal::Family | pull::Refusal::Probe) => {
                DropReason::UnknownPeer
            }
            Err(refusal) => reason(*refusal),
        };
        let pod = pulled.as_ref().ok().map(|pulled| pulled.inner.destination);
        let of = self.snapshot.parties(None, pod);
        self.drop(datagram, reason, 1, of);
    }

    fn notice(&self, outer: IpAddr, inner: IpAddr) {
        if self.snapshot.cluster.fib.lookup(inner).is_some() {
            // A full ring forgets the notice; the packet is counted all the same.
            let _ = self.refused.push(Refused::Source { outer, inner });
        }
    }
}

/// The congestion mark that the inner packet gets from the outer header (RFC 6040).
fn congestion_mark(inner: &Inner, outer: Option<Ecn>) -> Result<Option<Ecn>, DropReason> {
    // Stock peers of the `udp` format send Not-ECT outside; there is no mark to carry over.
    outer.map_or(Ok(None), |outer| {
        ecn::decapsulate(outer, inner.ecn).map_err(|_| DropReason::EcnMismatch)
    })
}

/// How a super-packet is to be cut: UDP only at the size its sender chose, TCP as its sender's kernel would have, to fit
/// the cluster's MTU of its family. `None` for a single packet.
pub(crate) fn super_packet(
    packet: &[u8],
    inner: &Inner,
    inner_segment: Option<u16>,
    inner_mtu: PerFamily<u16>,
) -> Option<Result<SegmentPlan, DropReason>> {
    let mtu = *inner_mtu.of(inner.family);
    let size = match (inner.protocol, inner_segment) {
        (UDP, Some(_)) if !udp_length_covers_all(packet, inner) => {
            return Some(Err(DropReason::BadSuperPacket));
        }
        (UDP, Some(size)) => size,
        (TCP, _) if inner.len > usize::from(mtu) => segment::tcp_size(inner, packet, mtu)?,
        _ => return None,
    };
    Some(segment::plan(packet, inner, size).map_err(|_| DropReason::BadSuperPacket))
}

/// How many packets a datagram of the `udp` format is on the wire.
pub(crate) fn count_wire_packets(
    datagram: &[u8],
    inner_segment: Option<u16>,
    inner_mtu: PerFamily<u16>,
) -> usize {
    let Ok(inner) = Inner::parse(datagram) else {
        return 1;
    };
    let packet = datagram.get(..inner.len).unwrap_or_default();
    let plan = super_packet(packet, &inner, inner_segment, inner_mtu);
    plan.map_or(1, |plan| plan.as_ref().map_or(1, SegmentPlan::count))
}

/// Whether the UDP length covers everything behind the IP header. The checksum does not cover bytes behind the datagram,
/// and segmentation would give them a good one.
fn udp_length_covers_all(packet: &[u8], inner: &Inner) -> bool {
    let field = packet
        .get(inner.transport + UDP_LENGTH..)
        .and_then(|rest| rest.first_chunk());
    field
        .is_some_and(|field| inner.transport + usize::from(u16::from_be_bytes(*field)) == inner.len)
}

fn reason(refusal: pull::Refusal) -> DropReason {
    match refusal {
        pull::Refusal::Short => DropReason::TooShort,
        pull::Refusal::Flags => DropReason::VxlanFlags,
        pull::Refusal::Vni => DropReason::WrongVni,
        pull::Refusal::DestinationMac => DropReason::NotOurMac,
        pull::Refusal::SourceMac => DropReason::BadSourceMac,
        pull::Refusal::EtherType => DropReason::NotIp,
        pull::Refusal::Malformed(_) => DropReason::Malformed,
        pull::Refusal::Family => DropReason::Ipv6InUdp,
        pull::Refusal::Probe => DropReason::BadProbe,
    }
}

/// The network of a VXLAN header (RFC 7348 section 5).
fn other_vni(datagram: &[u8]) -> Option<u32> {
    let word = datagram.get(4..)?.first_chunk()?;
    Some(u32::from_be_bytes(*word) >> 8)
}

/// Offset of the inner frame's destination in a VXLAN datagram.
const FRAME_DESTINATION: usize = 8;
/// Offset of its source.
const FRAME_SOURCE: usize = 14;
/// Offset of the length in a UDP header.
const UDP_LENGTH: usize = 4;
