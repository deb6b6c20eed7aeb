//! Network interfaces, routes, rules of the routing policy and BPF programs, over rtnetlink.

use std::fs;
use std::path::Path;

use futures_util::TryStreamExt;
use ipnet::IpNet;
use netlink_packet_route::route::{RouteProtocol, RouteType};
use netlink_packet_route::rule::{RuleAttribute, RuleFlags, RuleMessage};
use rtnetlink::{Handle, IpVersion};
use rustix::io::Errno;

use super::catalogue::{Catalogue, Device, Name, PolicyRule, RouteForm, matching, reason};
use super::in_use::{BRIDGE, InUse};
use super::{Leftover, LeftoverKind, Leftovers, Thing};
use crate::host::error::{HostError, errno};
use crate::host::flanneld::process_named;
use crate::host::kernel_path;
use crate::host::kernel_path::filters::{self, Direction, ForeignFilter, Hook};
use crate::host::net::links::{self, Link, LinkKind};
use crate::host::net::routes::{self, Route, type_name};

/// A thing of the kernel's that rtnetlink lists.
#[derive(Debug)]
pub(super) enum InKernel {
    Device(Link),
    Route(Route),
    Rule(RuleMessage),
    Filter(ForeignFilter),
}

pub(super) async fn find(
    catalogue: &Catalogue,
    root: &Path,
    in_use: &InUse,
    handle: &Handle,
    list: &mut Leftovers,
) {
    let links: Vec<Link> = match links::messages(handle).await {
        Ok(messages) => messages.iter().map(links::parse).collect(),
        Err(error) => return list.unread.push(("devices and routes", error.into())),
    };
    let known = |link: &Link| catalogue.devices.iter().find(|device| is_of(device, link));
    let going: Vec<u32> = links
        .iter()
        .filter(|link| known(link).is_some())
        .map(|link| link.index)
        .collect();
    let devices = links.iter().filter_map(|link| {
        let form = known(link)?;
        Some(of_device(form, link, &links, in_use))
    });
    list.found.extend(devices);
    list.add(
        "BPF programs at devices",
        find_filters(catalogue, handle, &links, &going)
            .await
            .map_err(Into::into),
    );
    list.add(
        "rules of the routing policy",
        find_rules(catalogue, handle).await.map_err(Into::into),
    );
    let networks = networks(root);
    let listed = routes::list(handle).await.map_err(Into::into);
    list.add(
        "routes",
        listed.map(|listed| find_routes(catalogue, &listed, &links, &going, &networks)),
    );
}

/// A device of that name and kind that is not Tartan's.
fn is_of(device: &Device, link: &Link) -> bool {
    let kind = match &link.kind {
        LinkKind::Loopback => return false,
        LinkKind::Tun => "tun",
        LinkKind::Tap => "tap",
        LinkKind::Other(kind) => kind,
    };
    let is_ours = link.is_ours()
        || kernel_path::is_our_device(link)
        || link.alias.starts_with(cni_shim::pod_end::ALIAS);
    device.name.matches(&link.name)
        && (device.kinds.is_empty() || device.kinds.contains(&kind))
        && !is_ours
}

fn of_device(form: &Device, link: &Link, links: &[Link], in_use: &InUse) -> Leftover {
    let ports = links
        .iter()
        .filter(|port| port.master == Some(link.index))
        .count();
    let mut effect = "the device goes with its addresses and routes".to_owned();
    if ports > 0 {
        effect.push_str(&format!("; the pods at its {ports} port(s) are cut off"));
    }
    if link.leads_elsewhere {
        effect.push_str("; the pod at its other end is cut off");
    }
    let kind = match &link.kind {
        LinkKind::Other(kind) => kind.as_str(),
        _ => "",
    };
    // The bridge of flannel's plugin is that of its pods beside Tartan as well, and of other plugins by that name.
    let serves = ports > 0 && kind == "bridge" && link.name == BRIDGE;
    let kept = if in_use.takes_place && kind == "vxlan" && is_of_place(&link.name, &in_use.device) {
        Some("Tartan takes it over with its MAC (replace-flannel)".to_owned())
    } else {
        serves.then(|| format!("{ports} pod(s) are attached to it"))
    };
    Leftover {
        kind: LeftoverKind::Device,
        place: link.name.clone(),
        why: reason(&format!("a {kind} device named"), form.name, form.source),
        effect,
        rules: Vec::new(),
        kept,
        thing: Thing::InKernel(Box::new(InKernel::Device(link.clone()))),
    }
}

