//! What is read from the kernel: addresses, the underlay, prefixes served by
//! others, routes that bypass us, counters.

use std::net::IpAddr;
use std::path::Path;

use dataplane::families::PublicAddresses;
use tartan::host::{Host, KernelReader, OutOfService, Picture, Underlay};
use tartan::problems::Problem;

use crate::text;

use crate::namespace::Namespace;
use crate::{apply, nets, v4};

#[test]
fn addresses_are_those_of_other_devices() {
    let namespace = Namespace::with_tun();
    namespace.ip("address add 192.0.2.2/24 dev eth0");
    namespace.ip("address add 198.51.100.1/32 dev lo");
    namespace.ip("-6 address add 2001:db8::1/64 dev eth0 nodad");
    namespace.ip("-6 address add fe80::1/64 dev eth0 nodad");
    apply(&namespace, &v4()).unwrap();
    let state = namespace.state_dir();
    let addresses = namespace.inside(|| async { picture(&state).await.addresses() });
    let expected: Vec<IpAddr> = ["192.0.2.1", "192.0.2.2", "198.51.100.1", "2001:db8::1"]
        .iter()
        .map(|text| text.parse().unwrap())
        .collect();
    assert_eq!(addresses, expected);
}

#[test]
fn the_underlay_is_the_interface_of_the_public_address() {
    let namespace = Namespace::with_tun();
    namespace.ip("link set eth0 mtu 9000");
    namespace.ip("address add 198.51.100.1/32 dev lo");
    let state = namespace.state_dir();
    let (eth0, lo) = namespace.inside(|| async {
        let picture = picture(&state).await;
        (
            picture.underlay(public("192.0.2.1")).unwrap(),
            picture.underlay(public("198.51.100.1")).unwrap(),
        )
    });
    assert_eq!(
        eth0,
        Underlay {
            name: "eth0".to_owned(),
            mtu: 9000,
            out_of_service: Vec::new(),
        }
    );
    assert_eq!((lo.name.as_str(), lo.mtu), ("lo", u16::MAX));
}

#[test]
fn an_underlay_that_carries_nothing_is_reported_with_the_remedy() {
    let namespace = Namespace::with_tun();
    let state = namespace.state_dir();
    let out_of_service = || {
        namespace.inside(|| async {
            let picture = picture(&state).await;
            picture
                .underlay(public("192.0.2.1"))
                .unwrap()
                .out_of_service
        })
    };
    assert_eq!(out_of_service(), []);
    let text = |interface: &OutOfService| Problem::UnderlayDown(interface.clone()).to_string();
    namespace.ip("link set wire0 down");
    let [no_carrier] = &out_of_service()[..] else {
        panic!("{:?}", out_of_service())
    };
    let no_carrier = text(no_carrier);
    assert!(no_carrier.starts_with("eth0, which carries the overlay, has no carrier: check"));
    namespace.ip("link set eth0 down");
    let [down] = &out_of_service()[..] else {
        panic!("{:?}", out_of_service())
    };
    let down = text(down);
    assert!(
        down.ends_with("is down: bring it up (`ip link set eth0 up`)"),
        "{down}"
    );
}

#[test]
fn the_addresses_of_two_families_may_be_on_two_interfaces() {
    let namespace = Namespace::with_tun();
    namespace.ip("link set eth0 mtu 9000");
    namespace.ip("-6 address add 2001:db8::1/64 dev eth0 nodad");
    namespace.ip("-6 address add 2001:db8::2/64 dev wire0 nodad");
    let state = namespace.state_dir();
    let dual = |v6: &str| PublicAddresses::Dual([192, 0, 2, 1].into(), v6.parse().unwrap());
    let (one, two, none) = namespace.inside(|| async {
        let picture = picture(&state).await;
        (
            picture.underlay(dual("2001:db8::1")).unwrap(),
            picture.underlay(dual("2001:db8::2")).unwrap(),
            picture.underlay(dual("2001:db8::3")).unwrap_err(),
        )
    });
    assert_eq!((one.name.as_str(), one.mtu), ("eth0", 9000));
    assert_eq!((two.name.as_str(), two.mtu), ("eth0, wire0", 1500));
    let said = text(&none);
    assert!(
        said.contains("no interface of this node holds 2001:db8::3: correct this node's public address, or set `local-ipv6`, where"),
        "{said}"
    );
}

async fn picture(state: &Path) -> Picture {
    let host = Host::open(state).await.unwrap();
    host.picture().await.unwrap()
}

fn public(address: &str) -> PublicAddresses {
    address.parse::<IpAddr>().unwrap().into()
}

