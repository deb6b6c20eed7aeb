//! Theory of operation
//!
//! To which endpoints kube-proxy translates a packet that goes to a Service, for
//! `tartan trace`. Read is what kube-proxy wrote into nf_tables, in either of its
//! modes, as `pkg/proxy/iptables/proxier.go` and `pkg/proxy/nftables/proxier.go`
//! of Kubernetes 1.29 to 1.36 write it:
//!
//! | | iptables (by iptables-nft) | nftables |
//! |---|---|---|
//! | a Service's port | a rule in `nat KUBE-SERVICES` | an element of the map `service-ips` |
//! | without endpoints | a rule in `filter KUBE-SERVICES` or `KUBE-EXTERNAL-SERVICES` | an element of the map `no-endpoint-services` |
//! | the choice | chains `KUBE-EXT-`, `KUBE-SVC-`, `KUBE-SVL-`, `KUBE-SEP-` | chains `external-`, `service-`, `endpoint-`, and maps |
//! | the endpoint | the target DNAT | `dnat` |
//!
//! The chains of the choice are walked for every way that the packet may take: a
//! rule that asks for a number at random, or for what a client did before, may
//! hold or not. What comes out is every endpoint that it may be translated to.
//! Where a rule on the way is not understood, that is said and nothing claimed.
//! Node ports are not followed: they are by the node's own addresses.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use super::nft::{
    BaseChain, ChainPlace, IPV4, IPV6, MapData, MapElement, NftError, PREROUTING, ServiceAction,
    ServiceRule, Socket, Term, address, first_port,
};
use super::packet_walk::{Addresses, is_gone};
use super::read_error;
use crate::host::error::HostError;

/// What kube-proxy does with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceFate {
    /// It goes to no Service.
    NoService,
    /// It is translated, for each connection to one of these; empty never.
    Endpoints {
        /// The chain that chooses, as nft names it.
        chain: String,
        /// Each once, in the order of the rules.
        endpoints: Vec<SocketAddr>,
        /// There are no others.
        is_complete: bool,
    },
    /// No endpoint may answer it: `REJECT`, `reject` or `drop` in that chain or map.
    Refused {
        /// The chain or map, as nft names it.
        chain: String,
        /// What is done with the packet.
        verdict: &'static str,
    },
    /// A Service has the address, and listens on these ports alone: IANA protocol number and port.
    NoPort(Vec<(u8, u16)>),
    /// A Service's chain translates it for other sources alone.
    NotForSource {
        /// The chain, as nft names it.
        chain: String,
    },
    /// It goes to a Service, by a rule or a chain that is not understood.
    NotUnderstood {
        /// The chain, as nft names it.
        chain: String,
    },
    /// kube-proxy's table has other maps than those that are read.
    Unread,
}

/// The packet that is asked for.
#[derive(Clone, Copy, Debug)]
pub(in crate::host) struct ServicePacket {
    pub(in crate::host) addresses: Addresses,
    /// IANA protocol number.
    pub(in crate::host) protocol: u8,
    pub(in crate::host) port: u16,
}

/// A port of the Service that has the packet's destination.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Listed {
    /// `None`: of a rule that is not understood.
    port: Option<(u8, u16)>,
    leads: Leads,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Leads {
    Chain(String),
    Refused {
        chain: String,
        verdict: &'static str,
    },
}

/// The chains and maps that a packet may come to.
#[derive(Debug, Default)]
struct Choice {
    chains: BTreeMap<String, Vec<ServiceRule>>,
    maps: BTreeMap<String, Vec<MapElement>>,
}

/// What the calling thread's network namespace does with the packet.
///
/// # Errors
/// [`HostError::Rules`]: nf_tables cannot be read.
pub(in crate::host) async fn translate(packet: ServicePacket) -> Result<ServiceFate, HostError> {
    match read(&packet).await {
        // No nf_tables, no rules.
        Err(NftError::Unsupported) => Ok(ServiceFate::NoService),
        read => read.map_err(read_error),
    }
}

async fn read(packet: &ServicePacket) -> Result<ServiceFate, NftError> {
    let mut socket = Socket::open()?;
    let family = packet.family();
    let tables = socket.tables().await?;
    let is_awake = |name: &str| {
        let mut awake = tables.iter().filter(|table| !table.dormant);
        awake.any(|table| (table.family, &table.name[..]) == (family, name))
    };
    let mut fate = ServiceFate::NoService;
    if is_awake("kube-proxy") {
        fate = by_maps(&mut socket, packet).await?;
    }
    if matches!(fate, ServiceFate::NoService | ServiceFate::Unread) && is_awake("nat") {
        match by_rules(&mut socket, packet).await? {
            ServiceFate::NoService => {}
            found => return Ok(found),
        }
    }
    Ok(fate)
}

