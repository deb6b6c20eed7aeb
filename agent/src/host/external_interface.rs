//! The interface that carries the overlay, and the addresses that this node tells its peers, by flannel's rules (flannel
//! `pkg/ipmatch/match.go`, `pkg/ip/iface.go`).
//!
//! Selectors are tried in this order, and the first that yields an interface counts:
//!
//! ```text
//! with iface, iface-regex or iface-can-reach        without
//!   each iface: a name, or an address held            public-ip, else public-ipv6: the interface that holds it
//!   each iface-regex: addresses, then names           the default route of the lowest metric
//!   iface-can-reach: the route to that address
//! ```
//! Of the addresses of the interface that one counts which comes first by flannel's order: global before link-local,
//! permanent before one with a lifetime, and lasting before temporary (in IPv4: first before secondary).
//!
//! What differs from flannel, each for a reason:
//! - Never chosen are a tunnel device of Tartan's, addresses inside the cluster networks (bridges of pods, what flannel
//!   left), addresses that duplicate detection refused, and link-local ones of IPv6, which name no node without a zone.
//! - Of several default routes and of several routes to one address the kernel's own choice counts, not the first listed.
//! - A public address that the interface holds is also the local one, as in flannel's vxlan from v0.27.4 on: peers check
//!   where packets come from. One that it does not hold is that of a NAT box.
//! - A family that the cluster does not have is not looked at; a selector of one family yields the other family's address
//!   on the same interface.
//! - Without an IPv6 default route a dual-stack node takes the interface of the IPv4 one.
//!
//! The choice is a pure function of what the kernel listed. Rules of policy routing are not looked at: routes are those of
//! the main table.

mod refusal;

use std::fmt;
use std::net::IpAddr;

use dataplane::families::{PerFamily, PublicAddresses};
use encap::Family;
use ipnet::IpNet;
use netlink_packet_route::route::RouteType;
use regex::Regex;

use super::net::addresses::InterfaceAddress;
use super::net::links::Link;
use super::net::routes::{MAIN, Route};
use super::picture::Picture;
use crate::config::node::registry::UnderlayChoice;

pub use refusal::{ChoiceError, Refusal};

/// The interface that was chosen, and this node's addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalInterface {
    /// Its name.
    pub name: String,
    /// The addresses to send from and receive on. Those of the public addresses that the interface holds, else its own.
    pub local: PublicAddresses,
    /// The addresses that peers send to.
    pub public: PublicAddresses,
    /// What chose it.
    pub chosen_by: Selector,
}

/// What says which interface it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// An entry of `iface`.
    Iface(String),
    /// An entry of `iface-regex`.
    Regex(String),
    /// `iface-can-reach`.
    CanReach(IpAddr),
    /// `public-ip` or `public-ipv6`, without any of the former.
    Public(IpAddr),
    /// None of them: the default route.
    DefaultRoute,
}

impl fmt::Display for ExternalInterface {
    /// For the log: `eth0 (by the default route), address 192.0.2.1, published as 198.51.100.7`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExternalInterface {
            name,
            local,
            public,
            chosen_by,
        } = self;
        write!(f, "{name} (by {chosen_by}), address {local}")?;
        if local != public {
            write!(f, ", published as {public}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Selector::Iface(wanted) => write!(f, "iface {wanted}"),
            Selector::Regex(regex) => write!(f, "iface-regex {regex}"),
            Selector::CanReach(address) => write!(f, "iface-can-reach {address}"),
            Selector::Public(address @ IpAddr::V4(_)) => write!(f, "public-ip {address}"),
            Selector::Public(address @ IpAddr::V6(_)) => write!(f, "public-ipv6 {address}"),
            Selector::DefaultRoute => f.write_str("the default route"),
        }
    }
}

