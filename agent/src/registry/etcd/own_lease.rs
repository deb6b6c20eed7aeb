//! This node's own key: taken, renewed, and written back where something else changes it.
//!
//! Theory of operation. The table is what etcd has; [`OwnLease::settle`] compares it with what this node announces and
//! makes the difference good, step by step as [`decide`] says, until its key is as it should be. Every write is
//! conditional on the revision that was seen, so two writers never overwrite each other unseen; who loses looks again.
//! A write that was not answered ends the session, and the next list shows whether it took effect.
//!
//! The key hangs on an etcd lease of 24 hours, which is not kept alive but replaced before it ends, as flannel does. A key
//! without one (a reservation that an operator made) stays without. The end of the old etcd lease is hastened only where
//! no other key hangs on it.
//!
//! Another process that writes this node's address into the key, a flanneld that was left running beside us, is
//! overwritten [`MOST_REWRITES`] times in [`REWRITES_WITHIN`], and then left alone and reported. A key that was lost, deleted
//! or overwritten with another address, is as often replaced at once: after that one that was deleted is written again after
//! a pause, and of one that was overwritten nothing more is tried, since each other subnet strands the pods of the last.

use std::collections::VecDeque;
use std::time::Duration;

use dataplane::families::{PerFamily, PublicAddresses};
use encap::{Family, Mac};
use ipnet::IpNet;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::super::announcement::Announcement;
use super::super::place::RegistryPlace;
use super::acquire::{Held, Step, decide, same_node};
use super::key::SubnetKey;
use super::random;
use super::session::{Condition, Failure, Session};
use super::table::{Record, Table};
use super::value::LeaseAttrs;
use super::write::{Ends, Write};

/// This node's own key.
#[derive(Debug)]
pub(super) struct OwnLease {
    holding: Option<Holding>,
    /// What it had last, held or not.
    last: Vec<IpNet>,
    mac: Option<PerFamily<Mac>>,
    renew_margin: Duration,
    /// When another process overwrote the key with this node's address.
    overwritten: VecDeque<Instant>,
    /// When the key was lost.
    losses: VecDeque<Instant>,
    /// The address with which it was overwritten at the last loss; `None` where it was deleted.
    lost_to: Option<PublicAddresses>,
    /// Nothing is tried before.
    not_before: Option<Instant>,
}

/// The key that this process holds.
#[derive(Clone, Copy, Debug)]
struct Holding {
    held: Held,
    /// `None` for a reservation.
    renew_at: Option<Instant>,
    /// It was created by this process, and what was created at the same time is not known yet.
    unproven: bool,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// This key is this node's.
    Ours {
        /// Its subnets.
        subnet: SubnetKey,
        /// The VTEP MACs in it.
        mac: PerFamily<Mac>,
    },
    /// Whether it is shows in a new list.
    Relist,
    /// It cannot be had now; it will be tried again.
    Refused {
        /// Where.
        place: RegistryPlace,
        /// One sentence for the operator.
        reason: String,
    },
}

/// Why a step did not lead on.
enum Stop {
    Lost(Failure),
    Refused(RegistryPlace, String),
}

impl OwnLease {
    /// No key is held yet. An etcd lease is replaced `renew_margin` before its end.
    pub(super) fn new(renew_margin: Duration) -> OwnLease {
        OwnLease {
            holding: None,
            last: Vec::new(),
            mac: None,
            renew_margin,
            overwritten: VecDeque::new(),
            losses: VecDeque::new(),
            lost_to: None,
            not_before: None,
        }
    }

