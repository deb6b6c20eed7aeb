//! Where the leases come from.

use std::fmt;

use super::facts::Facts;
use super::metric::Metric;
use super::page::Page;

pub(super) fn write(page: &mut Page<'_>, facts: &Facts) -> fmt::Result {
    let view = &facts.view;
    let age = view.leases_read.elapsed() + view.leases_cached.unwrap_or_default();
    page.one(&ANSWERS, u64::from(view.in_touch.answers))?;
    let since = view
        .in_touch
        .since
        .map(|since| since.elapsed().as_secs_f64());
    page.known(&SINCE, since)?;
    page.one(&AGE, age.as_secs_f64())?;
    page.one(&CACHED, u64::from(view.is_registry_cached))?;
    page.one(&REFUSED, view.refused_leases.len() as u64)?;
    page.one(&REFUSED_SOURCES, view.refused_sources.len() as u64)
}

pub(super) const ANSWERS: Metric = Metric::gauge(
    "tartan_registry_answers",
    "Whether the registry answers (1) or not (0); a file always does. Without it the node forwards by the leases that it has.",
);
pub(super) const SINCE: Metric = Metric::gauge(
    "tartan_registry_since_seconds",
    "For how long the registry has answered, or not. No sample before its first word.",
);
pub(super) const AGE: Metric = Metric::gauge(
    "tartan_registry_list_age_seconds",
    "Time since the registry last gave a list of nodes that was adopted. It grows as long as the list does not change; that is no fault.",
);
pub(super) const CACHED: Metric = Metric::gauge(
    "tartan_registry_cached",
    "Whether the leases are those of the last good state on disk, because the registry gives no list that can be used.",
);
pub(super) const REFUSED: Metric = Metric::gauge(
    "tartan_registry_records_refused",
    "Records of the registry that are passed over: their nodes are not reached. tartan peers names them.",
);
pub(super) const REFUSED_SOURCES: Metric = Metric::gauge(
    "tartan_refused_sources",
    "Senders whose packets are dropped and that a setting would accept: a sample of at most 64. tartan peers names the setting.",
);