/// By what the iptables mode writes.
async fn by_rules(socket: &mut Socket, packet: &ServicePacket) -> Result<ServiceFate, NftError> {
    let family = packet.family();
    let bases = socket.base_chains().await?;
    let is_first = |base: &&BaseChain| {
        (base.family, &base.table[..], base.hook) == (family, "nat", PREROUTING)
    };
    let mut is_hooked = false;
    for base in bases.iter().filter(is_first) {
        let rules = here(socket.rules(base).await)?;
        let mut rules = rules.iter().map(|rule| rule.parsed(family));
        is_hooked |= rules.any(|rule| rule.leads_to() == Some("KUBE-SERVICES"));
    }
    if !is_hooked {
        return Ok(ServiceFate::NoService);
    }
    let mut listed = Vec::new();
    for (table, name) in [
        ("nat", "KUBE-SERVICES"),
        ("filter", "KUBE-SERVICES"),
        ("filter", "KUBE-EXTERNAL-SERVICES"),
    ] {
        let place = ChainPlace {
            family,
            table: table.to_owned(),
            name: name.to_owned(),
        };
        let rules = here(socket.rules_at(&place).await)?;
        let rules = rules.iter().map(|rule| rule.service_rule(family));
        let chain = named(family, table, name);
        listed.extend(rules.filter_map(|rule| packet.listed(rule, &chain)));
    }
    follow(socket, packet, "nat", &listed).await
}

/// By what the nftables mode writes.
async fn by_maps(socket: &mut Socket, packet: &ServicePacket) -> Result<ServiceFate, NftError> {
    let family = packet.family();
    let mut listed = Vec::new();
    for map in ["service-ips", "no-endpoint-services"] {
        let elements = match socket.map_elements(family, TABLE, map).await {
            Err(error) if is_gone(&error) => return Ok(ServiceFate::Unread),
            elements => elements?,
        };
        let chain = named(family, TABLE, map);
        let of_it = elements.into_iter();
        listed.extend(of_it.filter_map(|element| packet.element(element, &chain)));
    }
    // Who may speak to a load balancer's address is a set of prefixes, which is not read.
    let guards = here(socket.map_elements(family, TABLE, "firewall-ips").await)?;
    let mut guards = guards
        .into_iter()
        .filter_map(|element| packet.element(element, ""));
    let own = Some((packet.protocol, packet.port));
    if let Some(Listed {
        leads: Leads::Chain(chain),
        ..
    }) = guards.find(|listed| listed.port == own)
    {
        let chain = named(family, TABLE, &chain);
        return Ok(ServiceFate::NotUnderstood { chain });
    }
    follow(socket, packet, TABLE, &listed).await
}

/// What becomes of the packet by what is listed of its destination.
async fn follow(
    socket: &mut Socket,
    packet: &ServicePacket,
    table: &str,
    listed: &[Listed],
) -> Result<ServiceFate, NftError> {
    let chain = match packet.entry(listed) {
        Ok(chain) => chain,
        Err(fate) => return Ok(fate),
    };
    let choice = read_choice(socket, packet, table, &chain).await?;
    let named = named(packet.family(), table, &chain);
    Ok(choice.fate(packet, &chain, named))
}

/// A chain and all that it may lead the packet to. What is gone, and what is beyond [`MOST_CHAINS`], is missing.
async fn read_choice(
    socket: &mut Socket,
    packet: &ServicePacket,
    table: &str,
    first: &str,
) -> Result<Choice, NftError> {
    let family = packet.family();
    let mut choice = Choice::default();
    let mut unread = vec![first.to_owned()];
    while let Some(name) = unread.pop() {
        if choice.chains.len() >= MOST_CHAINS || choice.chains.contains_key(&name) {
            continue;
        }
        let place = ChainPlace {
            family,
            table: table.to_owned(),
            name,
        };
        let rules = match socket.rules_at(&place).await {
            Err(error) if is_gone(&error) => continue,
            rules => rules?,
        };
        let rules: Vec<ServiceRule> = rules.iter().map(|rule| rule.service_rule(family)).collect();
        for rule in rules
            .iter()
            .filter(|rule| packet.meets(rule) != Some(false))
        {
            match &rule.action {
                ServiceAction::Jump(chain) | ServiceAction::Goto(chain) => {
                    unread.push(chain.clone());
                }
                ServiceAction::VerdictMap(map) | ServiceAction::ToOneOf(map) => {
                    let elements = here(socket.map_elements(family, table, map).await)?;
                    unread.extend(elements.iter().filter_map(|element| match &element.data {
                        MapData::Chain(chain) => Some(chain.clone()),
                        _ => None,
                    }));
                    choice.maps.insert(map.clone(), elements);
                }
                _ => {}
            }
        }
        choice.chains.insert(place.name, rules);
    }
    Ok(choice)
}

