//! Applies a [`HostState`] to the kernel: checks everything, then changes what differs.

use std::mem;

use dataplane::families::PerFamily;
use encap::Mac;
use netlink_packet_route::route::{RouteProtocol, RouteType};

use super::Host;
use super::change::Change;
use super::error::HostError;
use super::host_state::HostState;
use super::idle_device;
use super::net::addresses;
use super::net::links::{self, Link, LinkKind};
use super::net::prefixes::leads_to;
use super::net::routes::{self, Route, RouteStep, Target, WantedRoute};
use super::picture::Picture;
use super::settings::setting::{Interface, Setting};
use super::settings::sysctls;

impl Host {
    /// Whether [`apply`](Host::apply) only adds: routes and addresses of ours that are not wanted stay. Set while the
    /// desired state comes from a cache, which may lack something that is still wanted.
    pub fn set_add_only(&mut self, add_only: bool) {
        self.add_only = add_only;
    }

    /// Why the record of changed settings is not on disk, which keeps
    /// [`cleanup()`](super::cleanup()) from restoring them after a crash.
    pub fn record_problem(&self) -> Option<&HostError> {
        self.record.write_error()
    }

    /// Applies `desired` to the kernel. Returns what had to be changed, at the
    /// first set-up as at a repair; nothing when nothing differed. After a
    /// failure the next call that succeeds reports the changes made so far.
    ///
    /// # Errors
    /// The device missing or neither TUN nor TAP, a cluster network routed by another program,
    /// IPv6 wanted where there is none, or the kernel's refusal of a step.
    pub async fn apply(&mut self, desired: &HostState) -> Result<Vec<Change>, HostError> {
        let picture = self.picture().await?;
        self.apply_to(picture, desired).await
    }

    /// As [`apply`](Host::apply), from a picture taken before.
    ///
    /// # Errors
    /// As [`apply`](Host::apply).
    pub async fn apply_to(
        &mut self,
        mut picture: Picture,
        desired: &HostState,
    ) -> Result<Vec<Change>, HostError> {
        let name = Interface::parse(&desired.device).ok_or_else(|| HostError::DeviceName {
            name: desired.device.clone(),
        })?;
        let plan = check(&picture, desired)?;
        let v6 = desired.has_v6();
        let before = self.unreported.len();
        self.set_mtu(&plan.link, desired.mtu).await?;
        self.lengthen_queue(&plan.link).await?;
        self.set_link_layer(&plan.link, desired.mac).await?;
        // Before the device is up, or it makes itself a link-local address.
        for altered in sysctls::set_device_settings(&name, v6)? {
            self.unreported.push(Change::Setting(altered));
        }
        self.disable_multicast(&name, &plan.link).await?;
        self.set_up(&plan.link).await?;
        if self.unreported.len() != before {
            // A device that comes up may give itself an address; a new MTU may change that of routes.
            picture.held = addresses::list(&self.netlink.handle).await?;
            picture.routes = routes::list(&self.netlink.handle).await?;
        }
        self.apply_addresses(&plan, &picture, desired).await?;
        self.apply_forwarding(desired, &picture, v6)?;
        Ok(mem::take(&mut self.unreported))
    }

    /// Switches forwarding on as [`apply`](Host::apply) does, without a tunnel device: pods of this node then reach each
    /// other while no agent runs. Returns what had to be changed.
    ///
    /// # Errors
    /// The kernel's refusal to list, or of a setting.
    pub async fn restore_forwarding(
        &mut self,
        desired: &HostState,
    ) -> Result<Vec<Change>, HostError> {
        let picture = self.picture().await?;
        self.apply_forwarding(desired, &picture, desired.has_v6())?;
        Ok(mem::take(&mut self.unreported))
    }

    async fn set_mtu(&mut self, link: &Link, mtu: u16) -> Result<(), HostError> {
        if link.mtu != u32::from(mtu) {
            links::set_mtu(&self.netlink.handle, link, mtu).await?;
            self.unreported.push(Change::Mtu {
                device: link.name.clone(),
                found: link.mtu,
                set: mtu,
            });
        }
        Ok(())
    }

