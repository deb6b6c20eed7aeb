//! Advertises the pod's IPv6 addresses on its link: an unsolicited neighbour
//! advertisement (RFC 4861 section 7.2.6), which the kernel sends for none
//! that skips duplicate detection. The gratuitous ARP of IPv4 it sends itself,
//! when the interface comes up with its address (`arp_notify`).

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddrV6};
use std::os::fd::OwnedFd;

use ipnet::IpNet;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sockopt};

/// A socket for advertisements in the calling thread's namespace.
pub(crate) fn open() -> io::Result<OwnedFd> {
    let protocol = Some(ipproto::ICMPV6);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET6, SocketType::RAW, flags, protocol)?;
    // "The Hop Limit field has a value of 255": proof that it was not forwarded.
    sockopt::set_ipv6_multicast_hops(&socket, 255)?;
    Ok(socket)
}

/// Advertises every IPv6 address once. A failure is ignored: both ends have each other's hardware address already.
pub(crate) fn advertise(socket: &OwnedFd, index: u32, mac: [u8; 6], addresses: &[IpNet]) {
    for address in addresses {
        if let IpAddr::V6(address) = address.addr() {
            let _ = rustix::net::bind(socket, &SocketAddrV6::new(address, 0, 0, index));
            let all_nodes = SocketAddrV6::new(ALL_NODES, 0, 0, index);
            let message = advertisement(address, mac);
            let _ = rustix::net::sendto(socket, &message, SendFlags::empty(), &all_nodes);
        }
    }
}

/// RFC 4861 section 4.4; the kernel fills the checksum in.
fn advertisement(target: Ipv6Addr, mac: [u8; 6]) -> Vec<u8> {
    let mut message = vec![NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, OVERRIDE, 0, 0, 0];
    message.extend(target.octets());
    // Option: target link-layer address, one unit of eight bytes.
    message.extend([2, 1]);
    message.extend(mac);
    message
}

const NEIGHBOUR_ADVERTISEMENT: u8 = 136;

const OVERRIDE: u8 = 0x20;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advertisement_is_that_of_the_rfc() {
        let message = advertisement("fd00::5".parse().unwrap(), [2, 0, 0, 0, 0, 9]);
        assert_eq!(message.len(), 32);
        assert_eq!(message[..5], [136, 0, 0, 0, 0x20]);
        assert_eq!(message[8..10], [0xfd, 0]);
        assert_eq!(message[23..], [5, 2, 1, 2, 0, 0, 0, 0, 9]);
    }
}
