//! The host's side of each pod's link, as the plugin made it (`cni-shim/src/veth.rs`), and its repair.
//!
//! Theory of operation. Of an attachment that is complete, the host's end is up, with the alias that says whose it is, the
//! MAC that every pod knows as its gateway's, and the MTU of the record; each address of the pod is routed there, and has a
//! permanent neighbour entry; the settings of the interface are those of a pod's end. The check of sources asks the same
//! routes: without its route a pod is mute. All of it is read from lists that a refresh reads anyway, and one of neighbours.
//!
//! Where something differs, it is repaired under the lock of the attachment, of the record as it is then: so neither an ADD
//! nor a DEL at work is crossed. One that is at work brings announcements of its own, and the next refresh looks again.
//!
//! An attachment whose end is missing is not made anew: the kernel deletes a veth with its other end, in the pod.
//! A route of another program in the place of ours, or before it, stays and is told ([`super::routes_to_pods`]).

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use cni_shim::attachment::Lock;
use cni_shim::link_name::HOST_MAC;
use cni_shim::pod_link::{PodNetworks, PodRoute};
use cni_shim::protocol::AttachmentKey;
use cni_shim::protocol::request::parse_mac;
use cni_shim::{Attachment, RunDir, State, pod_end};
use ipnet::IpNet;

use super::Host;
use super::change::Change;
use super::error::HostError;
use super::net::links;
use super::net::neighbours::{self, Neighbour};
use super::net::pod_links::{PodLink, PodLinks};
use super::net::routes;
use super::picture::Picture;
use super::quick_check::QuickLinks;
use super::routes_to_pods::RoutesToPods;
use super::settings::setting::Interface;
use super::settings::sysctls;

/// What became of the links of pods.
#[derive(Debug, Default)]
pub struct MendedPods {
    /// What another process had changed and was put right.
    pub repairs: Vec<Change>,
    /// What was never as it is now: the aliases of pods that an older plugin attached.
    pub set_up: Vec<Change>,
    /// Attachments whose link is not as it should be, by their place in the list, and why.
    pub faults: Vec<(usize, String)>,
    /// The plugin is at work on an attachment whose link differs.
    pub is_busy: bool,
    /// The neighbour entries that pods need, by interface and address; `None` where the kernel's could not be listed, so
    /// that nothing is known of them.
    pub neighbours: Option<HashSet<(u32, IpAddr)>>,
    /// Why packets of a pod without a route may be counted as forged.
    pub uncounted: Option<HostError>,
}

/// What one attachment needs and the kernel does not have.
#[derive(Debug, Default)]
struct Missing {
    link: Vec<LinkFault>,
    routes: Vec<PodRoute>,
    neighbours: Vec<Neighbour>,
}

/// What of an interface itself differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkFault {
    Alias { is_new: bool },
    Mac,
    Mtu { found: u32 },
    Settings,
    Down,
}

impl Missing {
    fn is_nothing(&self) -> bool {
        self.link.is_empty() && self.routes.is_empty() && self.neighbours.is_empty()
    }
}

impl Host {
    /// Where pods live. Until this is set, no route to a pod is made.
    pub fn set_pod_networks(&mut self, networks: PodNetworks) {
        self.pod_networks = networks;
    }

