//! The stages of a trace in words: pure functions of what was found.

use std::fmt::Display;
use std::net::IpAddr;

use dataplane::decision::{Departure, Fit};
use dataplane::drops::DropReason;
use dataplane::probe::Fate;
use encap::{Family, Format};

use super::TracedPacket;
use crate::api::wire::{StageResult, TraceStage};
use crate::host::{FilterVerdict, NamedRule};
use crate::peer_health::question::{NotSent, PeerSays};
use crate::peer_health::report::PathReport;
use crate::peer_health::state::State;

use StageResult::{NotKnown, Passes, Refuses};

pub(super) fn stage(
    name: &str,
    result: StageResult,
    code: impl Display,
    reason: impl Display,
    remedy: impl Display,
) -> TraceStage {
    TraceStage {
        stage: name.to_owned(),
        result,
        code: code.to_string(),
        reason: reason.to_string(),
        remedy: remedy.to_string(),
    }
}

/// Tartan's own check of the source at the pod's interface, before anything is translated.
pub(super) fn source_check(source: IpAddr, interface: &str, is_routed_back: bool) -> TraceStage {
    if is_routed_back {
        let reason = format!("the kernel routes {source} back to {interface}");
        return stage("source-check", Passes, "routed-back", reason, "");
    }
    stage(
        "source-check",
        Refuses,
        "forged-source",
        format!(
            "nft inet tartan prerouting drops it: no route leads to its source {source} by {interface}"
        ),
        "have the pod send from its own address; `tartan pods` lists it",
    )
}

/// What the packet filter says.
pub(super) fn filter(verdict: &FilterVerdict) -> TraceStage {
    if let Some(rule) = &verdict.drops {
        return stage(
            "filter",
            Refuses,
            "dropped",
            format!("{} drops it", named(rule)),
            format!(
                "look at the rule with `nft -a list chain {}`, and change it where it was made",
                rule.chain
            ),
        );
    }
    if let Some(rule) = verdict.may_drop.first() {
        let more = match verdict.may_drop.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let by = match rule.verdict {
            NamedRule::UNKNOWN | NamedRule::UNREAD => "",
            _ => ", by conditions other than addresses",
        };
        let reason = format!("not judged: {}{more} may drop it{by}", named(rule));
        let remedy = format!("compare with `nft -a list chain {}`", rule.chain);
        return stage("filter", NotKnown, "not-judged", reason, remedy);
    }
    if let Some(legacy) = &verdict.legacy {
        return stage(
            "filter",
            NotKnown,
            "legacy",
            legacy,
            "look with `iptables-legacy-save`",
        );
    }
    let reason = match verdict.chains {
        0 => "no rule of other programs on its way".to_owned(),
        1 => "1 base chain of other programs, which does not drop it".to_owned(),
        chains => format!("{chains} base chains of other programs, none of which drops it"),
    };
    stage("filter", Passes, "passes", reason, "")
}

/// Another program's rule may give the packet other addresses, and then another way.
pub(super) fn translation(rule: &NamedRule) -> TraceStage {
    let chain = &rule.chain;
    let which = match rule.handle {
        Some(handle) => format!("the rule in nft {chain}, handle {handle},"),
        None => named(rule),
    };
    stage(
        "translation",
        NotKnown,
        "translated",
        format!(
            "{which} may translate it; the stages behind are for the addresses that it has now"
        ),
        format!(
            "look at the rule with `nft -a list chain {chain}`; trace with the addresses that it gives"
        ),
    )
}

fn named(rule: &NamedRule) -> String {
    let NamedRule {
        chain,
        handle,
        verdict,
    } = rule;
    match handle {
        Some(handle) if *verdict == NamedRule::UNKNOWN => {
            format!("a verdict map, a queue or the like in nft {chain}, handle {handle},")
        }
        None if *verdict == NamedRule::UNREAD => {
            format!("the rules of nft {chain}, which were not read,")
        }
        Some(handle) => format!("the rule `{verdict}` in nft {chain}, handle {handle},"),
        None => format!("the {verdict} of nft {chain}"),
    }
}