/// The device of flannel's whose name Tartan has, or its sibling for IPv6.
fn is_of_place(name: &str, device: &str) -> bool {
    let sibling = device
        .strip_prefix("flannel.")
        .map(|vni| format!("flannel-v6.{vni}"));
    name == device || sibling.is_some_and(|sibling| name == sibling)
}

/// Those at devices of others: with a device of the CNI's they go anyway.
async fn find_filters(
    catalogue: &Catalogue,
    handle: &Handle,
    links: &[Link],
    going: &[u32],
) -> Result<Vec<Leftover>, HostError> {
    let mut found = Vec::new();
    if catalogue.filters.is_empty() {
        return Ok(found);
    }
    for link in links.iter().filter(|link| !going.contains(&link.index)) {
        for (direction, word) in [
            (Direction::Ingress, "ingress"),
            (Direction::Egress, "egress"),
        ] {
            let hook = Hook {
                index: link.index,
                device: link.name.clone(),
                direction,
            };
            for filter in filters::programs(handle, &hook).await? {
                let Some(named) = matching(catalogue.filters, &filter.name) else {
                    continue;
                };
                found.push(Leftover {
                    kind: LeftoverKind::BpfFilter,
                    place: format!("{} {word} {}", link.name, filter.name),
                    why: reason("the name", named.name, named.source),
                    effect: "the program no longer sees packets of that device".to_owned(),
                    rules: Vec::new(),
                    kept: None,
                    thing: Thing::InKernel(Box::new(InKernel::Filter(filter))),
                });
            }
        }
    }
    Ok(found)
}

async fn find_rules(catalogue: &Catalogue, handle: &Handle) -> Result<Vec<Leftover>, HostError> {
    let mut found = Vec::new();
    for version in [IpVersion::V4, IpVersion::V6] {
        if catalogue.rules.is_empty() {
            break;
        }
        let listed: Vec<RuleMessage> = handle
            .rule()
            .get(version)
            .execute()
            .try_collect()
            .await
            .map_err(|source| {
                HostError::netlink("list", "the rules of the routing policy", source)
            })?;
        for rule in listed {
            if let Some(form) = catalogue.rules.iter().find(|form| is_rule(form, &rule)) {
                found.push(of_rule(form, rule));
            }
        }
    }
    Ok(found)
}

fn of_rule(form: &PolicyRule, rule: RuleMessage) -> Leftover {
    let family = match rule.header.family {
        netlink_packet_route::AddressFamily::Inet6 => "IPv6",
        _ => "IPv4",
    };
    let table = table_of(&rule);
    Leftover {
        kind: LeftoverKind::Rule,
        place: format!("{family} priority {} lookup {table}", form.priority),
        why: reason("the mark and the priority", form.priority, form.source),
        effect: "packets with that mark take the route of all others".to_owned(),
        rules: Vec::new(),
        kept: None,
        thing: Thing::InKernel(Box::new(InKernel::Rule(rule))),
    }
}

fn table_of(rule: &RuleMessage) -> u32 {
    let named = rule
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RuleAttribute::Table(table) => Some(*table),
            _ => None,
        });
    named.unwrap_or(u32::from(rule.header.table))
}

fn is_rule(form: &PolicyRule, rule: &RuleMessage) -> bool {
    let has = |wanted: &RuleAttribute| rule.attributes.contains(wanted);
    let is_marked = rule
        .attributes
        .iter()
        .any(|attribute| matches!(attribute, RuleAttribute::FwMark(mark) if *mark != 0));
    let table = table_of(rule);
    has(&RuleAttribute::Priority(form.priority))
        && is_marked
        && rule.header.flags.contains(RuleFlags::Invert) == form.inverted
        && form
            .table
            .map_or((1..=250).contains(&table), |wanted| wanted == table)
}

fn find_routes(
    catalogue: &Catalogue,
    listed: &[Route],
    links: &[Link],
    going: &[u32],
    networks: &[IpNet],
) -> Vec<Leftover> {
    let found = listed.iter().filter_map(|route| {
        // It goes with its device.
        if !route.devices.is_empty() && route.devices.iter().all(|device| going.contains(device)) {
            return None;
        }
        let form = catalogue
            .routes
            .iter()
            .find(|form| is_route(form, route, links, networks))?;
        Some(of_route(form, route, links))
    });
    found.collect()
}

