//! `tartan trace`: what becomes of one packet of a pod, stage by stage, here and at the other node.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use encap::protocol::{ICMP, ICMPV6, TCP, UDP};
use serde_json::Value;

use super::capture::live::{self, Flow, Live, LiveError};
use super::query::{Asked, Query, ask, code_of, failure};
use super::table::Column;
use super::view::{RowArgs, View};
use super::{OK, Output, PROBLEM, USAGE, complain, complain_with_causes, json, print};
use crate::api::client::{ClientError, call};
use crate::api::wire::{Request, StageResult, Trace, TraceStage};

/// Arguments of `tartan trace`.
#[derive(Args, Debug)]
pub(super) struct TraceArgs {
    #[command(flatten)]
    query: Query,
    /// The pod that sends: a pod of this node, by `NAMESPACE/NAME`, name or address
    #[arg(value_name = "POD")]
    from: String,
    /// Where to: a pod of this node by name, or an address of any pod, node, Service or host. A pod of another node goes by
    /// its address alone: a node knows the names of its own pods, and is told those of no other
    #[arg(value_name = "POD|ADDRESS")]
    to: String,
    /// Trace a TCP packet to this port
    #[arg(long, value_name = "PORT", conflicts_with_all = ["udp", "icmp"])]
    tcp: Option<u16>,
    /// Trace a UDP packet to this port
    #[arg(long, value_name = "PORT", conflicts_with = "icmp")]
    udp: Option<u16>,
    /// Trace an ICMP echo request [default]
    #[arg(long)]
    icmp: bool,
    /// Trace a packet of so many bytes, its IP header included [default: 84]
    #[arg(short, long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(48..))]
    size: Option<u16>,
    /// The packet must not be fragmented, as TCP's must not
    #[arg(long)]
    df: bool,
    /// Trace it as if the pod sent from this address
    #[arg(long, value_name = "ADDRESS")]
    source: Option<IpAddr>,
    /// Watch real packets of this flow, too, for so many seconds, 1 to 60: nothing is sent
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "5", value_parser = clap::value_parser!(u64).range(1..=60), conflicts_with = "watch")]
    live: Option<u64>,
}

/// Traces a packet. Returns the exit code.
pub(super) fn execute(args: &TraceArgs, before: Option<PathBuf>) -> u8 {
    let request = request(args);
    let asked = Asked {
        request,
        columns: &COLUMNS,
        render,
        problem,
        last_good: None,
    };
    match args.live {
        None => ask(&args.query, &RowArgs::default(), before, &asked),
        Some(seconds) => watched(args, before, &asked.request, seconds),
    }
}

fn request(args: &TraceArgs) -> Request {
    let is_v6 = |text: &str| {
        text.parse::<IpAddr>()
            .is_ok_and(|address| address.is_ipv6())
    };
    let icmp = match is_v6(&args.from) || is_v6(&args.to) {
        true => ICMPV6,
        false => ICMP,
    };
    let (protocol, port) = match (args.tcp, args.udp) {
        (Some(port), _) => (TCP, port),
        (None, Some(port)) => (UDP, port),
        (None, None) => (icmp, 0),
    };
    Request::Trace {
        from: args.from.clone(),
        to: args.to.clone(),
        source: args.source,
        protocol,
        port,
        size: args.size.unwrap_or(DEFAULT_SIZE),
        dont_fragment: args.df || args.tcp.is_some(),
    }
}

/// The prediction, and beside it what happens.
fn watched(args: &TraceArgs, before: Option<PathBuf>, request: &Request, seconds: u64) -> u8 {
    let output = args.query.target.output;
    let view = match args.query.view(&COLUMNS) {
        Ok(view) => view,
        Err(misuse) => {
            complain(misuse);
            return USAGE;
        }
    };
    let socket = args.query.target.socket(before);
    let refuse = |error: &ClientError| {
        match output {
            Output::Table => complain_with_causes(error),
            Output::Json => {
                print(failure(output, error));
            }
        }
        code_of(error)
    };
    let traced = call(&socket, request).and_then(|value| {
        let trace: Trace = serde_json::from_value(value.clone()).map_err(ClientError::Answer)?;
        Ok((value, trace))
    });
    let (mut value, trace) = match traced {
        Ok(traced) => traced,
        Err(error) => return refuse(&error),
    };
    // The workers see what kube-proxy has translated.
    let translated = trace
        .endpoint
        .map(|endpoint| (endpoint.ip(), endpoint.port()));
    let (destination, port) = translated.unwrap_or((trace.destination, trace.port));
    let flow = Flow {
        source: trace.source,
        destination,
        protocol: trace.protocol,
        port,
    };
    let live = match live::watch(&socket, flow, seconds) {
        Ok(live) => live,
        Err(LiveError::Client(error)) => return refuse(&error),
        Err(LiveError::Io(error)) => {
            complain(format!(
                "the flow was not watched to the end: {error}; try again"
            ));
            return PROBLEM;
        }
    };
    match output {
        Output::Table => print(format!("{}{}", render(&trace, &view), live_line(&live))),
        Output::Json => {
            if let (Value::Object(keys), Ok(live)) = (&mut value, serde_json::to_value(&live)) {
                keys.insert("live".to_owned(), live);
            }
            print(json(&value))
        }
    };
    let is_dropped = !live.dropped.is_empty();
    if problem(&trace) || is_dropped {
        PROBLEM
    } else {
        OK
    }
}

