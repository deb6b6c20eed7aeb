//! Interfaces, addresses and routes of the host, read for the reconciler and for `tartan status`.

use std::net::IpAddr;

use cni_shim::attachment::HOST_IFNAME_PREFIX;
use dataplane::families::PublicAddresses;
use ipnet::IpNet;
use rtnetlink::Handle;

use super::Host;
use super::error::HostError;
use super::net::addresses::{self, InterfaceAddress};
use super::net::links::{self, Link, OutOfService};
use super::net::pod_links::PodLinks;
use super::net::prefixes::{self, Bypass};
use super::net::routes::{self, Route, RoutesSeen};

/// The interface that carries the overlay, or the two that do, one per family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Underlay {
    /// Its name, or both.
    pub name: String,
    /// The smallest MTU in bytes; one above 65,535 (loopback) reads as 65,535.
    pub mtu: u16,
    /// Those of the interfaces that carry nothing.
    pub out_of_service: Vec<OutOfService>,
}

/// Interfaces, addresses and routes as the kernel listed them at one moment.
#[derive(Clone, Debug)]
pub struct Picture {
    pub(super) links: Vec<Link>,
    pub(super) held: Vec<InterfaceAddress>,
    pub(super) routes: Vec<Route>,
    pub(super) pod_links: PodLinks,
}

impl Host {
    /// Lists them.
    ///
    /// # Errors
    /// The kernel's refusal to list.
    pub async fn picture(&self) -> Result<Picture, HostError> {
        read(&self.netlink.handle).await
    }
}

/// Lists interfaces, addresses and routes.
///
/// # Errors
/// The kernel's refusal to list.
pub(super) async fn read(handle: &Handle) -> Result<Picture, HostError> {
    let messages = links::messages(handle).await?;
    Ok(Picture {
        links: messages.iter().map(links::parse).collect(),
        pod_links: PodLinks::of(&messages),
        held: addresses::list(handle).await?,
        routes: routes::list(handle).await?,
    })
}

impl Picture {
    /// Every address the host holds on devices other than ours that packets of
    /// other hosts can carry: loopback and IPv6 link-local ones are left out.
    /// Sorted, each once.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let mut addresses: Vec<IpAddr> = self
            .held_elsewhere()
            .filter(|(held, _)| held.is_routable())
            .map(|(held, _)| held.address.addr())
            .collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// The interfaces that hold the addresses of `public`: usually one for both.
    ///
    /// # Errors
    /// [`HostError::NoUnderlay`] when none holds one of them; the sentence lists
    /// what the node holds.
    pub fn underlay(&self, public: PublicAddresses) -> Result<Underlay, HostError> {
        let mut names: Vec<&str> = Vec::new();
        let mut out_of_service = Vec::new();
        let mut mtu = u16::MAX;
        for address in public.iter() {
            let mut held = self.held_elsewhere();
            let Some((_, link)) = held.find(|(held, _)| held.address.addr() == address) else {
                return Err(HostError::NoUnderlay {
                    key: match (public, address) {
                        (PublicAddresses::Dual(..), IpAddr::V6(_)) => "local-ipv6",
                        _ => "local-ip",
                    },
                    address,
                    held: in_words(self.held_elsewhere()),
                });
            };
            mtu = mtu.min(u16::try_from(link.mtu).unwrap_or(u16::MAX));
            if !names.contains(&link.name.as_str()) {
                names.push(&link.name);
                out_of_service.extend(link.out_of_service());
            }
        }
        Ok(Underlay {
            name: names.join(", "),
            mtu,
            out_of_service,
        })
    }

    /// Prefixes inside `own` subnets that the kernel routes to, or holds on, a
    /// device other than `device`: pods attached by another plugin, a
    /// bridge's connected network, and each address of such a device as /32 or
    /// /128. Sorted, each once.
    pub fn kernel_prefixes(&self, own: &[IpNet], device: &str) -> Vec<IpNet> {
        prefixes::kernel_prefixes(&self.routes, &self.held, own, self.index(device))
    }

    /// Interfaces other than `device` that the prefixes of [`kernel_prefixes`](Picture::kernel_prefixes) lead to or are
    /// held on, without the host's ends of `tartan-cni`. Sorted, each once.
    pub fn pod_interfaces(&self, own: &[IpNet], device: &str) -> Vec<String> {
        let indices = prefixes::pod_interfaces(&self.routes, &self.held, own, self.index(device));
        let named = self
            .links
            .iter()
            .filter(|link| indices.contains(&link.index));
        let mut names: Vec<String> = named.map(|link| link.name.clone()).collect();
        names.retain(|name| !name.starts_with(HOST_IFNAME_PREFIX) && name != "lo");
        names.sort_unstable();
        names
    }

    /// Routes more specific than a `cluster` network that are neither ours nor
    /// inside our `own` subnets: packets they match never reach us.
    pub fn bypassing(&self, cluster: &[IpNet], own: &[IpNet], device: &str) -> Vec<Bypass> {
        prefixes::bypassing(&self.routes, cluster, own, self.index(device))
            .map(|route| Bypass {
                prefix: route.prefix,
                device: prefixes::leads_to(route, &self.links),
                gateway: route.gateway,
                protocol: route.protocol,
            })
            .collect()
    }

    /// The routes of IPv4 but those into these networks.
    pub fn routes_outside(&self, networks: &[IpNet]) -> RoutesSeen {
        let is_outside = |route: &&Route| {
            let is_inside = |network: &IpNet| network.contains(&route.prefix);
            route.prefix.addr().is_ipv4() && !networks.iter().any(is_inside)
        };
        RoutesSeen(self.routes.iter().filter(is_outside).cloned().collect())
    }

    /// Name of the interface that holds an address.
    pub fn holder(&self, address: IpAddr) -> Option<String> {
        let mut held = self.held_elsewhere();
        let found = held.find(|(held, _)| held.address.addr() == address);
        found.map(|(_, link)| link.name.clone())
    }

    /// The host's ends of pods.
    pub fn pod_links(&self) -> &PodLinks {
        &self.pod_links
    }

    fn index(&self, device: &str) -> Option<u32> {
        links::find(&self.links, device).map(|link| link.index)
    }

    fn held_elsewhere(&self) -> impl Iterator<Item = (&InterfaceAddress, &Link)> {
        self.held.iter().filter_map(|held| {
            let link = self.links.iter().find(|link| link.index == held.index)?;
            (!link.is_ours()).then_some((held, link))
        })
    }
}

/// The routable addresses for a sentence, at most ten of them.
fn in_words<'a>(held: impl Iterator<Item = (&'a InterfaceAddress, &'a Link)>) -> String {
    let all: Vec<String> = held
        .filter(|(held, _)| held.is_routable())
        .map(|(held, link)| format!("{} ({})", held.address.addr(), link.name))
        .collect();
    match all.len() {
        0 => "the addresses it is to be given (it holds none)".to_owned(),
        count if count > MOST_IN_A_SENTENCE => format!(
            "{} and {} more",
            all.iter()
                .take(MOST_IN_A_SENTENCE)
                .cloned()
                .collect::<Vec<_>>()
                .join(", "),
            count - MOST_IN_A_SENTENCE
        ),
        _ => all.join(", "),
    }
}

const MOST_IN_A_SENTENCE: usize = 10;
