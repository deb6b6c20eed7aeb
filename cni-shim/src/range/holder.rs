//! Who holds the range's lock, for people.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// `process PID (NAME)` of whoever has a `flock` on the file at `path`; none
/// where the kernel does not tell.
pub(super) fn of(path: &Path) -> Option<String> {
    let inode = fs::metadata(path).ok()?.ino();
    let pid = holder(&fs::read_to_string("/proc/locks").ok()?, inode)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(format!("process {pid} ({})", name.trim_end()))
}

/// `1: FLOCK  ADVISORY  WRITE 708 00:1a:4242 0 EOF` (proc_locks(5)); those that
/// wait have `->` behind the number. The device of an overlay is not that of
/// its files, so the inode alone has to do.
fn holder(locks: &str, inode: u64) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let [kind, _, _, pid, place] = std::array::from_fn(|_| words.next().unwrap_or_default());
        let found = place.rsplit(':').next()?.parse() == Ok(inode);
        (kind == "FLOCK" && found).then(|| pid.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_found_and_who_waits_is_not() {
        let locks = "1: FLOCK  ADVISORY  WRITE 708 00:1a:42 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 709 00:1a:43 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 710 00:1a:43 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 711 00:1a:43 0 EOF\n4:\nnonsense";
        assert_eq!(holder(locks, 42), Some(708));
        assert_eq!(holder(locks, 43), Some(711));
        assert_eq!(holder(locks, 44), None);
    }
}
