//! The agent's socket: one line of JSON there, one back. The agent answers every [`Request`]; the plugin makes three of
//! them ([`Request::adopt`], [`Request::release`], [`Request::Ready`]). The answers' values are the agent's.

use serde::{Deserialize, Serialize};

use crate::protocol::AttachmentKey;

/// A request, `{"call":"…",…}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The state of the node.
    Status,
    /// The other nodes.
    Peers,
    /// Where packets go.
    Routes,
    /// The attachments.
    Pods,
    /// Packets dropped.
    Drops,
    /// All counters of traffic at one moment.
    Top {
        /// Flows, the heaviest of late first, at most so many. More than 0 has the workers count flows for some seconds.
        flows: usize,
    },
    /// What becomes of a packet of a pod, stage by stage.
    Trace {
        /// The pod, by name or address.
        from: String,
        /// The other end: a pod of this node by name, or an address.
        to: String,
        /// The source address, where it is not the pod's own.
        source: Option<std::net::IpAddr>,
        /// IANA protocol number.
        protocol: u8,
        /// The destination port; 0 where the protocol has none.
        port: u16,
        /// Bytes of the packet, its IP header included.
        size: u16,
        /// It must not be fragmented.
        dont_fragment: bool,
    },
    /// What these other nodes say is wrong with them.
    Reports {
        /// Their names.
        peers: Vec<String>,
    },
    /// Packets as the workers see them. Behind the line of the answer the connection goes on: with the packets, until the
    /// caller ends its side of it.
    Capture {
        /// At these stages, by name.
        stages: Vec<String>,
        /// Of these pods, by name or address; none: of all.
        pods: Vec<String>,
        /// To and from these peers, by name or address; none: all.
        peers: Vec<String>,
        /// Drops for these reasons, by name; none: for all.
        reasons: Vec<String>,
        /// Bytes of each packet at most.
        snap_length: u32,
        /// Of drops a sample that has every reason.
        sampled: bool,
    },
    /// Whether an ADD would be served; an error, too, while packets of pods are not forwarded as they should be.
    Ready,
    /// Deliver to an attachment whose record is written. Answered once every worker would.
    Adopt {
        /// The runtime's container id.
        container: String,
        /// Name of the interface inside the pod.
        ifname: String,
    },
    /// Adopt the list of nodes that is held back, if one is.
    AdoptList,
    /// Have the service of another program take the place of this one. Behind the line of the answer the connection goes on: with
    /// a line for each step, until the last.
    Upgrade {
        /// Path of the program; none: the file by which the agent was started.
        program: Option<String>,
    },
    /// Hand everything over to the agent that asks. Behind the line of the answer the connection goes on: with the end of a
    /// channel between the two keepers, or a line that says why not.
    HandOver {
        /// Its name among the agents of the node.
        instance: String,
        /// Its version.
        version: String,
        /// Which messages between keepers it understands.
        format: u32,
        /// Its service cannot start beside the one that runs, which is to end before: packets wait meanwhile.
        ends_first: bool,
    },
    /// Forget an attachment whose record is removed.
    Release {
        /// The runtime's container id.
        container: String,
        /// Name of the interface inside the pod.
        ifname: String,
    },
}

/// A reply, `{"ok":…}` or `{"error":"…"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// What was asked for.
    Ok(serde_json::Value),
    /// Why not, with the remedy.
    Error(String),
}

impl Request {
    /// `adopt` for this attachment.
    pub fn adopt(key: &AttachmentKey) -> Request {
        let AttachmentKey { container, ifname } = key.clone();
        Request::Adopt { container, ifname }
    }

    /// `release` for this attachment.
    pub fn release(key: &AttachmentKey) -> Request {
        let AttachmentKey { container, ifname } = key.clone();
        Request::Release { container, ifname }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_this_line() {
        let key = AttachmentKey {
            container: "c1".to_owned(),
            ifname: "eth0".to_owned(),
        };
        for (request, line) in [
            (Request::Status, r#"{"call":"status"}"#),
            (Request::Peers, r#"{"call":"peers"}"#),
            (Request::Routes, r#"{"call":"routes"}"#),
            (Request::Pods, r#"{"call":"pods"}"#),
            (Request::Drops, r#"{"call":"drops"}"#),
            (Request::Top { flows: 5 }, r#"{"call":"top","flows":5}"#),
            (Request::Ready, r#"{"call":"ready"}"#),
            (
                Request::HandOver {
                    instance: "b".to_owned(),
                    version: "1".to_owned(),
                    format: 1,
                    ends_first: false,
                },
                r#"{"call":"hand-over","instance":"b","version":"1","format":1,"ends_first":false}"#,
            ),
            (
                Request::Trace {
                    from: "default/web".to_owned(),
                    to: "10.244.2.3".to_owned(),
                    source: None,
                    protocol: 6,
                    port: 80,
                    size: 60,
                    dont_fragment: true,
                },
                r#"{"call":"trace","from":"default/web","to":"10.244.2.3","source":null,"protocol":6,"port":80,"size":60,"dont_fragment":true}"#,
            ),
            (
                Request::Reports {
                    peers: vec!["node2".to_owned()],
                },
                r#"{"call":"reports","peers":["node2"]}"#,
            ),
            (
                Request::Capture {
                    stages: vec!["sent".to_owned()],
                    pods: vec![],
                    peers: vec!["node2".to_owned()],
                    reasons: vec![],
                    snap_length: 256,
                    sampled: false,
                },
                r#"{"call":"capture","stages":["sent"],"pods":[],"peers":["node2"],"reasons":[],"snap_length":256,"sampled":false}"#,
            ),
            (
                Request::Upgrade {
                    program: Some("/x".to_owned()),
                },
                r#"{"call":"upgrade","program":"/x"}"#,
            ),
            (
                Request::adopt(&key),
                r#"{"call":"adopt","container":"c1","ifname":"eth0"}"#,
            ),
            (
                Request::release(&key),
                r#"{"call":"release","container":"c1","ifname":"eth0"}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&request).unwrap(), line);
            assert_eq!(serde_json::from_str::<Request>(line).unwrap(), request);
        }
        for wrong in [
            r#"{"call":"format"}"#,
            r#"{"call":"adopt","container":"c1"}"#,
            "{}",
            "[]",
        ] {
            assert!(serde_json::from_str::<Request>(wrong).is_err(), "{wrong}");
        }
    }

    /// By these words a plugin knows an agent that is older than its request (`status.rs`).
    #[test]
    fn an_unknown_request_is_refused_as_an_unknown_variant() {
        let error = serde_json::from_str::<Request>(r#"{"call":"new"}"#).unwrap_err();
        assert!(error.to_string().contains("unknown variant"), "{error}");
    }

    #[test]
    fn replies_are_ok_or_error() {
        let ok = serde_json::to_string(&Reply::Ok(serde_json::json!({}))).unwrap();
        assert_eq!(ok, r#"{"ok":{}}"#);
        let error = serde_json::to_string(&Reply::Error("no".into())).unwrap();
        assert_eq!(error, r#"{"error":"no"}"#);
    }
}
