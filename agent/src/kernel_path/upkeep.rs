//! What is looked at once a second: the lease, IPsec policies, reports of narrower paths, what peers announce, and the
//! kernel's neighbours where one of the next hops was announced to have changed.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::engine::Engine;
use dataplane::families::PublicAddresses;
use dataplane::kernel_path::{Event, Facts, KernelPathError};
use dataplane::spec::Spec;
use encap::{Family, Format, Mac};

use super::site::Site;
use super::switching::Surroundings;
use super::user_space::{UserSpaceReason, has_derived_mac, incapable};
use super::{KernelPathControl, OffReason, monotonic};
use crate::control::model::Known;
use crate::host::kernel_path::Way;
use crate::host::{Host, read_ipsec_rules};

impl KernelPathControl {
    /// Once a second, while it is in use. What the kernel refuses takes it out of use. `next_hop_changed`: one may have
    /// since the last call. Returns whether something took it out of use: a refresh is due then.
    pub(crate) async fn tick(
        &mut self,
        host: &Host,
        known: &Known,
        spec: &Spec,
        engine: &Engine,
        next_hop_changed: bool,
    ) -> bool {
        self.are_neighbours_outdated |= next_hop_changed;
        let was_live = self.is_live;
        if was_live {
            self.look(host, known, spec, engine).await;
        }
        was_live && !self.is_live
    }

    async fn look(&mut self, host: &Host, known: &Known, spec: &Spec, engine: &Engine) {
        if let Err(error) = self.renew() {
            return self.note_fault(error.into());
        }
        if !self.flows.is_running() {
            let ended = OffReason::Refused("the thread that watches flows has ended".to_owned());
            return self.note_fault(ended);
        }
        // A query that fails says nothing: the next refresh asks again.
        if let Ok(Some(rules)) = read_ipsec_rules() {
            return self.note_fault(OffReason::Ipsec(rules));
        }
        self.take_reports();
        let Some(site) = self.site.clone() else {
            return;
        };
        self.use_neighbours(host, &site).await;
        let next_hops = match self.are_neighbours_outdated {
            true => match self.next_hops(host, &site).await {
                Ok(next_hops) => Some(next_hops),
                // A listing that fails says nothing: the lease and the next tick are the bound.
                Err(_) => return,
            },
            false => None,
        };
        let Some(facts) = self.facts.take() else {
            return;
        };
        // Nothing may return before they are put back.
        let next_hops_now = next_hops.as_ref().unwrap_or(&facts.next_hops);
        let unusable = self.unusable(known, spec, engine, next_hops_now);
        let have_moved = next_hops
            .as_ref()
            .is_some_and(|now| *now != facts.next_hops);
        let next = (have_moved || unusable != facts.unusable).then(|| Facts {
            next_hops: next_hops_now.clone(),
            unusable,
            ..facts.clone()
        });
        let unchanged = self.facts.insert(facts);
        let facts = match next {
            Some(next) => next,
            None if self.version == spec.version => return,
            None => unchanged.clone(),
        };
        if let Err(reason) = self.follow_with(spec, facts) {
            self.note_fault(reason);
        }
    }

    /// Notes what the programs report of paths.
    fn take_reports(&mut self) {
        while let Some(event) = self.flows.next_other() {
            if let Event::PathReport { peer, mtu } = event {
                self.note_report(peer, mtu);
            }
        }
    }

    /// Notes a peer that a router says our packets are too large for. User space sends to it, and makes trials of the path.
    /// A report can be forged: it makes no entry of what is no peer, and does not prolong one that is there.
    pub(super) fn note_report(&mut self, peer: Ipv4Addr, mtu: u16) {
        if !self.ways.contains_key(&peer) {
            return tracing::debug!("a report of the path to {peer}, which is no peer");
        }
        match self.reported.entry(peer) {
            Entry::Vacant(entry) => {
                entry.insert(Instant::now());
                tracing::info!(
                    "a router says that packets to {peer} are too large (MTU {mtu}): user space sends to it"
                );
            }
            Entry::Occupied(_) => {
                tracing::debug!("another report of the path to {peer} (MTU {mtu})");
            }
        }
    }

