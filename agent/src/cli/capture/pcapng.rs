//! A pcapng file (draft-ietf-opsawg-pcapng): one interface for each stage, what became of each packet as its comment, and
//! at the end what was lost at each stage.
//!
//! What the dataplane sees of the underlay is the payload of UDP. So that Wireshark and tcpdump can read it, the file has
//! outer IP and UDP headers before it, made of what is known: addresses, and ports but the source port of VXLAN that is
//! sent, which is 0. Their UDP checksum is 0, "none". In front of all lies Linux's "cooked" header, which says the direction
//! and the protocol. All interfaces have that one link type, and one snap length: libpcap reads no others, and of raw IP
//! (`LINKTYPE_RAW`) no second interface, because it compares its own number of the type with the file's.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use dataplane::capture::{Record, Stage};
use dataplane::drops::Direction;
use encap::Format;
use encap::protocol::UDP;

use crate::api::wire::{CaptureCounts, CaptureStart};

/// A file that is written.
pub(super) struct Pcapng<W> {
    file: W,
    /// The stage of each interface.
    stages: Vec<Stage>,
    /// One block.
    block: Vec<u8>,
    /// The time of the latest packet, for the statistics.
    latest: u64,
}

impl<W: Write> Pcapng<W> {
    /// Writes the begin: the section and its interfaces.
    pub(super) fn new(
        file: W,
        start: &CaptureStart,
        stages: &[Stage],
        snap_length: u32,
    ) -> io::Result<Pcapng<W>> {
        let mut pcapng = Pcapng {
            file,
            stages: stages.to_vec(),
            block: Vec::new(),
            latest: start.epoch,
        };
        pcapng.word(BYTE_ORDER);
        pcapng.half(1);
        pcapng.half(0);
        // The section's length is not known.
        pcapng.long(u64::MAX);
        pcapng.option(
            SECTION_APPLICATION,
            format!("tartan {}", start.version).as_bytes(),
        );
        pcapng.option(COMMENT, format!("node {}", start.node).as_bytes());
        pcapng.end_of_options();
        pcapng.end_block(SECTION)?;
        for stage in stages {
            pcapng.half(LINUX_SLL);
            pcapng.half(0);
            // With the headers that are made here.
            pcapng.word(snap_length.saturating_add((COOKED + OUTER_MOST) as u32));
            pcapng.option(INTERFACE_NAME, stage.name().as_bytes());
            pcapng.option(INTERFACE_DESCRIPTION, stage.gloss().as_bytes());
            pcapng.option(INTERFACE_RESOLUTION, &[9]);
            pcapng.end_of_options();
            pcapng.end_block(INTERFACE)?;
        }
        // A reader at the other end of a pipe shows at once that there is a capture.
        pcapng.flush()?;
        Ok(pcapng)
    }

    /// Writes a packet of a stage that has an interface.
    pub(super) fn packet(
        &mut self,
        record: &Record<'_>,
        comment: &str,
        start: &CaptureStart,
    ) -> io::Result<()> {
        let Some(interface) = self.stages.iter().position(|stage| *stage == record.stage) else {
            return Ok(());
        };
        let outer = outer_packet(record, start);
        let outer = outer.as_deref().unwrap_or_default();
        let bytes = record.bytes;
        let cooked = cooked(record, outer.first().or(bytes.first()));
        let time = start.epoch.saturating_add(record.time.0);
        self.latest = self.latest.max(time);
        self.word(interface as u32);
        self.word((time >> 32) as u32);
        self.word(time as u32);
        let made = COOKED + outer.len();
        self.word((made + bytes.len()) as u32);
        self.word(record.length.saturating_add(made as u32));
        self.block.extend_from_slice(&cooked);
        self.block.extend_from_slice(outer);
        self.block.extend_from_slice(bytes);
        self.pad();
        self.option(COMMENT, comment.as_bytes());
        let direction = match record.direction {
            Direction::Inbound => 1u32,
            Direction::Outbound => 2,
        };
        self.option(PACKET_FLAGS, &direction.to_le_bytes());
        self.end_of_options();
        self.end_block(PACKET)
    }