    /// Compares the links of all attachments with the kernel's lists, and repairs what differs.
    pub async fn mend_pods(
        &mut self,
        picture: &Picture,
        run: &RunDir,
        attachments: &[impl AsRef<Attachment>],
    ) -> MendedPods {
        let mut mended = MendedPods::default();
        let complete = attachments.iter().map(AsRef::as_ref).enumerate();
        let complete: Vec<(usize, &Attachment, &str, &PodLink)> = complete
            .filter(|(_, attachment)| attachment.state == State::Attached)
            .filter_map(|(place, attachment)| {
                let (name, end) = picture.pod_links().end_of(attachment)?;
                Some((place, attachment, name, end))
            })
            .collect();
        let networks = self.pod_networks.clone();
        let routes = RoutesToPods::of(picture, &networks);
        let sources = complete.iter().map(|(_, attachment, name, _)| {
            let wanted = routes.wanted(attachment).into_iter();
            let prefixes = wanted.map(|route| route.prefix);
            ((*name).to_owned(), prefixes.collect())
        });
        let mut sources: Vec<(String, Vec<IpNet>)> = sources.collect();
        sources.sort();
        match self.apply_pod_rules(sources).await {
            Ok(changes) => mended.repairs.extend(changes),
            Err(error) => mended.uncounted = Some(error),
        }
        if complete.is_empty() {
            mended.neighbours = Some(HashSet::new());
            return mended;
        }
        let handle = &self.netlink.handle;
        let neighbours = match neighbours::list(handle).await {
            Ok(neighbours) => neighbours,
            Err(error) => {
                let reason = crate::causes::causes(&error);
                mended.faults = complete.iter().map(|c| (c.0, reason.clone())).collect();
                return mended;
            }
        };
        let neighbours: HashMap<(u32, IpAddr), Vec<u8>> = neighbours
            .into_iter()
            .map(|found| ((found.index, found.address), found.mac))
            .collect();
        let mut needed = HashSet::new();
        for (place, attachment, name, end) in complete {
            let wanted = wanted_neighbours(attachment, end.index, &networks);
            needed.extend(wanted.iter().map(|wanted| (wanted.index, wanted.address)));
            let is_missing = |wanted: &Neighbour| {
                neighbours.get(&(wanted.index, wanted.address)) != Some(&wanted.mac)
            };
            let found = routes.faults(attachment, end.index);
            let missing = Missing {
                link: link_faults(attachment, end),
                routes: found.missing,
                neighbours: wanted.into_iter().filter(is_missing).collect(),
            };
            if let Some(reason) = found.reason {
                mended.faults.push((place, reason));
            }
            if missing.is_nothing() {
                continue;
            }
            match self
                .mend(run, attachment, name, end, missing, &mut mended)
                .await
            {
                Ok(()) => {}
                Err(error) => mended.faults.push((place, crate::causes::causes(&error))),
            }
        }
        mended.neighbours = Some(needed);
        mended
    }

    /// Whether what is announced nowhere is right: the settings of the hosts' ends of these attachments, as just listed;
    /// without a list, whether there is none to check.
    pub fn pods_pass_quick_check<'a>(
        links: Option<&QuickLinks>,
        attachments: impl Iterator<Item = &'a Attachment>,
    ) -> bool {
        let mut attached = attachments.filter(|attachment| attachment.state == State::Attached);
        let is_right = |attachment: &Attachment| {
            let end = |links: &'_ QuickLinks| {
                let end = links.pods.end_of(attachment);
                end.is_none_or(|(_, end)| link_faults(attachment, end).is_empty())
            };
            links.is_some_and(end)
        };
        attached.all(is_right)
    }

    /// Repairs one link, unless the plugin is at work on it.
    async fn mend(
        &self,
        run: &RunDir,
        attachment: &Attachment,
        name: &str,
        end: &PodLink,
        missing: Missing,
        mended: &mut MendedPods,
    ) -> Result<(), HostError> {
        let (container, ifname) = (&attachment.container, &attachment.ifname);
        let Ok(_lock) = Lock::take(run, container, ifname, Duration::ZERO) else {
            mended.is_busy = true;
            return Ok(());
        };
        let path = Attachment::path(run, container, ifname);
        let is_unchanged =
            path.is_ok_and(|path| Attachment::read(&path).is_ok_and(|found| found == *attachment));
        let handle = &self.netlink.handle;
        let found = links::named(handle, name).await?;
        let Some(link) = found.filter(|link| is_unchanged && link.index == end.index) else {
            return Ok(());
        };
        for fault in missing.link {
            match fault {
                LinkFault::Alias { is_new } => {
                    links::set_alias(handle, &link, pod_end::alias(&key(attachment))).await?;
                    let change = Change::AliasSet(name.to_owned());
                    let list = if is_new {
                        &mut mended.set_up
                    } else {
                        &mut mended.repairs
                    };
                    list.push(change);
                }
                LinkFault::Mac => {
                    links::set_mac(handle, &link, &HOST_MAC).await?;
                    mended.repairs.push(Change::MacSet(name.to_owned()));
                }
                LinkFault::Mtu { found } => {
                    links::set_mtu(handle, &link, attachment.mtu).await?;
                    mended.repairs.push(Change::Mtu {
                        device: name.to_owned(),
                        found,
                        set: attachment.mtu,
                    });
                }
                LinkFault::Settings => {
                    if let Some(interface) = Interface::parse(name) {
                        let altered = sysctls::set_pod_settings(&interface, has_v6(attachment))?;
                        mended
                            .repairs
                            .extend(altered.into_iter().map(Change::Setting));
                    }
                }
                LinkFault::Down => {
                    links::set_up(handle, &link).await?;
                    mended.repairs.push(Change::BroughtUp(name.to_owned()));
                }
            }
        }
        for neighbour in &missing.neighbours {
            neighbours::set(handle, neighbour).await?;
            let (address, device) = (neighbour.address, name.to_owned());
            mended
                .repairs
                .push(Change::NeighbourSet { address, device });
        }
        for route in &missing.routes {
            if !routes::add_to_pod(handle, route, end.index).await? {
                // Something came there since the picture; the next one shows what.
                continue;
            }
            let words = match route.gateway {
                Some(gateway) => format!("{} via {gateway} dev {name}", route.prefix),
                None => format!("{} dev {name}", route.prefix.addr()),
            };
            mended.repairs.push(Change::RouteAdded(words));
        }
        Ok(())
    }
}