/// What is gone since it was listed has nothing.
fn here<T>(read: Result<Vec<T>, NftError>) -> Result<Vec<T>, NftError> {
    match read {
        Err(error) if is_gone(&error) => Ok(Vec::new()),
        read => read,
    }
}

fn named(family: u8, table: &str, name: &str) -> String {
    let family = if family == IPV4 { "ip" } else { "ip6" };
    format!("{family} {table} {name}")
}

impl ServicePacket {
    fn family(&self) -> u8 {
        match self.addresses.destination {
            IpAddr::V4(_) => IPV4,
            IpAddr::V6(_) => IPV6,
        }
    }

    /// What a rule of `KUBE-SERVICES` says of the packet's destination.
    fn listed(&self, rule: ServiceRule, chain: &str) -> Option<Listed> {
        let host = ipnet::IpNet::from(self.addresses.destination);
        if !rule.terms.contains(&Term::To(host)) {
            return None;
        }
        let leads = match rule.action {
            ServiceAction::Jump(to) | ServiceAction::Goto(to) => Leads::Chain(to),
            ServiceAction::Refuse(verdict) => Leads::Refused {
                chain: chain.to_owned(),
                verdict,
            },
            _ => return None,
        };
        let port = rule.protocol.zip(rule.port);
        Some(Listed {
            port: port.filter(|_| rule.is_understood),
            leads,
        })
    }

    /// What an element of a map by address, protocol and port says of it.
    fn element(&self, element: MapElement, map: &str) -> Option<Listed> {
        let family = self.family();
        let (host, rest) = element
            .key
            .split_at_checked(if family == IPV4 { 4 } else { 16 })?;
        if address(host, family)? != self.addresses.destination {
            return None;
        }
        let port = (*rest.first()?, first_port(rest.get(4..)?)?);
        let refused = |verdict| Leads::Refused {
            chain: map.to_owned(),
            verdict,
        };
        let (port, leads) = match element.data {
            MapData::Chain(chain) if chain == "reject-chain" => (Some(port), refused("reject")),
            MapData::Chain(chain) => (Some(port), Leads::Chain(chain)),
            MapData::Drop => (Some(port), refused("drop")),
            MapData::Value(_) | MapData::Other => (None, Leads::Chain(map.to_owned())),
        };
        Some(Listed { port, leads })
    }

    /// The chain that the packet's own port leads to; else what becomes of it. A rule that translates comes before one that
    /// refuses: kube-proxy has both where endpoints of one kind of address are elsewhere.
    fn entry(&self, listed: &[Listed]) -> Result<String, ServiceFate> {
        let own = Some((self.protocol, self.port));
        let of_it = listed.iter().filter(|listed| listed.port == own);
        let (chains, refusals): (Vec<&Listed>, Vec<&Listed>) =
            of_it.partition(|listed| matches!(listed.leads, Leads::Chain(_)));
        if let Some(listed) = chains.first().or(refusals.first()) {
            return match listed.leads.clone() {
                Leads::Chain(chain) => Ok(chain),
                Leads::Refused { chain, verdict } => Err(ServiceFate::Refused { chain, verdict }),
            };
        }
        if let Some(listed) = listed.iter().find(|listed| listed.port.is_none()) {
            let (Leads::Chain(chain) | Leads::Refused { chain, .. }) = listed.leads.clone();
            return Err(ServiceFate::NotUnderstood { chain });
        }
        let mut ports: Vec<(u8, u16)> = listed.iter().filter_map(|listed| listed.port).collect();
        ports.sort_unstable();
        ports.dedup();
        Err(match ports.is_empty() {
            true => ServiceFate::NoService,
            false => ServiceFate::NoPort(ports),
        })
    }

    /// Whether a rule holds for the packet; `None` where that is not known.
    fn meets(&self, rule: &ServiceRule) -> Option<bool> {
        let is_other = |asked: Option<u16>, own: u16| asked.is_some_and(|asked| asked != own);
        if is_other(rule.protocol.map(u16::from), self.protocol.into())
            || is_other(rule.port, self.port)
        {
            return Some(false);
        }
        let mut is_known = rule.is_understood;
        for term in &rule.terms {
            match self.addresses.meets_term(term) {
                Some(false) => return Some(false),
                Some(true) => {}
                None => is_known = false,
            }
        }
        is_known.then_some(true)
    }
}

