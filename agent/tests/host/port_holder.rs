//! Who holds a port, found by netlink and `/proc`.

use std::net::{SocketAddr, UdpSocket};

use tartan::host::{Host, PortHolder};
use testbed::PortOwner;

use crate::namespace::Namespace;

/// Who keeps us from the address, while `hold` holds something.
fn holder<T>(
    namespace: &Namespace,
    wanted: &str,
    hold: impl FnOnce() -> T + Send,
) -> Option<PortHolder> {
    let state = namespace.state_dir();
    let wanted: SocketAddr = wanted.parse().unwrap();
    namespace.inside(|| async move {
        let _held = hold();
        let host = Host::open(&state).await.unwrap();
        host.port_holder(wanted).await
    })
}

fn nothing() {}

#[test]
fn a_vxlan_device_of_the_kernel_is_named_while_it_holds_the_port() {
    let namespace = Namespace::new();
    namespace.ip("-6 address add 2001:db8::1/64 dev eth0 nodad");
    for (number, (options, v4, v6)) in [
        ("id 1 local 192.0.2.1 dstport 8472", true, false),
        ("id 1 local 2001:db8::1 dstport 8472", false, true),
        ("id 1 group ff05::1 dev eth0 dstport 8472", false, true),
        ("external dstport 8472", true, true),
        ("id 1 local 192.0.2.1 dstport 4789", false, false),
    ]
    .into_iter()
    .enumerate()
    {
        let device = format!("vx{number}");
        namespace.ip(&format!("link add {device} type vxlan {options}"));
        assert_eq!(
            holder(&namespace, "192.0.2.1:8472", nothing),
            None,
            "it is down"
        );
        namespace.ip(&format!("link set {device} up"));
        for (wanted, holds) in [("192.0.2.1:8472", v4), ("[2001:db8::1]:8472", v6)] {
            let expected = holds.then(|| PortHolder::VxlanDevice(device.clone()));
            // The kernel is the oracle.
            let address = wanted.to_owned();
            let bound = namespace.inside(|| async move { UdpSocket::bind(address).is_ok() });
            assert_eq!(bound, !holds, "{options}, {wanted}");
            assert_eq!(
                holder(&namespace, wanted, nothing),
                expected,
                "{options}, {wanted}"
            );
        }
        namespace.ip(&format!("link delete {device}"));
    }
}

#[test]
fn a_device_that_came_from_another_namespace_holds_its_port_there() {
    let (here, there) = (Namespace::new(), Namespace::new());
    there.ip("link add vx0 type vxlan id 1 local 192.0.2.1 dstport 8472");
    there.ip(&format!("link set vx0 netns {}", here.name()));
    here.ip("link set vx0 up");
    assert_eq!(holder(&here, "192.0.2.1:8472", nothing), None);
}

#[test]
fn a_process_is_named() {
    let namespace = Namespace::new();
    for (bound, wanted) in [
        ("192.0.2.1:8471", "192.0.2.1:8471"),
        ("0.0.0.0:8472", "192.0.2.1:8472"),
        ("[::]:8473", "192.0.2.1:8473"),
    ] {
        let owner = PortOwner::bind(namespace.space(), bound);
        let found = holder(&namespace, wanted, nothing);
        let process = PortHolder::Process {
            pid: owner.pid(),
            name: "sleep".to_owned(),
        };
        assert_eq!(found, Some(process), "{bound}");
    }
    for elsewhere in ["192.0.2.1:8475", "127.0.0.1:8474"] {
        let hold = || UdpSocket::bind(elsewhere).unwrap();
        assert_eq!(
            holder(&namespace, "192.0.2.1:8474", hold),
            None,
            "{elsewhere}"
        );
    }
    let owner = PortOwner::bind(namespace.space(), "192.0.2.1:9");
    let sentence = holder(&namespace, "192.0.2.1:9", nothing)
        .unwrap()
        .to_string();
    assert_eq!(sentence, format!("process {} (sleep)", owner.pid()));
}