/// Chooses by `choice`. `needed` says of which families the cluster networks are, `cluster` are these networks, and
/// `device` is the name of the tunnel device, which need not exist.
///
/// # Errors
/// [`ChoiceError`]: what was tried, what became of each, what the node has, and the remedy.
pub fn choose(
    picture: &Picture,
    choice: &UnderlayChoice,
    needed: PerFamily<bool>,
    cluster: &[IpNet],
    device: &str,
) -> Result<ExternalInterface, ChoiceError> {
    let node = Node::new(picture, choice, needed, cluster, device);
    let mut tried = Vec::new();
    for selector in selectors(choice, needed) {
        match node.select(&selector) {
            Ok((name, local, public)) => {
                return Ok(ExternalInterface {
                    name,
                    local,
                    public,
                    chosen_by: selector,
                });
            }
            Err(refusal) => tried.push((selector, refusal)),
        }
    }
    Err(ChoiceError {
        tried,
        held: node.in_words(),
    })
}

/// In the order in which they are tried; never empty.
fn selectors(choice: &UnderlayChoice, needed: PerFamily<bool>) -> Vec<Selector> {
    let ifaces = choice.ifaces.iter().cloned().map(Selector::Iface);
    let regexes = choice.regexes.iter().cloned().map(Selector::Regex);
    let can_reach = choice.can_reach.into_iter().map(Selector::CanReach);
    let all: Vec<Selector> = ifaces.chain(regexes).chain(can_reach).collect();
    if !all.is_empty() {
        return all;
    }
    let public = public(choice, needed);
    let public = public.iter().flatten().next().copied();
    vec![public.map_or(Selector::DefaultRoute, Selector::Public)]
}

/// The addresses to publish that the configuration names, of the families that the cluster has.
fn public(choice: &UnderlayChoice, needed: PerFamily<bool>) -> PerFamily<Option<IpAddr>> {
    PerFamily::each(|family| {
        let named = match family {
            Family::V4 => choice.public_v4.map(IpAddr::V4),
            Family::V6 => choice.public_v6.map(IpAddr::V6),
        };
        named.filter(|_| *needed.of(family))
    })
}

/// What can be chosen from.
struct Node<'a> {
    interfaces: Vec<Interface<'a>>,
    /// Routes of the main table that lead anywhere but into the tunnel.
    routes: Vec<&'a Route>,
    needed: PerFamily<bool>,
    public: PerFamily<Option<IpAddr>>,
}

/// An interface and its usable addresses, the preferred first.
struct Interface<'a> {
    link: &'a Link,
    addresses: Vec<IpAddr>,
    /// Addresses that would be usable if the cluster network did not contain them.
    inside: Vec<(IpAddr, IpNet)>,
}

/// Name, local and public addresses.
type Selected = (String, PublicAddresses, PublicAddresses);

