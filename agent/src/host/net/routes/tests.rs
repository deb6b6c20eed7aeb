use proptest::prelude::*;

use super::*;

const OURS: u32 = 3;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn wants() -> Vec<WantedRoute> {
    wanted(
        &[net("10.244.0.0/16"), net("fd00:244::/48")],
        &[net("10.244.1.0/24"), net("fd00:244:0:1::/64")],
        &[net("10.244.1.0/32"), net("fd00:244:0:1::/128")],
        PerFamily {
            v4: None,
            v6: Some(1430),
        },
    )
}

/// The route the kernel would list after adding `wanted`.
fn made(wanted: &WantedRoute) -> Route {
    let (kind, devices, source, mtu) = match wanted.target {
        Target::Unreachable => (RouteType::Unreachable, vec![], None, None),
        Target::Device { source, mtu } => (RouteType::Unicast, vec![OURS], source, mtu),
    };
    Route {
        prefix: wanted.prefix,
        kind,
        protocol: PROTOCOL,
        table: MAIN,
        metric: wanted.metric,
        devices,
        gateway: None,
        source,
        mtu: mtu.map(u32::from),
        narrowed: false,
    }
}

fn foreign(prefix: &str, metric: u32, device: u32) -> Route {
    Route {
        prefix: net(prefix),
        kind: RouteType::Unicast,
        protocol: 3,
        table: MAIN,
        metric,
        devices: vec![device],
        gateway: None,
        source: None,
        mtu: None,
        narrowed: false,
    }
}

/// Linux lists a path MTU that it learned as a route to the destination, with the protocol of the route it belongs to.
#[test]
fn what_the_kernel_learned_of_a_path_is_no_route() {
    let mut learned = message(&wants()[5], OURS);
    assert!(parse(&learned).unwrap().is_ours(Some(OURS)));
    learned.header.flags |= RouteFlags::Cloned;
    assert_eq!(parse(&learned), None);
}

/// What the kernel's tables become.
fn carry_out(mut now: Vec<Route>, steps: &[RouteStep]) -> Vec<Route> {
    for step in steps {
        match step {
            RouteStep::Add(route) => now.push(made(route)),
            RouteStep::Replace(route) => {
                let place = now.iter().position(|found| occupies(found, route)).unwrap();
                now[place] = made(route);
            }
            RouteStep::Remove(route) => now.retain(|found| found != route),
        }
    }
    now
}

#[test]
fn refusals_come_first_and_each_family_has_its_own_source() {
    let routes = wants();
    let devices: Vec<&WantedRoute> = routes
        .iter()
        .filter(|route| matches!(route.target, Target::Device { .. }))
        .collect();
    assert_eq!(routes.len(), 6);
    assert!(
        routes[..4]
            .iter()
            .all(|route| route.target == Target::Unreachable)
    );
    assert_eq!(
        devices[0].target,
        Target::Device {
            source: Some("10.244.1.0".parse().unwrap()),
            mtu: None
        }
    );
    assert_eq!((devices[0].metric, devices[1].metric), (0, 1024));
    assert_eq!(
        devices[1].target,
        Target::Device {
            source: Some("fd00:244:0:1::".parse().unwrap()),
            mtu: Some(1430)
        }
    );
}

#[test]
fn an_empty_table_gets_everything_and_a_full_one_nothing() {
    let wanted = wants();
    let steps = plan(&[], &wanted, OURS);
    assert_eq!(
        steps,
        wanted
            .iter()
            .cloned()
            .map(RouteStep::Add)
            .collect::<Vec<_>>()
    );
    assert_eq!(plan(&carry_out(vec![], &steps), &wanted, OURS), []);
}

#[test]
fn a_route_that_lost_its_source_is_replaced_one_no_longer_wanted_removed() {
    let wanted = wants();
    let mut now: Vec<Route> = wanted.iter().map(made).collect();
    let stale = Route {
        prefix: net("10.99.0.0/16"),
        ..now[4].clone()
    };
    now[4].source = None;
    now.push(stale.clone());
    let steps = plan(&now, &wanted, OURS);
    assert_eq!(
        steps,
        [
            RouteStep::Replace(wanted[4].clone()),
            RouteStep::Remove(stale)
        ]
    );
}

