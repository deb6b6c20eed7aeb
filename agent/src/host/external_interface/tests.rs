use netlink_packet_route::address::AddressFlags;
use proptest::prelude::*;

use super::*;
use crate::host::net::links::LinkKind;
use crate::host::net::pod_links::PodLinks;

const V4: PerFamily<bool> = PerFamily {
    v4: true,
    v6: false,
};
const V6: PerFamily<bool> = PerFamily {
    v4: false,
    v6: true,
};
const DUAL: PerFamily<bool> = PerFamily { v4: true, v6: true };

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn public(addresses: &[&str]) -> PublicAddresses {
    PublicAddresses::collect(addresses.iter().map(|text| ip(text))).unwrap()
}

fn nothing() -> Picture {
    Picture {
        links: Vec::new(),
        held: Vec::new(),
        routes: Vec::new(),
        pod_links: PodLinks::default(),
    }
}

impl Picture {
    fn with(mut self, name: &str, addresses: &[&str]) -> Picture {
        let index = u32::try_from(self.links.len()).unwrap() + 1;
        self.links.push(Link {
            index,
            name: name.to_owned(),
            kind: LinkKind::Other(String::new()),
            alias: String::new(),
            up: true,
            multicast: true,
            arp: true,
            mac: None,
            carrier: true,
            mtu: 1500,
            queue: 1000,
            master: None,
            leads_elsewhere: false,
        });
        for address in addresses {
            self = self.holding(name, address, AddressFlags::Permanent);
        }
        self
    }

    fn holding(mut self, name: &str, address: &str, flags: AddressFlags) -> Picture {
        let index = self.index_of(name);
        self.held.push(InterfaceAddress {
            index,
            address: net(address),
            flags,
        });
        self
    }

    fn routing(mut self, prefix: &str, name: &str, metric: u32) -> Picture {
        self.routes.push(Route {
            prefix: net(prefix),
            kind: RouteType::Unicast,
            protocol: 3,
            table: MAIN,
            metric,
            devices: vec![self.index_of(name)],
            gateway: None,
            source: None,
            mtu: None,
            narrowed: false,
        });
        self
    }

    fn index_of(&self, name: &str) -> u32 {
        let found = self.links.iter().find(|link| link.name == name);
        found.unwrap().index
    }
}

/// A node with two networks, a bridge of pods, a tunnel device and what flannel left.
fn node() -> Picture {
    nothing()
        .with("lo", &["127.0.0.1/8", "::1/128"])
        .with("eth0", &["192.0.2.1/24", "2001:db8::1/64"])
        .with("eth1", &["198.51.100.1/24", "2001:db8:1::1/64"])
        .with("cni0", &["10.244.1.1/24"])
        .with("flannel.1", &["10.244.1.0/32"])
        .with("tartan0", &["203.0.113.9/32"])
        .routing("0.0.0.0/0", "eth1", 200)
        .routing("0.0.0.0/0", "eth0", 100)
        .routing("::/0", "eth0", 1024)
        .routing("192.0.2.0/24", "eth0", 0)
        .routing("198.51.100.0/24", "eth1", 0)
        .routing("203.0.113.0/24", "eth1", 0)
        .routing("10.244.0.0/16", "tartan0", 0)
}

fn chosen(
    picture: &Picture,
    choice: &UnderlayChoice,
    needed: PerFamily<bool>,
) -> Result<ExternalInterface, ChoiceError> {
    let cluster = [net("10.244.0.0/16"), net("fd00:244::/48")];
    choose(picture, choice, needed, &cluster, "tartan0")
}

fn ifaces(all: &[&str]) -> UnderlayChoice {
    UnderlayChoice {
        ifaces: all.iter().map(|&text| text.to_owned()).collect(),
        ..UnderlayChoice::default()
    }
}

fn regexes(all: &[&str]) -> UnderlayChoice {
    UnderlayChoice {
        regexes: all.iter().map(|&text| text.to_owned()).collect(),
        ..UnderlayChoice::default()
    }
}

