//! pull ∘ push = identity, and outer headers that others accept.

use std::net::SocketAddr;

use encap::pull::{self, Vtep};
use encap::push::{self, Path};
use encap::transport::ChecksumState;
use encap::{Ecn, Family, Format, Inner, Mac, Vni};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;

use crate::packets::{self, Made, unicast_v4, unicast_v6};

fn mac() -> impl Strategy<Value = Mac> {
    any::<[u8; 6]>().prop_map(|[first, b, c, d, e, f]| Mac([first & 0xfe | 2, b, c, d, e, f]))
}

fn vni() -> impl Strategy<Value = Vni> {
    (0..1u32 << 24).prop_map(|value| Vni::new(value).unwrap())
}

fn family(made: &Made) -> Family {
    if made.is_v4() { Family::V4 } else { Family::V6 }
}

/// A path between two addresses of one family.
fn path() -> impl Strategy<Value = Path> {
    (any::<(bool, u128, u128, u16, u16, u16, u8)>(), 0..4u8).prop_map(|(fields, ecn)| {
        let (v6, source, destination, from, to, identification, ttl) = fields;
        let end = |bits: u128, port| {
            let ip = if v6 {
                unicast_v6(bits).into()
            } else {
                unicast_v4(bits as u32).into()
            };
            SocketAddr::new(ip, port)
        };
        Path {
            source: end(source, from),
            destination: end(destination, to),
            ecn: Ecn::of(ecn),
            ttl,
            identification,
        }
    })
}

proptest! {
    #[test]
    fn vxlan(made in packets::any_packet(), ours in mac(), other in mac(), theirs in mac(), vni in vni(), gbp in any::<bool>(), padding in 0..40usize) {
        prop_assume!(ours != theirs);
        let header = push::vxlan(vni, theirs, ours, family(&made));
        let mut datagram = [header.as_slice(), &made.bytes].concat();
        prop_assert_eq!(header.as_slice().len(), Format::Vxlan.header_len());
        prop_assert_eq!(pull::inner_span(&datagram, Format::Vxlan), Some(datagram.len()));
        // Ethernet padding is not part of the packet.
        datagram.resize(datagram.len() + padding, 0);
        let (mac, mac_v6) = if made.is_v4() { (ours, other) } else { (other, ours) };
        let pulled = pull::vxlan(&datagram, &Vtep { mac, mac_v6, vni, gbp }).unwrap();
        prop_assert_eq!(&datagram[pulled.offset..pulled.offset + pulled.inner.len], &made.bytes);
        prop_assert_eq!(pulled.inner, Inner::parse(&made.bytes).unwrap());
    }

    #[test]
    fn udp(made in packets::any_packet()) {
        let datagram = [push::udp().as_slice(), &made.bytes].concat();
        let pulled = pull::udp(&datagram, true).unwrap();
        prop_assert_eq!(&datagram[pulled.offset..pulled.offset + pulled.inner.len], &made.bytes);
        prop_assert_eq!(pull::inner_span(&datagram, Format::Udp), Some(datagram.len()));
        let refused = if made.is_v4() { None } else { Some(pull::Refusal::Family) };
        prop_assert_eq!(pull::udp(&datagram, false).err(), refused);
    }

    #[test]
    fn outer(made in packets::any_packet(), path in path(), in_vxlan in any::<bool>()) {
        let header = match in_vxlan {
            true => push::vxlan(Vni::new(1).unwrap(), Mac([2; 6]), Mac([4; 6]), family(&made)),
            false => push::udp(),
        };
        let outer = push::outer(&path, &header, &made.bytes).unwrap();
        let packet = [outer.as_slice(), header.as_slice(), &made.bytes].concat();
        let payload = [header.as_slice(), &made.bytes].concat();

        let read = pull::outer(&packet).unwrap();
        prop_assert_eq!((read.source, read.destination, read.ecn), (path.source, path.destination, path.ecn));
        prop_assert_eq!(read.checksum, ChecksumState::Valid);
        prop_assert_eq!(read.payload, &payload);

        let sliced = SlicedPacket::from_ip(&packet).unwrap();
        let Some(TransportSlice::Udp(udp)) = &sliced.transport else { panic!("not UDP") };
        prop_assert_eq!(udp.payload(), &payload);
        let header = udp.to_header();
        let expected = match &sliced.net {
            Some(NetSlice::Ipv4(ip)) => {
                let ip = ip.header().to_header();
                prop_assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                prop_assert_eq!((ip.time_to_live, ip.identification), (path.ttl, path.identification));
                header.calc_checksum_ipv4(&ip, &payload).unwrap()
            }
            Some(NetSlice::Ipv6(ip)) => {
                prop_assert_eq!(ip.header().hop_limit(), path.ttl);
                header.calc_checksum_ipv6(&ip.header().to_header(), &payload).unwrap()
            }
            _ => panic!("not IP"),
        };
        prop_assert_eq!(header.checksum, expected);
    }
}
