//! Attachments that no runtime will ever delete.
//!
//! Theory of operation. A runtime may forget a pod: `ctr run -d` calls no DEL, one that was killed may not either. The
//! record then holds an address that no pod has. The agent examines only the host end of the pod's veth: the kernel
//! deletes a veth with the namespace of its other end, so an end that is there has a living namespace behind it,
//! whatever became of the path that the runtime gave; paths are reused, and may be invisible to us. An end that is not
//! there can carry nothing.
//!
//! | seen | done |
//! |---|---|
//! | the end of a recorded attachment is missing | remembered; `tartan pods` says *leaving* |
//! | it is missing at each look for the grace (`reclaim-after`), the record unchanged | the record is removed, under the lock of the range |
//! | the same, but another program gave the addresses (`ipam`) | it stays *leaving*: only the plugin's DEL or GC can give them back, and only the record says to whom |
//! | the end is back, the record is gone or another | forgotten |
//!
//! An ADD under way has a record and no end yet, but for far less than the grace. Under the lock the record is read and
//! the end looked for again, so neither a repeated ADD of the same pod nor a DEL is crossed. Nothing is remembered
//! across a restart: the grace starts anew, and is on the safe side.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cni_shim::Attachment;

/// What has been missing, and for how long.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    missing: HashMap<Key, Sighting>,
}

type Key = (String, String);

#[derive(Debug)]
struct Sighting {
    record: Arc<Attachment>,
    since: Instant,
}

impl Orphans {
    /// Observes every recorded attachment once: `is_there` says whether its end exists. Returns those to remove: missing
    /// since `grace`. ADD makes an end within seconds of its record.
    pub(crate) fn observe<'a>(
        &mut self,
        attachments: impl IntoIterator<Item = &'a Arc<Attachment>>,
        is_there: impl Fn(&Attachment) -> bool,
        grace: Duration,
        now: Instant,
    ) -> Vec<Arc<Attachment>> {
        let mut missing = HashMap::new();
        for attachment in attachments.into_iter().filter(|a| !is_there(a)) {
            let key = key(attachment);
            let before = self.missing.remove(&key);
            let sighting = before
                .filter(|before| before.record == *attachment)
                .unwrap_or_else(|| Sighting {
                    record: Arc::clone(attachment),
                    since: now,
                });
            missing.insert(key, sighting);
        }
        self.missing = missing;
        let due = |s: &&Sighting| s.is_ours() && now.saturating_duration_since(s.since) >= grace;
        let due = self.missing.values().filter(due);
        due.map(|sighting| Arc::clone(&sighting.record)).collect()
    }

    /// Whether anybody is to be taken away, now or later, whose end was missing at the last look.
    pub(crate) fn are_any(&self) -> bool {
        self.missing.values().any(Sighting::is_ours)
    }

    /// Whether the attachment's end was missing at the last look.
    pub(crate) fn is_leaving(&self, attachment: &Attachment) -> bool {
        let known = self.missing.get(&key(attachment));
        known.is_some_and(|sighting| *sighting.record == *attachment)
    }
}

impl Sighting {
    /// Whether the agent may take it away.
    fn is_ours(&self) -> bool {
        self.record.ipam.is_none()
    }
}

fn key(attachment: &Attachment) -> Key {
    (attachment.container.clone(), attachment.ifname.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(60);

    fn record(container: &str, created: u64) -> Arc<Attachment> {
        Arc::new(Attachment {
            container: container.to_owned(),
            ifname: "eth0".to_owned(),
            host_ifname: format!("tt{container}"),
            created,
            ..Attachment::default()
        })
    }

    /// Looks at `records`, none of whose ends is there, after so many seconds.
    fn after(
        orphans: &mut Orphans,
        start: Instant,
        seconds: u64,
        records: &[Arc<Attachment>],
    ) -> usize {
        let now = start + Duration::from_secs(seconds);
        orphans.observe(records, |_| false, GRACE, now).len()
    }

    #[test]
    fn only_what_is_missing_for_the_whole_grace_is_due() {
        let (mut orphans, start) = (Orphans::default(), Instant::now());
        let records = [record("a", 1)];
        assert_eq!(after(&mut orphans, start, 0, &records), 0);
        assert!(orphans.is_leaving(&records[0]));
        assert_eq!(after(&mut orphans, start, 59, &records), 0);
        assert_eq!(after(&mut orphans, start, 60, &records), 1);
        // It stays due until it is gone: the lock may be taken.
        assert_eq!(after(&mut orphans, start, 61, &records), 1);
        assert_eq!(after(&mut orphans, start, 62, &[]), 0);
        assert!(!orphans.is_leaving(&records[0]));
    }

    #[test]
    fn one_look_is_never_enough() {
        let (mut orphans, start) = (Orphans::default(), Instant::now());
        assert_eq!(after(&mut orphans, start, 3600, &[record("a", 1)]), 0);
    }

    #[test]
    fn what_another_program_gave_is_neither_taken_nor_waited_for() {
        let (mut orphans, start) = (Orphans::default(), Instant::now());
        let foreign = Arc::new(Attachment {
            ipam: Some("host-local".to_owned()),
            ..Attachment::clone(&record("b", 1))
        });
        let records = [record("a", 1), foreign];
        assert_eq!(after(&mut orphans, start, 0, &records), 0);
        assert!(orphans.are_any() && orphans.is_leaving(&records[1]));
        let now = start + GRACE;
        let due = orphans.observe(&records, |_| false, GRACE, now);
        assert_eq!(due, records[..1]);
        assert_eq!(after(&mut orphans, start, 61, &records[1..]), 0);
        assert!(!orphans.are_any() && orphans.is_leaving(&records[1]));
    }

    #[test]
    fn an_end_that_is_back_or_another_record_starts_anew() {
        let (mut orphans, start) = (Orphans::default(), Instant::now());
        let [old, new] = [record("a", 1), record("a", 2)];
        assert_eq!(after(&mut orphans, start, 0, std::slice::from_ref(&old)), 0);
        let back = start + Duration::from_secs(30);
        let there = orphans.observe(std::slice::from_ref(&old), |_| true, GRACE, back);
        assert!(there.is_empty() && !orphans.is_leaving(&old));
        assert_eq!(
            after(&mut orphans, start, 61, std::slice::from_ref(&old)),
            0
        );
        assert_eq!(
            after(&mut orphans, start, 122, std::slice::from_ref(&new)),
            0
        );
        assert!(orphans.is_leaving(&new) && !orphans.is_leaving(&old));
        assert_eq!(
            after(&mut orphans, start, 181, std::slice::from_ref(&new)),
            0
        );
        assert_eq!(after(&mut orphans, start, 182, &[new]), 1);
    }
}
