//! Lines of the log about repairs: the first of a thing at once, and those that follow as a count, once a minute.
//!
//! Another program that keeps changing what Tartan puts back would otherwise write the log full. What the lines say is the
//! caller's, and so is the clock.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What was repaired within the last minute.
#[derive(Debug, Default)]
pub struct RepairLog {
    recent: BTreeMap<String, Recent>,
}

#[derive(Debug)]
struct Recent {
    since: Instant,
    /// Repairs that no line has told of.
    untold: u64,
}

impl RepairLog {
    /// Notes a repair. Returns the line to log, if it is the first of its kind within a minute.
    pub fn note(&mut self, what: &str, now: Instant) -> Option<String> {
        if let Some(recent) = self.recent.get_mut(what) {
            recent.untold = recent.untold.saturating_add(1);
            return None;
        }
        let is_full = self.recent.len() >= MOST_THINGS;
        let what = if is_full { OTHERS } else { what };
        if is_full && self.recent.contains_key(what) {
            return self.note(what, now);
        }
        let recent = Recent {
            since: now,
            untold: 0,
        };
        self.recent.insert(what.to_owned(), recent);
        Some(format!("repaired: {what}"))
    }

    /// The lines that are due: what was repaired again within a minute that has passed.
    pub fn due(&mut self, now: Instant) -> Vec<String> {
        let mut lines = Vec::new();
        self.recent.retain(|what, recent| {
            if now.saturating_duration_since(recent.since) < MINUTE {
                return true;
            }
            let untold = std::mem::take(&mut recent.untold);
            recent.since = now;
            if untold > 0 {
                lines.push(format!(
                    "repaired {untold} more times in the last minute: {what}; another process keeps changing it"
                ));
            }
            untold > 0
        });
        lines
    }
}

const MINUTE: Duration = Duration::from_secs(60);
/// More things than a node has beside its pods.
const MOST_THINGS: usize = 64;
const OTHERS: &str = "other things";

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "wrote the nft table inet tartan";

    #[test]
    fn repeats_are_told_once_a_minute_and_a_quiet_minute_ends_it() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut log = RepairLog::default();
        let first = format!("repaired: {TABLE}");
        assert_eq!(log.note(TABLE, at(0)), Some(first.clone()));
        for second in 1..60 {
            assert_eq!(log.note(TABLE, at(second)), None);
            assert!(log.due(at(second)).is_empty());
        }
        assert_eq!(
            log.due(at(60)),
            [format!(
                "repaired 59 more times in the last minute: {TABLE}; another process keeps changing it"
            )]
        );
        assert_eq!(
            log.note(TABLE, at(61)),
            None,
            "the next line is due at 120 s"
        );
        assert_eq!(log.due(at(120)).len(), 1);
        assert!(log.due(at(180)).is_empty());
        assert_eq!(log.note(TABLE, at(181)), Some(first));
    }

    #[test]
    fn each_thing_has_its_own_line_and_many_have_one() {
        let start = Instant::now();
        let mut log = RepairLog::default();
        let lines = (0..1000).filter_map(|thing| log.note(&format!("thing {thing}"), start));
        assert_eq!(lines.count(), MOST_THINGS + 1);
        let due = log.due(start + MINUTE);
        assert_eq!(due.len(), 1, "{due:?}");
        assert!(due[0].contains("935 more times"), "{due:?}");
    }
}
