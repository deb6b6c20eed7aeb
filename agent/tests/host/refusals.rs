//! Each refusal, and that its sentence names the remedy. A refused set-up
//! changes nothing.

use dataplane::families::PublicAddresses;
use tartan::host::HostState;
use tartan::host::{Host, HostError};

use crate::namespace::Namespace;
use crate::text;
use crate::{apply, dual, nets, v4};

/// The sentence of the refusal; proves that nothing was changed.
fn refused(namespace: &Namespace, desired: &HostState) -> (HostError, String) {
    let before = namespace.census();
    let error = apply(namespace, desired).unwrap_err();
    namespace.census().must_be(&before, "after a refusal");
    let sentence = text(&error);
    (error, sentence)
}

#[test]
fn no_device() {
    let (error, sentence) = refused(&Namespace::new(), &v4());
    assert!(matches!(error, HostError::NoDevice { .. }));
    assert!(
        sentence.contains("no device tartan0: restart"),
        "{sentence}"
    );
}

#[test]
fn a_device_of_our_name_that_is_neither_tun_nor_tap() {
    for (making, is) in [
        ("link add tartan0 type bridge", "a bridge device"),
        (
            "link add tartan0 type veth peer name other0",
            "a veth device",
        ),
        (
            "link add tartan0 type vxlan id 9 dstport 9999",
            "a vxlan device",
        ),
    ] {
        let namespace = Namespace::new();
        namespace.ip(making);
        let (error, sentence) = refused(&namespace, &v4());
        assert!(matches!(error, HostError::ForeignDevice { .. }));
        assert!(sentence.contains(is), "{sentence}");
        assert!(sentence.contains("set `device-name`"), "{sentence}");
    }
}

#[test]
fn a_cluster_network_that_another_program_routes() {
    for (making, says) in [
        (
            &[
                "tuntap add flannel0 mode tun",
                "link set flannel0 up",
                "route add 10.244.0.0/16 dev flannel0",
            ][..],
            "to dev flannel0",
        ),
        (
            &["route add 10.244.0.0/16 via 192.0.2.9 dev eth0"],
            "via 192.0.2.9 dev eth0",
        ),
        (
            &["route add blackhole 10.244.0.0/16"],
            "nowhere (blackhole)",
        ),
    ] {
        let namespace = Namespace::with_tun();
        for words in making {
            namespace.ip(words);
        }
        let (error, sentence) = refused(&namespace, &v4());
        assert!(matches!(error, HostError::NetworkHeld { .. }));
        assert!(sentence.contains(says), "{sentence}");
        assert!(sentence.contains("stop what set it up"), "{sentence}");
        assert!(!sentence.contains("delete"), "{sentence}");
    }
    let namespace = Namespace::with_tun();
    namespace.ip("-6 route add fd00:244::/48 dev eth0");
    let (error, sentence) = refused(&namespace, &dual());
    assert!(matches!(error, HostError::NetworkHeld { .. }));
    assert!(sentence.contains("fd00:244::/48"), "{sentence}");
}

#[test]
fn an_mtu_too_small_for_ipv6() {
    let namespace = Namespace::with_tun();
    let desired = HostState {
        mtu: 1279,
        ..dual()
    };
    let (error, sentence) = refused(&namespace, &desired);
    assert!(matches!(error, HostError::MtuBelowIpv6 { .. }));
    assert!(sentence.contains("1280"), "{sentence}");
}

#[test]
fn a_name_that_is_no_interface() {
    for name in ["", "../all", "a b", "all", "sixteen-letters-"] {
        let namespace = Namespace::with_tun();
        let desired = HostState {
            device: name.to_owned(),
            ..v4()
        };
        let (error, sentence) = refused(&namespace, &desired);
        assert!(matches!(error, HostError::DeviceName { .. }), "{name:?}");
        assert!(sentence.contains("device-name"), "{sentence}");
    }
}

#[test]
fn a_public_address_the_node_does_not_hold() {
    let namespace = Namespace::with_tun();
    let state = namespace.state_dir();
    let error = namespace.inside(|| async {
        let host = Host::open(&state).await.unwrap();
        let picture = host.picture().await.unwrap();
        picture
            .underlay(PublicAddresses::V4([198, 51, 100, 7].into()))
            .unwrap_err()
    });
    assert_eq!(
        text(&error),
        "no interface of this node holds 198.51.100.7: correct this node's public address, or set `local-ip`, where that is not the local one, to one of 192.0.2.1 (eth0)"
    );
}

#[test]
fn a_kernel_that_refuses_a_step() {
    let namespace = Namespace::with_tun();
    // A TUN's MTU ends at 65,535 less its headers; nothing smaller is refused.
    let desired = HostState { mtu: 67, ..v4() };
    let error = apply(&namespace, &desired).unwrap_err();
    assert!(matches!(error, HostError::Netlink { .. }), "{error:?}");
    assert!(text(&error).contains("set the MTU of tartan0"), "{error}");
}

#[test]
fn a_caller_without_the_capability() {
    let namespace = Namespace::with_tun();
    let desired = HostState {
        addresses: nets(&["10.244.1.0/32"]),
        ..v4()
    };
    let state = namespace.state_dir();
    let error = namespace.inside(|| async {
        let mut host = Host::open(&state).await.unwrap();
        // Of this thread alone; it ends with the test body.
        rustix::thread::set_capabilities(
            None,
            rustix::thread::CapabilitySets {
                effective: rustix::thread::CapabilitySet::empty(),
                permitted: rustix::thread::CapabilitySet::empty(),
                inheritable: rustix::thread::CapabilitySet::empty(),
            },
        )
        .unwrap();
        host.apply(&desired).await.unwrap_err()
    });
    assert!(matches!(error, HostError::NotPermitted { .. }), "{error:?}");
    assert!(text(&error).contains("CAP_NET_ADMIN"), "{error}");
}
