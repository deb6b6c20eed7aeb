//! Network interfaces as the kernel lists them, and the few changes made to ours.

use encap::Mac;
use futures_util::TryStreamExt;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::link::{
    InfoKind, LinkAttribute, LinkExtentMask, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
};
use rtnetlink::Handle;
use rustix::io::Errno;

use crate::host::error::{HostError, errno};

/// An interface that carries nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfService {
    /// Its name.
    pub name: String,
    /// It is up, and has no carrier; or it is down.
    pub up: bool,
}

/// What the kernel counts on one interface. Directions are the kernel's: `tx`
/// is what it handed to the device, for a TUN what the agent may read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Packets the kernel took from the device.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Packets the kernel took and dropped at the device.
    pub rx_dropped: u64,
    /// Packets the device refused as malformed.
    pub rx_errors: u64,
    /// Packets handed to the device. For a TUN those that a reader fetched.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Packets the kernel had to drop because the device's queue was full.
    pub tx_dropped: u64,
    /// Times the carrier came or went since the device was made.
    pub carrier_changes: u32,
    /// Whether the device is administratively up.
    pub up: bool,
    /// Whether it has a carrier; for a TUN: whether a queue is attached.
    pub carrier: bool,
    /// Its MTU, in bytes.
    pub mtu: u32,
    /// Packets that wait for a reader at most; for a TUN in each of its queues.
    pub queue: u32,
}

/// One interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) struct Link {
    pub(in crate::host) index: u32,
    pub(in crate::host) name: String,
    pub(in crate::host) kind: LinkKind,
    pub(in crate::host) alias: String,
    pub(in crate::host) up: bool,
    /// `IFF_MULTICAST`: the kernel and other programs send multicast on it.
    pub(in crate::host) multicast: bool,
    /// `IFF_NOARP` is clear: the kernel asks for the addresses of neighbours.
    pub(in crate::host) arp: bool,
    /// Its Ethernet address, if it has one.
    pub(in crate::host) mac: Option<Mac>,
    /// It has a carrier, be it up or down (`IFLA_CARRIER`).
    pub(in crate::host) carrier: bool,
    pub(in crate::host) mtu: u32,
    /// Packets that wait for a reader at most.
    pub(in crate::host) queue: u32,
    /// The index of the bridge or bond that it is a port of.
    pub(in crate::host) master: Option<u32>,
    /// It is one of a pair, and the other is in another network namespace.
    pub(in crate::host) leads_elsewhere: bool,
}

/// What an interface is, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) enum LinkKind {
    Loopback,
    Tun,
    Tap,
    /// Anything else, by the kernel's name for it ("veth", "vxlan", "" for hardware).
    Other(String),
}

impl Link {
    /// Whether this is a TUN or TAP that a Tartan agent marked as its own.
    pub(in crate::host) fn is_ours(&self) -> bool {
        matches!(self.kind, LinkKind::Tun | LinkKind::Tap) && self.alias == MARK
    }

    /// That the interface carries nothing, if so.
    pub(in crate::host) fn out_of_service(&self) -> Option<OutOfService> {
        let name = self.name.clone();
        (!self.up || !self.carrier).then_some(OutOfService { name, up: self.up })
    }
}

/// Every interface of the namespace, as the kernel lists them.
pub(in crate::host) async fn messages(handle: &Handle) -> Result<Vec<LinkMessage>, HostError> {
    let all = handle.link().get().execute().try_collect();
    all.await
        .map_err(|source| HostError::netlink("list", "the interfaces", source))
}

/// The same without their counters, which the kernel would add up over all cores.
pub(in crate::host) async fn messages_without_counters(
    handle: &Handle,
) -> Result<Vec<LinkMessage>, HostError> {
    let mask = vec![LinkExtentMask::SkipStats];
    let request = handle.link().get();
    let request = request.set_filter_mask(AddressFamily::Unspec, mask);
    let all = request.execute().try_collect();
    all.await
        .map_err(|source| HostError::netlink("list", "the interfaces", source))
}

/// The interface of that name among those listed.
pub(in crate::host) fn find<'a>(links: &'a [Link], name: &str) -> Option<&'a Link> {
    links.iter().find(|link| link.name == name)
}

/// The interface of that name, if there is one.
pub(in crate::host) async fn named(handle: &Handle, name: &str) -> Result<Option<Link>, HostError> {
    Ok(message(handle, name).await?.as_ref().map(parse))
}