    /// Moves the programs' lease on, where that is due.
    fn renew(&mut self) -> Result<(), KernelPathError> {
        let is_due = self.renewed.is_none_or(|at| at.elapsed() >= RENEW_EVERY);
        if let Some(path) = self.path.as_ref().filter(|_| is_due) {
            path.lock().renew(monotonic())?;
            self.renewed = Some(Instant::now());
        }
        Ok(())
    }

    /// Looks up the ways to peers: those that are new, and from time to time all. What comes by another interface than the
    /// underlay device passes no program of ours and is lost in the VXLAN device, so a peer with a way elsewhere is a reason
    /// against the kernel path.
    pub(super) async fn read_ways(
        &mut self,
        with: &Surroundings<'_>,
        site: &Site,
    ) -> Result<(), OffReason> {
        let routes = with
            .picture
            .routes_outside(&with.spec.cluster.node.networks);
        let seen = Some((routes, site.underlay));
        let is_fresh = self.ways_read.is_some_and(|at| at.elapsed() < WAYS_EVERY);
        if !is_fresh || self.ways_of != seen {
            self.ways.clear();
            self.ways_read = Some(Instant::now());
            self.ways_of = seen;
        }
        let peers: HashSet<Ipv4Addr> = addresses(with.spec).collect();
        self.ways.retain(|peer, _| peers.contains(peer));
        for peer in peers {
            if let Entry::Vacant(unknown) = self.ways.entry(peer) {
                unknown.insert(with.host.way_to(peer, site.underlay.ifindex).await?);
            }
        }
        let mut elsewhere = self.ways.iter().filter(|(_, way)| **way == Way::Elsewhere);
        match elsewhere.next() {
            Some((peer, _)) => Err(OffReason::OtherInterface {
                peer: *peer,
                underlay: site.underlay_name.clone(),
            }),
            None => Ok(()),
        }
    }

    /// The MAC of the next hop to each peer, as far as the kernel has it.
    pub(super) async fn next_hops(
        &mut self,
        host: &Host,
        site: &Site,
    ) -> Result<HashMap<Ipv4Addr, Mac>, OffReason> {
        let macs = host.neighbour_macs(site.underlay.ifindex).await?;
        self.are_neighbours_outdated = false;
        let of = |(peer, way): (&Ipv4Addr, &Way)| match way {
            Way::Neighbour(neighbour) => Some((*peer, *macs.get(neighbour)?)),
            Way::Unknown | Way::Elsewhere => None,
        };
        Ok(self.ways.iter().filter_map(of).collect())
    }

    /// Has the kernel confirm the neighbours that the programs send to, of which its stack sees no packet.
    async fn use_neighbours(&mut self, host: &Host, site: &Site) {
        let is_due = self
            .neighbours_used
            .is_none_or(|at| at.elapsed() >= USE_EVERY);
        let Some(path) = self.path.clone().filter(|_| is_due) else {
            return;
        };
        self.neighbours_used = Some(Instant::now());
        let traffic = match path.lock().peer_traffic() {
            Ok(traffic) => traffic,
            Err(error) => return tracing::debug!("no counters of peers: {error}"),
        };
        let mut used = HashSet::new();
        for peer in traffic {
            let sent = peer.traffic.sent_packets;
            let before = self.sent.insert(peer.address, sent);
            if before.is_none_or(|before| before != sent)
                && let Some(Way::Neighbour(neighbour)) = self.ways.get(&peer.address)
            {
                used.insert(*neighbour);
            }
        }
        for neighbour in used {
            if let Err(error) = host.use_neighbour(site.underlay.ifindex, neighbour).await {
                tracing::debug!("{error}");
            }
        }
    }

