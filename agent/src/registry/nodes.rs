//! `nodes.toml`: every node of the cluster, written by people.
//!
//! ```toml
//! [[node]]
//! name = "n1"
//! subnets = ["10.244.1.0/24"]
//! public-ip = "192.0.2.1"
//! backend = "vxlan"                        # default: the Backend of the network configuration
//! vtep-mac = "2e:fd:04:c7:59:61"           # default: lease::default_vtep_mac of public-ip
//! accept-sources = ["10.9.0.0/16"]         # further pod-side sources accepted from it
//! underlay-sources = ["198.51.100.7"]      # further underlay addresses it sends from
//! ```
//!
//! The file is checked as a whole: a list that holds one contradiction is not used at all.

use std::fmt::Display;
use std::net::IpAddr;

use encap::{Format, Mac};
use ipnet::IpNet;

use super::conflicts;
use super::fault::{FileError, NodeFault};
use crate::config::NetConf;
use crate::config::document::{self, Entry, Table};
use crate::lease::{Lease, default_vtep_mac, unfit_for_underlay};

/// A lease, and where in the text its parts stand.
pub(super) struct Placed {
    pub(super) lease: Lease,
    pub(super) name_at: usize,
    pub(super) address_at: usize,
    /// Of `vtep-mac`, or of `public-ip`, which it comes from.
    pub(super) mac_at: usize,
    pub(super) subnets_at: Vec<usize>,
    pub(super) sources_at: Vec<usize>,
}

/// A fault and where in the text it stands.
pub(super) type FaultAt = (usize, NodeFault);

/// Reads a `nodes.toml`, the leases in the order of the file.
///
/// # Errors
/// [`FileError`] with a line that must change and what is wrong in it.
pub fn parse(text: &str, net_conf: &NetConf) -> Result<Vec<Lease>, FileError> {
    document::parse(text, |document| {
        document.only(&["node"])?;
        let mut placed = Vec::new();
        if let Some(nodes) = document.entry("node") {
            for node in nodes.list()? {
                placed.push(Reader { text, net_conf }.node(node.table()?)?);
            }
        }
        conflicts::check(&placed).map_err(|(at, fault)| at_line(text, at, fault))?;
        Ok(placed.into_iter().map(|placed| placed.lease).collect())
    })
}

/// Writes leases as a `nodes.toml` that [`parse`] reads as the same leases, whatever the cluster's backend.
pub fn render(leases: &[Lease]) -> String {
    leases.iter().map(entry).collect()
}

fn entry(lease: &Lease) -> String {
    let mut text = format!(
        "[[node]]\nname = {:?}\nsubnets = {}\npublic-ip = \"{}\"\nbackend = \"{}\"\nvtep-mac = \"{}\"\n",
        lease.name,
        quoted(&lease.subnets),
        lease.public_ip,
        lease.format,
        lease.vtep_mac
    );
    for (key, list) in [
        ("accept-sources", quoted(&lease.accept_sources)),
        ("underlay-sources", quoted(&lease.underlay_sources)),
    ] {
        if list != "[]" {
            text.push_str(&format!("{key} = {list}\n"));
        }
    }
    text
}

fn quoted(values: &[impl Display]) -> String {
    let values: Vec<_> = values.iter().map(|value| format!("\"{value}\"")).collect();
    format!("[{}]", values.join(", "))
}

/// Reads one entry and compares it with the cluster, not yet with other entries.
struct Reader<'a> {
    text: &'a str,
    net_conf: &'a NetConf,
}

