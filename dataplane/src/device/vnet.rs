//! The header beside each packet of the fast device: `struct virtio_net_hdr` of `linux/virtio_net.h`, 10 bytes in the
//! byte order of this machine (`tun_is_little_endian` of tun.c, as Tartan never sets another).
//!
//! ```text
//!   0      1         2        4         6           8
//!   flags  gso_type  hdr_len  gso_size  csum_start  csum_offset
//! ```
//!
//! Offsets count from the start of the frame, those of an [`Offload`] from the start of the IP packet: `link` is the length
//! of the link-layer header between the two.

use super::{Cut, GsoType, Offload, Unfinished};
use crate::sys::tun::HEADER;

/// The offload in the header of a packet that was read. Values that we do not know are left out: such a packet is
/// checked by its bytes alone.
pub(super) fn read(header: &[u8; HEADER], link: u16) -> Offload {
    let [flags, kind, h0, h1, s0, s1, c0, c1, o0, o1] = *header;
    let size = u16::from_ne_bytes([s0, s1]);
    let kind = match kind & !GSO_ECN {
        GSO_TCPV4 => Some(GsoType::Tcp4),
        GSO_TCPV6 => Some(GsoType::Tcp6),
        GSO_UDP_L4 => Some(GsoType::Udp),
        _ => None,
    };
    Offload {
        checksum: (flags & NEEDS_CSUM != 0).then(|| Unfinished {
            // A place inside the link-layer header becomes 0, which is none behind the IP header either.
            start: u16::from_ne_bytes([c0, c1]).saturating_sub(link),
            offset: u16::from_ne_bytes([o0, o1]),
        }),
        cut: kind.filter(|_| size > 0).map(|kind| Cut {
            kind,
            size,
            header: u16::from_ne_bytes([h0, h1]).saturating_sub(link),
        }),
    }
}

/// The header of a packet that we write.
pub(super) fn write(offload: Offload, link: u16) -> [u8; HEADER] {
    let Offload { checksum, cut } = offload;
    let flags = if checksum.is_some() { NEEDS_CSUM } else { 0 };
    let kind = match cut.map(|cut| cut.kind) {
        None => GSO_NONE,
        Some(GsoType::Tcp4) => GSO_TCPV4,
        Some(GsoType::Tcp6) => GSO_TCPV6,
        Some(GsoType::Udp) => GSO_UDP_L4,
    };
    let moved = |place: u16| place.saturating_add(link);
    let [h0, h1] = cut.map_or(0, |cut| moved(cut.header)).to_ne_bytes();
    let [s0, s1] = cut.map_or(0, |cut| cut.size).to_ne_bytes();
    let [c0, c1] = checksum.map_or(0, |place| moved(place.start)).to_ne_bytes();
    let [o0, o1] = checksum.map_or(0, |place| place.offset).to_ne_bytes();
    [flags, kind, h0, h1, s0, s1, c0, c1, o0, o1]
}

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`
const NEEDS_CSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_*`
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// `VIRTIO_NET_HDR_GSO_ECN`: a bit beside the type, for a segment with CWR.
const GSO_ECN: u8 = 0x80;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_tcp_super_packet_byte_for_byte() {
        let offload = Offload {
            checksum: Some(Unfinished {
                start: 0x0102,
                offset: 0x0304,
            }),
            cut: Some(Cut {
                kind: GsoType::Tcp6,
                size: 0x0506,
                header: 0x0708,
            }),
        };
        let native = |value: u16| value.to_ne_bytes();
        let fields = [0x0708, 0x0506, 0x0102, 0x0304].map(native).concat();
        assert_eq!(write(offload, 0).to_vec(), [vec![1, 4], fields].concat());
        assert_eq!(read(&write(offload, 0), 0), offload);
        let behind = [0x0708 + 14, 0x0506, 0x0102 + 14, 0x0304]
            .map(native)
            .concat();
        assert_eq!(write(offload, 14).to_vec(), [vec![1, 4], behind].concat());
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        for (kind, size) in [(3, 1400), (0x20, 1400), (1, 0)] {
            let [s0, s1] = u16::to_ne_bytes(size);
            assert_eq!(read(&[0, kind, 0, 0, s0, s1, 0, 0, 0, 0], 0), Offload::NONE);
        }
        let [s0, s1] = u16::to_ne_bytes(9);
        let marked = read(&[0, GSO_TCPV4 | GSO_ECN, 0, 0, s0, s1, 0, 0, 0, 0], 0);
        assert_eq!(marked.cut.map(|cut| cut.kind), Some(GsoType::Tcp4));
    }

    proptest! {
        #[test]
        fn what_is_understood_is_written_alike(header: [u8; HEADER], link in prop_oneof![Just(0), Just(14)]) {
            let offload = read(&header, link);
            prop_assert_eq!(read(&write(offload, link), link), offload);
        }
    }
}
