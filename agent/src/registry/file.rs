//! The `file` registry: a list of nodes in a file, read again whenever it changes.
//!
//! Theory of operation. inotify watches the *directory*, because editors and ConfigMap volumes replace the file
//! instead of writing to it. When a file is closed after writing or replaced, and its name is that of the list or
//! the first part of the path that the list links to (`..data` of a ConfigMap), a wait of 200 ms starts. Each
//! further event prolongs the wait, to 2 s at most. Then the registry reads the whole file, and reports the update
//! if it differs from the last one reported.
//!
//! A list read while it is being written lacks nodes, and the missing peers would be withdrawn. So from a
//! modification until the writer closes the file, a due read waits, without limit. A reading counts only if within
//! 10 ms after it no event arrives and the state of the file stays the same. A start does not pay for these 10 ms: a first
//! reading counts at once if nothing has changed the file for 2 s before it ([`FileState::has_rested`]), because a writer that
//! paused for so long would be missed by the wait too. A change of mode or owner counts only while the file cannot be read.
//!
//! A list that is malformed or lacks this node is reported as refused. A file that was removed is refused too, and
//! never read as an empty list.
//!
//! Without a watch (the directory is missing or was replaced, or the kernel's limit of watches is reached) the
//! registry reads the file once a second and tries to set the watch again; a reading counts if the file is the
//! same one second later. The first reading counts without that second, so that a start does not wait. If the
//! file links into another directory, the link is followed, but writes in that directory are not noticed: replace
//! the link instead.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchDescriptor, WatchMask};
use tokio::time::{Instant, sleep_until};

use super::Update;
use super::nodes::parse;
use super::own::own;
use super::place::RegistryPlace;
use crate::causes::causes;
use crate::config::text_file::{self, TextFileError};
use crate::config::{NetConf, NodeConfig};
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
    /// The first reading was made.
    has_begun: bool,
    /// Modified since it was last closed: another process is writing it.
    being_written: bool,
    /// A reading, reported once the file has stayed the same for a moment.
    candidate: Option<Reading>,
    reported: Option<Update>,
    /// The last reading failed before it reached the content.
    unreadable: bool,
}

/// The result of one reading.
#[derive(Debug)]
struct Reading {
    update: Update,
    unreadable: bool,
    state: Option<FileState>,
}

