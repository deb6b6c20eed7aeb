//! Which process holds a lock, for error messages.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// `process PID (NAME)` of the process that has a `flock` on the file at `path`;
/// none where the kernel does not say.
pub(crate) fn of(path: &Path) -> Option<String> {
    let file = fs::metadata(path).ok()?;
    let locks = locks().ok()?;
    let pid = holders(&locks, file.ino()).find(|pid| has_open(*pid, &file))?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(format!("process {pid} ({})", name.trim_end()))
}

/// All locks, read a page at a time so that each page is consistent: between two
/// smaller reads a lock that is released hides another (fs/seq_file.c counts lines).
fn locks() -> io::Result<String> {
    let mut text = String::with_capacity(LONG_LIST);
    File::open("/proc/locks")?.read_to_string(&mut text)?;
    Ok(text)
}

/// `1: FLOCK  ADVISORY  WRITE 708 00:1a:4242 0 EOF` (proc_locks(5)); those that
/// wait have `->` behind the number. The device of an overlay is not that of
/// its files, so the inode alone has to do, which a file elsewhere may have too.
fn holders(locks: &str, inode: u64) -> impl Iterator<Item = u32> {
    locks.lines().filter_map(move |line| {
        let mut words = line.split_whitespace().skip(1);
        let [kind, _, _, pid, place] = std::array::from_fn(|_| words.next().unwrap_or_default());
        let found = place.rsplit(':').next()?.parse() == Ok(inode);
        (kind == "FLOCK" && found).then(|| pid.parse().ok())?
    })
}

/// Whether that process has this file open. The one that took the lock may have
/// ended, a child of it holding it still, and another have its id by now.
fn has_open(pid: u32, file: &Metadata) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
    let mut opened = descriptors.into_iter().flatten().flatten();
    opened.any(|one| {
        let found = fs::metadata(one.path());
        found.is_ok_and(|found| (found.dev(), found.ino()) == (file.dev(), file.ino()))
    })
}

/// In bytes; a buffer of this size avoids small reads.
const LONG_LIST: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_found_and_a_waiting_process_is_not() {
        let locks = "1: FLOCK  ADVISORY  WRITE 708 00:1a:42 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 709 00:1a:43 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 710 00:1a:43 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 711 00:1a:43 0 EOF\n4:\nnonsense";
        let found = |inode| holders(locks, inode).collect::<Vec<_>>();
        assert_eq!(found(42), [708]);
        assert_eq!(found(43), [711]);
        assert!(found(44).is_empty());
    }

    #[test]
    fn only_a_process_that_has_the_file_open_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let metadata = file.as_file().metadata().unwrap();
        assert!(has_open(std::process::id(), &metadata));
        let mut other = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        assert!(!has_open(other.id(), &metadata));
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(!has_open(0, &metadata));
        file.as_file().lock().unwrap();
        let named = of(file.path()).unwrap();
        assert!(
            named.starts_with(&format!("process {} (", std::process::id())),
            "{named}"
        );
    }
}
