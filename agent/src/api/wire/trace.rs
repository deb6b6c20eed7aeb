//! What becomes of a packet, stage by stage.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// The answer to `tartan trace`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// The pod, `namespace/name` where it has a name, else its address.
    pub from: String,
    /// The packet's source.
    pub source: IpAddr,
    /// Its destination.
    pub destination: IpAddr,
    /// IANA protocol number.
    pub protocol: u8,
    /// The destination port; 0 where the protocol has none.
    pub port: u16,
    /// Bytes of the packet, its IP header included.
    pub size: u16,
    /// It must not be fragmented.
    pub dont_fragment: bool,
    /// The worst of the stages.
    pub result: StageResult,
    /// Where its destination is a Service's: the endpoints that kube-proxy may translate it to, by their rules' order. Else
    /// empty.
    #[serde(default)]
    pub endpoints: Vec<SocketAddr>,
    /// The one of them that the stages behind `service` are for.
    #[serde(default)]
    pub endpoint: Option<SocketAddr>,
    /// The node that it goes to; absent where it goes to none by the overlay.
    pub peer: Option<String>,
    /// The stages in the order in which the packet meets them; nothing behind one that drops it here.
    pub stages: Vec<TraceStage>,
}

/// One stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceStage {
    /// Its name: `pod`, `source-check`, `service`, `route`, `translation`, `filter`, `source`, `fib`, `format`, `size`, `kernel-path`,
    /// `peer`, `counters`, `other-side`.
    pub stage: String,
    /// What it does with the packet.
    pub result: StageResult,
    /// What decides, for scripts: a reason to drop, a state, a kind; docs/json.md lists them.
    pub code: String,
    /// The same in words.
    pub reason: String,
    /// What to do; empty where nothing is to be done.
    pub remedy: String,
}

/// What a stage does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StageResult {
    /// It passes.
    Passes,
    /// That is not known.
    NotKnown,
    /// It is refused.
    Refuses,
}