    /// Finds the peers that user space sends to, and why. Returns those that the programs must not send to: those that
    /// cannot take it, and those with a path that is narrower than the underlay device's, as a report or user space says.
    /// User space sends to them and makes trials of the path.
    pub(super) fn unusable(
        &mut self,
        known: &Known,
        spec: &Spec,
        engine: &Engine,
        next_hops: &HashMap<Ipv4Addr, Mac>,
    ) -> HashSet<Ipv4Addr> {
        let ways = &self.ways;
        self.reported
            .retain(|peer, since| since.elapsed() < REPORT_LASTS && ways.contains_key(peer));
        let (snapshot, now) = (engine.snapshot(), engine.clock().now());
        let peers = || {
            let peers = snapshot.cluster.peers.iter();
            peers.filter_map(|peer| Some((v4(peer.public)?, peer)))
        };
        let written = known.leases.iter();
        let written: HashMap<Ipv4Addr, bool> = written
            .filter_map(|lease| Some((v4(lease.public)?, lease.kernel_path?)))
            .collect();
        // What it has announced the service before has heard: until its next probe that goes for this one too.
        let was_sent_to = |address| {
            let before = self.sent_before.as_ref();
            let before = before.filter(|(_, since)| since.elapsed() < SENT_BEFORE_LASTS);
            before.is_some_and(|(peers, _)| peers.contains(&address))
        };
        let incapable = peers().filter_map(|(address, peer)| {
            let announced = peer.announced_kernel_path(now);
            let announced = announced.or_else(|| was_sent_to(address).then_some(true));
            let written = written.get(&address).copied();
            Some((
                address,
                incapable(written, announced, has_derived_mac(peer))?,
            ))
        });
        let paths =
            peers().filter_map(|(address, peer)| Some((address, peer.path_mtu(Family::V4, now)?)));
        let narrow = narrow(paths, spec.cluster.node.underlay_mtu);
        let narrow = narrow.map(|address| (address, UserSpaceReason::Narrow));
        let reported = self.reported.keys();
        let reported = reported.map(|address| (*address, UserSpaceReason::Reported));
        // Of several reasons the last counts.
        let mut found: HashMap<_, _> = narrow.chain(reported).chain(incapable).collect();
        let unusable = found.keys().copied().collect();
        for address in addresses(spec).filter(|address| !next_hops.contains_key(address)) {
            found.entry(address).or_insert(UserSpaceReason::NoNextHop);
        }
        if *self.in_user_space != found {
            self.in_user_space = Arc::new(found);
        }
        unusable
    }
}

/// Those of the peers, each with the largest outer packet to it, bytes, that the underlay's largest does not pass to.
pub(super) fn narrow(
    paths: impl Iterator<Item = (Ipv4Addr, u16)>,
    underlay_mtu: u16,
) -> impl Iterator<Item = Ipv4Addr> {
    let narrow = paths.filter(move |(_, mtu)| *mtu < underlay_mtu);
    narrow.map(|(peer, _)| peer)
}

fn v4(public: PublicAddresses) -> Option<Ipv4Addr> {
    match public.of(Family::V4) {
        Some(IpAddr::V4(address)) => Some(address),
        _ => None,
    }
}

/// The underlay addresses of peers that are sent to in the `vxlan` format.
fn addresses(spec: &Spec) -> impl Iterator<Item = Ipv4Addr> {
    let peers = spec.cluster.peers.iter();
    let in_vxlan = peers.filter(|peer| peer.format == Format::Vxlan);
    in_vxlan.filter_map(|peer| v4(peer.public))
}

/// A sixth of the lease.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// The kernel doubts a neighbour 15 s to 45 s after it was confirmed (base_reachable_time).
const USE_EVERY: Duration = Duration::from_secs(10);
/// Rules of policy routing announce nothing that is watched.
const WAYS_EVERY: Duration = Duration::from_secs(30);
/// Among 5,000 peers an idle one sends a probe every 20 s.
const SENT_BEFORE_LASTS: Duration = Duration::from_secs(30);
/// As long as user space keeps a path's MTU.
const REPORT_LASTS: Duration = Duration::from_secs(600);