fn is_route(form: &RouteForm, route: &Route, links: &[Link], networks: &[IpNet]) -> bool {
    match form {
        RouteForm::Protocol(number, _) => route.protocol == *number && route.table == routes::MAIN,
        RouteForm::ProtocolOf(number, ..) => {
            route.protocol == *number
                && route.table == routes::MAIN
                && (is_block(route) || is_through_calico(route, links))
        }
        RouteForm::Table(table, _) => route.table == *table,
        RouteForm::InFlannelNetwork(_) => {
            let is_inside = |network: &IpNet| {
                network.contains(&route.prefix) && network.prefix_len() < route.prefix.prefix_len()
            };
            route.table == routes::MAIN
                && route.kind == RouteType::Unicast
                && route.protocol == u8::from(RouteProtocol::Boot)
                && route.gateway.is_some()
                && !route.narrowed
                && networks.iter().any(is_inside)
        }
    }
}

/// A block of addresses of Calico's that is refused where there is no pod: BlockSize in its IPPool, 20 to 32 and 116 to 128.
fn is_block(route: &Route) -> bool {
    let sizes = match route.prefix {
        IpNet::V4(_) => 20..=32,
        IpNet::V6(_) => 116..=128,
    };
    matches!(route.kind, RouteType::BlackHole | RouteType::Unreachable)
        && sizes.contains(&route.prefix.prefix_len())
}

/// Through its IPIP device, or to a pod; never a default route.
fn is_through_calico(route: &Route, links: &[Link]) -> bool {
    let is_calicos = |index: &u32| {
        let link = links.iter().find(|link| link.index == *index);
        link.is_some_and(|link| link.name == "tunl0" || Name::Hex("cali", 11).matches(&link.name))
    };
    route.kind == RouteType::Unicast
        && route.prefix.prefix_len() > 0
        && !route.devices.is_empty()
        && route.devices.iter().all(is_calicos)
}

fn of_route(form: &RouteForm, route: &Route, links: &[Link]) -> Leftover {
    let (why, kept) = match form {
        RouteForm::Protocol(number, source) => (reason("the protocol", number, source), None),
        RouteForm::ProtocolOf(number, programs, source) => {
            let running = process_named(programs);
            let kept = running.map(|(pid, command)| {
                format!("process {pid} (`{command}`) sets routes of that protocol")
            });
            (reason("the protocol", number, source), kept)
        }
        RouteForm::Table(table, source) => (reason("the table", table, source), None),
        RouteForm::InFlannelNetwork(source) => {
            let form = "boot, a gateway, and a destination inside FLANNEL_NETWORK";
            (reason("the protocol", form, source), None)
        }
    };
    let mut place = match route.kind {
        RouteType::Unicast => route.prefix.to_string(),
        kind => format!("{} {}", type_name(kind), route.prefix),
    };
    if let Some(gateway) = route.gateway {
        place.push_str(&format!(" via {gateway}"));
    }
    let device = links.iter().find(|link| route.devices == [link.index]);
    if let Some(device) = device {
        place.push_str(&format!(" dev {}", device.name));
    }
    if route.table != routes::MAIN {
        place.push_str(&format!(" table {}", route.table));
    }
    Leftover {
        kind: LeftoverKind::Route,
        place,
        why,
        effect: "packets to it take the next route that fits".to_owned(),
        rules: Vec::new(),
        kept,
        thing: Thing::InKernel(Box::new(InKernel::Route(route.clone()))),
    }
}

/// The networks of the `subnet.env` that lies below the root.
fn networks(root: &Path) -> Vec<IpNet> {
    let text = fs::read_to_string(root.join("run/flannel/subnet.env")).unwrap_or_default();
    networks_of(&text)
}

fn networks_of(text: &str) -> Vec<IpNet> {
    text.lines()
        .filter_map(|line| {
            let (key, value) = line.split_once('=')?;
            let is_wanted = ["FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK"].contains(&key);
            // It may list several.
            is_wanted.then(|| value.split(',').filter_map(|net| net.trim().parse().ok()))
        })
        .flatten()
        .collect()
}