/// Why the tables do not carry the packet: the source check of the workers, or the look-up.
pub(super) fn refused(reason: DropReason, packet: &TracedPacket) -> TraceStage {
    let (source, destination) = (packet.source, packet.destination);
    let (name, words, remedy) = match reason {
        DropReason::SpoofedSource => (
            "source",
            format!("the workers drop it: {source} is no address of this node or its pods"),
            "have the pod send from its own address, or list the prefix under `accept-sources`",
        ),
        DropReason::OwnSubnet => (
            "fib",
            format!("{destination} lies in this node's own subnet, and no pod here has it"),
            "look for the pod with `tartan pods`; it may be gone",
        ),
        DropReason::NoRoute => (
            "fib",
            format!("no node has a subnet with {destination}"),
            "look for the node's subnet with `tartan routes`, and for refused records with `tartan peers`",
        ),
        DropReason::NoUnderlay => (
            "fib",
            "the node that has it has no address of a family that this node has".to_owned(),
            "give both nodes a public address of one family",
        ),
        DropReason::Ipv6InUdp => (
            "fib",
            "the node that has it takes the udp format, which carries no IPv6".to_owned(),
            "use the vxlan format for IPv6",
        ),
        other => (
            "fib",
            other.gloss().to_owned(),
            "docs/drops.md says what to do",
        ),
    };
    stage(name, Refuses, reason.name(), words, remedy)
}

/// The size against the tunnel device and the path.
pub(super) fn size(
    packet: &TracedPacket,
    device_mtu: u16,
    departure: &Departure<'_>,
) -> TraceStage {
    let TracedPacket {
        size,
        dont_fragment,
        ..
    } = *packet;
    let lower = "send packets no larger than that, or let them be fragmented; pods take the MTU of their interface";
    if size > device_mtu && dont_fragment {
        let reason = format!(
            "{size} bytes that must not be fragmented; the tunnel device takes {device_mtu}: the kernel answers \"fragmentation needed\""
        );
        return stage("size", Refuses, "device-mtu", reason, lower);
    }
    let mtu = departure.mtu;
    match departure.fit {
        Ok(Fit::Whole) => {
            let reason = format!("{size} bytes; the device takes {device_mtu}, the path {mtu}");
            stage("size", Passes, "fits", reason, "")
        }
        Ok(Fit::Fragments(mtu)) => {
            let least = mtu.min(device_mtu);
            let reason = format!("{size} bytes; cut into fragments of at most {least}");
            stage("size", Passes, "fragments", reason, "")
        }
        Err(reason) => stage(
            "size",
            Refuses,
            reason.name(),
            format!(
                "{size} bytes that must not be fragmented; the path carries {mtu}: the pod gets \"fragmentation needed\""
            ),
            lower,
        ),
    }
}

/// The health of the path to the peer. `is_answered`: it answered the question of this trace, which is newer than what made
/// its state.
pub(super) fn peer(name: &str, path: Option<&PathReport>, is_answered: bool) -> TraceStage {
    let Some(path) = path else {
        return stage(
            "peer",
            NotKnown,
            "new",
            format!("{name}: not probed yet"),
            "",
        );
    };
    let words = match (&path.state, path.round_trips) {
        (State::Up, Some((median, _))) => {
            format!("{name} answers, {:.1} ms", median.as_secs_f64() * 1e3)
        }
        (State::Up, None) => format!("{name} answers"),
        (State::New | State::Narrow { .. } | State::Heard, _) => format!("{name}: {}", path.state),
        (state, _) if is_answered => format!("{name} answers now, and before: {state}"),
        (state, _) => format!("{name}: {state}"),
    };
    let result = match &path.state {
        State::Up | State::Narrow { .. } | State::Heard => Passes,
        State::New | State::Quiet => NotKnown,
        _ if is_answered => NotKnown,
        _ => Refuses,
    };
    let remedy = match result {
        Refuses => {
            "`tartan status` names the problem and its remedy; look at the agent of that node"
        }
        _ => "",
    };
    stage("peer", result, path.state.name(), words, remedy)
}

