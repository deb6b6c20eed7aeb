//! Theory of operation
//!
//! flannel's `subnet.env`, from which the stock CNI plugin learns this node's
//! subnet and MTU (flannel `pkg/subnet/subnet.go`, WriteSubnetFile). Its bytes
//! are flannel's, so nothing in it can mark it as ours, and a flanneld on this
//! node writes the same: a note in the state directory names the path, the
//! contents that were written there, and which file that made (device, inode,
//! time of the last write). The note is written when the new file is complete
//! and before it is renamed, and holds the one before the last too, so that a
//! crash at any point leaves nothing that is not on record.
//!
//! A file with other contents is replaced while Tartan runs. One with the right
//! contents that another process wrote stays, and is not ours. A clean-up leaves
//! alone every file but the one on record.

pub(super) mod contents;

pub use contents::subnets;

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cni_shim::atomic_file::{self, Replacement};
use serde::{Deserialize, Serialize};

use super::Host;
use super::change::Change;
use super::error::HostError;
use super::host_state::HostState;
use crate::file_state::FileState;

impl Host {
    /// Writes `subnet.env` as `desired` has it, and removes the file at the path
    /// used before, if that was another. Returns what had to be changed.
    ///
    /// # Errors
    /// [`HostError::WriteSubnetFile`], [`HostError::WriteRecord`] or
    /// [`HostError::RemoveFile`].
    pub fn write_subnet_env(&mut self, desired: &HostState) -> Result<Option<Change>, HostError> {
        // Before it is read: what is written afterwards makes another state.
        self.subnet_file = FileState::of(&desired.subnet_file);
        let change = write_noted(self.record.directory(), desired)?;
        if change.is_some() {
            self.subnet_file = FileState::of(&desired.subnet_file);
        }
        Ok(change)
    }
}

/// The file, and the note of it in `state_dir`.
fn write_noted(state_dir: &Path, desired: &HostState) -> Result<Option<Change>, HostError> {
    let path = &desired.subnet_file;
    let contents = desired.subnet_env.to_string();
    let note = Note::read(state_dir).unwrap_or_default();
    if note.path != *path {
        remove(&note)?;
    }
    if has_contents(path, &contents) {
        return Ok(None);
    }
    let before = (note.path == *path).then_some(note);
    let absent = path.parent().is_some_and(|directory| !directory.exists());
    let mut note = Note {
        path: path.clone(),
        made_directory: before.as_ref().is_some_and(|note| note.made_directory) || absent,
        written: before
            .and_then(|note| note.written.into_iter().last())
            .into_iter()
            .collect(),
    };
    let mut refused = None;
    let written = write(path, &contents, |file| {
        note.written.push(file);
        note.write(state_dir).map_err(|error| {
            refused = Some(error);
            io::Error::other("the note of it cannot be written")
        })
    });
    match (refused, written) {
        (Some(error), _) => Err(error),
        (None, Err(source)) => Err(HostError::WriteSubnetFile {
            path: path.clone(),
            source,
        }),
        (None, Ok(())) => Ok(Some(Change::SubnetEnvWritten(path.clone()))),
    }
}

/// The file that is on record in `state_dir` as written by an agent, whether it is there still or not.
pub(super) fn written(state_dir: &Path) -> Option<PathBuf> {
    Note::read(state_dir).map(|note| note.path)
}

/// What became of the file on record.
pub(super) enum Cleared {
    /// There is none.
    Nothing,
    Removed(PathBuf),
    /// Another process has written it since.
    Foreign(PathBuf),
    /// It stays for flannel, whose place is given back.
    KeptForFlannel(PathBuf),
    Failed(PathBuf, HostError),
}

