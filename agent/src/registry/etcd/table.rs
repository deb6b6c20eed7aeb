//! The keys below `<prefix>/subnets/` as etcd has them now.
//!
//! Theory of operation. A list replaces the table's content, an event changes one key of it, and the answer to a write of
//! ours is entered at once. The same change can so arrive twice, and late: each key remembers the revision of its last
//! change, and an older one is passed over.
//!
//! A value that cannot be read leaves the last one that could in force, so that a writer's fault costs no routes; the
//! fault is reported until the key is corrected or deleted. A key that cannot be read is reported alone.
//! The table holds at most [`MOST_KEYS`] keys; further ones are not remembered and reported as one record.

use std::collections::BTreeMap;

use etcd_client::KeyValue;
use ipnet::IpNet;

use super::super::place::RegistryPlace;
use super::super::records::Candidate;
use super::super::refused_record::RefusedRecord;
use super::key::{NotASubnetKey, SubnetKey};
use super::value::LeaseAttrs;

/// All leases of a cluster.
#[derive(Debug)]
pub(super) struct Table {
    /// `<prefix>/subnets/`.
    below: String,
    /// `<prefix>/tartan/owners/`.
    owners: String,
    records: BTreeMap<Vec<u8>, Record>,
    /// A key that found no room.
    surplus: Option<Vec<u8>>,
}

/// One key.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// Its subnets; an error where the key itself cannot be read.
    pub(super) subnet: Result<SubnetKey, NotASubnetKey>,
    /// The last value that could be read.
    pub(super) attrs: Option<LeaseAttrs>,
    /// Why the value that it has now cannot be read.
    fault: Option<String>,
    create_revision: i64,
    /// Of its last change.
    pub(super) mod_revision: i64,
    /// The etcd lease with which the key ends; 0 for a reservation, which does not end.
    pub(super) lease: i64,
}

/// A key and its value, from a list, an event or an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    /// Of the write after which the key exists. That of a later write, in the answer to it, does no harm.
    pub(super) create_revision: i64,
    pub(super) mod_revision: i64,
    pub(super) lease: i64,
}

impl From<&KeyValue> for Written {
    fn from(kv: &KeyValue) -> Written {
        Written {
            key: kv.key().to_vec(),
            value: kv.value().to_vec(),
            create_revision: kv.create_revision(),
            mod_revision: kv.mod_revision(),
            lease: kv.lease(),
        }
    }
}

impl Written {
    /// Without what is longer than any lease: enough is left to see that it is none.
    pub(super) fn bounded(mut self) -> Written {
        self.key.truncate(MOST_KEY_BYTES);
        self.value.truncate(LeaseAttrs::MOST_BYTES + 1);
        self.key.shrink_to_fit();
        self.value.shrink_to_fit();
        self
    }
}

impl Record {
    /// Whether its value is one that could be read.
    pub(super) fn is_sound(&self) -> bool {
        self.fault.is_none()
    }
}

impl Table {
    /// The empty table of the keys below `prefix`.
    pub(super) fn new(prefix: &str) -> Table {
        Table {
            below: format!("{prefix}/subnets/"),
            owners: format!("{prefix}/tartan/owners/"),
            records: BTreeMap::new(),
            surplus: None,
        }
    }

    /// `<prefix>/subnets/`.
    pub(super) fn below(&self) -> &str {
        &self.below
    }

    /// The key of `subnet`.
    pub(super) fn key(&self, subnet: &SubnetKey) -> Vec<u8> {
        format!("{}{subnet}", self.below).into_bytes()
    }

    /// `<prefix>/tartan/owners/`.
    pub(super) fn owners(&self) -> &str {
        &self.owners
    }

    /// The key that says which node wrote the key of `subnet`.
    pub(super) fn owner_key(&self, subnet: &SubnetKey) -> Vec<u8> {
        format!("{}{subnet}", self.owners).into_bytes()
    }

    /// Where `key` is, as an operator looks it up.
    pub(super) fn place(key: &[u8]) -> RegistryPlace {
        let text = String::from_utf8_lossy(key);
        let plain = text.chars().take(LONGEST_SHOWN);
        RegistryPlace::Etcd {
            key: plain.flat_map(char::escape_debug).collect(),
        }
    }

    /// Replaces the content by a list of all keys.
    pub(super) fn replace(&mut self, list: Vec<Written>) {
        let mut old = std::mem::take(&mut self.records);
        self.surplus = None;
        for written in list {
            // A store that was restored counts its revisions anew, so the old ones do not compare.
            if let Some(mut known) = old.remove(&written.key) {
                known.mod_revision = 0;
                known.create_revision = i64::MAX;
                self.records.insert(written.key.clone(), known);
            }
            self.put(written);
        }
    }

