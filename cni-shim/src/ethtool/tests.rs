use proptest::prelude::*;

use super::*;

/// Words of the machine's byte order, so that the bytes below are those of a little-endian machine.
#[cfg(target_endian = "little")]
#[test]
fn the_requests_are_as_ethtool_sends_them() {
    // As strace shows them of `ethtool -K lo gro on rx-udp-gro-forwarding off` (ethtool 6.1), but for the order of the
    // header's flags and for the second bit, of which ethtool sends a bitset of its own.
    let wanted = Gathering {
        gro: true,
        udp_forwarding: false,
    };
    let mut expected = vec![12, 1, 0, 0];
    expected.extend([
        20, 0, 1, 0x80, 8, 0, 1, 0, 1, 0, 0, 0, 8, 0, 3, 0, 2, 0, 0, 0,
    ]);
    expected.extend([64, 0, 3, 0x80, 60, 0, 3, 0x80]);
    expected.extend([20, 0, 1, 0x80, 11, 0, 2, 0]);
    expected.extend(b"rx-gro\0\0");
    expected.extend([4, 0, 3, 0]);
    expected.extend([32, 0, 1, 0x80, 26, 0, 2, 0]);
    expected.extend(b"rx-udp-gro-forwarding\0\0\0");
    // The lengths of the nests count the padding of what they hold.
    let (last, bits) = (32, 20 + 32 + 4);
    expected[4 + 20..4 + 20 + 2].copy_from_slice(&u16::to_ne_bytes(bits + 4));
    expected[4 + 20 + 4..4 + 20 + 6].copy_from_slice(&u16::to_ne_bytes(bits));
    assert_eq!(expected.len(), 4 + 20 + 8 + 20 + last);
    assert_eq!(set_request(Device::Index(1), wanted), expected);
    assert_eq!(
        family_request(),
        [&[3, 2, 0, 0, 12, 0, 2, 0][..], b"ethtool\0"].concat()
    );
    assert_eq!(
        features_request(Device::Index(7)),
        [11, 1, 0, 0, 12, 0, 1, 0x80, 8, 0, 1, 0, 7, 0, 0, 0]
    );
    assert_eq!(
        features_request(Device::Name("lo")),
        [11, 1, 0, 0, 12, 0, 1, 0x80, 7, 0, 2, 0, 108, 111, 0, 0]
    );
    let whole = request(0x15, 9, &[1, 2, 3, 4]);
    assert_eq!(
        whole,
        [
            20, 0, 0, 0, 0x15, 0, 5, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4
        ]
    );
}

/// What FEATURES_GET answers for these names.
fn answer(names: &[&str]) -> Vec<u8> {
    let mut bits = Vec::new();
    for name in names {
        let mut bit = Vec::new();
        append_attribute(&mut bit, 1, &3u32.to_ne_bytes());
        append_attribute(&mut bit, BIT_NAME, &[name.as_bytes(), b"\0"].concat());
        append_attribute(&mut bits, BITS_BIT | NLA_F_NESTED, &bit);
    }
    let mut bitset = Vec::new();
    append_attribute(&mut bitset, 1, &[]);
    append_attribute(&mut bitset, BITSET_BITS | NLA_F_NESTED, &bits);
    let mut body = Vec::new();
    append_device(&mut body, Device::Index(7), 0);
    append_attribute(&mut body, FEATURES_ACTIVE | NLA_F_NESTED, &bitset);
    body
}

fn gathering(body: &[u8]) -> Gathering {
    let mut found = Gathering::default();
    active(body, &mut |name| found.note(name));
    found
}

fn segmentation(names: &[&str]) -> Segmentation {
    let mut found = Segmentation::default();
    active(&answer(names), &mut |name| found.note(name));
    found
}

#[test]
fn what_an_underlay_cuts_is_told_apart() {
    let alone = segmentation(&["tx-udp-segmentation", "tx-udp_tnl-csum-segmentation"]);
    assert_eq!((alone.udp, alone.tunnel), (true, false));
    let both = segmentation(&["tx-udp-segmentation", "tx-udp_tnl-segmentation"]);
    assert_eq!((both.udp, both.tunnel), (true, true));
    assert_eq!(segmentation(&["tx-udp"]), Segmentation::default());
    let lo = Ethtool::open().unwrap().segmentation(Device::Name("lo"));
    assert!(lo.unwrap().udp);
}

#[test]
fn active_features_are_found_by_their_whole_names() {
    assert_eq!(gathering(&answer(&[])), Gathering::default());
    assert_eq!(
        gathering(&answer(&["rx-gro-list", "rx-gro-hw", "rx-udp-gro"])),
        Gathering::default()
    );
    let gro = Gathering {
        gro: true,
        udp_forwarding: false,
    };
    assert_eq!(gathering(&answer(&["tx-lockless", "rx-gro"])), gro);
    let both = answer(&["rx-udp-gro-forwarding", "rx-gro"]);
    assert_eq!(gathering(&both), Gathering::ON);
}

#[test]
fn the_kernel_has_the_family_and_answers_for_loopback() {
    let mut ethtool = Ethtool::open().unwrap();
    for lo in [Device::Index(1), Device::Name("lo")] {
        assert!(ethtool.gathering(lo).unwrap().gro, "lo joins packets");
    }
    let error = ethtool.gathering(Device::Index(0x7fff_fff0)).unwrap_err();
    assert!(error.is(Errno::NODEV) && !error.is_lack(), "{error}");
}

proptest! {
    #[test]
    fn no_answer_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        gathering(&bytes);
        family_number(&bytes);
        nlmsg::kernel_words(&bytes);
    }
}
