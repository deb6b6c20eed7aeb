//! File systems that fail as a test wants them to.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command;

/// A file system mounted for a test, taken away when dropped.
#[derive(Debug)]
pub struct Mount(PathBuf);

impl Mount {
    /// A small one in memory, with mount options of tmpfs(5).
    pub fn tmpfs(at: &Path, options: &str) -> Mount {
        std::fs::create_dir_all(at).unwrap();
        let place = at.to_str().unwrap();
        command("mount", &["-t", "tmpfs", "-o", options, "tmpfs", place]);
        Mount(at.to_owned())
    }

    /// A file on itself, which then cannot be removed.
    pub fn over(file: &Path) -> Mount {
        let place = file.to_str().unwrap();
        command("mount", &["--bind", place, place]);
        Mount(file.to_owned())
    }

    /// Refuses writes from now on.
    pub fn make_read_only(&self) {
        command("mount", &["-o", "remount,ro", self.0.to_str().unwrap()]);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily: an agent may still have files open there.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
