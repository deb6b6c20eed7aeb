//! What a node tells another that asks it: how many problems it has, and which, errors first, as far as there is room.
//!
//! A line is `error CODE SUBJECT` or `warning CODE SUBJECT`; the subject may be empty. Sentence and remedy are left to the
//! node itself: they need more room than an answer has that is no longer than its request.

use dataplane::probe::HeardReport;

use crate::problems::{Posted, Severity};

/// What this node tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnReport {
    /// How many problems it has.
    pub(super) problems: u32,
    /// Lines, each with its end.
    pub(super) text: Vec<u8>,
}

/// What another node has told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeReport {
    /// How many problems it has.
    pub problems: u32,
    /// Those that had room and are understood.
    pub named: Vec<NamedProblem>,
}

/// A problem as another node names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedProblem {
    /// How bad it is.
    pub severity: Severity,
    /// The stable name of its kind; perhaps one that this version does not know.
    pub code: String,
    /// What it concerns.
    pub subject: String,
}

impl OwnReport {
    pub(super) fn of(problems: &[Posted]) -> OwnReport {
        let mut sorted: Vec<&Posted> = problems.iter().collect();
        // Stable: within a severity the board's order stays.
        sorted.sort_by_key(|posted| posted.problem.severity() != Severity::Error);
        let lines = sorted.iter().map(|posted| {
            let problem = &posted.problem;
            let subject: String = problem
                .subject()
                .chars()
                .filter(|c| !c.is_control())
                .take(LONGEST_SUBJECT)
                .collect();
            let line = format!("{} {} {subject}", problem.severity().name(), problem.code());
            format!("{}\n", line.trim_end())
        });
        OwnReport {
            problems: u32::try_from(problems.len()).unwrap_or(u32::MAX),
            text: lines.take(MOST_NAMED).collect::<String>().into_bytes(),
        }
    }
}

impl NodeReport {
    /// Reads what came: any bytes. A line that is none is passed over, and counts as not named.
    pub(super) fn read(heard: &HeardReport) -> NodeReport {
        NodeReport::parse(heard.message.length, heard.text())
    }

    fn parse(problems: u32, text: &[u8]) -> NodeReport {
        let text = String::from_utf8_lossy(text);
        let named: Vec<NamedProblem> = text
            .lines()
            .take(MOST_NAMED)
            .filter_map(NamedProblem::parse)
            .collect();
        let count = u32::try_from(named.len()).unwrap_or(u32::MAX);
        NodeReport {
            problems: problems.max(count),
            named,
        }
    }

    /// How many problems are not named.
    pub fn unnamed(&self) -> u32 {
        let named = u32::try_from(self.named.len()).unwrap_or(u32::MAX);
        self.problems.saturating_sub(named)
    }
}

impl NamedProblem {
    fn parse(line: &str) -> Option<NamedProblem> {
        let mut words = line.splitn(3, ' ');
        let severity = words.next()?;
        let severity = [Severity::Error, Severity::Warning]
            .into_iter()
            .find(|known| known.name() == severity)?;
        let code = words.next().filter(|code| {
            let is_of_code = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            !code.is_empty() && code.chars().all(is_of_code)
        })?;
        Some(NamedProblem {
            severity,
            code: code.to_owned(),
            subject: words.next().unwrap_or_default().to_owned(),
        })
    }
}

/// Characters of a subject that are told.
const LONGEST_SUBJECT: usize = 64;
/// Problems that are named at most: more have no room in any report.
const MOST_NAMED: usize = 64;

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use proptest::prelude::*;

    use super::*;
    use crate::problems::Problem;

    fn posted(problem: Problem) -> Posted {
        Posted {
            problem,
            since: SystemTime::UNIX_EPOCH,
        }
    }

    fn named(severity: Severity, code: &str, subject: &str) -> NamedProblem {
        NamedProblem {
            severity,
            code: code.to_owned(),
            subject: subject.to_owned(),
        }
    }

    #[test]
    fn what_is_told_is_understood_and_errors_come_first() {
        let warning = Problem::PeerNarrow {
            peer: "node\u{1b}2".to_owned(),
            address: [192, 0, 2, 2].into(),
            measured: 1400,
            configured: 1500,
        };
        let error = Problem::PeerSilent {
            peer: "node3".to_owned(),
            address: [192, 0, 2, 3].into(),
            since: SystemTime::UNIX_EPOCH,
        };
        assert_eq!(
            (warning.severity(), error.severity()),
            (Severity::Warning, Severity::Error)
        );
        let own = OwnReport::of(&[posted(warning), posted(error)]);
        assert_eq!(
            String::from_utf8(own.text.clone()).unwrap(),
            "error peer-silent node3\nwarning peer-narrow node2\n"
        );
        assert_eq!(
            NodeReport::parse(own.problems, &own.text),
            NodeReport {
                problems: 2,
                named: vec![
                    named(Severity::Error, "peer-silent", "node3"),
                    named(Severity::Warning, "peer-narrow", "node2"),
                ],
            }
        );
    }

    #[test]
    fn what_has_no_room_is_counted() {
        let report = NodeReport::parse(5, b"error device-missing flannel.1\nerror pod-li");
        assert_eq!(report.named.len(), 2);
        assert_eq!(report.unnamed(), 3);
        // A node without problems says so.
        assert_eq!(NodeReport::parse(0, b""), NodeReport::default());
    }

    proptest! {
        #[test]
        fn any_text_ends(count in any::<u32>(), text in proptest::collection::vec(any::<u8>(), 0..600)) {
            let report = NodeReport::parse(count, &text);
            prop_assert!(report.named.len() <= MOST_NAMED);
            prop_assert!(report.named.iter().all(|named| named.code.len() <= 1800));
            prop_assert_eq!(report.unnamed() as usize + report.named.len(), report.problems as usize);
        }
    }
}
