//! Theory of operation
//!
//! flannel's `subnet.env`, from which the stock CNI plugin learns this node's
//! subnet and MTU (flannel `pkg/subnet/subnet.go`, WriteSubnetFile). Its bytes
//! are flannel's, so nothing in it can mark it as ours: a note in the state
//! directory names the path and the contents that were written there. It is
//! written before the file, and holds the contents before the last too, so
//! that a crash between the two leaves nothing that is not on record.
//!
//! A file with other contents is replaced while Tartan runs, and left alone by
//! a clean-up: then another process, a flanneld perhaps, has written it since.

pub(super) mod contents;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use cni_shim::atomic_file;
use rustix::fs::OFlags;
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
    if note.path == *path && note.written.last() == Some(&contents) && has_contents(path, &contents)
    {
        return Ok(None);
    }
    let before = (note.path == *path).then_some(note);
    let absent = path.parent().is_some_and(|directory| !directory.exists());
    let note = Note {
        path: path.clone(),
        made_directory: before.as_ref().is_some_and(|note| note.made_directory) || absent,
        written: before
            .and_then(|note| note.written.into_iter().last())
            .into_iter()
            .chain([contents.clone()])
            .collect(),
    };
    note.write(state_dir)?;
    write(path, &contents).map_err(|source| HostError::WriteSubnetFile {
        path: path.clone(),
        source,
    })?;
    Ok(Some(Change::SubnetEnvWritten(path.clone())))
}

/// What became of the file on record.
pub(super) enum Cleared {
    /// There is none.
    Nothing,
    Removed(PathBuf),
    /// Another process has written it since.
    Foreign(PathBuf),
    Failed(PathBuf, HostError),
}

/// Removes the file on record in `state_dir`, if it is still as we wrote it.
pub(super) fn clear(state_dir: &Path) -> Cleared {
    let Some(note) = Note::read(state_dir) else {
        return Cleared::Nothing;
    };
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
    if !note.written.is_empty() {
        // A writer that was killed left it; most often there is none.
        let _ = fs::remove_file(temporary_for(&note.path));
    }
    if !note
        .written
        .iter()
        .any(|contents| has_contents(&note.path, contents))
    {
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

/// flannel's modes: 0755 and 0644, whatever the umask; the plugin of any user
/// may read it.
fn write(path: &Path, contents: &str) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)?;
    let temporary = temporary_for(path);
    let written = write_synced(&temporary, contents).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&temporary);
        return written;
    }
    File::open(directory)?.sync_all()
}

fn temporary_for(path: &Path) -> PathBuf {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tartan-new");
    temporary.into()
}

fn write_synced(path: &Path, contents: &str) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o644)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)?;
    file.write_all(contents.as_bytes())?;
    file.set_permissions(fs::Permissions::from_mode(0o644))?;
    file.sync_all()
}

/// What is on record.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Note {
    path: PathBuf,
    /// Contents written there: the last, and the one before it.
    written: Vec<String>,
    /// Its directory was not there before us.
    made_directory: bool,
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