#[test]
fn prefixes_of_a_bridge_and_of_pods_are_the_kernels() {
    let namespace = Namespace::with_tun();
    apply(&namespace, &v4()).unwrap();
    let own = nets(&["10.244.1.0/24", "fd00:244:0:1::/64"]);
    let state = namespace.state_dir();
    let read =
        || namespace.inside(|| async { picture(&state).await.kernel_prefixes(&own, "tartan0") });
    assert_eq!(read(), []);

    namespace.ip("link add cni0 type bridge");
    namespace.ip("address add 10.244.1.1/24 dev cni0");
    namespace.ip("-6 address add fd00:244:0:1::1/64 dev cni0 nodad");
    namespace.ip("link set cni0 up");
    namespace.ip("route add 10.244.1.200/32 dev eth0");
    namespace.ip("route add unreachable 10.244.1.201/32");
    namespace.ip("route add 10.244.2.0/24 dev eth0");
    assert_eq!(
        read(),
        nets(&[
            "10.244.1.0/24",
            "10.244.1.1/32",
            "10.244.1.200/32",
            "fd00:244:0:1::/64",
            "fd00:244:0:1::1/128"
        ])
    );

    namespace.ip("link delete cni0");
    assert_eq!(read(), nets(&["10.244.1.200/32"]));
}

#[test]
fn routes_past_us_are_reported() {
    let namespace = Namespace::with_tun();
    apply(&namespace, &v4()).unwrap();
    namespace.ip("link add flannel.1 type vxlan id 1 dev eth0 dstport 8472 nolearning");
    namespace.ip("link set flannel.1 up");
    namespace.ip("route add 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink");
    namespace.ip("route add prohibit 10.244.3.0/24");
    namespace.ip("route add 10.244.1.0/25 dev eth0");
    namespace.ip("route add 10.0.0.0/8 dev eth0");
    let state = namespace.state_dir();
    let found = namespace.inside(|| async {
        picture(&state).await.bypassing(
            &nets(&["10.244.0.0/16"]),
            &nets(&["10.244.1.0/24"]),
            "tartan0",
        )
    });
    let words: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(words.len(), 2, "{words:?}");
    assert!(
        words[0].starts_with("10.244.2.0/24 bypasses Tartan: via 10.244.2.0 dev flannel.1"),
        "{words:?}"
    );
    assert!(
        words[1].starts_with("10.244.3.0/24 bypasses Tartan: refused"),
        "{words:?}"
    );
}

#[test]
fn counters_are_those_of_iproute2() {
    let namespace = Namespace::with_tun();
    // Carrier changes and packets of a pair of veths that has seen some.
    namespace.ip("link set wire0 down");
    namespace.ip("link set wire0 up");
    let stats = namespace.inside(|| async {
        let kernel = KernelReader::open().unwrap();
        let error = kernel.device_stats("none0").await.unwrap_err().to_string();
        assert!(error.contains("none0"), "{error}");
        kernel.device_stats("eth0").await.unwrap()
    });
    let shown = &namespace.list("-s -d link show dev eth0")[0];
    let kernel = &shown["stats64"];
    assert_eq!(shown["mtu"], stats.mtu);
    assert!(stats.up && stats.carrier);
    assert!(stats.carrier_changes >= 3, "{stats:?}");
    for (ours, theirs) in [
        (stats.rx_packets, &kernel["rx"]["packets"]),
        (stats.rx_bytes, &kernel["rx"]["bytes"]),
        (stats.rx_dropped, &kernel["rx"]["dropped"]),
        (stats.tx_packets, &kernel["tx"]["packets"]),
        (stats.tx_bytes, &kernel["tx"]["bytes"]),
        (stats.tx_dropped, &kernel["tx"]["dropped"]),
    ] {
        assert_eq!(theirs, &ours, "{shown}");
    }
}

#[test]
fn packets_that_find_the_queue_of_a_tun_full_are_counted() {
    let namespace = Namespace::with_tun();
    let held = namespace.hold("tartan0");
    apply(&namespace, &v4()).unwrap();
    let stats = || {
        namespace.inside(|| async {
            let kernel = KernelReader::open().unwrap();
            kernel.device_stats("tartan0").await.unwrap()
        })
    };
    let before = stats();
    assert!(before.carrier);
    namespace.inside(|| async {
        let socket = std::net::UdpSocket::bind("10.244.1.0:0").unwrap();
        for _ in 0..3000 {
            socket.send_to(b"x", "10.244.2.5:9").unwrap();
        }
    });
    let dropped = stats().tx_dropped - before.tx_dropped;
    // The kernel's ring may hold one packet less than its length.
    assert!((952..960).contains(&dropped), "{dropped}");
    drop(held);
    // A command that another test starts may hold a duplicate until it is run.
    namespace.until("ip link show tartan0", "NO-CARRIER");
    assert!(!stats().carrier, "no process holds a queue");
}
