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
//! Beside the key is the name of its owner ([`Owner`]). Where that is another node, nothing is written.
//!
//! What another process writes there with this node's address is undone, a few times ([`Overwritten`]). A key that is lost
//! is replaced, a few times at once ([`Losses`]).
//!
//! Trouble with the key does not hold up what is learned of peers: while no other node has the subnet it is this node's, as it
//! was written last, and the trouble is reported beside it.

mod standing;
mod writing;

pub(super) use self::standing::Standing;

use std::time::Duration;

use dataplane::families::{PerFamily, PublicAddresses};
use encap::Mac;
use ipnet::IpNet;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::super::announcement::Announcement;
use super::super::place::RegistryPlace;
use super::acquire::{Held, Step, ThisNode, decide, same_node};
use super::key::SubnetKey;
use super::losses::Losses;
use super::overwritten::Overwritten;
use super::owner::Owner;
use super::random;
use super::session::{Failure, Session};
use super::table::{Record, Table};
use super::value::LeaseAttrs;
use super::write::{Ends, Write};

/// This node's own key.
#[derive(Debug)]
pub(super) struct OwnLease {
    holding: Option<Holding>,
    /// What it had last, held or not.
    last: Vec<IpNet>,
    /// The VTEP MACs that it has written or found, of the families that the cluster has.
    vtep_mac: PerFamily<Option<Mac>>,
    renew_margin: Duration,
    overwritten: Overwritten,
    losses: Losses,
    owner: Owner,
    /// Etcd leases on which its key does not hang any more.
    spent: Vec<i64>,
    wait: Option<Wait>,
}

/// The key that this process holds.
#[derive(Clone, Copy, Debug)]
struct Holding {
    held: Held,
    /// The etcd lease on which it hangs; 0 for a reservation.
    lease: i64,
    /// `None` for a reservation.
    renew_at: Option<Instant>,
    /// It was created by this process, and what was created at the same time is not known yet.
    unproven: bool,
}

/// It was refused and is to be tried again.
#[derive(Clone, Debug)]
struct Wait {
    until: Instant,
    /// What etcd answered, which is not asked again before, whatever changes.
    denied: Option<Standing>,
}

/// Why a step did not lead on.
enum Stop {
    /// The session is lost.
    Lost(Failure),
    /// etcd does not do it.
    Denied(RegistryPlace, String),
    /// What the table has does not allow it.
    Refused(RegistryPlace, String),
}

impl OwnLease {
    /// No key is held yet. An etcd lease is replaced `renew_margin` before its end.
    pub(super) fn new(renew_margin: Duration) -> OwnLease {
        OwnLease {
            holding: None,
            last: Vec::new(),
            vtep_mac: PerFamily::default(),
            renew_margin,
            overwritten: Overwritten::default(),
            losses: Losses::default(),
            owner: Owner::default(),
            spent: Vec::new(),
            wait: None,
        }
    }

    /// When [`OwnLease::settle`] or [`OwnLease::renew`] has something to do, whatever etcd says.
    pub(super) fn due(&self) -> Option<Instant> {
        match &self.wait {
            Some(wait) => Some(wait.until),
            None => self.holding.and_then(|holding| holding.renew_at),
        }
    }

    /// What was refused is tried again at the next occasion.
    pub(super) fn retry(&mut self) {
        self.wait = None;
        self.owner.forget();
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
        let standing = self.strive(session, table, announcement).await?;
        self.revoke_spent(session, table).await?;
        Ok(self.despite(standing, table, announcement))
    }

    async fn strive(
        &mut self,
        session: &mut Session,
        table: &mut Table,
        announcement: &Announcement,
    ) -> Result<Standing, Failure> {
        let now = Instant::now();
        let waiting = self.wait.as_ref().filter(|wait| wait.until > now);
        if let Some(denied) = waiting.and_then(|wait| wait.denied.clone()) {
            return Ok(denied);
        }
        if self.wait.take_if(|wait| wait.until <= now).is_some() {
            self.owner.forget();
        }
        for _ in 0..MOST_TRIES {
            match self.step(session, table, announcement).await {
                Ok(Some(standing)) => {
                    self.wait = None;
                    return Ok(standing);
                }
                // Another node was faster.
                Ok(None) => sleep(Duration::from_millis(20 + random() % 80)).await,
                Err(Stop::Lost(failure)) => return Err(failure),
                Err(Stop::Denied(place, reason)) => return Ok(self.refuse(place, reason, true)),
                Err(Stop::Refused(place, reason)) => return Ok(self.refuse(place, reason, false)),
            }
        }
        let reason = format!(
            "other nodes were faster {MOST_TRIES} times at taking a subnet; it is tried again: if this stays, look for a program that writes these keys"
        );
        Ok(self.refuse(place_of(table), reason, true))
    }

    fn refuse(&mut self, place: RegistryPlace, reason: String, is_denied: bool) -> Standing {
        let standing = Standing::Refused { place, reason };
        // Changes of other keys do not put the next try off.
        let until = self.wait.take().map(|wait| wait.until);
        self.wait = Some(Wait {
            until: until.unwrap_or_else(|| Instant::now() + RETRY_AFTER),
            denied: is_denied.then(|| standing.clone()),
        });
        standing
    }