    /// When [`OwnLease::settle`] or [`OwnLease::renew`] has something to do, whatever etcd says.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.not_before {
            Some(at) => Some(at),
            None => self.holding.and_then(|holding| holding.renew_at),
        }
    }

    /// Something changed: what failed is tried again now.
    pub(super) fn retry(&mut self) {
        self.not_before = None;
    }

    /// Makes this node's key what `announcement` says.
    ///
    /// # Errors
    /// The session is lost.
    pub(super) async fn settle(
        &mut self,
        session: &mut Session,
        table: &mut Table,
        announcement: &Announcement,
    ) -> Result<Standing, Failure> {
        self.not_before = None;
        for _ in 0..MOST_TRIES {
            match self.step(session, table, announcement).await {
                Ok(Some(standing)) => return Ok(standing),
                // Another node was faster.
                Ok(None) => sleep(Duration::from_millis(20 + random() % 80)).await,
                Err(Stop::Lost(failure)) => return Err(failure),
                Err(Stop::Refused(place, reason)) => {
                    self.not_before = Some(Instant::now() + RETRY_AFTER);
                    return Ok(Standing::Refused { place, reason });
                }
            }
        }
        self.not_before = Some(Instant::now() + RETRY_AFTER);
        Ok(Standing::Refused {
            place: place_of(table),
            reason: format!(
                "other nodes were faster {MOST_TRIES} times at taking a subnet; it is tried again: if this stays, look for a program that writes these keys"
            ),
        })
    }

    async fn step(
        &mut self,
        session: &mut Session,
        table: &mut Table,
        announcement: &Announcement,
    ) -> Result<Option<Standing>, Stop> {
        self.notice_loss(table, announcement);
        let previous = [self.last.as_slice(), &announcement.previous].concat();
        let held = self.holding.map(|holding| holding.held);
        let (public, net_conf) = (announcement.public, &announcement.net_conf);
        match decide(table, held, public, &previous, net_conf, random()) {
            Step::Keep(subnet) => self.keep(session, table, announcement, subnet).await,
            Step::Delete(subnet) => {
                warn!(key = %subnet, "this node's lease has a subnet that the cluster's configuration does not allow; deleting it");
                self.delete(session, table, subnet).await
            }
            Step::Create(subnet) => {
                self.check_losses(table)?;
                let mac = self.mac.unwrap_or(announcement.vtep_mac);
                let attrs = LeaseAttrs::of(public, mac, net_conf);
                self.create(session, table, subnet, mac, attrs).await
            }
            Step::Exhausted(family) => Err(Stop::Refused(
                place_of(table),
                exhausted(family, announcement),
            )),
        }
    }

    /// Reports a key that is not this node's any more, and lets go of it.
    fn notice_loss(&mut self, table: &Table, announcement: &Announcement) {
        let Some(Holding { held, .. }) = self.holding else {
            return;
        };
        let Some(record) = table.get(&table.key(&held.subnet)) else {
            warn!(key = %held.subnet, "this node's lease was deleted or has ended; taking the subnet again");
            self.lose(None);
            return;
        };
        let public = record.attrs.as_ref().map(LeaseAttrs::public);
        let is_other = |public: &PublicAddresses| !same_node(*public, announcement.public);
        if record.mod_revision != held.mod_revision
            && let Some(public) = public.filter(is_other)
        {
            warn!(key = %held.subnet, %public, "another node has overwritten this node's lease; taking another subnet");
            self.lose(Some(public));
        }
    }

    fn lose(&mut self, to: Option<PublicAddresses>) {
        self.holding = None;
        self.lost_to = to;
        self.losses.push_back(Instant::now());
    }

    /// Refuses to replace a key that was lost too often.
    fn check_losses(&mut self, table: &Table) -> Result<(), Stop> {
        let now = Instant::now();
        let is_old = |at: &Instant| now.duration_since(*at) > REWRITES_WITHIN;
        while self.losses.front().is_some_and(is_old) {
            self.losses.pop_front();
        }
        let has_paused = |at: &Instant| now.duration_since(*at) >= RETRY_AFTER;
        let reason = match self.lost_to {
            _ if self.losses.len() <= MOST_REWRITES => return Ok(()),
            None if self.losses.back().is_none_or(has_paused) => return Ok(()),
            None => "another program keeps deleting this node's lease, which is written again in a while: stop it"
                .to_owned(),
            Some(public) => format!(
                "another node, at {public}, overwrites each lease that this node takes: stop the program that does it; the subnet in force is kept"
            ),
        };
        let last = SubnetKey::of(&self.last).map(|subnet| Table::place(&table.key(&subnet)));
        Err(Stop::Refused(
            last.unwrap_or_else(|| place_of(table)),
            reason,
        ))
    }

    async fn keep(
        &mut self,
        session: &mut Session,
        table: &mut Table,
        announcement: &Announcement,
        subnet: SubnetKey,
    ) -> Result<Option<Standing>, Stop> {
        let key = table.key(&subnet);
        let Some(record) = table.get(&key).cloned() else {
            return Ok(None);
        };
        let holding = self.holding.filter(|holding| holding.held.subnet == subnet);
        if holding.is_some_and(|holding| holding.unproven) && table.is_late(&key) {
            warn!(%subnet, "another node took a part of these subnets first; taking others");
            return self.delete(session, table, subnet).await;
        }
        let written = record.attrs.as_ref().map(LeaseAttrs::vtep_mac);
        let written = written.unwrap_or_default();
        let announced = &announcement.vtep_mac;
        let found =
            || PerFamily::each(|family| written.of(family).unwrap_or(*announced.of(family)));
        let mac = self.mac.unwrap_or_else(found);
        let wanted = LeaseAttrs::of(announcement.public, mac, &announcement.net_conf);
        let is_foreign =
            holding.is_some_and(|holding| holding.held.mod_revision != record.mod_revision);
        if record.is_sound() && record.attrs.as_ref() == Some(&wanted) {
            let renew_at = match holding.filter(|_| !is_foreign) {
                Some(holding) => holding.renew_at,
                None => self.renewal_of(session, &record).await?,
            };
            self.hold(subnet, record.mod_revision, mac, renew_at, false);
            self.renew(session, table).await.map_err(Stop::Lost)?;
            return Ok(Some(Standing::Ours { subnet, mac }));
        }
        if is_foreign {
            self.count_overwriting(&key, &record, &wanted)?;
        }
        if holding.is_none() {
            self.check_losses(table)?;
        }
        let write = Write::over(&record, subnet, mac, wanted);
        let written = self.write(session, table, write).await?;
        Ok(written.then_some(Standing::Ours { subnet, mac }))
    }

    /// When the etcd lease of a key that was found is to be replaced.
    async fn renewal_of(
        &self,
        session: &mut Session,
        record: &Record,
    ) -> Result<Option<Instant>, Stop> {
        if record.lease == 0 {
            return Ok(None);
        }
        let left = match session.time_to_live(record.lease).await {
            Ok((left, _)) => left,
            // It ends at this moment, or we may not ask: a new one helps in both cases.
            Err(Failure::Denied(_)) => Duration::ZERO,
            Err(lost) => return Err(Stop::Lost(lost)),
        };
        Ok(Some(
            Instant::now() + left.saturating_sub(self.renew_margin),
        ))
    }

    /// Replaces the etcd lease if that is due. A refusal is tried again after a minute.
    ///
    /// # Errors
    /// The session is lost.
    pub(super) async fn renew(
        &mut self,
        session: &mut Session,
        table: &mut Table,
    ) -> Result<(), Failure> {
        let Some(holding) = self.holding else {
            return Ok(());
        };
        if holding.renew_at.is_none_or(|at| at > Instant::now()) {
            return Ok(());
        }
        let subnet = holding.held.subnet;
        let record = table.get(&table.key(&subnet));
        let record = record.filter(|record| record.mod_revision == holding.held.mod_revision);
        let write = record.and_then(|record| {
            let attrs = record.attrs.clone()?;
            Some(Write::over(record, subnet, self.mac?, attrs))
        });
        let outcome = match write {
            Some(write) => self.write(session, table, write).await,
            // Changed meanwhile: that is settled first.
            None => Ok(false),
        };
        match outcome {
            Ok(true) => info!(%subnet, "this node's lease is renewed"),
            Ok(false) => {}
            Err(Stop::Lost(failure)) => return Err(failure),
            Err(Stop::Refused(_, reason)) => {
                warn!(%subnet, reason, "this node's lease cannot be renewed; trying again in a minute");
            }
        }
        // A write sets the time of the next renewal.
        if let Some(holding) = &mut self.holding {
            let least = Instant::now() + RENEW_AGAIN_AFTER;
            let at = holding.renew_at.filter(|at| *at > Instant::now());
            holding.renew_at = holding.renew_at.map(|_| at.unwrap_or(least));
        }
        Ok(())
    }

    fn count_overwriting(
        &mut self,
        key: &[u8],
        record: &Record,
        wanted: &LeaseAttrs,
    ) -> Result<(), Stop> {
        let now = Instant::now();
        let is_old = |at: &Instant| now.duration_since(*at) > REWRITES_WITHIN;
        while self.overwritten.front().is_some_and(is_old) {
            self.overwritten.pop_front();
        }
        let found = match &record.attrs {
            Some(attrs) if record.is_sound() => attrs.render(),
            _ => "text that is no lease".to_owned(),
        };
        if self.overwritten.len() >= MOST_REWRITES {
            return Err(Stop::Refused(
                Table::place(key),
                format!(
                    "another process keeps writing {found} where this node announces {}: stop flanneld on this node",
                    wanted.render()
                ),
            ));
        }
        self.overwritten.push_back(now);
        warn!(
            place = %Table::place(key),
            found,
            wanted = wanted.render(),
            "another process has overwritten this node's lease; writing it back: stop flanneld if it runs on this node"
        );
        Ok(())
    }

    async fn create(
        &mut self,
        session: &mut Session,
        table: &mut Table,
        subnet: SubnetKey,
        mac: PerFamily<Mac>,
        attrs: LeaseAttrs,
    ) -> Result<Option<Standing>, Stop> {
        let write = Write {
            subnet,
            mac,
            attrs,
            condition: Condition::Absent,
            ends: Ends::WithANewLease { replaces: None },
        };
        if !self.write(session, table, write).await? {
            return Ok(None);
        }
        info!(%subnet, "this node has a lease");
        // Keys of two families differ where one subnet is the same, so the condition does not prove that both are free.
        if subnet.subnets().len() > 1 {
            if let Some(holding) = &mut self.holding {
                holding.unproven = true;
            }
            return Ok(Some(Standing::Relist));
        }
        Ok(Some(Standing::Ours { subnet, mac }))
    }

    /// Makes a write. False: the key is not as it was thought to be.
    async fn write(
        &mut self,
        session: &mut Session,
        table: &mut Table,
        write: Write,
    ) -> Result<bool, Stop> {
        let key = table.key(&write.subnet);
        let outcome = write.make(session, &key).await;
        match outcome.map_err(|failure| stop(failure, &key))? {
            Some(made) => {
                table.put(made.written.clone());
                let pause = |ttl: Duration| ttl.saturating_sub(self.renew_margin);
                let renew_at = made
                    .ttl
                    .map(|ttl| Instant::now() + pause(ttl).max(RENEW_AGAIN_AFTER));
                self.hold(
                    write.subnet,
                    made.written.mod_revision,
                    write.mac,
                    renew_at,
                    false,
                );
                Ok(true)
            }
            None => {
                look_again(session, table, &key).await?;
                Ok(false)
            }
        }
    }

    async fn delete(
        &mut self,
        session: &mut Session,
        table: &mut Table,
        subnet: SubnetKey,
    ) -> Result<Option<Standing>, Stop> {
        let key = table.key(&subnet);
        let Some(record) = table.get(&key) else {
            return Ok(None);
        };
        let condition = Condition::Unchanged(record.mod_revision);
        let outcome = session.delete(&key, condition).await;
        match outcome.map_err(|failure| stop(failure, &key))? {
            Some(revision) => table.delete(&key, revision),
            None => look_again(session, table, &key).await?,
        }
        // Not lost: given up.
        self.holding = None;
        Ok(None)
    }

    fn hold(
        &mut self,
        subnet: SubnetKey,
        mod_revision: i64,
        mac: PerFamily<Mac>,
        renew_at: Option<Instant>,
        unproven: bool,
    ) {
        self.last = subnet.subnets();
        self.mac = Some(mac);
        self.holding = Some(Holding {
            held: Held {
                subnet,
                mod_revision,
            },
            renew_at,
            unproven,
        });
    }
}

