//! Theory of operation
//!
//! Three routes per cluster network make the overlay reachable and keep it
//! from leaking:
//!
//! ```text
//! 10.244.0.0/16 dev tartan0 src 10.244.1.0          metric 0            the overlay
//! unreachable 10.244.1.0/24                         metric 4294967294   own subnet: no such pod
//! unreachable 10.244.0.0/16                         metric 4294967295   no device: refuse, never leak
//! ```
//! A bridge's connected route or a pod's /32 beats the second by metric or
//! length; the third speaks when the device, and with it the first, is gone,
//! so that pod traffic does not leave through the default route unencapsulated.
//! For IPv6 the first has metric 1024, since the kernel makes that of 0. A
//! family whose packets the underlay carries only smaller than the device has
//! an MTU at its first route (`mtu 1430` for IPv6 in VXLAN of both families):
//! what this node sends keeps to it. What it forwards does not, unless such an
//! MTU is locked (include/net/ip6_route.h, `ip6_dst_mtu_maybe_forward`, Linux
//! 6.8), which would make the node deaf to a path's MTU: there the dataplane
//! answers.
//!
//! All three carry route protocol [`PROTOCOL`], a number that neither the
//! kernel's `rtnetlink.h` nor iproute2's `rt_protos` assigns. A route is *ours*
//! when it has that number and is unreachable or leads to our device; only
//! those are ever changed or removed, so a pod's host route may carry the same
//! number in peace. One agent per network namespace is assumed.
//!
//! [`plan`] is pure: routes now and routes wanted in, steps out. Applying the
//! steps and planning again gives none (a property test holds it to that).

use std::fmt;
use std::net::IpAddr;

use cni_shim::pod_link::PodRoute;
use dataplane::families::PerFamily;
use encap::Family;
use futures_util::TryStreamExt;
use ipnet::IpNet;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric,
    RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::Handle;
use rustix::io::Errno;

use crate::host::error::{HostError, errno};

/// The route protocol number of every route Tartan makes.
pub const PROTOCOL: u8 = 116;

/// A route of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) struct Route {
    pub(in crate::host) prefix: IpNet,
    pub(in crate::host) kind: RouteType,
    pub(in crate::host) protocol: u8,
    pub(in crate::host) table: u32,
    pub(in crate::host) metric: u32,
    /// Interfaces it leads to, one per next hop.
    pub(in crate::host) devices: Vec<u32>,
    pub(in crate::host) gateway: Option<IpAddr>,
    /// The source address it gives packets of this host.
    pub(in crate::host) source: Option<IpAddr>,
    /// The MTU it has of its own.
    pub(in crate::host) mtu: Option<u32>,
    /// Whether a type of service or a source prefix narrows it.
    pub(in crate::host) narrowed: bool,
}

/// Routes as they were listed, to tell whether they have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutesSeen(pub(in crate::host) Vec<Route>);

impl Route {
    /// Whether Tartan made it, given the index of its device if that exists.
    pub(in crate::host) fn is_ours(&self, device: Option<u32>) -> bool {
        self.protocol == PROTOCOL
            && self.table == MAIN
            && (self.kind == RouteType::Unreachable
                || device.is_some_and(|ours| self.devices == [ours]))
    }

    /// Whether it leads to that interface and nowhere else.
    pub(in crate::host) fn leads_to(&self, device: u32) -> bool {
        self.kind == RouteType::Unicast && self.devices == [device]
    }
}

impl fmt::Display for Route {
    /// As ip-route(8) writes it, as far as it distinguishes one route from another.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            RouteType::Unicast => write!(f, "{} metric {}", self.prefix, self.metric),
            kind => write!(
                f,
                "{} {} metric {}",
                type_name(kind),
                self.prefix,
                self.metric
            ),
        }
    }
}

/// A route that ought to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) struct WantedRoute {
    pub(in crate::host) prefix: IpNet,
    pub(in crate::host) metric: u32,
    pub(in crate::host) target: Target,
}

