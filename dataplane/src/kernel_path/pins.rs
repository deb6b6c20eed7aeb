//! Programs and tables by name, in a BPF file system: a service finds there what one left that was killed with its keeper.
//!
//! Theory of operation. Descriptors that the keeper holds end with it, and then only filters refer to the programs: the next
//! service would load others, with empty tables, and every flow would have to be judged before it leaves the host's stack out
//! again. So each object has a name too, `/sys/fs/bpf/tartan/<identity>/<object>`. The identity is the one that descriptors are
//! compared by, and a service reads that directory alone.
//!
//! The directory `tartan` must be our user's alone: in a file system that all may write to (the kernel's default mode) another
//! user could otherwise have programs attached. Where there is no BPF file system, or it cannot be written to, nothing has a name, and
//! a service goes on as without this.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FsWord, statfs};
use rustix::process::geteuid;

use super::descriptors::{self, OBJECT};
use super::object::{self, TABLES};
use super::{KernelPath, KernelPathError, Program};
use crate::sys::bpf::pin;

/// The names of one agent's objects.
#[derive(Clone, Debug)]
pub struct Pins {
    place: PathBuf,
}

impl Pins {
    /// Those of the agent whose files are below `root`.
    pub fn below(root: &Path) -> Pins {
        Pins {
            place: root.join(PLACE),
        }
    }

    /// The directory of everything that is named.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Names what `path` consists of, in the place of all that had names. Returns whether there is a BPF file system.
    ///
    /// # Errors
    /// [`KernelPathError::Kernel`]; [`KernelPathError::Foreign`] where the directory is not ours alone. Then nothing has a
    /// name.
    pub fn write(&self, path: &KernelPath) -> Result<bool, KernelPathError> {
        if !self.is_possible() {
            return Ok(false);
        }
        self.remove()?;
        let named = self.name_all(path);
        if named.is_err() {
            // The first error is the one to be told.
            let _ = self.remove();
        }
        named.map(|()| true)
    }

    fn name_all(&self, path: &KernelPath) -> Result<(), KernelPathError> {
        let directory = self.directory();
        let make = || {
            let mut builder = fs::DirBuilder::new();
            builder.mode(0o700);
            for directory in [&self.place, &directory] {
                builder.create(directory)?;
            }
            Ok(())
        };
        make().map_err(|error| failed("make", &directory, error))?;
        for (name, descriptor) in path.descriptors() {
            if name == OBJECT {
                continue;
            }
            let path = directory.join(name);
            pin::pin(descriptor, &path).map_err(|error| failed("make", &path, error))?;
        }
        Ok(())
    }

    /// What [`KernelPath::adopt`] takes, of this service's object; `None` where nothing of it has a name.
    ///
    /// # Errors
    /// As [`Pins::write`].
    pub fn read(&self) -> Result<Option<Vec<(String, OwnedFd)>>, KernelPathError> {
        let directory = self.directory();
        if !directory.is_dir() {
            return Ok(None);
        }
        self.check()?;
        let programs = Program::ALL.map(Program::name);
        let mut held = vec![descriptors::identity()?];
        for name in TABLES.into_iter().chain(programs) {
            let path = directory.join(name);
            let descriptor = pin::open(&path).map_err(|error| failed("open", &path, error))?;
            held.push((name.to_owned(), descriptor));
        }
        Ok(Some(held))
    }

    /// Takes every name away. Returns whether there was one. Objects that a filter or a descriptor refers to live on.
    ///
    /// # Errors
    /// As [`Pins::write`].
    pub fn remove(&self) -> Result<bool, KernelPathError> {
        if fs::symlink_metadata(&self.place).is_err_and(|error| error.kind() == ErrorKind::NotFound)
        {
            return Ok(false);
        }
        self.check()?;
        let removed = fs::remove_dir_all(&self.place);
        removed.map_err(|error| failed("remove", &self.place, error))?;
        Ok(true)
    }

    fn directory(&self) -> PathBuf {
        self.place.join(format!("{:016x}", object::identity()))
    }

    /// Whether the directory above is in a BPF file system.
    fn is_possible(&self) -> bool {
        let above = self.place.parent().and_then(|above| statfs(above).ok());
        above.is_some_and(|found| found.f_type == BPF_FS_MAGIC)
    }

    /// That the directory is one that no other user can write to.
    fn check(&self) -> Result<(), KernelPathError> {
        let found = fs::symlink_metadata(&self.place)
            .map_err(|error| failed("look at", &self.place, error))?;
        let is_ours = found.uid() == geteuid().as_raw() && found.mode() & 0o022 == 0;
        if found.is_dir() && is_ours {
            return Ok(());
        }
        Err(KernelPathError::Foreign {
            name: self.place.display().to_string(),
            found: "it is no directory of our user's alone: remove it".to_owned(),
        })
    }
}

fn failed(doing: &'static str, path: &Path, source: io::Error) -> KernelPathError {
    KernelPathError::Kernel {
        doing,
        subject: path.display().to_string(),
        source,
    }
}

const PLACE: &str = "sys/fs/bpf/tartan";
/// linux/magic.h
const BPF_FS_MAGIC: FsWord = 0xcafe_4a11;
