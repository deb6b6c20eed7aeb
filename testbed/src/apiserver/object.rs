//! What the API server makes of a Node that is sent to it: the rules of `k8s.io/kubernetes/pkg/registry/core/node` as far
//! as they concern who may change what.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::refusal::Refusal;

/// Which part of a Node a request changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Part {
    /// All but `status`.
    Whole,
    /// `status` and `metadata`, but not `spec`.
    Status,
}

/// A Node to be created.
pub(super) fn created(mut node: Value) -> Result<(String, Value), Refusal> {
    check_kind(&mut node)?;
    let name = node["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    if name.is_empty() {
        let why = "Required value: name or generateName is required";
        return Err(invalid("", "FieldValueRequired", "metadata.name", why));
    }
    if !is_subdomain(&name) {
        let why = format!(
            "Invalid value: {name:?}: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
                '-' or '.', and must start and end with an alphanumeric character"
        );
        return Err(invalid(&name, "FieldValueInvalid", "metadata.name", &why));
    }
    if present(&node["metadata"]["resourceVersion"]) {
        let message = "resourceVersion should not be set on objects to be created";
        return Err(Refusal::new(500, "", message));
    }
    node["metadata"]["uid"] = uid().into();
    node["metadata"]["creationTimestamp"] = now().into();
    Ok((name, normal(node)))
}

/// A Node that a test gives: taken as it is, completed where it has to be.
pub(super) fn given(mut node: Value, old: Option<&Value>) -> (String, Value) {
    strip(&mut node);
    let name = node["metadata"]["name"].as_str();
    let name = name.expect("a Node has a metadata.name").to_owned();
    for (field, new) in [("uid", uid as fn() -> String), ("creationTimestamp", now)] {
        if !present(&node["metadata"][field]) {
            let kept = old.map(|old| old["metadata"][field].clone());
            node["metadata"][field] = kept.unwrap_or_else(|| new().into());
        }
    }
    (name, normal(node))
}

/// A Node that replaces another one, which must not have changed since. Nothing means that it is the same.
pub(super) fn updated(
    name: &str,
    old: &Value,
    mut node: Value,
    part: Part,
) -> Result<Option<Value>, Refusal> {
    check_kind(&mut node)?;
    let named = node["metadata"]["name"].as_str().unwrap_or_default();
    if named != name {
        let message =
            format!("the name of the object ({named}) does not match the name on the URL ({name})");
        return Err(Refusal::bad_request(message));
    }
    let (before, metadata) = (&old["metadata"], &mut node["metadata"]);
    if present(&metadata["uid"]) && metadata["uid"] != before["uid"] {
        let why = format!(
            "Precondition failed: UID in precondition: {}, UID in object meta: {}",
            metadata["uid"].as_str().unwrap_or_default(),
            before["uid"].as_str().unwrap_or_default()
        );
        return Err(Refusal::conflict(name, &why));
    }
    if present(&metadata["resourceVersion"])
        && metadata["resourceVersion"] != before["resourceVersion"]
    {
        return Err(Refusal::stale(name));
    }
    for field in ["uid", "creationTimestamp", "resourceVersion"] {
        metadata[field] = before[field].clone();
    }
    let kept = if part == Part::Whole {
        "status"
    } else {
        "spec"
    };
    node[kept] = old[kept].clone();
    let node = normal(node);
    check_subnets(name, old, &node)?;
    Ok(Some(node).filter(|node| node != old))
}

/// `spec.podCIDRs` can be given once.
fn check_subnets(name: &str, old: &Value, node: &Value) -> Result<(), Refusal> {
    let before = &old["spec"]["podCIDRs"];
    let given = before.as_array().is_some_and(|before| !before.is_empty());
    if given && node["spec"]["podCIDRs"] != *before {
        let why = "Forbidden: node updates may not change podCIDR except from \"\" to valid";
        return Err(invalid(name, "FieldValueForbidden", "spec.podCIDRs", why));
    }
    Ok(())
}