/// Where a wanted route leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) enum Target {
    /// Into our device; packets of this host get that source address and are no larger than `mtu`, if that is less than
    /// the device's.
    Device {
        source: Option<IpAddr>,
        mtu: Option<u16>,
    },
    /// Nowhere: answered with an ICMP error.
    Unreachable,
}

/// One change that brings the kernel nearer to what is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) enum RouteStep {
    Add(WantedRoute),
    Replace(WantedRoute),
    Remove(Route),
}

/// A route's type, as ip-route(8) writes it.
pub(in crate::host) fn type_name(kind: RouteType) -> &'static str {
    match kind {
        RouteType::Unicast => "unicast",
        RouteType::Local => "local",
        RouteType::BlackHole => "blackhole",
        RouteType::Unreachable => "unreachable",
        RouteType::Prohibit => "prohibit",
        RouteType::Throw => "throw",
        _ => "special",
    }
}

/// The routes wanted for these networks, in the order in which to make them:
/// refusals first, so that no packet leaks while the device route is missing.
/// `mtu` is what each family's packets may have where that is less than the device's.
pub(in crate::host) fn wanted(
    cluster: &[IpNet],
    unreachable: &[IpNet],
    addresses: &[IpNet],
    mtu: PerFamily<Option<u16>>,
) -> Vec<WantedRoute> {
    let mut routes: Vec<WantedRoute> = Vec::new();
    let refuse = |prefix: &IpNet, metric| WantedRoute {
        prefix: prefix.trunc(),
        metric,
        target: Target::Unreachable,
    };
    routes.extend(cluster.iter().map(|prefix| refuse(prefix, LAST)));
    routes.extend(
        unreachable
            .iter()
            .map(|prefix| refuse(prefix, LAST_BUT_ONE)),
    );
    routes.extend(cluster.iter().map(|prefix| {
        WantedRoute {
            prefix: prefix.trunc(),
            metric: match prefix {
                IpNet::V4(_) => 0,
                IpNet::V6(_) => DEFAULT_V6,
            },
            target: Target::Device {
                source: addresses
                    .iter()
                    .map(IpNet::addr)
                    .find(|address| address.is_ipv4() == prefix.addr().is_ipv4()),
                mtu: *mtu.of(Family::of(prefix.addr())),
            },
        }
    }));
    let mut seen = Vec::new();
    routes.retain(|route| {
        let key = (route.prefix, route.metric);
        let new = !seen.contains(&key);
        seen.push(key);
        new
    });
    routes
}

/// The steps from the routes now to those wanted; additions come first.
pub(in crate::host) fn plan(now: &[Route], wanted: &[WantedRoute], device: u32) -> Vec<RouteStep> {
    let mut steps = Vec::new();
    for route in wanted {
        let mut in_place = now.iter().filter(|found| occupies(found, route)).peekable();
        if in_place.peek().is_none() {
            steps.push(RouteStep::Add(route.clone()));
        } else if !in_place.any(|found| satisfies(found, route, device)) {
            steps.push(RouteStep::Replace(route.clone()));
        }
    }
    for found in now.iter().filter(|found| found.is_ours(Some(device))) {
        if !wanted.iter().any(|route| occupies(found, route)) {
            steps.push(RouteStep::Remove(found.clone()));
        }
    }
    steps
}

/// Another program's route that the kernel would use for a cluster network
/// before ours, or that ours cannot replace.
pub(in crate::host) fn conflict<'a>(
    now: &'a [Route],
    wanted: &[WantedRoute],
    device: u32,
) -> Option<&'a Route> {
    now.iter().find(|found| {
        wanted
            .iter()
            .filter(|route| matches!(route.target, Target::Device { .. }))
            .any(|route| {
                found.table == MAIN
                    && !found.narrowed
                    && found.prefix == route.prefix
                    && found.metric <= route.metric
                    && found.devices != [device]
                    && !found.is_ours(Some(device))
            })
    })
}

/// Every route of the namespace, of every table and both families.
pub(in crate::host) async fn list(handle: &Handle) -> Result<Vec<Route>, HostError> {
    let mut routes = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut question = RouteMessage::default();
        question.header.address_family = family;
        let messages: Vec<RouteMessage> = handle
            .route()
            .get(question)
            .execute()
            .try_collect()
            .await
            .map_err(|source| HostError::netlink("list", "the routes", source))?;
        routes.extend(messages.iter().filter_map(parse));
    }
    Ok(routes)
}

