//! Reads a text file that another program writes: the whole file, up to a size limit, and regular files only.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Why a file could not be read as text.
#[derive(Debug, thiserror::Error)]
pub enum TextFileError {
    /// The kernel refused it.
    #[error("cannot read {path}: check that it exists and that root may read it")]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A directory, a pipe or a device.
    #[error("{path} is not a regular file: name a file")]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Larger than the limit.
    #[error("{path} is larger than {limit} bytes: name the right file")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit, bytes.
        limit: u64,
    },
    /// Not UTF-8 text.
    #[error("{path} is not UTF-8 text in line {line}: name the right file, or save it as UTF-8")]
    NotText {
        /// The file.
        path: PathBuf,
        /// Line of the first invalid byte, counted from 1.
        line: usize,
    },
}

impl TextFileError {
    /// Whether the file does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, TextFileError::Read { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// Reads the file at `path`, of at most `limit` bytes. Never blocks: a pipe is refused.
pub(crate) fn read(path: &Path, limit: u64) -> Result<String, TextFileError> {
    let path = || path.to_path_buf();
    let failed = |source| TextFileError::Read {
        path: path(),
        source,
    };
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path());
    let file = opened.map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(TextFileError::NotAFile { path: path() });
    }
    // The files of proc(5) do not say how large they are, and a small buffer would be read into many times.
    let mut bytes = Vec::with_capacity(PIECE.min(usize::try_from(limit).unwrap_or(PIECE)));
    file.take(limit.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > limit {
        return Err(TextFileError::TooLarge {
            path: path(),
            limit,
        });
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = error
            .as_bytes()
            .iter()
            .take(error.utf8_error().valid_up_to());
        TextFileError::NotText {
            path: path(),
            line: good.filter(|byte| **byte == b'\n').count() + 1,
        }
    })
}

/// Bytes that are read at a time.
const PIECE: usize = 8 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_text_files_within_the_limit_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        assert!(read(&path, 4).unwrap_err().is_missing());
        std::fs::write(&path, "four").unwrap();
        assert_eq!(read(&path, 4).unwrap(), "four");
        assert!(matches!(
            read(&path, 3),
            Err(TextFileError::TooLarge { limit: 3, .. })
        ));
        std::fs::write(&path, b"a\nb\xff").unwrap();
        assert!(matches!(
            read(&path, 4),
            Err(TextFileError::NotText { line: 2, .. })
        ));
        assert!(matches!(
            read(directory.path(), 4),
            Err(TextFileError::NotAFile { .. })
        ));
        assert!(matches!(
            read(Path::new("/dev/zero"), 4),
            Err(TextFileError::NotAFile { .. })
        ));
    }

    #[test]
    fn a_pipe_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
        assert!(matches!(
            read(&path, 4),
            Err(TextFileError::NotAFile { .. })
        ));
    }
}
