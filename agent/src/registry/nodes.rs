//! `nodes.toml`: the list of nodes that an operator writes.
//!
//! ```toml
//! [[node]]
//! name = "n1"
//! subnets = ["10.244.1.0/24"]
//! public-ip = "192.0.2.1"
//! public-ipv6 = "2001:db8::1"              # default: none; needs an IPv4 public-ip
//! backend = "vxlan"                        # default: the Backend of the network configuration
//! vtep-mac = "2e:fd:04:c7:59:61"           # default: lease::default_vtep_mac of public-ip
//! vtep-mac-v6 = "2e:fd:04:c7:59:62"        # default: vtep-mac; for inner IPv6 of a node with two devices
//! accept-sources = ["10.9.0.0/16"]         # further inner sources that peers accept from it
//! underlay-sources = ["198.51.100.7"]      # further outer sources that peers accept from it
//! kernel-path = true                       # whether peers may send it what their kernels encapsulate; default: as it says
//! ```
//!
//! The file is checked as a whole: one fault refuses the whole list.

use std::fmt::Display;
use std::net::IpAddr;

use dataplane::families::{PerFamily, PublicAddresses};
use encap::{Format, Mac};
use ipnet::IpNet;

use super::conflicts;
use super::fault::{NodeListError, NodeListFault};
use super::parsed_node::ParsedNode;
use crate::config::NetConf;
use crate::config::document::{self, TomlEntry, TomlTable};
use crate::lease::{Lease, default_vtep_mac, unfit_for_underlay};

/// Reads a `nodes.toml`. The leases are in the order of the file.
///
/// # Errors
/// [`NodeListError`] with the first fault and its line.
pub fn parse(text: &str, net_conf: &NetConf) -> Result<Vec<Lease>, NodeListError> {
    document::parse(text, |document| {
        document.only(&["node"])?;
        let mut placed = Vec::new();
        if let Some(nodes) = document.entry("node") {
            for node in nodes.list()? {
                placed.push(NodeParser { text, net_conf }.node(node.table()?)?);
            }
        }
        conflicts::check(&placed).map_err(|(at, fault)| at_line(text, at, fault))?;
        Ok(placed.into_iter().map(|placed| placed.lease).collect())
    })
}

/// Writes leases as a `nodes.toml`. [`parse`] reads the same leases from it under any backend of the cluster.
pub fn render(leases: &[Lease]) -> String {
    leases.iter().map(entry).collect()
}

fn entry(lease: &Lease) -> String {
    let mut text = format!(
        "[[node]]\nname = {:?}\nsubnets = {}\npublic-ip = \"{}\"\nbackend = \"{}\"\nvtep-mac = \"{}\"\n",
        lease.name,
        quoted(&lease.subnets),
        lease.public.first(),
        lease.format,
        lease.vtep_mac.v4
    );
    if let PublicAddresses::Dual(_, v6) = lease.public {
        text.push_str(&format!("public-ipv6 = \"{v6}\"\n"));
    }
    if lease.vtep_mac.v6 != lease.vtep_mac.v4 {
        text.push_str(&format!("vtep-mac-v6 = \"{}\"\n", lease.vtep_mac.v6));
    }
    for (key, list) in [
        ("accept-sources", quoted(&lease.accept_sources)),
        ("underlay-sources", quoted(&lease.underlay_sources)),
    ] {
        if list != "[]" {
            text.push_str(&format!("{key} = {list}\n"));
        }
    }
    if let Some(kernel_path) = lease.kernel_path {
        text.push_str(&format!("kernel-path = {kernel_path}\n"));
    }
    text
}

fn quoted(values: &[impl Display]) -> String {
    let values: Vec<_> = values.iter().map(|value| format!("\"{value}\"")).collect();
    format!("[{}]", values.join(", "))
}

/// Reads one entry and checks it against the cluster networks. `conflicts` checks the entries against each other.
struct NodeParser<'a> {
    text: &'a str,
    net_conf: &'a NetConf,
}

