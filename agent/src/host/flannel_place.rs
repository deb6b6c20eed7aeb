//! A note in the state directory of whether the agent takes flannel's place on this node.
//!
//! A clean-up goes by it: the key `replace-flannel` may have been a flag, a variable or the name `flanneld`, of which nothing
//! is left when the agent has stopped.

use std::path::Path;

use cni_shim::atomic_file;

use super::error::HostError;

/// Writes down in `state_dir` whether flannel's place is taken. An equal note stays as it is.
///
/// # Errors
/// [`HostError::WriteRecord`].
pub fn note_flannel_place(state_dir: &Path, is_taken: bool) -> Result<(), HostError> {
    if takes_flannel_place(state_dir) == Some(is_taken) {
        return Ok(());
    }
    let path = state_dir.join(NAME);
    let text: &[u8] = if is_taken { TAKEN } else { NOT_TAKEN };
    atomic_file::replace_for_good(&path, text)
        .map_err(|source| HostError::WriteRecord { path, source })
}

/// Whether the agent of `state_dir` took flannel's place at its last start. None where no note can be read.
pub fn takes_flannel_place(state_dir: &Path) -> Option<bool> {
    match atomic_file::read(&state_dir.join(NAME), LONGEST).ok()? {
        text if text == TAKEN => Some(true),
        text if text == NOT_TAKEN => Some(false),
        _ => None,
    }
}

/// The note's name in the state directory.
pub(super) const NAME: &str = "flannel-place";
const TAKEN: &[u8] = b"taken\n";
const NOT_TAKEN: &[u8] = b"not taken\n";
/// Bytes.
const LONGEST: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_note_counts_and_nonsense_is_none() {
        let root = tempfile::tempdir().unwrap();
        let state = root.path().join("state");
        assert_eq!(takes_flannel_place(&state), None);
        for is_taken in [true, false, true] {
            note_flannel_place(&state, is_taken).unwrap();
            assert_eq!(takes_flannel_place(&state), Some(is_taken));
        }
        std::fs::write(state.join(NAME), "maybe\n").unwrap();
        assert_eq!(takes_flannel_place(&state), None);
    }
}
