//! Addresses of the node's interfaces.

use std::net::{IpAddr, Ipv6Addr};

use futures_util::TryStreamExt;
use ipnet::IpNet;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use rtnetlink::Handle;
use rustix::io::Errno;

use super::links::Link;
use crate::host::error::{HostError, errno};

/// One address of one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::host) struct InterfaceAddress {
    /// The interface.
    pub(in crate::host) index: u32,
    /// The address, with the prefix length it was given.
    pub(in crate::host) address: IpNet,
    /// What the kernel says of it (`IFA_FLAGS`).
    pub(in crate::host) flags: AddressFlags,
}

impl InterfaceAddress {
    /// Whether packets of other hosts can carry the address: not loopback, not
    /// IPv6 link-local.
    pub(in crate::host) fn is_routable(&self) -> bool {
        match self.address.addr() {
            IpAddr::V4(v4) => !v4.is_loopback(),
            IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
        }
    }

    /// Whether new connections are to use the address: its preferred lifetime has not ended, and no other host of the
    /// link was found to have it (RFC 4862).
    pub(in crate::host) fn is_lasting(&self) -> bool {
        let flags = AddressFlags::Deprecated | AddressFlags::Dadfailed;
        !self.flags.intersects(flags)
    }

    /// flannel's order of the addresses of an interface (`pkg/ip/iface.go`, compareAddrs); the least comes first. The
    /// flag that says temporary in IPv6 says secondary in IPv4.
    pub(in crate::host) fn preference(&self) -> (bool, bool, bool) {
        let link_local = match self.address.addr() {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        (
            link_local,
            !self.flags.contains(AddressFlags::Permanent),
            self.flags.contains(AddressFlags::Secondary),
        )
    }
}

/// Every address of the namespace.
pub(in crate::host) async fn list(handle: &Handle) -> Result<Vec<InterfaceAddress>, HostError> {
    let messages: Vec<AddressMessage> = handle
        .address()
        .get()
        .execute()
        .try_collect()
        .await
        .map_err(|source| HostError::netlink("list", "the addresses", source))?;
    Ok(messages.iter().filter_map(parse).collect())
}

/// Puts an address on a device. One that is there already is no error.
pub(in crate::host) async fn add(
    handle: &Handle,
    link: &Link,
    address: IpNet,
) -> Result<(), HostError> {
    let mut request = handle
        .address()
        .add(link.index, address.addr(), address.prefix_len());
    if address.addr().is_ipv6() {
        // A TUN has no neighbours to ask, and a route may not name a source
        // that is still tentative.
        request
            .message_mut()
            .attributes
            .push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    match request.execute().await {
        Err(error) if errno(&error) == Some(Errno::EXIST) => Ok(()),
        done => done.map_err(|source| {
            HostError::netlink(
                "add an address:",
                format!("{address} to {}", link.name),
                source,
            )
        }),
    }
}

/// Takes an address from a device. One that is gone already is no error.
pub(in crate::host) async fn remove(
    handle: &Handle,
    link: &Link,
    address: IpNet,
) -> Result<(), HostError> {
    let mut message = AddressMessage::default();
    message.header.index = link.index;
    message.header.prefix_len = address.prefix_len();
    message.header.family = match address {
        IpNet::V4(_) => AddressFamily::Inet,
        IpNet::V6(_) => AddressFamily::Inet6,
    };
    message
        .attributes
        .push(AddressAttribute::Local(address.addr()));
    message
        .attributes
        .push(AddressAttribute::Address(address.addr()));
    match handle.address().del(message).execute().await {
        Err(error) if errno(&error) == Some(Errno::ADDRNOTAVAIL) => Ok(()),
        done => done.map_err(|source| {
            HostError::netlink(
                "remove an address:",
                format!("{address} from {}", link.name),
                source,
            )
        }),
    }
}

/// Addresses to add to our device and to take from it. Taken are addresses of
/// the cluster network that are not wanted and IPv6 link-local ones, which
/// would make the kernel send on a link that has no neighbours; addresses of
/// other ranges stay.
pub(in crate::host) fn plan(
    held: &[InterfaceAddress],
    device: u32,
    wanted: &[IpNet],
    cluster: &[IpNet],
) -> (Vec<IpNet>, Vec<IpNet>) {
    let on_device: Vec<IpNet> = held
        .iter()
        .filter(|held| held.index == device)
        .map(|held| held.address)
        .collect();
    let mut missing: Vec<IpNet> = Vec::new();
    for address in wanted {
        if !on_device.contains(address) && !missing.contains(address) {
            missing.push(*address);
        }
    }
    let surplus = on_device
        .into_iter()
        .filter(|address| !wanted.contains(address))
        .filter(|address| {
            let addr = address.addr();
            cluster.iter().any(|network| network.contains(&addr)) || is_link_local6(addr)
        })
        .collect();
    (missing, surplus)
}

fn is_link_local6(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if Ipv6Addr::is_unicast_link_local(&v6))
}

fn parse(message: &AddressMessage) -> Option<InterfaceAddress> {
    let mut local = None;
    let mut address = None;
    let mut flags = AddressFlags::from_bits_retain(u32::from(message.header.flags.bits()));
    for attribute in &message.attributes {
        match attribute {
            // Has all of them, and the header the lowest eight.
            AddressAttribute::Flags(all) => flags = *all,
            AddressAttribute::Local(found) => local = Some(*found),
            AddressAttribute::Address(found) => address = Some(*found),
            _ => {}
        }
    }
    // On a point-to-point IPv4 address IFA_ADDRESS is the other end; IPv6
    // gives IFA_LOCAL only there.
    let ours = local.or(address)?;
    Some(InterfaceAddress {
        index: message.header.index,
        address: IpNet::new(ours, message.header.prefix_len).ok()?,
        flags,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn held(index: u32, text: &str) -> InterfaceAddress {
        InterfaceAddress {
            index,
            address: net(text),
            flags: AddressFlags::Permanent,
        }
    }

    #[test]
    fn only_our_device_and_only_the_cluster_network_are_touched() {
        let now = [
            held(3, "10.244.9.0/32"),
            held(3, "192.168.7.1/24"),
            held(3, "fe80::1/64"),
            held(4, "10.244.1.1/24"),
        ];
        let (missing, surplus) = plan(&now, 3, &[net("10.244.1.0/32")], &[net("10.244.0.0/16")]);
        assert_eq!(missing, [net("10.244.1.0/32")]);
        assert_eq!(surplus, [net("10.244.9.0/32"), net("fe80::1/64")]);
    }

    #[test]
    fn what_is_there_is_not_added_again() {
        let now = [held(3, "10.244.1.0/32")];
        let wanted = [net("10.244.1.0/32"), net("10.244.1.0/32")];
        assert_eq!(
            plan(&now, 3, &wanted, &[net("10.244.0.0/16")]),
            (vec![], vec![])
        );
        assert_eq!(plan(&now, 4, &wanted, &[]).0, [net("10.244.1.0/32")]);
    }

    #[test]
    fn a_right_address_with_a_wrong_length_is_exchanged() {
        let now = [held(3, "10.244.1.0/24")];
        let (missing, surplus) = plan(&now, 3, &[net("10.244.1.0/32")], &[net("10.244.0.0/16")]);
        assert_eq!(missing, [net("10.244.1.0/32")]);
        assert_eq!(surplus, [net("10.244.1.0/24")]);
    }

    #[test]
    fn loopback_and_link_local_are_not_routable() {
        for (text, routable) in [
            ("127.0.0.1/8", false),
            ("::1/128", false),
            ("fe80::1/64", false),
            ("192.0.2.1/24", true),
            ("2001:db8::1/64", true),
        ] {
            assert_eq!(held(1, text).is_routable(), routable, "{text}");
        }
    }
}
