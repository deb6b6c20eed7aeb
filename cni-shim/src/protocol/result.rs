//! What ADD answers, and what comes back as `prevResult`: one value, and its
//! words in each version of the specification (SPEC section 5, "ADD
//! Success"; libcni pkg/types/{020,040,100}).
//!
//! | versions | addresses | interfaces |
//! |---|---|---|
//! | 0.1.0, 0.2.0 | one of each family, with its routes inside | none |
//! | 0.3.0 to 0.4.0 | each says its family in `version` | name, mac, sandbox |
//! | 1.0.0 | no `version` | the same |
//! | 1.1.0 | the same | and `mtu`, `socketPath`, `pciID`; routes have metrics |

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::version::Version;
use crate::Json;

/// A result of ADD.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CniResult {
    /// Every interface made, of the host and of the pod.
    pub interfaces: Vec<Interface>,
    /// The pod's addresses.
    pub ips: Vec<Ip>,
    /// The pod's routes.
    pub routes: Vec<Route>,
    /// Where its names are resolved.
    pub dns: Dns,
}

/// An interface.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its MAC, where the result has one.
    pub mac: Option<String>,
    /// `CNI_NETNS` of a pod's interface; none for one of the host.
    pub sandbox: Option<String>,
    /// In bytes; 1.1.0 and later.
    pub mtu: Option<u64>,
    /// A socket that belongs to it; 1.1.0 and later.
    pub socket_path: Option<String>,
    /// A PCI device that it is; 1.1.0 and later.
    pub pci_id: Option<String>,
}

/// An address of the pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Ip {
    /// The address and the length of its network.
    pub address: IpNet,
    /// The gateway, where there is one.
    pub gateway: Option<IpAddr>,
    /// Which of [`CniResult::interfaces`] has it.
    pub interface: Option<u64>,
}

/// A route of the pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Where to.
    pub dst: IpNet,
    /// By which gateway; none: by that of the address.
    pub gw: Option<IpAddr>,
    /// `mtu`, `advmss`, `priority`, `table`, `scope` that are given; 1.1.0 and later.
    pub metrics: Vec<(&'static str, u64)>,
}

/// How a pod resolves names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    /// Addresses of name servers.
    pub nameservers: Vec<String>,
    /// The local domain.
    pub domain: Option<String>,
    /// Domains to try.
    pub search: Vec<String>,
    /// Options of the resolver.
    pub options: Vec<String>,
}

/// Why a result cannot be read or written.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is not what its version says.
    #[error("the result's {what} is not as its version wants it")]
    Malformed {
        /// Which part.
        what: &'static str,
    },
    /// Its `cniVersion` is none we know.
    #[error("the result is of version {version:?}, which tartan-cni does not speak")]
    Version {
        /// What it says.
        version: String,
    },
    /// 0.1.0 and 0.2.0 know nothing but addresses.
    #[error("cannot convert: no valid IP addresses")]
    NoAddress,
}

impl CniResult {
    /// Reads a result in the version it names, or in `assumed` where it names
    /// none.
    ///
    /// # Errors
    /// [`Error::Malformed`], [`Error::Version`].
    pub fn parse(json: &Json, assumed: Version) -> Result<CniResult, Error> {
        let malformed = |what| Error::Malformed { what };
        json.members().ok_or(malformed("text"))?;
        let version = match json.get("cniVersion").map(|v| (v, v.text())) {
            None | Some((_, Some(""))) => assumed,
            Some((value, text)) => text
                .and_then(Version::named)
                .ok_or_else(|| Error::Version {
                    version: value.to_string(),
                })?,
        };
        let dns = match json.get("dns") {
            Some(dns) => Dns::parse(dns).ok_or(malformed("dns"))?,
            None => Dns::default(),
        };
        let mut result = CniResult {
            dns,
            ..CniResult::default()
        };
        if version <= Version::V0_2_0 {
            for key in ["ip4", "ip6"] {
                let Some(ip) = json.get(key) else { continue };
                result.read_old_ip(ip).ok_or(malformed(key))?;
            }
            return Ok(result);
        }
        result.interfaces = all(json, "interfaces", interface).ok_or(malformed("interfaces"))?;
        result.ips = all(json, "ips", ip).ok_or(malformed("ips"))?;
        result.routes = all(json, "routes", route).ok_or(malformed("routes"))?;
        Ok(result)
    }

