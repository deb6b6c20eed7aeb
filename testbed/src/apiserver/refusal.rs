//! What the API server answers where it does not do what was asked: an HTTP status and an object `Status`, with the
//! words of `k8s.io/apimachinery/pkg/api/errors`.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::{Value, json};

/// A request that is refused.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: u16,
    /// A word for programs; empty where the real server has none.
    reason: &'static str,
    message: String,
    details: Option<Value>,
    /// A token with which an expired list may go on.
    go_on: Option<String>,
    /// Seconds.
    retry_after: Option<u64>,
}

impl Refusal {
    pub(super) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Refusal {
            code,
            reason,
            message: message.into(),
            details: None,
            go_on: None,
            retry_after: None,
        }
    }

    fn details(mut self, details: Value) -> Self {
        self.details = Some(details);
        self
    }

    /// With a header `Retry-After`, seconds.
    pub(super) fn retry_after(mut self, seconds: Option<u64>) -> Self {
        self.retry_after = seconds;
        self
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Refusal::new(400, "BadRequest", message)
    }

    pub(super) fn unauthorized() -> Self {
        Refusal::new(401, "Unauthorized", "Unauthorized")
    }

    /// `whom` may not do `what`.
    pub(super) fn forbidden(message: String, details: Value) -> Self {
        Refusal::new(403, "Forbidden", message).details(details)
    }

    pub(super) fn not_found(name: &str) -> Self {
        Refusal::new(404, "NotFound", format!("nodes {name:?} not found")).details(node(name))
    }

    pub(super) fn no_resource() -> Self {
        Refusal::new(
            404,
            "NotFound",
            "the server could not find the requested resource",
        )
        .details(json!({}))
    }

    pub(super) fn method_not_allowed() -> Self {
        Refusal::new(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
        .details(json!({}))
    }

    /// 409 to a deletion whose precondition `label` does not hold.
    pub(super) fn precondition(name: &str, label: &str, wanted: &str, found: &str) -> Self {
        let since = if label == "UID" {
            "deleted and then recreated"
        } else {
            "modified"
        };
        let message = format!(
            "Operation cannot be fulfilled on Node {name:?}: the {label} in the precondition ({wanted}) does not match the \
                {label} in record ({found}). The object might have been {since}"
        );
        Refusal::new(409, "Conflict", message).details(json!({"name": name, "kind": "Node"}))
    }

    pub(super) fn conflict(name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on nodes {name:?}: {why}");
        Refusal::new(409, "Conflict", message).details(node(name))
    }

    pub(super) fn stale(name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Refusal::conflict(name, why)
    }

    pub(super) fn already_exists(name: &str) -> Self {
        Refusal::new(
            409,
            "AlreadyExists",
            format!("nodes {name:?} already exists"),
        )
        .details(node(name))
    }

    /// 410 to a list of a revision that is compacted.
    pub(super) fn expired() -> Self {
        Refusal::new(
            410,
            "Expired",
            "The resourceVersion for the provided list is too old.",
        )
    }

    /// 410 to a page of such a list; `go_on` is a token of the same place in the list as it is now.
    pub(super) fn expired_page(go_on: String) -> Self {
        let message = "The provided continue parameter is too old to display a consistent list result. You can start a new \
            list without the continue parameter, or use the continue token in this response to retrieve the remainder of \
            the results. Continuing with the provided token results in an inconsistent list - objects that were created, \
            modified, or deleted between the time the first chunk was returned and now may show up in the list.";
        let mut refusal = Refusal::new(410, "Expired", message);
        refusal.go_on = Some(go_on);
        refusal
    }

    /// 410, inside a watch.
    pub(super) fn too_old(asked: u64, oldest: u64) -> Self {
        let message = format!("too old resource version: {asked} ({oldest})");
        Refusal::new(410, "Expired", message)
    }

    pub(super) fn unsupported_media_type() -> Self {
        let message = "the body of the request was in an unknown format - accepted media types include: \
            application/merge-patch+json, application/strategic-merge-patch+json";
        Refusal::new(415, "UnsupportedMediaType", message)
    }

    /// 422 to an object or to options whose `field` is wrong; `subject` as in `Node "name"`.
    pub(super) fn invalid(
        subject: &str,
        cause: &'static str,
        field: &str,
        why: &str,
        details: Value,
    ) -> Self {
        let message = format!("{subject} is invalid: {field}: {why}");
        let mut details = details;
        details["causes"] = json!([{"reason": cause, "message": why, "field": field}]);
        Refusal::new(422, "Invalid", message).details(details)
    }

    /// 504 to a list of a revision that is not there yet.
    pub(super) fn too_large(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let cause =
            json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
        Refusal::new(504, "Timeout", message)
            .details(json!({"causes": [cause], "retryAfterSeconds": 1}))
            .retry_after(Some(1))
    }

    pub(super) fn internal(why: &str) -> Self {
        Refusal::new(
            500,
            "InternalError",
            format!("Internal error occurred: {why}"),
        )
        .details(json!({"causes": [{"message": why}]}))
    }

    /// The object `Status`.
    pub(super) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        if let Some(details) = &self.details {
            status["details"] = details.clone();
        }
        if let Some(token) = &self.go_on {
            status["metadata"]["continue"] = token.as_str().into();
        }
        status
    }

    /// The answer.
    pub(super) fn response(&self) -> Response {
        let mut response = answer(self.code, self.status().to_string());
        if let Some(seconds) = self.retry_after {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// An answer in JSON.
pub(super) fn answer(code: u16, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

fn node(name: &str) -> Value {
    json!({"name": name, "kind": "nodes"})
}
