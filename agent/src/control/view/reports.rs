//! What other nodes say is wrong with them, for `tartan doctor --all`.
//!
//! Each is asked by a probe ([`question`](crate::peer_health::question)) at the address by which it is reached best, all of a
//! call at once. One that is known not to answer is not asked, and the state of its path is the reason.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;

use super::View;
use crate::api::wire::{PeerProblem, PeerReport};
use crate::peer_health::node_report::NamedProblem;
use crate::peer_health::question::{MOST_REPORTS, NotSent, PeerSays};
use crate::peer_health::report::PathReport;
use crate::peer_health::state::State;

impl View {
    /// Asks these peers what is wrong with their nodes. It takes a second and a half at most.
    ///
    /// # Errors
    /// A sentence where a name is no peer's, or there are too many.
    pub async fn reports(&self, names: &[String]) -> Result<Vec<PeerReport>, String> {
        if names.len() > MOST_REPORTS {
            return Err(format!(
                "{} peers are too many for one call: ask for {MOST_REPORTS} at a time",
                names.len()
            ));
        }
        let known = |name: &&String| {
            let mut peers = self.snapshot.cluster.peers.iter();
            !peers.any(|peer| peer.name == **name)
        };
        if let Some(name) = names.iter().find(known) {
            return Err(format!(
                "no peer is called {name}: `tartan peers` lists them"
            ));
        }
        let paths = self.peer_health.paths();
        let reports = names.iter().map(|name| self.report(name, &paths));
        Ok(join_all(reports).await)
    }

    async fn report(&self, name: &str, paths: &HashMap<Arc<str>, Vec<PathReport>>) -> PeerReport {
        let paths = paths.get(name).map_or(&[][..], Vec::as_slice);
        let Some(best) = paths.iter().min_by_key(|path| path.state.rank()) else {
            return not_told(name, None, "no path leads there yet".to_owned());
        };
        if let Some(why) = not_asked(&best.state) {
            return not_told(name, Some(best), why);
        }
        match self.peer_health.ask_for_report(best.address).await {
            Ok(says) => told(name, best, says),
            Err(reason) => not_told(name, Some(best), reason),
        }
    }
}

/// Why a peer whose path is in that state is not asked.
fn not_asked(state: &State) -> Option<String> {
    match state {
        State::New
        | State::Up
        | State::Narrow { .. }
        | State::WrongVni(_)
        | State::WrongMac(_)
        | State::WrongStation(_) => None,
        State::Heard | State::Quiet => {
            Some("it answers no probes, as a node that runs flannel".to_owned())
        }
        State::Silent | State::OneWay { .. } | State::Refused | State::Unreachable(_) => {
            Some(format!("it is not reached: {state}"))
        }
    }
}

fn told(name: &str, path: &PathReport, says: PeerSays) -> PeerReport {
    let round_trip = says.round_trip.map(|time| time.as_micros() as u64);
    let Some(report) = says.report else {
        let reason = match (says.not_sent, says.is_answered) {
            (Some(NotSent::Refused(reason)), _) => reason,
            (Some(NotSent::NotAsked(reason)), _) => reason.to_owned(),
            (None, true) => {
                "it answers, and does not tell what is wrong with it: its version knows no such question, or its probes are off".to_owned()
            }
            (None, false) => "it does not answer".to_owned(),
        };
        return PeerReport {
            round_trip,
            ..not_told(name, Some(path), reason)
        };
    };
    PeerReport {
        told: true,
        reason: String::new(),
        round_trip,
        problem_count: report.problems,
        problems: report.named.into_iter().map(problem).collect(),
        ..not_told(name, Some(path), String::new())
    }
}

fn not_told(name: &str, path: Option<&PathReport>, reason: String) -> PeerReport {
    PeerReport {
        name: name.to_owned(),
        address: path.map(|path| path.address),
        state: path
            .map_or(State::New.name(), |path| path.state.name())
            .to_owned(),
        told: false,
        reason,
        round_trip: None,
        problem_count: 0,
        problems: Vec::new(),
    }
}

fn problem(named: NamedProblem) -> PeerProblem {
    PeerProblem {
        code: named.code,
        subject: named.subject,
        severity: named.severity.name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::peer_health::node_report::NodeReport;
    use crate::problems::Severity;

    fn path(state: State) -> PathReport {
        PathReport {
            address: [192, 0, 2, 2].into(),
            state,
            since: SystemTime::UNIX_EPOCH,
            is_busy: false,
            is_probed: true,
            round_trips: None,
            loss: (None, None),
            measured: None,
            configured: 1500,
            next: None,
        }
    }

    #[test]
    fn what_a_node_says_is_told_apart_from_what_it_does_not() {
        let says = PeerSays {
            is_answered: true,
            round_trip: Some(Duration::from_micros(250)),
            ..PeerSays::default()
        };
        let silent = told("node2", &path(State::Up), PeerSays::default());
        assert_eq!(
            (silent.told, &*silent.reason),
            (false, "it does not answer")
        );
        let old = told("node2", &path(State::Up), says.clone());
        assert!(!old.told && old.reason.contains("its version knows no such question"));
        assert_eq!(old.round_trip, Some(250));
        let well = PeerSays {
            report: Some(NodeReport::default()),
            ..says.clone()
        };
        let well = told("node2", &path(State::Up), well);
        assert!(well.told && well.problem_count == 0 && well.reason.is_empty());
        let sick = PeerSays {
            report: Some(NodeReport {
                problems: 9,
                named: vec![NamedProblem {
                    severity: Severity::Error,
                    code: "device-missing".to_owned(),
                    subject: "flannel.1".to_owned(),
                }],
            }),
            ..says
        };
        let sick = told("node2", &path(State::Up), sick);
        assert_eq!((sick.problem_count, sick.problems.len()), (9, 1));
        assert_eq!(sick.problems[0].severity, "error");
    }

    #[test]
    fn what_does_not_answer_is_not_asked() {
        for state in [State::New, State::Up, State::WrongVni(7)] {
            assert_eq!(not_asked(&state), None);
        }
        let why = not_asked(&State::Heard).unwrap();
        assert!(why.contains("flannel"), "{why}");
        let why = not_asked(&State::Refused).unwrap();
        assert!(why.contains("no process has the port"), "{why}");
    }
}
