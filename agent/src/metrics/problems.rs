//! What is wrong, by code.

use std::collections::BTreeMap;
use std::fmt;

use super::facts::Facts;
use super::metric::Metric;
use super::page::Page;

/// Codes without a problem have no series.
pub(super) fn write(page: &mut Page<'_>, facts: &Facts) -> fmt::Result {
    let mut by_code: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for posted in facts.view.problems.iter() {
        let problem = &posted.problem;
        *by_code
            .entry((problem.code(), problem.severity().name()))
            .or_default() += 1;
    }
    let samples = by_code
        .into_iter()
        .map(|((code, severity), count)| ([("code", code), ("severity", severity)], count));
    page.family(&PROBLEMS, samples)
}

pub(super) const PROBLEMS: Metric = Metric::gauge(
    "tartan_problems",
    "Problems that there are now, by code; none, no series. docs/problems.md has a remedy for each code, and tartan status the sentence.",
);