impl Choice {
    /// What becomes of the packet that enters a chain.
    fn fate(&self, packet: &ServicePacket, chain: &str, named: String) -> ServiceFate {
        let mut walk = Walk {
            choice: self,
            packet,
            endpoints: Vec::new(),
            is_complete: true,
            left: MOST_RULES,
        };
        walk.chain(chain, DEPTH);
        match (walk.endpoints.is_empty(), walk.is_complete) {
            (false, is_complete) => ServiceFate::Endpoints {
                chain: named,
                endpoints: walk.endpoints,
                is_complete,
            },
            (true, true) => ServiceFate::NotForSource { chain: named },
            (true, false) => ServiceFate::NotUnderstood { chain: named },
        }
    }
}

/// A walk of all ways that the packet may take.
struct Walk<'a> {
    choice: &'a Choice,
    packet: &'a ServicePacket,
    endpoints: Vec<SocketAddr>,
    /// Nothing on the way was missing or not understood.
    is_complete: bool,
    left: usize,
}

impl Walk<'_> {
    /// Whether the packet that enters a chain surely does not come back.
    fn chain(&mut self, name: &str, depth: usize) -> bool {
        let choice = self.choice;
        let (Some(rules), Some(depth)) = (choice.chains.get(name), depth.checked_sub(1)) else {
            self.is_complete = false;
            return false;
        };
        for rule in rules {
            let met = self.packet.meets(rule);
            if met == Some(false) {
                continue;
            }
            let Some(left) = self.left.checked_sub(1) else {
                self.is_complete = false;
                return false;
            };
            self.left = left;
            let is_sure = met == Some(true);
            let ends = match &rule.action {
                ServiceAction::Nothing => false,
                ServiceAction::Unknown => {
                    self.is_complete = false;
                    false
                }
                ServiceAction::Jump(to) => self.chain(to, depth),
                ServiceAction::Goto(to) => {
                    let ends = self.chain(to, depth);
                    if is_sure {
                        return ends;
                    }
                    ends
                }
                ServiceAction::VerdictMap(map) => self.each_chain(map, depth),
                ServiceAction::To(address, port) => {
                    self.note(SocketAddr::new(*address, port.unwrap_or(self.packet.port)));
                    true
                }
                ServiceAction::ToOneOf(map) => {
                    self.each_value(map);
                    true
                }
                ServiceAction::Refuse(_) => true,
                ServiceAction::Return if is_sure => return false,
                ServiceAction::Return => false,
            };
            if ends && is_sure {
                return true;
            }
        }
        false
    }

    /// To any of the chains of a map.
    fn each_chain(&mut self, map: &str, depth: usize) -> bool {
        let choice = self.choice;
        let elements = choice.maps.get(map).map_or(&[][..], Vec::as_slice);
        self.is_complete &= !elements.is_empty();
        let mut ends = !elements.is_empty();
        for element in elements {
            match &element.data {
                MapData::Chain(chain) => ends &= self.chain(chain, depth),
                MapData::Drop => {}
                MapData::Value(_) | MapData::Other => {
                    self.is_complete = false;
                    ends = false;
                }
            }
        }
        ends
    }

    /// To any of the addresses and ports of a map.
    fn each_value(&mut self, map: &str) {
        let choice = self.choice;
        let family = self.packet.family();
        let elements = choice.maps.get(map).map_or(&[][..], Vec::as_slice);
        self.is_complete &= !elements.is_empty();
        let mut found: Vec<(&[u8], SocketAddr)> = Vec::new();
        for element in elements {
            let MapData::Value(value) = &element.data else {
                self.is_complete = false;
                continue;
            };
            let port = value.get(if family == IPV4 { 4.. } else { 16.. });
            let port = port.and_then(first_port).or(Some(self.packet.port));
            match address(value, family).zip(port) {
                Some((address, port)) => {
                    found.push((&element.key, SocketAddr::new(address, port)));
                }
                None => self.is_complete = false,
            }
        }
        // The kernel lists them in any order: their numbers are of the machine's byte order.
        found.sort_by_key(|(key, _)| key.first_chunk().map(|key| u32::from_ne_bytes(*key)));
        found.into_iter().for_each(|(_, place)| self.note(place));
    }

    fn note(&mut self, endpoint: SocketAddr) {
        if !self.endpoints.contains(&endpoint) {
            self.endpoints.push(endpoint);
        }
    }
}

const TABLE: &str = "kube-proxy";
/// An endpoint has a chain: more than Services have, and fewer than take a trace seconds.
const MOST_CHAINS: usize = 2048;
/// `NFT_JUMP_STACK_SIZE`
const DEPTH: usize = 16;
/// Rules that one walk looks at.
const MOST_RULES: usize = 100_000;

#[cfg(test)]
mod tests;
