//! The thread that gives a pod's NAPI a thread of its own while the pod floods.
//!
//! Theory of operation. The watcher sleeps, and looks at the node's own counters every [`IDLE`]: while the node forwards
//! fewer packets than one flood has, that is all. Otherwise it looks at the packets of each end twice, [`STEP`] apart. An
//! end that shows many is a *candidate*: its counters stay open and are judged every [`STEP`] ([`super::flood`]), until it
//! has not flooded for a while. Candidates are bounded; floods beyond that are gathered without a thread.
//!
//! An end that has a thread when the watcher learns of it was left so by a service that was killed: it is a candidate at
//! once. When the service ends, the threads go. While another service is to have the ends they stay, and nothing is looked at: the
//! ends that come afterwards are learnt of anew.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tracing::debug;

use super::counters::Counters;
use super::end::{self, OpenEnd};
use super::flood::{self, Flood};
use super::report::FloodReport;
use crate::host::GatheredEnd;

/// The thread's state.
pub(super) struct Watcher<F> {
    /// Packets that the node has forwarded for its pods so far, of whatever path.
    pub(super) forwarded: F,
    /// What all ends have counted.
    pub(super) counters: Counters,
    /// The ends to watch, whenever they change; none: leave them as they are.
    pub(super) ends: Receiver<Option<Vec<GatheredEnd>>>,
    /// What is going on.
    pub(super) report: Arc<FloodReport>,
}

/// An end whose counters are judged often.
struct Candidate {
    end: GatheredEnd,
    open: OpenEnd,
    flood: Flood,
    has_thread: bool,
    /// When it flooded last, or became a candidate.
    kept: Duration,
}

impl<F: FnMut() -> u64> Watcher<F> {
    /// Runs until the sender of ends is gone.
    pub(super) fn run(mut self) {
        let began = Instant::now();
        let mut ends: Vec<GatheredEnd> = Vec::new();
        let mut candidates: Vec<Candidate> = Vec::new();
        let mut last = ((self.forwarded)(), Duration::ZERO);
        loop {
            let pause = if candidates.is_empty() { IDLE } else { STEP };
            let next = match ends.is_empty() {
                true => self.ends.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => self.ends.recv_timeout(pause),
            };
            let now = began.elapsed();
            match next {
                Ok(None) => {
                    for candidate in candidates.drain(..) {
                        self.report.ended(candidate.has_thread);
                    }
                    ends = Vec::new();
                    continue;
                }
                Ok(Some(next)) => {
                    self.adopt(&ends, &next, &mut candidates, now);
                    ends = next;
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    candidates.iter_mut().for_each(|it| self.switch(it, false));
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            candidates.retain_mut(|candidate| self.judge(candidate, now));
            let since = now.saturating_sub(last.1);
            if since >= IDLE {
                let forwarded = (self.forwarded)();
                let is_busy = flood::is_many(forwarded.saturating_sub(last.0), since);
                last = (forwarded, now);
                if is_busy {
                    self.seek(&ends, &mut candidates, began);
                }
            }
        }
    }

    /// Takes new ends: those that have a thread are candidates, and those that are gone no longer.
    fn adopt(
        &self,
        before: &[GatheredEnd],
        ends: &[GatheredEnd],
        candidates: &mut Vec<Candidate>,
        now: Duration,
    ) {
        candidates.retain(|candidate| {
            let is_there = ends.contains(&candidate.end);
            if !is_there {
                self.report.ended(candidate.has_thread);
            }
            is_there
        });
        // An interface that is gone is not in this list; what was refused for another one is tried once more.
        let is_all = self.report.forget_refused();
        let before: HashSet<u32> = before.iter().map(|end| end.index).collect();
        let is_new = |end: &&GatheredEnd| is_all || !before.contains(&end.index);
        for end in ends.iter().filter(is_new) {
            match end::is_threaded(end) {
                Ok(true) if candidates.iter().any(|known| known.end == *end) => {}
                Ok(true) => match add(candidates, end, now, true) {
                    Ok(true) => self.report.began(),
                    Ok(false) => {}
                    Err(error) => self.report.refuse(end, &error),
                },
                Ok(false) => {}
                Err(error) => self.report.refuse(end, &error),
            }
        }
    }

    /// Judges one candidate; whether it stays one.
    fn judge(&self, candidate: &mut Candidate, now: Duration) -> bool {
        let Ok(sample) = candidate.open.sample(now) else {
            self.report.ended(candidate.has_thread);
            return false;
        };
        let is_flooding = candidate.flood.observe(sample);
        if is_flooding {
            candidate.kept = now;
        }
        if is_flooding != candidate.has_thread {
            self.switch(candidate, is_flooding);
        }
        // What could not be switched is no longer tried.
        candidate.has_thread == is_flooding && now.saturating_sub(candidate.kept) < KEPT
    }

    /// Gives the end a thread, or takes it away.
    fn switch(&self, candidate: &mut Candidate, is_on: bool) {
        if candidate.has_thread == is_on {
            return;
        }
        match end::set_threaded(&candidate.end, is_on) {
            Ok(()) => {
                candidate.has_thread = is_on;
                if is_on {
                    self.report.began();
                } else {
                    self.report.ended(true);
                }
                debug!("NAPI thread of {}: {is_on}", candidate.end.name);
            }
            Err(error) => self.report.refuse(&candidate.end, &error),
        }
    }

    /// Looks for ends that may flood.
    fn seek(&mut self, ends: &[GatheredEnd], candidates: &mut Vec<Candidate>, began: Instant) {
        // An answer may be waited for while interfaces are made: the time is that after it.
        let mut look = || Ok((self.counters.received()?, began.elapsed()));
        let both = look().and_then(|first| {
            std::thread::sleep(STEP);
            Ok((first, look()?))
        });
        let ((first, at), (later, now)) = match both {
            Ok(both) => both,
            Err(error) => return self.report.set_blind(Some(&error)),
        };
        self.report.set_blind(None);
        let known: HashSet<u32> = candidates.iter().map(|it| it.end.index).collect();
        for end in ends.iter().filter(|end| !known.contains(&end.index)) {
            // One that was not there yet has no flood so far.
            let packets = |counted: &HashMap<u32, u64>| counted.get(&end.index).copied();
            let came = packets(&first).zip(packets(&later));
            let came = came.map_or(0, |(first, later)| later.saturating_sub(first));
            if flood::is_many(came, now.saturating_sub(at))
                && let Err(error) = add(candidates, end, now, false)
            {
                self.report.refuse(end, &error);
            }
        }
    }
}

/// Makes an end a candidate, where there is room for one more; whether it is one.
///
/// # Errors
/// As of [`OpenEnd::open`].
fn add(
    candidates: &mut Vec<Candidate>,
    end: &GatheredEnd,
    now: Duration,
    has_thread: bool,
) -> io::Result<bool> {
    if candidates.len() >= MOST_CANDIDATES {
        return Ok(false);
    }
    let open = OpenEnd::open(end)?;
    candidates.push(Candidate {
        end: end.clone(),
        flood: Flood::new(open.sample(now)?, has_thread),
        open,
        has_thread,
        kept: now,
    });
    Ok(true)
}

/// Between two looks at the node's counters while no end is a candidate.
const IDLE: Duration = Duration::from_millis(300);
/// Between two looks at a candidate.
const STEP: Duration = Duration::from_millis(10);
/// How long an end that does not flood stays a candidate: longer than the pause that ends a flood.
const KEPT: Duration = Duration::from_secs(1);
/// Each has three descriptors open, and costs three reads in each [`STEP`].
const MOST_CANDIDATES: usize = 32;
