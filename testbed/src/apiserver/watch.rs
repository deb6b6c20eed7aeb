//! Watches: a stream of lines, each an event, over one answer that ends with the watch's time.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::Response;
use futures_util::stream::{self, Stream};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep, sleep_until};

use super::Shared;
use super::query::Options;
use super::refusal::{Refusal, answer};
use super::store::{Event, Notice, Stored};

/// Answers a watch: what is there first, if no revision was given, then what is written.
pub(super) fn watch(shared: &Arc<Shared>, options: Options) -> Result<Response, Refusal> {
    let asked = options.number()?;
    let mut store = shared.store();
    let mut lines = VecDeque::new();
    if asked == 0 {
        let nodes = store.nodes();
        let selected = nodes
            .iter()
            .filter(|(name, node)| options.select(name, node));
        lines.extend(selected.map(|(_, node)| line("ADDED", node)));
    } else if asked < store.compacted() {
        let refusal = Refusal::too_old(asked, store.compacted());
        let line = object_line("ERROR", &refusal.status());
        return Ok(streamed(stream::iter([Ok(line)])));
    } else {
        let missed = store.since(asked);
        let selected = missed.filter(|event| options.select(&event.name, &event.node));
        lines.extend(selected.map(|event| line(event.kind, &event.node)));
    }
    let ends = Instant::now() + Duration::from_secs(options.timeout.unwrap_or(LONGEST));
    let watch = Watch {
        notices: store.subscribe(),
        after: asked,
        seen: store.revision(),
        lines,
        ends,
        bookmark: next_bookmark(ends),
        broken: false,
        shared: shared.clone(),
        options,
    };
    drop(store);
    Ok(streamed(stream::unfold(watch, |mut watch| async move {
        Some((watch.next().await?, watch))
    })))
}

fn streamed(lines: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Response {
    answer(200, Body::from_stream(lines))
}

struct Watch {
    shared: Arc<Shared>,
    options: Options,
    notices: UnboundedReceiver<Notice>,
    /// Writes up to this revision are none of this watch.
    after: u64,
    /// The last write that was looked at, which a bookmark names.
    seen: u64,
    /// What is to be sent first.
    lines: VecDeque<Bytes>,
    ends: Instant,
    bookmark: Instant,
    /// The connection breaks now.
    broken: bool,
}

impl Watch {
    /// The next part of the answer; nothing at its end.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            self.shared.faults.answering().await;
            if let Some(line) = self.lines.pop_front() {
                return Some(Ok(line));
            }
            if self.broken {
                // What was sent shall be on its way: the break discards what the server still holds.
                sleep(FLUSH).await;
                return Some(Err(io::Error::other("the connection is broken for a test")));
            }
            tokio::select! {
                // Writes first: a bookmark may not overtake one.
                biased;
                notice = self.notices.recv() => self.take(notice?),
                () = sleep_until(self.ends) => return None,
                () = sleep_until(self.bookmark), if self.options.bookmarks => {
                    self.bookmark = next_bookmark(self.ends);
                    self.lines.push_back(bookmark(self.seen));
                }
            }
        }
    }

    fn take(&mut self, notice: Notice) {
        match notice {
            Notice::Event(event) => {
                self.seen = event.revision;
                if self.concerns(&event) {
                    self.lines.push_back(line(event.kind, &event.node));
                }
            }
            Notice::Bookmark(revision) => {
                if self.options.bookmarks {
                    self.lines.push_back(bookmark(revision));
                }
            }
            Notice::Cut(event) => {
                let line = line(event.kind, &event.node);
                self.lines.push_back(line.slice(..line.len() / 2));
                self.broken = true;
            }
            Notice::Drop => self.broken = true,
        }
    }

    fn concerns(&self, event: &Event) -> bool {
        event.revision > self.after && self.options.select(&event.name, &event.node)
    }
}

/// Every minute, and once shortly before the end, as the real server does.
fn next_bookmark(ends: Instant) -> Instant {
    let now = Instant::now();
    let last = ends.checked_sub(BEFORE_END).unwrap_or(now);
    if last > now {
        last.min(now + BOOKMARKS)
    } else {
        now + BOOKMARKS
    }
}

fn line(kind: &str, node: &Stored) -> Bytes {
    let head = format!(r#"{{"type":"{kind}","object":"#);
    [head.as_bytes(), &node.whole(), b"}\n"].concat().into()
}

fn object_line(kind: &str, object: &Value) -> Bytes {
    format!("{}\n", json!({"type": kind, "object": object})).into()
}

/// An empty Node with a revision.
fn bookmark(revision: u64) -> Bytes {
    let object = json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": {"resourceVersion": revision.to_string(), "creationTimestamp": null},
        "spec": {},
        "status": {
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
            "nodeInfo": {
                "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "", "osImage": "",
                "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "",
                "operatingSystem": "", "architecture": "",
            },
        },
    });
    object_line("BOOKMARK", &object)
}

/// Seconds of a watch that names no time; the real server takes half an hour to an hour.
const LONGEST: u64 = 2700;
const BOOKMARKS: Duration = Duration::from_secs(60);
const BEFORE_END: Duration = Duration::from_secs(2);
const FLUSH: Duration = Duration::from_millis(50);
