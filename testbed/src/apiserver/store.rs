//! The Nodes, their revisions, and what happened to them.
//!
//! One counter numbers every write, as etcd's revision does: it is the `resourceVersion` of the Node that was written.
//! Of each write an [`Event`] is kept, with the Node as it was before, so that the Nodes as they were at any revision
//! since the last compaction can be computed: that is what makes the pages of one list agree.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use axum::body::Bytes;
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// A Node as it is served: JSON without `kind` and `apiVersion`, which the items of a list do not have.
#[derive(Clone)]
pub(super) struct Stored {
    pub(super) text: Bytes,
}

/// One write.
pub(super) struct Event {
    pub(super) revision: u64,
    /// `ADDED`, `MODIFIED` or `DELETED`.
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) node: Stored,
    previous: Option<Stored>,
}

/// What a watch is told.
#[derive(Clone)]
pub(super) enum Notice {
    Event(Arc<Event>),
    /// A bookmark of this revision.
    Bookmark(u64),
    /// Half of the event's line, then the end of the connection.
    Cut(Arc<Event>),
    /// The end of the connection.
    Drop,
}

/// All Nodes.
pub(super) struct Store {
    nodes: BTreeMap<String, Stored>,
    revision: u64,
    /// Writes up to this one are forgotten.
    compacted: u64,
    history: VecDeque<Arc<Event>>,
    /// How many writes are remembered.
    limit: usize,
    watches: Vec<UnboundedSender<Notice>>,
    cut_next: bool,
}

impl Store {
    /// No Nodes, at revision 1.
    pub(super) fn new() -> Self {
        Store {
            nodes: BTreeMap::new(),
            revision: 1,
            compacted: 1,
            history: VecDeque::new(),
            limit: HISTORY,
            watches: Vec::new(),
            cut_next: false,
        }
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn compacted(&self) -> u64 {
        self.compacted
    }

    pub(super) fn get(&self, name: &str) -> Option<&Stored> {
        self.nodes.get(name)
    }

    /// The Nodes as they were after the write `revision`; nothing where that is compacted.
    pub(super) fn at(&self, revision: u64) -> Option<BTreeMap<String, Stored>> {
        if revision < self.compacted {
            return None;
        }
        let mut nodes = self.nodes.clone();
        for event in self.since(revision).rev() {
            match &event.previous {
                Some(previous) => nodes.insert(event.name.clone(), previous.clone()),
                None => nodes.remove(&event.name),
            };
        }
        Some(nodes)
    }

    /// The Nodes as they are.
    pub(super) fn nodes(&self) -> BTreeMap<String, Stored> {
        self.nodes.clone()
    }

    /// The remembered writes after `revision`.
    pub(super) fn since(&self, revision: u64) -> impl DoubleEndedIterator<Item = &Arc<Event>> {
        let first = self
            .history
            .partition_point(|event| event.revision <= revision);
        self.history.range(first..)
    }

    /// Creates or replaces a Node. It gets the next revision, whatever `metadata.resourceVersion` says.
    pub(super) fn put(&mut self, name: &str, mut node: Value) -> Stored {
        self.revision += 1;
        let stored = stored(self.revision, &mut node);
        let previous = self.nodes.insert(name.to_owned(), stored.clone());
        let kind = if previous.is_some() {
            "MODIFIED"
        } else {
            "ADDED"
        };
        self.record(kind, name, stored.clone(), previous);
        stored
    }

    /// Deletes a Node and returns it as it was.
    pub(super) fn delete(&mut self, name: &str) -> Option<Stored> {
        let previous = self.nodes.remove(name)?;
        self.revision += 1;
        let mut node: Value = serde_json::from_slice(&previous.text).unwrap();
        let last = stored(self.revision, &mut node);
        self.record("DELETED", name, last, Some(previous.clone()));
        Some(previous)
    }

    fn record(&mut self, kind: &'static str, name: &str, node: Stored, previous: Option<Stored>) {
        let event = Arc::new(Event {
            revision: self.revision,
            kind,
            name: name.to_owned(),
            node,
            previous,
        });
        let notice = if std::mem::take(&mut self.cut_next) {
            Notice::Cut(event.clone())
        } else {
            Notice::Event(event.clone())
        };
        self.notify(&notice);
        self.history.push_back(event);
        while self.history.len() > self.limit {
            let oldest = self.history.pop_front();
            self.compacted = oldest.map_or(self.compacted, |event| event.revision);
        }
    }

    fn notify(&mut self, notice: &Notice) {
        self.watches
            .retain(|watch| watch.send(notice.clone()).is_ok());
    }

    /// What is written from now on.
    pub(super) fn subscribe(&mut self) -> UnboundedReceiver<Notice> {
        let (sender, receiver) = unbounded_channel();
        self.watches.push(sender);
        receiver
    }

    /// How many watches are open.
    pub(super) fn watches(&mut self) -> usize {
        self.watches.retain(|watch| !watch.is_closed());
        self.watches.len()
    }

    /// Forgets all writes. Watches that are open go on.
    pub(super) fn compact(&mut self) {
        self.history.clear();
        self.compacted = self.revision;
    }

    /// Remembers no more than `limit` writes.
    pub(super) fn remember(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Counts a write to something that is no Node.
    pub(super) fn write_elsewhere(&mut self) {
        self.revision += 1;
    }

    /// Breaks the connections of all watches.
    pub(super) fn drop_watches(&mut self) {
        self.notify(&Notice::Drop);
        self.watches.clear();
    }

    /// Breaks the connections of all watches in the middle of the next event.
    pub(super) fn cut_watches(&mut self) {
        self.cut_next = true;
    }

    /// Sends a bookmark to each watch that asked for them.
    pub(super) fn bookmark(&mut self) {
        self.notify(&Notice::Bookmark(self.revision));
    }
}

/// Writes the revision into a Node, and the Node as text.
fn stored(revision: u64, node: &mut Value) -> Stored {
    node["metadata"]["resourceVersion"] = Value::String(revision.to_string());
    Stored {
        text: serde_json::to_vec(node).unwrap().into(),
    }
}

impl Stored {
    /// As it is served by itself: with `kind` and `apiVersion`.
    pub(super) fn whole(&self) -> Vec<u8> {
        [KIND, &self.text[1..]].concat()
    }

    /// Without `kind` and `apiVersion`.
    pub(super) fn value(&self) -> Value {
        serde_json::from_slice(&self.text).unwrap()
    }
}

const KIND: &[u8] = br#"{"kind":"Node","apiVersion":"v1","#;
/// Writes that are remembered; a real API server remembers some minutes.
const HISTORY: usize = 10_000;