/// Why the registry cannot watch a file.
#[derive(Debug, thiserror::Error)]
pub enum FileRegistryError {
    /// A path without a file name.
    #[error("{path} names no file: set node-file to the list of nodes")]
    NoFileName {
        /// The path.
        path: PathBuf,
    },
    /// The kernel refuses another inotify instance.
    #[error(
        "cannot watch the list of nodes for changes: raise the sysctl fs.inotify.max_user_instances"
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
    /// [`FileRegistryError`]. A file that cannot be read is not an error here: the first [`Update`] reports it.
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
            has_begun: false,
            being_written: false,
            candidate: None,
            reported: None,
            unreadable: false,
        };
        registry.rewatch();
        Ok(registry)
    }

    /// Waits for the next update; the first is ready at once. Dropping the future before it is ready loses nothing.
    pub async fn next(&mut self) -> Update {
        // Without the timer, whose steps are 1 ms: no event can have been noticed yet.
        if !std::mem::replace(&mut self.has_begun, true)
            && let Some(update) = self.on_due()
        {
            return update;
        }
        loop {
            let due = self.due.map(|due| due.at);
            tokio::select! {
                // Events first: they decide whether the file may be read.
                biased;
                Some(Ok(event)) = self.events.next() => self.take(&event),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() && !self.being_written => {
                    if let Some(update) = self.on_due() {
                        return update;
                    }
                }
                // Reading events failed and no read is due.
                else => {
                    self.being_written = false;
                    self.due = Some(Due::once(WITHOUT_WATCH));
                }
            }
        }
    }

    /// Reads the file soon, whether it has changed or not.
    pub fn reread(&mut self) {
        self.changed();
    }

    /// A line of the file, or the file as a whole.
    pub(super) fn place(&self, line: Option<usize>) -> RegistryPlace {
        let path = self.path.clone();
        RegistryPlace::File { path, line }
    }

    /// Reports the candidate if the file is still the same, else reads the file.
    fn on_due(&mut self) -> Option<Update> {
        let latest = self.due.take().map(|due| due.latest);
        let watched = self.watch.is_some();
        if !watched {
            self.rewatch();
        }
        if let Some(candidate) = self.candidate.take()
            && candidate.state == FileState::of(&self.path)
        {
            return Some(self.report(candidate));
        }
        let candidate = self.read();
        if self.reported.is_none() && self.has_rested(&candidate) {
            return Some(self.report(candidate));
        }
        if self.reported.as_ref() == Some(&candidate.update) {
            self.unreadable = candidate.unreadable;
            return None;
        }
        self.candidate = Some(candidate);
        // Without a watch until now, the registry did not notice a writer that began earlier.
        let settle = if watched || self.reported.is_none() {
            SETTLE
        } else {
            WITHOUT_WATCH
        };
        let mut due = Due::once(settle);
        due.latest = latest.map_or(due.latest, |latest| latest.max(due.at));
        self.due = Some(due);
        None
    }

    fn report(&mut self, reading: Reading) -> Update {
        self.unreadable = reading.unreadable;
        self.reported = Some(reading.update.clone());
        reading.update
    }

    /// Whether no writer was at work before or during this reading, as far as the file tells.
    fn has_rested(&self, reading: &Reading) -> bool {
        let rested = |state: &FileState| state.has_rested(SystemTime::now(), RESTED);
        reading.state.as_ref().is_some_and(rested) && reading.state == FileState::of(&self.path)
    }

    /// Sets the watch. If that fails, the next read is due in one second.
    fn rewatch(&mut self) {
        self.watch = self
            .events
            .watches()
            .add(&self.directory, watched_events())
            .ok();
        if self.watch.is_none() && self.due.is_none() {
            self.due = Some(Due::once(WITHOUT_WATCH));
        }
    }

    fn take(&mut self, event: &EventOwned) {
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            // The lost events may include the close.
            self.changed();
        } else if Some(&event.wd) == self.watch.as_ref() {
            let lost = EventMask::IGNORED | EventMask::DELETE_SELF | EventMask::MOVE_SELF;
            if event.mask.intersects(lost) {
                // A watch follows the directory's inode, this registry its path. The kernel may have removed the watch.
                let _ = self.events.watches().remove(event.wd.clone());
                self.watch = None;
                self.changed();
            } else if event
                .name
                .as_deref()
                .is_some_and(|name| self.is_relevant(name, event.mask))
            {
                self.note_event(event.mask);
            }
        }
    }

    fn note_event(&mut self, mask: EventMask) {
        if mask.contains(EventMask::MODIFY) {
            self.being_written = true;
            self.candidate = None;
        } else if !mask.contains(EventMask::ATTRIB) || self.unreadable {
            self.changed();
        }
    }

    fn is_relevant(&self, name: &OsStr, mask: EventMask) -> bool {
        // A file created by open() is complete once its writer closes it. A link is complete at once.
        let is_complete = |path: PathBuf| {
            path.symlink_metadata()
                .is_ok_and(|found| !found.is_file() || found.nlink() > 1)
        };
        if mask.contains(EventMask::CREATE) && !is_complete(self.directory.join(name)) {
            return false;
        }
        name == self.file_name || self.linked_through().as_deref() == Some(name)
    }

    /// If the file is a link: the first name of its target, in the watched directory.
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

    /// The file was completed or replaced: it is read after a quiet period.
    fn changed(&mut self) {
        self.being_written = false;
        self.candidate = None;
        let now = Instant::now();
        let latest = self.due.map_or(now + LONGEST_WAIT, |due| due.latest);
        self.due = Some(Due {
            at: latest.min(now + QUIET),
            latest,
        });
    }

    fn read(&self) -> Reading {
        let state = FileState::of(&self.path);
        let (update, unreadable) = match text_file::read(&self.path, MOST_BYTES) {
            Ok(text) => {
                let content = Content {
                    path: &self.path,
                    node_name: &self.node_name,
                };
                (content.interpret(&text, &self.net_conf), false)
            }
            Err(error) => (unreadable(&self.path, &error), true),
        };
        Reading {
            update,
            unreadable,
            state,
        }
    }
}

/// What a file holds at this moment, for the node and the files that `config` names, under `net_conf`.
pub fn read_once(config: &NodeConfig, net_conf: &NetConf) -> Update {
    let path = &config.node_file;
    let content = Content {
        path,
        node_name: &config.node_name,
    };
    match text_file::read(path, MOST_BYTES) {
        Ok(text) => content.interpret(&text, net_conf),
        Err(error) => unreadable(path, &error),
    }
}

/// A text that was read from `path` for the node `node_name`.
struct Content<'a> {
    path: &'a Path,
    node_name: &'a str,
}

impl Content<'_> {
    fn interpret(&self, text: &str, net_conf: &NetConf) -> Update {
        match parse(text, net_conf) {
            Err(error) => refuse(self.path, Some(error.line), error.fault.to_string()),
            Ok(leases) => match own(&leases, self.node_name) {
                Err(reason) => refuse(self.path, None, reason),
                Ok(_) => Update::Leases(leases),
            },
        }
    }
}

fn unreadable(path: &Path, error: &TextFileError) -> Update {
    let line = match error {
        TextFileError::NotText { line, .. } => Some(*line),
        _ => None,
    };
    refuse(path, line, causes(error))
}

fn refuse(path: &Path, line: Option<usize>, reason: String) -> Update {
    let path = path.to_path_buf();
    let place = RegistryPlace::File { path, line };
    Update::Refused { place, reason }
}

fn watched_events() -> WatchMask {
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

/// Longer than the pause between two steps of an editor that saves.
const QUIET: Duration = Duration::from_millis(200);
/// The file is read after this time even if its writer never pauses.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// Events of a write that overlaps a reading arrive within this time.
const SETTLE: Duration = Duration::from_millis(10);
/// A file that was not changed for this long is not being written. Far longer than [`SETTLE`] and than a tick of the clock that
/// file systems take their times from (10 ms at most).
const RESTED: Duration = Duration::from_secs(2);
const WITHOUT_WATCH: Duration = Duration::from_secs(1);
/// A list of 5,000 nodes is 0.6 MB.
const MOST_BYTES: u64 = 16 << 20;
/// One event with the longest name is 272 bytes.
const EVENT_BYTES: usize = 4096;
