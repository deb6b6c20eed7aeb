//! First set-up, compared with what iproute2 and `/proc/sys` show.

use std::time::{Duration, Instant};

use serde_json::Value;
use tartan::host::{Change, PROTOCOL};

use crate::namespace::Namespace;
use crate::{apply, dual, net, v4};

/// The routes of one family that carry our protocol, as "type dst dev src metric".
fn ours(namespace: &Namespace, family: &str) -> Vec<String> {
    let listed = namespace.list(&format!("{family} route show table all proto {PROTOCOL}"));
    let text =
        |route: &Value, key: &str, absent: &str| route[key].as_str().unwrap_or(absent).to_owned();
    let mut routes: Vec<String> = listed
        .iter()
        .map(|route| {
            assert_eq!(text(route, "table", "main"), "main");
            format!(
                "{} {} {} {} {}",
                text(route, "type", "unicast"),
                text(route, "dst", "?"),
                text(route, "dev", "-"),
                text(route, "prefsrc", "-"),
                route["metric"].as_u64().unwrap_or(0)
            )
        })
        .collect();
    routes.sort();
    routes
}

#[test]
fn an_ipv4_node_is_set_up_as_iproute2_sees_it() {
    let namespace = Namespace::with_tun();
    let changes = apply(&namespace, &v4()).unwrap();

    let link = &namespace.list("-d link show dev tartan0")[0];
    assert_eq!(link["mtu"], 1450);
    assert_eq!(link["txqlen"], 2048);
    assert_eq!(link["ifalias"], "Tartan overlay");
    assert!(link["flags"].as_array().unwrap().contains(&"UP".into()));
    let addresses = &namespace.list("address show dev tartan0")[0]["addr_info"];
    assert_eq!(addresses.as_array().unwrap().len(), 1, "{addresses}");
    assert_eq!(addresses[0]["local"], "10.244.1.0");
    assert_eq!(addresses[0]["prefixlen"], 32);
    assert_eq!(addresses[0]["scope"], "global");
    assert_eq!(
        ours(&namespace, "-4"),
        [
            "unicast 10.244.0.0/16 tartan0 10.244.1.0 0",
            "unreachable 10.244.0.0/16 - - 4294967295",
            "unreachable 10.244.1.0/24 - - 4294967294",
        ]
    );
    assert_eq!(ours(&namespace, "-6"), [] as [String; 0]);
    for (path, value) in [
        ("net/ipv4/conf/tartan0/rp_filter", "2"),
        ("net/ipv4/conf/tartan0/accept_local", "1"),
        ("net/ipv4/conf/tartan0/send_redirects", "0"),
        ("net/ipv4/conf/tartan0/accept_redirects", "0"),
        ("net/ipv4/conf/tartan0/ignore_routes_with_linkdown", "1"),
        ("net/ipv6/conf/tartan0/ignore_routes_with_linkdown", "1"),
        ("net/ipv6/conf/tartan0/accept_ra", "0"),
        ("net/ipv6/conf/tartan0/accept_redirects", "0"),
        ("net/ipv6/conf/tartan0/addr_gen_mode", "1"),
        ("net/ipv6/conf/tartan0/force_mld_version", "1"),
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv6/conf/all/forwarding", "0"),
    ] {
        assert_eq!(namespace.setting(path), value, "{path}");
    }
    for change in [
        Change::BroughtUp("tartan0".to_owned()),
        Change::AddressAdded(net("10.244.1.0/32")),
        Change::RouteAdded("10.244.0.0/16 dev tartan0 src 10.244.1.0".to_owned()),
        Change::RouteAdded("unreachable 10.244.1.0/24".to_owned()),
    ] {
        assert!(changes.contains(&change), "{change} is not in {changes:?}");
    }
    let words: Vec<String> = changes.iter().map(Change::to_string).collect();
    assert!(
        words.contains(&"set net.ipv4.ip_forward from 0 to 1".to_owned()),
        "{words:?}"
    );
}

#[test]
fn a_dual_stack_node_has_both_families_and_keeps_its_router() {
    let namespace = Namespace::with_tun();
    namespace.ip("-6 address add 2001:db8::1/64 dev eth0 nodad");
    namespace.ip("-6 route add default via 2001:db8::ff dev eth0");
    apply(&namespace, &dual()).unwrap();

    assert_eq!(
        ours(&namespace, "-6"),
        [
            "unicast fd00:244::/48 tartan0 fd00:244:0:1:: 1024",
            "unreachable fd00:244:0:1::/64 lo - 4294967294",
            "unreachable fd00:244::/48 lo - 4294967295",
        ]
    );
    let addresses = &namespace.list("-6 address show dev tartan0")[0]["addr_info"];
    assert_eq!(addresses.as_array().unwrap().len(), 1, "{addresses}");
    assert_eq!(addresses[0]["local"], "fd00:244:0:1::");
    assert_eq!(addresses[0]["prefixlen"], 128);
    assert!(addresses[0]["tentative"].is_null(), "{addresses}");
    for (path, value) in [
        ("net/ipv6/conf/all/forwarding", "1"),
        // The uplink goes on listening to its router, no other interface starts to.
        ("net/ipv6/conf/eth0/accept_ra", "2"),
        ("net/ipv6/conf/wire0/accept_ra", "1"),
        ("net/ipv6/conf/default/accept_ra", "1"),
        ("net/ipv6/conf/tartan0/accept_ra", "0"),
    ] {
        assert_eq!(namespace.setting(path), value, "{path}");
    }
    assert_eq!(apply(&namespace, &dual()).unwrap(), []);
}

