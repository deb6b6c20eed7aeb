//! A watch: the changes of all Nodes, one JSON object a line (Kubernetes API, "Efficient detection of changes").

use futures_util::AsyncBufReadExt;

use super::api::{ApiError, Body};
use super::node::{EventKind, Node, WatchLine};

/// One open watch.
pub(super) struct Watch {
    body: Body,
    /// The part of a line that has arrived.
    line: Vec<u8>,
}

/// What a watch says.
#[derive(Debug)]
pub(super) enum WatchEvent {
    /// A Node was added or changed.
    Applied(Node),
    /// A Node was deleted; this was its last state.
    Deleted(Node),
    /// Nothing changed up to this version.
    Bookmark(String),
    /// The server ended the watch, as it does after a time. A new one goes on from the last version.
    Ended,
}

impl Watch {
    pub(super) fn over(body: Body) -> Watch {
        let line = Vec::new();
        Watch { body, line }
    }

    /// Waits for the next event. Dropping the future before it is ready loses nothing.
    ///
    /// # Errors
    /// [`ApiError`]; the watch is of no use afterwards.
    pub(super) async fn next(&mut self) -> Result<WatchEvent, ApiError> {
        loop {
            let chunk = self.body.fill_buf().await.map_err(ApiError::Broken)?;
            if chunk.is_empty() {
                // A line that was cut off comes again with the next watch.
                return Ok(WatchEvent::Ended);
            }
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let part = chunk.get(..end.unwrap_or(chunk.len())).unwrap_or_default();
            if part.len() > MOST_LINE.saturating_sub(self.line.len()) {
                return Err(ApiError::TooLong(MOST_LINE));
            }
            self.line.extend_from_slice(part);
            let read = part.len() + usize::from(end.is_some());
            self.body.consume_unpin(read);
            if end.is_some() {
                let event = event(&self.line);
                self.line.clear();
                self.line.shrink_to(USUAL_LINE);
                match event {
                    Ok(None) => continue,
                    Ok(Some(event)) => return Ok(event),
                    Err(error) => return Err(error),
                }
            }
        }
    }
}

/// Reads a line; `None` for an empty one.
fn event(line: &[u8]) -> Result<Option<WatchEvent>, ApiError> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let WatchLine { kind, object } = serde_json::from_slice(line).map_err(ApiError::Json)?;
    let (code, message) = (object.code, object.message.clone());
    let node = object.into_node();
    Ok(Some(match kind {
        EventKind::Added | EventKind::Modified => WatchEvent::Applied(node),
        EventKind::Deleted => WatchEvent::Deleted(node),
        EventKind::Bookmark => WatchEvent::Bookmark(node.metadata.resource_version),
        EventKind::Error => return Err(ApiError::Event { code, message }),
    }))
}

/// Bytes. etcd holds no object above 1.5 MiB.
const MOST_LINE: usize = 4 << 20;
const USUAL_LINE: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use std::io;

    use futures_util::stream::{self, TryStreamExt};

    use super::*;

    /// A watch whose body arrives in these chunks.
    fn watch(chunks: Vec<io::Result<&'static [u8]>>) -> Watch {
        Watch::over(Box::pin(stream::iter(chunks).into_async_read()))
    }

    async fn all(mut watch: Watch) -> Vec<String> {
        let mut seen = Vec::new();
        loop {
            seen.push(match watch.next().await {
                Ok(WatchEvent::Applied(node)) => format!("+{}", node.metadata.name),
                Ok(WatchEvent::Deleted(node)) => format!("-{}", node.metadata.name),
                Ok(WatchEvent::Bookmark(version)) => format!("@{version}"),
                Ok(WatchEvent::Ended) => return seen,
                Err(error) => {
                    seen.push(error.to_string());
                    return seen;
                }
            });
        }
    }

    #[tokio::test]
    async fn lines_are_joined_across_chunks() {
        let seen = all(watch(vec![
            Ok(br#"{"type":"ADDED","object":{"metadata":{"name":"a"#),
            Ok(b"\"}}}\n\n{\"type\":\"BOOKMARK\",\"object\":{\"kind\":\"Node\",\"metadata\":{\"resourceVersion\":\"9\"}}}\n{\"type\":"),
            Ok(b"\"DELETED\",\"object\":{\"metadata\":{\"name\":\"a\"}}}\n{\"type\":\"ADDED\",\"ob"),
        ]));
        assert_eq!(seen.await, ["+a", "@9", "-a"], "a cut line is no event");
    }

    #[tokio::test]
    async fn faults_are_errors() {
        let broken = || Err(io::Error::other("reset"));
        let seen = all(watch(vec![Ok(b"{\"type\":\"NEW\"}\n")])).await;
        assert!(seen[0].contains("unknown variant"), "{seen:?}");
        let seen = all(watch(vec![broken()])).await;
        assert_eq!(seen, ["the connection to the API broke: reset"]);
        let gone = watch(vec![Ok(
            b"{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410,\"message\":\"too old\"}}\n",
        )]);
        assert_eq!(
            all(gone).await,
            ["the API ends the watch with 410: too old"]
        );
    }

    #[tokio::test]
    async fn an_endless_line_is_refused() {
        static CHUNK: [u8; 1 << 20] = [b' '; 1 << 20];
        let chunks = (0..5).map(|_| Ok(CHUNK.as_slice())).collect();
        let seen = all(watch(chunks)).await;
        assert_eq!(seen.len(), 1);
        assert!(seen[0].contains("longer than"), "{seen:?}");
    }
}
