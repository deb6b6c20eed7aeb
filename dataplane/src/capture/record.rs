//! A captured packet as bytes: a header of fixed length, what was captured of the packet, and padding to eight bytes.
//!
//! The same bytes lie in a worker's ring and travel to the program that captures, which is of the same version. Numbers
//! are little-endian.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use encap::Format;

use super::stage::Stage;
use super::tap::Event;
use crate::drops::{Direction, DropReason};
use crate::now::Now;

/// A captured packet, read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Where it was.
    pub stage: Stage,
    /// Which way it went.
    pub direction: Direction,
    /// Why it was dropped, if it was.
    pub reason: Option<DropReason>,
    /// When, by the engine's clock.
    pub time: Now,
    /// The worker.
    pub worker: u16,
    /// Wire packets, of which this is the first or which it holds; of `received` datagrams.
    pub packets: u32,
    /// Bytes of the first, with the headers in front of the inner packet.
    pub length: u32,
    /// Bytes of all of them together.
    pub total: u64,
    /// Payload bytes at which a super-packet is to be cut; 0: it is none.
    pub gso: u16,
    /// The outer address of the other node, and its port where it is known; `None` before there is one.
    pub remote: Option<SocketAddr>,
    /// The format of the headers in front of the inner packet; `None` of a bare inner packet.
    pub format: Option<Format>,
    /// Bytes of these headers that are in `bytes`.
    pub outer: usize,
    /// No IP packet: what a TAP reads beside them.
    pub is_not_ip: bool,
    /// Tartan made it: an ICMP error, or an answer to a neighbour.
    pub is_own: bool,
    /// A probe of peer health.
    pub is_probe: bool,
    /// Its transport checksum is not finished yet.
    pub is_unfinished: bool,
    /// What was captured.
    pub bytes: &'a [u8],
}

impl<'a> Record<'a> {
    /// The record at the front of `bytes`, and how many bytes it takes there; `None` where no whole one is.
    pub fn parse(bytes: &'a [u8]) -> Option<(Record<'a>, usize)> {
        let (words, rest) = bytes.split_at_checked(HEADER)?;
        let word = |place: usize| {
            let bytes = words.get(place * 8..)?.first_chunk()?;
            Some(u64::from_le_bytes(*bytes))
        };
        let (first, sizes, places) = (word(0)?, word(2)?, word(3)?);
        let [stage, reason, flags, outer] = [32, 40, 48, 56].map(|place| (first >> place) as u8);
        let captured = first as u32 as usize;
        let address = u128::from(word(4)?) << 64 | u128::from(word(5)?);
        let ip = Ipv6Addr::from_bits(address);
        let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
        let remote = SocketAddr::new(ip, (places >> 16) as u16);
        let record = Record {
            stage: *Stage::ALL.get(usize::from(stage))?,
            direction: match flags & OUTBOUND {
                0 => Direction::Inbound,
                _ => Direction::Outbound,
            },
            reason: DropReason::ALL.get(usize::from(reason)).copied(),
            time: Now(word(1)?),
            worker: (places >> 32) as u16,
            packets: (sizes >> 32) as u32,
            length: sizes as u32,
            total: word(6)?,
            gso: places as u16,
            remote: (address != 0).then_some(remote),
            format: match flags & (VXLAN | UDP) {
                VXLAN => Some(Format::Vxlan),
                UDP => Some(Format::Udp),
                _ => None,
            },
            outer: usize::from(outer).min(captured),
            is_not_ip: flags & NOT_IP != 0,
            is_own: flags & OWN != 0,
            is_probe: flags & PROBE != 0,
            is_unfinished: flags & UNFINISHED != 0,
            bytes: rest.get(..captured)?,
        };
        let length = HEADER + captured.next_multiple_of(8);
        (length <= bytes.len()).then_some((record, length))
    }

    /// What was captured of the inner packet.
    pub fn inner(&self) -> &'a [u8] {
        self.bytes.get(self.outer..).unwrap_or_default()
    }
}

/// The header of the record of `event`, of which `captured` bytes follow; the first has `length` bytes.
pub(super) fn header(
    event: &Event<'_>,
    captured: usize,
    length: usize,
    (worker, now): (u16, Now),
) -> [u64; HEADER_WORDS] {
    let flag = |is: bool, flag: u8| if is { flag } else { 0 };
    let flags = flag(event.direction == Direction::Outbound, OUTBOUND)
        | flag(event.format == Some(Format::Vxlan), VXLAN)
        | flag(event.format == Some(Format::Udp), UDP)
        | flag(event.is_not_ip, NOT_IP)
        | flag(event.is_own, OWN)
        | flag(event.is_probe, PROBE)
        | flag(event.is_unfinished, UNFINISHED);
    let reason = event.reason.map_or(u8::MAX, |reason| reason as u8);
    let (address, port) = match event.remote {
        None => (0, 0),
        Some(remote) => {
            let address = match remote.ip() {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            (address.to_bits(), remote.port())
        }
    };
    // At most a probe's answer with its headers, 70 bytes.
    let outer = u8::try_from(event.outer.len().min(captured)).unwrap_or(u8::MAX);
    [
        captured as u32 as u64
            | u64::from(event.stage as u8) << 32
            | u64::from(reason) << 40
            | u64::from(flags) << 48
            | u64::from(outer) << 56,
        now.0,
        length as u32 as u64 | (event.packets as u32 as u64) << 32,
        u64::from(event.gso) | u64::from(port) << 16 | u64::from(worker) << 32,
        (address >> 64) as u64,
        address as u64,
        event.total.unwrap_or(length) as u64,
    ]
}

/// Words of a header.
pub(super) const HEADER_WORDS: usize = 7;
/// Bytes of a header.
const HEADER: usize = HEADER_WORDS * 8;

const OUTBOUND: u8 = 1;
const VXLAN: u8 = 1 << 1;
const UDP: u8 = 1 << 2;
const NOT_IP: u8 = 1 << 3;
const OWN: u8 = 1 << 4;
const PROBE: u8 = 1 << 5;
const UNFINISHED: u8 = 1 << 6;
