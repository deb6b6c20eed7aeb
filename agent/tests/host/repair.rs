//! What another process removes or changes is put back and reported.

use tartan::host::{Change, Host};

use crate::namespace::Namespace;
use crate::text;
use crate::{apply, dual, net, nets, v4};

#[test]
fn a_second_call_changes_nothing() {
    let namespace = Namespace::with_tun();
    apply(&namespace, &dual()).unwrap();
    let before = namespace.census();
    assert_eq!(apply(&namespace, &dual()).unwrap(), []);
    namespace.census().must_be(&before, "after a second call");
}

#[test]
fn each_thing_taken_away_is_put_back() {
    let namespace = Namespace::with_tun();
    apply(&namespace, &dual()).unwrap();
    let whole = namespace.census();
    for (damage, repairs) in [
        (
            // The route goes with its source address.
            "address delete 10.244.1.0/32 dev tartan0",
            &[
                "added the address 10.244.1.0/32",
                "added the route 10.244.0.0/16 dev tartan0 src 10.244.1.0",
            ][..],
        ),
        (
            "-6 address delete fd00:244:0:1::/128 dev tartan0",
            &["added the address fd00:244:0:1::/128"],
        ),
        (
            "route delete 10.244.0.0/16 dev tartan0",
            &["added the route 10.244.0.0/16 dev tartan0 src 10.244.1.0"],
        ),
        (
            "-6 route delete fd00:244::/48 dev tartan0",
            &["added the route fd00:244::/48 dev tartan0 src fd00:244:0:1:: mtu 1430"],
        ),
        (
            "route replace 10.244.0.0/16 dev tartan0",
            &["replaced the route 10.244.0.0/16 dev tartan0 src 10.244.1.0"],
        ),
        (
            "route delete unreachable 10.244.1.0/24 metric 4294967294",
            &["added the route unreachable 10.244.1.0/24"],
        ),
        (
            "route replace blackhole 10.244.0.0/16 metric 4294967295",
            &["replaced the route unreachable 10.244.0.0/16"],
        ),
        (
            "-6 route change fd00:244::/48 dev tartan0 src fd00:244:0:1:: proto 116 metric 1024 mtu 1300",
            &["replaced the route fd00:244::/48 dev tartan0 src fd00:244:0:1:: mtu 1430"],
        ),
        (
            "-6 route delete unreachable fd00:244::/48 metric 4294967295",
            &["added the route unreachable fd00:244::/48"],
        ),
        (
            "link set tartan0 mtu 1300",
            // The kernel lowers the MTU of the device's IPv6 routes, too.
            &[
                "set the MTU of tartan0 from 1300 to 1450",
                "replaced the route fd00:244::/48 dev tartan0 src fd00:244:0:1:: mtu 1430",
            ],
        ),
        (
            "link set tartan0 txqueuelen 500",
            &["set the queue length of tartan0 from 500 to 2048 packets"],
        ),
        (
            // Routes go with the link, and so do IPv6 addresses.
            "link set tartan0 down",
            &[
                "brought tartan0 up",
                "added the address fd00:244:0:1::/128",
                "added the route 10.244.0.0/16 dev tartan0 src 10.244.1.0",
                "added the route fd00:244::/48 dev tartan0 src fd00:244:0:1:: mtu 1430",
            ],
        ),
        (
            "address add 10.244.99.1/24 dev tartan0",
            &["removed the address 10.244.99.1/24"],
        ),
        (
            "link set tartan0 multicast on",
            &["disabled multicast on tartan0"],
        ),
        (
            "link set tartan0 alias other",
            &["set the alias of tartan0"],
        ),
    ] {
        namespace.ip(damage);
        assert_ne!(namespace.census(), whole, "`ip {damage}` did nothing");
        let changes = apply(&namespace, &dual()).unwrap();
        let words: Vec<String> = changes.iter().map(Change::to_string).collect();
        for repair in repairs {
            assert!(
                words.contains(&(*repair).to_owned()),
                "`ip {damage}`: {words:?}"
            );
        }
        namespace
            .census()
            .must_be(&whole, &format!("`ip {damage}` and its repair"));
    }
}