/// Takes one step. A route that is gone already counts as removed.
pub(in crate::host) async fn apply(
    handle: &Handle,
    step: &RouteStep,
    device: u32,
) -> Result<(), HostError> {
    match step {
        RouteStep::Add(route) => {
            let request = handle.route().add(message(route, device));
            request.execute().await.map_err(|source| {
                HostError::netlink("add the route to", route.prefix.to_string(), source)
            })
        }
        RouteStep::Replace(route) => {
            let request = handle.route().add(message(route, device)).replace();
            request.execute().await.map_err(|source| {
                HostError::netlink("replace the route to", route.prefix.to_string(), source)
            })
        }
        RouteStep::Remove(route) => remove(handle, route).await,
    }
}

/// The metric that the kernel gives a route to a pod, which names none.
pub(in crate::host) fn metric_to_pod(prefix: &IpNet) -> u32 {
    match prefix {
        IpNet::V4(_) => 0,
        IpNet::V6(_) => DEFAULT_V6,
    }
}

/// Adds a route to a pod as the plugin makes it. Returns false where there is one of the same metric, which stays.
pub(in crate::host) async fn add_to_pod(
    handle: &Handle,
    route: &PodRoute,
    device: u32,
) -> Result<bool, HostError> {
    let PodRoute { prefix, gateway } = *route;
    let mut message = empty_message(prefix);
    message.header.protocol = RouteProtocol::Static;
    message.header.kind = RouteType::Unicast;
    message.header.scope = match (prefix, gateway) {
        (IpNet::V4(_), None) => RouteScope::Link,
        _ => RouteScope::Universe,
    };
    if let Some(gateway) = gateway {
        message.header.flags = RouteFlags::Onlink;
        message
            .attributes
            .push(RouteAttribute::Gateway(gateway.into()));
    }
    message.attributes.push(RouteAttribute::Oif(device));
    match handle.route().add(message).execute().await {
        Err(error) if errno(&error) == Some(Errno::EXIST) => Ok(false),
        done => {
            done.map_err(|source| {
                HostError::netlink("add the route to", prefix.to_string(), source)
            })?;
            Ok(true)
        }
    }
}

/// Removes a route as it was listed. One that is gone already is no error.
pub(in crate::host) async fn remove(handle: &Handle, route: &Route) -> Result<(), HostError> {
    let mut message = empty_message(route.prefix);
    message.header.protocol = route.protocol.into();
    message.header.kind = route.kind;
    message.header.scope = RouteScope::NoWhere;
    message
        .attributes
        .push(RouteAttribute::Priority(route.metric));
    if route.table != MAIN {
        message.attributes.push(RouteAttribute::Table(route.table));
    }
    if let ([device], RouteType::Unicast) = (route.devices.as_slice(), route.kind) {
        message.attributes.push(RouteAttribute::Oif(*device));
    }
    match handle.route().del(message).execute().await {
        Err(error) if errno(&error) == Some(Errno::SRCH) => Ok(()),
        done => done.map_err(|source| {
            HostError::netlink("remove the route to", route.prefix.to_string(), source)
        }),
    }
}

/// Whether the kernel keeps one route of this prefix and metric, and `found` is it.
fn occupies(found: &Route, wanted: &WantedRoute) -> bool {
    found.table == MAIN
        && !found.narrowed
        && found.prefix == wanted.prefix
        && found.metric == wanted.metric
}

fn satisfies(found: &Route, wanted: &WantedRoute, device: u32) -> bool {
    match wanted.target {
        Target::Unreachable => found.kind == RouteType::Unreachable && found.protocol == PROTOCOL,
        Target::Device { source, mtu } => {
            found.is_ours(Some(device))
                && found.kind == RouteType::Unicast
                && found.source == source
                && found.mtu == mtu.map(u32::from)
        }
    }
}

