//! What a packet leaves undone: a checksum to finish, a super-packet to cut (`linux/virtio_net.h`).
//!
//! The kernel carries up to 64 KB of one flow under one header and leaves cutting and checksums to the device that
//! transmits it. [`Offload`] says what is left to do for one packet, in either direction: what we must do for a packet that
//! was read, what the kernel shall do for a packet that we write.

/// What is left to do for one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The transport checksum holds only the pseudo-header sum, and covers the bytes from `start` to the end.
    pub checksum: Option<Unfinished>,
    /// The packet is a super-packet.
    pub cut: Option<Cut>,
}

/// An unfinished checksum (`VIRTIO_NET_HDR_F_NEEDS_CSUM`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// Offset of the first byte that it covers, from the start of the packet.
    pub start: u16,
    /// Offset of the checksum field from `start`.
    pub offset: u16,
}

/// How a super-packet is to be cut (`gso_type`, `gso_size`, `hdr_len`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// What is cut.
    pub kind: GsoType,
    /// Payload bytes of each wire packet; the last may have fewer. Never 0.
    pub size: u16,
    /// Bytes of all headers. On a packet that the kernel handed over it is only a hint.
    pub header: u16,
}

/// What a super-packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoType {
    /// TCP over IPv4 (`VIRTIO_NET_HDR_GSO_TCPV4`).
    Tcp4,
    /// TCP over IPv6 (`VIRTIO_NET_HDR_GSO_TCPV6`).
    Tcp6,
    /// UDP over either (`VIRTIO_NET_HDR_GSO_UDP_L4`).
    Udp,
}

impl Offload {
    /// A finished wire packet.
    pub const NONE: Offload = Offload {
        checksum: None,
        cut: None,
    };
}