impl PodLinks {
    /// The host's end of an attachment and its name: the interface that the record names if that is it, or else the one
    /// whose alias says so. A damaged record may name any.
    pub(in crate::host) fn end_of(&self, attachment: &Attachment) -> Option<(&str, &PodLink)> {
        let key = key(attachment);
        let networks = [&*attachment.network];
        let is_end = |(name, end): &(&str, &PodLink)| {
            // Its alias may have been overwritten; then name and MAC decide, as where it has none.
            let seen = end.seen(name);
            let unnamed = pod_end::SeenInterface { alias: "", ..seen };
            let is_another_pods = seen.alias.starts_with(pod_end::ALIAS);
            pod_end::is_end(seen, &key, &networks)
                || !is_another_pods && pod_end::is_end(unnamed, &key, &networks)
        };
        let named = self.end(&attachment.host_ifname);
        let named = named.map(|end| (&*attachment.host_ifname, end));
        match named.filter(is_end) {
            Some((name, _)) => self.named_end(name),
            None => self.ends().find(is_end),
        }
    }

    /// An attachment's end.
    pub fn host_end(&self, attachment: &Attachment) -> Option<HostEnd> {
        let (name, end) = self.end_of(attachment)?;
        Some(HostEnd {
            name: name.to_owned(),
            ifindex: end.index,
            mac: end.mac.as_slice().try_into().ok().map(encap::Mac)?,
            namespace: end.namespace,
        })
    }

    /// Whether the attachment has an end.
    pub fn has_end_of(&self, attachment: &Attachment) -> bool {
        self.end_of(attachment).is_some()
    }
}

/// The host's end of an attachment.
pub struct HostEnd {
    /// Its name.
    pub name: String,
    /// Its interface index.
    pub ifindex: u32,
    /// Its MAC.
    pub mac: encap::Mac,
    /// The number that this namespace has for the pod's; `None` where the kernel does not tell.
    pub namespace: Option<u32>,
}

fn key(attachment: &Attachment) -> AttachmentKey {
    let (container, ifname) = (attachment.container.clone(), attachment.ifname.clone());
    AttachmentKey { container, ifname }
}

fn has_v6(attachment: &Attachment) -> bool {
    let mut addresses = attachment.addresses.iter();
    addresses.any(|address| address.addr().is_ipv6())
}

/// In the order in which they are to be repaired.
fn link_faults(attachment: &Attachment, end: &PodLink) -> Vec<LinkFault> {
    let mut faults = Vec::new();
    if end.alias != pod_end::alias(&key(attachment)) {
        let is_new = end.alias.is_empty();
        faults.push(LinkFault::Alias { is_new });
    }
    if end.mac != HOST_MAC {
        faults.push(LinkFault::Mac);
    }
    // 0 in a record of an older plugin.
    if attachment.mtu != 0 && end.mtu != u32::from(attachment.mtu) {
        faults.push(LinkFault::Mtu { found: end.mtu });
    }
    if !end.settings.are_of_a_pod(has_v6(attachment)) {
        faults.push(LinkFault::Settings);
    }
    if !end.up {
        faults.push(LinkFault::Down);
    }
    faults
}

/// Of addresses that are routed to the pod.
fn wanted_neighbours(
    attachment: &Attachment,
    index: u32,
    networks: &PodNetworks,
) -> Vec<Neighbour> {
    let Some(mac) = parse_mac(&attachment.mac) else {
        return Vec::new();
    };
    let addresses = attachment.addresses.iter().map(IpNet::addr);
    let neighbour = |address| Neighbour {
        index,
        address,
        mac: mac.to_vec(),
    };
    addresses
        .filter(|address| networks.has_for_pod(*address))
        .map(neighbour)
        .collect()
}
