//! A check, and what it found.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::reference;
use crate::api::wire;
use crate::problems::{Problem, Severity};

/// One check of the node.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Its stable name.
    pub check: &'static str,
    /// What it saw, in words, whether that is well or not.
    pub facts: Vec<String>,
    /// What it could not see, and why. Such a check is no proof of health.
    pub unknown: Vec<String>,
    /// What is wrong.
    pub findings: Vec<Finding>,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The stable name of this kind: a row of `docs/problems.md` or of the table of the doctor's own findings.
    pub code: String,
    /// What it concerns: a path, an interface, an address, a node. Empty where the code says all.
    pub subject: String,
    /// `error` or `warning`.
    pub severity: String,
    /// What is wrong and what it causes.
    pub sentence: String,
    /// What was seen that shows it.
    pub evidence: Vec<String>,
    /// What to do.
    pub remedy: String,
    /// Where to read more: a page of the documentation, and a public thread where one is certain.
    pub reference: Vec<String>,
}

impl Check {
    /// One that has seen nothing yet.
    pub(super) fn new(check: &'static str) -> Check {
        Check {
            check,
            facts: Vec::new(),
            unknown: Vec::new(),
            findings: Vec::new(),
        }
    }

    pub(super) fn fact(&mut self, fact: impl Into<String>) {
        self.facts.push(fact.into());
    }

    pub(super) fn unknown(&mut self, what: impl Into<String>) {
        self.unknown.push(what.into());
    }

    /// Adds a finding, once for a code and subject: what it was seen by is put together.
    pub(super) fn find(&mut self, finding: Finding) {
        let is_same = |known: &&mut Finding| {
            (&known.code, &known.subject) == (&finding.code, &finding.subject)
        };
        match self.findings.iter_mut().find(is_same) {
            Some(known) => known.evidence.extend(finding.evidence),
            None => self.findings.push(finding),
        }
    }

    /// The check, each finding with all that was seen as evidence.
    pub(super) fn done(mut self) -> Check {
        for finding in &mut self.findings {
            for fact in &self.facts {
                if !finding.evidence.contains(fact) {
                    finding.evidence.push(fact.clone());
                }
            }
        }
        self
    }
}

impl Finding {
    /// One of the doctor's own.
    pub(super) fn new(code: &str, subject: impl Into<String>, severity: Severity) -> Finding {
        Finding {
            code: code.to_owned(),
            subject: subject.into(),
            severity: severity.name().to_owned(),
            sentence: String::new(),
            evidence: Vec::new(),
            remedy: String::new(),
            reference: reference::of(code),
        }
    }

    pub(super) fn says(mut self, sentence: impl Into<String>) -> Finding {
        self.sentence = sentence.into();
        self
    }

    pub(super) fn shown_by(mut self, evidence: impl Into<String>) -> Finding {
        self.evidence.push(evidence.into());
        self
    }

    pub(super) fn remedied_by(mut self, remedy: impl Into<String>) -> Finding {
        self.remedy = remedy.into();
        self
    }

    /// A problem on the board of the service that answers.
    pub(super) fn on_board(problem: &wire::Problem, now: SystemTime) -> Finding {
        let since = SystemTime::UNIX_EPOCH + Duration::from_secs(problem.since);
        let lasts = now.duration_since(since).unwrap_or_default().as_secs();
        Finding {
            code: problem.code.clone(),
            subject: problem.subject.clone(),
            severity: problem.severity.clone(),
            sentence: problem.sentence.clone(),
            evidence: vec![format!("the service reports it for {lasts} s")],
            remedy: problem.remedy.clone(),
            reference: reference::of(&problem.code),
        }
    }

    /// A problem that a start would meet.
    pub(super) fn at_start(problem: &Problem) -> Finding {
        Finding::new(problem.code(), problem.subject(), problem.severity())
            .says(problem.sentence())
            .shown_by("a start of the agent would meet it now")
            .remedied_by(problem.remedy())
    }
}
