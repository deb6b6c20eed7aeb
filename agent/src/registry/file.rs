//! The `file` registry: a list of nodes in a file, read again whenever it changes.
//!
//! Theory of operation. inotify watches the *directory*, because editors and ConfigMap volumes do not write the
//! file but put another in its place. A closed or replaced file of the file's own name, or of the first part of
//! the path it links to (`..data` of a ConfigMap), starts a wait of 200 ms that each further event prolongs, to
//! 2 s at most; then the file is read whole and the outcome is told if it is another than the last one told.
//!
//! Half a list withdraws the peers of the other half, so nothing is read that somebody is writing: from a
//! modification until the close that ends it a read that is due waits, without limit. A reading counts only if
//! no event and no other state of the file shows up within 10 ms after it. A change of mode or owner is of
//! interest only while the file cannot be read.
//!
//! A list that cannot be used, in form or because this node is not in it, is told as refused: it is for people,
//! and nobody withdraws anything for it. A file that is gone is a refusal too, never an empty list.
//!
//! Where there is no watch (the directory is missing, was replaced, or the kernel's limit of watches is reached)
//! the file is looked at once a second and the watch tried again; a reading counts when the file is the same a
//! second later. The very first is told without that second: a start must not wait for it. A file that links
//! into another directory is followed, but writes over there are not seen: replace the link instead.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt;
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchDescriptor, WatchMask};
use tokio::time::{Instant, sleep_until};

use super::Update;
use super::nodes::parse;
use super::own::own;
use super::place::RegistryPlace;
use crate::causes::causes;
use crate::config::NetConf;
use crate::config::text_file::{self, TextFileError};
use crate::file_state::FileState;

/// A list of nodes in a file, watched.
#[derive(Debug)]
pub struct FileRegistry {
    path: PathBuf,
    directory: PathBuf,
    file_name: OsString,
    node_name: String,
    net_conf: NetConf,
    events: EventStream<[u8; EVENT_BYTES]>,
    watch: Option<WatchDescriptor>,
    due: Option<Due>,
    /// Modified since it was closed last: somebody is in the middle of it.
    written_to: bool,
    /// Read, and told once it has stood for a moment.
    candidate: Option<Candidate>,
    told: Option<Update>,
    /// Whether the file could not even be read the last time.
    unreadable: bool,
}

/// What one reading found.
#[derive(Debug)]
struct Candidate {
    update: Update,
    unreadable: bool,
    state: Option<FileState>,
}

/// Why a file cannot be watched at all.
#[derive(Debug, thiserror::Error)]
pub enum FileRegistryError {
    /// A path that ends in no name.
    #[error("{path} names no file: set node-file to the list of nodes")]
    NoFileName {
        /// The path.
        path: PathBuf,
    },
    /// The kernel gives no more inotify instances.
    #[error(
        "cannot watch for changes of the list of nodes: raise the sysctl fs.inotify.max_user_instances"
    )]
    Inotify(#[source] io::Error),
}

/// When the file is to be read.
#[derive(Clone, Copy, Debug)]
struct Due {
    at: Instant,
    latest: Instant,
}

impl Due {
    fn once(wait: Duration) -> Due {
        let at = Instant::now() + wait;
        let latest = at + LONGEST_WAIT;
        Due { at, latest }
    }
}

impl FileRegistry {
    /// Watches the list of nodes at `path`, in which this node is `node_name`. The file need not exist yet.
    /// Must be called within a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// [`FileRegistryError`]; a file that cannot be read is no error here but the first [`Update`].
    pub fn watch(
        path: &Path,
        net_conf: &NetConf,
        node_name: &str,
    ) -> Result<FileRegistry, FileRegistryError> {
        let no_name = || FileRegistryError::NoFileName {
            path: path.to_path_buf(),
        };
        let file_name = path.file_name().ok_or_else(no_name)?.to_owned();
        let directory = match path.parent() {
            Some(parent) if parent != Path::new("") => parent.to_path_buf(),
            _ => PathBuf::from("."),
        };
        let events = Inotify::init()
            .and_then(|inotify| inotify.into_event_stream([0; EVENT_BYTES]))
            .map_err(FileRegistryError::Inotify)?;
        let mut registry = FileRegistry {
            path: path.to_path_buf(),
            directory,
            file_name,
            node_name: node_name.to_owned(),
            net_conf: net_conf.clone(),
            events,
            watch: None,
            due: Some(Due::once(Duration::ZERO)),
            written_to: false,
            candidate: None,
            told: None,
            unreadable: false,
        };
        registry.rewatch();
        Ok(registry)
    }

    /// The next thing to know; the first comes at once. Nothing is lost when the future is dropped before it is
    /// ready.
    pub async fn next(&mut self) -> Update {
        loop {
            let due = self.due.map(|due| due.at);
            tokio::select! {
                // Events first: what they say decides whether the file may be read.
                biased;
                Some(Ok(event)) = self.events.next() => self.take(&event),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() && !self.written_to => {
                    if let Some(update) = self.turn() {
                        return update;
                    }
                }
                // Reading events failed and no read is due.
                else => {
                    self.written_to = false;
                    self.due = Some(Due::once(WITHOUT_WATCH));
                }
            }
        }
    }

    /// What the file says now under another `net_conf` than the one given to [`watch`](Self::watch).
    /// [`next`](Self::next) goes on as if nobody had asked.
    pub fn read_with(&self, net_conf: &NetConf) -> Update {
        match text_file::read(&self.path, MOST_BYTES) {
            Ok(text) => self.interpret(&text, net_conf),
            Err(error) => self.unreadable(&error),
        }
    }