/// As the server keeps it: without what says nothing, and with `podCIDR` the first of `podCIDRs`.
fn normal(mut node: Value) -> Value {
    for part in ["metadata", "spec", "status"] {
        if !node[part].is_object() {
            node[part] = json!({});
        }
    }
    for field in ["annotations", "labels", "finalizers", "ownerReferences"] {
        drop_empty(&mut node["metadata"], field);
    }
    // Go's zero times are null.
    let conditions = node
        .pointer_mut("/status/conditions")
        .and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        for time in ["lastHeartbeatTime", "lastTransitionTime"] {
            if condition.get(time).is_none() {
                condition[time] = Value::Null;
            }
        }
    }
    let spec = &mut node["spec"];
    drop_empty(spec, "podCIDR");
    drop_empty(spec, "podCIDRs");
    if let Some(first) = spec.get("podCIDR").cloned() {
        if spec.pointer("/podCIDRs/0") != Some(&first) {
            spec["podCIDRs"] = json!([first]);
        }
    } else if let Some(first) = spec.get("podCIDRs").map(|all| all[0].clone()) {
        spec["podCIDR"] = first;
    }
    node
}

fn drop_empty(object: &mut Value, field: &str) {
    let empty = object.get(field).is_some_and(|value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    });
    if let (true, Some(object)) = (empty, object.as_object_mut()) {
        object.remove(field);
    }
}

fn check_kind(node: &mut Value) -> Result<(), Refusal> {
    let kind = |field: &str| node[field].as_str().unwrap_or_default().to_owned();
    let (kind, version) = (kind("kind"), kind("apiVersion"));
    if !node.is_object()
        || !matches!(kind.as_str(), "" | "Node")
        || !matches!(version.as_str(), "" | "v1")
    {
        return Err(Refusal::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a Node: the kind must be Node, of v1"
        )));
    }
    strip(node);
    Ok(())
}

/// Nodes are kept without `kind` and `apiVersion`.
fn strip(node: &mut Value) {
    if let Some(node) = node.as_object_mut() {
        node.remove("kind");
        node.remove("apiVersion");
    }
}

fn present(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.is_empty())
}

/// RFC 1123, section 2.1, in lower case.
fn is_subdomain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= 253
        && name.split('.').all(|label| {
            let bytes = label.as_bytes();
            bytes.first().is_some_and(|&byte| plain(byte))
                && bytes.last().is_some_and(|&byte| plain(byte))
                && bytes.iter().all(|&byte| plain(byte) || byte == b'-')
        })
}

fn invalid(name: &str, cause: &'static str, field: &str, why: &str) -> Refusal {
    let mut details = json!({"kind": "Node"});
    if !name.is_empty() {
        details["name"] = name.into();
    }
    Refusal::invalid(&format!("Node {name:?}"), cause, field, why, details)
}

fn uid() -> String {
    let uid = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap();
    uid.trim().to_owned()
}

fn now() -> String {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    timestamp(seconds)
}

/// RFC 3339, UTC. The calendar by Howard Hinnant's `civil_from_days`.
pub(super) fn timestamp(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `date -u -d @SECONDS +%FT%TZ` says.
    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_600, "2025-01-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(timestamp(seconds), text);
        }
    }

    #[test]
    fn a_status_without_conditions_gets_none() {
        let node = normal(json!({"metadata": {"name": "n1"}, "spec": null}));
        assert_eq!(
            node,
            json!({"metadata": {"name": "n1"}, "spec": {}, "status": {}})
        );
    }

    #[test]
    fn names_are_subdomains() {
        for (name, right) in [
            ("n1", true),
            ("a.b-c.d", true),
            ("", false),
            ("A", false),
            ("-a", false),
            ("a..b", false),
        ] {
            assert_eq!(is_subdomain(name), right, "{name}");
        }
    }
}
