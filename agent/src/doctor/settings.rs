//! Kernel settings without which packets are dropped on their way through this node.
//!
//! Forwarding is set and kept by the service; a node where it is off is found here in any case, also while no service runs.
//! The reverse-path filter has a judge of its own ([`node_faults`](crate::node_faults)).

use std::net::IpAddr;

use super::examination::Examination;
use super::finding::{Check, Finding};
use crate::host::{forwarding, reverse_path_filter};
use crate::node_faults::reverse_path_filter as strict;
use crate::problems::Severity;

pub(super) fn check(e: &Examination) -> Check {
    let mut check = Check::new("settings");
    let cluster = e.cluster();
    let switches = forwarding();
    for (is_v4, key, value) in [
        (true, "net.ipv4.ip_forward", switches.v4),
        (false, "net.ipv6.conf.all.forwarding", switches.v6),
    ] {
        if cluster.iter().any(|net| net.addr().is_ipv4() == is_v4) {
            forwards(&mut check, key, value, e.status.is_ok());
        }
    }
    let underlay = underlay(e);
    for interface in &underlay {
        if let Some(filter) = reverse_path_filter(interface) {
            check.fact(format!(
                "net.ipv4.conf.{interface}.rp_filter in force: {filter}"
            ));
        }
    }
    if e.status.is_err() {
        let picture = e.picture.as_ref().ok();
        let problems = strict::judge(e.device(), &underlay, picture, || peers(e));
        problems
            .iter()
            .for_each(|problem| check.find(Finding::at_start(problem)));
    }
    e.board.deal(&mut check);
    check.done()
}

fn forwards(check: &mut Check, key: &str, value: Option<i32>, answers: bool) {
    match value {
        Some(0) => {
            let remedy = match answers {
                true => {
                    "find the program that sets it (sysctl.d, NetworkManager): Tartan sets it again within a second"
                }
                false => "start the agent, which sets it; or run `tartan doctor --fix`",
            };
            check.find(
                Finding::new("forwarding-off", key, Severity::Error)
                    .says(format!(
                        "{key} is 0: the kernel forwards no packet of a pod"
                    ))
                    .remedied_by(remedy),
            );
            check.fact(format!("{key} = 0"));
        }
        Some(value) => check.fact(format!("{key} = {value}")),
        None => check.unknown(format!("{key} cannot be read")),
    }
}

/// The interfaces that carry the overlay.
fn underlay(e: &Examination) -> Vec<String> {
    let names = match (&e.status, &e.dry_start) {
        (Ok(status), _) => status.underlay.clone(),
        (Err(_), Some(dry)) => match &dry.model {
            Some(model) => model.known.facts.underlay.name.clone(),
            None => return Vec::new(),
        },
        (Err(_), None) => return Vec::new(),
    };
    strict::interfaces(&names)
}

/// The peers' addresses, as a start would know them.
fn peers(e: &Examination) -> Vec<IpAddr> {
    let model = e.dry_start.as_ref().and_then(|dry| dry.model.as_ref());
    match (&e.peers, model) {
        (Some(peers), _) => peers.peers.iter().map(|peer| peer.public_ip).collect(),
        (None, Some(model)) => {
            let own = &model.known.own.name;
            let others = model.known.leases.iter().filter(|lease| lease.name != *own);
            others.map(|lease| lease.public.first()).collect()
        }
        (None, None) => Vec::new(),
    }
}
