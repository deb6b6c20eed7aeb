//! Kernel settings without which packets are dropped on their way through this node.
//!
//! Forwarding is set and kept by the service; a node where it is off is found here in any case, also while no service runs.
//! A strict reverse-path filter is judged by the routes: it drops what a peer sends where the way back to that peer leads
//! through another interface than the one at which its datagrams arrive.

use std::net::IpAddr;

use super::configuration::list;
use super::examination::Examination;
use super::finding::{Check, Finding};
use crate::host::{forwarding, reverse_path_filter};
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
    if let Some(device) = e.device()
        && reverse_path_filter(device) == Some(STRICT)
    {
        check.find(strict(device).says(format!(
            "the reverse-path filter of {device} is strict: what a peer sends from its node's own address is dropped"
        )));
    }
    let underlay = underlay(e);
    for interface in &underlay {
        let filter = reverse_path_filter(interface);
        if let Some(filter) = filter {
            check.fact(format!(
                "net.ipv4.conf.{interface}.rp_filter in force: {filter}"
            ));
        }
        let astray = astray(e, &underlay);
        if filter == Some(STRICT) && !astray.is_empty() {
            check.find(strict(interface).says(format!(
                "the reverse-path filter of {interface} is strict, and the way back to peers leads elsewhere ({}): what they send is dropped",
                list(&astray)
            )));
        }
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

fn strict(interface: &str) -> Finding {
    let word = interface.replace('.', "/");
    Finding::new("reverse-path-filter", interface, Severity::Error).remedied_by(format!(
        "run `sysctl -w net.ipv4.conf.{word}.rp_filter=2`, and put it into a file of /etc/sysctl.d"
    ))
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
    let names = names.split(", ").filter(|name| !name.contains(' '));
    names.map(str::to_owned).collect()
}

/// Peers of IPv4 that the kernel would send to by another interface, with that interface.
fn astray(e: &Examination, underlay: &[String]) -> Vec<String> {
    let Ok(picture) = &e.picture else {
        return Vec::new();
    };
    // The filter is of IPv4 alone.
    let peers = peers(e).into_iter().filter(IpAddr::is_ipv4);
    let astray = peers.filter_map(|address| {
        let way = picture.way_to(address)?;
        (!underlay.contains(&way)).then(|| format!("{address} by {way}"))
    });
    astray.take(MOST_NAMED).collect()
}

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

const STRICT: i32 = 1;
const MOST_NAMED: usize = 5;
