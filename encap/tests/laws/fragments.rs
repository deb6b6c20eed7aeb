//! A fragmented packet: etherparse's reassembly gives back what went in, also after fragmenting twice.

use encap::fragment::{self, MAX_HEADER, Unfragmentable};
use encap::{Fragment, Inner};
use etherparse::SlicedPacket;
use etherparse::defrag::IpDefragPool;
use proptest::prelude::*;

use crate::oracle;
use crate::packets::{self, Made};

fn cut(bytes: &[u8], mtu: u16) -> Result<Vec<Vec<u8>>, Unfragmentable> {
    let inner = Inner::parse(bytes).unwrap();
    let plan = fragment::plan(bytes, &inner, mtu)?;
    let mut header = [0; MAX_HEADER];
    let fragment = |i| {
        let len = plan.header(bytes, i, &mut header).unwrap();
        [&header[..len], &bytes[plan.payload(i)]].concat()
    };
    Ok((0..plan.count()).map(fragment).collect())
}

/// The payload that etherparse makes of fragments, or of one whole packet.
fn reassemble(fragments: &[Vec<u8>]) -> Vec<u8> {
    if let [whole] = fragments {
        return whole[Inner::parse(whole).unwrap().transport..].to_vec();
    }
    let mut pool = IpDefragPool::<(), ()>::new();
    let mut done = None;
    for fragment in fragments {
        assert!(done.is_none(), "complete before the last fragment");
        done = pool
            .process_sliced_packet(&SlicedPacket::from_ip(fragment).unwrap(), (), ())
            .unwrap();
    }
    done.expect("incomplete after the last fragment").payload
}

/// IPv4 packets that may be fragmented, with and without options.
fn packet() -> impl Strategy<Value = Made> {
    prop_oneof![packets::udp(20_000), packets::echo(3_000)]
        .prop_filter("IPv4", Made::is_v4)
        .prop_map(|mut made| {
            made.bytes[6] &= !0x40;
            let sum = encap::checksum::ipv4_header(&made.bytes[..made.transport]);
            made.bytes[10..12].copy_from_slice(&sum.to_be_bytes());
            made
        })
}

proptest! {
    #[test]
    fn reassembly_is_the_packet(made in packet(), mtu in 68..2_000u16) {
        oracle::fragments_hold(&made.bytes, &Inner::parse(&made.bytes).unwrap(), mtu);
        let fragments = cut(&made.bytes, mtu).unwrap();
        prop_assert!(fragments.iter().all(|fragment| fragment.len() <= usize::from(mtu)));
        prop_assert_eq!(fragments.len() == 1, made.bytes.len() <= usize::from(mtu));
        prop_assert_eq!(reassemble(&fragments), &made.bytes[made.transport..]);
    }

    #[test]
    fn fragments_of_fragments(made in packet(), first in 576..2_000u16, second in 68..576u16) {
        let fragments = cut(&made.bytes, first).unwrap();
        let again: Vec<_> = fragments.iter().flat_map(|fragment| cut(fragment, second).unwrap()).collect();
        prop_assert_eq!(reassemble(&again), &made.bytes[made.transport..]);
    }

    #[test]
    fn what_fits_is_the_packet(made in packet()) {
        prop_assert_eq!(cut(&made.bytes, u16::MAX).unwrap(), vec![made.bytes]);
    }

    #[test]
    fn the_pieces_keep_one_hash(made in packet(), mtu in 68..600u16) {
        let fragments = cut(&made.bytes, mtu).unwrap();
        prop_assume!(fragments.len() > 1);
        let parsed: Vec<_> = fragments.iter().map(|fragment| Inner::parse(fragment).unwrap()).collect();
        prop_assert_eq!(parsed[0].fragment, Fragment::First);
        prop_assert!(parsed[1..].iter().all(|inner| inner.fragment == Fragment::Later && inner.ports.is_none()));
        prop_assert!(parsed.iter().all(|inner| inner.flow_hash() == parsed[0].flow_hash()));
    }

    #[test]
    fn dont_fragment_is_obeyed(made in packet(), mtu in 68..600u16) {
        prop_assume!(made.bytes.len() > usize::from(mtu));
        let mut bytes = made.bytes;
        bytes[6] |= 0x40;
        prop_assert_eq!(cut(&bytes, mtu), Err(Unfragmentable::DontFragment));
    }

    #[test]
    fn ipv6_is_fragmented_by_its_source_alone(made in packets::any_packet(), mtu in any::<u16>()) {
        prop_assume!(!made.is_v4());
        prop_assert_eq!(cut(&made.bytes, mtu), Err(Unfragmentable::NotIpv4));
    }
}