    /// A TAP gets the address that its workers write, and no ARP: there is no link behind it to ask on. Foreign requests
    /// are answered all the same (dataplane, `outbound/neighbours.rs`).
    async fn set_link_layer(&mut self, link: &Link, mac: Option<Mac>) -> Result<(), HostError> {
        if link.kind != LinkKind::Tap {
            return Ok(());
        }
        if let Some(mac) = mac.filter(|mac| link.mac != Some(*mac)) {
            links::set_mac(&self.netlink.handle, link, &mac.0).await?;
            self.unreported.push(Change::MacSet(link.name.clone()));
        }
        if link.arp {
            links::disable_arp(&self.netlink.handle, link).await?;
            self.unreported.push(Change::ArpDisabled(link.name.clone()));
        }
        Ok(())
    }

    /// A TUN has no back-pressure: the kernel drops what finds its queue full. A longer queue is left as it is.
    async fn lengthen_queue(&mut self, link: &Link) -> Result<(), HostError> {
        if link.queue < QUEUE {
            links::set_queue(&self.netlink.handle, link, QUEUE).await?;
            self.unreported.push(Change::QueueLength {
                device: link.name.clone(),
                found: link.queue,
                set: QUEUE,
            });
        }
        Ok(())
    }

    /// Nothing that is sent to a group crosses the overlay. As on a WireGuard device, the kernel is not to announce
    /// the routers' groups there (MLD reports, which would be counted as drops), nor a host's service itself.
    async fn disable_multicast(&mut self, name: &Interface, link: &Link) -> Result<(), HostError> {
        if link.multicast {
            let forwarding = sysctls::leave_routers_groups(name)?;
            links::disable_multicast(&self.netlink.handle, link).await?;
            sysctls::restore_forwarding(name, forwarding)?;
            self.unreported
                .push(Change::MulticastDisabled(link.name.clone()));
        }
        Ok(())
    }

    async fn set_up(&mut self, link: &Link) -> Result<(), HostError> {
        if !link.is_ours() {
            links::mark(&self.netlink.handle, link).await?;
            self.unreported.push(Change::AliasSet(link.name.clone()));
        }
        if !link.up {
            links::set_up(&self.netlink.handle, link).await?;
            self.unreported.push(Change::BroughtUp(link.name.clone()));
        }
        Ok(())
    }

    /// Addresses and routes, in an order in which no route ever names a source
    /// address that the device lacks: the kernel would take the route away.
    async fn apply_addresses(
        &mut self,
        plan: &DevicePlan,
        picture: &Picture,
        desired: &HostState,
    ) -> Result<(), HostError> {
        let handle = &self.netlink.handle;
        let (missing, mut surplus) = addresses::plan(
            &picture.held,
            plan.link.index,
            &desired.addresses,
            &desired.cluster_routes,
        );
        let mut steps = routes::plan(&picture.routes, &plan.routes, plan.link.index);
        if self.add_only {
            steps.retain(|step| !matches!(step, RouteStep::Remove(_)));
            surplus.clear();
        }
        for address in missing {
            addresses::add(handle, &plan.link, address).await?;
            self.unreported.push(Change::AddressAdded(address));
        }
        for step in steps {
            routes::apply(handle, &step, plan.link.index).await?;
            self.unreported.push(reported(&step, &plan.link.name));
        }
        for address in surplus {
            addresses::remove(handle, &plan.link, address).await?;
            self.unreported.push(Change::AddressRemoved(address));
        }
        Ok(())
    }

