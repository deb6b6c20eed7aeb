//! What kubectl asks before it asks for Nodes: which groups, versions and resources there are.

use serde_json::{Value, json};

/// The answer to a path of discovery, or `/version`.
pub(super) fn answer(path: &str) -> Value {
    match path.trim_matches('/') {
        "version" => json!({
            "major": "1", "minor": "32", "gitVersion": "v1.32.0+tartan-test", "gitCommit": "", "gitTreeState": "clean",
            "buildDate": "2025-01-01T00:00:00Z", "goVersion": "", "compiler": "", "platform": "linux/amd64",
        }),
        "api" => json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}],
        }),
        "apis" => json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": []}),
        _ => json!({
            "kind": "APIResourceList", "groupVersion": "v1",
            "resources": [
                {
                    "name": "nodes", "singularName": "node", "namespaced": false, "kind": "Node", "shortNames": ["no"],
                    "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
                },
                {
                    "name": "nodes/status", "singularName": "", "namespaced": false, "kind": "Node",
                    "verbs": ["get", "patch", "update"],
                },
            ],
        }),
    }
}
