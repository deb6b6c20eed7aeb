//! The requests that this registry makes: list and watch Nodes, patch the status of its own.
//!
//! Every request has a time limit and every answer a length limit. A list comes in pages, so that what is in memory at one
//! time does not grow with the cluster.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use futures_util::{AsyncBufRead, AsyncBufReadExt, TryStreamExt};
use http::header::RETRY_AFTER;
use http::{Request, Response};
use http_body_util::{BodyDataStream, BodyExt, Limited};
use kube::Client;
use kube::api::{GetParams, ListParams, Patch, PatchParams, WatchParams};
use kube::core::Status;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::node::{Node, NodeConditions, NodePage, NodeStatus, PageMetadata};
use super::session::CONNECT;
use super::watch::Watch;
use crate::causes::causes;
use crate::registry::foreign_text::excerpt;
use crate::registry::transport::{Remedies, in_words};

/// A body as it arrives.
pub(super) type Body = Pin<Box<dyn AsyncBufRead + Send>>;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    /// The request could not be made, or the server not be reached.
    #[error("{}", unwrapped(.0))]
    Request(kube::Error),
    /// The server refuses it.
    #[error("the API answers {code}: {message}")]
    Answer {
        code: u16,
        message: String,
        /// `Retry-After`.
        wait: Option<Duration>,
    },
    /// An error that came as an event of a watch.
    #[error("the API ends the watch with {code}: {}", excerpt(message, MOST_SHOWN))]
    Event { code: u16, message: String },
    /// No complete answer in time.
    #[error("the API does not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The connection ended within an answer.
    #[error("the connection to the API broke: {}", excerpt(&.0.to_string(), MOST_SHOWN))]
    Broken(io::Error),
    /// An answer that no cluster gives.
    #[error("the API's answer is longer than {0} bytes")]
    TooLong(usize),
    /// An answer of another kind.
    #[error("the API's answer is not what a Kubernetes API server answers: {}", excerpt(&.0.to_string(), MOST_SHOWN))]
    Json(serde_json::Error),
    /// A list or an object without version cannot be watched.
    #[error("the API's answer has no resourceVersion")]
    NoVersion,
}

