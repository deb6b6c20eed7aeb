//! What `tartan status`, `tartan peers` and `tartan routes` show while no agent answers: the last good state, marked as
//! such. It is what the node forwarded by last; whether packets pass now, and how, nothing says.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::SystemTime;

use encap::Family;
use ipnet::IpNet;
use serde::Serialize;
use serde_json::Value;

use super::amount::duration;
use super::table::list;
use super::view::View;
use super::{peers, routes};
use crate::api::wire::{Dropped, Peer, Peers, Route, RouteKind, Routes};
use crate::causes::causes;
use crate::control::view::second;
use crate::last_good::{LastGood, LastGoodError, Refusal};
use crate::lease::Lease;

/// The part of the last good state that a command shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// The node, as of `tartan status`.
    Node,
    /// The other nodes, as of `tartan peers`.
    Peers,
    /// The prefixes, as of `tartan routes`.
    Routes,
}

/// The last good state as it is shown.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// As text; empty where there is none.
    pub(super) text: String,
    /// As a part of the document; `null` where there is none.
    pub(super) json: Value,
    /// Why there is none, in words, where one is there and cannot be used.
    pub(super) refused: Option<String>,
}

/// The part of a document that has the last good state.
#[derive(Debug, Serialize)]
struct Document {
    /// Seconds since the registry gave it.
    age: u64,
    node: String,
    public_ip: IpAddr,
    public_ipv6: Option<IpAddr>,
    subnets: Vec<IpNet>,
    cluster: Vec<IpNet>,
    format: String,
    /// Other nodes in it.
    peer_count: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    peers: Option<Vec<KeptPeer>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    routes: Option<Vec<Route>>,
}

/// Another node in it.
#[derive(Debug, Serialize)]
struct KeptPeer {
    name: String,
    public_ip: IpAddr,
    public_ipv6: Option<IpAddr>,
    format: String,
    subnets: Vec<IpNet>,
    vtep_mac: String,
    vtep_mac_v6: String,
}

impl Kept {
    /// Reads the state of the agent below `root`, and shows it.
    pub(super) fn read(root: &Path, shown: Shown, view: &View) -> Kept {
        match LastGood::read_of_any_node(&root.join("var/lib/tartan"), SystemTime::now()) {
            Ok(None) => Kept::default(),
            Ok(Some(state)) => Kept {
                text: render(&state, shown, view),
                // Its keys are text, and no value of it is other than JSON has.
                json: serde_json::to_value(document(&state, shown)).unwrap_or_default(),
                refused: None,
            },
            Err(error) => Kept {
                refused: Some(sentence(&error)),
                ..Kept::default()
            },
        }
    }
}

fn sentence(error: &LastGoodError) -> String {
    match error {
        LastGoodError::Refused {
            path,
            source: Refusal::Read(read),
        } if read.kind() == io::ErrorKind::PermissionDenied => format!(
            "not allowed to read the last good state {}: run as root (sudo)",
            path.display()
        ),
        error => causes(error),
    }
}

fn render(state: &LastGood, shown: Shown, view: &View) -> String {
    let age = duration(state.age.as_secs());
    let mark = view.alarming(&format!("LAST GOOD STATE, {age} old:"));
    let note = match shown {
        Shown::Node => "what this node forwarded by last. How it is now, no agent says.",
        Shown::Peers => "the other nodes as of then. How they are reached now, no agent says.",
        Shown::Routes => {
            "who owned which prefix then. Routes that bypass the overlay are not in it."
        }
    };
    let body = match shown {
        Shown::Node => node(state, view),
        Shown::Peers => peers::render_last_good(&known_peers(state), view),
        Shown::Routes => routes::render(&known_routes(state), view),
    };
    format!("{mark} {note}\n\n{body}")
}

fn node(state: &LastGood, view: &View) -> String {
    let own = &state.own;
    view.pairs([
        ("node", own.name.clone()),
        ("underlay", list(own.public.iter())),
        (
            "subnets",
            format!(
                "{} of {}",
                list(&own.subnets),
                list(state.net_conf.cluster())
            ),
        ),
        ("format", own.format.to_string()),
        ("peers", others(state).count().to_string()),
    ])
}

fn document(state: &LastGood, shown: Shown) -> Document {
    let own = &state.own;
    Document {
        age: state.age.as_secs(),
        node: own.name.clone(),
        public_ip: own.public.first(),
        public_ipv6: second(own.public),
        subnets: own.subnets.clone(),
        cluster: state.net_conf.cluster(),
        format: own.format.to_string(),
        peer_count: others(state).count(),
        peers: (shown == Shown::Peers).then(|| others(state).map(kept_peer).collect()),
        routes: (shown == Shown::Routes).then(|| known_routes(state).routes),
    }
}

/// The leases of other nodes.
fn others(state: &LastGood) -> impl Iterator<Item = &Lease> {
    let leases = state.leases.iter();
    leases.filter(|lease| lease.name != state.own.name)
}

fn kept_peer(lease: &Lease) -> KeptPeer {
    KeptPeer {
        name: lease.name.clone(),
        public_ip: lease.public.first(),
        public_ipv6: second(lease.public),
        format: lease.format.to_string(),
        subnets: lease.subnets.clone(),
        vtep_mac: lease.vtep_mac.v4.to_string(),
        vtep_mac_v6: lease.vtep_mac.v6.to_string(),
    }
}

/// Peers of whom only what their leases say is known.
fn known_peers(state: &LastGood) -> Peers {
    let peer = |lease: &Lease| {
        let KeptPeer {
            name,
            public_ip,
            public_ipv6,
            format,
            subnets,
            vtep_mac,
            vtep_mac_v6,
        } = kept_peer(lease);
        Peer {
            name,
            public_ip,
            public_ipv6,
            format,
            subnets,
            vtep_mac,
            vtep_mac_v6,
            seen_vtep_mac: None,
            seen_vtep_mac_v6: None,
            path_mtu: None,
            path_mtu_v6: None,
            sent_packets: 0,
            sent_bytes: 0,
            received_packets: 0,
            received_bytes: 0,
            refused: 0,
            dropped: Dropped::default(),
            state: String::new(),
            since: None,
            reason: String::new(),
            heard: None,
            user_space: None,
            paths: Vec::new(),
        }
    };
    Peers {
        peers: others(state).map(peer).collect(),
        ..Peers::default()
    }
}

fn known_routes(state: &LastGood) -> Routes {
    let own = &state.own;
    let routes = state.leases.iter().flat_map(|lease| {
        lease.subnets.iter().map(move |prefix| {
            let is_own = lease.name == own.name;
            let way = own.public.way_to(lease.public, Family::of(prefix.addr()));
            let (kind, via) = match way {
                _ if is_own => (RouteKind::Own, String::new()),
                Some(address) => (RouteKind::Peer, address.to_string()),
                None => (RouteKind::NoWay, lease.public.to_string()),
            };
            Route {
                prefix: *prefix,
                kind,
                via,
                format: match is_own {
                    true => String::new(),
                    false => lease.format.to_string(),
                },
                node: lease.name.clone(),
            }
        })
    });
    let mut routes: Vec<Route> = routes.collect();
    routes.sort_by_key(|route| route.prefix);
    Routes { routes }
}

#[cfg(test)]
mod tests;
