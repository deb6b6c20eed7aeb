//! A note, in the state directory, of the devices that Tartan gave a queueing discipline for filters: names, one a line.
//!
//! The kernel keeps no word of who made one. Devices of ours and of pods take theirs with them and are not noted.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use crate::config::text_file;
use crate::host::error::HostError;

/// Notes a device.
///
/// # Errors
/// [`HostError::WriteRecord`].
pub(super) fn note(state_dir: &Path, device: &str) -> Result<(), HostError> {
    if noted(state_dir).iter().any(|known| known == device) {
        return Ok(());
    }
    let path = state_dir.join(NAME);
    let written = fs::create_dir_all(state_dir).and_then(|()| {
        let mut file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)?;
        writeln!(file, "{device}")
    });
    written.map_err(|source: io::Error| HostError::WriteRecord { path, source })
}

/// The devices that were noted.
pub(super) fn noted(state_dir: &Path) -> Vec<String> {
    let text = text_file::read(&state_dir.join(NAME), LONGEST).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Its name in the state directory.
const NAME: &str = "kernel-path-devices";
/// Bytes: several hundred names.
const LONGEST: u64 = 8 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_noted_once() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        assert!(noted(&state).is_empty());
        for device in ["eth0", "bond1", "eth0"] {
            note(&state, device).unwrap();
        }
        assert_eq!(noted(&state), ["eth0", "bond1"]);
    }
}
