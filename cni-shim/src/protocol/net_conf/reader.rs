//! Reading the values of a configuration's keys.

use std::path::PathBuf;

use ipnet::IpNet;

use super::Requested;
use crate::pod_link::SHORTEST_SOURCE;
use crate::protocol::request::{MAC_RULE, address, parse_mac};
use crate::protocol::result::Dns;
use crate::{Bandwidth, Json, RateLimit};

/// A value that is none of its key's.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Malformed {
    pub(super) key: &'static str,
    pub(super) value: Json,
    pub(super) rule: &'static str,
}

/// Reads values and remembers what was wrong with them.
#[derive(Default)]
pub(super) struct Reader {
    pub(super) malformed: Vec<Malformed>,
}

impl Reader {
    fn refuse<T>(&mut self, key: &'static str, value: &Json, rule: &'static str) -> Option<T> {
        let value = value.clone();
        self.malformed.push(Malformed { key, value, rule });
        None
    }

    pub(super) fn root(&mut self, conf: &Json) -> PathBuf {
        let root = match conf.get("root") {
            None => None,
            Some(Json::Text(root)) if root.starts_with('/') => Some(PathBuf::from(root)),
            Some(value) => self.refuse("root", value, "an absolute path"),
        };
        root.unwrap_or_else(|| PathBuf::from("/"))
    }

    /// 0 means unset, as in the reference plugins.
    pub(super) fn mtu(&mut self, conf: &Json) -> Option<u16> {
        let value = conf.get("mtu")?;
        match value.integer() {
            Some(0) => None,
            Some(mtu) if (576..=65535).contains(&mtu) => u16::try_from(mtu).ok(),
            _ => self.refuse("mtu", value, "an integer from 576 to 65535"),
        }
    }

    pub(super) fn dns(&mut self, conf: &Json) -> Dns {
        let Some(value) = conf.object("dns") else {
            return Dns::default();
        };
        let dns = Dns::parse(&value).or_else(|| self.refuse("dns", &value, DNS_RULE));
        dns.unwrap_or_default()
    }

    pub(super) fn ipam(&mut self, conf: &Json, runtime: &Json) -> Option<String> {
        let kind = match conf.object("ipam") {
            None => None,
            Some(ipam @ Json::Object(_)) => match ipam.get("type") {
                None => None,
                Some(Json::Text(kind)) => Some(kind.clone()).filter(|kind| !kind.is_empty()),
                Some(value) => self.refuse("ipam.type", value, "the name of a plugin"),
            },
            Some(value) => self.refuse("ipam", &value, "an object with a type"),
        };
        match runtime.get("ipRanges") {
            Some(ranges) if kind.is_none() && ranges.says_something() => {
                self.refuse("runtimeConfig.ipRanges", ranges, IP_RANGES_RULE)
            }
            _ => kind,
        }
    }

    pub(super) fn requested(
        &mut self,
        from: &Json,
        [ips, mac_key]: [&'static str; 2],
    ) -> Requested {
        let mut requested = Requested::default();
        if let Some(value) = from.get("ips") {
            let addresses = value.list().and_then(|items| {
                let all = items.iter().map(|item| address(item.text()?));
                all.collect()
            });
            let addresses = addresses.or_else(|| self.refuse(ips, value, "a list of addresses"));
            requested.ips = addresses.unwrap_or_default();
        }
        requested.mac = match from.get("mac") {
            Some(Json::Text(text)) if text.is_empty() => None,
            Some(value) => value
                .text()
                .and_then(parse_mac)
                .or_else(|| self.refuse(mac_key, value, MAC_RULE)),
            None => None,
        };
        requested
    }

    pub(super) fn bandwidth(&mut self, runtime: &Json) -> Option<Bandwidth> {
        let value = &runtime.object("bandwidth")?;
        if value.members().is_none() {
            return self.refuse("runtimeConfig.bandwidth", value, BANDWIDTH_RULE);
        }
        let mut limit = |rate, burst| {
            let mut whole = |key| match value.get(key) {
                None => 0,
                Some(number) => number.integer().unwrap_or_else(|| {
                    self.refuse::<()>("runtimeConfig.bandwidth", value, BANDWIDTH_RULE);
                    0
                }),
            };
            let (rate, burst) = (whole(rate), whole(burst));
            (rate > 0).then_some(RateLimit { rate, burst })
        };
        let ingress = limit("ingressRate", "ingressBurst");
        let egress = limit("egressRate", "egressBurst");
        (ingress.is_some() || egress.is_some()).then_some(Bandwidth { ingress, egress })
    }

    /// Of the network's configuration alone: `args` may come from the pod's author (Multus' `cni-args`), and could
    /// then direct the node's routes to the pod.
    pub(super) fn sources(&mut self, conf: &Json) -> Vec<IpNet> {
        let Some(value) = conf.get("allowedSources") else {
            return Vec::new();
        };
        let items = value.list().filter(|items| items.len() <= SOURCES);
        let read: Option<Vec<IpNet>> =
            items.and_then(|items| items.iter().map(|item| source(item.text()?)).collect());
        let read = read.or_else(|| self.refuse("allowedSources", value, SOURCES_RULE));
        let mut sources = read.unwrap_or_default();
        sources.sort_unstable();
        sources.dedup();
        sources
    }
}

/// An address or a prefix; never everything, which would be no check at all.
fn source(text: &str) -> Option<IpNet> {
    let prefix = match text.split_once('/') {
        None => text
            .parse()
            .ok()
            .map(|ip: std::net::IpAddr| IpNet::from(ip)),
        Some(_) => text.parse().ok(),
    };
    prefix
        .map(|prefix: IpNet| prefix.trunc())
        .filter(|prefix| prefix.prefix_len() >= SHORTEST_SOURCE)
}

/// Entries of `allowedSources` at most: each is a route.
const SOURCES: usize = 64;

const DNS_RULE: &str = "nameservers (addresses), domain, search, options";
const BANDWIDTH_RULE: &str = "whole numbers of bits (per second)";
const SOURCES_RULE: &str = "a list of at most 64 addresses and prefixes of at least 8 bits";
const IP_RANGES_RULE: &str = "the node's range comes from the Tartan agent; remove the capability \
                              ipRanges, or delegate to an \"ipam\" such as host-local";