fn message(route: &WantedRoute, device: u32) -> RouteMessage {
    let mut message = empty_message(route.prefix);
    message.header.protocol = RouteProtocol::Other(PROTOCOL);
    message
        .attributes
        .push(RouteAttribute::Priority(route.metric));
    match route.target {
        Target::Unreachable => message.header.kind = RouteType::Unreachable,
        Target::Device { source, mtu } => {
            message.header.kind = RouteType::Unicast;
            message.header.scope = match route.prefix {
                IpNet::V4(_) => RouteScope::Link,
                IpNet::V6(_) => RouteScope::Universe,
            };
            message.attributes.push(RouteAttribute::Oif(device));
            if let Some(source) = source {
                message
                    .attributes
                    .push(RouteAttribute::PrefSource(source.into()));
            }
            if let Some(mtu) = mtu {
                let mtu = RouteMetric::Mtu(u32::from(mtu));
                message.attributes.push(RouteAttribute::Metrics(vec![mtu]));
            }
        }
    }
    message
}

fn empty_message(prefix: IpNet) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = match prefix {
        IpNet::V4(_) => AddressFamily::Inet,
        IpNet::V6(_) => AddressFamily::Inet6,
    };
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.destination_prefix_length = prefix.prefix_len();
    message
        .attributes
        .push(RouteAttribute::Destination(prefix.addr().into()));
    message
}

/// `None` for a route of another family, and for one that the kernel keeps beside a route because of what it learned
/// of the path to one destination (`RTM_F_CLONED`). It has the protocol number of that route and goes by itself.
fn parse(message: &RouteMessage) -> Option<Route> {
    let header = &message.header;
    if header.flags.contains(RouteFlags::Cloned) {
        return None;
    }
    let anywhere: IpAddr = match header.address_family {
        AddressFamily::Inet => IpAddr::from([0_u8; 4]),
        AddressFamily::Inet6 => IpAddr::from([0_u8; 16]),
        _ => return None,
    };
    let mut destination = anywhere;
    let mut route = Route {
        prefix: IpNet::from(anywhere),
        kind: header.kind,
        protocol: header.protocol.into(),
        table: u32::from(header.table),
        metric: 0,
        devices: Vec::new(),
        gateway: None,
        source: None,
        mtu: None,
        narrowed: header.tos != 0 || header.source_prefix_length != 0,
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => destination = ip(address)?,
            RouteAttribute::Priority(metric) => route.metric = *metric,
            RouteAttribute::Table(table) => route.table = *table,
            RouteAttribute::Oif(device) => route.devices.push(*device),
            RouteAttribute::Gateway(address) => route.gateway = ip(address),
            RouteAttribute::PrefSource(address) => route.source = ip(address),
            RouteAttribute::Metrics(metrics) => route.mtu = metrics.iter().find_map(own_mtu),
            RouteAttribute::MultiPath(hops) => {
                route
                    .devices
                    .extend(hops.iter().map(|hop| hop.interface_index));
            }
            _ => {}
        }
    }
    route.prefix = IpNet::new(destination, header.destination_prefix_length).ok()?;
    Some(route)
}

fn own_mtu(metric: &RouteMetric) -> Option<u32> {
    match metric {
        RouteMetric::Mtu(mtu) => Some(*mtu),
        _ => None,
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        RouteAddress::Inet6(v6) => Some(IpAddr::V6(*v6)),
        _ => None,
    }
}

/// The main routing table (`RT_TABLE_MAIN`).
pub(in crate::host) const MAIN: u32 = RouteHeader::RT_TABLE_MAIN as u32;
/// The table of the node's own addresses (`RT_TABLE_LOCAL`), filled by the kernel.
pub(in crate::host) const LOCAL: u32 = libc::RT_TABLE_LOCAL as u32;
/// The worst metric there is.
const LAST: u32 = u32::MAX;
/// The worst but one, so that own subnet and cluster network may coincide.
const LAST_BUT_ONE: u32 = u32::MAX - 1;
/// What the kernel makes of metric 0 for IPv6 (`IP6_RT_PRIO_USER`).
const DEFAULT_V6: u32 = 1024;

#[cfg(test)]
mod tests;
