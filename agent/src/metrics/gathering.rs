//! The gathering of small packets at the ends of pods.

use std::fmt;

use super::facts::Facts;
use super::metric::Metric;
use super::page::Page;

pub(super) fn write(page: &mut Page<'_>, facts: &Facts) -> fmt::Result {
    let gathering = &facts.view.gathering;
    page.one(&ON, u64::from(gathering.is_on))?;
    page.one(&INTERFACES, gathering.ends as u64)?;
    let floods = &gathering.floods;
    let lacks = [
        ("features", gathering.refused.is_some()),
        ("queue", gathering.is_on && gathering.queue.is_err()),
        ("thread", floods.refused().is_some()),
    ];
    let lacks = lacks.map(|(part, is_lacking)| ([("part", part)], u64::from(is_lacking)));
    page.family(&LACKS, lacks)?;
    page.one(&FLOODING, floods.flooding() as u64)?;
    page.one(&FLOODS, floods.floods())
}

pub(super) const ON: Metric = Metric::gauge(
    "tartan_gathering_on",
    "Whether small packets of pods are to be gathered (gather).",
);
pub(super) const INTERFACES: Metric = Metric::gauge(
    "tartan_gathering_interfaces",
    "Ends of pods, on the host, that join UDP datagrams.",
);
pub(super) const LACKS: Metric = Metric::gauge(
    "tartan_gathering_lacks",
    "Whether a part of the gathering is missing somewhere, for want of the kernel: the joining features of an end, the queue in a pod, the NAPI thread of a flood. tartan status says why.",
);
pub(super) const FLOODING: Metric = Metric::gauge(
    "tartan_gathering_flooding_pods",
    "Pods that flood now, whose ends have a NAPI thread meanwhile.",
);
pub(super) const FLOODS: Metric = Metric::counter(
    "tartan_gathering_floods_total",
    "Floods of pods. Since the service started.",
);
