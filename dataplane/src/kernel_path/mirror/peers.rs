//! The tables `peers` and `fib`: the other nodes and the prefixes of their subnets.
//!
//! A peer has an entry if the programs could exchange packets with it: IPv4 in common and the `vxlan` format. Every
//! prefix of every peer is in `fib`, with 0 where its owner has no entry: the programs must not take it for a part of a
//! shorter prefix of another. A prefix that two peers claim is 0 too: which of them has it is user space's to say.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use encap::{Family, Format, Mac};

use super::generations::Generations;
use super::local::v4;
use super::numbers::Numbers;
use super::prefixes::{Prefix, Wanted};
use crate::kernel_path::layout::{Counts, PEER_RECEIVE, PEER_SEND, Peer, address, be};
use crate::kernel_path::tables::Tables;
use crate::kernel_path::{Facts, KernelPathError, PeerTraffic, Traffic};
use crate::spec::{ClusterSpec, NodeSpec, PeerSpec};

/// The peers as the kernel has them.
pub(super) struct Peers {
    slots: Vec<Option<Slot>>,
    numbers: Numbers,
    by_address: HashMap<Ipv4Addr, u32>,
    /// The peers of the latest spec and their numbers.
    known: Vec<(Arc<PeerSpec>, Option<u32>)>,
    /// What the entries were written by; `None` where something is still to be written.
    basis: Option<Basis>,
    /// Counts the plans made; a slot that the latest does not know has lost its peer.
    plan: u64,
}

/// An entry that is in use.
struct Slot {
    /// `None` between an adoption and the first plan.
    spec: Option<Arc<PeerSpec>>,
    written: Peer,
    /// As the latest plan has it, but for its generation.
    wanted: Peer,
    plan: u64,
    /// It has its generation of this plan already.
    renewed: bool,
    /// Another peer's counts stand in the entry.
    uncleared: bool,
    /// Counted under another number, while the node had another address.
    before: Counts,
}

impl Peers {
    /// What `tables` hold, and the generations after those that were given out.
    pub(super) fn read(tables: &impl Tables) -> Result<(Peers, Generations), KernelPathError> {
        let entries = tables.peers()?;
        let reserved = entries.first().map_or(0, |first| first.generation);
        let slots: Vec<Option<Slot>> = entries.into_iter().map(Slot::adopted).collect();
        let by_address = (0..).zip(&slots).filter_map(|(number, slot)| {
            let slot = slot.as_ref()?;
            Some((address(slot.written.address), number))
        });
        let end = tables.max_peers();
        let numbers = if reserved == 0 {
            Numbers::new(1, end)
        } else {
            let in_use = |number| slots.get(number as usize).is_some_and(Option::is_some);
            Numbers::adopted(1, end, in_use)
        };
        let peers = Peers {
            by_address: by_address.collect(),
            numbers,
            slots,
            known: vec![],
            basis: None,
            plan: 0,
        };
        Ok((peers, Generations::after(reserved)))
    }

    /// Notes what the entries are to become, and gives a number to each peer that came. Returns whether there is anything
    /// to write; then [`Peers::settle`] says that it was.
    pub(super) fn plan(
        &mut self,
        spec: &Arc<ClusterSpec>,
        facts: &Facts,
    ) -> Result<bool, KernelPathError> {
        let before = self.basis.take();
        let same_facts = before.as_ref().is_some_and(|before| before.has(facts));
        let same_spec = |before: &Basis| Arc::ptr_eq(&before.cluster, spec);
        if same_facts && before.as_ref().is_some_and(same_spec) {
            self.basis = before;
            return Ok(false);
        }
        let same_node = before.is_some_and(|before| before.cluster.node == spec.node);
        let keep = same_facts && same_node;
        self.plan += 1;
        let known = std::mem::take(&mut self.known).into_iter();
        let mut known = known.map(Some).chain(std::iter::repeat_with(|| None));
        let mut now = Vec::with_capacity(spec.peers.len());
        for peer in &spec.peers {
            let same = known.next().flatten();
            let same = same.filter(|(spec, _)| Arc::ptr_eq(spec, peer));
            if let Some(same) = same.as_ref().filter(|_| keep) {
                self.keep(same.1);
                now.push((Arc::clone(peer), same.1));
                continue;
            }
            let address = carried(&spec.node, peer);
            let number = match (address, same) {
                (None, _) => None,
                (Some(_), Some((_, Some(number)))) => Some(number),
                (Some(address), _) => Some(self.number(address)?),
            };
            if let (Some(address), Some(number)) = (address, number) {
                self.want(number, peer, entry(&spec.node, peer, address, facts));
            }
            now.push((Arc::clone(peer), number));
        }
        self.known = now;
        Ok(true)
    }