/// What the other node says, or what its silence means.
pub(super) fn other_side(
    peer: &str,
    packet: &TracedPacket,
    says: &PeerSays,
    path: Option<&PathReport>,
) -> TraceStage {
    let name = "other-side";
    match &says.not_sent {
        Some(NotSent::Refused(reason)) => {
            return stage(
                name,
                Refuses,
                "not-sent",
                format!("{peer} was not asked: {reason}"),
                "correct what keeps this node from sending there",
            );
        }
        Some(NotSent::NotAsked(reason)) => return not_asked(peer, reason),
        None => {}
    }
    if !says.is_answered {
        return silence(peer, path.map(|path| &path.state));
    }
    let verdict = says.verdict.map(|verdict| verdict.fate);
    let delivers = verdict.and_then(Fate::is_delivered);
    if says.size_passed == Some(false) && delivers != Some(false) {
        let words = format!(
            "a datagram of the size of this packet does not arrive at {peer}, a small one does: the path carries less than {} bytes of it",
            packet.size
        );
        return stage(
            name,
            Refuses,
            "path-narrow",
            words,
            "raise the MTU on the way, or lower the pods' (`mtu` of the network configuration); `tartan peers` shows what passes",
        );
    }
    let took = says.round_trip.map_or(0.0, |trip| trip.as_secs_f64() * 1e3);
    let (source, destination) = (packet.source, packet.destination);
    let Some(fate) = verdict else {
        let words = format!(
            "{peer} answers, {took:.1} ms; its Tartan is older and does not say what becomes of the packet"
        );
        return stage(
            name,
            NotKnown,
            "older",
            words,
            "look with `tartan pods` there",
        );
    };
    let back = says.verdict.map_or(0, |verdict| verdict.mtu_back);
    let back = match back {
        0 => String::new(),
        back => format!("; back it sends {back} bytes in one piece"),
    };
    let delivered =
        |to: &str| format!("{peer} delivers it to {to}, answered in {took:.1} ms{back}");
    let (result, code, words, remedy) = match fate {
        Fate::Pod => (
            Passes,
            "pod",
            delivered(&format!("the pod {destination}")),
            "",
        ),
        Fate::KernelRoute => (
            Passes,
            "kernel-route",
            delivered(&format!(
                "its kernel, which has {destination} on another device"
            )),
            "",
        ),
        Fate::Tunnel => (Passes, "tunnel", delivered("its own tunnel address"), ""),
        Fate::NotPeersSource => (
            Refuses,
            "NotPeersSource",
            format!("{peer} drops it: by its list of nodes {source} is not this node's"),
            "compare `tartan routes` on both nodes; or list the prefix under `accept-sources`",
        ),
        Fate::NoSuchPod => (
            Refuses,
            "NotOurs",
            format!("{peer} drops it: no pod there has {destination}"),
            "the pod may be gone or not attached: look with `tartan pods` there",
        ),
        Fate::NotOurs => (
            Refuses,
            "NotOurs",
            format!("{peer} drops it: {destination} is none of its addresses"),
            "compare `tartan routes` on both nodes: they have different lists",
        ),
        Fate::Ipv6InUdp => (
            Refuses,
            "Ipv6InUdp",
            format!("{peer} drops it: it takes no IPv6 in the udp format"),
            "use the vxlan format for IPv6",
        ),
        Fate::NotUnderstood | Fate::Other(_) => (
            NotKnown,
            "not-understood",
            format!(
                "{peer} answers, and the two versions of Tartan do not understand each other's question"
            ),
            "look with `tartan pods` there",
        ),
    };
    stage(name, result, code, words, remedy)
}

/// The prober has not asked: that says nothing about the packet.
pub(super) fn not_asked(peer: &str, reason: &str) -> TraceStage {
    let words = format!("{peer} was not asked: {reason}");
    stage("other-side", NotKnown, "not-asked", words, "")
}

/// What it means that a peer does not answer.
fn silence(peer: &str, state: Option<&State>) -> TraceStage {
    let (result, code, words, remedy) = match state {
        Some(State::Heard) => (
            NotKnown,
            "no-answer",
            format!(
                "{peer} answers no probes and its packets arrive: it runs flannel or the kernel's VXLAN, which say nothing"
            ),
            "look on that node for the pod",
        ),
        Some(State::Quiet | State::New) | None => (
            NotKnown,
            "no-answer",
            format!(
                "{peer} does not answer and nothing of it has arrived lately: it runs flannel, or is not reached"
            ),
            "ping that node's address; look whether its agent runs",
        ),
        Some(State::Up | State::Narrow { .. }) => (
            Refuses,
            "no-answer",
            format!("{peer} answered probes before, and three in one second are lost"),
            "look whether its agent runs, and for a firewall between the nodes",
        ),
        Some(state) => (
            Refuses,
            "no-answer",
            format!("{peer} does not answer: {state}"),
            "look whether its agent runs, and for a firewall between the nodes",
        ),
    };
    stage("other-side", result, code, words, remedy)
}

/// The format, with what tells datagrams of this cluster from others.
pub(super) fn format(departure: &Departure<'_>, vni: u32) -> TraceStage {
    let family = Family::of(departure.to.ip());
    let overhead = departure.format.overhead(family);
    let to = departure.to;
    let words = match departure.format {
        Format::Vxlan => format!("vxlan, VNI {vni}, to {to}, {overhead} bytes around the packet"),
        Format::Udp => format!("udp, to {to}, {overhead} bytes around the packet"),
    };
    stage("format", Passes, departure.format, words, "")
}

#[cfg(test)]
mod tests;
