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
    /// Of things beyond [`MOST_THINGS`].
    others: Option<Recent>,
}

#[derive(Debug)]
struct Recent {
    since: Instant,
    /// Repairs after the one that was logged.
    unlogged: u64,
    /// What was repaired last.
    last: String,
}

impl RepairLog {
    /// Notes a repair. Returns the line to log, if it is the first of its kind within a minute.
    pub fn note(&mut self, what: &str, now: Instant) -> Option<String> {
        let is_full = self.recent.len() >= MOST_THINGS;
        let known = match self.recent.get_mut(what) {
            None if is_full => self.others.as_mut(),
            known => known,
        };
        if let Some(recent) = known {
            recent.unlogged = recent.unlogged.saturating_add(1);
            what.clone_into(&mut recent.last);
            return None;
        }
        let recent = Recent {
            since: now,
            unlogged: 0,
            last: what.to_owned(),
        };
        if is_full {
            self.others = Some(recent);
        } else {
            self.recent.insert(what.to_owned(), recent);
        }
        Some(format!("repaired: {what}"))
    }

    /// The lines that are due: what was repaired again within a minute that has passed.
    pub fn due(&mut self, now: Instant) -> Vec<String> {
        let mut lines = Vec::new();
        self.recent.retain(|what, recent| {
            let Some(unlogged) = recent.due(now) else {
                return true;
            };
            if unlogged > 0 {
                let again = again(unlogged);
                lines.push(format!("repaired {again} in the last minute: {what}"));
            }
            unlogged > 0
        });
        let others = self.others.as_mut();
        if let Some((others, unlogged)) = others.and_then(|o| o.due(now).map(|due| (o, due))) {
            if unlogged > 0 {
                lines.push(format!(
                    "repaired {} in the last minute: things without a line of their own, the last: {}",
                    again(unlogged),
                    others.last
                ));
            } else {
                self.others = None;
            }
        }
        lines
    }
}

impl Recent {
    /// Once a minute, the number of repairs that no line has counted.
    fn due(&mut self, now: Instant) -> Option<u64> {
        if now.saturating_duration_since(self.since) < MINUTE {
            return None;
        }
        self.since = now;
        Some(std::mem::take(&mut self.unlogged))
    }
}

fn again(times: u64) -> String {
    match times {
        1 => "once more".to_owned(),
        times => format!("{times} more times"),
    }
}

const MINUTE: Duration = Duration::from_secs(60);
/// More things than a node has beside its pods.
const MOST_THINGS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "wrote the nft table inet tartan";

    #[test]
    fn repeats_are_logged_once_a_minute_and_a_quiet_minute_ends_it() {
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
                "repaired 59 more times in the last minute: {TABLE}"
            )]
        );
        assert_eq!(
            log.note(TABLE, at(61)),
            None,
            "the next line is due at 120 s"
        );
        assert_eq!(
            log.due(at(120)),
            [format!("repaired once more in the last minute: {TABLE}")]
        );
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
        assert!(due[0].ends_with("the last: thing 999"), "{due:?}");
        assert!(log.due(start + MINUTE * 2).is_empty());
    }
}
