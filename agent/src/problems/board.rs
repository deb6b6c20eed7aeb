//! The board: every problem that there is now, since when, and one line of the log for each that comes or goes.
//!
//! Each part of the control loop is an [`Origin`] and posts all of its problems at once. What it posted before and does
//! not post again is solved. A problem that stays keeps its time. It is logged again where its sentence has changed, at
//! most once a second.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tracing::{error, info, warn};

use super::{Problem, Severity};

/// Who posts a problem, in the order in which problems are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The cluster's configuration.
    NetConf,
    /// This node's configuration.
    Configuration,
    /// The list of nodes that the registry gives.
    Registry,
    /// The registry beside that: whether it answers, and what was passed over.
    Contact,
    /// The interface that this node announces.
    Interface,
    /// The adoption of tables by the workers.
    Adoption,
    /// The API socket.
    Api,
    /// The health endpoints.
    Health,
    /// The locks in the run directory.
    Locks,
    /// The last good state on disk.
    State,
    /// The record of changed kernel settings.
    Settings,
    /// flannel's daemon beside this one.
    Flanneld,
    /// Settings and rules of other programs, checksums, the clock.
    Node,
    /// The underlay sockets.
    Underlay,
    /// The workers' places.
    Workers,
    /// The kernel's state, as far as Tartan brings it about.
    Kernel,
    /// The kernel path.
    KernelPath,
    /// The node file.
    NodeFile,
    /// The upkeep of pods.
    Pods,
    /// The links of pods.
    Links,
    /// What arrives from peers and is refused.
    Peers,
    /// The paths to peers.
    Paths,
    /// What the decision itself shows.
    Decision,
    /// What peers' packets say about their leases.
    Leases,
    /// The attachment records.
    Records,
}

/// A problem on the board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posted {
    /// What is wrong.
    pub problem: Problem,
    /// When it was posted first.
    pub since: SystemTime,
}

/// All problems.
#[derive(Debug, Default)]
pub struct Board {
    entries: BTreeMap<Origin, Vec<Entry>>,
    /// The same in one list, shared with the code that shows it.
    list: Arc<[Posted]>,
}

#[derive(Debug)]
struct Entry {
    posted: Posted,
    /// The sentence as it was logged last, and when.
    logged: (String, Instant),
}

impl Board {
    /// Replaces what `origin` posted before.
    pub fn post(&mut self, origin: Origin, problems: impl IntoIterator<Item = Problem>) {
        let mut before = self.entries.remove(&origin).unwrap_or_default();
        let mut now: Vec<Entry> = Vec::new();
        let mut is_changed = false;
        for problem in problems {
            if now.iter().any(|entry| entry.is_of(&problem)) {
                continue;
            }
            let known = before.iter().position(|entry| entry.is_of(&problem));
            let entry = match known.map(|known| before.swap_remove(known)) {
                None => {
                    is_changed = true;
                    Entry::new(problem)
                }
                Some(mut known) => {
                    is_changed |= known.posted.problem != problem;
                    known.say(problem);
                    known
                }
            };
            now.push(entry);
        }
        is_changed |= !before.is_empty();
        for gone in before {
            let problem = gone.posted.problem;
            info!(code = problem.code(), "solved: {}", problem.sentence());
        }
        if !now.is_empty() {
            self.entries.insert(origin, now);
        }
        if is_changed {
            let entries = self.entries.values().flatten();
            self.list = entries.map(|entry| entry.posted.clone()).collect();
        }
    }

    /// Replaces what the origins of these problems posted before.
    pub fn post_all(&mut self, problems: Vec<(Origin, Problem)>) {
        let mut by_origin: BTreeMap<Origin, Vec<Problem>> = BTreeMap::new();
        for (origin, problem) in problems {
            by_origin.entry(origin).or_default().push(problem);
        }
        for (origin, problems) in by_origin {
            self.post(origin, problems);
        }
    }

    /// Every problem, those of the first origin first.
    pub fn list(&self) -> Arc<[Posted]> {
        Arc::clone(&self.list)
    }

    /// Whether anything on the board calls for another try.
    pub fn is_retry_due(&self) -> bool {
        self.list.iter().any(|posted| posted.problem.is_retried())
    }
}

impl Entry {
    fn new(problem: Problem) -> Entry {
        log(&problem);
        let logged = (problem.sentence(), Instant::now());
        let since = SystemTime::now();
        Entry {
            posted: Posted { problem, since },
            logged,
        }
    }

    /// Whether it is this problem, whatever its sentence.
    fn is_of(&self, problem: &Problem) -> bool {
        let own = &self.posted.problem;
        own == problem || (own.code() == problem.code() && own.subject() == problem.subject())
    }

    /// Takes the problem as it is now.
    fn say(&mut self, problem: Problem) {
        let (sentence, logged) = &self.logged;
        if self.posted.problem != problem
            && logged.elapsed() >= LOG_AGAIN
            && *sentence != problem.sentence()
        {
            log(&problem);
            self.logged = (problem.sentence(), Instant::now());
        }
        self.posted.problem = problem;
    }
}

fn log(problem: &Problem) {
    let code = problem.code();
    match problem.severity() {
        Severity::Error => error!(code, "{problem}"),
        Severity::Warning => warn!(code, "{problem}"),
    }
}

/// A sentence that changes all the time is not logged all the time.
const LOG_AGAIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(reason: &str) -> Problem {
        Problem::ApiSocket {
            path: "/run/tartan/tartan.sock".into(),
            reason: reason.to_owned(),
        }
    }

    #[test]
    fn a_problem_keeps_its_time_while_its_reason_changes() {
        let mut board = Board::default();
        board.post(Origin::Api, [taken("one")]);
        let first = board.list()[0].clone();
        board.post(Origin::Api, [taken("two")]);
        let second = board.list()[0].clone();
        assert_eq!(first.since, second.since);
        assert_eq!(second.problem, taken("two"));
        board.post(Origin::Api, []);
        assert!(board.list().is_empty());
    }

    #[test]
    fn origins_replace_their_own_problems_alone_and_are_shown_in_order() {
        let mut board = Board::default();
        board.post(Origin::Pods, [Problem::PodUpkeep { reason: "x".into() }]);
        board.post(Origin::Api, [taken("one"), taken("one again")]);
        let codes = |board: &Board| -> Vec<&str> {
            board
                .list()
                .iter()
                .map(|posted| posted.problem.code())
                .collect()
        };
        assert_eq!(codes(&board), ["api-socket", "pod-upkeep"]);
        assert!(board.is_retry_due());
        board.post(Origin::Api, []);
        assert_eq!(codes(&board), ["pod-upkeep"]);
    }
}
