//! The values of leases: flannel's `LeaseAttrs` as JSON (flannel `pkg/lease/lease.go`).
//!
//! ```text
//! {"PublicIP":"192.0.2.1","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"2e:fd:04:c7:59:61"}}
//! {"PublicIP":"192.0.2.1","PublicIPv6":null}                                               (udp)
//! ```
//!
//! `PublicIP` and `PublicIPv6` are always written, the others where they are not empty. Reading is Go's ([`Json`]).
//! The VNI of a lease is not looked at: flannel takes its own, which is the cluster's.

use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

use cni_shim::Json;
use dataplane::families::{PerFamily, PublicAddresses};
use encap::{Format, Mac};
use ipnet::IpNet;

use crate::config::{Backend, NetConf};
use crate::lease::{Lease, default_vtep_mac};

/// What a lease's value says, as it is written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LeaseAttrs {
    /// All zeros for a node without IPv4.
    public_ip: Ipv4Addr,
    public_ipv6: Option<Ipv6Addr>,
    /// Empty for `udp` and for flannel's `alloc`.
    backend_type: String,
    backend_data: Option<Json>,
    backend_v6_data: Option<Json>,
}

/// Why a lease's value cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ValueFault {
    /// Longer than any lease.
    #[error(
        "the value has more than {} bytes: let its node write it anew",
        LeaseAttrs::MOST_BYTES
    )]
    Long,
    /// Not JSON.
    #[error("the value is not JSON ({0}): let its node write it anew, or delete the key")]
    Json(String),
    /// JSON of another shape.
    #[error("{key} of the value is not {expected}: let its node write it anew, or delete the key")]
    Type {
        /// The key of the JSON object.
        key: &'static str,
        /// What it would have to be.
        expected: &'static str,
    },
    /// A backend that is not spoken here.
    #[error(
        "its node uses the backend {0:?}, which Tartan does not speak: set the cluster's Backend to udp or vxlan"
    )]
    Backend(String),
    /// No MAC to send to.
    #[error("the lease of a vxlan node needs a VtepMAC: let its node write it anew")]
    NoMac,
}

impl LeaseAttrs {
    /// The longest value that is read. A lease of flannel's has about 200.
    pub(super) const MOST_BYTES: usize = 4096;

    /// What a node at `public` writes in the cluster of `net_conf`.
    pub(super) fn of(
        public: PublicAddresses,
        vtep_mac: PerFamily<Mac>,
        net_conf: &NetConf,
    ) -> LeaseAttrs {
        let (public_ip, public_ipv6) = match public {
            PublicAddresses::V4(v4) => (v4, None),
            PublicAddresses::V6(v6) => (Ipv4Addr::UNSPECIFIED, Some(v6)),
            PublicAddresses::Dual(v4, v6) => (v4, Some(v6)),
        };
        let Backend::Vxlan { vni, .. } = net_conf.backend else {
            return LeaseAttrs {
                public_ip,
                public_ipv6,
                backend_type: String::new(),
                backend_data: None,
                backend_v6_data: None,
            };
        };
        let data = |mac: Mac| {
            Json::Object(vec![
                (VNI.to_owned(), Json::Number(vni.get().into())),
                (VTEP_MAC.to_owned(), Json::Text(mac.to_string())),
            ])
        };
        LeaseAttrs {
            public_ip,
            public_ipv6,
            backend_type: VXLAN.to_owned(),
            backend_data: net_conf.network.map(|_| data(vtep_mac.v4)),
            backend_v6_data: net_conf.ipv6_network.map(|_| data(vtep_mac.v6)),
        }
    }

    /// Reads a value.
    pub(super) fn parse(bytes: &[u8]) -> Result<LeaseAttrs, ValueFault> {
        if bytes.len() > LeaseAttrs::MOST_BYTES {
            return Err(ValueFault::Long);
        }
        let fields = Json::parse(bytes).map_err(|error| ValueFault::Json(error.to_string()))?;
        if !matches!(fields, Json::Object(_)) {
            return Err(ValueFault::Json("not an object".to_owned()));
        }
        let address = |key, expected| match fields.last(key) {
            None => Ok(None),
            Some(Json::Text(text)) => Ok(Some(text.as_str())),
            Some(Json::Null) if key == PUBLIC_IPV6 => Ok(None),
            Some(_) => Err(ValueFault::Type { key, expected }),
        };
        let v4 = address(PUBLIC_IP, IPV4)?.map(str::parse).transpose();
        let v6 = address(PUBLIC_IPV6, IPV6)?.map(str::parse).transpose();
        let backend_type = fields.text_of(BACKEND_TYPE);
        let backend_type = backend_type.map_err(|mismatch| ValueFault::Type {
            key: mismatch.key,
            expected: mismatch.expected,
        });
        Ok(LeaseAttrs {
            public_ip: v4
                .map_err(|_| ValueFault::Type {
                    key: PUBLIC_IP,
                    expected: IPV4,
                })?
                .unwrap_or(Ipv4Addr::UNSPECIFIED),
            public_ipv6: v6.map_err(|_| ValueFault::Type {
                key: PUBLIC_IPV6,
                expected: IPV6,
            })?,
            backend_type: backend_type?.unwrap_or_default().to_owned(),
            backend_data: fields.last(BACKEND_DATA).map(scalars),
            backend_v6_data: fields.last(BACKEND_V6_DATA).map(scalars),
        })
    }

