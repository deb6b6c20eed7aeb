//! What ADD answers, in the words of each version of the specification.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::link_name::mac_text;
use crate::net_conf::Version;
use crate::veth;

/// A finished attachment.
#[derive(Debug)]
pub(crate) struct AddResult<'a> {
    /// The version the request was in.
    pub(crate) version: Version,
    /// Name and MAC of the host's end.
    pub(crate) host: (&'a str, &'a [u8]),
    /// Name and MAC of the pod's end.
    pub(crate) pod: (&'a str, &'a [u8]),
    /// `CNI_NETNS`, as given.
    pub(crate) sandbox: &'a str,
    /// MTU of both ends, in bytes.
    pub(crate) mtu: u16,
    /// The pod's addresses.
    pub(crate) addresses: &'a [IpNet],
    /// Gateways of the default routes that were set.
    pub(crate) default_routes: &'a [IpAddr],
    /// The configuration's `dns`, handed through.
    pub(crate) dns: &'a Value,
}

impl AddResult<'_> {
    /// The one JSON value for standard output.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "cniVersion": self.version.name(),
            "interfaces": [
                self.interface(self.host, None),
                self.interface(self.pod, Some(self.sandbox)),
            ],
            "ips": self.addresses.iter().map(|ip| self.ip(ip)).collect::<Vec<_>>(),
            "routes": self.default_routes.iter().map(default_route).collect::<Vec<_>>(),
            "dns": self.dns,
        })
    }

    fn interface(&self, (name, mac): (&str, &[u8]), sandbox: Option<&str>) -> Value {
        let mut interface = json!({ "name": name, "mac": mac_text(mac) });
        if let Some(fields) = interface.as_object_mut() {
            if let Some(sandbox) = sandbox {
                fields.insert("sandbox".to_owned(), sandbox.into());
            }
            if self.version >= Version::V1_1_0 {
                fields.insert("mtu".to_owned(), self.mtu.into());
            }
        }
        interface
    }

    fn ip(&self, address: &IpNet) -> Value {
        let mut ip = json!({
            "address": address,
            "gateway": veth::gateway(address.addr()),
            "interface": POD_INTERFACE,
        });
        // Mandatory up to 0.4.0, gone since.
        if self.version <= Version::V0_4_0
            && let Some(fields) = ip.as_object_mut()
        {
            let family = if address.addr().is_ipv4() { "4" } else { "6" };
            fields.insert("version".to_owned(), family.into());
        }
        ip
    }
}

fn default_route(gateway: &IpAddr) -> Value {
    let everything = if gateway.is_ipv4() {
        "0.0.0.0/0"
    } else {
        "::/0"
    };
    json!({ "dst": everything, "gw": gateway })
}

/// Index of the pod's end in `interfaces`.
const POD_INTERFACE: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn result(version: Version) -> Value {
        AddResult {
            version,
            host: ("tt0123456789", &[0xee; 6]),
            pod: ("eth0", &[2, 0, 0, 0, 0, 1]),
            sandbox: "/run/netns/x",
            mtu: 1450,
            addresses: &[
                "10.244.1.2/32".parse().unwrap(),
                "fd00::2/128".parse().unwrap(),
            ],
            default_routes: &["169.254.1.1".parse().unwrap(), "fe80::1".parse().unwrap()],
            dns: &json!({}),
        }
        .to_json()
    }

    #[test]
    fn version_1_0_in_full() {
        assert_eq!(
            result(Version::V1_0_0),
            json!({
                "cniVersion": "1.0.0",
                "interfaces": [
                    {"name": "tt0123456789", "mac": "ee:ee:ee:ee:ee:ee"},
                    {"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/x"},
                ],
                "ips": [
                    {"address": "10.244.1.2/32", "gateway": "169.254.1.1", "interface": 1},
                    {"address": "fd00::2/128", "gateway": "fe80::1", "interface": 1},
                ],
                "routes": [
                    {"dst": "0.0.0.0/0", "gw": "169.254.1.1"},
                    {"dst": "::/0", "gw": "fe80::1"},
                ],
                "dns": {},
            })
        );
    }

    #[test]
    fn up_to_0_4_an_address_says_its_family() {
        for version in [Version::V0_3_0, Version::V0_3_1, Version::V0_4_0] {
            let result = result(version);
            assert_eq!(result["cniVersion"], version.name());
            assert_eq!(result["ips"][0]["version"], "4");
            assert_eq!(result["ips"][1]["version"], "6");
            assert_eq!(result["interfaces"][1].get("mtu"), None);
        }
    }

    #[test]
    fn from_1_1_an_interface_says_its_mtu() {
        let result = result(Version::V1_1_0);
        assert_eq!(result["interfaces"][0]["mtu"], 1450);
        assert_eq!(result["interfaces"][1]["mtu"], 1450);
        assert_eq!(result["ips"][0].get("version"), None);
    }
}
