//! ICMP errors as smoltcp reads them.

use std::net::IpAddr;

use encap::{Inner, icmp};
use proptest::prelude::*;
use smoltcp::wire::{
    Icmpv4Message, Icmpv4Packet, Icmpv6Message, Icmpv6Packet, Ipv4Packet, Ipv6Packet,
};

use crate::packets;

const V4: &str = "10.244.1.0";
const V6: &str = "fd00:10:244:1::";

proptest! {
    #[test]
    fn errors_are_smoltcps(made in packets::any_packet(), mtu in any::<u16>(), too_big in any::<bool>(), padding in 0..50usize) {
        let mut offender = made.bytes.clone();
        offender.resize(offender.len() + padding, 0);
        let inner = Inner::parse(&offender).unwrap();
        let source: IpAddr = if made.is_v4() { V4 } else { V6 }.parse().unwrap();
        let mut out = [0xaa; icmp::MAX_ICMP];
        let len = match too_big {
            true => icmp::too_big(source, &offender, &inner, mtu, &mut out),
            false => icmp::net_unreachable(source, &offender, &inner, &mut out),
        };
        let error = &out[..len.unwrap()];
        let quote = if made.is_v4() {
            let ip = Ipv4Packet::new_checked(error).unwrap();
            prop_assert!(ip.verify_checksum());
            prop_assert_eq!((ip.hop_limit(), ip.dscp()), (64, 48));
            prop_assert_eq!((IpAddr::V4(ip.src_addr()), IpAddr::V4(ip.dst_addr())), (source, made.source));
            let icmp = Icmpv4Packet::new_checked(ip.payload()).unwrap();
            prop_assert!(icmp.verify_checksum());
            prop_assert_eq!(icmp.msg_type(), Icmpv4Message::DstUnreachable);
            prop_assert_eq!(icmp.msg_code(), if too_big { 4 } else { 0 });
            let word = if too_big { u32::from(mtu) } else { 0 };
            prop_assert_eq!(&ip.payload()[4..8], &word.to_be_bytes());
            prop_assert_eq!(error.len(), (28 + made.bytes.len()).min(576));
            &error[28..]
        } else {
            let ip = Ipv6Packet::new_checked(error).unwrap();
            prop_assert_eq!(ip.hop_limit(), 64);
            prop_assert_eq!((IpAddr::V6(ip.src_addr()), IpAddr::V6(ip.dst_addr())), (source, made.source));
            let icmp = Icmpv6Packet::new_checked(ip.payload()).unwrap();
            prop_assert!(icmp.verify_checksum(&ip.src_addr(), &ip.dst_addr()));
            prop_assert_eq!(icmp.msg_code(), 0);
            if too_big {
                prop_assert_eq!((icmp.msg_type(), icmp.pkt_too_big_mtu()), (Icmpv6Message::PktTooBig, u32::from(mtu)));
            } else {
                prop_assert_eq!(icmp.msg_type(), Icmpv6Message::DstUnreachable);
            }
            prop_assert_eq!(error.len(), (48 + made.bytes.len()).min(1_280));
            &error[48..]
        };
        prop_assert_eq!(quote, &made.bytes[..quote.len()]);
    }

    #[test]
    fn a_short_buffer_gets_nothing(made in packets::any_packet(), room in 0..48usize) {
        let inner = Inner::parse(&made.bytes).unwrap();
        let source: IpAddr = if made.is_v4() { V4 } else { V6 }.parse().unwrap();
        prop_assert_eq!(icmp::net_unreachable(source, &made.bytes, &inner, &mut vec![0; room]), None);
        let other: IpAddr = if made.is_v4() { V6 } else { V4 }.parse().unwrap();
        prop_assert_eq!(icmp::net_unreachable(other, &made.bytes, &inner, &mut [0; icmp::MAX_ICMP]), None);
    }
}