#[test]
fn a_pods_route_with_our_number_is_not_ours() {
    let pod = Route {
        protocol: PROTOCOL,
        ..foreign("10.244.1.7/32", 0, 9)
    };
    assert!(!pod.is_ours(Some(OURS)));
    assert!(!pod.is_ours(None));
    assert_eq!(plan(&[pod], &[], OURS), []);
}

#[test]
fn another_holder_of_the_cluster_network_is_seen() {
    let wanted = wants();
    let flannel = foreign("10.244.0.0/16", 0, 8);
    assert_eq!(
        conflict(std::slice::from_ref(&flannel), &wanted, OURS),
        Some(&flannel)
    );
    let worse = foreign("10.244.0.0/16", 100, 8);
    let on_ours = foreign("10.244.0.0/16", 0, OURS);
    let elsewhere = Route {
        table: 100,
        ..flannel.clone()
    };
    let narrow = foreign("10.244.2.0/24", 0, 8);
    let six = foreign("fd00:244::/48", 1024, 8);
    assert_eq!(
        conflict(&[worse, on_ours, elsewhere, narrow], &wanted, OURS),
        None
    );
    assert_eq!(
        conflict(std::slice::from_ref(&six), &wanted, OURS),
        Some(&six)
    );
    let black_hole = Route {
        kind: RouteType::BlackHole,
        devices: vec![],
        ..flannel
    };
    assert!(conflict(&[black_hole], &wanted, OURS).is_some());
}

#[test]
fn a_network_of_one_node_keeps_all_three_routes() {
    let whole = [net("10.244.0.0/16")];
    let routes = wanted(&whole, &whole, &[], PerFamily::default());
    assert_eq!(routes.len(), 3);
    assert_eq!(
        routes[2].target,
        Target::Device {
            source: None,
            mtu: None
        }
    );
}

fn any_route() -> impl Strategy<Value = Route> {
    let prefixes = prop::sample::select(vec![
        "10.244.0.0/16",
        "10.244.1.0/24",
        "10.244.2.0/24",
        "fd00:244::/48",
        "0.0.0.0/0",
    ]);
    let metrics = prop::sample::select(vec![0, 1, 1024, u32::MAX - 1, u32::MAX]);
    let kinds = prop::sample::select(vec![RouteType::Unicast, RouteType::Unreachable]);
    let numbers = prop::sample::select(vec![2, 3, PROTOCOL]);
    let tables = prop::sample::select(vec![MAIN, LOCAL, 100]);
    let details = (0_u32..5, any::<bool>());
    (prefixes, metrics, kinds, numbers, tables, details).prop_map(
        |(prefix, metric, kind, protocol, table, (device, narrowed))| Route {
            kind,
            protocol,
            table,
            narrowed,
            ..foreign(prefix, metric, device)
        },
    )
}

proptest! {
    /// Whatever the tables hold: carried out, the steps satisfy every wish, a
    /// second plan is empty, and nothing is removed but what is ours.
    #[test]
    fn a_plan_reaches_its_end(mut now in prop::collection::vec(any_route(), 0..12)) {
        // The kernel keeps one route per table, prefix, metric and width.
        let mut seen = Vec::new();
        now.retain(|route| {
            let key = (route.table, route.prefix, route.metric, route.narrowed);
            let new = !seen.contains(&key);
            seen.push(key);
            new
        });
        let wanted = wants();
        prop_assume!(conflict(&now, &wanted, OURS).is_none());
        let steps = plan(&now, &wanted, OURS);
        for step in &steps {
            if let RouteStep::Remove(route) = step {
                prop_assert!(route.is_ours(Some(OURS)));
            }
        }
        let after = carry_out(now, &steps);
        for route in &wanted {
            prop_assert!(after.iter().any(|found| satisfies(found, route, OURS) && occupies(found, route)));
        }
        prop_assert_eq!(plan(&after, &wanted, OURS), vec![]);
    }
}
