//! The choice of the interface that carries the overlay, in a real network namespace.

use dataplane::families::{PerFamily, PublicAddresses};
use tartan::config::node::registry::UnderlayChoice;
use tartan::host::Host;
use tartan::host::external_interface::{ChoiceError, ExternalInterface, choose};

use crate::namespace::Namespace;
use crate::nets;

const V4: PerFamily<bool> = PerFamily {
    v4: true,
    v6: false,
};
const DUAL: PerFamily<bool> = PerFamily { v4: true, v6: true };

fn chosen(
    namespace: &Namespace,
    choice: &UnderlayChoice,
    needed: PerFamily<bool>,
) -> Result<ExternalInterface, ChoiceError> {
    let state = namespace.state_dir();
    namespace.inside(|| async {
        let picture = Host::open(&state).await.unwrap().picture().await.unwrap();
        let cluster = nets(&["10.244.0.0/16", "fd00:244::/48"]);
        choose(&picture, choice, needed, &cluster, "tartan0")
    })
}

fn public(addresses: &[&str]) -> PublicAddresses {
    let addresses = addresses.iter().map(|address| address.parse().unwrap());
    PublicAddresses::collect(addresses).unwrap()
}

fn ifaces(names: &[&str]) -> UnderlayChoice {
    UnderlayChoice {
        ifaces: names.iter().map(|&name| name.to_owned()).collect(),
        ..UnderlayChoice::default()
    }
}

/// A namespace with a second network and with what pods' plugins make.
fn node() -> Namespace {
    let namespace = Namespace::with_tun();
    namespace.ip("link set tartan0 up");
    namespace.ip("address add 203.0.113.9/32 dev tartan0");
    namespace.ip("link add eth1 type veth peer name wire1");
    for name in ["eth1", "wire1"] {
        namespace.ip(&format!("link set {name} addrgenmode none up"));
    }
    namespace.ip("address add 198.51.100.1/24 dev eth1");
    namespace.ip("address add 198.51.100.2/24 dev eth1");
    namespace.ip("-6 address add 2001:db8:1::7/64 dev eth1 nodad preferred_lft 0 valid_lft 600");
    namespace.ip("-6 address add 2001:db8:1::8/64 dev eth1 nodad preferred_lft 500 valid_lft 600");
    namespace.ip("-6 address add 2001:db8:1::9/64 dev eth1 nodad");
    namespace.ip("link add cni0 type bridge");
    namespace.ip("link set cni0 up");
    namespace.ip("address add 10.244.1.1/24 dev cni0");
    namespace
}

#[test]
fn the_default_route_of_the_lowest_metric_counts() {
    let namespace = node();
    let none = UnderlayChoice::default();
    let text = chosen(&namespace, &none, V4).unwrap_err().to_string();
    let sentence = "the default route: there is none; this node has eth0 (192.0.2.1), eth1 (198.51.100.1, 2001:db8:1::9, \
                    198.51.100.2, 2001:db8:1::8): set iface to the name or address of one of them";
    assert!(text.ends_with(sentence), "{text}");
    namespace.ip("route add default via 198.51.100.254 metric 20");
    assert_eq!(chosen(&namespace, &none, V4).unwrap().name, "eth1");
    namespace.ip("route add default via 192.0.2.254 metric 10");
    assert_eq!(chosen(&namespace, &none, V4).unwrap().name, "eth0");
    // eth0 has no IPv6 address.
    let text = chosen(&namespace, &none, DUAL).unwrap_err().to_string();
    assert!(text.contains("eth0 has no usable IPv6 address"), "{text}");
    namespace.ip("route del default metric 10");
    let found = chosen(&namespace, &none, DUAL).unwrap();
    // The first of the permanent addresses that are not deprecated.
    assert_eq!(found.local, public(&["198.51.100.1", "2001:db8:1::9"]));
}

#[test]
fn an_interface_is_found_by_name_address_expression_and_route() {
    let namespace = node();
    namespace.ip("route add 203.0.113.0/24 via 198.51.100.254 src 198.51.100.2");
    let regex = |regex: &str| UnderlayChoice {
        regexes: vec![regex.to_owned()],
        ..UnderlayChoice::default()
    };
    let reach = |address: &str| UnderlayChoice {
        can_reach: address.parse().ok(),
        ..UnderlayChoice::default()
    };
    for (choice, address) in [
        (ifaces(&["eth7", "eth1"]), "198.51.100.1"),
        (ifaces(&["198.51.100.2"]), "198.51.100.2"),
        (regex(r"^198\.51\.100\.2$"), "198.51.100.2"),
        (regex("^eth1$"), "198.51.100.1"),
        (reach("203.0.113.1"), "198.51.100.2"),
        (reach("198.51.100.9"), "198.51.100.1"),
    ] {
        let found = chosen(&namespace, &choice, V4).unwrap();
        let expected = ("eth1", public(&[address]));
        assert_eq!((found.name.as_str(), found.public), expected, "{choice:?}");
    }
    for refused in ["tartan0", "203.0.113.9", "cni0", "10.244.1.1", "lo"] {
        let error = chosen(&namespace, &ifaces(&[refused]), V4).unwrap_err();
        assert!(error.to_string().contains(refused), "{error}");
    }
    // What was chosen goes.
    namespace.ip("link del eth1");
    assert!(chosen(&namespace, &ifaces(&["eth1"]), V4).is_err());
}
