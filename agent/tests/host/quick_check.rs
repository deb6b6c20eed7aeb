//! The quick check finds what no watch reports, and finds nothing where nothing differs.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use tartan::host::Host;
use tartan::host::HostState;

use crate::dual;
use crate::namespace::Namespace;

/// Applies until the quick check passes: rules are read again some time after they were written.
async fn settle(host: &mut Host, desired: &HostState) {
    let started = Instant::now();
    loop {
        host.apply(desired).await.unwrap();
        let (_, refused) = host.apply_firewall_and_subnet_env(desired).await;
        assert!(refused.is_none(), "{refused:?}");
        if host.passes_quick_check(desired).await {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "never at rest");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn the_quick_check_finds_what_is_not_announced() {
    let namespace = Namespace::with_tun();
    let state = namespace.state_dir();
    let file = namespace.root().join("run/flannel/subnet.env");
    let desired = HostState {
        subnet_file: file.clone(),
        ..dual()
    };
    let settings = [
        ("net/ipv4/conf/tartan0/rp_filter", "1"),
        ("net/ipv4/conf/tartan0/accept_local", "0"),
        ("net/ipv4/conf/tartan0/send_redirects", "1"),
        ("net/ipv4/conf/tartan0/accept_redirects", "1"),
        ("net/ipv4/conf/tartan0/ignore_routes_with_linkdown", "0"),
        ("net/ipv6/conf/tartan0/ignore_routes_with_linkdown", "0"),
        ("net/ipv6/conf/tartan0/force_mld_version", "0"),
        ("net/ipv6/conf/tartan0/accept_ra", "1"),
        ("net/ipv6/conf/tartan0/accept_redirects", "1"),
        ("net/ipv6/conf/tartan0/addr_gen_mode", "0"),
    ];
    let remove = |path: &Path| fs::remove_file(path).unwrap();
    let cut = |path: &Path| fs::write(path, "FLANNEL_MTU=9\n").unwrap();
    namespace.inside(|| async {
        let mut host = Host::open(&state).await.unwrap();
        assert!(
            !host.passes_quick_check(&desired).await,
            "nothing is set up yet"
        );
        settle(&mut host, &desired).await;
        for (path, value) in settings {
            namespace.set(path, value);
            assert!(!host.passes_quick_check(&desired).await, "{path}");
            settle(&mut host, &desired).await;
            assert_ne!(namespace.setting(path), value, "{path}");
        }
        for harm in [remove, cut] {
            harm(&file);
            assert!(!host.passes_quick_check(&desired).await);
            settle(&mut host, &desired).await;
            assert_eq!(
                fs::read_to_string(&file).unwrap(),
                desired.subnet_env.to_string()
            );
        }
    });
}

#[test]
fn the_quick_check_finds_an_uplink_that_would_forget_its_router() {
    let namespace = Namespace::with_tun();
    let state = namespace.state_dir();
    let desired = HostState {
        subnet_file: namespace.root().join("run/flannel/subnet.env"),
        ..dual()
    };
    let accept_ra = "net/ipv6/conf/eth0/accept_ra";
    namespace.ip("-6 route add default dev eth0");
    namespace.inside(|| async {
        let mut host = Host::open(&state).await.unwrap();
        settle(&mut host, &desired).await;
        assert_eq!(namespace.setting(accept_ra), "2");
        namespace.set(accept_ra, "1");
        assert!(!host.passes_quick_check(&desired).await);
        settle(&mut host, &desired).await;
        assert_eq!(namespace.setting(accept_ra), "2");
        // Switched off by the administrator: it stays off.
        namespace.set(accept_ra, "0");
        assert!(host.passes_quick_check(&desired).await);
    });
}
