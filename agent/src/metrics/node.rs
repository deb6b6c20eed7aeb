//! The node and its service.

use std::fmt;

use super::facts::Facts;
use super::metric::Metric;
use super::page::Page;

/// What is known before the node forwards too.
pub(super) fn write_build(page: &mut Page<'_>, is_ready: bool) -> fmt::Result {
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    page.family(&BUILD, [(version, 1_u64)])?;
    page.one(&READY, u64::from(is_ready))
}

pub(super) fn write(page: &mut Page<'_>, facts: &Facts) -> fmt::Result {
    let view = &facts.view;
    let service = &view.service;
    let node = [
        ("node", view.own.name.clone()),
        ("public_ip", view.own.public.first().to_string()),
        ("format", view.own.format.to_string()),
        ("underlay", view.underlay.name.clone()),
        ("device", service.config.device_name.clone()),
        ("device_type", service.device_type.to_owned()),
        ("device_kind", service.workers.device.to_owned()),
    ];
    page.family(&NODE, [(node, 1_u64)])?;
    page.one(&STARTED, facts.started.as_secs_f64())?;
    page.one(&RESTARTS, service.restarts)?;
    page.one(&REPAIRS, view.repairs)?;
    page.one(&TABLES, view.spec.version)?;
    page.one(&UNDERLAY_MTU, u64::from(view.underlay.mtu))?;
    page.one(&DEVICE_MTU, u64::from(view.device_mtu))?;
    page.one(&SCRAPES, facts.scrapes.count)?;
    page.one(&SCRAPE_CPU, facts.scrapes.cpu.as_secs_f64())
}

pub(super) const BUILD: Metric =
    Metric::info("tartan_build_info", "The version of Tartan that answers.");
pub(super) const READY: Metric = Metric::gauge(
    "tartan_ready",
    "Whether this node carries packets of its pods: what /readyz says, which also gives the reasons.",
);
pub(super) const NODE: Metric = Metric::info(
    "tartan_node_info",
    "This node: its name, public address and format in the list of nodes, the underlay's interface, and the tunnel device.",
);
pub(super) const STARTED: Metric = Metric::gauge(
    "tartan_start_time_seconds",
    "When this service began to forward, in seconds since 1970.",
);
pub(super) const RESTARTS: Metric = Metric::counter(
    "tartan_restarts_total",
    "How often the keeper has started the service anew. Packets wait meanwhile; tartan status says how the last one ended.",
);
pub(super) const REPAIRS: Metric = Metric::counter(
    "tartan_repairs_total",
    "What another program changed on the host (an address, a route, a setting, rules) and the agent put back. Since the service started. If it keeps growing, two programs undo each other's work.",
);
pub(super) const TABLES: Metric = Metric::gauge(
    "tartan_tables_version",
    "Version of the tables published last. It grows with each change of nodes and pods, and begins anew with each service.",
);
pub(super) const UNDERLAY_MTU: Metric = Metric::gauge(
    "tartan_underlay_mtu_bytes",
    "MTU of the interface that carries the overlay.",
);
pub(super) const DEVICE_MTU: Metric = Metric::gauge(
    "tartan_device_mtu_bytes",
    "MTU of the tunnel device, and of pods that are attached now: the largest inner packet.",
);
pub(super) const SCRAPES: Metric = Metric::counter(
    "tartan_scrapes_total",
    "Pages of metrics that this service has made, this one included. Several askers within a second get one page.",
);
pub(super) const SCRAPE_CPU: Metric = Metric::counter(
    "tartan_scrape_cpu_seconds_total",
    "CPU time of the pages before this one. Divided by tartan_scrapes_total it is what a scrape costs this node.",
);
