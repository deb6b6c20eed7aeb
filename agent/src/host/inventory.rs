//! What the host holds, read for the reconciler and for `tartan status`.

use std::net::IpAddr;

use dataplane::families::PublicAddresses;
use ipnet::IpNet;

use super::addresses::{self, Held};
use super::error::HostError;
use super::links::{self, Link, LinkStats};
use super::prefixes::{self, Bypass};
use super::{Host, routes};

/// The interface that carries the overlay, or the two that do, one per family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Underlay {
    /// Its name, or both.
    pub name: String,
    /// The smallest MTU in bytes; one above 65,535 (loopback) reads as 65,535.
    pub mtu: u16,
    /// Why nothing leaves, where an interface is down or without a carrier: a sentence with the remedy for each.
    pub out_of_service: Vec<String>,
}

impl Host {
    /// Every address the host holds on devices other than ours that packets of
    /// other hosts can carry: loopback and IPv6 link-local ones are left out.
    /// Sorted, each once.
    ///
    /// # Errors
    /// The kernel's refusal to list them.
    pub async fn addresses(&self) -> Result<Vec<IpAddr>, HostError> {
        let held = self.held_elsewhere().await?;
        let mut addresses: Vec<IpAddr> = held
            .iter()
            .filter(|(held, _)| held.is_routable())
            .map(|(held, _)| held.address.addr())
            .collect();
        addresses.sort_unstable();
        addresses.dedup();
        Ok(addresses)
    }

    /// The interfaces that hold the addresses of `public`: usually one for both.
    ///
    /// # Errors
    /// [`HostError::NoUnderlay`] when none holds one of them (the sentence lists
    /// what the node holds), or the kernel's refusal to list.
    pub async fn underlay(&self, public: PublicAddresses) -> Result<Underlay, HostError> {
        let held = self.held_elsewhere().await?;
        let mut names: Vec<&str> = Vec::new();
        let mut out_of_service = Vec::new();
        let mut mtu = u16::MAX;
        for address in public.iter() {
            let mut holders = held
                .iter()
                .filter(|(held, _)| held.address.addr() == address);
            let Some((_, link)) = holders.next() else {
                return Err(HostError::NoUnderlay {
                    key: match (public, address) {
                        (PublicAddresses::Dual(..), IpAddr::V6(_)) => "public-ipv6",
                        _ => "public-ip",
                    },
                    address,
                    held: in_words(&held),
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
    /// device other than `device`: pods attached by somebody else's plugin, a
    /// bridge's connected network, and each address of such a device as /32 or
    /// /128. Sorted, each once.
    ///
    /// # Errors
    /// The kernel's refusal to list.
    pub async fn kernel_prefixes(
        &self,
        own: &[IpNet],
        device: &str,
    ) -> Result<Vec<IpNet>, HostError> {
        let handle = &self.netlink.handle;
        let device = links::named(handle, device).await?.map(|link| link.index);
        let routes = routes::list(handle).await?;
        let held = addresses::list(handle).await?;
        Ok(prefixes::served(&routes, &held, own, device))
    }

    /// Routes more specific than a `cluster` network that are neither ours nor
    /// inside our `own` subnets: packets they match never reach us.
    ///
    /// # Errors
    /// The kernel's refusal to list.
    pub async fn bypassing(
        &self,
        cluster: &[IpNet],
        own: &[IpNet],
        device: &str,
    ) -> Result<Vec<Bypass>, HostError> {
        let handle = &self.netlink.handle;
        let links = links::list(handle).await?;
        let device = links::find(&links, device).map(|link| link.index);
        let routes = routes::list(handle).await?;
        Ok(prefixes::strays(&routes, cluster, own, device)
            .map(|route| Bypass {
                prefix: route.prefix,
                device: prefixes::leads_to(route, &links),
                gateway: route.gateway,
                protocol: route.protocol,
            })
            .collect())
    }

    /// The kernel's counters of one interface.
    ///
    /// # Errors
    /// [`HostError::NoDevice`] when there is none of that name.
    pub async fn device_stats(&self, device: &str) -> Result<LinkStats, HostError> {
        links::stats(&self.netlink.handle, device).await
    }

    async fn held_elsewhere(&self) -> Result<Vec<(Held, Link)>, HostError> {
        let links = links::list(&self.netlink.handle).await?;
        let held = addresses::list(&self.netlink.handle).await?;
        Ok(held
            .into_iter()
            .filter_map(|held| {
                let link = links.iter().find(|link| link.index == held.index)?;
                (!link.is_ours()).then(|| (held, link.clone()))
            })
            .collect())
    }
}

/// The routable addresses for a sentence, at most ten of them.
fn in_words(held: &[(Held, Link)]) -> String {
    let all: Vec<String> = held
        .iter()
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