impl ApiError {
    /// The HTTP status code of the answer, where there was one.
    pub(super) fn code(&self) -> Option<u16> {
        match self {
            ApiError::Answer { code, .. } | ApiError::Event { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// How long the server asks to wait before another request, at most [`LONGEST_ASKED`].
    pub(super) fn asked_to_wait(&self) -> Option<Duration> {
        match self {
            ApiError::Answer { wait, .. } => wait.map(|wait| wait.min(LONGEST_ASKED)),
            _ => None,
        }
    }
}

/// All Nodes, and the version from which a watch goes on.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) nodes: Vec<Node>,
    pub(super) version: String,
}

/// The Nodes of one API server.
#[derive(Clone)]
pub(super) struct Api {
    client: Client,
    nodes: kube::core::Request,
}

impl Api {
    pub(super) fn new(client: Client) -> Api {
        let nodes = kube::core::Request::new("/api/v1/nodes");
        Api { client, nodes }
    }

    /// All Nodes. The pages are those of one version of the list; a server that no longer has it answers 410.
    ///
    /// # Errors
    /// [`ApiError`].
    pub(super) async fn list(&self) -> Result<Listing, ApiError> {
        let mut nodes = Vec::new();
        let mut params = ListParams::default().limit(PAGE);
        for _ in 0..MOST_PAGES {
            let request = self.nodes.list(&params).map_err(unbuildable)?;
            let page: NodePage = within(LIST_PAGE, self.answer(request, MOST_PAGE)).await?;
            nodes.extend(page.items);
            let PageMetadata {
                resource_version: version,
                next,
            } = page.metadata;
            match next.is_empty() {
                false => params.continue_token = Some(next),
                true if version.is_empty() => return Err(ApiError::NoVersion),
                true => return Ok(Listing { nodes, version }),
            }
        }
        Err(ApiError::TooLong(MOST_PAGE))
    }

    /// The version of the list that is the latest now, for little.
    ///
    /// # Errors
    /// [`ApiError`].
    pub(super) async fn newest(&self) -> Result<String, ApiError> {
        let params = ListParams::default().limit(1);
        let request = self.nodes.list(&params).map_err(unbuildable)?;
        let page: NodePage = within(SHORT, self.answer(request, MOST_PAGE)).await?;
        Ok(page.metadata.resource_version)
    }

    /// The changes after `version`, which must not be empty: the server would begin with any state it has.
    ///
    /// # Errors
    /// [`ApiError`].
    pub(super) async fn watch(&self, version: &str) -> Result<Watch, ApiError> {
        if version.is_empty() {
            return Err(ApiError::NoVersion);
        }
        let params = WatchParams::default().timeout(WATCH_SECONDS);
        let request = self.nodes.watch(&params, version).map_err(unbuildable)?;
        Ok(Watch::over(within(SHORT, self.open(request)).await?))
    }

    /// Applies a strategic merge patch to the status of the Node `name`. Returns the Node after it.
    ///
    /// # Errors
    /// [`ApiError`].
    pub(super) async fn patch_status(
        &self,
        name: &str,
        patch: &serde_json::Value,
    ) -> Result<Node, ApiError> {
        let params = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Strategic(patch);
        let request = self
            .nodes
            .patch_subresource("status", name, &params, &patch);
        let request = request.map_err(unbuildable)?;
        within(SHORT, self.answer(request, MOST_NODE)).await
    }

    /// The conditions of the Node `name`.
    ///
    /// # Errors
    /// [`ApiError`].
    pub(super) async fn conditions(&self, name: &str) -> Result<NodeConditions, ApiError> {
        let request = self.nodes.get(name, &GetParams::default());
        let request = request.map_err(unbuildable)?;
        let node: NodeStatus = within(SHORT, self.answer(request, MOST_NODE)).await?;
        Ok(node.status)
    }

    /// One pod.
    ///
    /// # Errors
    /// [`ApiError`].
    pub(super) async fn pod(&self, namespace: &str, name: &str) -> Result<Pod, ApiError> {
        let pods = kube::core::Request::new(format!("/api/v1/namespaces/{namespace}/pods"));
        let request = pods.get(name, &GetParams::default()).map_err(unbuildable)?;
        within(SHORT, self.answer(request, MOST_NODE)).await
    }

    /// Reads one answer as JSON.
    async fn answer<T: DeserializeOwned>(
        &self,
        request: Request<Vec<u8>>,
        most: usize,
    ) -> Result<T, ApiError> {
        let mut body = self.open(request).await?;
        let mut text = Vec::new();
        loop {
            let chunk = body.fill_buf().await.map_err(ApiError::Broken)?;
            if chunk.is_empty() {
                return serde_json::from_slice(&text).map_err(ApiError::Json);
            }
            if chunk.len() > most.saturating_sub(text.len()) {
                return Err(ApiError::TooLong(most));
            }
            text.extend_from_slice(chunk);
            let read = chunk.len();
            body.consume_unpin(read);
        }
    }

    /// Sends a request. Returns the body of an answer that is no error.
    async fn open(&self, request: Request<Vec<u8>>) -> Result<Body, ApiError> {
        let sent = self.client.send(request.map(kube::client::Body::from));
        let answer = sent.await.map_err(ApiError::Request)?;
        if !answer.status().is_success() {
            return Err(refusal(answer).await);
        }
        let body = BodyDataStream::new(answer.into_body());
        Ok(Box::pin(body.map_err(io::Error::other).into_async_read()))
    }
}

/// The part of a pod that is read (Kubernetes API, `core/v1 Pod`).
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub(super) struct Pod {
    pub(super) spec: PodSpec,
}

/// The kept part of `spec`.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodSpec {
    /// The Node that it runs on, empty until it is scheduled.
    pub(super) node_name: String,
}

/// Reads an error: a Status, or what a proxy or an overloaded server writes instead.
async fn refusal(answer: Response<kube::client::Body>) -> ApiError {
    let code = answer.status().as_u16();
    let wait = answer.headers().get(RETRY_AFTER);
    let wait = wait.and_then(|value| value.to_str().ok()?.parse().ok());
    let body = Limited::new(answer.into_body(), MOST_REFUSAL)
        .collect()
        .await;
    let text = body.map(|body| body.to_bytes()).unwrap_or_default();
    let message = match serde_json::from_slice::<Status>(&text) {
        _ if (300..400).contains(&code) => REDIRECTS.to_owned(),
        Ok(status) if !status.message.is_empty() => status.message,
        _ => {
            let text = String::from_utf8_lossy(&text).into_owned();
            in_words(&text, false, CONNECT.as_secs(), &REMEDIES).unwrap_or(text)
        }
    };
    ApiError::Answer {
        code,
        message: excerpt(message.trim(), MOST_SHOWN),
        wait: wait.map(Duration::from_secs),
    }
}

async fn within<T>(
    limit: Duration,
    request: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    match timeout(limit, request).await {
        Ok(answer) => answer,
        Err(_) => Err(ApiError::Timeout(limit)),
    }
}

/// What kube wraps in names of its own.
fn unwrapped(error: &kube::Error) -> String {
    let text = match error {
        kube::Error::Service(source) => causes(source.as_ref()),
        other => causes(other),
    };
    // A URL of http:// gets an answer of HTTP where TLS is expected, and none of TLS's words.
    let known = in_words(&text, true, CONNECT.as_secs(), &REMEDIES);
    known.map_or_else(
        || excerpt(&text, MOST_SHOWN),
        |known| format!("the API server cannot be reached: {known}"),
    )
}

fn unbuildable(error: kube::core::request::Error) -> ApiError {
    ApiError::Request(kube::Error::BuildRequest(error))
}

/// Nodes a page: 5 MB where a Node has 10 KB.
const PAGE: u32 = 500;
/// 100,000 Nodes, twenty times what a cluster may have (Kubernetes, "Considerations for large clusters").
const MOST_PAGES: usize = 200;
/// Bytes. etcd holds no object above 1.5 MiB.
const MOST_PAGE: usize = 128 << 20;
const MOST_NODE: usize = 4 << 20;
const MOST_REFUSAL: usize = 64 << 10;
const REMEDIES: Remedies = Remedies {
    trust: "certificate-authority of the kubeconfig",
    identity: "client-certificate and client-key of the kubeconfig",
    server: "kube-api-url or the kubeconfig",
};
/// Credentials go to the server that the configuration names, and to no other.
const REDIRECTS: &str =
    "it redirects elsewhere, which is not followed: set kube-api-url to the API server itself";
/// Characters; the API's sentences are shorter.
const MOST_SHOWN: usize = 400;
/// Of connecting and the first answer, or of a small answer as a whole.
const SHORT: Duration = Duration::from_secs(5);
/// Of a page of the list.
const LIST_PAGE: Duration = Duration::from_secs(15);
/// After this time the server ends a watch, and we go on from the last version. kube's own limit is 295.
const WATCH_SECONDS: u32 = 290;
const LONGEST_ASKED: Duration = Duration::from_secs(30);
/// Of the fields that are patched, in `managedFields`.
const MANAGER: &str = "tartan";

#[cfg(test)]
mod tests {
    use super::*;

    /// serde names the text that it found, whatever its length.
    #[test]
    fn an_answer_of_another_kind_is_repeated_in_part() {
        let text = format!("{{\"items\":\"\\u001b[31m\\n{}\"}}", "x".repeat(1 << 20));
        let fault = serde_json::from_str::<NodePage>(&text).unwrap_err();
        let sentence = ApiError::Json(fault).to_string();
        assert!(sentence.len() < 600, "{}", sentence.len());
        assert!(!sentence.contains(char::is_control), "{sentence:?}");
        let message = "too old\nERROR \u{1b}[31m".to_owned();
        let event = ApiError::Event { code: 410, message };
        assert_eq!(
            event.to_string(),
            "the API ends the watch with 410: too old ERROR  [31m"
        );
    }
}