/// The interface of that name with its Ethernet address, if there is one.
pub(in crate::host) async fn named_with_mac(
    handle: &Handle,
    name: &str,
) -> Result<Option<(Link, Option<Mac>)>, HostError> {
    let found = message(handle, name).await?;
    Ok(found.map(|message| {
        let mac = message.attributes.iter().find_map(|attribute| {
            let LinkAttribute::Address(bytes) = attribute else {
                return None;
            };
            bytes.as_slice().try_into().ok().map(Mac)
        });
        (parse(&message), mac)
    }))
}

/// The name of the interface that a message is about.
pub(in crate::host) fn name(message: &LinkMessage) -> Option<&str> {
    let mut attributes = message.attributes.iter();
    attributes.find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(&**name),
        _ => None,
    })
}

/// The kernel's counters of one interface.
pub(in crate::host) async fn stats(handle: &Handle, name: &str) -> Result<LinkStats, HostError> {
    match message(handle, name).await? {
        Some(message) => Ok(parse_stats(&message)),
        None => Err(HostError::NoDevice {
            name: name.to_owned(),
        }),
    }
}

/// Sets the MTU, in bytes.
pub(in crate::host) async fn set_mtu(
    handle: &Handle,
    link: &Link,
    mtu: u16,
) -> Result<(), HostError> {
    let mut message = addressed_to(link);
    message.attributes.push(LinkAttribute::Mtu(u32::from(mtu)));
    set(handle, message, "set the MTU of", link).await
}

/// Sets how many packets may wait for a reader.
pub(in crate::host) async fn set_queue(
    handle: &Handle,
    link: &Link,
    queue: u32,
) -> Result<(), HostError> {
    let mut message = addressed_to(link);
    message.attributes.push(LinkAttribute::TxQueueLen(queue));
    set(handle, message, "set the queue length of", link).await
}

/// Marks the device as ours, so that a later clean-up knows it.
pub(in crate::host) async fn mark(handle: &Handle, link: &Link) -> Result<(), HostError> {
    set_alias(handle, link, MARK.to_owned()).await
}

/// Sets the alias.
pub(in crate::host) async fn set_alias(
    handle: &Handle,
    link: &Link,
    alias: String,
) -> Result<(), HostError> {
    let mut message = addressed_to(link);
    message.attributes.push(LinkAttribute::IfAlias(alias));
    set(handle, message, "set the alias of", link).await
}

/// Sets the hardware address.
pub(in crate::host) async fn set_mac(
    handle: &Handle,
    link: &Link,
    mac: &[u8],
) -> Result<(), HostError> {
    let mut message = addressed_to(link);
    message
        .attributes
        .push(LinkAttribute::Address(mac.to_vec()));
    set(handle, message, "set the hardware address of", link).await
}

/// Brings the device up.
pub(in crate::host) async fn set_up(handle: &Handle, link: &Link) -> Result<(), HostError> {
    let mut message = addressed_to(link);
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    set(handle, message, "bring up", link).await
}

/// Brings the device down.
pub(in crate::host) async fn set_down(handle: &Handle, link: &Link) -> Result<(), HostError> {
    let mut message = addressed_to(link);
    message.header.change_mask = LinkFlags::Up;
    set(handle, message, "bring down", link).await
}

/// Renames the device, which must be down.
pub(in crate::host) async fn rename(
    handle: &Handle,
    link: &Link,
    name: &str,
) -> Result<(), HostError> {
    let mut message = addressed_to(link);
    message
        .attributes
        .push(LinkAttribute::IfName(name.to_owned()));
    set(handle, message, "rename", link).await
}

/// Clears `IFF_MULTICAST`.
pub(in crate::host) async fn disable_multicast(
    handle: &Handle,
    link: &Link,
) -> Result<(), HostError> {
    let mut message = addressed_to(link);
    message.header.change_mask = LinkFlags::Multicast;
    set(handle, message, "disable multicast on", link).await
}

/// Sets `IFF_NOARP`: the kernel then takes every address behind the device for one at the device's own Ethernet address
/// (net/ipv4/arp.c, `arp_constructor`; net/ipv6/ndisc.c, `ndisc_constructor`).
pub(in crate::host) async fn disable_arp(handle: &Handle, link: &Link) -> Result<(), HostError> {
    let mut message = addressed_to(link);
    message.header.flags = LinkFlags::Noarp;
    message.header.change_mask = LinkFlags::Noarp;
    set(handle, message, "disable ARP on", link).await
}

/// Deletes the device. One that is gone already is no error.
pub(in crate::host) async fn delete(handle: &Handle, link: &Link) -> Result<(), HostError> {
    match handle.link().del(link.index).execute().await {
        Err(error) if errno(&error) == Some(Errno::NODEV) => Ok(()),
        done => done.map_err(|source| HostError::netlink("delete", &link.name, source)),
    }
}

