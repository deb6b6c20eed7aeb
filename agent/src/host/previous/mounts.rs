//! Where something is mounted in this mount namespace: `/proc/thread-self/mountinfo`, proc_pid_mountinfo(5).

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Mount points, as the calling thread reaches them.
#[derive(Debug)]
pub(super) struct Mounts(Vec<PathBuf>);

impl Mounts {
    /// # Errors
    /// Where the list cannot be read, or names none: a thread has its root at least.
    pub(super) fn read() -> io::Result<Mounts> {
        let mounts = Mounts::parse(&fs::read("/proc/thread-self/mountinfo")?);
        match mounts.0.is_empty() {
            true => Err(io::ErrorKind::InvalidData.into()),
            false => Ok(mounts),
        }
    }

    fn parse(list: &[u8]) -> Mounts {
        let lines = list.split(|byte| *byte == b'\n');
        let points = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(POINT));
        Mounts(points.map(unescaped).collect())
    }

    /// A mount point that is this path, which has no symbolic link in it, or is below it.
    pub(super) fn at_or_below(&self, path: &Path) -> Option<&Path> {
        let found = self.0.iter().find(|point| point.starts_with(path));
        found.map(PathBuf::as_path)
    }
}

/// The kernel writes spaces, tabs, line ends and backslashes as a backslash and three octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let escaped = match rest {
            [
                b'\\',
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                tail @ ..,
            ] => Some((((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'), tail)),
            _ => None,
        };
        let (byte, tail) = escaped.unwrap_or((*first, tail));
        bytes.push(byte);
        rest = tail;
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// The field of the mount point, counted from 0.
const POINT: usize = 4;

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use proptest::prelude::*;

    use super::*;

    const LIST: &[u8] = b"21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
        36 21 8:1 /srv/data /var/lib/calico/data rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
        37 21 8:1 /x /var/lib/we\\040ave\\134 rw - ext4 /dev/sda1 rw\n";

    #[test]
    fn a_bind_mount_of_the_same_file_system_is_seen() {
        let mounts = Mounts::parse(LIST);
        let found = |path: &str| mounts.at_or_below(Path::new(path)).is_some();
        assert!(found("/var/lib/calico") && found("/var/lib/calico/data"));
        assert!(found("/var/lib/we ave\\"));
        assert!(!found("/var/lib/cali") && !found("/var/lib/calico/data/more"));
        assert!(!found("/run/flannel"), "the root is above it");
    }

    #[test]
    fn this_thread_has_a_root() {
        let mounts = Mounts::read().unwrap();
        assert!(mounts.at_or_below(Path::new("/proc")).is_some());
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            Mounts::parse(&bytes);
        }

        #[test]
        fn what_the_kernel_escapes_is_read_back(name in "[a-z \t\\\\/]{0,20}") {
            let escaped: String = name
                .bytes()
                .map(|byte| match byte {
                    b' ' | b'\t' | b'\\' => format!("\\{byte:03o}"),
                    other => char::from(other).to_string(),
                })
                .collect();
            let read = unescaped(escaped.as_bytes());
            prop_assert_eq!(read.as_os_str().as_bytes(), name.as_bytes());
        }
    }
}