    async fn step(
        &mut self,
        session: &mut Session,
        table: &mut Table,
        announcement: &Announcement,
    ) -> Result<Option<Standing>, Stop> {
        self.notice_loss(table, announcement);
        let (public, net_conf) = (announcement.public, &announcement.net_conf);
        match decide(table, &self.this_node(announcement), net_conf, random()) {
            Step::Keep(subnet) => self.keep(session, table, announcement, subnet).await,
            Step::Delete(subnet) => {
                warn!(key = %subnet, "this node's lease has a subnet that the cluster's configuration does not allow; deleting it");
                self.delete(session, table, subnet).await
            }
            Step::Create(subnet) => {
                self.check_losses(table)?;
                let vtep_mac = self.own_macs(None, announcement);
                let attrs = LeaseAttrs::of(public, vtep_mac, net_conf);
                let node = &announcement.node_name;
                self.create(session, table, subnet, vtep_mac, attrs, node)
                    .await
            }
            Step::Exhausted(family) => Err(Stop::Refused(
                place_of(table),
                standing::exhausted(family, announcement),
            )),
        }
    }

    fn this_node<'a>(&'a self, announcement: &'a Announcement) -> ThisNode<'a> {
        ThisNode {
            held: self.holding.map(|holding| holding.held),
            public: announcement.public,
            vtep_mac: self.own_macs(None, announcement),
            last: &self.last,
            previous: &announcement.previous,
        }
    }

    /// Reports a key that is not this node's any more, and lets go of it.
    fn notice_loss(&mut self, table: &Table, announcement: &Announcement) {
        let Some(Holding { held, .. }) = self.holding else {
            return;
        };
        let Some(record) = table.get(&table.key(&held.subnet)) else {
            warn!(key = %held.subnet, "this node's lease was deleted or has ended; taking the subnet again");
            self.losses.note(Instant::now(), None);
            self.let_go();
            return;
        };
        let public = record.attrs.as_ref().map(LeaseAttrs::public);
        let is_other = |public: &PublicAddresses| !same_node(*public, announcement.public);
        if record.mod_revision != held.mod_revision
            && let Some(public) = public.filter(is_other)
            && !self.this_node(announcement).remembers(&held.subnet, record)
        {
            warn!(key = %held.subnet, %public, "another node has overwritten this node's lease; taking another subnet");
            self.losses.note(Instant::now(), Some(public));
            self.let_go();
        }
    }

    /// Refuses to replace a key that was lost too often.
    fn check_losses(&mut self, table: &Table) -> Result<(), Stop> {
        let last = SubnetKey::of(&self.last).map(|subnet| Table::place(&table.key(&subnet)));
        let refuse = |reason| Stop::Refused(last.unwrap_or_else(|| place_of(table)), reason);
        self.losses.check(Instant::now()).map_err(refuse)
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
        self.check_owner(session, table, announcement, subnet, &record)
            .await?;
        let vtep_mac = self.own_macs(record.attrs.as_ref(), announcement);
        let wanted = LeaseAttrs::of(announcement.public, vtep_mac, &announcement.net_conf);
        let is_foreign =
            holding.is_some_and(|holding| holding.held.mod_revision != record.mod_revision);
        if record.is_sound() && record.attrs.as_ref() == Some(&wanted) {
            let renew_at = match holding.filter(|_| !is_foreign) {
                Some(holding) => holding.renew_at,
                None => self.renewal_of(session, &record).await?,
            };
            self.hold(subnet, record.mod_revision, record.lease, renew_at);
            self.keep_macs(&wanted);
            self.renew(session, table, announcement)
                .await
                .map_err(Stop::Lost)?;
            return Ok(Some(Standing::Ours {
                subnet,
                vtep_mac,
                trouble: None,
            }));
        }
        if is_foreign {
            let place = Table::place(&key);
            let counted = self
                .overwritten
                .count(Instant::now(), &place, &record, &wanted);
            counted.map_err(|reason| Stop::Refused(place, reason))?;
        }
        if holding.is_none() {
            self.check_losses(table)?;
        }
        let mut write = Write::over(&record, subnet, wanted);
        let is_reserved = holding.is_some_and(|holding| holding.renew_at.is_none());
        if write.ends == Ends::Never && !is_reserved && !record.is_sound() {
            // Rubbish without an end, where this node had no reservation, is none.
            write.ends = Ends::WithANewLease { replaces: None };
        }
        let node = &announcement.node_name;
        let written = self.write(session, table, write, node).await?;
        Ok(written.then_some(Standing::Ours {
            subnet,
            vtep_mac,
            trouble: None,
        }))
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
        announcement: &Announcement,
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
            Some(Write::over(record, subnet, attrs))
        });
        let outcome = match write {
            Some(write) => {
                let node = &announcement.node_name;
                self.write(session, table, write, node).await
            }
            // Changed meanwhile: that is settled first.
            None => Ok(false),
        };
        match outcome {
            Ok(true) => info!(%subnet, "this node's lease is renewed"),
            Ok(false) => {}
            Err(Stop::Lost(failure)) => return Err(failure),
            Err(Stop::Denied(_, reason) | Stop::Refused(_, reason)) => {
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
}

fn place_of(table: &Table) -> RegistryPlace {
    RegistryPlace::Etcd {
        key: table.below().to_owned(),
    }
}

/// Tries at taking a subnet before it is reported.
const MOST_TRIES: usize = 10;
/// Pause after a refusal: an operator has to act.
const RETRY_AFTER: Duration = Duration::from_secs(15);
/// flannel `pkg/subnet/etcd/local_manager.go` (`renewLease`): pause after a renewal that failed.
const RENEW_AGAIN_AFTER: Duration = Duration::from_secs(60);
