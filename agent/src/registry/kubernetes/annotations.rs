//! flannel's annotations of a Node, read and written (flannel `pkg/subnet/kube/annotations.go` and `kube.go`).
//!
//! Pure: text in, text out. What is written is byte for byte what flannel writes, so that a flanneld that is started again
//! on this node finds its own: it cuts the VTEP MAC out of `backend-data` as the last quoted text after `:"`.

use std::net::{Ipv4Addr, Ipv6Addr};

use cni_shim::Json;
use dataplane::families::{PerFamily, PublicAddresses};
use encap::{Format, Mac, Vni};

use super::node::Annotations;
use crate::config::NetConf;

/// The names of the annotations under one prefix.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// `"true"` on every node of flannel's; a Node without it is none of the overlay's.
    pub(super) managed: String,
    /// How peers send to the node; empty for `udp`.
    pub(super) backend_type: String,
    /// VNI and VTEP MAC for inner IPv4; `null` for `udp`.
    pub(super) backend_data: String,
    /// VNI and VTEP MAC for inner IPv6.
    pub(super) backend_v6_data: String,
    /// The addresses that peers send to.
    pub(super) public: PerFamily<String>,
    /// What an operator wants peers to send to, as behind a NAT.
    pub(super) overwrite: PerFamily<String>,
    /// What an operator wants the node to use of its own addresses.
    pub(super) node_public: PerFamily<String>,
}

impl Names {
    /// The names below `prefix`: flannel joins a prefix without a slash to them by a slash, one with a slash by a hyphen,
    /// and one that ends with the joint by nothing.
    pub(super) fn below(prefix: &str) -> Names {
        let joint = match prefix {
            _ if !prefix.contains('/') => "/",
            _ if prefix.ends_with(['/', '-']) => "",
            _ => "-",
        };
        let name = |suffix| format!("{prefix}{joint}{suffix}");
        let pair = |v4, v6| PerFamily {
            v4: name(v4),
            v6: name(v6),
        };
        Names {
            managed: name(MANAGED),
            backend_type: name(BACKEND_TYPE),
            backend_data: name(BACKEND_DATA),
            backend_v6_data: name(BACKEND_V6_DATA),
            public: pair(PUBLIC_IP, PUBLIC_IPV6),
            overwrite: pair(PUBLIC_IP_OVERWRITE, PUBLIC_IPV6_OVERWRITE),
            node_public: pair(NODE_PUBLIC_IP, NODE_PUBLIC_IPV6),
        }
    }
}

/// Whether `name` ends as one of flannel's annotations does, under whatever prefix.
pub(super) fn may_be_ours(name: &str) -> bool {
    SUFFIXES.iter().any(|suffix| {
        let prefix = name.strip_suffix(suffix);
        prefix.is_some_and(|prefix| prefix.ends_with(['/', '-']))
    })
}

/// What a node publishes by its annotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Published {
    /// The addresses that peers send to.
    pub(super) public: PublicAddresses,
    /// How peers send to it.
    pub(super) format: Format,
    /// The VTEP MAC of each family; that of the other family where the node has one device, none in `udp`.
    pub(super) vtep_mac: Option<PerFamily<Mac>>,
}

/// Why the annotations of a node cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AnnotationFault {
    /// A backend that Tartan does not speak.
    #[error(
        "annotation {name} is {value:?}, and Tartan exchanges packets only with nodes of the backends vxlan and udp: set Backend in that node's network configuration to one of them"
    )]
    Backend { name: String, value: String },
    /// No address to send to.
    #[error("it has neither annotation {v4} nor {v6}: restart the flannel or Tartan of that node")]
    NoAddress { v4: String, v6: String },
    /// Text that is not an address.
    #[error("annotation {name} is {value:?}, not an {family} address: correct or remove it")]
    Address {
        name: String,
        value: String,
        family: &'static str,
    },
    /// No VTEP MAC in it.
    #[error(
        "annotation {name} is {value:?}, not as {example}: restart the flannel or Tartan of that node",
        example = r#"{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}"#
    )]
    Data { name: String, value: String },
}

