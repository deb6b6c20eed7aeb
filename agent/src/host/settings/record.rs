//! Theory of operation
//!
//! The record of what Tartan changed outside its own device: for each setting
//! the value found and the value written, in `host.json` of the state
//! directory. It is written before the setting is, by temporary file, fsync and
//! rename, and outlives a crash. While the file cannot be written the settings
//! are made all the same; after a crash the old values are lost then.
//!
//! A record holds for one boot and one network namespace, both of which it
//! names; settings do not survive either. One of another boot or namespace is
//! not used, or a clean-up after a reboot would undo what the administrator's
//! `sysctl.d` had set. Contents are checked like any hostile input: only
//! settings that Tartan ever changes are accepted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cni_shim::atomic_file;
use serde::{Deserialize, Serialize};

use super::setting::Setting;
use crate::host::error::HostError;

/// Settings that were changed, and the file that lists them.
#[derive(Debug)]
pub(in crate::host) struct SettingsRecord {
    path: PathBuf,
    scope: Scope,
    changes: Vec<RecordedChange>,
    write_error: Option<Box<HostError>>,
}

/// One setting changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) struct RecordedChange {
    pub(in crate::host) setting: Setting,
    pub(in crate::host) found: i32,
    pub(in crate::host) wrote: i32,
}

/// Where and when a record holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::host) struct Scope {
    /// The kernel's random id of this boot.
    boot: String,
    /// The network namespace, as `/proc` names it: `net:[4026531840]`.
    namespace: String,
}

/// A record as found on disk.
#[derive(Debug)]
pub(in crate::host) enum RecordOnDisk {
    /// There is none.
    Nothing,
    /// It is of this boot and namespace.
    Current(SettingsRecord),
    /// It is of another boot, which no setting survived: of no use.
    EarlierBoot,
    /// It is of another network namespace of this boot; its name.
    OtherNamespace(String),
}

impl Scope {
    /// This boot, and the calling thread's network namespace.
    pub(in crate::host) fn here() -> Result<Scope, HostError> {
        let unreadable = |path| move |source| HostError::Identity { path, source };
        let boot = fs::read_to_string(BOOT).map_err(unreadable(BOOT))?;
        let namespace = fs::read_link(NAMESPACE).map_err(unreadable(NAMESPACE))?;
        Ok(Scope {
            boot: boot.trim().to_owned(),
            namespace: namespace.to_string_lossy().into_owned(),
        })
    }
}

impl SettingsRecord {
    /// An empty record, not yet written.
    pub(in crate::host) fn new(state_dir: &Path, scope: Scope) -> SettingsRecord {
        SettingsRecord {
            path: state_dir.join(NAME),
            scope,
            changes: Vec::new(),
            write_error: None,
        }
    }

    /// Reads the record of a state directory.
    pub(in crate::host) fn read(
        state_dir: &Path,
        scope: &Scope,
    ) -> Result<RecordOnDisk, HostError> {
        let path = state_dir.join(NAME);
        let refused = |source| HostError::ReadRecord {
            path: path.clone(),
            source,
        };
        let bytes = match atomic_file::read(&path, LONGEST) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(RecordOnDisk::Nothing);
            }
            Err(source) => return Err(refused(source)),
        };
        let written = parse(&bytes).map_err(refused)?;
        if written.scope.boot != scope.boot {
            return Ok(RecordOnDisk::EarlierBoot);
        }
        if written.scope != *scope {
            return Ok(RecordOnDisk::OtherNamespace(written.scope.namespace));
        }
        Ok(RecordOnDisk::Current(SettingsRecord {
            path,
            scope: written.scope,
            changes: written.changes,
            write_error: None,
        }))
    }

    /// The state directory.
    pub(in crate::host) fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// The changes on record, oldest first.
    pub(in crate::host) fn changes(&self) -> &[RecordedChange] {
        &self.changes
    }

    /// Notes one change and writes the record. The value found last is the one
    /// kept: a change by another process while Tartan ran was intended.
    ///
    /// The setting is made even where the file cannot be written, so that pods
    /// are connected: [`write_error`](SettingsRecord::write_error) has the reason,
    /// [`retry_write`](SettingsRecord::retry_write) tries again.
    pub(in crate::host) fn add(&mut self, setting: &Setting, found: i32, wrote: i32) {
        self.add_all([(setting.clone(), found, wrote)]);
    }

    /// The same for several changes, with one write: each its setting, the value found and the value to be written.
    pub(in crate::host) fn add_all(
        &mut self,
        changes: impl IntoIterator<Item = (Setting, i32, i32)>,
    ) {
        for (setting, found, wrote) in changes {
            self.changes.retain(|change| change.setting != setting);
            self.changes.push(RecordedChange {
                setting,
                found,
                wrote,
            });
        }
        self.save();
    }

    /// Removes a change that was undone, or that another process has overwritten.
    pub(in crate::host) fn remove(&mut self, setting: &Setting) {
        self.changes.retain(|change| change.setting != *setting);
        self.save();
    }

    /// Writes the record if that failed before.
    pub(in crate::host) fn retry_write(&mut self) {
        if self.write_error.is_some() {
            self.save();
        }
    }

    /// Why the record on disk is older than this one.
    pub(in crate::host) fn write_error(&self) -> Option<&HostError> {
        self.write_error.as_deref()
    }

    fn save(&mut self) {
        let failed = |source| HostError::WriteRecord {
            path: self.path.clone(),
            source,
        };
        self.write_error = self.write().map_err(failed).err().map(Box::new);
    }

    fn write(&self) -> io::Result<()> {
        let file = RecordFile {
            version: VERSION,
            scope: self.scope.clone(),
            settings: self
                .changes
                .iter()
                .map(|change| SettingLine {
                    key: change.setting.path(),
                    found: change.found,
                    wrote: change.wrote,
                })
                .collect(),
        };
        let mut text = serde_json::to_vec_pretty(&file)?;
        text.push(b'\n');
        atomic_file::replace_for_good(&self.path, &text)
    }
}

/// The file's shape.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordFile {
    version: u32,
    #[serde(rename = "place")]
    scope: Scope,
    settings: Vec<SettingLine>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SettingLine {
    key: String,
    found: i32,
    wrote: i32,
}

/// A file that was understood.
#[derive(Debug, PartialEq, Eq)]
struct Parsed {
    scope: Scope,
    changes: Vec<RecordedChange>,
}

fn parse(bytes: &[u8]) -> io::Result<Parsed> {
    let file: RecordFile = serde_json::from_slice(bytes)?;
    if file.version != VERSION {
        return Err(io::Error::other(format!(
            "it is of version {}, this Tartan reads version {VERSION}",
            file.version
        )));
    }
    let changes = file
        .settings
        .into_iter()
        .map(|line| {
            let setting = Setting::parse(&line.key).ok_or_else(|| {
                io::Error::other(format!(
                    "{:?} is not a setting that Tartan changes",
                    line.key
                ))
            })?;
            Ok(RecordedChange {
                setting,
                found: line.found,
                wrote: line.wrote,
            })
        })
        .collect::<io::Result<_>>()?;
    Ok(Parsed {
        scope: file.scope,
        changes,
    })
}

/// The record's name in the state directory.
pub(in crate::host) const NAME: &str = "host.json";
const VERSION: u32 = 1;
/// Longest record read, in bytes: room for more uplinks than any node has.
const LONGEST: u64 = 256 * 1024;
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
const NAMESPACE: &str = "/proc/thread-self/ns/net";

#[cfg(test)]
mod tests;