    /// A line of the file, or the file as a whole.
    pub(super) fn place(&self, line: Option<usize>) -> RegistryPlace {
        let path = self.path.clone();
        RegistryPlace::File { path, line }
    }

    /// What is due: a candidate that has stood is told, if it says anything new; else the file is read.
    fn turn(&mut self) -> Option<Update> {
        let latest = self.due.take().map(|due| due.latest);
        let watched = self.watch.is_some();
        if !watched {
            self.rewatch();
        }
        if let Some(candidate) = self.candidate.take()
            && candidate.state == FileState::of(&self.path)
        {
            self.unreadable = candidate.unreadable;
            self.told = Some(candidate.update.clone());
            return Some(candidate.update);
        }
        let candidate = self.read();
        if self.told.as_ref() == Some(&candidate.update) {
            self.unreadable = candidate.unreadable;
            return None;
        }
        self.candidate = Some(candidate);
        // Who began to write before there was a watch is not seen writing.
        let settle = if watched || self.told.is_none() {
            SETTLE
        } else {
            WITHOUT_WATCH
        };
        let mut due = Due::once(settle);
        due.latest = latest.map_or(due.latest, |latest| latest.max(due.at));
        self.due = Some(due);
        None
    }

    /// Without a watch the next read is due in a second, so that reading goes on.
    fn rewatch(&mut self) {
        self.watch = self.events.watches().add(&self.directory, interest()).ok();
        if self.watch.is_none() && self.due.is_none() {
            self.due = Some(Due::once(WITHOUT_WATCH));
        }
    }

    fn take(&mut self, event: &EventOwned) {
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            // The close may be among what was lost.
            self.changed();
        } else if Some(&event.wd) == self.watch.as_ref() {
            let lost = EventMask::IGNORED | EventMask::DELETE_SELF | EventMask::MOVE_SELF;
            if event.mask.intersects(lost) {
                // A watch follows its directory's inode, we the path. The kernel may have removed it itself.
                let _ = self.events.watches().remove(event.wd.clone());
                self.watch = None;
                self.changed();
            } else if event
                .name
                .as_deref()
                .is_some_and(|name| self.concerns_us(name, event.mask))
            {
                self.concerned(event.mask);
            }
        }
    }

    fn concerned(&mut self, mask: EventMask) {
        if mask.contains(EventMask::MODIFY) {
            self.written_to = true;
            self.candidate = None;
        } else if !mask.contains(EventMask::ATTRIB) || self.unreadable {
            self.changed();
        }
    }

    fn concerns_us(&self, name: &OsStr, mask: EventMask) -> bool {
        // What was created by opening it is closed after writing, and that is when it is whole. A link is whole.
        let whole = |path: PathBuf| {
            path.symlink_metadata()
                .is_ok_and(|found| !found.is_file() || found.nlink() > 1)
        };
        if mask.contains(EventMask::CREATE) && !whole(self.directory.join(name)) {
            return false;
        }
        name == self.file_name || self.linked_through().as_deref() == Some(name)
    }

    /// The name in our directory through which the file is reached, where the file is a link.
    fn linked_through(&self) -> Option<OsString> {
        match self
            .path
            .read_link()
            .ok()?
            .components()
            .find(|part| *part != Component::CurDir)?
        {
            Component::Normal(name) => Some(name.to_owned()),
            _ => None,
        }
    }

    /// The file is whole, or another one: it is read when all has been quiet.
    fn changed(&mut self) {
        self.written_to = false;
        self.candidate = None;
        let now = Instant::now();
        let latest = self.due.map_or(now + LONGEST_WAIT, |due| due.latest);
        self.due = Some(Due {
            at: latest.min(now + QUIET),
            latest,
        });
    }

    fn read(&self) -> Candidate {
        let state = FileState::of(&self.path);
        let (update, unreadable) = match text_file::read(&self.path, MOST_BYTES) {
            Ok(text) => (self.interpret(&text, &self.net_conf), false),
            Err(error) => (self.unreadable(&error), true),
        };
        Candidate {
            update,
            unreadable,
            state,
        }
    }

    fn interpret(&self, text: &str, net_conf: &NetConf) -> Update {
        match parse(text, net_conf) {
            Err(error) => self.refuse(Some(error.line), error.fault.to_string()),
            Ok(leases) => match own(&leases, &self.node_name) {
                Err(reason) => self.refuse(None, reason),
                Ok(_) => Update::Leases(leases),
            },
        }
    }

    fn unreadable(&self, error: &TextFileError) -> Update {
        let line = match error {
            TextFileError::NotText { line, .. } => Some(*line),
            _ => None,
        };
        self.refuse(line, causes(error))
    }

    fn refuse(&self, line: Option<usize>, reason: String) -> Update {
        let place = self.place(line);
        Update::Refused { place, reason }
    }
}

fn interest() -> WatchMask {
    WatchMask::CLOSE_WRITE
        | WatchMask::MODIFY
        | WatchMask::MOVED_TO
        | WatchMask::MOVED_FROM
        | WatchMask::CREATE
        | WatchMask::DELETE
        | WatchMask::ATTRIB
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF
        | WatchMask::ONLYDIR
}

/// An editor's several steps lie closer together than this.
const QUIET: Duration = Duration::from_millis(200);
/// Somebody who never stops replacing it is read in between.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// Events of a write that a reading fell into have arrived by then.
const SETTLE: Duration = Duration::from_millis(10);
const WITHOUT_WATCH: Duration = Duration::from_secs(1);
/// A list of 5,000 nodes is 0.6 MB.
const MOST_BYTES: u64 = 16 << 20;
/// One event with the longest name is 272 bytes.
const EVENT_BYTES: usize = 4096;
