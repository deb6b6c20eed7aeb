//! What a caller asks to capture, in the workers' terms: names become addresses.

use std::net::IpAddr;

use dataplane::capture::{CaptureFilter, Stage, Stages};
use dataplane::drops::DropReason;

use crate::api::wire::Request;
use crate::attachments::pod_name;
use crate::control::view::View;

/// The filter of a request, by the names as they are now.
///
/// # Errors
/// A sentence, with the remedy, where a name is not known.
pub(super) fn of_request(request: &Request, view: &View) -> Result<CaptureFilter, String> {
    let Request::Capture {
        stages,
        pods,
        peers,
        reasons,
        snap_length,
        sampled,
    } = request
    else {
        return Err("this is no request for a capture".to_owned());
    };
    let stages: Result<Stages, String> = stages.iter().map(|name| stage(name)).collect();
    let pods = each(pods, |name| pod(name, &named_pods(view)))?;
    let peers = each(peers, |name| peer(name, view))?;
    let reasons: Result<Vec<DropReason>, String> =
        reasons.iter().map(|name| reason(name)).collect();
    Ok(CaptureFilter {
        stages: stages?,
        pods,
        peers,
        reasons: reasons?,
        snap_length: *snap_length as usize,
        sampled: *sampled,
    })
}

/// The stage of that name.
///
/// # Errors
/// A sentence that names all stages.
pub fn stage(name: &str) -> Result<Stage, String> {
    Stage::named(name).ok_or_else(|| {
        let names = Stage::ALL.map(Stage::name).join(", ");
        format!("no stage is called {name:?}: use one of {names}")
    })
}

/// The reason of that name, in small letters too.
///
/// # Errors
/// A sentence that says where they are listed.
pub fn reason(name: &str) -> Result<DropReason, String> {
    let mut reasons = DropReason::ALL.into_iter();
    reasons
        .find(|reason| reason.name().eq_ignore_ascii_case(name))
        .ok_or_else(|| {
            let names = DropReason::ALL.map(DropReason::name);
            let nearest = names.into_iter().max_by_key(|known| {
                let (known, name) = (known.to_lowercase(), name.to_lowercase());
                (strsim::jaro_winkler(&known, &name) * 1000.0) as u32
            });
            let nearest = nearest.unwrap_or_default();
            format!("no reason to drop is called {name:?}: did you mean {nearest}? docs/drops.md lists them")
        })
}

fn each(
    names: &[String],
    addresses: impl Fn(&str) -> Result<Vec<IpAddr>, String>,
) -> Result<Vec<IpAddr>, String> {
    let all: Result<Vec<Vec<IpAddr>>, String> = names.iter().map(|name| addresses(name)).collect();
    Ok(all?.concat())
}

/// The pods of this node, by name.
pub fn named_pods(view: &View) -> Vec<(String, Vec<IpAddr>)> {
    let attachments = view.attachments.iter();
    attachments
        .filter_map(|attachment| {
            let addresses = attachment.addresses.iter().map(|net| net.addr());
            Some((pod_name(attachment)?, addresses.collect()))
        })
        .collect()
}

/// An address is any pod's, here or elsewhere; a name is a pod's of this node, with its namespace or without.
///
/// # Errors
/// A sentence, with the remedy, where none or several have that name.
pub fn pod(name: &str, pods: &[(String, Vec<IpAddr>)]) -> Result<Vec<IpAddr>, String> {
    if let Ok(address) = name.parse() {
        return Ok(vec![address]);
    }
    let is_it = |known: &str| {
        known == name
            || known
                .split_once('/')
                .is_some_and(|(_, short)| short == name)
    };
    let found: Vec<_> = pods.iter().filter(|(known, _)| is_it(known)).collect();
    match found[..] {
        [(_, addresses)] => Ok(addresses.clone()),
        [] => Err(format!(
            "no pod of this node is called {name:?}: `tartan pods` lists them; name a pod of another node by its address"
        )),
        _ => {
            let mut names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
            names.dedup();
            if names.len() == 1 {
                // Several networks of one pod.
                return Ok(found.iter().flat_map(|(_, all)| all.clone()).collect());
            }
            Err(format!(
                "several pods of this node are called {name:?}: use one of {}",
                names.join(", ")
            ))
        }
    }
}

/// The outer addresses of a peer, by its name, by one of them or by an address of its subnets. Any other address is one
/// from which something may come that is no peer.
fn peer(name: &str, view: &View) -> Result<Vec<IpAddr>, String> {
    let address: Option<IpAddr> = name.parse().ok();
    let mut peers = view.spec.cluster.peers.iter();
    let found = peers.find(|peer| {
        let has = |address: IpAddr| {
            peer.public.contains(address)
                || peer.underlay_sources.contains(&address)
                || peer.subnets.iter().any(|subnet| subnet.contains(&address))
        };
        peer.name == name || address.is_some_and(has)
    });
    match (found, address) {
        (Some(peer), _) => {
            let sources = peer.underlay_sources.iter().copied();
            Ok(peer.public.iter().chain(sources).collect())
        }
        (None, Some(address)) => Ok(vec![address]),
        (None, None) => Err(format!(
            "no other node is called {name:?}: `tartan peers` lists them"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_addresses_or_a_sentence() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let pods = [
            ("default/web".to_owned(), vec![ip("10.244.1.2")]),
            ("test/web".to_owned(), vec![ip("10.244.1.3")]),
            ("test/db".to_owned(), vec![ip("10.244.1.4"), ip("fd00::4")]),
        ];
        let found = |name| pod(name, &pods);
        assert_eq!(found("test/web").unwrap(), [ip("10.244.1.3")]);
        assert_eq!(found("db").unwrap(), [ip("10.244.1.4"), ip("fd00::4")]);
        assert_eq!(found("10.244.7.7").unwrap(), [ip("10.244.7.7")]);
        let several = found("web").unwrap_err();
        assert!(several.contains("default/web, test/web"), "{several}");
        assert!(found("api").unwrap_err().contains("tartan pods"));
        assert_eq!(stage("sent"), Ok(Stage::Sent));
        assert!(stage("tap").unwrap_err().contains("received"));
        assert_eq!(reason("noroute"), Ok(DropReason::NoRoute));
        let unknown = reason("spoofed").unwrap_err();
        assert!(unknown.contains("SpoofedSource"), "{unknown}");
    }
}
