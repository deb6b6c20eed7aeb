//! The parts of the API's Node that this registry reads; every other field is skipped while it is parsed.
//!
//! A Node as kubelet and the cloud write it has 10 KB and more, nearly all of it in `status` and `managedFields`. What is
//! kept of one is a few hundred bytes, so a page of a list is the largest thing in memory.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::annotations;

/// One Node (Kubernetes API, `core/v1 Node`).
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub(super) struct Node {
    /// `metadata`.
    #[serde(deserialize_with = "or_default")]
    pub(super) metadata: Metadata,
    /// `spec`.
    #[serde(deserialize_with = "or_default")]
    pub(super) spec: Spec,
}

/// The kept part of `metadata`.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Metadata {
    /// Name, unique in the cluster.
    #[serde(deserialize_with = "or_default")]
    pub(super) name: String,
    /// Differs when a Node is deleted and created again under the same name.
    #[serde(deserialize_with = "or_default")]
    pub(super) uid: String,
    /// Version of this state of the object.
    #[serde(deserialize_with = "or_default")]
    pub(super) resource_version: String,
    /// RFC 3339 in UTC with whole seconds: texts compare as the times do.
    #[serde(deserialize_with = "or_default")]
    pub(super) creation_timestamp: String,
    /// The annotations whose names flannel uses under one prefix or another.
    #[serde(deserialize_with = "or_default")]
    pub(super) annotations: Annotations,
}

/// The kept part of `spec`.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub(super) struct Spec {
    /// The pod subnets, at most one of each family.
    #[serde(rename = "podCIDRs", deserialize_with = "or_default")]
    pod_cidrs: Vec<String>,
    /// The first of them, alone where the API server is older than 1.16.
    #[serde(rename = "podCIDR", deserialize_with = "or_default")]
    pod_cidr: String,
}

impl Spec {
    /// The pod subnets as written; empty while none is assigned.
    pub(super) fn pod_cidrs(&self) -> &[String] {
        match self.pod_cidrs.is_empty() {
            true if self.pod_cidr.is_empty() => &[],
            true => std::slice::from_ref(&self.pod_cidr),
            false => &self.pod_cidrs,
        }
    }
}

/// Annotations by name. Those that flannel does not use are not kept; null counts as none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Annotations(Vec<(Box<str>, Box<str>)>);

impl Annotations {
    /// The value of an annotation; the last one where a name comes twice.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().rfind(|(key, _)| **key == *name);
        found.map(|(_, value)| &**value)
    }

    /// A set of annotations with these names and values.
    #[cfg(test)]
    pub(super) fn of<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Annotations {
        let owned = |(name, value): (&str, &str)| (name.into(), value.into());
        Annotations(pairs.into_iter().map(owned).collect())
    }
}

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Annotations, D::Error> {
        deserializer.deserialize_map(OfFlannel)
    }
}

struct OfFlannel;

impl<'de> Visitor<'de> for OfFlannel {
    type Value = Annotations;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of annotations")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Annotations, A::Error> {
        let mut kept = Vec::new();
        while let Some(name) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            if annotations::may_be_ours(&name) && kept.len() < MOST_KEPT {
                kept.push((name.into(), map.next_value()?));
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Annotations(kept))
    }
}

/// A Node that is read for its conditions. (Those of all Nodes are never kept.)
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct NodeStatus {
    /// `status`.
    #[serde(deserialize_with = "or_default")]
    pub(super) status: NodeConditions,
}

/// The kept part of `status`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct NodeConditions {
    /// The condition of type `NetworkUnavailable`, where there is one.
    #[serde(rename = "conditions", deserialize_with = "network_unavailable")]
    pub(super) network_unavailable: Option<Condition>,
}

/// The kept part of a condition.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct Condition {
    #[serde(rename = "type", deserialize_with = "or_default")]
    kind: String,
    /// `True`, `False` or `Unknown`.
    #[serde(deserialize_with = "or_default")]
    pub(super) status: String,
    /// One word for programs.
    #[serde(deserialize_with = "or_default")]
    pub(super) reason: String,
}

fn network_unavailable<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Condition>, D::Error> {
    let all: Vec<Condition> = or_default(deserializer)?;
    Ok(all.into_iter().find(|one| one.kind == "NetworkUnavailable"))
}

/// One page of a list of Nodes.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct NodePage {
    /// `metadata` of the list.
    pub(super) metadata: PageMetadata,
    /// The Nodes of this page.
    #[serde(deserialize_with = "or_default")]
    pub(super) items: Vec<Node>,
}

/// `metadata` of a list.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PageMetadata {
    /// The version of the whole list, from which a watch goes on.
    pub(super) resource_version: String,
    /// Where the next page begins; empty on the last one.
    #[serde(rename = "continue", deserialize_with = "or_default")]
    pub(super) next: String,
}

/// One line of a watch.
#[derive(Debug, serde::Deserialize)]
pub(super) struct WatchLine {
    /// What happened.
    #[serde(rename = "type")]
    pub(super) kind: EventKind,
    /// The Node after it, before its deletion, or a Status.
    pub(super) object: WatchedObject,
}

