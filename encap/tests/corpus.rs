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

#[path = "laws/streams.rs"]
#[allow(dead_code)]
mod streams;

/// Calls `check` with each file of `folder` whose name begins with `prefix`, naming the file first so that a failure
/// says which; returns how many.
fn replay(folder: &str, prefix: &str, check: fn(&[u8])) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let names = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name.starts_with(prefix)).collect();
    names.sort();
    for name in &names {
        println!("{name}");
        check(&fs::read(folder.join(name)).unwrap());
    }
    names.len()
}

#[test]
fn inner() {
    assert!(replay("fuzz/corpus/inner", "", oracle::inner) > 300);
    replay("tests/regressions", "inner-", oracle::inner);
}

#[test]
fn pull() {
    assert!(replay("fuzz/corpus/pull", "", oracle::pull) > 300);
    replay("tests/regressions", "pull-", oracle::pull);
}

#[test]
fn coalesce() {
    assert!(replay("fuzz/corpus/coalesce", "", streams::coalesce) > 100);
    replay("tests/regressions", "coalesce-", streams::coalesce);
}
