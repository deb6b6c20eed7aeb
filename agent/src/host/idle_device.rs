//! Theory of operation
//!
//! The tunnel device between two agents. It is persistent: a stop, and SIGKILL of everything, leave it with its addresses
//! and routes, and with what the kernel remembers of connections that it masquerades to the device's addresses (that goes
//! with a device: net/netfilter/nf_nat_masquerade.c, `masq_device_event`). Without a process that holds a queue it has no
//! carrier, its routes do not count (`ignore_routes_with_linkdown`), and the routes of last resort refuse what pods send.
//!
//! *Idle* is a device of ours, by its alias, without a carrier. The next agent attaches to it where its shape is the one
//! wanted. Whatever has a carrier is held by a process, and is never touched here.

use dataplane::device::OWNER;
use ipnet::IpNet;
use netlink_packet_core::Nla;
use netlink_packet_route::link::{InfoData, LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::route::RouteType;
use rtnetlink::Handle;

use super::error::HostError;
use super::net::links::{self, Link, LinkKind};
use super::net::routes::PROTOCOL;
use super::{Host, KernelReader, Picture};

/// A device of ours that no process holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleDevice {
    link: Link,
    /// Whether it is a TAP.
    pub is_tap: bool,
    /// Whether it was made for several queues, as a device with offloads is.
    pub has_queues: bool,
    /// Whether a user or a group was given it: their processes could attach a queue and read packets. One without an owner, of
    /// a Tartan before, gets ours when it is attached to.
    pub is_given_away: bool,
}

/// What answers packets of pods while no agent does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unserved {
    /// The networks that the kernel refuses.
    pub refused: Vec<IpNet>,
    /// The device that stays for the next agent.
    pub device: Option<String>,
    /// A process holds the device: packets wait in it.
    pub is_held: bool,
}

impl IdleDevice {
    fn of(message: &LinkMessage) -> Option<IdleDevice> {
        let link = links::parse(message);
        if !is_idle(&link) {
            return None;
        }
        let is_tap = link.kind == LinkKind::Tap;
        let mut device = IdleDevice {
            link,
            is_tap,
            has_queues: false,
            is_given_away: false,
        };
        for attribute in details(message) {
            match attribute.kind() {
                IFLA_TUN_OWNER => device.is_given_away |= ![OWNER, 0].contains(&number(attribute)),
                IFLA_TUN_GROUP => device.is_given_away = true,
                IFLA_TUN_MULTI_QUEUE => device.has_queues = byte(attribute) != 0,
                _ => {}
            }
        }
        Some(device)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.link.name
    }
}

impl Host {
    /// The device of that name, if it is idle.
    pub async fn idle_device(&self, name: &str) -> Option<IdleDevice> {
        // Where the kernel cannot be asked, the attempt to make a device says more.
        let found = links::message(&self.netlink.handle, name).await.ok()??;
        IdleDevice::of(&found)
    }

    /// Idle devices that have another name: an earlier agent's, which had another `device-name`.
    ///
    /// # Errors
    /// The kernel's refusal to list.
    pub async fn idle_devices_beside(&self, name: &str) -> Result<Vec<IdleDevice>, HostError> {
        let all = links::messages(&self.netlink.handle).await?;
        let idle = all.iter().filter_map(IdleDevice::of);
        Ok(idle.filter(|device| device.link.name != name).collect())
    }

    /// Whether the device of that name is ours and a process holds it.
    pub async fn is_device_held(&self, name: &str) -> bool {
        let found = links::named(&self.netlink.handle, name).await;
        found.is_ok_and(|link| link.is_some_and(|link| link.is_ours() && link.carrier))
    }

    /// Deletes it, with its addresses and routes. One that is gone already is no error.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub async fn delete_idle(&self, device: &IdleDevice) -> Result<(), HostError> {
        links::delete(&self.netlink.handle, &device.link).await
    }

    /// Marks the device of that name as ours, if it is not yet.
    ///
    /// # Errors
    /// The kernel's refusal, or [`HostError::NoDevice`].
    pub async fn mark_device(&self, name: &str) -> Result<(), HostError> {
        let handle = &self.netlink.handle;
        match links::named(handle, name).await? {
            Some(link) if link.is_ours() => Ok(()),
            Some(link) => links::mark(handle, &link).await,
            None => Err(HostError::NoDevice {
                name: name.to_owned(),
            }),
        }
    }
}

impl KernelReader {
    /// What answers packets of pods now, if no agent does.
    ///
    /// # Errors
    /// The kernel's refusal to list.
    pub async fn unserved(&self) -> Result<Unserved, HostError> {
        Ok(unserved(&self.picture().await?))
    }
}

/// Every idle device.
pub(super) async fn list(handle: &Handle) -> Result<Vec<Link>, HostError> {
    let all = links::messages(handle).await?;
    Ok(all.iter().map(links::parse).filter(is_idle).collect())
}

pub(super) fn is_idle(link: &Link) -> bool {
    link.is_ours() && !link.carrier
}

fn unserved(picture: &Picture) -> Unserved {
    let device = picture.links.iter().find(|link| link.is_ours());
    let refused = picture.routes.iter().filter(|route| {
        route.protocol == PROTOCOL && route.kind == RouteType::Unreachable && !route.narrowed
    });
    // This node's own subnets are inside.
    let networks: Vec<IpNet> = refused.map(|route| route.prefix).collect();
    let is_inside = |net: &IpNet| {
        networks
            .iter()
            .any(|other| other != net && other.contains(net))
    };
    Unserved {
        refused: networks
            .iter()
            .filter(|net| !is_inside(net))
            .copied()
            .collect(),
        device: device.map(|link| link.name.clone()),
        is_held: device.is_some_and(|link| link.carrier),
    }
}

/// What the kernel tells of a TUN or TAP alone (tun.c, `tun_fill_info`).
fn details(message: &LinkMessage) -> impl Iterator<Item = &impl Nla> {
    let infos = message
        .attributes
        .iter()
        .filter_map(|attribute| match attribute {
            LinkAttribute::LinkInfo(infos) => Some(infos),
            _ => None,
        });
    let data = infos.flatten().filter_map(|info| match info {
        LinkInfo::Data(InfoData::Tun(data)) => Some(data),
        _ => None,
    });
    data.flatten()
}

/// The first byte of an attribute, of those that have one.
fn byte(attribute: &impl Nla) -> u8 {
    bytes(attribute).first().copied().unwrap_or_default()
}

/// The number of 32 bits that an attribute is, of those that are one.
fn number(attribute: &impl Nla) -> u32 {
    let bytes = bytes(attribute);
    let first = bytes.first_chunk().copied().unwrap_or_default();
    u32::from_ne_bytes(first)
}

fn bytes(attribute: &impl Nla) -> Vec<u8> {
    let mut value = vec![0; attribute.value_len()];
    attribute.emit_value(&mut value);
    value
}

/// if_link.h
const IFLA_TUN_OWNER: u16 = 1;
const IFLA_TUN_GROUP: u16 = 2;
const IFLA_TUN_MULTI_QUEUE: u16 = 7;
