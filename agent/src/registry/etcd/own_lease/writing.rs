//! The writes of this node's own key, and what they change of what is held.

use std::time::Duration;

use dataplane::families::PerFamily;
use encap::Mac;
use tokio::time::Instant;
use tracing::{debug, info};

use super::super::super::announcement::Announcement;
use super::super::acquire::Held;
use super::super::key::SubnetKey;
use super::super::owner::conflict;
use super::super::session::{Condition, Failure, Session};
use super::super::table::{Record, Table};
use super::super::value::LeaseAttrs;
use super::super::write::{Ends, Write};
use super::{Holding, OwnLease, RENEW_AGAIN_AFTER, Standing, Stop};

impl OwnLease {
    pub(super) async fn create(
        &mut self,
        session: &mut Session,
        table: &mut Table,
        subnet: SubnetKey,
        vtep_mac: PerFamily<Mac>,
        attrs: LeaseAttrs,
        node: &str,
    ) -> Result<Option<Standing>, Stop> {
        let write = Write {
            subnet,
            attrs,
            condition: Condition::Absent,
            ends: Ends::WithANewLease { replaces: None },
        };
        if !self.write(session, table, write, node).await? {
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
        Ok(Some(Standing::Ours {
            subnet,
            vtep_mac,
            trouble: None,
        }))
    }

    /// Makes a write in the name of `node`. False: the key is not as it was thought to be.
    pub(super) async fn write(
        &mut self,
        session: &mut Session,
        table: &mut Table,
        write: Write,
        node: &str,
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
                let lease = made.written.lease;
                self.hold(write.subnet, made.written.mod_revision, lease, renew_at);
                self.keep_macs(&write.attrs);
                self.spent.extend(made.replaced);
                // That one is still beside the old key. What it says is looked at with the key.
                self.owner.forget();
                let owner = table.owner_key(&write.subnet);
                let said = self.owner.check(session, &owner, Some(lease), node).await;
                said.map_err(|failure| stop(failure, &owner))?;
                Ok(true)
            }
            None => {
                look_again(session, table, &key).await?;
                Ok(false)
            }
        }
    }

    pub(super) async fn delete(
        &mut self,
        session: &mut Session,
        table: &mut Table,
        subnet: SubnetKey,
    ) -> Result<Option<Standing>, Stop> {
        let key = table.key(&subnet);
        let Some(record) = table.get(&key) else {
            return Ok(None);
        };
        let (lease, condition) = (record.lease, Condition::Unchanged(record.mod_revision));
        let outcome = session.delete(&key, condition).await;
        match outcome.map_err(|failure| stop(failure, &key))? {
            Some(revision) => table.delete(&key, revision),
            None => look_again(session, table, &key).await?,
        }
        // Not lost: given up.
        self.spent.extend(Some(lease).filter(|lease| *lease != 0));
        self.let_go();
        Ok(None)
    }

    pub(super) fn hold(
        &mut self,
        subnet: SubnetKey,
        mod_revision: i64,
        lease: i64,
        renew_at: Option<Instant>,
    ) {
        self.let_go();
        self.spent.retain(|spent| *spent != lease);
        self.last = subnet.subnets();
        self.holding = Some(Holding {
            held: Held {
                subnet,
                mod_revision,
            },
            lease,
            renew_at,
            unproven: false,
        });
    }

    /// No key is held any more.
    pub(super) fn let_go(&mut self) {
        let before = self.holding.take().map(|holding| holding.lease);
        self.spent.extend(before.filter(|lease| *lease != 0));
    }

    /// Ends the etcd leases that are of no use any more. One that cannot be ended now ends by itself.
    pub(super) async fn revoke_spent(
        &mut self,
        session: &mut Session,
        table: &Table,
    ) -> Result<(), Failure> {
        while let Some(lease) = self.spent.pop() {
            match session.revoke_unused(lease, table.owners()).await {
                Ok(()) => {}
                Err(Failure::Denied(reason)) => {
                    debug!(lease, reason, "an etcd lease is left over");
                }
                Err(lost) => return Err(lost),
            }
        }
        Ok(())
    }

    /// Refuses to touch a key that another node has written with this node's address.
    pub(super) async fn check_owner(
        &mut self,
        session: &mut Session,
        table: &Table,
        announcement: &Announcement,
        subnet: SubnetKey,
        record: &Record,
    ) -> Result<(), Stop> {
        let (node, owner) = (&announcement.node_name, table.owner_key(&subnet));
        let lease = Some(record.lease).filter(|_| record.is_sound());
        let said = self.owner.check(session, &owner, lease, node).await;
        let Some(other) = said.map_err(|failure| stop(failure, &owner))? else {
            return Ok(());
        };
        let reason = conflict(node, other, &subnet.name(), announcement.public, &owner);
        Err(Stop::Refused(Table::place(&owner), reason))
    }

    pub(super) fn keep_macs(&mut self, attrs: &LeaseAttrs) {
        let written = attrs.vtep_mac();
        self.vtep_mac = PerFamily::each(|family| written.of(family).or(*self.vtep_mac.of(family)));
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
        Failure::Denied(reason) => Stop::Denied(Table::place(key), reason),
        lost @ Failure::Lost(_) => Stop::Lost(lost),
    }
}