    /// Writes what was lost at each stage.
    pub(super) fn end(&mut self, counts: &CaptureCounts) -> io::Result<()> {
        for (interface, stage) in self.stages.clone().into_iter().enumerate() {
            let counted = counts
                .stages
                .iter()
                .find(|counted| counted.stage == stage.name());
            let Some(counted) = counted else { continue };
            let time = self.latest;
            self.word(interface as u32);
            self.word((time >> 32) as u32);
            self.word(time as u32);
            let comment = format!(
                "{} packets passed the filter of the workers, {} of them were lost; {} went through the kernel path, unseen",
                counted.offered, counted.lost, counts.in_kernel
            );
            self.option(COMMENT, comment.as_bytes());
            self.option(STATISTICS_RECEIVED, &counted.offered.to_le_bytes());
            self.option(STATISTICS_DROPPED, &counted.lost.to_le_bytes());
            self.end_of_options();
            self.end_block(STATISTICS)?;
        }
        self.flush()
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    fn half(&mut self, value: u16) {
        self.block.extend(value.to_le_bytes());
    }

    fn word(&mut self, value: u32) {
        self.block.extend(value.to_le_bytes());
    }

    fn long(&mut self, value: u64) {
        self.block.extend(value.to_le_bytes());
    }

    fn pad(&mut self) {
        self.block.resize(self.block.len().next_multiple_of(4), 0);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        let value = value.get(..usize::from(u16::MAX)).unwrap_or(value);
        self.half(code);
        self.half(value.len() as u16);
        self.block.extend_from_slice(value);
        self.pad();
    }

    fn end_of_options(&mut self) {
        self.word(0);
    }

    fn end_block(&mut self, kind: u32) -> io::Result<()> {
        let length = (self.block.len() + BLOCK_ENDS) as u32;
        self.file.write_all(&kind.to_le_bytes())?;
        self.file.write_all(&length.to_le_bytes())?;
        self.file.write_all(&self.block)?;
        self.file.write_all(&length.to_le_bytes())?;
        self.block.clear();
        Ok(())
    }
}

/// Linux's "cooked" header (`LINKTYPE_LINUX_SLL`) of a packet that begins with that byte: sent or not, of no hardware, no
/// address, and the EtherType.
fn cooked(record: &Record<'_>, first: Option<&u8>) -> [u8; COOKED] {
    let to_us_or_sent = match record.direction {
        Direction::Inbound => 0,
        Direction::Outbound => 4,
    };
    let [high, low] = match first.map_or(4, |byte| byte >> 4) {
        _ if record.bytes.starts_with(&ARP_OF_IPV4) && record.is_not_ip => [0x08, 0x06],
        _ if record.is_not_ip => [0, 0],
        6 => [0x86, 0xdd],
        _ => [0x08, 0x00],
    };
    [
        0,
        to_us_or_sent,
        0xff,
        0xfe,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        high,
        low,
    ]
}

/// The IP and UDP headers that the record's datagram has or will have on the underlay; `None` of a bare inner packet.
pub(super) fn outer_packet(record: &Record<'_>, start: &CaptureStart) -> Option<Vec<u8>> {
    let (format, remote) = (record.format?, record.remote?);
    let own = start.public.iter();
    let own = own.copied().find(|own| own.is_ipv4() == remote.is_ipv4());
    let unknown = match remote {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let own = own.unwrap_or(unknown);
    let port = match format {
        Format::Udp => start.udp_port,
        Format::Vxlan => start.vxlan_port,
    };
    let is_sent = record.direction == Direction::Outbound;
    let (from, to) = match (is_sent, format) {
        (true, Format::Udp) => (SocketAddr::new(own, port), remote),
        // Which socket it leaves by is the worker's affair.
        (true, Format::Vxlan) => (SocketAddr::new(own, 0), remote),
        (false, _) => (remote, SocketAddr::new(own, port)),
    };
    let length = u16::try_from(record.length).unwrap_or(u16::MAX);
    let udp_length = length.saturating_add(8);
    let mut bytes = Vec::with_capacity(OUTER_MOST);
    match (from.ip(), to.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let total = udp_length.saturating_add(20).to_be_bytes();
            bytes.extend([0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, UDP, 0, 0]);
            bytes.extend(source.octets());
            bytes.extend(destination.octets());
            let checksum = !encap::checksum::sum(&bytes);
            if let Some(place) = bytes.get_mut(10..12) {
                place.copy_from_slice(&checksum.to_be_bytes());
            }
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            bytes.extend([0x60, 0, 0, 0]);
            bytes.extend(udp_length.to_be_bytes());
            bytes.extend([UDP, 64]);
            bytes.extend(source.octets());
            bytes.extend(destination.octets());
        }
        _ => return None,
    }
    bytes.extend(from.port().to_be_bytes());
    bytes.extend(to.port().to_be_bytes());
    bytes.extend(udp_length.to_be_bytes());
    bytes.extend([0, 0]);
    Some(bytes)
}

/// Bytes of outer IPv6 and UDP headers.
const OUTER_MOST: usize = 40 + 8;
/// Bytes of a block around its body.
const BLOCK_ENDS: usize = 12;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const LINUX_SLL: u16 = 113;
/// Bytes of its header.
const COOKED: usize = 16;
/// How ARP begins: Ethernet, IPv4.
const ARP_OF_IPV4: [u8; 4] = [0, 1, 8, 0];

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;

const COMMENT: u16 = 1;
const SECTION_APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const INTERFACE_DESCRIPTION: u16 = 3;
const INTERFACE_RESOLUTION: u16 = 9;
const PACKET_FLAGS: u16 = 2;
const STATISTICS_RECEIVED: u16 = 4;
const STATISTICS_DROPPED: u16 = 5;