/// Whether an interface has that index.
pub(in crate::host) async fn is_there(handle: &Handle, index: u32) -> Result<bool, HostError> {
    let mut answer = Box::pin(handle.link().get().match_index(index).execute());
    match answer.try_next().await {
        Err(error) if errno(&error) == Some(Errno::NODEV) => Ok(false),
        found => found
            .map(|found| found.is_some())
            .map_err(|source| HostError::netlink("look up", format!("interface {index}"), source)),
    }
}

pub(in crate::host) async fn message(
    handle: &Handle,
    name: &str,
) -> Result<Option<LinkMessage>, HostError> {
    let mut answer = Box::pin(handle.link().get().match_name(name).execute());
    match answer.try_next().await {
        Err(error) if errno(&error) == Some(Errno::NODEV) => Ok(None),
        found => found.map_err(|source| HostError::netlink("look up", name, source)),
    }
}

async fn set(
    handle: &Handle,
    message: LinkMessage,
    doing: &'static str,
    link: &Link,
) -> Result<(), HostError> {
    handle
        .link()
        .change(message)
        .execute()
        .await
        .map_err(|source| HostError::netlink(doing, &link.name, source))
}

fn addressed_to(link: &Link) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = link.index;
    message
}

pub(in crate::host) fn parse(message: &LinkMessage) -> Link {
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        kind: kind(message),
        alias: String::new(),
        up: message.header.flags.contains(LinkFlags::Up),
        multicast: message.header.flags.contains(LinkFlags::Multicast),
        arp: !message.header.flags.contains(LinkFlags::Noarp),
        mac: None,
        carrier: false,
        mtu: 0,
        queue: 0,
        master: None,
        leads_elsewhere: false,
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            // IFF_LOWER_UP would be clear of a device that is down too, also while a process holds it.
            LinkAttribute::Carrier(carrier) => link.carrier = *carrier != 0,
            LinkAttribute::Address(bytes) => {
                link.mac = bytes.as_slice().try_into().ok().map(Mac);
            }
            LinkAttribute::IfAlias(alias) => link.alias.clone_from(alias),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::TxQueueLen(queue) => link.queue = *queue,
            LinkAttribute::Controller(master) => link.master = Some(*master),
            // Only where that namespace is not this one (net/core/rtnetlink.c, `rtnl_fill_link_netnsid`).
            LinkAttribute::LinkNetNsId(_) => link.leads_elsewhere = true,
            _ => {}
        }
    }
    link
}

fn kind(message: &LinkMessage) -> LinkKind {
    if message.header.flags.contains(LinkFlags::Loopback) {
        return LinkKind::Loopback;
    }
    let info = message.attributes.iter().find_map(|attribute| {
        let LinkAttribute::LinkInfo(infos) = attribute else {
            return None;
        };
        infos.iter().find_map(|info| match info {
            LinkInfo::Kind(kind) => Some(kind.clone()),
            _ => None,
        })
    });
    match info {
        // TUN and TAP share one kind; only a TAP has a link-layer address.
        Some(InfoKind::Tun) if message.header.link_layer_type == LinkLayerType::None => {
            LinkKind::Tun
        }
        Some(InfoKind::Tun) => LinkKind::Tap,
        Some(other) => LinkKind::Other(other.to_string()),
        None => LinkKind::Other(String::new()),
    }
}

pub(in crate::host) fn parse_stats(message: &LinkMessage) -> LinkStats {
    let mut stats = LinkStats {
        up: message.header.flags.contains(LinkFlags::Up),
        ..LinkStats::default()
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Stats64(kernel) => {
                stats.rx_packets = kernel.rx_packets;
                stats.rx_bytes = kernel.rx_bytes;
                stats.rx_dropped = kernel.rx_dropped;
                stats.rx_errors = kernel.rx_errors;
                stats.tx_packets = kernel.tx_packets;
                stats.tx_bytes = kernel.tx_bytes;
                stats.tx_dropped = kernel.tx_dropped;
            }
            LinkAttribute::CarrierChanges(changes) => stats.carrier_changes = *changes,
            LinkAttribute::Carrier(carrier) => stats.carrier = *carrier != 0,
            LinkAttribute::Mtu(mtu) => stats.mtu = *mtu,
            LinkAttribute::TxQueueLen(queue) => stats.queue = *queue,
            _ => {}
        }
    }
    stats
}

/// The alias (`ip link show` prints it) that marks a TUN or TAP as ours.
const MARK: &str = "Tartan overlay";