impl NodeParser<'_> {
    fn node(&self, table: TomlTable<'_>) -> Result<ParsedNode, NodeListError> {
        table.only(&KEYS)?;
        let require = |key| {
            let missing = || at_line(self.text, table.at(), NodeListFault::Missing { key });
            table.entry(key).ok_or_else(missing)
        };
        let name_entry = require("name")?;
        let name = self.name(name_entry)?;
        let v6_entry = table.entry("public-ipv6");
        let (public, address_at) = self.public(require("public-ip")?, v6_entry, &name)?;
        let mac_entries = (table.entry("vtep-mac"), table.entry("vtep-mac-v6"));
        let (vtep_mac, mac_at) = self.vtep_mac(mac_entries, public, address_at.v4)?;
        let (subnets, subnets_at) = self.subnets(require("subnets")?, &name)?;
        let (underlay_sources, sources_at) =
            self.underlay_sources(table.entry("underlay-sources"), &name)?;
        let lease = Lease {
            subnets,
            public,
            format: self.format(table.entry("backend"))?,
            vtep_mac,
            accept_sources: self.accept_sources(table.entry("accept-sources"), &name)?,
            underlay_sources,
            kernel_path: table
                .entry("kernel-path")
                .map(|entry| entry.flag())
                .transpose()?,
            name,
        };
        Ok(ParsedNode {
            lease,
            name_at: name_entry.at(),
            address_at,
            mac_at,
            subnets_at,
            sources_at,
        })
    }

    fn name(&self, entry: TomlEntry<'_>) -> Result<String, NodeListError> {
        let name = entry.text()?;
        let plain = name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
        if (1..=253).contains(&name.len()) && plain {
            Ok(name.to_owned())
        } else {
            Err(self.refuse(entry, NodeListFault::Name(name.to_owned())))
        }
    }

    fn public(
        &self,
        first: TomlEntry<'_>,
        second: Option<TomlEntry<'_>>,
        node: &str,
    ) -> Result<(PublicAddresses, PerFamily<usize>), NodeListError> {
        let address = self.underlay_address("public-ip", first, node)?;
        let Some(second) = second else {
            return Ok((address.into(), PerFamily::each(|_| first.at())));
        };
        let node = node.to_owned();
        match (
            address,
            self.underlay_address("public-ipv6", second, &node)?,
        ) {
            (IpAddr::V4(v4), IpAddr::V6(v6)) => {
                let at = PerFamily {
                    v4: first.at(),
                    v6: second.at(),
                };
                Ok((PublicAddresses::Dual(v4, v6), at))
            }
            (_, address @ IpAddr::V4(_)) => {
                Err(self.refuse(second, NodeListFault::NotIpv6 { address, node }))
            }
            (address, _) => Err(self.refuse(first, NodeListFault::TwoIpv6 { address, node })),
        }
    }

    fn vtep_mac(
        &self,
        (first, second): (Option<TomlEntry<'_>>, Option<TomlEntry<'_>>),
        public: PublicAddresses,
        address_at: usize,
    ) -> Result<(PerFamily<Mac>, PerFamily<usize>), NodeListError> {
        let (v4, v4_at) = match first {
            Some(entry) => (self.mac("vtep-mac", entry)?, entry.at()),
            None => (default_vtep_mac(public.first()), address_at),
        };
        let (v6, v6_at) = match second {
            Some(entry) => (self.mac("vtep-mac-v6", entry)?, entry.at()),
            None => (v4, v4_at),
        };
        let at = PerFamily {
            v4: v4_at,
            v6: v6_at,
        };
        Ok((PerFamily { v4, v6 }, at))
    }

    fn underlay_address(
        &self,
        key: &'static str,
        entry: TomlEntry<'_>,
        node: &str,
    ) -> Result<IpAddr, NodeListError> {
        let address = entry.address()?;
        let node = || node.to_owned();
        if let Some(fault) = unfit_for_underlay(address) {
            return Err(self.refuse(
                entry,
                NodeListFault::Unreachable {
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
                NodeListFault::InsideCluster {
                    key,
                    address,
                    node: node(),
                    network,
                },
            )),
            None => Ok(address),
        }
    }

    fn subnets(
        &self,
        entry: TomlEntry<'_>,
        node: &str,
    ) -> Result<(Vec<IpNet>, Vec<usize>), NodeListError> {
        let cluster = self.net_conf.cluster();
        let node = || node.to_owned();
        let (mut subnets, mut places) = (Vec::new(), Vec::new());
        for item in entry.list()? {
            let subnet = item.prefix()?;
            if !cluster.iter().any(|network| network.contains(&subnet)) {
                return Err(self.refuse(
                    item,
                    NodeListFault::Outside {
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
                    NodeListFault::TooSmall {
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
            return Err(self.refuse(entry, NodeListFault::Missing { key: "subnets" }));
        }
        Ok((subnets, places))
    }

    fn format(&self, entry: Option<TomlEntry<'_>>) -> Result<Format, NodeListError> {
        let Some(entry) = entry else {
            return Ok(self.net_conf.backend.format());
        };
        match entry.text()? {
            "udp" => Ok(Format::Udp),
            "vxlan" => Ok(Format::Vxlan),
            other => Err(self.refuse(entry, NodeListFault::Backend(other.to_owned()))),
        }
    }

    fn mac(&self, key: &'static str, entry: TomlEntry<'_>) -> Result<Mac, NodeListError> {
        let text = entry.text()?;
        let mac: Mac = text.parse().map_err(|_| {
            let text = text.to_owned();
            self.refuse(entry, NodeListFault::NotAMac { key, text })
        })?;
        let Mac([first, ..]) = mac;
        if mac == Mac::default() || first & MULTICAST != 0 {
            return Err(self.refuse(entry, NodeListFault::NotUnicastMac { key, mac }));
        }
        Ok(mac)
    }

    fn accept_sources(
        &self,
        entry: Option<TomlEntry<'_>>,
        node: &str,
    ) -> Result<Vec<IpNet>, NodeListError> {
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
                    NodeListFault::AcceptsPods {
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
        entry: Option<TomlEntry<'_>>,
        node: &str,
    ) -> Result<(Vec<IpAddr>, Vec<usize>), NodeListError> {
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

    fn refuse(&self, entry: TomlEntry<'_>, fault: NodeListFault) -> NodeListError {
        at_line(self.text, entry.at(), fault)
    }
}

fn at_line(text: &str, at: usize, fault: NodeListFault) -> NodeListError {
    NodeListError {
        line: document::line(text, at),
        fault,
    }
}

/// The group bit of a MAC's first octet (IEEE 802).
const MULTICAST: u8 = 1;
const KEYS: [&str; 10] = [
    "name",
    "subnets",
    "public-ip",
    "public-ipv6",
    "backend",
    "vtep-mac",
    "vtep-mac-v6",
    "accept-sources",
    "underlay-sources",
    "kernel-path",
];

#[cfg(test)]
mod tests;
