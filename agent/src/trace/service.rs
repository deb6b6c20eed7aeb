//! The stage of a Service: to which endpoints kube-proxy translates the packet, and with which of them the trace goes on.

use std::net::SocketAddr;

use encap::protocol::{TCP, UDP};

use super::TracedPacket;
use super::stages::stage;
use crate::api::wire::{StageResult, TraceStage};
use crate::host::ServiceFate;

use StageResult::{NotKnown, Passes, Refuses};

/// How a trace goes on behind the stage.
#[derive(Debug)]
pub(super) enum Behind {
    /// To the destination that was asked for.
    AsAsked,
    /// It ends with this stage.
    Ends(TraceStage),
    /// To one of these endpoints, the traced one.
    Translated {
        stage: TraceStage,
        endpoints: Vec<SocketAddr>,
        traced: SocketAddr,
    },
}

/// What a fate means for the trace. The first endpoint that `is_remote` is traced: the way to another node has more that can
/// be wrong than the way to a pod of this one.
pub(super) fn service(
    fate: ServiceFate,
    packet: &TracedPacket,
    is_remote: impl Fn(&SocketAddr) -> bool,
) -> Behind {
    let destination = packet.destination;
    let end = |result, code, words: String, remedy: &str| {
        Behind::Ends(stage("service", result, code, words, remedy))
    };
    match fate {
        ServiceFate::NoService | ServiceFate::Unread => Behind::AsAsked,
        ServiceFate::Endpoints {
            chain,
            endpoints,
            is_complete,
        } => {
            let remote = endpoints.iter().find(|endpoint| is_remote(endpoint));
            match remote.or(endpoints.first()).copied() {
                Some(traced) => {
                    let words = translated(&chain, &endpoints, traced, is_complete);
                    let stage = stage("service", Passes, "endpoints", words, "");
                    Behind::Translated {
                        stage,
                        endpoints,
                        traced,
                    }
                }
                None => not_understood(packet, &chain),
            }
        }
        ServiceFate::Refused {
            chain,
            verdict: verdict @ ("reject" | "REJECT"),
        } => end(
            Refuses,
            "no-endpoint",
            format!(
                "the Service has no endpoint: kube-proxy refuses it, by `{verdict}` in nft {chain}"
            ),
            "look for pods that the Service selects and that are ready: `kubectl get endpointslices -A`",
        ),
        ServiceFate::Refused { chain, verdict } => end(
            Refuses,
            "no-local-endpoint",
            format!(
                "the Service has no endpoint on this node, and takes no others (traffic policy Local): kube-proxy drops it, by `{verdict}` in nft {chain}"
            ),
            "run an endpoint on this node, or set the Service's traffic policy to Cluster",
        ),
        ServiceFate::NoPort(ports) if [TCP, UDP].contains(&packet.protocol) => end(
            Refuses,
            "no-port",
            format!(
                "no Service of {destination} listens on {}; on {} it does",
                named(packet.protocol, packet.port),
                list(&ports)
            ),
            "name a port that the Service has, or add this one to it",
        ),
        ServiceFate::NoPort(ports) => end(
            NotKnown,
            "service",
            format!(
                "{destination} is a Service's, which listens on {}: kube-proxy translates nothing else",
                list(&ports)
            ),
            "trace a packet to a port of it, with `--tcp PORT` or `--udp PORT`",
        ),
        ServiceFate::NotForSource { chain } => end(
            Refuses,
            "not-for-source",
            format!(
                "kube-proxy's chain nft {chain} translates it for other sources than {} alone",
                packet.source
            ),
            "look at the Service's loadBalancerSourceRanges",
        ),
        ServiceFate::NotUnderstood { chain } => not_understood(packet, &chain),
    }
}

fn not_understood(packet: &TracedPacket, chain: &str) -> Behind {
    Behind::Ends(by_a_chain(packet, chain))
}

/// The stage where a chain translates the packet in a way that is not understood.
pub(super) fn by_a_chain(packet: &TracedPacket, chain: &str) -> TraceStage {
    let destination = packet.destination;
    stage(
        "service",
        NotKnown,
        "service",
        format!(
            "{destination} is a Service's: kube-proxy's chain nft {chain} translates it, for each connection to one of the endpoints"
        ),
        "trace to the addresses of the endpoints: `kubectl get endpointslices -A`",
    )
}

fn translated(
    chain: &str,
    endpoints: &[SocketAddr],
    traced: SocketAddr,
    is_complete: bool,
) -> String {
    let by = format!("kube-proxy's chain nft {chain}");
    if let ([one], true) = (endpoints, is_complete) {
        return format!("translated to {one} by {by}");
    }
    let named: Vec<String> = endpoints
        .iter()
        .take(MOST_NAMED)
        .map(SocketAddr::to_string)
        .collect();
    let more = match (endpoints.len().saturating_sub(MOST_NAMED), is_complete) {
        (0, true) => String::new(),
        (0, false) => " and others, by rules that are not understood".to_owned(),
        (more, true) => format!(" and {more} more"),
        (more, false) => format!(" and at least {more} more"),
    };
    format!(
        "translated to one of: {}{more}, by {by}; traced to {traced}",
        named.join(", ")
    )
}

fn list(ports: &[(u8, u16)]) -> String {
    let named: Vec<String> = ports
        .iter()
        .take(MOST_NAMED)
        .map(|(protocol, port)| named(*protocol, *port))
        .collect();
    let more = match ports.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", named.join(", "))
}