fn can_reach(address: &str) -> UnderlayChoice {
    UnderlayChoice {
        can_reach: Some(ip(address)),
        ..UnderlayChoice::default()
    }
}

fn published(addresses: &[&str], mut choice: UnderlayChoice) -> UnderlayChoice {
    for address in addresses {
        match ip(address) {
            IpAddr::V4(v4) => choice.public_v4 = Some(v4),
            IpAddr::V6(v6) => choice.public_v6 = Some(v6),
        }
    }
    choice
}

#[track_caller]
fn assert_chosen(
    picture: &Picture,
    choice: &UnderlayChoice,
    needed: PerFamily<bool>,
    (name, local, public_): (&str, &[&str], &[&str]),
) {
    let found = chosen(picture, choice, needed).unwrap();
    assert_eq!(
        (found.name.as_str(), found.local, found.public),
        (name, public(local), public(public_)),
        "{choice:?}"
    );
}

/// flannel `pkg/ipmatch/match_test.go`. The last row differs: the interface holds the public address.
#[test]
fn flannels_own_cases() {
    let addresses = [
        "1.10.100.1/32",
        "192.168.200.128/32",
        "172.16.30.18/32",
        "172.16.31.200/32",
    ];
    let node = nothing()
        .with("eth0", &["192.0.2.1/24"])
        .with("dummy0", &addresses);
    let none = UnderlayChoice::default();
    let rows = [
        (regexes(&[r"192\.168\.200\.\d+"]), "192.168.200.128"),
        (regexes(&[r"dummy\d+"]), "1.10.100.1"),
        (ifaces(&["dummy0"]), "1.10.100.1"),
        (ifaces(&["172.16.30.18"]), "172.16.30.18"),
        (
            published(&["172.16.31.200"], regexes(&[r"172\.16\.30\.\d+"])),
            "172.16.31.200",
        ),
        (published(&["172.16.30.18"], none), "172.16.30.18"),
    ];
    for (choice, address) in rows {
        assert_chosen(&node, &choice, V4, ("dummy0", &[address], &[address]));
    }
    let behind_nat = published(&["203.0.113.1"], regexes(&[r"172\.16\.30\.\d+"]));
    assert_chosen(
        &node,
        &behind_nat,
        V4,
        ("dummy0", &["172.16.30.18"], &["203.0.113.1"]),
    );
}

/// A Network that contains the nodes themselves is the fault, not the interface.
#[test]
fn an_address_inside_the_cluster_network_is_named_with_the_network() {
    let node = nothing()
        .with("eth0", &["10.244.7.2/24"])
        .routing("0.0.0.0/0", "eth0", 0);
    for choice in [
        UnderlayChoice::default(),
        ifaces(&["eth0"]),
        ifaces(&["10.244.7.2"]),
        published(&["10.244.7.2"], UnderlayChoice::default()),
    ] {
        let sentence = chosen(&node, &choice, V4).unwrap_err().to_string();
        assert!(
            sentence.ends_with(
                ": 10.244.7.2 of eth0 lies inside Network 10.244.0.0/16: choose another Network, or an address outside it; \
                 this node has no interface with a usable address"
            ),
            "{sentence}"
        );
    }
}