/// `type` of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum EventKind {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

/// `object` of an event: a Node, or for [`EventKind::Error`] a Status.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct WatchedObject {
    metadata: Metadata,
    #[serde(deserialize_with = "or_default")]
    spec: Spec,
    /// HTTP status code of a Status.
    pub(super) code: u16,
    /// The sentence of a Status.
    pub(super) message: String,
}

impl WatchedObject {
    /// The Node.
    pub(super) fn into_node(self) -> Node {
        Node {
            metadata: self.metadata,
            spec: self.spec,
        }
    }
}

/// Null is as good as no key, as Go reads it.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Of one Node; flannel has ten names, and a cluster in which prefixes were changed has a few sets of them.
const MOST_KEPT: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_read_is_kept() {
        let node: Node = serde_json::from_str(
            r#"{"kind":"Node","metadata":{"name":"n1","uid":"u","resourceVersion":"7",
                "creationTimestamp":"2026-01-02T03:04:05Z","labels":{"a":"b"},"managedFields":[{"manager":"x"}],
                "annotations":{"flannel.alpha.coreos.com/public-ip":"192.0.2.1","node.alpha.kubernetes.io/ttl":"0"}},
                "spec":{"podCIDR":"10.244.1.0/24","podCIDRs":["10.244.1.0/24"],"taints":[{"key":"x"}]},
                "status":{"images":[{"names":["a"],"sizeBytes":1}]}}"#,
        )
        .unwrap();
        assert_eq!(node.metadata.name, "n1");
        assert_eq!(node.spec.pod_cidrs(), ["10.244.1.0/24"]);
        let kept = &node.metadata.annotations;
        assert_eq!(
            kept.get("flannel.alpha.coreos.com/public-ip"),
            Some("192.0.2.1")
        );
        assert_eq!(kept.0.len(), 1);
    }

    /// flannel assigns to the nil map of a Node that has no annotations, and panics.
    #[test]
    fn nil_annotations_do_not_panic() {
        for metadata in [r#"{"name":"n1"}"#, r#"{"name":"n1","annotations":null}"#] {
            let text = format!(r#"{{"metadata":{metadata},"spec":null}}"#);
            let node: Node = serde_json::from_str(&text).unwrap();
            assert_eq!(node.metadata.annotations, Annotations::default());
            assert!(node.spec.pod_cidrs().is_empty());
        }
    }

    /// One of them must not cost the list of all.
    #[test]
    fn null_is_no_fault_of_a_node() {
        for node in [
            r#"{"metadata":null}"#,
            r#"{"metadata":{"name":null,"uid":null,"resourceVersion":null}}"#,
        ] {
            assert_eq!(serde_json::from_str::<Node>(node).unwrap(), Node::default());
        }
    }

    #[test]
    fn a_single_pod_cidr_counts_where_there_is_no_list() {
        let spec = |text: &str| serde_json::from_str::<Spec>(text).unwrap();
        assert_eq!(
            spec(r#"{"podCIDR":"10.244.1.0/24"}"#).pod_cidrs(),
            ["10.244.1.0/24"]
        );
        assert!(
            spec(r#"{"podCIDR":"","podCIDRs":null}"#)
                .pod_cidrs()
                .is_empty()
        );
    }

    #[test]
    fn the_annotations_of_one_node_are_bounded() {
        let many: Vec<_> = (0..200)
            .map(|i| format!(r#""p{i}.example/public-ip":"192.0.2.1""#))
            .collect();
        let text = format!("{{{}}}", many.join(","));
        let kept: Annotations = serde_json::from_str(&text).unwrap();
        assert_eq!(kept.0.len(), MOST_KEPT);
    }

    #[test]
    fn of_the_conditions_that_of_the_network_is_kept() {
        let read = |text: &str| serde_json::from_str::<NodeStatus>(text).unwrap().status;
        let found = read(
            r#"{"metadata":{"name":"n1"},"status":{"conditions":[{"type":"Ready","status":"True"},
                {"type":"NetworkUnavailable","status":"False","reason":"FlannelIsUp","message":"m"}]}}"#,
        );
        let network = found.network_unavailable.unwrap();
        assert_eq!(
            (&*network.status, &*network.reason),
            ("False", "FlannelIsUp")
        );
        for none in [
            r#"{"metadata":{"name":"n1"}}"#,
            r#"{"status":null}"#,
            r#"{"status":{"conditions":null}}"#,
            r#"{"status":{"conditions":[{"type":"Ready","status":null}]}}"#,
        ] {
            assert!(read(none).network_unavailable.is_none(), "{none}");
        }
    }

    #[test]
    fn an_error_of_a_watch_has_the_code_of_its_status() {
        let line: WatchLine = serde_json::from_str(
            r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",
                "message":"too old resource version: 1 (9)","reason":"Expired","code":410}}"#,
        )
        .unwrap();
        assert_eq!((line.kind, line.object.code), (EventKind::Error, 410));
    }
}