    /// The one JSON value for standard output.
    ///
    /// # Errors
    /// [`Error::NoAddress`], in 0.1.0 and 0.2.0 alone.
    pub fn to_json(&self, version: Version) -> Result<Value, Error> {
        let mut fields = Map::new();
        fields.insert("cniVersion".to_owned(), version.name().into());
        if version <= Version::V0_2_0 {
            for (key, v4) in [("ip4", true), ("ip6", false)] {
                if let Some(ip) = self.old_ip(v4) {
                    fields.insert(key.to_owned(), ip);
                }
            }
            if fields.len() == 1 {
                return Err(Error::NoAddress);
            }
        } else {
            let mut list = |key: &str, items: Vec<Value>| {
                fields.insert(key.to_owned(), items.into());
            };
            let interfaces = self.interfaces.iter();
            list(
                "interfaces",
                interfaces.map(|i| i.to_json(version)).collect(),
            );
            list(
                "ips",
                self.ips.iter().map(|ip| ip.to_json(version)).collect(),
            );
            let routes = self.routes.iter();
            list("routes", routes.map(|r| r.to_json(version)).collect());
        }
        fields.insert("dns".to_owned(), self.dns.to_json());
        Ok(fields.into())
    }

    fn read_old_ip(&mut self, json: &Json) -> Option<()> {
        json.members()?;
        self.ips.push(Ip {
            address: json.get("ip")?.text()?.parse().ok()?,
            gateway: gateway(json, "gateway")?,
            interface: None,
        });
        self.routes.extend(all(json, "routes", route)?);
        Some(())
    }

    /// The first address of a family, and every route of it.
    fn old_ip(&self, v4: bool) -> Option<Value> {
        let ip = self
            .ips
            .iter()
            .find(|ip| ip.address.addr().is_ipv4() == v4)?;
        let mut fields = Map::new();
        fields.insert("ip".to_owned(), json!(ip.address));
        insert(&mut fields, "gateway", ip.gateway);
        let routes: Vec<Value> = self
            .routes
            .iter()
            .filter(|route| route.dst.addr().is_ipv4() == v4)
            .map(|route| route.to_json(Version::V0_2_0))
            .collect();
        if !routes.is_empty() {
            fields.insert("routes".to_owned(), routes.into());
        }
        Some(fields.into())
    }
}

impl Interface {
    fn to_json(&self, version: Version) -> Value {
        let mut fields = Map::new();
        fields.insert("name".to_owned(), json!(self.name));
        insert(&mut fields, "mac", self.mac.as_ref());
        insert(&mut fields, "sandbox", self.sandbox.as_ref());
        if version >= Version::V1_1_0 {
            insert(&mut fields, "mtu", self.mtu);
            insert(&mut fields, "socketPath", self.socket_path.as_ref());
            insert(&mut fields, "pciID", self.pci_id.as_ref());
        }
        fields.into()
    }
}

impl Ip {
    fn to_json(&self, version: Version) -> Value {
        let mut fields = Map::new();
        fields.insert("address".to_owned(), json!(self.address));
        insert(&mut fields, "gateway", self.gateway);
        insert(&mut fields, "interface", self.interface);
        // Mandatory up to 0.4.0, gone since.
        if version <= Version::V0_4_0 {
            let family = if self.address.addr().is_ipv4() {
                "4"
            } else {
                "6"
            };
            fields.insert("version".to_owned(), family.into());
        }
        fields.into()
    }
}