/// Removes it. One that is gone already is no error.
pub(super) async fn remove(handle: &Handle, thing: &InKernel) -> Result<(), HostError> {
    match thing {
        InKernel::Device(link) => match links::named(handle, &link.name).await? {
            // One that was made since by another program has another index.
            Some(now) if now.index == link.index => links::delete(handle, link).await,
            _ => Ok(()),
        },
        InKernel::Route(route) => routes::remove(handle, route).await,
        InKernel::Filter(filter) => filters::remove_program(handle, filter).await,
        InKernel::Rule(rule) => match handle.rule().del(rule.clone()).execute().await {
            Err(error) if errno(&error) == Some(Errno::NOENT) => Ok(()),
            done => done.map_err(|source| {
                HostError::netlink("remove the rule", table_of(rule).to_string(), source)
            }),
        },
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::{LinkAttribute, LinkMessage};

    use super::super::{calico, flannel};
    use super::*;

    fn route(prefix: &str, protocol: u8, gateway: Option<&str>) -> Route {
        Route {
            prefix: prefix.parse().unwrap(),
            kind: RouteType::Unicast,
            protocol,
            table: routes::MAIN,
            metric: 0,
            devices: vec![2],
            gateway: gateway.map(|gateway| gateway.parse().unwrap()),
            source: None,
            mtu: None,
            narrowed: false,
        }
    }

    #[test]
    fn only_routes_past_the_overlay_are_flannels() {
        let networks =
            networks_of("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nbroken\n=\n");
        assert_eq!(networks, ["10.244.0.0/16".parse().unwrap()]);
        let gateway = Some("192.0.2.2");
        let found = |route: Route, going: &[u32]| {
            !find_routes(&flannel::CATALOGUE, &[route], &[], going, &networks).is_empty()
        };
        let boot = u8::from(RouteProtocol::Boot);
        assert!(found(route("10.244.2.0/24", boot, gateway), &[]));
        assert!(
            !found(route("10.244.2.0/24", boot, gateway), &[2]),
            "it goes with its device"
        );
        assert!(
            !found(route("10.244.2.0/24", crate::host::PROTOCOL, gateway), &[]),
            "Tartan's own"
        );
        assert!(!found(route("10.244.2.0/24", boot, None), &[]));
        assert!(
            !found(route("10.244.0.0/16", boot, gateway), &[]),
            "the whole network"
        );
        assert!(!found(route("10.9.2.0/24", boot, gateway), &[]));
    }

    #[test]
    fn calicos_protocol_alone_is_calicos() {
        for (protocol, expected) in [(80, 1), (12, 0), (3, 0), (4, 0), (crate::host::PROTOCOL, 0)] {
            let routes = [route("10.244.2.0/26", protocol, Some("192.0.2.2"))];
            let found = find_routes(&calico::CATALOGUE, &routes, &[], &[], &[]);
            assert_eq!(found.len(), expected, "{protocol}");
        }
    }

    /// The operator's BIRD has the same number as Calico's.
    #[test]
    fn of_birds_routes_calicos_forms_alone_go() {
        let bird = |prefix: &str, kind, gateway| Route {
            kind,
            devices: match kind {
                RouteType::Unicast => vec![2],
                _ => Vec::new(),
            },
            ..route(prefix, 12, gateway)
        };
        let gateway = Some("192.0.2.2");
        let through = |name: &str| {
            let mut link = LinkMessage::default();
            link.header.index = 2;
            link.attributes.push(LinkAttribute::IfName(name.to_owned()));
            [links::parse(&link)]
        };
        let found = |route: Route, device: &str| {
            let links = through(device);
            !find_routes(&calico::CATALOGUE, &[route], &links, &[], &[]).is_empty()
        };
        let unicast = RouteType::Unicast;
        assert!(found(bird("10.244.2.0/26", unicast, gateway), "tunl0"));
        assert!(found(
            bird("10.244.2.5/32", unicast, None),
            "cali0123456789a"
        ));
        assert!(!found(bird("10.244.2.0/26", unicast, gateway), "eth0"));
        assert!(!found(bird("0.0.0.0/0", unicast, gateway), "eth0"));
        assert!(!found(bird("0.0.0.0/0", unicast, gateway), "tunl0"));
        for kind in [RouteType::BlackHole, RouteType::Unreachable] {
            assert!(found(bird("10.244.2.0/26", kind, None), ""));
            assert!(!found(bird("10.0.0.0/8", kind, None), ""));
            assert!(!found(bird("0.0.0.0/0", kind, None), ""));
        }
        assert!(!found(bird("10.244.2.0/26", RouteType::Prohibit, None), ""));
    }

    #[test]
    fn a_device_whose_place_tartan_takes_is_known_by_name() {
        assert!(is_of_place("flannel.1", "flannel.1") && is_of_place("flannel-v6.1", "flannel.1"));
        assert!(!is_of_place("flannel.2", "flannel.1") && !is_of_place("flannel.1", "tartan0"));
    }
}
