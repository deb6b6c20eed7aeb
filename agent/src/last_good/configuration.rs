//! The `tartan.toml` by which a service forwarded last: what a service starts by when the file is broken.
//!
//! `last-good-configuration.json` of the state directory holds the text, the path that it was read from, and a digest. It
//! is replaced once a service forwards by another text. The text passes the same checks as the file, with the flags
//! and variables of the day; that of another path is none of ours. Bound: 8 MiB, more than the longest file becomes.

use std::io;
use std::path::Path;

use cni_shim::atomic_file;
use serde::{Deserialize, Serialize};

use super::{LastGoodError, Refusal, VERSION, digest};

/// The text that was read from `file` and that a service forwarded by; `None` where there is none.
///
/// # Errors
/// [`LastGoodError::Refused`] with the first thing that is wrong.
pub fn read(state_dir: &Path, file: &Path) -> Result<Option<String>, LastGoodError> {
    let path = state_dir.join(NAME);
    let parsed = match atomic_file::read(&path, MOST_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => Err(Refusal::Read(error)),
        Ok(bytes) => parse(&bytes),
    };
    match parsed {
        Ok(kept) if kept.path == file.to_string_lossy() => Ok(Some(kept.text)),
        Ok(_) => Ok(None),
        Err(source) => Err(LastGoodError::Refused { path, source }),
    }
}

/// Writes the text of `file`, by which the service forwards, unless it is there.
///
/// # Errors
/// [`LastGoodError::Write`]; the one before is there as it was.
pub fn write(state_dir: &Path, file: &Path, text: &str) -> Result<(), LastGoodError> {
    if let Ok(Some(kept)) = read(state_dir, file)
        && kept == text
    {
        return Ok(());
    }
    let path = state_dir.join(NAME);
    let mut kept = StateFile {
        version: VERSION,
        path: file.to_string_lossy().into_owned(),
        text: text.to_owned(),
        digest: String::new(),
    };
    kept.digest = kept.digest_of_rest();
    let written = serde_json::to_vec_pretty(&kept)
        .map_err(io::Error::from)
        .and_then(|text| atomic_file::replace_for_good(&path, &text));
    written.map_err(|source| LastGoodError::Write { path, source })
}

/// The file's shape.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct StateFile {
    version: u32,
    path: String,
    text: String,
    digest: String,
}

impl StateFile {
    fn digest_of_rest(&self) -> String {
        digest([&self.path, &self.text])
    }
}

fn parse(bytes: &[u8]) -> Result<StateFile, Refusal> {
    let file: StateFile = serde_json::from_slice(bytes).map_err(Refusal::Form)?;
    if file.version != VERSION {
        return Err(Refusal::Version(file.version));
    }
    if file.digest != file.digest_of_rest() {
        return Err(Refusal::Digest);
    }
    Ok(file)
}

/// The file's name in the state directory.
const NAME: &str = "last-good-configuration.json";
const MOST_BYTES: u64 = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_the_same_path_alone_is_read_and_damage_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (ours, other) = (Path::new("/etc/a.toml"), Path::new("/etc/b.toml"));
        assert_eq!(read(directory.path(), ours).unwrap(), None);
        write(directory.path(), ours, "workers = 2\n").unwrap();
        write(directory.path(), ours, "workers = 3\n").unwrap();
        let kept = read(directory.path(), ours).unwrap();
        assert_eq!(kept.as_deref(), Some("workers = 3\n"));
        assert_eq!(read(directory.path(), other).unwrap(), None);
        let path = directory.path().join(NAME);
        let text = std::fs::read_to_string(&path).unwrap();
        for (whole, damaged) in [
            ("= 3", "= 4"),
            ("\"version\": 1", "\"version\": 2"),
            ("{", ""),
        ] {
            std::fs::write(&path, text.replace(whole, damaged)).unwrap();
            let refused = read(directory.path(), ours);
            assert!(
                matches!(refused, Err(LastGoodError::Refused { .. })),
                "{damaged}"
            );
        }
        write(directory.path(), ours, "").unwrap();
        assert_eq!(read(directory.path(), ours).unwrap().as_deref(), Some(""));
    }
}