/// Reads a key that is not as the table has it.
async fn look_again(session: &mut Session, table: &mut Table, key: &[u8]) -> Result<(), Stop> {
    let read = session.get(key).await;
    let read = read.map_err(|failure| stop(failure, key))?;
    match read.found {
        Some(written) => table.put(written),
        None => table.delete(key, read.revision),
    }
    Ok(())
}

fn stop(failure: Failure, key: &[u8]) -> Stop {
    match failure {
        Failure::Denied(reason) => Stop::Refused(Table::place(key), reason),
        lost @ Failure::Lost(_) => Stop::Lost(lost),
    }
}

fn place_of(table: &Table) -> RegistryPlace {
    RegistryPlace::Etcd {
        key: table.below().to_owned(),
    }
}

fn exhausted(family: Family, announcement: &Announcement) -> String {
    let conf = &announcement.net_conf;
    let (key, range) = match family {
        Family::V4 => ("SubnetMin to SubnetMax", conf.subnets),
        Family::V6 => ("IPv6SubnetMin to IPv6SubnetMax", conf.ipv6_subnets),
    };
    let bounds = range.map(|range| format!(", {} to {} of /{}", range.min, range.max, range.len));
    format!(
        "out of subnets: every one from {key}{} is leased: delete the keys of nodes that no longer exist (etcdctl del), or widen the range in the configuration",
        bounds.unwrap_or_default()
    )
}

/// Tries at taking a subnet before it is reported.
const MOST_TRIES: usize = 10;
/// Pause after a refusal: an operator has to act.
const RETRY_AFTER: Duration = Duration::from_secs(15);
/// flannel `pkg/subnet/etcd/local_manager.go` (`renewLease`): pause after a renewal that failed.
const RENEW_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// How often another process's write is undone, and within which time.
const MOST_REWRITES: usize = 3;
const REWRITES_WITHIN: Duration = Duration::from_secs(600);
