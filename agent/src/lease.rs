//! A lease: one node's subnets and how peers reach it. Every kind of registry yields leases.

use std::net::IpAddr;

use dataplane::families::{PerFamily, PublicAddresses};
use encap::{Format, Mac};
use ipnet::IpNet;

/// A node, its subnets, and how peers reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The node's name, unique in the cluster.
    pub name: String,
    /// Pod subnets leased to the node, host bits zero, disjoint from every other lease's.
    pub subnets: Vec<IpNet>,
    /// The underlay addresses that peers send to (flannel: `PublicIP` and `PublicIPv6`).
    pub public: PublicAddresses,
    /// How peers send to the node (flannel: `BackendType`).
    pub format: Format,
    /// Inner destination MAC of the packets of each family that peers send to it in the `vxlan` format (flannel:
    /// `VtepMAC` in `BackendData` and `BackendV6Data`).
    pub vtep_mac: PerFamily<Mac>,
    /// Inner source prefixes outside its subnets that peers accept from it.
    pub accept_sources: Vec<IpNet>,
    /// Outer source addresses, in addition to `public`, that peers accept from it.
    pub underlay_sources: Vec<IpAddr>,
    /// Whether what kernels encapsulate, without an outer checksum, may be sent to it, where the registry says so. A Tartan
    /// node without the kernel path takes longer over such datagrams. Where nothing is said, its probes say it.
    pub kernel_path: Option<bool>,
}

/// The VTEP MAC of a node whose entry has none. Every node computes the same one.
///
/// Two bytes `0a:74` (locally administered, unicast), then four bytes of the public address: for IPv4 the
/// address itself, for IPv6 the 32-bit FNV-1a hash of its 16 octets, big-endian. 192.0.2.1 gives
/// `0a:74:c0:00:02:01`.
pub fn default_vtep_mac(public_ip: IpAddr) -> Mac {
    let [a, b, c, d] = match public_ip {
        IpAddr::V4(v4) => v4.octets(),
        IpAddr::V6(v6) => fnv1a(&v6.octets()).to_be_bytes(),
    };
    Mac([0x0a, 0x74, a, b, c, d])
}

/// Why other nodes cannot exchange packets with `address`; `None` if they can.
///
/// An IPv6 link-local address is ambiguous without an interface, and an IPv4-mapped one is a second form of an IPv4
/// address.
pub(crate) fn unfit_for_underlay(address: IpAddr) -> Option<&'static str> {
    match address {
        _ if address.is_unspecified() => Some("unspecified"),
        _ if address.is_loopback() => Some("loopback"),
        _ if address.is_multicast() => Some("multicast"),
        IpAddr::V4(v4) if v4.is_broadcast() => Some("broadcast"),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Some("link-local"),
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => Some("IPv4-mapped"),
        _ => None,
    }
}

pub(crate) fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(FNV_OFFSET, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(FNV_PRIME)
    })
}

// The published parameters of 32-bit FNV-1a.
const FNV_OFFSET: u32 = 0x811c_9dc5;
const FNV_PRIME: u32 = 0x0100_0193;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_mac_holds_the_ipv4_address() {
        assert_eq!(
            default_vtep_mac("192.0.2.1".parse().unwrap()).to_string(),
            "0a:74:c0:00:02:01"
        );
    }

    #[test]
    fn the_hash_matches_the_published_test_vectors() {
        assert_eq!(fnv1a(b""), 0x811c_9dc5);
        assert_eq!(fnv1a(b"a"), 0xe40c_292c);
        assert_eq!(fnv1a(b"foobar"), 0xbf9c_f968);
    }

    #[test]
    fn only_unicast_addresses_are_fit_for_the_underlay() {
        let fault = |text: &str| unfit_for_underlay(text.parse().unwrap());
        assert_eq!(fault("0.0.0.0"), Some("unspecified"));
        assert_eq!(fault("::"), Some("unspecified"));
        assert_eq!(fault("127.9.9.9"), Some("loopback"));
        assert_eq!(fault("::1"), Some("loopback"));
        assert_eq!(fault("224.0.0.1"), Some("multicast"));
        assert_eq!(fault("ff02::1"), Some("multicast"));
        assert_eq!(fault("255.255.255.255"), Some("broadcast"));
        assert_eq!(fault("fe80::1"), Some("link-local"));
        assert_eq!(fault("::ffff:192.0.2.1"), Some("IPv4-mapped"));
        assert_eq!((fault("192.0.2.1"), fault("2001:db8::1")), (None, None));
    }

    #[test]
    fn every_default_is_locally_administered_and_unicast() {
        for text in ["255.255.255.255", "0.0.0.0", "2001:db8::1", "2001:db8::2"] {
            let Mac(bytes) = default_vtep_mac(text.parse().unwrap());
            assert_eq!(bytes[0] & 0b11, 0b10, "{text}");
        }
        let of = |text: &str| default_vtep_mac(text.parse().unwrap());
        assert_ne!(of("2001:db8::1"), of("2001:db8::2"));
    }
}
