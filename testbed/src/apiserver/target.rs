//! What a request is about, as the API server's `RequestInfo` says it.

use axum::http::Method;

use super::query::Options;

/// What a path leads to.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Target {
    Nodes,
    Node(String),
    NodeStatus(String),
    /// What is below `/api/v1` and not served.
    NoResource,
    /// `/api`, `/apis`, `/api/v1`.
    Discovery,
    /// `/version` and the pages of health, which all may read.
    Open,
    /// What a test asks of this server alone.
    Test(String),
    NoPage,
}

/// A request.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) target: Target,
    pub(super) verb: &'static str,
    pub(super) path: String,
    /// The one Node that a list or a watch can be of.
    pub(super) only: Option<String>,
}

impl Asked {
    pub(super) fn of(method: &Method, path: &str, options: &Options) -> Self {
        let target = Target::of(path);
        Asked {
            verb: verb(method, &target, options),
            target,
            path: path.to_owned(),
            only: options.only().map(str::to_owned),
        }
    }
}

impl Target {
    pub(super) fn of(path: &str) -> Self {
        let parts: Vec<_> = path.trim_matches('/').split('/').collect();
        match parts.as_slice() {
            ["api", "v1", "nodes"] => Target::Nodes,
            ["api", "v1", "nodes", name] => Target::Node((*name).to_owned()),
            ["api", "v1", "nodes", name, "status"] => Target::NodeStatus((*name).to_owned()),
            ["api" | "apis"] | ["api", "v1"] => Target::Discovery,
            ["api", "v1", ..] => Target::NoResource,
            ["version" | "healthz" | "livez" | "readyz"] => Target::Open,
            ["test", action] => Target::Test((*action).to_owned()),
            _ => Target::NoPage,
        }
    }

    /// As a right names it.
    pub(super) fn resource(&self) -> &'static str {
        match self {
            Target::Nodes | Target::Node(_) => "nodes",
            Target::NodeStatus(_) => "nodes/status",
            _ => "",
        }
    }

    /// The name of the Node, an empty one for all of them; nothing where it is not about Nodes.
    pub(super) fn node_or<'a>(&'a self, only: Option<&'a str>) -> Option<&'a str> {
        match self {
            Target::Nodes => Some(only.unwrap_or_default()),
            Target::Node(name) | Target::NodeStatus(name) => Some(name),
            _ => None,
        }
    }
}

fn verb(method: &Method, target: &Target, options: &Options) -> &'static str {
    let one = !matches!(target, Target::Nodes);
    match method.as_str() {
        "GET" if one => "get",
        "GET" if options.watch => "watch",
        "GET" => "list",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" if one => "delete",
        "DELETE" => "deletecollection",
        _ => "",
    }
}