/// Reads what a node publishes. `None` for a Node that is none of the overlay's, as flannel passes it over.
///
/// Of the families only those of the cluster network count, as in flannel. Where that leaves no address, the others do:
/// Tartan sends inner packets of either family to an address of either.
///
/// # Errors
/// [`AnnotationFault`], the first one.
pub(super) fn read(
    annotations: &Annotations,
    names: &Names,
    net_conf: &NetConf,
) -> Result<Option<Published>, AnnotationFault> {
    if annotations.get(&names.managed) != Some("true") {
        return Ok(None);
    }
    let format = match annotations.get(&names.backend_type).unwrap_or_default() {
        "vxlan" => Format::Vxlan,
        "" => Format::Udp,
        other => {
            return Err(AnnotationFault::Backend {
                name: names.backend_type.clone(),
                value: excerpt(other),
            });
        }
    };
    let (v4, v6) = (ipv4(annotations, names), ipv6(annotations, names));
    // A family that the cluster network lacks was written under another configuration.
    let (v4, v6) = match (net_conf.network.is_some(), net_conf.ipv6_network.is_some()) {
        (true, false) if v4 != Ok(None) => (v4, Ok(None)),
        (false, true) if v6 != Ok(None) => (Ok(None), v6),
        _ => (v4, v6),
    };
    let public = match (v4?, v6?) {
        (Some(v4), Some(v6)) => PublicAddresses::Dual(v4, v6),
        (Some(v4), None) => PublicAddresses::V4(v4),
        (None, Some(v6)) => PublicAddresses::V6(v6),
        (None, None) => {
            return Err(AnnotationFault::NoAddress {
                v4: names.public.v4.clone(),
                v6: names.public.v6.clone(),
            });
        }
    };
    let vtep_mac = match format {
        Format::Udp => None,
        Format::Vxlan => Some(macs(annotations, names, public)?),
    };
    Ok(Some(Published {
        public,
        format,
        vtep_mac,
    }))
}

/// The MACs of a vxlan node. The annotation of a family counts where the node has an address of it.
fn macs(
    annotations: &Annotations,
    names: &Names,
    public: PublicAddresses,
) -> Result<PerFamily<Mac>, AnnotationFault> {
    let v4 = mac(annotations, &names.backend_data);
    let v6 = mac(annotations, &names.backend_v6_data);
    match (public, v4, v6) {
        (PublicAddresses::V4(_), v4, _) => v4?.map(|v4| PerFamily { v4, v6: v4 }),
        (PublicAddresses::V6(_), _, v6) => v6?.map(|v6| PerFamily { v4: v6, v6 }),
        (PublicAddresses::Dual(..), v4, v6) => match (v4?, v6?) {
            (Some(v4), Some(v6)) => Some(PerFamily { v4, v6 }),
            (one, other) => one.or(other).map(|mac| PerFamily { v4: mac, v6: mac }),
        },
    }
    .ok_or_else(|| {
        let name = match public {
            PublicAddresses::V6(_) => &names.backend_v6_data,
            _ => &names.backend_data,
        };
        not_data(name, annotations.get(name).unwrap_or_default())
    })
}

/// The MAC in the annotation `name`; `None` where that is missing, empty or null.
pub(super) fn mac(annotations: &Annotations, name: &str) -> Result<Option<Mac>, AnnotationFault> {
    let text = annotations.get(name).unwrap_or_default();
    if text.is_empty() {
        return Ok(None);
    }
    let data = Json::parse(text.as_bytes()).map_err(|_| not_data(name, text))?;
    let mac = data.text_of("VtepMAC").map_err(|_| not_data(name, text))?;
    let mac = mac.map(|mac| mac.parse::<Mac>().map_err(|_| not_data(name, text)));
    match (data, mac.transpose()?) {
        (Json::Null, _) => Ok(None),
        (Json::Object(_), Some(mac)) => Ok(Some(mac)),
        _ => Err(not_data(name, text)),
    }
}

fn not_data(name: &str, text: &str) -> AnnotationFault {
    AnnotationFault::Data {
        name: name.to_owned(),
        value: excerpt(text),
    }
}

/// The address in `public-ip`.
fn ipv4(annotations: &Annotations, names: &Names) -> Result<Option<Ipv4Addr>, AnnotationFault> {
    address(annotations, &names.public.v4, "IPv4")
}

/// The address in `public-ipv6`.
fn ipv6(annotations: &Annotations, names: &Names) -> Result<Option<Ipv6Addr>, AnnotationFault> {
    address(annotations, &names.public.v6, "IPv6")
}

