//! Names and MAC addresses of an attachment's two ends, from what names the
//! attachment: DEL finds the link without any state.
//!
//! The host end is `tt` and ten hexadecimal digits: 12 of the 15 bytes an
//! interface name may have (IFNAMSIZ less its zero), and no name that systemd
//! or NetworkManager match. Forty bits of hash collide on a node with 250
//! pods once in 35 million; a name that another record holds is passed over
//! by counting `attempt` up.
//!
//! The hash is FNV-1a, 64 bits, finished by SplitMix64's mixer. It must never
//! change: records of an older plugin would name other links.

use crate::attachment::HOST_IFNAME_PREFIX;
use crate::protocol::AttachmentKey;

/// MAC of every host end. Locally administered, and the same for all: each
/// pod sees one neighbour, its gateway, whichever node it is on.
pub const HOST_MAC: [u8; 6] = [0xee; 6];

/// Name of the host end.
pub fn host_ifname(network: &str, key: &AttachmentKey, attempt: u8) -> String {
    let hash = hash(network, key, attempt);
    format!("{HOST_IFNAME_PREFIX}{:010x}", hash >> 24)
}

/// MAC of the pod's end: locally administered, unicast, the rest from the hash.
pub fn pod_mac(network: &str, key: &AttachmentKey) -> [u8; 6] {
    let [a, b, c, d, e, ..] = hash(network, key, 0).to_le_bytes();
    [0x02, a, b, c, d, e]
}

/// `xx:xx:xx:xx:xx:xx`.
pub fn mac_text(mac: &[u8]) -> String {
    let bytes: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.join(":")
}

fn hash(network: &str, key: &AttachmentKey, attempt: u8) -> u64 {
    // No part holds a zero byte, so zeros keep them apart.
    let parts = [network, &key.container, &key.ifname];
    let bytes = parts
        .iter()
        .flat_map(|part| part.bytes().chain([0]))
        .chain([attempt]);
    let sum = bytes.fold(FNV_BASIS, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(FNV_PRIME)
    });
    let sum = (sum ^ (sum >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let sum = (sum ^ (sum >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    sum ^ (sum >> 31)
}

const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn key(container: &str, ifname: &str) -> AttachmentKey {
        AttachmentKey {
            container: container.to_owned(),
            ifname: ifname.to_owned(),
        }
    }

    #[test]
    fn the_names_are_those_of_the_first_release() {
        assert_eq!(host_ifname("tartan", &key("c1", "eth0"), 0), "tte6a4c67030");
        assert_eq!(
            mac_text(&pod_mac("tartan", &key("c1", "eth0"))),
            "02:cd:01:a2:30:70"
        );
    }

    #[test]
    fn names_fit_and_differ_in_every_part() {
        let mut seen = HashSet::new();
        for network in ["a", "ab"] {
            for container in ["c", "bc", "abc"] {
                for ifname in ["eth0", "eth1"] {
                    for attempt in 0..3 {
                        let name = host_ifname(network, &key(container, ifname), attempt);
                        assert_eq!(name.len(), 12);
                        assert!(seen.insert(name));
                    }
                }
            }
        }
    }

    #[test]
    fn pod_macs_are_local_unicast_and_spread() {
        let mut seen = HashSet::new();
        for n in 0..10_000 {
            let mac = pod_mac("tartan", &key(&format!("c{n}"), "eth0"));
            assert_eq!(mac[0] & 0b11, 0b10);
            assert!(seen.insert(mac));
        }
        assert_eq!(HOST_MAC[0] & 0b11, 0b10);
    }
}
