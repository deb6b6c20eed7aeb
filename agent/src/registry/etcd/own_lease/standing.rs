//! What became of this node's own key.

use dataplane::families::PerFamily;
use encap::{Family, Mac};

use super::super::super::announcement::Announcement;
use super::super::super::place::RegistryPlace;
use super::super::acquire::{Step, decide, same_node};
use super::super::key::SubnetKey;
use super::super::table::Table;
use super::super::value::LeaseAttrs;
use super::OwnLease;

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Standing {
    /// This subnet is this node's.
    Ours {
        /// Its key.
        subnet: SubnetKey,
        /// This node's VTEP MACs.
        vtep_mac: PerFamily<Mac>,
        /// What is wrong with the key nevertheless: where, and one sentence for the operator.
        trouble: Option<(RegistryPlace, String)>,
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

impl OwnLease {
    /// The MACs that this process has written, else those found in `written`, else those announced. A family that the
    /// cluster does not have shares that of the other, as peers see it.
    pub(super) fn own_macs(
        &self,
        written: Option<&LeaseAttrs>,
        announcement: &Announcement,
    ) -> PerFamily<Mac> {
        let written = written.map(LeaseAttrs::vtep_mac).unwrap_or_default();
        let of = |family| {
            let known = self.vtep_mac.of(family).or(*written.of(family));
            known.unwrap_or(*announcement.vtep_mac.of(family))
        };
        let conf = &announcement.net_conf;
        match (conf.network, conf.ipv6_network) {
            (Some(_), None) => PerFamily::each(|_| of(Family::V4)),
            (None, Some(_)) => PerFamily::each(|_| of(Family::V6)),
            _ => PerFamily::each(of),
        }
    }
    /// A refusal beside the subnet that is this node's in spite of it, where there is one.
    pub(super) fn despite(
        &self,
        standing: Standing,
        table: &Table,
        announcement: &Announcement,
    ) -> Standing {
        let Standing::Refused { place, reason } = standing else {
            return standing;
        };
        let Some(subnet) = self.undisputed(table, announcement) else {
            return Standing::Refused {
                place,
                reason: self.not_owned(reason),
            };
        };
        let record = table.get(&table.key(&subnet));
        let written = record.and_then(|record| record.attrs.as_ref());
        Standing::Ours {
            subnet,
            vtep_mac: self.own_macs(written, announcement),
            trouble: Some((place, reason)),
        }
    }

    /// The subnet that this node has or had last, where no other node has it.
    fn undisputed(&self, table: &Table, announcement: &Announcement) -> Option<SubnetKey> {
        let node = self.this_node(announcement);
        // What is drawn at random is not looked at.
        match decide(table, &node, &announcement.net_conf, 0) {
            Step::Keep(subnet) => {
                let record = table.get(&table.key(&subnet))?;
                let public = record.attrs.as_ref().map(|attrs| attrs.public());
                let is_ours = match public {
                    Some(public) => same_node(public, announcement.public),
                    None => self.owner.other().is_none(),
                };
                let is_unchanged = node
                    .held
                    .is_some_and(|held| held.mod_revision == record.mod_revision);
                (is_ours || is_unchanged).then_some(subnet)
            }
            Step::Create(subnet) => (subnet.subnets() == self.last).then_some(subnet),
            Step::Delete(_) | Step::Exhausted(_) => None,
        }
    }

    fn not_owned(&self, reason: String) -> String {
        let subnets = self.last.iter().map(ToString::to_string);
        match subnets.collect::<Vec<_>>().join(", ") {
            last if last.is_empty() => reason,
            last => format!(
                "{reason}; this node no longer owns {last}: peers do not send to its pods there"
            ),
        }
    }
}

pub(super) fn exhausted(family: Family, announcement: &Announcement) -> String {
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
