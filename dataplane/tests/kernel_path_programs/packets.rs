//! Packets of a small cluster, by `etherparse`, and so independent of the programs.
//!
//! ```text
//!   this node 192.0.2.1, 10.244.1.0/24          node 2 192.0.2.2, 10.244.2.0/24     the programs send and receive
//!     pod 10.244.1.2, pod 8.0.1.2               node 3 192.0.2.3, 10.244.3.0/24     user space's alone
//!                                               node 4 192.0.2.4, 10.244.4.0/24     sends, with our own VTEP MAC
//! ```

use etherparse::{Ethernet2Header, IpFragOffset, Ipv4Header, PacketBuilder, TcpHeader};

pub const OURS: [u8; 4] = [192, 0, 2, 1];
pub const PEER: [u8; 4] = [192, 0, 2, 2];
pub const PEER_OF_USER_SPACE: [u8; 4] = [192, 0, 2, 3];
pub const PEER_WITH_OUR_MAC: [u8; 4] = [192, 0, 2, 4];
pub const OUR_VTEP: [u8; 6] = [2, 0, 0, 0, 0, 0x0a];
pub const PEER_VTEP: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];
pub const NEXT_HOP: [u8; 6] = [2, 0, 0, 0, 1, 1];
pub const UNDERLAY_MAC: [u8; 6] = [2, 0, 0, 0, 1, 2];
/// The loopback device, on which the kernel runs a program, has this MAC: frames to it are to the host.
pub const LOOPBACK_MAC: [u8; 6] = [0; 6];
pub const POD_MAC: [u8; 6] = [2, 0, 0, 0, 2, 1];
pub const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 2, 2];
pub const VNI: u32 = 1;
pub const VXLAN_PORT: u16 = 8472;
pub const PRIVATE_PORT: u16 = 18472;
pub const OUTER: usize = 64;

/// A pod of this node. The first two bytes of its address are those of EtherType IPv4: the kernel takes the first 14 bytes
/// of a packet as an Ethernet header, also where a program of a TUN is to see none.
pub const POD: [u8; 4] = [8, 0, 1, 2];
/// A pod of node 2.
pub const REMOTE: [u8; 4] = [10, 244, 2, 2];

/// An inner packet to be.
#[derive(Clone, Debug)]
pub struct Inner {
    pub source: [u8; 4],
    pub destination: [u8; 4],
    pub ttl: u8,
    pub tos: u8,
    pub transport: Transport,
    pub payload: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
pub enum Transport {
    /// Ports and flags.
    Tcp(u16, u16, u8),
    Udp(u16, u16),
    Icmp,
}

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;

impl Inner {
    /// UDP from the pod to the remote one.
    pub fn out() -> Inner {
        Inner {
            source: POD,
            destination: REMOTE,
            ttl: 63,
            tos: 0,
            transport: Transport::Udp(4000, 5000),
            payload: b"some payload".to_vec(),
        }
    }

    /// The answer to it.
    pub fn back() -> Inner {
        Inner {
            source: REMOTE,
            destination: POD,
            transport: Transport::Udp(5000, 4000),
            ..Inner::out()
        }
    }

    pub fn tcp(self, flags: u8) -> Inner {
        let (source, destination) = match self.transport {
            Transport::Udp(source, destination) | Transport::Tcp(source, destination, _) => {
                (source, destination)
            }
            Transport::Icmp => (1, 2),
        };
        Inner {
            transport: Transport::Tcp(source, destination, flags),
            ..self
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut ip = Ipv4Header::new(
            0,
            self.ttl,
            etherparse::IpNumber::UDP,
            self.source,
            self.destination,
        )
        .unwrap();
        ip.dscp = etherparse::IpDscp::try_new(self.tos >> 2).unwrap();
        ip.ecn = etherparse::IpEcn::try_new(self.tos & 3).unwrap();
        ip.identification = 0x1234;
        ip.fragment_offset = IpFragOffset::ZERO;
        let builder = PacketBuilder::ip(etherparse::IpHeaders::Ipv4(ip, Default::default()));
        let mut bytes = vec![];
        match self.transport {
            Transport::Udp(source, destination) => builder
                .udp(source, destination)
                .write_to_vec(&mut bytes, &self.payload),
            Transport::Tcp(source, destination, flags) => {
                let mut tcp = TcpHeader::new(source, destination, 7, 0x4000);
                tcp.ack = true;
                tcp.fin = flags & FIN != 0;
                tcp.syn = flags & SYN != 0;
                tcp.rst = flags & RST != 0;
                tcp.set_options_raw(&[1, 1, 1, 1]).unwrap();
                builder
                    .tcp_header(tcp)
                    .write_to_vec(&mut bytes, &self.payload)
            }
            Transport::Icmp => builder
                .icmpv4_echo_request(1, 2)
                .write_to_vec(&mut bytes, &self.payload),
        }
        .unwrap();
        bytes
    }
}

/// A frame around a packet.
pub fn ether(destination: [u8; 6], source: [u8; 6], packet: &[u8]) -> Vec<u8> {
    let header = Ethernet2Header {
        destination,
        source,
        ether_type: etherparse::EtherType::IPV4,
    };
    [&header.to_bytes()[..], packet].concat()
}

/// A datagram of `peer` as it comes from the underlay, without UDP checksum, as a kernel VXLAN device sends it.
pub fn datagram(peer: [u8; 4], source_mac: [u8; 6], tos: u8, inner: &[u8]) -> Vec<u8> {
    let mut payload = vec![8, 0, 0, 0, 0, 0, VNI as u8, 0];
    payload.extend(ether(OUR_VTEP, source_mac, inner));
    let mut ip = Ipv4Header::new(0, 64, etherparse::IpNumber::UDP, peer, OURS).unwrap();
    ip.dscp = etherparse::IpDscp::try_new(tos >> 2).unwrap();
    ip.ecn = etherparse::IpEcn::try_new(tos & 3).unwrap();
    let mut bytes = vec![];
    PacketBuilder::ethernet2(NEXT_HOP, LOOPBACK_MAC)
        .ip(etherparse::IpHeaders::Ipv4(ip, Default::default()))
        .udp(40_000, VXLAN_PORT)
        .write_to_vec(&mut bytes, &payload)
        .unwrap();
    bytes[UDP_CHECKSUM..UDP_CHECKSUM + 2].fill(0);
    bytes
}

/// Of node 2.
pub fn from_peer(inner: &Inner) -> Vec<u8> {
    datagram(PEER, PEER_VTEP, inner.tos & 3, &inner.bytes())
}

/// Writes `bytes` at `at`.
pub fn put(at: usize, bytes: &'static [u8]) -> impl Fn(&mut Vec<u8>) {
    move |packet| packet[at..at + bytes.len()].copy_from_slice(bytes)
}

/// Makes the checksum of the IPv4 header at `at` right again, as far as there is one.
pub fn right_checksum(packet: &mut [u8], at: usize) {
    if packet.len() < at + 20 {
        return;
    }
    packet[at + 10..at + 12].fill(0);
    let sum = encap::checksum::ipv4_header(&packet[at..at + 20]);
    packet[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
}

/// Offsets in a datagram from the underlay.
pub const OUTER_IP: usize = 14;
pub const UDP: usize = 34;
pub const UDP_CHECKSUM: usize = 40;
pub const VXLAN: usize = 42;
pub const FRAME: usize = 50;
