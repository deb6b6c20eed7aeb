//! Replays the fuzz corpus and every regression through the functions that the fuzz targets call.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

use std::fs;
use std::path::Path;

#[path = "laws/oracle.rs"]
mod oracle;

/// Calls `check` with each file of `folder`, naming the file first so that a failure says which; returns how many.
fn replay(folder: &str, check: fn(&[u8])) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.retain(|path| path.extension().is_none_or(|extension| extension != "md"));
    files.sort();
    for file in &files {
        println!("{}", file.display());
        check(&fs::read(file).unwrap());
    }
    files.len()
}

#[test]
fn inner() {
    assert!(replay("fuzz/corpus/inner", oracle::inner) > 50);
}

#[test]
fn pull() {
    assert!(replay("fuzz/corpus/pull", oracle::pull) > 50);
}
