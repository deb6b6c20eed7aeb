//! Theory of operation
//!
//! Makes the kernel agree with a [`HostState`]: the tunnel device up, with its
//! address and MTU; the routes of [`routes`]; the settings of [`sysctls`].
//! Everything goes over rtnetlink and `/proc/sys`; nothing is executed.
//!
//! [`Host::apply`] is set-up and repair in one: it reads what is, does what is
//! missing, and says what it did. Called again it does nothing, so the caller
//! may call it at every hint from [`watch()`] and every few seconds besides (the
//! kernel announces no change of `accept_local` and its like).
//!
//! Everything that can be refused is checked before the first change. A failure
//! after that leaves what was done: each step is right by itself, forwarding
//! goes on, and the next call continues. [`cleanup()`] takes it all away again,
//! without an agent and after a SIGKILL.
//!
//! How each trace is recognised as ours: the device by its alias, routes by
//! their protocol number [`PROTOCOL`], settings by the record in the state
//! directory. Nothing else is ever removed.
//!
//! All of it concerns the network namespace of the thread that calls
//! [`Host::open`]; the runtime must poll on that thread (`current_thread`).

mod addresses;
mod change;
mod cleanup;
mod error;
mod links;
mod prefixes;
mod record;
mod routes;
mod sysctls;
mod watch;

use std::mem;
use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use netlink_packet_route::route::RouteType;
use rtnetlink::Handle;
use tokio::task::JoinHandle;

use crate::reconcile::HostState;

pub use change::Change;
pub use cleanup::{Outcome, Traces, cleanup};
pub use error::HostError;
pub use links::LinkStats;
pub use prefixes::Bypass;
pub use routes::PROTOCOL;
pub use watch::{HostEvent, Watch, watch};

use addresses::Held;
use links::{Kind, Link};
use record::{Found, Place, Record};
use routes::{Route, Step, Target, Wanted};
use sysctls::{Interface, Setting};

/// The interface that carries the overlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Underlay {
    /// Its index in this namespace.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// Its MTU in bytes; one above 65,535 (loopback) reads as 65,535.
    pub mtu: u16,
}

/// The kernel's side of the node, and the memory of what was changed there.
#[derive(Debug)]
pub struct Host {
    netlink: Netlink,
    record: Record,
    /// Changes made by calls that failed later on, not yet told.
    untold: Vec<Change>,
}