/// A node whose only way out was learned from a router: the kernel forgets it where an uplink that starts to forward
/// does not listen to routers any more.
#[test]
fn a_default_route_learned_from_a_router_outlives_forwarding() {
    let namespace = Namespace::with_tun();
    namespace.ip("-6 address add fe80::1/64 dev eth0 nodad");
    namespace.ip("-6 address add fe80::ff/64 dev wire0 nodad");
    let learned = || namespace.ip("-6 route show default proto ra dev eth0");
    let until = Instant::now() + Duration::from_secs(10);
    while learned().is_empty() {
        assert!(Instant::now() < until, "no route is learned");
        namespace.advertise("wire0");
        std::thread::sleep(Duration::from_millis(50));
    }
    let before = learned();
    assert!(before.contains("via fe80::ff"), "{before}");
    apply(&namespace, &dual()).unwrap();
    assert_eq!(namespace.setting("net/ipv6/conf/all/forwarding"), "1");
    assert_eq!(namespace.setting("net/ipv6/conf/eth0/accept_ra"), "2");
    assert!(learned().contains("via fe80::ff"), "{}", learned());

    // It goes on being learned: a removed route comes back with the router's next advertisement.
    namespace.ip("-6 route delete default dev eth0");
    assert_eq!(learned(), "");
    namespace.advertise("wire0");
    let until = Instant::now() + Duration::from_secs(10);
    while learned().is_empty() {
        assert!(Instant::now() < until, "no route is learned any more");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_device_that_came_up_by_itself_loses_its_link_local_address() {
    let namespace = Namespace::with_tun();
    namespace.ip("link set tartan0 up");
    namespace.ip("-6 address add fe80::7/64 dev tartan0 nodad");
    apply(&namespace, &dual()).unwrap();
    let shown = namespace.ip("-6 address show dev tartan0");
    assert!(!shown.contains("fe80"), "{shown}");
}

/// The groups that the kernel announces on the device are those of IPv6 routers.
#[test]
fn the_kernel_says_nothing_to_groups_on_the_device() {
    for forwards_already in [false, true] {
        let namespace = Namespace::new();
        if forwards_already {
            // The device joins as it is made.
            namespace.set("net/ipv6/conf/all/forwarding", "1");
        }
        namespace.ip("tuntap add tartan0 mode tun");
        apply(&namespace, &dual()).unwrap();
        let link = &namespace.list("link show dev tartan0")[0];
        let flags = link["flags"].as_array().unwrap();
        assert!(!flags.contains(&"MULTICAST".into()), "{link}");
        let groups = namespace.ip("-6 maddress show dev tartan0");
        assert!(groups.contains("ff02::1\n"), "{groups}");
        for routers in ["ff01::2", "ff02::2", "ff05::2"] {
            assert!(!groups.contains(routers), "{groups}");
        }
        let forwarding = namespace.setting("net/ipv6/conf/tartan0/forwarding");
        assert_eq!(forwarding, "1");
    }
}

#[test]
fn the_kernel_then_routes_as_intended() {
    let namespace = Namespace::with_tun();
    namespace.ip("route add default via 192.0.2.254 dev eth0");
    // A queue attached gives the device its carrier.
    let held = namespace.hold("tartan0");
    apply(&namespace, &v4()).unwrap();
    let remote = namespace.ip("route get 10.244.2.5");
    assert!(remote.contains("dev tartan0 src 10.244.1.0"), "{remote}");
    let unused = namespace.ip_fails("route get 10.244.1.77");
    assert!(unused.contains("No route to host"), "{unused}");

    drop(held);
    namespace.until("ip link show tartan0", "NO-CARRIER");
    namespace.until("ip route", "dead linkdown");
    let unserved = namespace.ip_fails("route get 10.244.2.5");
    assert!(unserved.contains("No route to host"), "{unserved}");

    namespace.ip("link delete tartan0");
    let leak = namespace.ip_fails("route get 10.244.2.5");
    assert!(leak.contains("No route to host"), "{leak}");

    // A pod's own route wins over the refusal of its subnet.
    namespace.ip("route add 10.244.1.7/32 dev eth0");
    let pod = namespace.ip("route get 10.244.1.7");
    assert!(pod.contains("dev eth0"), "{pod}");
}