impl Route {
    /// Everything of `gateway`'s family, by it.
    pub fn default_by(gateway: IpAddr) -> Route {
        let everything = match gateway {
            IpAddr::V4(_) => IpNet::V4(ipnet::Ipv4Net::default()),
            IpAddr::V6(_) => IpNet::V6(ipnet::Ipv6Net::default()),
        };
        Route {
            dst: everything,
            gw: Some(gateway),
            metrics: Vec::new(),
        }
    }

    fn to_json(&self, version: Version) -> Value {
        let mut fields = Map::new();
        fields.insert("dst".to_owned(), json!(self.dst));
        insert(&mut fields, "gw", self.gw);
        if version >= Version::V1_1_0 {
            for (key, value) in &self.metrics {
                fields.insert((*key).to_owned(), json!(value));
            }
        }
        fields.into()
    }
}

impl Dns {
    /// Reads a `dns` object; None where a part of it is no list of texts, or a
    /// name server no address.
    pub fn parse(json: &Json) -> Option<Dns> {
        json.members()?;
        let texts = |key| all(json, key, |item| item.text().map(str::to_owned));
        let dns = Dns {
            nameservers: texts("nameservers")?,
            domain: text(json, "domain")?,
            search: texts("search")?,
            options: texts("options")?,
        };
        let addresses = dns.nameservers.iter();
        let addresses = addresses.map(|server| server.parse::<IpAddr>());
        addresses.collect::<Result<Vec<_>, _>>().ok()?;
        Some(dns)
    }

    fn to_json(&self) -> Value {
        let mut fields = Map::new();
        insert(&mut fields, "domain", self.domain.as_ref());
        for (key, list) in [
            ("nameservers", &self.nameservers),
            ("search", &self.search),
            ("options", &self.options),
        ] {
            if !list.is_empty() {
                fields.insert(key.to_owned(), json!(list));
            }
        }
        fields.into()
    }
}

fn interface(json: &Json) -> Option<Interface> {
    json.members()?;
    Some(Interface {
        name: text(json, "name")?.unwrap_or_default(),
        mac: text(json, "mac")?,
        sandbox: text(json, "sandbox")?,
        mtu: integer(json, "mtu")?,
        socket_path: text(json, "socketPath")?,
        pci_id: text(json, "pciID")?,
    })
}

fn ip(json: &Json) -> Option<Ip> {
    Some(Ip {
        address: json.get("address")?.text()?.parse().ok()?,
        gateway: gateway(json, "gateway")?,
        interface: integer(json, "interface")?,
    })
}

fn route(json: &Json) -> Option<Route> {
    let mut metrics = Vec::new();
    for key in ["mtu", "advmss", "priority", "table", "scope"] {
        if let Some(value) = integer(json, key)? {
            metrics.push((key, value));
        }
    }
    Some(Route {
        dst: json.get("dst")?.text()?.parse().ok()?,
        gw: gateway(json, "gw")?,
        metrics,
    })
}

/// Every element of a list, which may be absent. None where one is malformed.
fn all<T>(json: &Json, key: &str, one: impl Fn(&Json) -> Option<T>) -> Option<Vec<T>> {
    match json.get(key) {
        None => Some(Vec::new()),
        Some(list) => list.list()?.iter().map(one).collect(),
    }
}

/// A text that may be absent; an empty one counts as absent, as in Go.
fn text(json: &Json, key: &str) -> Option<Option<String>> {
    match json.get(key) {
        None => Some(None),
        Some(value) => value
            .text()
            .map(|text| Some(text.to_owned()).filter(|text| !text.is_empty())),
    }
}

fn integer(json: &Json, key: &str) -> Option<Option<u64>> {
    match json.get(key) {
        None => Some(None),
        Some(value) => value.integer().map(Some),
    }
}

fn gateway(json: &Json, key: &str) -> Option<Option<IpAddr>> {
    match text(json, key)? {
        None => Some(None),
        Some(address) => address.parse().ok().map(Some),
    }
}

fn insert<T: serde::Serialize>(fields: &mut Map<String, Value>, key: &str, value: Option<T>) {
    if let Some(value) = value {
        fields.insert(key.to_owned(), json!(value));
    }
}

#[cfg(test)]
mod tests;