    /// Enters a key and its value.
    pub(super) fn put(&mut self, written: Written) {
        let written = written.bounded();
        let Some(suffix) = written.key.strip_prefix(self.below.as_bytes()) else {
            return;
        };
        let room = self.records.len() < MOST_KEYS;
        let known = self.records.get(&written.key);
        if known.is_none() && !room {
            self.surplus.get_or_insert(written.key);
            return;
        }
        if known.is_some_and(|known| known.mod_revision >= written.mod_revision) {
            return;
        }
        let subnet = match std::str::from_utf8(suffix) {
            Ok(text) => text.parse(),
            Err(_) => Err(NotASubnetKey),
        };
        let (attrs, fault) = match LeaseAttrs::parse(&written.value) {
            Ok(attrs) => (Some(attrs), None),
            Err(fault) => {
                let last = known.and_then(|known| known.attrs.clone());
                (last, Some(fault.to_string()))
            }
        };
        let record = Record {
            subnet,
            attrs,
            fault,
            create_revision: known.map_or(written.create_revision, |known| {
                known.create_revision.min(written.create_revision)
            }),
            mod_revision: written.mod_revision,
            lease: written.lease,
        };
        self.records.insert(written.key, record);
    }

    /// Removes a key that was deleted or has ended at `revision`.
    pub(super) fn delete(&mut self, key: &[u8], revision: i64) {
        let key = key.get(..MOST_KEY_BYTES).unwrap_or(key);
        let known = self.records.get(key);
        if known.is_some_and(|known| known.mod_revision < revision) {
            self.records.remove(key);
        }
    }

    /// Whether there are keys that found no room.
    pub(super) fn is_incomplete(&self) -> bool {
        self.surplus.is_some()
    }

    /// The record of `key`.
    pub(super) fn get(&self, key: &[u8]) -> Option<&Record> {
        self.records.get(key)
    }

    /// All keys that name subnets, in the order of their creation.
    pub(super) fn leased(&self) -> Vec<(&[u8], SubnetKey, &Record)> {
        let sound = self.records.iter().filter_map(|(key, record)| {
            let subnet = record.subnet.ok()?;
            Some((key.as_slice(), subnet, record))
        });
        let mut leased: Vec<_> = sound.collect();
        leased.sort_by_key(|(_, _, record)| record.create_revision);
        leased
    }

    /// Whether another key than `own` that was created earlier overlaps the subnets of `own`.
    pub(super) fn is_late(&self, own: &[u8]) -> bool {
        let Some(record) = self.records.get(own) else {
            return false;
        };
        let Ok(subnet) = record.subnet else {
            return false;
        };
        let subnets = subnet.subnets();
        let overlaps = |a: &IpNet| subnets.iter().any(|b| a.contains(b) || b.contains(a));
        self.leased().into_iter().any(|(key, other, found)| {
            let earlier = found.create_revision < record.create_revision;
            key != own && earlier && other.subnets().iter().any(overlaps)
        })
    }

    /// The leases of other nodes than the owner of the key `own`, the first writer first, and the records that cannot be
    /// read.
    pub(super) fn candidates(&self, own: &[u8]) -> (Vec<Candidate>, Vec<RefusedRecord>) {
        let (mut candidates, mut refused) = (Vec::new(), Vec::new());
        for (key, subnet, record) in self.leased() {
            if key == own {
                continue;
            }
            let mut refuse = |reason: String| {
                refused.push(RefusedRecord {
                    place: Table::place(key),
                    name: subnet.name(),
                    public: record.attrs.as_ref().map(|attrs| attrs.public().first()),
                    subnets: subnet.subnets(),
                    reason,
                });
            };
            if let Some(fault) = &record.fault {
                let kept = match record.attrs {
                    Some(_) => "; what it said before stays in force",
                    None => "",
                };
                refuse(format!("{fault}{kept}"));
            }
            let Some(attrs) = &record.attrs else {
                continue;
            };
            match attrs.lease(subnet.name(), subnet.subnets()) {
                Ok(lease) => candidates.push(Candidate {
                    place: Table::place(key),
                    lease,
                    is_own: false,
                }),
                Err(fault) => refuse(fault.to_string()),
            }
        }
        refused.extend(self.unreadable_keys());
        (candidates, refused)
    }

    fn unreadable_keys(&self) -> impl Iterator<Item = RefusedRecord> {
        let surplus = self.surplus.iter().map(|key| {
            let reason = format!(
                "there are more than {MOST_KEYS} keys, of which this one and others are not read: delete those of nodes that no longer exist"
            );
            (key, reason)
        });
        let unreadable = self.records.iter().filter_map(|(key, record)| {
            let fault = record.subnet.err()?;
            Some((key, fault.to_string()))
        });
        unreadable
            .chain(surplus)
            .map(|(key, reason)| RefusedRecord {
                place: Table::place(key),
                name: plain(key.strip_prefix(self.below.as_bytes()).unwrap_or_default()),
                public: None,
                subnets: Vec::new(),
                reason,
            })
    }
}

/// `key` as a node's name.
fn plain(key: &[u8]) -> String {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    let plain = key.iter().take(LONGEST_SHOWN);
    plain
        .map(|b| if allowed(*b) { char::from(*b) } else { '_' })
        .collect()
}

/// Twice as many as there may be records in a list of nodes: this node's own has to be found among them.
pub(super) const MOST_KEYS: usize = 40_000;
/// A prefix of an operator's and two subnets have about 100.
const MOST_KEY_BYTES: usize = 1024;
/// Characters of a key that a message shows.
const LONGEST_SHOWN: usize = 200;

#[cfg(test)]
mod tests;