/// The addresses in a pair of annotations that an operator writes; missing and empty ones are none.
///
/// # Errors
/// [`AnnotationFault::Address`].
pub(super) fn pair(
    annotations: &Annotations,
    names: &PerFamily<String>,
) -> Result<(Option<Ipv4Addr>, Option<Ipv6Addr>), AnnotationFault> {
    let v4 = address(annotations, &names.v4, "IPv4")?;
    Ok((v4, address(annotations, &names.v6, "IPv6")?))
}

fn address<T: std::str::FromStr>(
    annotations: &Annotations,
    name: &str,
    family: &'static str,
) -> Result<Option<T>, AnnotationFault> {
    let text = annotations.get(name).unwrap_or_default();
    if text.is_empty() {
        return Ok(None);
    }
    text.parse()
        .map(Some)
        .map_err(|_| AnnotationFault::Address {
            name: name.to_owned(),
            value: excerpt(text),
            family,
        })
}

/// The annotations of a node that publishes `published`, in flannel's order. An annotation that is not in the list is left
/// as it is.
///
/// As in flannel, the IPv6 annotations belong to `vxlan` under an IPv6 cluster network, and the IPv4 ones are left out where
/// the cluster network has no IPv4.
pub(super) fn write(
    published: &Published,
    names: &Names,
    vni: Vni,
    net_conf: &NetConf,
) -> Vec<(String, String)> {
    let vni = vni.get();
    let data = |mac: Mac| format!(r#"{{"VNI":{vni},"VtepMAC":"{mac}"}}"#);
    let backend_type = match published.format {
        Format::Udp => "",
        Format::Vxlan => "vxlan",
    };
    let mut written = vec![(names.backend_type.clone(), backend_type.to_owned())];
    let (v4, v6) = match published.public {
        PublicAddresses::V4(v4) => (Some(v4), None),
        PublicAddresses::V6(v6) => (None, Some(v6)),
        PublicAddresses::Dual(v4, v6) => (Some(v4), Some(v6)),
    };
    let v6 = v6.filter(|_| net_conf.ipv6_network.is_some() || v4.is_none());
    let v4 = v4.filter(|_| net_conf.network.is_some() || v6.is_none());
    if let Some(v4) = v4 {
        let text = published.vtep_mac.map(|mac| data(mac.v4));
        let text = text.unwrap_or_else(|| NO_DATA.to_owned());
        written.push((names.backend_data.clone(), text));
        written.push((names.public.v4.clone(), v4.to_string()));
    }
    if let (Some(v6), Some(mac)) = (v6, published.vtep_mac) {
        written.push((names.backend_v6_data.clone(), data(mac.v6)));
        written.push((names.public.v6.clone(), v6.to_string()));
    }
    written.push((names.managed.clone(), "true".to_owned()));
    written
}

/// The beginning of a text that anyone may have written, for a sentence.
fn excerpt(text: &str) -> String {
    let mut excerpt: String = text.chars().take(MOST_SHOWN).collect();
    if excerpt.len() < text.len() {
        excerpt.push('…');
    }
    excerpt
}

/// Characters: twice as long as the longest right value.
const MOST_SHOWN: usize = 100;
/// What flannel writes for a backend without data.
const NO_DATA: &str = "null";
const MANAGED: &str = "kube-subnet-manager";
const BACKEND_TYPE: &str = "backend-type";
const BACKEND_DATA: &str = "backend-data";
const BACKEND_V6_DATA: &str = "backend-v6-data";
const PUBLIC_IP: &str = "public-ip";
const PUBLIC_IPV6: &str = "public-ipv6";
const PUBLIC_IP_OVERWRITE: &str = "public-ip-overwrite";
const PUBLIC_IPV6_OVERWRITE: &str = "public-ipv6-overwrite";
const NODE_PUBLIC_IP: &str = "node-public-ip";
const NODE_PUBLIC_IPV6: &str = "node-public-ipv6";
const SUFFIXES: [&str; 10] = [
    MANAGED,
    BACKEND_TYPE,
    BACKEND_DATA,
    BACKEND_V6_DATA,
    PUBLIC_IP,
    PUBLIC_IPV6,
    PUBLIC_IP_OVERWRITE,
    PUBLIC_IPV6_OVERWRITE,
    NODE_PUBLIC_IP,
    NODE_PUBLIC_IPV6,
];

#[cfg(test)]
mod tests;