/// flannel `pkg/ip/iface.go`, compareAddrs and what is left out before.
#[test]
fn the_preferred_address_of_an_interface() {
    use AddressFlags as Flags;
    let permanent = Flags::Permanent;
    type Row<'a> = (&'a [(&'a str, Flags)], Option<&'a str>);
    let rows: [Row<'_>; 9] = [
        (
            &[
                ("169.254.1.1/16", permanent),
                ("192.0.2.1/24", Flags::empty()),
            ],
            Some("192.0.2.1"),
        ),
        (
            &[
                ("192.0.2.1/24", Flags::empty()),
                ("192.0.2.2/24", permanent),
            ],
            Some("192.0.2.2"),
        ),
        (
            &[
                ("192.0.2.1/24", permanent | Flags::Secondary),
                ("192.0.2.2/24", permanent),
            ],
            Some("192.0.2.2"),
        ),
        (
            &[("192.0.2.2/24", permanent), ("192.0.2.1/24", permanent)],
            Some("192.0.2.2"),
        ),
        (
            &[
                ("192.0.2.1/24", permanent | Flags::Deprecated),
                ("192.0.2.2/24", Flags::empty()),
            ],
            Some("192.0.2.2"),
        ),
        (
            &[
                ("2001:db8::7/64", Flags::Secondary),
                ("2001:db8::1/64", Flags::Managetempaddr),
            ],
            Some("2001:db8::1"),
        ),
        (
            &[
                ("2001:db8::7/64", permanent | Flags::Dadfailed),
                ("2001:db8::8/64", Flags::Secondary | Flags::Tentative),
            ],
            Some("2001:db8::8"),
        ),
        (&[("169.254.1.1/16", permanent)], Some("169.254.1.1")),
        (&[("fe80::1/64", permanent), ("::1/128", permanent)], None),
    ];
    for (addresses, expected) in rows {
        let empty = nothing().with("eth0", &[]);
        let node = addresses.iter().fold(empty, |node, (address, flags)| {
            node.holding("eth0", address, *flags)
        });
        let is_v6 = addresses.iter().all(|(address, _)| address.contains(':'));
        let needed = if is_v6 { V6 } else { V4 };
        match expected {
            Some(address) => assert_chosen(
                &node,
                &ifaces(&["eth0"]),
                needed,
                ("eth0", &[address], &[address]),
            ),
            None => {
                let error = chosen(&node, &ifaces(&["eth0"]), needed).unwrap_err();
                let text = error.to_string();
                assert!(text.contains("eth0 has no usable IPv6 address"), "{text}");
            }
        }
    }
}

#[test]
fn without_any_key_the_best_default_route_counts() {
    let none = UnderlayChoice::default();
    let eth0: (&str, &[&str], &[&str]) = ("eth0", &["192.0.2.1"], &["192.0.2.1"]);
    assert_chosen(&node(), &none, V4, eth0);
    let six: &[&str] = &["2001:db8::1"];
    assert_chosen(&node(), &none, V6, ("eth0", six, six));
    let both: &[&str] = &["192.0.2.1", "2001:db8::1"];
    assert_chosen(&node(), &none, DUAL, ("eth0", both, both));
    // Of a node without an IPv6 router.
    let mut node = node();
    node.routes.retain(|route| route.prefix != net("::/0"));
    assert_chosen(&node, &none, DUAL, ("eth0", both, both));
}

#[test]
fn default_routes_of_two_interfaces_are_refused() {
    let node = node().routing("::/0", "eth1", 1);
    let error = chosen(&node, &UnderlayChoice::default(), DUAL).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no interface can be chosen to reach other nodes: the default route: it is eth0 for IPv4 and eth1 for IPv6, and \
         both must be the same; this node has eth0 (192.0.2.1, 2001:db8::1), eth1 (198.51.100.1, 2001:db8:1::1): set iface \
         to the name or address of one of them"
    );
    // Each family alone is fine.
    let none = UnderlayChoice::default();
    assert_eq!(chosen(&node, &none, V4).unwrap().name, "eth0");
    assert_eq!(chosen(&node, &none, V6).unwrap().name, "eth1");
}