    /// Says that everything of the latest plan is written.
    pub(super) fn settle(&mut self, spec: &Arc<ClusterSpec>, facts: &Facts) {
        let slots = self.slots.iter().flatten();
        let sending = slots.filter(|slot| slot.written.flags & PEER_SEND != 0);
        self.basis = Some(Basis::new(spec, facts, sending.count()));
    }

    /// The peer with that number is the same as in the plan before.
    fn keep(&mut self, number: Option<u32>) {
        let plan = self.plan;
        let slot = number.and_then(|number| self.slots.get_mut(number as usize)?.as_mut());
        if let Some(slot) = slot {
            slot.plan = plan;
            slot.renewed = false;
        }
    }

    /// The number of the peer at `address`, or a new one.
    fn number(&mut self, address: Ipv4Addr) -> Result<u32, KernelPathError> {
        if let Some(number) = self.by_address.get(&address) {
            return Ok(*number);
        }
        let full = || KernelPathError::Full { table: "peers" };
        let number = self.numbers.take().ok_or_else(full)?;
        self.by_address.insert(address, number.value);
        if let Some(slot) = self.slots.get_mut(number.value as usize) {
            *slot = Some(Slot {
                spec: None,
                written: Peer::default(),
                wanted: Peer::default(),
                plan: 0,
                renewed: false,
                uncleared: number.reused,
                before: Counts::default(),
            });
        }
        Ok(number.value)
    }

    fn want(&mut self, number: u32, spec: &Arc<PeerSpec>, wanted: Peer) {
        let plan = self.plan;
        if let Some(Some(slot)) = self.slots.get_mut(number as usize) {
            if slot
                .spec
                .as_ref()
                .is_none_or(|known| !Arc::ptr_eq(known, spec))
            {
                slot.spec = Some(Arc::clone(spec));
            }
            slot.wanted = wanted;
            slot.plan = plan;
            slot.renewed = false;
        }
    }

    /// The prefixes as the latest plan has them.
    pub(super) fn routes(&self) -> Wanted {
        let mut routes: Wanted = self
            .known
            .iter()
            .flat_map(|(spec, number)| {
                let nets = spec.subnets.iter().filter_map(v4);
                nets.map(|net| (Prefix::new(net.trunc()), number.unwrap_or(0)))
            })
            .collect();
        routes.sort_unstable();
        routes.dedup_by(|(next, other), (prefix, number)| {
            let same = next == prefix;
            if same && other != number {
                *number = 0;
            }
            same
        });
        routes
    }

    /// Takes away what the plan does not have. The flows of `losers` end: an address is theirs no more.
    pub(super) fn restrict(
        &mut self,
        tables: &mut impl Tables,
        generations: &mut Generations,
        losers: &BTreeSet<u32>,
    ) -> Result<(), KernelPathError> {
        for (number, slot) in in_use(&mut self.slots) {
            let stays = slot.plan == self.plan;
            let left = slot.written.meet(stays.then_some(&slot.wanted));
            let loses = slot.written.flags & !left.flags != 0 || losers.contains(&number);
            if left == slot.written && !loses {
                continue;
            }
            let generation = if loses {
                generations.next(tables)?
            } else {
                left.generation
            };
            let left = Peer { generation, ..left };
            tables.set_peer(number, &left)?;
            slot.written = left;
            slot.renewed = loses;
        }
        Ok(())
    }

