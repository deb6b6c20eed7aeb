//! One request, from its arrival to its answer.

use std::sync::Arc;
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{Request as HttpRequest, State};
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::response::Response;
use serde_json::{Value, json};

use super::object::{self, Part};
use super::query::Options;
use super::refusal::{Refusal, answer};
use super::target::{Asked, Target};
use super::{Request, Shared, discovery, list, patch, watch};

/// Answers a request, in the order of the real server's filters: whether it answers at all, who asks, what he may, what
/// he asks.
pub(super) async fn handle(State(shared): State<Arc<Shared>>, request: HttpRequest) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let method = parts.method;
    if let Target::Test(action) = Target::of(&path) {
        return test(&shared, &method, &action, &query);
    }
    let entry = shared.note(Request {
        method: method.to_string(),
        path: path.clone(),
        query: query.clone(),
        code: None,
    });
    shared.faults.answering().await;
    let body = to_bytes(body, LONGEST_BODY).await;
    let call = Call {
        shared: &shared,
        method,
        headers: parts.headers,
        path,
        query,
        body: body.as_ref().map(AsRef::as_ref).ok(),
    };
    let response = call
        .answer()
        .await
        .unwrap_or_else(|refusal| refusal.response());
    shared.answered(entry, response.status().as_u16());
    response
}

struct Call<'a> {
    shared: &'a Arc<Shared>,
    method: Method,
    headers: HeaderMap,
    path: String,
    query: String,
    /// Nothing where it was too long.
    body: Option<&'a [u8]>,
}

impl Call<'_> {
    async fn answer(&self) -> Result<Response, Refusal> {
        let options = Options::of(&self.query);
        let asked = Asked::of(
            &self.method,
            &self.path,
            options.as_ref().unwrap_or(&Options::default()),
        );
        self.shared.access().check(&self.headers, &asked)?;
        if asked.target.node_or(None).is_some()
            && let Some(failure) = self.shared.faults.failure()
        {
            return Ok(failure);
        }
        match (&asked.target, self.method.as_str()) {
            (Target::Nodes, "GET") => {
                let options = options?;
                if options.watch {
                    watch::watch(self.shared, options)
                } else {
                    list::list(self.shared, &options).await
                }
            }
            (Target::Nodes, "POST") => self.create(),
            (Target::Node(name) | Target::NodeStatus(name), "GET") => self.get(name),
            (Target::Node(name), "PUT" | "PATCH") => self.update(name, Part::Whole),
            (Target::NodeStatus(name), "PUT" | "PATCH") => self.update(name, Part::Status),
            (Target::Node(name), "DELETE") => self.delete(name),
            (Target::Nodes | Target::Node(_) | Target::NodeStatus(_), _) => {
                Err(Refusal::method_not_allowed())
            }
            (Target::Discovery, "GET") => {
                Ok(answer(200, discovery::answer(&self.path).to_string()))
            }
            (Target::Open, "GET") if self.path == "/version" => {
                Ok(answer(200, discovery::answer(&self.path).to_string()))
            }
            (Target::Open, _) => Ok(text(200, "ok")),
            (Target::NoResource | Target::Discovery, _) => Err(Refusal::no_resource()),
            _ => Ok(text(404, "404 page not found\n")),
        }
    }

    fn get(&self, name: &str) -> Result<Response, Refusal> {
        let store = self.shared.store();
        let node = store.get(name).ok_or_else(|| Refusal::not_found(name))?;
        Ok(answer(200, node.whole()))
    }

    fn create(&self) -> Result<Response, Refusal> {
        let (name, node) = object::created(self.json()?)?;
        let mut store = self.shared.store();
        if store.get(&name).is_some() {
            return Err(Refusal::already_exists(&name));
        }
        Ok(answer(201, store.put(&name, node).whole()))
    }

    /// A PUT or a PATCH.
    fn update(&self, name: &str, part: Part) -> Result<Response, Refusal> {
        let kind = self.content_type();
        if self.method == Method::PATCH && !kind.ends_with("merge-patch+json") {
            return Err(Refusal::unsupported_media_type());
        }
        let sent = self.json()?;
        let mut store = self.shared.store();
        let stored = store.get(name).ok_or_else(|| Refusal::not_found(name))?;
        let old = stored.value();
        let node = if self.method == Method::PATCH {
            patched(&old, &sent, kind)?
        } else {
            sent
        };
        let stored = match object::updated(name, &old, node, part)? {
            Some(node) => store.put(name, node),
            None => stored.clone(),
        };
        Ok(answer(200, stored.whole()))
    }

    fn delete(&self, name: &str) -> Result<Response, Refusal> {
        let options = if self.body.is_some_and(<[u8]>::is_empty) {
            json!({})
        } else {
            self.json()?
        };
        let mut store = self.shared.store();
        let stored = store.get(name).ok_or_else(|| Refusal::not_found(name))?;
        let metadata = &stored.value()["metadata"];
        for (field, label) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
            let wanted = &options["preconditions"][field];
            if !wanted.is_null() && *wanted != metadata[field] {
                let wanted = wanted.as_str().unwrap_or_default();
                let found = metadata[field].as_str().unwrap_or_default();
                return Err(Refusal::precondition(name, label, wanted, found));
            }
        }
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "details": {"name": name, "kind": "nodes", "uid": metadata["uid"]},
        });
        store.delete(name);
        Ok(answer(200, status.to_string()))
    }

    fn json(&self) -> Result<Value, Refusal> {
        let kind = self.content_type();
        if !kind.is_empty() && !kind.ends_with("json") && kind != "*/*" {
            return Err(Refusal::unsupported_media_type());
        }
        let Some(body) = self.body else {
            let message = format!("Request entity too large: limit is {LONGEST_BODY}");
            return Err(Refusal::new(413, "RequestEntityTooLarge", message));
        };
        serde_json::from_slice(body)
            .map_err(|error| Refusal::bad_request(format!("the body is no JSON: {error}")))
    }

    fn content_type(&self) -> &str {
        let kind = self
            .headers
            .get(header::CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok());
        kind.unwrap_or_default()
            .split(';')
            .next()
            .unwrap_or_default()
            .trim()
    }
}