#[test]
fn each_setting_flipped_is_put_back() {
    let namespace = Namespace::with_tun();
    namespace.ip("-6 address add 2001:db8::1/64 dev eth0 nodad");
    namespace.ip("-6 route add default via 2001:db8::ff dev eth0");
    apply(&namespace, &dual()).unwrap();
    for (path, wrong, name) in [
        (
            "net/ipv4/conf/tartan0/rp_filter",
            "1",
            "net.ipv4.conf.tartan0.rp_filter",
        ),
        (
            "net/ipv4/conf/tartan0/accept_local",
            "0",
            "net.ipv4.conf.tartan0.accept_local",
        ),
        (
            "net/ipv4/conf/tartan0/send_redirects",
            "1",
            "net.ipv4.conf.tartan0.send_redirects",
        ),
        (
            "net/ipv6/conf/tartan0/accept_ra",
            "1",
            "net.ipv6.conf.tartan0.accept_ra",
        ),
        (
            "net/ipv6/conf/tartan0/addr_gen_mode",
            "0",
            "net.ipv6.conf.tartan0.addr_gen_mode",
        ),
        ("net/ipv4/ip_forward", "0", "net.ipv4.ip_forward"),
        (
            "net/ipv6/conf/all/forwarding",
            "0",
            "net.ipv6.conf.all.forwarding",
        ),
        (
            "net/ipv6/conf/eth0/accept_ra",
            "1",
            "net.ipv6.conf.eth0.accept_ra",
        ),
    ] {
        let right = namespace.setting(path);
        namespace.set(path, wrong);
        let changes = apply(&namespace, &dual()).unwrap();
        let words: Vec<String> = changes.iter().map(Change::to_string).collect();
        assert!(
            words.contains(&format!("set {name} from {wrong} to {right}")),
            "{words:?}"
        );
        assert_eq!(namespace.setting(path), right, "{path}");
        assert_eq!(apply(&namespace, &dual()).unwrap(), [], "after {path}");
    }
}

#[test]
fn another_subnet_moves_address_and_routes() {
    let namespace = Namespace::with_tun();
    let _held = namespace.hold("tartan0");
    apply(&namespace, &v4()).unwrap();
    let mut moved = v4();
    moved.addresses = nets(&["10.244.7.0/32"]);
    moved.unreachable = nets(&["10.244.7.0/24"]);
    moved.mtu = 1400;
    let changes = apply(&namespace, &moved).unwrap();
    for change in [
        Change::AddressAdded(net("10.244.7.0/32")),
        Change::AddressRemoved(net("10.244.1.0/32")),
        Change::RouteAdded("unreachable 10.244.7.0/24".to_owned()),
        Change::RouteReplaced("10.244.0.0/16 dev tartan0 src 10.244.7.0".to_owned()),
        Change::RouteRemoved("unreachable 10.244.1.0/24 metric 4294967294".to_owned()),
    ] {
        assert!(changes.contains(&change), "{change} is not in {changes:?}");
    }
    assert_eq!(apply(&namespace, &moved).unwrap(), []);
    let route = namespace.ip("route get 10.244.2.5");
    assert!(route.contains("src 10.244.7.0"), "{route}");
}

#[test]
fn what_is_not_ours_is_left_alone() {
    let namespace = Namespace::with_tun();
    let _held = namespace.hold("tartan0");
    // As Tartan has it, or the kernel would give the device an address of its own.
    namespace.ip("link set tartan0 addrgenmode none");
    namespace.ip("link set tartan0 up");
    namespace.ip("address add 172.31.0.1/24 dev tartan0");
    // A pod's route of a program that picked the same protocol number.
    namespace.ip("route add 10.244.1.7/32 dev eth0 proto 116");
    namespace.ip("route add unreachable 10.66.0.0/16 metric 7");
    namespace.ip("route add 10.244.0.0/16 dev eth0 metric 500");
    let before = namespace.census();
    apply(&namespace, &v4()).unwrap();
    let after = namespace.census();
    let lost: Vec<_> = before
        .lost(&after)
        .into_iter()
        .filter(|line| line.starts_with("route") || line.starts_with("address"))
        .collect();
    assert!(lost.is_empty(), "{lost:?}");
}

