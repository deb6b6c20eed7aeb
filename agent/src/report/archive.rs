//! The bundle as one file: a tar archive, compressed with gzip, that every host can unpack.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::fs::OFlags;
use tar::{Builder, Header};
use thiserror::Error;

use super::Bundle;

/// Why there is no file.
#[derive(Debug, Error)]
pub enum ArchiveError {
    /// It is there already, or its directory refuses it.
    #[error(
        "cannot make {path}: name a file that does not exist, in a directory that exists (-w FILE)"
    )]
    Create {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It cannot be written to the end.
    #[error("cannot write the report: check the free space of the disk")]
    Write(#[source] io::Error),
}

/// Writes the bundle to a new file, readable for its owner alone, or, for `-`, to standard output. All paths in it begin
/// with `name`. `modified` is the time of its files, Unix seconds.
///
/// # Errors
/// [`ArchiveError`].
pub fn write(bundle: &Bundle, place: &Path, name: &str, modified: u64) -> Result<(), ArchiveError> {
    if place == Path::new("-") {
        return pack(bundle, io::stdout().lock(), name, modified).map_err(ArchiveError::Write);
    }
    let file = OpenOptions::new()
        .write(true)
        // Another program's file is not written over, nor one that a link leads to.
        .create_new(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(place)
        .map_err(|source| ArchiveError::Create {
            path: place.to_owned(),
            source,
        })?;
    pack(bundle, file, name, modified).map_err(ArchiveError::Write)
}

fn pack(bundle: &Bundle, into: impl Write, name: &str, modified: u64) -> io::Result<()> {
    let mut archive = Builder::new(GzEncoder::new(into, Compression::default()));
    let contents = bundle.contents();
    let first = [("CONTENTS", &*contents)].into_iter();
    let parts = bundle.parts.iter().filter(|part| !part.text.is_empty());
    for (path, text) in first.chain(parts.map(|part| (&*part.path, &*part.text))) {
        let mut header = Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(modified);
        archive.append_data(&mut header, format!("{name}/{path}"), text.as_bytes())?;
    }
    archive.into_inner()?.finish()?.flush()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    use super::super::Part;
    use super::*;

    #[test]
    fn a_bundle_comes_back_whole_and_is_no_one_elses() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("report.tar.gz");
        let bundle = Bundle {
            parts: vec![Part {
                path: "kernel/links".to_owned(),
                text: "1: lo\n".to_owned(),
                missing: None,
            }],
        };
        write(&bundle, &place, "report", 7).unwrap();
        let mode = std::fs::metadata(&place).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let file = std::fs::File::open(&place).unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
        let mut found = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            found.push((entry.path().unwrap().display().to_string(), text));
        }
        assert_eq!(found[0].0, "report/CONTENTS");
        assert_eq!(
            found[1],
            ("report/kernel/links".to_owned(), "1: lo\n".to_owned())
        );
        assert!(matches!(
            write(&bundle, &place, "report", 7),
            Err(ArchiveError::Create { .. })
        ));
    }
}