    /// Forwarding, for the families that the cluster network has.
    fn apply_forwarding(
        &mut self,
        desired: &HostState,
        picture: &Picture,
        v6: bool,
    ) -> Result<(), HostError> {
        self.record.retry_write();
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
            let uplinks = self.uplinks(picture)?;
            wanted.extend(uplinks.into_iter().map(|uplink| (uplink, 2)));
            wanted.push((Setting::Forward6, 1));
        }
        for (setting, value) in wanted {
            let altered = sysctls::set_recorded(&setting, value, &mut self.record)?;
            self.unreported.extend(altered.map(Change::Setting));
        }
        Ok(())
    }

    /// `accept_ra` of each uplink that has it at 1: interfaces with a default
    /// route or one learned from a router now, while forwarding is off, and
    /// those that were uplinks when we switched it on. Never a pod's interface,
    /// or a pod could configure the node.
    fn uplinks(&self, picture: &Picture) -> Result<Vec<Setting>, HostError> {
        let mut uplinks: Vec<Setting> = self
            .record
            .changes()
            .iter()
            .map(|change| change.setting.clone())
            .filter(|setting| matches!(setting, Setting::AcceptRa(_)))
            .collect();
        if Setting::Forward6.read()? == Some(0) {
            let learning: Vec<u32> = picture
                .routes
                .iter()
                .filter(|route| is_on_uplink(route))
                .flat_map(|route| route.devices.iter().copied())
                .collect();
            uplinks.extend(
                picture
                    .links
                    .iter()
                    .filter(|link| {
                        learning.contains(&link.index) && link.kind != LinkKind::Loopback
                    })
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
}

/// What one call of [`Host::apply`] works from.
struct DevicePlan {
    link: Link,
    routes: Vec<WantedRoute>,
}

impl Host {
    /// Why no device of that name can be had: an interface has it, of another program or another agent that runs. One that
    /// an agent left ([`idle_device`](Host::idle_device)) is in no way.
    pub async fn name_taken(&self, name: &str) -> Option<HostError> {
        // Where the kernel cannot be asked, the attempt to make the device says more.
        let link = links::named(&self.netlink.handle, name).await.ok()??;
        if idle_device::is_idle(&link) {
            return None;
        }
        let name = link.name.clone();
        Some(match &link.kind {
            _ if link.is_ours() => HostError::DeviceInUse { name },
            LinkKind::Tun => HostError::ForeignDevice {
                name,
                found: "a TUN of another program".to_owned(),
            },
            kind => HostError::ForeignDevice {
                name,
                found: describe(kind),
            },
        })
    }
}

/// Everything that may be refused, and what the rest works from.
fn check(picture: &Picture, desired: &HostState) -> Result<DevicePlan, HostError> {
    let links = &picture.links;
    let link = links::find(links, &desired.device).ok_or_else(|| HostError::NoDevice {
        name: desired.device.clone(),
    })?;
    if !matches!(link.kind, LinkKind::Tun | LinkKind::Tap) {
        return Err(HostError::ForeignDevice {
            name: link.name.clone(),
            found: describe(&link.kind),
        });
    }
    if desired.has_v6() {
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
        PerFamily::each(|family| {
            let mtu = *desired.inner_mtu.of(family);
            (mtu < desired.mtu).then_some(mtu)
        }),
    );
    match routes::conflict(&picture.routes, &wanted, link.index) {
        Some(conflict) => Err(conflict_error(conflict, links)),
        None => Ok(DevicePlan {
            link: link.clone(),
            routes: wanted,
        }),
    }
}

/// Whether a route shows that its interface faces a router.
fn is_on_uplink(route: &Route) -> bool {
    route.prefix.addr().is_ipv6()
        && route.kind == RouteType::Unicast
        && (route.prefix.prefix_len() == 0 || route.protocol == u8::from(RouteProtocol::Ra))
}

pub(super) fn conflict_error(conflict: &Route, links: &[Link]) -> HostError {
    HostError::NetworkHeld {
        prefix: conflict.prefix,
        via: match (leads_to(conflict, links), conflict.gateway) {
            (Some(device), Some(gateway)) => format!("via {gateway} dev {device}"),
            (Some(device), None) => format!("to dev {device}"),
            (None, _) => format!("nowhere ({})", routes::type_name(conflict.kind)),
        },
        protocol: conflict.protocol,
        metric: conflict.metric,
    }
}

fn reported(step: &RouteStep, device: &str) -> Change {
    let target = |route: &WantedRoute| match route.target {
        Target::Device { source, mtu } => {
            let source = source.map_or(String::new(), |source| format!(" src {source}"));
            let mtu = mtu.map_or(String::new(), |mtu| format!(" mtu {mtu}"));
            format!("{} dev {device}{source}{mtu}", route.prefix)
        }
        Target::Unreachable => format!("unreachable {}", route.prefix),
    };
    match step {
        RouteStep::Add(route) => Change::RouteAdded(target(route)),
        RouteStep::Replace(route) => Change::RouteReplaced(target(route)),
        RouteStep::Remove(route) => Change::RouteRemoved(route.to_string()),
    }
}

fn describe(kind: &LinkKind) -> String {
    match kind {
        LinkKind::Tun => "a TUN".to_owned(),
        LinkKind::Tap => "a TAP".to_owned(),
        LinkKind::Loopback => "the loopback device".to_owned(),
        LinkKind::Other(word) if word.is_empty() => "hardware".to_owned(),
        LinkKind::Other(word) => format!("a {word} device"),
    }
}

/// Least MTU on which the kernel runs IPv6, in bytes (RFC 8200 section 5).
const LEAST_V6_MTU: u16 = 1280;
/// Packets that may wait in our device. With the kernel's 500 a single TCP flow loses its bursts there.
const QUEUE: u32 = 2048;