impl Reader<'_> {
    fn node(&self, table: Table<'_>) -> Result<Placed, FileError> {
        table.only(&KEYS)?;
        let require = |key| {
            let missing = || at_line(self.text, table.at(), NodeFault::Missing { key });
            table.entry(key).ok_or_else(missing)
        };
        let name_entry = require("name")?;
        let name = self.name(name_entry)?;
        let address_entry = require("public-ip")?;
        let public_ip = self.underlay_address("public-ip", address_entry, &name)?;
        let mac_entry = table.entry("vtep-mac");
        let (subnets, subnets_at) = self.subnets(require("subnets")?, &name)?;
        let (underlay_sources, sources_at) =
            self.underlay_sources(table.entry("underlay-sources"), &name)?;
        let lease = Lease {
            subnets,
            public_ip,
            format: self.format(table.entry("backend"))?,
            vtep_mac: match mac_entry {
                Some(entry) => self.mac(entry)?,
                None => default_vtep_mac(public_ip),
            },
            accept_sources: self.accept_sources(table.entry("accept-sources"), &name)?,
            underlay_sources,
            name,
        };
        let (name_at, address_at) = (name_entry.at(), address_entry.at());
        let mac_at = mac_entry.map_or(address_at, |entry| entry.at());
        Ok(Placed {
            lease,
            name_at,
            address_at,
            mac_at,
            subnets_at,
            sources_at,
        })
    }

    fn name(&self, entry: Entry<'_>) -> Result<String, FileError> {
        let name = entry.text()?;
        let plain = name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
        if (1..=253).contains(&name.len()) && plain {
            Ok(name.to_owned())
        } else {
            Err(self.refuse(entry, NodeFault::Name(name.to_owned())))
        }
    }

    fn underlay_address(
        &self,
        key: &'static str,
        entry: Entry<'_>,
        node: &str,
    ) -> Result<IpAddr, FileError> {
        let address = entry.address()?;
        let node = || node.to_owned();
        if let Some(fault) = unfit_for_underlay(address) {
            return Err(self.refuse(
                entry,
                NodeFault::Unreachable {
                    key,
                    address,
                    node: node(),
                    fault,
                },
            ));
        }
        match self
            .net_conf
            .cluster()
            .into_iter()
            .find(|network| network.contains(&address))
        {
            Some(network) => Err(self.refuse(
                entry,
                NodeFault::InsideCluster {
                    key,
                    address,
                    node: node(),
                    network,
                },
            )),
            None => Ok(address),
        }
    }

    fn subnets(&self, entry: Entry<'_>, node: &str) -> Result<(Vec<IpNet>, Vec<usize>), FileError> {
        let cluster = self.net_conf.cluster();
        let node = || node.to_owned();
        let (mut subnets, mut places) = (Vec::new(), Vec::new());
        for item in entry.list()? {
            let subnet = item.prefix()?;
            if !cluster.iter().any(|network| network.contains(&subnet)) {
                return Err(self.refuse(
                    item,
                    NodeFault::Outside {
                        subnet,
                        node: node(),
                        cluster,
                    },
                ));
            }
            let longest = subnet.max_prefix_len() - 2;
            if subnet.prefix_len() > longest {
                return Err(self.refuse(
                    item,
                    NodeFault::TooSmall {
                        subnet,
                        node: node(),
                        longest,
                    },
                ));
            }
            subnets.push(subnet);
            places.push(item.at());
        }
        if subnets.is_empty() {
            return Err(self.refuse(entry, NodeFault::Missing { key: "subnets" }));
        }
        Ok((subnets, places))
    }

    fn format(&self, entry: Option<Entry<'_>>) -> Result<Format, FileError> {
        let Some(entry) = entry else {
            return Ok(self.net_conf.backend.format());
        };
        match entry.text()? {
            "udp" => Ok(Format::Udp),
            "vxlan" => Ok(Format::Vxlan),
            other => Err(self.refuse(entry, NodeFault::Backend(other.to_owned()))),
        }
    }

    fn mac(&self, entry: Entry<'_>) -> Result<Mac, FileError> {
        let text = entry.text()?;
        let mac: Mac = text
            .parse()
            .map_err(|_| self.refuse(entry, NodeFault::NotAMac(text.to_owned())))?;
        let Mac([first, ..]) = mac;
        if mac == Mac::default() || first & MULTICAST != 0 {
            return Err(self.refuse(entry, NodeFault::NobodysMac(mac)));
        }
        Ok(mac)
    }

    fn accept_sources(
        &self,
        entry: Option<Entry<'_>>,
        node: &str,
    ) -> Result<Vec<IpNet>, FileError> {
        let Some(entry) = entry else {
            return Ok(Vec::new());
        };
        let mut prefixes = Vec::new();
        for item in entry.list()? {
            let prefix = item.prefix()?;
            let overlaps = |network: &IpNet| network.contains(&prefix) || prefix.contains(network);
            if let Some(network) = self.net_conf.cluster().into_iter().find(overlaps) {
                let node = node.to_owned();
                return Err(self.refuse(
                    item,
                    NodeFault::AcceptsPods {
                        prefix,
                        node,
                        network,
                    },
                ));
            }
            prefixes.push(prefix);
        }
        Ok(prefixes)
    }

    fn underlay_sources(
        &self,
        entry: Option<Entry<'_>>,
        node: &str,
    ) -> Result<(Vec<IpAddr>, Vec<usize>), FileError> {
        let Some(entry) = entry else {
            return Ok((Vec::new(), Vec::new()));
        };
        let (mut addresses, mut places) = (Vec::new(), Vec::new());
        for item in entry.list()? {
            addresses.push(self.underlay_address("underlay-sources", item, node)?);
            places.push(item.at());
        }
        Ok((addresses, places))
    }

    fn refuse(&self, entry: Entry<'_>, fault: NodeFault) -> FileError {
        at_line(self.text, entry.at(), fault)
    }
}

fn at_line(text: &str, at: usize, fault: NodeFault) -> FileError {
    FileError {
        line: document::line(text, at),
        fault,
    }
}

/// The group bit of a MAC's first octet (IEEE 802).
const MULTICAST: u8 = 1;
const KEYS: [&str; 7] = [
    "name",
    "subnets",
    "public-ip",
    "backend",
    "vtep-mac",
    "accept-sources",
    "underlay-sources",
];

#[cfg(test)]
mod tests;