    /// Makes the entries of the plan's peers what it wants.
    pub(super) fn extend(
        &mut self,
        tables: &mut impl Tables,
        generations: &mut Generations,
    ) -> Result<(), KernelPathError> {
        let plan = self.plan;
        for (number, slot) in in_use(&mut self.slots).filter(|(_, slot)| slot.plan == plan) {
            if slot.uncleared {
                tables.clear_peer_counts(number)?;
                slot.uncleared = false;
            }
            let same = Peer {
                generation: slot.written.generation,
                ..slot.wanted
            };
            if same == slot.written {
                continue;
            }
            let generation = if slot.written.has_template_of(&slot.wanted) || slot.renewed {
                slot.written.generation
            } else {
                generations.next(tables)?
            };
            let wanted = Peer { generation, ..same };
            tables.set_peer(number, &wanted)?;
            slot.written = wanted;
            slot.renewed = true;
        }
        Ok(())
    }

    /// Frees the entries of peers that went, to which no prefix leads any more. What was counted for a node that only
    /// has another address now goes with it.
    pub(super) fn free(&mut self, tables: &mut impl Tables) -> Result<(), KernelPathError> {
        let mut moved: HashMap<String, Counts> = HashMap::new();
        for (number, place) in (0..).zip(&mut self.slots) {
            let Some(slot) = place.as_ref().filter(|slot| slot.plan != self.plan) else {
                continue;
            };
            if let Some(spec) = &slot.spec {
                let counts = tables.peer_counts(number)?.plus(&slot.before);
                moved.insert(spec.name.clone(), counts);
            }
            tables.set_peer(number, &Peer::default())?;
            self.by_address.remove(&address(slot.wanted.address));
            self.numbers.free(number);
            *place = None;
        }
        if moved.is_empty() {
            return Ok(());
        }
        for (_, slot) in in_use(&mut self.slots) {
            let name = slot.spec.as_ref().map(|spec| &spec.name);
            if let Some(counts) = name.and_then(|name| moved.remove(name)) {
                slot.before = slot.before.plus(&counts);
            }
        }
        Ok(())
    }

    /// Gives the peer at `address` another generation.
    pub(super) fn revoke(
        &mut self,
        tables: &mut impl Tables,
        generations: &mut Generations,
        address: Ipv4Addr,
    ) -> Result<bool, KernelPathError> {
        let Some(&number) = self.by_address.get(&address) else {
            return Ok(false);
        };
        let Some(Some(slot)) = self.slots.get_mut(number as usize) else {
            return Ok(false);
        };
        let next = Peer {
            generation: generations.next(tables)?,
            ..slot.written
        };
        tables.set_peer(number, &next)?;
        slot.written = next;
        Ok(true)
    }

    /// Peers of the latest spec, and how many of them the programs may send to.
    pub(super) fn count(&self) -> (usize, usize) {
        let sending = self.basis.as_ref().map_or(0, |basis| basis.sending);
        (self.known.len(), sending)
    }

    /// The addresses of those that the programs may send to.
    pub(super) fn sendable(&self) -> HashSet<Ipv4Addr> {
        let slots = self.slots.iter().flatten();
        let sendable = slots.filter(|slot| slot.written.flags & PEER_SEND != 0);
        sendable.map(|slot| address(slot.written.address)).collect()
    }

    /// What was counted for each.
    pub(super) fn traffic(
        &self,
        tables: &impl Tables,
    ) -> Result<Vec<PeerTraffic>, KernelPathError> {
        let in_use = (0..)
            .zip(&self.slots)
            .filter_map(|(number, slot)| Some((number, slot.as_ref()?)));
        let traffic = in_use.map(|(number, slot)| {
            let counts = tables.peer_counts(number)?.plus(&slot.before);
            Ok(PeerTraffic {
                name: slot
                    .spec
                    .as_ref()
                    .map_or_else(String::new, |spec| spec.name.clone()),
                address: address(slot.written.address),
                sends: slot.written.flags & PEER_SEND != 0,
                traffic: Traffic::from(counts),
            })
        });
        traffic.collect()
    }
}