#[test]
fn a_public_address_selects_the_interface_that_holds_it() {
    let none = UnderlayChoice::default;
    let of = |addresses: &[&str]| published(addresses, none());
    let eth1: (&str, &[&str], &[&str]) = ("eth1", &["198.51.100.1"], &["198.51.100.1"]);
    assert_chosen(&node(), &of(&["198.51.100.1"]), V4, eth1);
    let both: &[&str] = &["198.51.100.1", "2001:db8:1::1"];
    for named in [&["198.51.100.1"][..], &["2001:db8:1::1"], both] {
        assert_chosen(&node(), &of(named), DUAL, ("eth1", both, both));
    }
    // That of a family that the cluster lacks selects nothing.
    assert_eq!(
        chosen(&node(), &of(&["2001:db8:1::1"]), V4).unwrap().name,
        "eth0"
    );
    let rows = [
        (
            of(&["203.0.113.7"]),
            V4,
            "public-ip 203.0.113.7: no interface that can carry the overlay holds that address; this node has eth0 \
             (192.0.2.1, 2001:db8::1), eth1 (198.51.100.1, 2001:db8:1::1): correct the public address, or set iface if it \
             is that of a NAT box",
        ),
        (
            of(&["192.0.2.1", "2001:db8:1::1"]),
            DUAL,
            "public-ip 192.0.2.1: it is eth0 for IPv4 and eth1 for IPv6",
        ),
        (
            of(&["192.0.2.1", "2001:db8:7::1"]),
            DUAL,
            "public-ip 192.0.2.1: eth0 holds it, and no interface holds 2001:db8:7::1",
        ),
        (
            of(&["2001:db8:7::1"]),
            V6,
            "public-ipv6 2001:db8:7::1: no interface",
        ),
        // The bridge of pods, the device of flannel's and our own.
        (
            of(&["10.244.1.1"]),
            V4,
            "public-ip 10.244.1.1: 10.244.1.1 of ",
        ),
        (
            of(&["10.244.1.0"]),
            V4,
            "public-ip 10.244.1.0: 10.244.1.0 of ",
        ),
        (of(&["203.0.113.9"]), V4, "public-ip 203.0.113.9: no"),
    ];
    for (choice, needed, part) in rows {
        let text = chosen(&node(), &choice, needed).unwrap_err().to_string();
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn behind_nat_the_public_address_is_only_published() {
    let choice = published(&["203.0.113.7"], ifaces(&["eth1"]));
    assert_chosen(
        &node(),
        &choice,
        DUAL,
        (
            "eth1",
            &["198.51.100.1", "2001:db8:1::1"],
            &["203.0.113.7", "2001:db8:1::1"],
        ),
    );
    let found = chosen(&node(), &choice, V4).unwrap();
    assert_eq!(
        found.to_string(),
        "eth1 (by iface eth1), address 198.51.100.1, published as 203.0.113.7"
    );
}

#[test]
fn the_selectors_are_tried_in_flannels_order() {
    let mut choice = UnderlayChoice {
        ifaces: vec!["eth7".to_owned(), "192.0.2.77".to_owned()],
        regexes: vec!["^wlan".to_owned(), "^eth1$".to_owned()],
        can_reach: Some(ip("192.0.2.9")),
        ..UnderlayChoice::default()
    };
    let found = chosen(&node(), &choice, V4).unwrap();
    assert_eq!(found.chosen_by, Selector::Regex("^eth1$".to_owned()));
    assert_eq!(found.name, "eth1");
    choice.ifaces.push("eth0".to_owned());
    assert_eq!(chosen(&node(), &choice, V4).unwrap().name, "eth0");
    choice.ifaces.truncate(2);
    choice.regexes.truncate(1);
    let found = chosen(&node(), &choice, V4).unwrap();
    assert_eq!(found.chosen_by, Selector::CanReach(ip("192.0.2.9")));
    choice.can_reach = Some(ip("10.244.9.9"));
    let mut node = node();
    node.routes.retain(|route| route.prefix != net("0.0.0.0/0"));
    // Public addresses are no selector beside others.
    choice = published(&["192.0.2.1"], choice);
    assert_eq!(
        chosen(&node, &choice, V4).unwrap_err().to_string(),
        "no interface can be chosen to reach other nodes: iface eth7: there is no such interface; iface 192.0.2.77: no \
         interface that can carry the overlay holds that address; iface-regex ^wlan: it matches no address and no name of \
         an interface; iface-can-reach 10.244.9.9: no route leads there; this node has eth0 (192.0.2.1, 2001:db8::1), eth1 \
         (198.51.100.1, 2001:db8:1::1): correct iface, iface-regex or iface-can-reach, or leave them out to use the default \
         route"
    );
}

#[test]
fn a_regex_is_tried_against_addresses_before_names() {
    // The name of the first, the address of the second.
    let node = nothing()
        .with("net198", &["192.0.2.1/24"])
        .with("eth1", &["198.51.100.1/24", "2001:db8::198/64"])
        .with("eth2", &["198.51.100.2/24", "2001:db8::2/64"]);
    let choice = regexes(&["198"]);
    assert_eq!(chosen(&node, &choice, V4).unwrap().name, "eth1");
    assert_eq!(
        chosen(&node, &regexes(&["net"]), V4).unwrap().name,
        "net198"
    );
    // Of a dual-stack node both addresses must match, or a name.
    let both: &[&str] = &["198.51.100.1", "2001:db8::198"];
    assert_chosen(&node, &choice, DUAL, ("eth1", both, both));
    let error = chosen(&node, &regexes(&["net198"]), DUAL).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("net198 has no usable IPv6 address"),
        "{error}"
    );
    // A name that matches without the addresses gives way to one that has them.
    let both: &[&str] = &["198.51.100.1", "2001:db8::198"];
    assert_chosen(&node, &regexes(&["^(net|eth)"]), DUAL, ("eth1", both, both));
}

#[test]
fn can_reach_takes_the_route_that_the_kernel_takes() {
    let mut node = node()
        .holding("eth1", "198.51.100.5/24", AddressFlags::Permanent)
        .routing("203.0.113.128/25", "eth0", 0)
        .routing("2001:db8:7::/48", "eth1", 5)
        .routing("2001:db8:7::/48", "eth0", 6);
    let four: &[&str] = &["198.51.100.1"];
    assert_chosen(&node, &can_reach("203.0.113.1"), V4, ("eth1", four, four));
    assert_eq!(
        chosen(&node, &can_reach("203.0.113.200"), V4).unwrap().name,
        "eth0"
    );
    assert_eq!(
        chosen(&node, &can_reach("2001:db8:7::1"), DUAL)
            .unwrap()
            .name,
        "eth1"
    );
    // The route's source address is the local one.
    let narrow = node.routes.iter_mut();
    for route in narrow.filter(|route| route.prefix == net("203.0.113.0/24")) {
        route.source = Some(ip("198.51.100.5"));
    }
    let four: &[&str] = &["198.51.100.5"];
    assert_chosen(&node, &can_reach("203.0.113.1"), V4, ("eth1", four, four));
    // A route that refuses is none.
    node.routes.push(Route {
        kind: RouteType::Unreachable,
        devices: Vec::new(),
        ..node.routes.first().unwrap().clone()
    });
    node.routes.last_mut().unwrap().prefix = net("203.0.113.1/32");
    let error = chosen(&node, &can_reach("203.0.113.1"), V4).unwrap_err();
    assert_eq!(
        error.tried,
        [(Selector::CanReach(ip("203.0.113.1")), Refusal::NoRoute)]
    );
}

#[test]
fn an_interface_without_mtu_is_refused() {
    let mut node = node();
    for link in &mut node.links {
        link.mtu = 0;
    }
    let error = chosen(&node, &UnderlayChoice::default(), V4).unwrap_err();
    assert!(
        error.to_string().contains("eth0 has an MTU of 0"),
        "{error}"
    );
}

#[test]
fn a_long_list_is_cut() {
    let node = (0..40).fold(nothing(), |node, i| {
        node.with(&format!("eth{i}"), &[&format!("192.0.2.{i}/24")])
    });
    let error = chosen(&node, &UnderlayChoice::default(), V4).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("eth9 (192.0.2.9) and 30 more"), "{text}");
    let none = chosen(&nothing(), &UnderlayChoice::default(), V4).unwrap_err();
    let text = none.to_string();
    assert!(
        text.contains("no interface with a usable address"),
        "{text}"
    );
}