impl<'a> Node<'a> {
    fn new(
        picture: &'a Picture,
        choice: &UnderlayChoice,
        needed: PerFamily<bool>,
        cluster: &[IpNet],
        device: &str,
    ) -> Node<'a> {
        let links = picture.links.iter();
        let others = links.filter(|link| !link.is_ours() && link.name != device);
        let interfaces: Vec<Interface<'a>> = others
            .map(|link| {
                let held = picture.held.iter().filter(|held| held.index == link.index);
                Interface {
                    link,
                    addresses: usable(held.clone(), cluster),
                    inside: inside(held, cluster),
                }
            })
            .collect();
        let is_candidate = |index| interfaces.iter().any(|found| found.link.index == index);
        let routes = picture.routes.iter().filter(|route| {
            let first = route.devices.first();
            route.table == MAIN && !route.narrowed && first.is_none_or(|index| is_candidate(*index))
        });
        Node {
            routes: routes.collect(),
            interfaces,
            needed,
            public: public(choice, needed),
        }
    }

    fn select(&self, selector: &Selector) -> Result<Selected, Refusal> {
        match selector {
            Selector::Iface(wanted) => match wanted.parse::<IpAddr>() {
                Ok(address) => self.settle(self.holder(address)?, Some(address)),
                Err(_) => {
                    let mut named = self.interfaces.iter();
                    let found = named.find(|interface| interface.link.name == *wanted);
                    self.settle(found.ok_or(Refusal::NoSuchInterface)?, None)
                }
            },
            Selector::Regex(regex) => self.matching(regex),
            Selector::CanReach(address) => {
                let route = self.route(*address).ok_or(Refusal::NoRoute)?;
                let interface = self.interface_of(route).ok_or(Refusal::NoRoute)?;
                self.settle(interface, route.source)
            }
            Selector::Public(address) => {
                let holder = self.holder(*address)?;
                for other in self.public.iter().flatten().filter(|it| *it != address) {
                    let second = self.holder(*other).map_err(|_| Refusal::OtherNotHeld {
                        interface: holder.link.name.clone(),
                        other: *other,
                    })?;
                    differ(holder, second)?;
                }
                self.settle(holder, None)
            }
            Selector::DefaultRoute => self.settle(self.default_route()?, None),
        }
    }

    fn holder(&self, address: IpAddr) -> Result<&Interface<'a>, Refusal> {
        let mut interfaces = self.interfaces.iter();
        let found = interfaces.find(|interface| interface.addresses.contains(&address));
        found.ok_or_else(|| {
            let mut interfaces = self.interfaces.iter();
            let inside = interfaces.find_map(|interface| interface.refused(|it| it == address));
            inside.unwrap_or(Refusal::NotHeld)
        })
    }

    /// flannel tries the addresses of all interfaces before it tries a name. Of a dual-stack node both must match.
    fn matching(&self, regex: &str) -> Result<Selected, Refusal> {
        let regex = Regex::new(regex).map_err(|_| Refusal::NothingMatches)?;
        for interface in &self.interfaces {
            let matching = |address: &&IpAddr| regex.is_match(&address.to_string());
            let matching = interface.addresses.iter().filter(matching).copied();
            let matching: Vec<IpAddr> = matching.collect();
            let local = self.in_families(|family| first(&matching, family));
            if let Ok(local) = local {
                return self.publish(interface, local);
            }
        }
        let mut refusal = Refusal::NothingMatches;
        let by_name = |interface: &&Interface<'_>| regex.is_match(&interface.link.name);
        for interface in self.interfaces.iter().filter(by_name) {
            match self.settle(interface, None) {
                Ok(selected) => return Ok(selected),
                Err(why) => refusal = why,
            }
        }
        Err(refusal)
    }

    fn default_route(&self) -> Result<&Interface<'a>, Refusal> {
        let of = |family| {
            let defaults = self.routes.iter().filter(|route| {
                route.prefix.prefix_len() == 0
                    && Family::of(route.prefix.addr()) == family
                    && route.kind == RouteType::Unicast
            });
            let best = defaults.min_by_key(|route| route.metric)?;
            self.interface_of(best).filter(|_| *self.needed.of(family))
        };
        match (of(Family::V4), of(Family::V6)) {
            (Some(v4), Some(v6)) => differ(v4, v6).map(|()| v4),
            (Some(only), None) | (None, Some(only)) => Ok(only),
            (None, None) => Err(Refusal::NoDefaultRoute),
        }
    }

    /// The route by which the kernel would send to `address`: the longest prefix, of these the lowest metric.
    fn route(&self, address: IpAddr) -> Option<&'a Route> {
        let leading = self.routes.iter().filter(|route| {
            let destination = IpNet::from(address);
            route.prefix.contains(&destination)
        });
        let best =
            leading.max_by_key(|route| (route.prefix.prefix_len(), u32::MAX - route.metric))?;
        (best.kind == RouteType::Unicast).then_some(best)
    }

    fn interface_of(&self, route: &Route) -> Option<&Interface<'a>> {
        let index = route.devices.first()?;
        let mut interfaces = self.interfaces.iter();
        interfaces.find(|interface| interface.link.index == *index)
    }

    /// The addresses of `interface`: `preferred` where it has that one, else its public one, else its first.
    fn settle(
        &self,
        interface: &Interface<'_>,
        preferred: Option<IpAddr>,
    ) -> Result<Selected, Refusal> {
        let preferred = preferred.filter(|address| interface.addresses.contains(address));
        let local = self.in_families(|family| {
            let preferred = preferred.filter(|address| Family::of(*address) == family);
            preferred.or_else(|| first(&interface.addresses, family))
        });
        let local = local.map_err(|family| {
            let inside = interface.refused(|address| Family::of(address) == family);
            inside.unwrap_or_else(|| Refusal::NoAddress {
                interface: interface.link.name.clone(),
                family,
            })
        })?;
        self.publish(interface, local)
    }

    fn publish(
        &self,
        interface: &Interface<'_>,
        local: PublicAddresses,
    ) -> Result<Selected, Refusal> {
        let name = interface.link.name.clone();
        if interface.link.mtu == 0 {
            return Err(Refusal::NoMtu { interface: name });
        }
        let with_public = |held_only: bool| {
            let mut each = local.iter().map(|address| {
                let public = self.public.of(Family::of(address));
                public
                    .filter(|public| !held_only || interface.addresses.contains(public))
                    .unwrap_or(address)
            });
            PublicAddresses::collect(&mut each).unwrap_or(local)
        };
        Ok((name, with_public(true), with_public(false)))
    }

    /// What `of` yields for each family that the cluster has; the first family of which it yields nothing.
    fn in_families(
        &self,
        of: impl Fn(Family) -> Option<IpAddr>,
    ) -> Result<PublicAddresses, Family> {
        let mut found = Vec::new();
        for family in [Family::V4, Family::V6] {
            if *self.needed.of(family) {
                found.push(of(family).ok_or(family)?);
            }
        }
        PublicAddresses::collect(found).ok_or(Family::V4)
    }

    /// What can be chosen: `eth0 (192.0.2.1, 2001:db8::1), eth1 (198.51.100.1)`; at most ten interfaces.
    fn in_words(&self) -> String {
        let holders = self.interfaces.iter().filter(|it| !it.addresses.is_empty());
        let all: Vec<String> = holders
            .map(|interface| {
                let addresses = interface.addresses.iter().take(MOST_IN_A_SENTENCE);
                let addresses: Vec<String> = addresses.map(IpAddr::to_string).collect();
                format!("{} ({})", interface.link.name, addresses.join(", "))
            })
            .collect();
        let shown: Vec<&str> = all
            .iter()
            .take(MOST_IN_A_SENTENCE)
            .map(|it| &**it)
            .collect();
        match all.len() {
            0 => "no interface with a usable address".to_owned(),
            count if count > shown.len() => {
                format!("{} and {} more", shown.join(", "), count - shown.len())
            }
            _ => shown.join(", "),
        }
    }
}

