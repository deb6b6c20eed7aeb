//! One conditional write of a lease, and the etcd lease that it hangs on.

use std::time::Duration;

use tracing::debug;

use super::key::SubnetKey;
use super::session::{Condition, Failure, Session};
use super::table::{Record, Written};
use super::value::LeaseAttrs;

/// What is to be written, and when.
pub(super) struct Write {
    pub(super) subnet: SubnetKey,
    pub(super) attrs: LeaseAttrs,
    pub(super) condition: Condition,
    pub(super) ends: Ends,
}

/// When the key ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// A day after the write, unless it is written again.
    WithANewLease {
        /// The etcd lease that is of no use then.
        replaces: Option<i64>,
    },
    /// Never: it is a reservation.
    Never,
}

/// A write that was made.
pub(super) struct Made {
    pub(super) written: Written,
    /// How long the key lasts; `None`: for ever.
    pub(super) ttl: Option<Duration>,
    /// The etcd lease that is of no use any more.
    pub(super) replaced: Option<i64>,
}

impl Write {
    /// Over a record that is known: a reservation stays one.
    pub(super) fn over(record: &Record, subnet: SubnetKey, attrs: LeaseAttrs) -> Write {
        let ends = match record.lease {
            0 => Ends::Never,
            lease => Ends::WithANewLease {
                replaces: Some(lease),
            },
        };
        Write {
            subnet,
            attrs,
            condition: Condition::Unchanged(record.mod_revision),
            ends,
        }
    }

    /// Makes it. `None`: the condition does not hold.
    pub(super) async fn make(
        &self,
        session: &mut Session,
        key: &[u8],
    ) -> Result<Option<Made>, Failure> {
        let (lease, ttl, replaced) = match self.ends {
            Ends::Never => (0, None, None),
            Ends::WithANewLease { replaces } => {
                let (lease, ttl) = session.grant(TTL).await?;
                (lease, Some(ttl), replaces)
            }
        };
        let value = self.attrs.render();
        let outcome = session.put(key, &value, lease, self.condition).await;
        let unused = match outcome {
            Ok(None) | Err(Failure::Denied(_)) => Some(lease).filter(|lease| *lease != 0),
            Ok(Some(_)) | Err(Failure::Lost(_)) => None,
        };
        if let Some(unused) = unused
            && let Err(failure) = session.revoke(unused).await
        {
            // It ends by itself.
            debug!(lease = unused, ?failure, "an etcd lease is left over");
        }
        Ok(outcome?.map(|revision| Made {
            written: Written {
                key: key.to_vec(),
                value: value.into_bytes(),
                create_revision: revision,
                mod_revision: revision,
                lease,
            },
            ttl,
            replaced,
        }))
    }
}

/// flannel `pkg/subnet/etcd/local_manager.go`, `subnetTTL`.
pub(super) const TTL: Duration = Duration::from_secs(86400);
