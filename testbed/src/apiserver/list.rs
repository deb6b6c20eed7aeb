//! Lists of Nodes, in pages that are of one revision.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::stream;
use serde_json::{Value, json};

use super::Shared;
use super::query::Options;
use super::refusal::{Refusal, answer};
use super::store::{Store, Stored};

/// Answers a list.
pub(super) async fn list(shared: &Shared, options: &Options) -> Result<Response, Refusal> {
    let asked = options.number()?;
    if asked > shared.store().revision() {
        tokio::time::sleep(PATIENCE).await;
        let current = shared.store().revision();
        if asked > current {
            return Err(Refusal::too_large(asked, current));
        }
    }
    let page = page(&shared.store(), options, asked)?;
    Ok(answer(200, page))
}

/// Where a page begins: of which revision the list is, and after which Node.
fn start(store: &Store, options: &Options, asked: u64) -> Result<(u64, String), Refusal> {
    if options.go_on.is_empty() {
        // Without a page's limit a revision is the oldest that will do; with one it is the one that is meant. What can be
        // of one Node only has no pages.
        let paged = options.limit > 0 && options.only().is_none();
        let meant = asked > 0 && (options.exact || (paged && !options.not_older));
        let revision = if meant { asked } else { store.revision() };
        return Ok((revision, String::new()));
    }
    if asked > 0 {
        let message = "specifying resource version is not allowed when using continue";
        return Err(Refusal::bad_request(message));
    }
    let (revision, after) = read_token(&options.go_on)?;
    Ok((u64::try_from(revision).unwrap_or(store.revision()), after))
}

fn page(store: &Store, options: &Options, asked: u64) -> Result<Body, Refusal> {
    let (revision, after) = start(store, options, asked)?;
    let Some(nodes) = nodes_at(store, revision) else {
        return Err(if options.go_on.is_empty() {
            Refusal::expired()
        } else {
            Refusal::expired_page(token(-1, &after))
        });
    };
    let range = (Bound::Excluded(after), Bound::Unbounded);
    let mut rest = nodes
        .range::<String, _>(range)
        .filter(|(name, node)| options.select(name, node));
    let limit = if options.limit == 0 {
        usize::MAX
    } else {
        options.limit
    };
    let items: Vec<_> = rest.by_ref().take(limit).collect();
    let left = rest.count();
    let mut metadata = json!({"resourceVersion": revision.to_string()});
    if let (Some((last, _)), true) = (items.last(), left > 0) {
        metadata["continue"] = token(i64::try_from(revision).unwrap(), last).into();
        // Not known to the real server where it must look at each Node first.
        if options.selectors.is_empty() {
            metadata["remainingItemCount"] = left.into();
        }
    }
    Ok(body(&metadata, items.into_iter().map(|(_, node)| node)))
}

fn nodes_at(store: &Store, revision: u64) -> Option<BTreeMap<String, Stored>> {
    if revision == store.revision() {
        return Some(store.nodes());
    }
    store.at(revision)
}

/// The text of the list in parts, none of which is copied: 5,000 Nodes are 50 MB.
fn body<'a>(metadata: &Value, items: impl Iterator<Item = &'a Stored>) -> Body {
    let head = format!(r#"{{"kind":"NodeList","apiVersion":"v1","metadata":{metadata},"items":["#);
    let mut parts = vec![Bytes::from(head)];
    for (number, item) in items.enumerate() {
        if number > 0 {
            parts.push(Bytes::from_static(b","));
        }
        parts.push(item.text.clone());
    }
    parts.push(Bytes::from_static(b"]}\n"));
    Body::from_stream(stream::iter(parts.into_iter().map(Ok::<_, std::io::Error>)))
}

/// A token as the real server makes it; revision -1 means the list as it is when the token is used.
fn token(revision: i64, after: &str) -> String {
    let start = format!("{after}\0");
    URL_SAFE_NO_PAD.encode(json!({"v": VERSION, "rv": revision, "start": start}).to_string())
}

fn read_token(token: &str) -> Result<(i64, String), Refusal> {
    let refused = |why: &str| {
        Refusal::bad_request(format!(
            "invalid continue token: continue key is not valid: {why}"
        ))
    };
    let text = URL_SAFE_NO_PAD
        .decode(token.trim_end_matches('='))
        .map_err(|error| refused(&error.to_string()))?;
    let token: Value =
        serde_json::from_slice(&text).map_err(|error| refused(&error.to_string()))?;
    let after = token["start"].as_str().unwrap_or_default();
    match token["rv"].as_i64() {
        Some(revision) if token["v"] == VERSION && revision != 0 && !after.is_empty() => {
            Ok((revision, after.trim_end_matches('\0').to_owned()))
        }
        _ => Err(refused(
            "incorrect encoded start resourceVersion or start key",
        )),
    }
}

const VERSION: &str = "meta.k8s.io/v1";
/// How long a list waits for a revision that is not there yet (`blockTimeout` of the real server's cache).
const PATIENCE: Duration = Duration::from_secs(3);
