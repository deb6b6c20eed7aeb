//! Bridges with pods of another plugin: their subnet, and whether packets on them meet the rules of Services.

use super::configuration::list;
use super::examination::Examination;
use super::finding::{Check, Finding};
use crate::node_faults::bridge_netfilter::{self, SETTINGS};

pub(super) fn check(e: &Examination) -> Check {
    let mut check = Check::new("bridges");
    e.board.deal(&mut check);
    let Ok(picture) = &e.picture else {
        check.unknown("interfaces cannot be listed");
        return check.done();
    };
    let subnets = e.subnets();
    let device = e.device().unwrap_or_default();
    let bridges = bridge_netfilter::pod_bridges(picture, &subnets, device);
    if bridges.is_empty() {
        check.fact("no bridge leads to pods of this node");
        return check.done();
    }
    check.fact(format!("pods on {}", list(&bridges)));
    let translates = e.firewall.as_ref().is_ok_and(|survey| survey.kube_proxy);
    if !translates {
        check.fact("no rules of kube-proxy, so br_netfilter does not matter");
        return check.done();
    }
    let settings = bridge_netfilter::settings(&subnets);
    for (key, value) in &settings {
        check.fact(match value {
            Some(value) => format!("net.bridge.{key} = {value}"),
            None => format!("{SETTINGS}/{key} is not there: br_netfilter is not loaded"),
        });
    }
    if e.status.is_err() {
        let problems = bridge_netfilter::judge(&bridges, translates, &settings);
        problems
            .iter()
            .for_each(|problem| check.find(Finding::at_start(problem)));
    }
    check.done()
}