fn any_picture() -> impl Strategy<Value = Picture> {
    let address = prop_oneof![
        (1_u8..=3).prop_map(|last| format!("192.0.2.{last}/24")),
        (1_u8..=3).prop_map(|last| format!("10.244.1.{last}/24")),
        (1_u8..=3).prop_map(|last| format!("2001:db8::{last}/64")),
        Just("fe80::1/64".to_owned()),
        Just("169.254.3.3/16".to_owned()),
        Just("127.0.0.1/8".to_owned()),
    ];
    let held = prop::collection::vec((0_usize..4, address, any::<u8>()), 0..12);
    let prefix = prop::sample::select(vec!["0.0.0.0/0", "::/0", "192.0.2.0/24", "192.0.2.2/32"]);
    let routes = prop::collection::vec((prefix, 0_usize..4, 0_u32..3), 0..6);
    (held, routes).prop_map(|(held, routes)| {
        let names = ["eth0", "eth1", "cni0", "tartan0"];
        let empty = names
            .iter()
            .fold(nothing(), |node, name| node.with(name, &[]));
        let with_addresses = held.iter().fold(empty, |node, (link, address, flags)| {
            let flags = AddressFlags::from_bits_retain(u32::from(*flags));
            node.holding(names[*link], address, flags)
        });
        routes
            .iter()
            .fold(with_addresses, |node, (prefix, link, metric)| {
                node.routing(prefix, names[*link], *metric)
            })
    })
}