fn patched(old: &Value, sent: &Value, kind: &str) -> Result<Value, Refusal> {
    if !sent.is_object() {
        return Err(Refusal::bad_request(
            "error decoding patch: a patch is an object",
        ));
    }
    let mut node = old.clone();
    if kind == "application/strategic-merge-patch+json" {
        patch::strategic(&mut node, sent).map_err(Refusal::bad_request)?;
    } else {
        patch::merge(&mut node, sent);
    }
    Ok(node)
}

/// What a test asks: `POST /test/ACTION?PARAMETERS`.
fn test(shared: &Shared, method: &Method, action: &str, query: &str) -> Response {
    let given = |name: &str| {
        let mut pairs = form_urlencoded::parse(query.as_bytes());
        pairs
            .find(|(key, _)| key == name)
            .and_then(|(_, value)| value.parse::<u32>().ok())
    };
    if method != Method::POST {
        return text(405, "POST this\n");
    }
    match action {
        "compact" => shared.store().compact(),
        "bookmark" => shared.store().bookmark(),
        "drop-watches" => shared.store().drop_watches(),
        "cut-watches" => shared.store().cut_watches(),
        "black-hole" => {
            let seconds = given("seconds").unwrap_or(10);
            shared
                .faults
                .black_hole(Some(Duration::from_secs(seconds.into())));
        }
        "fail" => {
            let code = given("code").and_then(|code| u16::try_from(code).ok());
            let Some(code) = code.filter(|code| (400..600).contains(code)) else {
                return text(400, "code=CODE is missing: 400 to 599\n");
            };
            let times = given("times").map_or(1, |times| times as usize);
            shared
                .faults
                .fail(code, times, given("retry-after").map(u64::from));
        }
        "nodes" => shared.generate(given("count").unwrap_or(1000)),
        _ => {
            return text(
                404,
                "compact, bookmark, drop-watches, cut-watches, black-hole, fail or nodes\n",
            );
        }
    }
    text(200, "done\n")
}

fn text(code: u16, body: &'static str) -> Response {
    let mut response = answer(code, body);
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

/// Bytes (`MaxRequestBodyBytes` of the real server).
const LONGEST_BODY: usize = 3 << 20;
