//! The requests that this registry makes: list and watch Nodes, patch the status of its own.
//!
//! Every request has a time limit and every answer a length limit. A list comes in pages, so that what is in memory at one
//! time does not grow with the cluster.

use std::io;
use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::{AsyncBufRead, AsyncBufReadExt};
use kube::Client;
use kube::api::{GetParams, ListParams, Patch, PatchParams, WatchParams};
use kube::core::Request;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::node::{Node, NodePage, PageMetadata};
use super::session::sentence;
use super::watch::Watch;

/// A body as it arrives.
pub(super) type Body = Pin<Box<dyn AsyncBufRead + Send>>;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    /// The server refused it, or could not be reached.
    #[error("{}", sentence(.0))]
    Request(kube::Error),
    /// An error that came as an event of a watch.
    #[error("the API ends the watch with {code}: {message}")]
    Event { code: u16, message: String },
    /// No complete answer in time.
    #[error("the API does not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The connection ended within an answer.
    #[error("the connection to the API broke: {0}")]
    Broken(io::Error),
    /// An answer that no cluster gives.
    #[error("the API's answer is longer than {0} bytes")]
    TooLong(usize),
    /// An answer of another kind.
    #[error("the API's answer is not what a Kubernetes API server answers: {0}")]
    Json(serde_json::Error),
    /// A list or an object without version cannot be watched.
    #[error("the API's answer has no resourceVersion")]
    NoVersion,
}

impl ApiError {
    /// The HTTP status code of the answer, where there was one.
    pub(super) fn code(&self) -> Option<u16> {
        match self {
            ApiError::Request(kube::Error::Api(status)) => Some(status.code),
            ApiError::Event { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// How long the server asks to wait before another request, at most [`LONGEST_ASKED`].
    pub(super) fn asked_to_wait(&self) -> Option<Duration> {
        let ApiError::Request(kube::Error::Api(status)) = self else {
            return None;
        };
        let seconds = status.details.as_ref()?.retry_after_seconds;
        let asked = Duration::from_secs(seconds.into()).min(LONGEST_ASKED);
        (seconds > 0).then_some(asked)
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
    nodes: Request,
}

impl Api {
    pub(super) fn new(client: Client) -> Api {
        let nodes = Request::new("/api/v1/nodes");
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
            let body = self.client.request_stream(request);
            let page: NodePage = within(LIST_PAGE, answer(body, MOST_PAGE)).await?;
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
        let body = within(SHORT, async {
            let body = self.client.request_stream(request).await;
            body.map_err(ApiError::Request)
        });
        Ok(Watch::over(Box::pin(body.await?)))
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
        let body = self.client.request_stream(request.map_err(unbuildable)?);
        within(SHORT, answer(body, MOST_NODE)).await
    }

    /// One pod.
    ///
    /// # Errors
    /// [`ApiError`].
    pub(super) async fn pod(&self, namespace: &str, name: &str) -> Result<Pod, ApiError> {
        let pods = Request::new(format!("/api/v1/namespaces/{namespace}/pods"));
        let request = pods.get(name, &GetParams::default()).map_err(unbuildable)?;
        let body = self.client.request_stream(request);
        within(SHORT, answer(body, MOST_NODE)).await
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

/// Reads one answer as JSON.
async fn answer<T: DeserializeOwned>(
    body: impl Future<Output = Result<impl AsyncBufRead, kube::Error>>,
    most: usize,
) -> Result<T, ApiError> {
    let mut body = pin!(body.await.map_err(ApiError::Request)?);
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

async fn within<T>(
    limit: Duration,
    request: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    match timeout(limit, request).await {
        Ok(answer) => answer,
        Err(_) => Err(ApiError::Timeout(limit)),
    }
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
/// Of connecting and the first answer, or of a small answer as a whole.
const SHORT: Duration = Duration::from_secs(5);
/// Of a page of the list.
const LIST_PAGE: Duration = Duration::from_secs(15);
/// After this time the server ends a watch, and we go on from the last version. kube's own limit is 295.
const WATCH_SECONDS: u32 = 290;
const LONGEST_ASKED: Duration = Duration::from_secs(30);
/// Of the fields that are patched, in `managedFields`.
const MANAGER: &str = "tartan";