fn live_line(live: &Live) -> String {
    format!("\nlive: {}\n", live.words())
}

/// Whether a stage refuses the packet.
fn problem(trace: &Trace) -> bool {
    trace.result == StageResult::Refuses
}

fn render(trace: &Trace, view: &View) -> String {
    let rows = trace.stages.iter().map(|stage| {
        vec![
            tick(stage.result).to_owned(),
            stage.stage.clone(),
            stage.reason.clone(),
        ]
    });
    let table = view.table(&COLUMNS, rows);
    let mut text = format!("{}\n\n{table}\n{}\n", headline(trace), conclusion(trace));
    for stage in &trace.stages {
        if stage.result != StageResult::Passes && !stage.remedy.is_empty() {
            text.push_str(&super::table::printable(&format!(
                "{}: {}",
                stage.stage, stage.remedy
            )));
            text.push('\n');
        }
    }
    text
}

fn headline(trace: &Trace) -> String {
    let protocol = match trace.protocol {
        TCP => format!("tcp port {}", trace.port),
        UDP => format!("udp port {}", trace.port),
        ICMP | ICMPV6 => "icmp echo request".to_owned(),
        other => format!("protocol {other}"),
    };
    let df = if trace.dont_fragment {
        ", not to be fragmented"
    } else {
        ""
    };
    super::table::printable(&format!(
        "{} ({}) to {}: {protocol}, {} bytes{df}",
        trace.from, trace.source, trace.destination, trace.size
    ))
}

fn conclusion(trace: &Trace) -> String {
    let of = |result| {
        let stages = trace.stages.iter();
        stages.filter(move |stage: &&TraceStage| stage.result == result)
    };
    let unknown: Vec<&str> = of(StageResult::NotKnown)
        .map(|stage| stage.stage.as_str())
        .collect();
    let words = match of(StageResult::Refuses).next() {
        Some(stage) => format!("refused at {}", stage.stage),
        None if unknown.is_empty() => "every stage passes it".to_owned(),
        None => format!(
            "no stage is known to refuse it; not known: {}",
            unknown.join(", ")
        ),
    };
    super::table::printable(&words)
}

/// The sign of a result.
const fn tick(result: StageResult) -> &'static str {
    match result {
        StageResult::Passes => "✓",
        StageResult::Refuses => "✗",
        StageResult::NotKnown => "?",
    }
}

const COLUMNS: [Column; 3] = [
    Column::Words(""),
    Column::Words("STAGE"),
    Column::Words("REASON"),
];
/// What ping(8) sends.
const DEFAULT_SIZE: u16 = 84;

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(results: &[StageResult]) -> Trace {
        let stage = |result: &StageResult| TraceStage {
            stage: format!("{result:?}").to_lowercase(),
            result: *result,
            code: "code".to_owned(),
            reason: "a reason".to_owned(),
            remedy: "a remedy".to_owned(),
        };
        Trace {
            from: "default/web".to_owned(),
            source: [10, 244, 1, 2].into(),
            destination: [10, 244, 2, 3].into(),
            protocol: TCP,
            port: 80,
            size: 60,
            dont_fragment: true,
            result: *results.iter().max().unwrap(),
            endpoints: Vec::new(),
            endpoint: None,
            peer: None,
            stages: results.iter().map(stage).collect(),
        }
    }

    #[test]
    fn a_trace_has_a_tick_and_a_reason_for_each_stage_and_a_conclusion() {
        use StageResult::{NotKnown, Passes, Refuses};
        let text = render(&trace(&[Passes, NotKnown, Refuses]), &View::default());
        assert!(text.starts_with("default/web (10.244.1.2) to 10.244.2.3: tcp port 80, 60 bytes, not to be fragmented\n"), "{text}");
        for sign in ["✓", "?", "✗", "refused at refuses", "refuses: a remedy"] {
            assert!(text.contains(sign), "{sign}: {text}");
        }
        assert!(!text.contains("passes: a remedy"), "{text}");
        assert!(problem(&trace(&[Passes, Refuses])) && !problem(&trace(&[Passes, NotKnown])));
        let text = render(&trace(&[NotKnown, Passes, NotKnown]), &View::default());
        assert!(text.contains("not known: notknown, notknown\n"), "{text}");
        let text = render(&trace(&[Passes]), &View::default());
        assert!(text.contains("every stage passes it"), "{text}");
    }
}