/// Everything that the entries depend on.
struct Basis {
    cluster: Arc<ClusterSpec>,
    address: Ipv4Addr,
    next_hops: HashMap<Ipv4Addr, Mac>,
    unusable: HashSet<Ipv4Addr>,
    path_mtu: HashMap<Ipv4Addr, u16>,
    /// How many peers the programs may send to.
    sending: usize,
}

impl Basis {
    fn new(cluster: &Arc<ClusterSpec>, facts: &Facts, sending: usize) -> Basis {
        Basis {
            cluster: Arc::clone(cluster),
            address: facts.underlay.address,
            next_hops: facts.next_hops.clone(),
            unusable: facts.unusable.clone(),
            path_mtu: facts.path_mtu.clone(),
            sending,
        }
    }

    /// Whether the facts are the same, as far as can be seen without a lookup: a clone has its entries in the same order.
    /// What is the same in another order costs a plan, which finds nothing to write.
    fn has(&self, facts: &Facts) -> bool {
        self.address == facts.underlay.address
            && self.next_hops.iter().eq(&facts.next_hops)
            && self.unusable.iter().eq(&facts.unusable)
            && self.path_mtu.iter().eq(&facts.path_mtu)
    }
}

impl Slot {
    fn adopted(written: Peer) -> Option<Slot> {
        (written.address != 0).then(|| Slot {
            spec: None,
            written,
            wanted: written,
            plan: 0,
            renewed: false,
            uncleared: false,
            before: Counts::default(),
        })
    }
}

impl Peer {
    /// Whether the headers of its flows are the same.
    fn has_template_of(&self, other: &Peer) -> bool {
        let template = |peer: &Peer| (peer.address, peer.vtep, peer.next_hop);
        template(self) == template(other)
    }

    /// What it and `other` both admit, in its own words.
    fn meet(&self, other: Option<&Peer>) -> Peer {
        match other.filter(|other| self.has_template_of(other)) {
            Some(other) => Peer {
                flags: self.flags & other.flags,
                mtu: self.mtu.min(other.mtu),
                ..*self
            },
            None => Peer { flags: 0, ..*self },
        }
    }
}

fn in_use(slots: &mut [Option<Slot>]) -> impl Iterator<Item = (u32, &mut Slot)> {
    let all = (0..).zip(slots);
    all.filter_map(|(number, slot)| Some((number, slot.as_mut()?)))
}

/// The address of a peer that has an entry.
fn carried(node: &NodeSpec, peer: &PeerSpec) -> Option<Ipv4Addr> {
    let way = node.public.way_to(peer.public, Family::V4)?;
    match (way, peer.format) {
        (IpAddr::V4(address), Format::Vxlan) => Some(address),
        _ => None,
    }
}

/// The entry of a peer at `address`, without generation.
fn entry(node: &NodeSpec, peer: &PeerSpec, address: Ipv4Addr, facts: &Facts) -> Peer {
    let vtep = peer.vtep_mac.v4;
    let next_hop = facts.next_hops.get(&address).copied();
    let ours = node.public.of(Family::V4) == Some(facts.underlay.address.into());
    let usable = ours && !facts.unusable.contains(&address) && vtep.is_unicast();
    let mut flags = 0;
    if ours {
        flags |= PEER_RECEIVE;
    }
    if usable && next_hop.is_some_and(|mac| mac.is_unicast()) {
        flags |= PEER_SEND;
    }
    let path = facts.path_mtu.get(&address).copied();
    let outer = path.map_or(node.underlay_mtu, |path| path.min(node.underlay_mtu));
    let overhead = Format::Vxlan.overhead(Family::V4);
    Peer {
        address: be(address),
        flags,
        generation: 0,
        mtu: outer.saturating_sub(overhead).min(node.inner_mtu.v4),
        vtep: vtep.0,
        next_hop: next_hop.unwrap_or_default().0,
        pad: 0,
    }
}