impl Interface<'_> {
    /// The first address inside the cluster network that `is_wanted`, as a refusal.
    fn refused(&self, is_wanted: impl Fn(IpAddr) -> bool) -> Option<Refusal> {
        let mut inside = self.inside.iter();
        let (address, network) = inside.find(|(address, _)| is_wanted(*address))?;
        Some(Refusal::InsideCluster {
            interface: self.link.name.clone(),
            address: *address,
            network: *network,
        })
    }
}

/// Addresses inside a cluster network, and that network.
fn inside<'a>(
    held: impl Iterator<Item = &'a InterfaceAddress>,
    cluster: &[IpNet],
) -> Vec<(IpAddr, IpNet)> {
    let lasting = held.filter(|held| held.is_routable() && held.is_lasting());
    let in_cluster = lasting.filter_map(|held| {
        let address = held.address.addr();
        let network = cluster.iter().find(|network| network.contains(&address))?;
        Some((address, *network))
    });
    in_cluster.collect()
}

/// Addresses that packets of other nodes can carry, in flannel's order of preference.
fn usable<'a>(held: impl Iterator<Item = &'a InterfaceAddress>, cluster: &[IpNet]) -> Vec<IpAddr> {
    let mut usable: Vec<&InterfaceAddress> = held
        .filter(|held| {
            let address = held.address.addr();
            let in_cluster = cluster.iter().any(|network| network.contains(&address));
            held.is_routable() && held.is_lasting() && !in_cluster
        })
        .collect();
    // The sort is stable: equals stay in the kernel's order, as in flannel.
    usable.sort_by_key(|held| held.preference());
    usable.iter().map(|held| held.address.addr()).collect()
}

fn first(addresses: &[IpAddr], family: Family) -> Option<IpAddr> {
    let mut addresses = addresses.iter().copied();
    addresses.find(|address| Family::of(*address) == family)
}

fn differ(v4: &Interface<'_>, v6: &Interface<'_>) -> Result<(), Refusal> {
    match v4.link.index == v6.link.index {
        true => Ok(()),
        false => Err(Refusal::TwoInterfaces {
            v4: v4.link.name.clone(),
            v6: v6.link.name.clone(),
        }),
    }
}

const MOST_IN_A_SENTENCE: usize = 10;

#[cfg(test)]
mod tests;
