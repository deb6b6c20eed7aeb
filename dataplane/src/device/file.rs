//! The file `/dev/net/tun`, where a container has none: runtimes give a container no such file by themselves, but let it open the
//! device.

use std::io;
use std::path::Path;

use rustix::fs::{CWD, Dev, FileType, Mode, OFlags, makedev, mkdir, mknodat, open, rmdir, unlink};
use rustix::io::Errno;

/// Makes `/dev/net/tun` if nothing is there, and says whether it has. Opening such a file loads the kernel's module `tun`
/// where that is not loaded yet. Where the kernel has no such device the file is removed again.
///
/// # Errors
/// `EPERM` without CAP_MKNOD or in a user namespace, `EROFS`, `EACCES`; `ENODEV` or `ENXIO` where there is no such device.
pub fn make_file() -> io::Result<bool> {
    make(Path::new("/dev/net"))
}

fn make(directory: &Path) -> io::Result<bool> {
    let file = directory.join("tun");
    if file.try_exists()? {
        return Ok(false);
    }
    let has_made_directory = match mkdir(directory, Mode::from_raw_mode(0o755)) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(error) => return Err(error.into()),
    };
    let remove_directory = || {
        if has_made_directory {
            // What another process has put there since stays.
            let _ = rmdir(directory);
        }
    };
    let mode = Mode::from_raw_mode(0o600);
    match mknodat(CWD, &file, FileType::CharacterDevice, mode, tun()) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Ok(false),
        Err(error) => {
            remove_directory();
            return Err(error.into());
        }
    }
    match open(&file, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Err(error @ (Errno::NODEV | Errno::NXIO)) => {
            let _ = unlink(&file);
            remove_directory();
            Err(error.into())
        }
        // Any other refusal is met again where the device is opened, and explained there.
        _ => Ok(true),
    }
}

/// The kernel's number of the device: `MISC_MAJOR` and `TUN_MINOR` (linux/include/linux/miscdevice.h).
fn tun() -> Dev {
    makedev(10, 200)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    use std::thread;

    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;

    #[test]
    fn a_file_that_is_missing_is_made_with_its_directory_and_is_the_device() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("net");
        assert!(make(&directory).unwrap());
        let found = fs::metadata(directory.join("tun")).unwrap();
        assert!(found.file_type().is_char_device());
        assert_eq!((found.rdev(), found.mode() & 0o777), (tun(), 0o600));
        assert!(!make(&directory).unwrap());
    }

    #[test]
    fn whatever_is_there_stays() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("tun"), "another's").unwrap();
        assert!(!make(place.path()).unwrap());
        assert_eq!(fs::read(place.path().join("tun")).unwrap(), b"another's");
    }

    #[test]
    fn where_it_cannot_be_made_nothing_is_left() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("net");
        let refused = thread::scope(|scope| {
            let without = scope.spawn(|| {
                let mut sets = capabilities(None).unwrap();
                sets.effective.remove(CapabilitySet::MKNOD);
                set_capabilities(None, sets).unwrap();
                make(&directory).unwrap_err()
            });
            without.join().unwrap()
        });
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(!directory.exists());
    }
}