fn named(protocol: u8, port: u16) -> String {
    match protocol {
        TCP => format!("tcp {port}"),
        UDP => format!("udp {port}"),
        132 => format!("sctp {port}"),
        other => format!("protocol {other} {port}"),
    }
}

/// Endpoints, and ports, that are named.
const MOST_NAMED: usize = 8;

#[cfg(test)]
mod tests {
    use encap::protocol::ICMP;

    use super::*;

    fn packet(protocol: u8, port: u16) -> TracedPacket {
        TracedPacket {
            source: [10, 244, 1, 2].into(),
            destination: [10, 96, 0, 1].into(),
            protocol,
            port,
            size: 84,
            dont_fragment: false,
        }
    }

    fn endpoints(count: u8, is_complete: bool) -> ServiceFate {
        let endpoints = (0..count).map(|last| SocketAddr::from(([10, 244, last, 2], 8080)));
        ServiceFate::Endpoints {
            chain: "ip nat KUBE-SVC-A".to_owned(),
            endpoints: endpoints.collect(),
            is_complete,
        }
    }

    fn ended(fate: ServiceFate, packet: &TracedPacket) -> TraceStage {
        match service(fate, packet, |_| false) {
            Behind::Ends(stage) => stage,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_first_endpoint_of_another_node_is_traced_and_at_most_eight_are_named() {
        let asked = packet(TCP, 80);
        let of = |fate, remote: u8| match service(
            fate,
            &asked,
            |endpoint| matches!(endpoint, SocketAddr::V4(v4) if v4.ip().octets()[2] == remote),
        ) {
            Behind::Translated {
                stage,
                endpoints,
                traced,
            } => (stage.reason, endpoints.len(), traced.to_string()),
            other => panic!("{other:?}"),
        };
        let (words, count, traced) = of(endpoints(3, true), 2);
        assert_eq!((count, &traced[..]), (3, "10.244.2.2:8080"));
        assert_eq!(
            words,
            "translated to one of: 10.244.0.2:8080, 10.244.1.2:8080, 10.244.2.2:8080, by kube-proxy's chain nft ip nat KUBE-SVC-A; traced to 10.244.2.2:8080"
        );
        // None of another node: the first.
        let (words, count, traced) = of(endpoints(11, true), 99);
        assert_eq!((count, &traced[..]), (11, "10.244.0.2:8080"));
        assert!(words.contains("10.244.7.2:8080 and 3 more, by"), "{words}");
        assert!(!words.contains("10.244.8.2"), "{words}");
        let (words, ..) = of(endpoints(1, true), 0);
        assert_eq!(
            words,
            "translated to 10.244.0.2:8080 by kube-proxy's chain nft ip nat KUBE-SVC-A"
        );
        let (words, ..) = of(endpoints(1, false), 0);
        assert!(
            words.contains("and others, by rules that are not understood"),
            "{words}"
        );
        let (words, ..) = of(endpoints(9, false), 0);
        assert!(words.contains("and at least 1 more"), "{words}");
    }

    #[test]
    fn what_kube_proxy_refuses_is_refused_and_what_is_not_read_is_not_known() {
        let chain = "ip filter KUBE-SERVICES".to_owned();
        let asked = packet(TCP, 81);
        for (fate, result, code, word) in [
            (
                ServiceFate::Refused {
                    chain: chain.clone(),
                    verdict: "REJECT",
                },
                Refuses,
                "no-endpoint",
                "no endpoint: kube-proxy refuses it, by `REJECT` in nft ip filter KUBE-SERVICES",
            ),
            (
                ServiceFate::Refused {
                    chain: chain.clone(),
                    verdict: "drop",
                },
                Refuses,
                "no-local-endpoint",
                "no endpoint on this node",
            ),
            (
                ServiceFate::NoPort(vec![(TCP, 80), (UDP, 53)]),
                Refuses,
                "no-port",
                "no Service of 10.96.0.1 listens on tcp 81; on tcp 80, udp 53 it does",
            ),
            (
                ServiceFate::NotForSource {
                    chain: chain.clone(),
                },
                Refuses,
                "not-for-source",
                "other sources than 10.244.1.2 alone",
            ),
            (
                ServiceFate::NotUnderstood {
                    chain: chain.clone(),
                },
                NotKnown,
                "service",
                "translates it, for each connection",
            ),
            (endpoints(0, true), NotKnown, "service", "KUBE-SVC-A"),
        ] {
            let stage = ended(fate, &asked);
            assert_eq!((stage.result, &stage.code[..]), (result, code));
            assert!(stage.reason.contains(word), "{}", stage.reason);
            assert!(!stage.remedy.is_empty());
        }
        let ping = ended(ServiceFate::NoPort(vec![(TCP, 80)]), &packet(ICMP, 0));
        assert_eq!(ping.result, NotKnown);
        assert!(ping.remedy.contains("--tcp PORT"), "{}", ping.remedy);
    }

    #[test]
    fn what_is_no_services_goes_on_as_asked() {
        for fate in [ServiceFate::NoService, ServiceFate::Unread] {
            let behind = service(fate, &packet(TCP, 80), |_| true);
            assert!(matches!(behind, Behind::AsAsked), "{behind:?}");
        }
    }
}