fn any_choice() -> impl Strategy<Value = UnderlayChoice> {
    let names = prop::sample::select(vec!["eth0", "eth1", "cni0", "tartan0", "192.0.2.2", "x"]);
    let patterns = prop::sample::select(vec!["eth", "^192", "0", "tartan", "[0-9]$", "cni"]);
    (
        prop::collection::vec(names.prop_map(str::to_owned), 0..3),
        prop::collection::vec(patterns.prop_map(str::to_owned), 0..3),
        prop::option::of(prop::sample::select(vec![ip("192.0.2.2"), ip("8.8.8.8")])),
        prop::option::of(prop::sample::select(vec![
            "192.0.2.1".parse().unwrap(),
            "203.0.113.1".parse().unwrap(),
        ])),
        prop::option::of(Just("2001:db8::1".parse().unwrap())),
    )
        .prop_map(
            |(ifaces, regexes, can_reach, public_v4, public_v6)| UnderlayChoice {
                ifaces,
                regexes,
                can_reach,
                public_v4,
                public_v6,
            },
        )
}

proptest! {
    #[test]
    fn what_is_chosen_can_carry_the_overlay(
        picture in any_picture(),
        choice in any_choice(),
        needed in prop::sample::select(vec![V4, V6, DUAL]),
    ) {
        let Ok(found) = chosen(&picture, &choice, needed) else {
            return Ok(());
        };
        prop_assert_ne!(&found.name, "tartan0");
        let index = picture.index_of(&found.name);
        for family in [Family::V4, Family::V6] {
            prop_assert_eq!(found.local.of(family).is_some(), *needed.of(family));
            prop_assert_eq!(found.public.of(family).is_some(), *needed.of(family));
        }
        for local in found.local.iter() {
            let held = picture.held.iter().find(|held| {
                held.index == index && held.address.addr() == local && held.is_lasting()
            });
            prop_assert!(held.is_some_and(InterfaceAddress::is_routable));
            prop_assert!(!net("10.244.0.0/16").contains(&local));
        }
        for public in found.public.iter() {
            let named = [choice.public_v4.map(IpAddr::V4), choice.public_v6.map(IpAddr::V6)];
            prop_assert!(found.local.contains(public) || named.contains(&Some(public)));
        }
        // The same again from the same.
        prop_assert_eq!(chosen(&picture, &choice, needed).unwrap(), found);
    }
}
