//! The Ethernet header of a TAP's frames: taken off what is read, written before what we write.
//!
//! Both ends of the link are one host: the kernel sends to the address of the TAP itself (a link without ARP resolves
//! every address to its own), and takes only what is sent to that address. So that address stands in both places of a
//! frame that we write.

use encap::Mac;

use super::Content;

/// Bytes of the header: no VLAN tag.
pub(super) const HEADER: usize = 14;

/// What the frame with that header carries, whose payload begins with `first`.
pub(super) fn content(header: &[u8; HEADER], first: u8) -> Content {
    let [.., t0, t1] = *header;
    match (u16::from_be_bytes([t0, t1]), first >> 4) {
        (IPV4, 4) | (IPV6, 6) => Content::Ip,
        (ARP, _) => Content::Arp,
        _ => Content::Other,
    }
}

/// The header before an IP packet that begins with `first`.
pub(super) fn before_ip(mac: Mac, first: u8) -> [u8; HEADER] {
    header(mac, if first >> 4 == 6 { IPV6 } else { IPV4 })
}

/// The header before an ARP packet.
pub(super) fn before_arp(mac: Mac) -> [u8; HEADER] {
    header(mac, ARP)
}

fn header(mac: Mac, ether_type: u16) -> [u8; HEADER] {
    let [a, b, c, d, e, f] = mac.0;
    let [t0, t1] = ether_type.to_be_bytes();
    [a, b, c, d, e, f, a, b, c, d, e, f, t0, t1]
}

/// EtherTypes (IANA, IEEE 802 numbers).
const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{EtherType, Ethernet2HeaderSlice};

    const MAC: Mac = Mac([0x0a, 0x74, 1, 2, 3, 4]);

    #[test]
    fn headers_are_what_etherparse_reads() {
        let written = [
            (before_ip(MAC, 0x45), EtherType::IPV4, 0x45, Content::Ip),
            (before_ip(MAC, 0x60), EtherType::IPV6, 0x60, Content::Ip),
            (before_arp(MAC), EtherType::ARP, 0, Content::Arp),
        ];
        for (bytes, ether_type, first, expected) in written {
            let slice = Ethernet2HeaderSlice::from_slice(&bytes).unwrap();
            assert_eq!(slice.ether_type(), ether_type);
            assert_eq!((slice.source(), slice.destination()), (MAC.0, MAC.0));
            assert_eq!(content(&bytes, first), expected);
        }
    }

    #[test]
    fn what_is_not_what_its_type_says_is_something_else() {
        assert_eq!(content(&before_ip(MAC, 0x45), 0x60), Content::Other);
        assert_eq!(content(&before_ip(MAC, 0x60), 0x45), Content::Other);
        for ether_type in [0x8100, 0x88cc, 0x05dc, 0] {
            assert_eq!(content(&header(MAC, ether_type), 0x45), Content::Other);
        }
    }
}