/// Removes the file on record in `state_dir`, if it is still as we wrote it, or leaves it to flannel: its CNI plugin reads
/// it at every pod, and flanneld takes the subnet from it (flannel `main.go`, ReadCIDRFromSubnetFile).
pub(super) fn clear(state_dir: &Path, keep_for_flannel: bool) -> Cleared {
    let Some(note) = Note::read(state_dir) else {
        return Cleared::Nothing;
    };
    if keep_for_flannel && note.path.exists() {
        return Cleared::KeptForFlannel(note.path);
    }
    match remove(&note) {
        Ok(true) => Cleared::Removed(note.path),
        Ok(false) if note.path.exists() => Cleared::Foreign(note.path),
        Ok(false) => Cleared::Nothing,
        Err(error) => Cleared::Failed(note.path, error),
    }
}

/// Removes the file if it is as we wrote it, and its directory if we made that
/// and nothing else is there; `true` when the file was ours.
fn remove(note: &Note) -> Result<bool, HostError> {
    if !note.written.is_empty()
        && let Some(directory) = note.path.parent()
    {
        atomic_file::remove_temporaries(&note.path, directory);
    }
    if !note.written.iter().any(|written| written.is_at(&note.path)) {
        return Ok(false);
    }
    fs::remove_file(&note.path).map_err(|source| HostError::RemoveFile {
        path: note.path.clone(),
        source,
    })?;
    if let Some(directory) = note.path.parent().filter(|_| note.made_directory) {
        // The kernel refuses this while anything is left in it, as intended.
        let _ = fs::remove_dir(directory);
    }
    Ok(true)
}

fn has_contents(path: &Path, contents: &str) -> bool {
    atomic_file::read(path, LONGEST).is_ok_and(|found| found == contents.as_bytes())
}

/// flannel's modes, 0755 and 0644, whatever the umask: plugins of any user may read it. `note` gets the file that it
/// is going to be; its refusal leaves the one before.
fn write(
    path: &Path,
    contents: &str,
    note: impl FnOnce(Written) -> io::Result<()>,
) -> io::Result<()> {
    atomic_file::make_directory(path, 0o755)?;
    let replacement = Replacement::of(path).mode(0o644).synced();
    replacement.write_checked(contents.as_bytes(), |complete| {
        note(Written::of(contents, &complete.symlink_metadata()?))
    })
}

/// What is on record.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Note {
    path: PathBuf,
    /// What was written there: the last, and the one before it.
    written: Vec<Written>,
    /// Its directory was not there before us.
    made_directory: bool,
}

/// One file that we wrote. Another process that writes the same contents makes another file, or writes it at another time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    contents: String,
    device: u64,
    inode: u64,
    /// Time of the last write: seconds and nanoseconds since 1970.
    modified: (i64, i64),
}

impl Written {
    fn of(contents: &str, file: &Metadata) -> Written {
        Written {
            contents: contents.to_owned(),
            device: file.dev(),
            inode: file.ino(),
            modified: (file.mtime(), file.mtime_nsec()),
        }
    }

    /// Whether the file at `path` is this one, as it was written.
    fn is_at(&self, path: &Path) -> bool {
        let found = path.symlink_metadata();
        found.is_ok_and(|found| Written::of(&self.contents, &found) == *self)
            && has_contents(path, &self.contents)
    }
}

impl Note {
    /// None, too, if it cannot be read: then no file is known to be ours.
    fn read(state_dir: &Path) -> Option<Note> {
        serde_json::from_slice(&atomic_file::read(&state_dir.join(NOTE), LONGEST).ok()?).ok()
    }

    fn write(&self, state_dir: &Path) -> Result<(), HostError> {
        let path = state_dir.join(NOTE);
        let written = serde_json::to_vec(self)
            .map_err(io::Error::from)
            .and_then(|text| atomic_file::replace_for_good(&path, &text));
        written.map_err(|source| HostError::WriteRecord { path, source })
    }
}

/// The note's name in the state directory.
pub(super) const NOTE: &str = "subnet-env.json";
/// Longest file read, in bytes: a hundred times what is written.
const LONGEST: u64 = 64 * 1024;

#[cfg(test)]
mod tests;