    /// Writes the value as flannel does, byte for byte.
    pub(super) fn render(&self) -> String {
        let mut text = format!(
            "{{\"{PUBLIC_IP}\":\"{}\",\"{PUBLIC_IPV6}\":",
            self.public_ip
        );
        // Writing to a String does not fail.
        let _ = match self.public_ipv6 {
            Some(v6) => write!(text, "\"{v6}\""),
            None => write!(text, "null"),
        };
        if !self.backend_type.is_empty() {
            let kind = Json::Text(self.backend_type.clone());
            let _ = write!(text, ",\"{BACKEND_TYPE}\":{kind}");
        }
        for (key, data) in [
            (BACKEND_DATA, &self.backend_data),
            (BACKEND_V6_DATA, &self.backend_v6_data),
        ] {
            if let Some(data) = data {
                let _ = write!(text, ",\"{key}\":{data}");
            }
        }
        text.push('}');
        text
    }

    /// The addresses that it gives.
    pub(super) fn public(&self) -> PublicAddresses {
        match (self.public_ip, self.public_ipv6) {
            (Ipv4Addr::UNSPECIFIED, Some(v6)) => PublicAddresses::V6(v6),
            (v4, Some(v6)) => PublicAddresses::Dual(v4, v6),
            (v4, None) => PublicAddresses::V4(v4),
        }
    }

    /// The VTEP MACs that it gives.
    pub(super) fn vtep_mac(&self) -> PerFamily<Option<Mac>> {
        PerFamily {
            v4: mac_in(self.backend_data.as_ref()),
            v6: mac_in(self.backend_v6_data.as_ref()),
        }
    }

    /// The lease of the node that wrote it.
    pub(super) fn lease(&self, name: String, subnets: Vec<IpNet>) -> Result<Lease, ValueFault> {
        let public = self.public();
        let (format, vtep_mac) = match self.backend_type.as_str() {
            "" | UDP => (Format::Udp, PerFamily::each(|_| default_of(public))),
            VXLAN => (Format::Vxlan, self.macs().ok_or(ValueFault::NoMac)?),
            other => return Err(ValueFault::Backend(shortened(other))),
        };
        Ok(Lease {
            name,
            subnets,
            public,
            format,
            vtep_mac,
            accept_sources: Vec::new(),
            underlay_sources: Vec::new(),
            // The format is flannel's, and has no word for it.
            kernel_path: None,
        })
    }

    /// That of one family serves for both where the other is missing.
    fn macs(&self) -> Option<PerFamily<Mac>> {
        let PerFamily { v4, v6 } = self.vtep_mac();
        Some(PerFamily {
            v4: v4.or(v6)?,
            v6: v6.or(v4)?,
        })
    }
}

/// Peers do not send it Ethernet frames, but a list of nodes has a MAC for each.
fn default_of(public: PublicAddresses) -> Mac {
    default_vtep_mac(public.first())
}

/// What is kept of a backend's data: there may be tens of thousands of records, and a list takes many times the memory of
/// its text.
fn scalars(data: &Json) -> Json {
    let Json::Object(members) = data else {
        return Json::Null;
    };
    let is_scalar =
        |(_, value): &&(String, Json)| !matches!(value, Json::List(_) | Json::Object(_));
    let kept = members.iter().filter(is_scalar).take(MOST_MEMBERS);
    Json::Object(kept.cloned().collect())
}

fn mac_in(data: Option<&Json>) -> Option<Mac> {
    let text = data?.text_of(VTEP_MAC).ok()??;
    text.parse().ok().filter(|mac: &Mac| mac.is_unicast())
}

fn shortened(text: &str) -> String {
    text.chars().take(LONGEST_SHOWN).collect()
}

const PUBLIC_IP: &str = "PublicIP";
const PUBLIC_IPV6: &str = "PublicIPv6";
const BACKEND_TYPE: &str = "BackendType";
const BACKEND_DATA: &str = "BackendData";
const BACKEND_V6_DATA: &str = "BackendV6Data";
const VNI: &str = "VNI";
const VTEP_MAC: &str = "VtepMAC";
const VXLAN: &str = "vxlan";
const UDP: &str = "udp";
const IPV4: &str = "an IPv4 address";
const IPV6: &str = "an IPv6 address or null";
/// Of the data of a backend; flannel's have three at most.
const MOST_MEMBERS: usize = 16;
/// Characters of an unknown word that a message repeats.
const LONGEST_SHOWN: usize = 40;

#[cfg(test)]
mod tests;