impl Host {
    /// Opens netlink in the calling thread's namespace and reads the memory of
    /// earlier changes from `state_dir`, which need not exist. A memory that
    /// cannot be understood is set aside, and the first [`apply`](Host::apply)
    /// says so.
    ///
    /// # Errors
    /// When no netlink socket can be had, or `/proc` not be read.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub async fn open(state_dir: &Path) -> Result<Host, HostError> {
        let place = Place::here()?;
        let mut untold = Vec::new();
        let record = match Record::read(state_dir, &place) {
            Ok(Found::Current(record)) => record,
            Ok(Found::Nothing | Found::Elsewhere) => Record::new(state_dir, place),
            Err(reason) => {
                untold.push(Change::MemoryRefused(reason.to_string()));
                Record::new(state_dir, place)
            }
        };
        Ok(Host {
            netlink: Netlink::open()?,
            record,
            untold,
        })
    }

    /// Makes the kernel agree with `desired`. Returns what had to be changed,
    /// first set-up and repair alike; nothing when all was well. After a
    /// failure the changes made so far are told by the next call that succeeds.
    ///
    /// # Errors
    /// The device missing or no TUN, a cluster network held by somebody else,
    /// IPv6 wanted where there is none, or the kernel's refusal of a step.
    pub async fn apply(&mut self, desired: &HostState) -> Result<Vec<Change>, HostError> {
        let name = Interface::parse(&desired.device).ok_or_else(|| HostError::DeviceName {
            name: desired.device.clone(),
        })?;
        let plan = self.check(desired).await?;
        let v6 = wants_v6(desired);
        self.set_mtu(&plan.link, desired.mtu).await?;
        // Before the device is up, or it makes itself a link-local address.
        for altered in sysctls::assert_device(&name, v6)? {
            self.untold.push(Change::Set(altered.into()));
        }
        self.raise(&plan.link).await?;
        self.agree_on_addresses(&plan, desired).await?;
        self.agree_on_forwarding(desired, &plan.routes, v6).await?;
        Ok(mem::take(&mut self.untold))
    }

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

    /// The interface that holds `public_ip`.
    ///
    /// # Errors
    /// [`HostError::NoUnderlay`] when none does (the sentence lists what the
    /// node holds), or the kernel's refusal to list.
    pub async fn underlay(&self, public_ip: IpAddr) -> Result<Underlay, HostError> {
        let held = self.held_elsewhere().await?;
        match held
            .iter()
            .find(|(held, _)| held.address.addr() == public_ip)
        {
            Some((_, link)) => Ok(Underlay {
                ifindex: link.index,
                name: link.name.clone(),
                mtu: u16::try_from(link.mtu).unwrap_or(u16::MAX),
            }),
            None => Err(HostError::NoUnderlay {
                address: public_ip,
                held: in_words(&held),
            }),
        }
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
        let device = find(&links, device).map(|link| link.index);
        let routes = routes::list(handle).await?;
        Ok(prefixes::strays(&routes, cluster, own, device)
            .map(|route| Bypass {
                prefix: route.prefix,
                device: leads_to(route, &links),
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

    /// Everything that may be refused, and what the rest works from.
    async fn check(&self, desired: &HostState) -> Result<Plan, HostError> {
        let handle = &self.netlink.handle;
        let links = links::list(handle).await?;
        let link = find(&links, &desired.device).ok_or_else(|| HostError::NoDevice {
            name: desired.device.clone(),
        })?;
        if link.kind != Kind::Tun {
            return Err(HostError::NotATun {
                name: link.name.clone(),
                found: describe(&link.kind),
            });
        }
        if wants_v6(desired) {
            if !sysctls::has_ipv6() {
                return Err(HostError::NoIpv6);
            }
            if desired.mtu < LEAST_V6_MTU {
                return Err(HostError::MtuBelowIpv6 {
                    device: desired.device.clone(),
                    mtu: desired.mtu,
                });
            }
        }
        let wanted = routes::wanted(
            &desired.cluster_routes,
            &desired.unreachable,
            &desired.addresses,
        );
        let routes = routes::list(handle).await?;
        match routes::rival(&routes, &wanted, link.index) {
            Some(rival) => Err(held_by(rival, &links)),
            None => Ok(Plan {
                link: link.clone(),
                wanted,
                routes,
            }),
        }
    }

    async fn set_mtu(&mut self, link: &Link, mtu: u16) -> Result<(), HostError> {
        if link.mtu != u32::from(mtu) {
            links::set_mtu(&self.netlink.handle, link, mtu).await?;
            self.untold.push(Change::Mtu {
                device: link.name.clone(),
                found: link.mtu,
                set: mtu,
            });
        }
        Ok(())
    }

    async fn raise(&mut self, link: &Link) -> Result<(), HostError> {
        if !link.is_ours() {
            links::mark(&self.netlink.handle, link).await?;
            self.untold.push(Change::Marked(link.name.clone()));
        }
        if !link.up {
            links::raise(&self.netlink.handle, link).await?;
            self.untold.push(Change::Raised(link.name.clone()));
        }
        Ok(())
    }

    /// Addresses and routes, in an order in which no route ever names a source
    /// address that the device lacks: the kernel would take the route away.
    async fn agree_on_addresses(
        &mut self,
        plan: &Plan,
        desired: &HostState,
    ) -> Result<(), HostError> {
        let handle = &self.netlink.handle;
        let held = addresses::list(handle).await?;
        let (missing, surplus) = addresses::plan(
            &held,
            plan.link.index,
            &desired.addresses,
            &desired.cluster_routes,
        );
        for address in missing {
            addresses::add(handle, &plan.link, address).await?;
            self.untold.push(Change::AddressAdded(address));
        }
        for step in routes::plan(&plan.routes, &plan.wanted, plan.link.index) {
            routes::take(handle, &step, plan.link.index).await?;
            self.untold.push(told(&step, &plan.link.name));
        }
        for address in surplus {
            addresses::remove(handle, &plan.link, address).await?;
            self.untold.push(Change::AddressRemoved(address));
        }
        Ok(())
    }

    /// Forwarding, for the families that the cluster network has.
    async fn agree_on_forwarding(
        &mut self,
        desired: &HostState,
        routes: &[Route],
        v6: bool,
    ) -> Result<(), HostError> {
        let mut wanted = Vec::new();
        if desired
            .cluster_routes
            .iter()
            .any(|net| net.addr().is_ipv4())
        {
            wanted.push((Setting::Forward4, 1));
        }
        if v6 {
            // A router ignores router advertisements unless accept_ra is 2,
            // and the node would lose its default route: uplinks come first.
            let uplinks = self.uplinks(routes).await?;
            wanted.extend(uplinks.into_iter().map(|uplink| (uplink, 2)));
            wanted.push((Setting::Forward6, 1));
        }
        for (setting, value) in wanted {
            let altered = sysctls::assert_remembered(&setting, value, &mut self.record)?;
            self.untold
                .extend(altered.map(|altered| Change::Set(altered.into())));
        }
        Ok(())
    }

    /// `accept_ra` of each uplink that has it at 1: interfaces with a default
    /// route or one learned from a router now, while forwarding is off, and
    /// those that were uplinks when we switched it on. Never a pod's interface,
    /// or a pod could configure the node.
    async fn uplinks(&self, routes: &[Route]) -> Result<Vec<Setting>, HostError> {
        let mut uplinks: Vec<Setting> = self
            .record
            .changes()
            .iter()
            .map(|change| change.setting.clone())
            .filter(|setting| matches!(setting, Setting::AcceptRa(_)))
            .collect();
        if Setting::Forward6.read()? == Some(0) {
            let links = links::list(&self.netlink.handle).await?;
            let learning: Vec<u32> = routes
                .iter()
                .filter(|route| is_uplinks(route))
                .flat_map(|route| route.devices.iter().copied())
                .collect();
            uplinks.extend(
                links
                    .iter()
                    .filter(|link| learning.contains(&link.index) && link.kind != Kind::Loopback)
                    .filter_map(|link| Interface::parse(&link.name))
                    .map(Setting::AcceptRa),
            );
        }
        let mut asked = Vec::new();
        for setting in uplinks {
            if !asked.contains(&setting) && setting.read()? == Some(1) {
                asked.push(setting);
            }
        }
        Ok(asked)
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

/// What one call of [`Host::apply`] works from.
struct Plan {
    link: Link,
    wanted: Vec<Wanted>,
    routes: Vec<Route>,
}

/// A netlink handle and the task that serves it, which ends with it.
#[derive(Debug)]
struct Netlink {
    handle: Handle,
    connection: JoinHandle<()>,
}

impl Netlink {
    fn open() -> Result<Netlink, HostError> {
        let (connection, handle, _) =
            rtnetlink::new_connection().map_err(|source| HostError::Socket { source })?;
        Ok(Netlink {
            handle,
            connection: tokio::spawn(connection),
        })
    }
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

fn wants_v6(desired: &HostState) -> bool {
    desired
        .cluster_routes
        .iter()
        .chain(&desired.addresses)
        .any(|net| net.addr().is_ipv6())
}

/// Whether a route shows that its interface faces a router.
fn is_uplinks(route: &Route) -> bool {
    route.prefix.addr().is_ipv6()
        && route.kind == RouteType::Unicast
        && (route.prefix.prefix_len() == 0 || route.protocol == LEARNED_FROM_ROUTER)
}

fn find<'a>(links: &'a [Link], name: &str) -> Option<&'a Link> {
    links.iter().find(|link| link.name == name)
}

fn leads_to(route: &Route, links: &[Link]) -> Option<String> {
    // An IPv6 route that refuses names the loopback device.
    if route.kind != RouteType::Unicast {
        return None;
    }
    let device = route.devices.first()?;
    let link = links.iter().find(|link| link.index == *device)?;
    Some(link.name.clone())
}

fn held_by(rival: &Route, links: &[Link]) -> HostError {
    HostError::NetworkHeld {
        prefix: rival.prefix,
        via: match (leads_to(rival, links), rival.gateway) {
            (Some(device), Some(gateway)) => format!("via {gateway} dev {device}"),
            (Some(device), None) => format!("to dev {device}"),
            (None, _) => format!("nowhere ({})", routes::word(rival.kind)),
        },
        protocol: rival.protocol,
        metric: rival.metric,
    }
}

fn told(step: &Step, device: &str) -> Change {
    let target = |route: &Wanted| match route.target {
        Target::Device { source: None } => format!("{} dev {device}", route.prefix),
        Target::Device {
            source: Some(source),
        } => format!("{} dev {device} src {source}", route.prefix),
        Target::Unreachable => format!("unreachable {}", route.prefix),
    };
    match step {
        Step::Add(route) => Change::RouteAdded(target(route)),
        Step::Replace(route) => Change::RouteReplaced(target(route)),
        Step::Remove(route) => Change::RouteRemoved(route.to_string()),
    }
}

fn describe(kind: &Kind) -> String {
    match kind {
        Kind::Tun => "a TUN".to_owned(),
        Kind::Tap => "a TAP".to_owned(),
        Kind::Loopback => "the loopback device".to_owned(),
        Kind::Other(word) if word.is_empty() => "hardware".to_owned(),
        Kind::Other(word) => format!("a {word} device"),
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

/// Least MTU on which the kernel runs IPv6, in bytes (RFC 8200 section 5).
const LEAST_V6_MTU: u16 = 1280;
/// `RTPROT_RA`: routes learned from router advertisements.
const LEARNED_FROM_ROUTER: u8 = 9;
const MOST_IN_A_SENTENCE: usize = 10;