#[test]
fn a_device_recreated_after_a_crash_is_set_up_again() {
    let namespace = Namespace::with_tun();
    apply(&namespace, &v4()).unwrap();
    let whole: Vec<String> = namespace
        .ip("route show")
        .lines()
        .map(String::from)
        .collect();
    namespace.ip("link delete tartan0");
    namespace.ip("tuntap add tartan0 mode tun");
    apply(&namespace, &v4()).unwrap();
    let again: Vec<String> = namespace
        .ip("route show")
        .lines()
        .map(String::from)
        .collect();
    assert_eq!(again, whole);
}

#[test]
fn changes_of_a_call_that_failed_are_told_by_the_next() {
    let namespace = Namespace::with_tun();
    let state = namespace.state_dir();
    // No interface can hold a multicast address; the one before it is there by then.
    let mut refused = dual();
    refused.addresses = nets(&["10.244.1.0/32", "ff02::5/128"]);
    let changes = namespace.inside(|| async {
        let mut host = Host::open(&state).await.unwrap();
        let error = text(&host.apply(&refused).await.unwrap_err());
        assert!(error.contains("ff02::5"), "{error}");
        host.apply(&dual()).await.unwrap()
    });
    assert!(
        changes.contains(&Change::AddressAdded(net("10.244.1.0/32"))),
        "{changes:?}"
    );
}

#[test]
fn forwarding_is_set_up_while_the_state_directory_cannot_be_written() {
    let namespace = Namespace::with_tun();
    let state = namespace.state_dir();
    std::fs::create_dir_all(state.parent().unwrap()).unwrap();
    std::fs::write(&state, "in the way").unwrap();
    namespace.inside(|| async {
        let mut host = Host::open(&state).await.unwrap();
        host.apply(&v4()).await.unwrap();
        let problem = text(host.record_problem().unwrap());
        assert!(
            problem.contains("host.json") && problem.contains("writable"),
            "{problem}"
        );
        assert_eq!(namespace.setting("net/ipv4/ip_forward"), "1");
        std::fs::remove_file(&state).unwrap();
        assert_eq!(host.apply(&v4()).await.unwrap(), []);
        assert!(host.record_problem().is_none());
    });
    let record = std::fs::read_to_string(state.join("host.json")).unwrap();
    assert!(record.contains("net/ipv4/ip_forward"), "{record}");
}

#[test]
fn while_only_adding_nothing_is_withdrawn() {
    let namespace = Namespace::with_tun();
    let state = namespace.state_dir();
    apply(&namespace, &v4()).unwrap();
    let before = namespace.census();
    let mut moved = v4();
    moved.addresses = nets(&["10.244.7.0/32"]);
    moved.unreachable = nets(&["10.244.7.0/24"]);
    namespace.inside(|| async {
        let mut host = Host::open(&state).await.unwrap();
        host.set_add_only(true);
        let changes = host.apply(&moved).await.unwrap();
        assert!(
            changes.contains(&Change::AddressAdded(net("10.244.7.0/32"))),
            "{changes:?}"
        );
        let now = namespace.census();
        // The cluster route names the new source; that is no withdrawal.
        let lost: Vec<_> = before
            .lost(&now)
            .into_iter()
            .filter(|line| !line.contains("10.244.0.0/16"))
            .collect();
        assert!(lost.is_empty(), "{lost:?}");
        assert_eq!(host.apply(&moved).await.unwrap(), []);
        host.set_add_only(false);
        let changes = host.apply(&moved).await.unwrap();
        for change in [
            Change::AddressRemoved(net("10.244.1.0/32")),
            Change::RouteRemoved("unreachable 10.244.1.0/24 metric 4294967294".to_owned()),
        ] {
            assert!(changes.contains(&change), "{change} is not in {changes:?}");
        }
    });
}
