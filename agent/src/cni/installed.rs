//! What installations on this host wrote, and where: a later one renews it there, and a removal finds it.
//!
//! Theory of operation. The record, `var/lib/tartan/cni-installed.json`, is written before the files that it names, so that
//! a removal knows the places of an installation that was killed halfway. For each list it keeps the last texts that were
//! written there: a file with one of them was not changed since, whichever release of Tartan wrote it. The record
//! goes when all that it names is removed; `tartan cleanup` leaves it, because it leaves the plugin too.
//!
//! In the file, paths below the root are relative to it: a container that installs with `--root /host` and the host itself
//! have the same record under two names. A path outside the root is absolute there.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cni_shim::{FileAction, FileError, atomic_file};
use serde::{Deserialize, Serialize};

/// Its name in the state directory.
pub const NAME: &str = "cni-installed.json";

/// The record. The last of a list is what was installed last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Installed {
    /// Of this record's form.
    version: u32,
    /// Directories with our program in them, absolute.
    pub bin_dirs: Vec<PathBuf>,
    /// Our configurations.
    pub lists: Vec<InstalledList>,
}

/// A configuration that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstalledList {
    /// The file, absolute.
    pub path: PathBuf,
    /// The network's name.
    pub network: String,
    /// What was written there, the newest last.
    pub texts: Vec<String>,
}

impl Installed {
    /// The record below this root; an empty one where there is none.
    ///
    /// # Errors
    /// Where it cannot be read or is none of ours.
    pub fn read(root: &Path) -> Result<Installed, FileError> {
        let path = path(root);
        let failed = || FileAction::Read.failed(&path);
        let size = match path.metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Installed::default());
            }
            found => found.map_err(failed())?.len(),
        };
        if size > MOST_BYTES {
            return Err(failed()(io::ErrorKind::FileTooLarge.into()));
        }
        let bytes = fs::read(&path).map_err(failed())?;
        let mut read: Installed =
            serde_json::from_slice(&bytes).map_err(|error| failed()(error.into()))?;
        if read.version != VERSION {
            let reason = format!("it has version {}, not {VERSION}", read.version);
            return Err(failed()(io::Error::new(io::ErrorKind::InvalidData, reason)));
        }
        // An absolute one stays as it is.
        read.map_paths(|path| root.join(path));
        Ok(read)
    }

    /// Notes what is about to be written, as the last.
    pub fn note(&mut self, bin_dir: &Path, list: &Path, network: &str, text: &str) {
        self.bin_dirs.retain(|known| known != bin_dir);
        self.bin_dirs.push(bin_dir.to_owned());
        let before = self.lists.iter().find(|known| known.path == list);
        let mut texts = before
            .map(|before| before.texts.clone())
            .unwrap_or_default();
        texts.retain(|known| known != text);
        texts.push(text.to_owned());
        texts.drain(..texts.len().saturating_sub(MOST_TEXTS));
        self.lists.retain(|known| known.path != list);
        self.lists.push(InstalledList {
            path: list.to_owned(),
            network: network.to_owned(),
            texts,
        });
    }

    /// Forgets what is in these directories.
    pub fn forget(&mut self, bin_dirs: &[PathBuf], conf_dirs: &[PathBuf]) {
        self.bin_dirs.retain(|known| !bin_dirs.contains(known));
        self.lists
            .retain(|known| !known.directory().is_some_and(|d| conf_dirs.contains(&d)));
    }

    /// Whether the file at `path` has a text that an installation wrote there.
    pub fn wrote(&self, path: &Path, bytes: &[u8]) -> bool {
        let mut lists = self.lists.iter();
        lists.any(|list| list.path == path && list.texts.iter().any(|t| t.as_bytes() == bytes))
    }

    /// Temporary files of the record that killed writers left.
    pub fn temporaries(root: &Path) -> Vec<PathBuf> {
        atomic_file::temporaries(&path(root), &root.join(STATE_DIR))
    }

    /// Writes the record, or removes it once it names nothing.
    ///
    /// # Errors
    /// Where the state directory cannot be written.
    pub fn write(&mut self, root: &Path) -> Result<(), FileError> {
        let path = path(root);
        if self.bin_dirs.is_empty() && self.lists.is_empty() {
            return match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(FileAction::Remove.failed(&path)(error))
                }
                _ => {
                    // Where no agent ever ran, nothing else is in it.
                    let _ = fs::remove_dir(root.join(STATE_DIR));
                    Ok(())
                }
            };
        }
        self.version = VERSION;
        let mut kept = self.clone();
        kept.map_paths(|path| path.strip_prefix(root).unwrap_or(path).to_owned());
        let text = serde_json::to_vec_pretty(&kept).map_err(io::Error::from);
        text.and_then(|text| atomic_file::replace_for_good(&path, &text))
            .map_err(FileAction::Write.failed(&path))
    }

    fn map_paths(&mut self, map: impl Fn(&Path) -> PathBuf) {
        let lists = self.lists.iter_mut().map(|list| &mut list.path);
        for path in self.bin_dirs.iter_mut().chain(lists) {
            *path = map(path);
        }
    }
}

impl InstalledList {
    /// Where it lies.
    pub fn directory(&self) -> Option<PathBuf> {
        self.path.parent().map(Path::to_owned)
    }
}

fn path(root: &Path) -> PathBuf {
    root.join(STATE_DIR).join(NAME)
}

const STATE_DIR: &str = "var/lib/tartan";
const VERSION: u32 = 1;
/// The text in force and the one that an installation was about to write when it was killed.
const MOST_TEXTS: usize = 2;
/// A record has a few thousand.
const MOST_BYTES: u64 = 1 << 20;
