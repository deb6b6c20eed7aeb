//! Programs and tables that are pinned in a BPF file system: a service finds there what one left that was killed with its
//! keeper.
//!
//! Theory of operation. Descriptors that the keeper holds end with it, and then only filters refer to the programs: the next
//! service would load others, with empty tables, and every flow would have to be judged before it leaves the host's stack out
//! again. So each object is pinned too, at `/sys/fs/bpf/tartan/<namespace>/<identity>/<object>`. The namespace is the number of the
//! network namespace that the programs are attached in: several containers may be nodes of one host. The identity is the one
//! that descriptors are compared by. A pinned program need not be the one that is attached: a caller adopts it only after it has compared the two.
//!
//! The directory `tartan` must be our user's alone: in a file system that all may write to (the kernel's default mode) another
//! user could otherwise have programs attached. Where there is no BPF file system, or it cannot be written to, nothing is
//! pinned, and a service goes on as without this.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FsWord, statfs};
use rustix::process::geteuid;

use super::descriptors::{self, OBJECT};
use super::object::{self, FORGOTTEN, TABLES};
use super::{KernelPath, KernelPathError, Program, program_id};
use crate::sys::bpf::pin;

/// The pins of one agent.
#[derive(Clone, Debug)]
pub struct Pins {
    /// Of all agents.
    above: PathBuf,
    /// Of this one.
    directory: PathBuf,
    /// The namespace is known, so that the directory is no other agent's.
    is_known: bool,
}

impl Pins {
    /// Those of the agent whose files are below `root`, in the calling thread's network namespace.
    pub fn below(root: &Path) -> Pins {
        let above = root.join(ABOVE);
        let namespace = fs::metadata("/proc/thread-self/ns/net");
        let namespace = namespace.ok().map(|found| found.ino());
        Pins {
            directory: above.join(namespace.unwrap_or_default().to_string()),
            is_known: namespace.is_some(),
            above,
        }
    }

    /// The directory of everything that this agent has pinned.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Pins what `path` consists of, in the place of all that this agent had pinned. Returns whether there is a BPF file system.
    ///
    /// # Errors
    /// [`KernelPathError::Kernel`]; [`KernelPathError::Foreign`] where the directory is not ours alone. Then nothing is
    /// pinned, or what was pinned before could not be removed.
    pub fn write(&self, path: &KernelPath) -> Result<bool, KernelPathError> {
        if !self.is_possible() {
            return Ok(false);
        }
        if self.holds(path) {
            return Ok(true);
        }
        self.remove()?;
        let pinned = self.pin_all(path);
        if pinned.is_err() {
            // The first error is the one to be told.
            let _ = self.remove();
        }
        pinned.map(|()| true)
    }

    /// Whether this very path is pinned, and all of it.
    fn holds(&self, path: &KernelPath) -> bool {
        let name = Program::UnderlayIn.name();
        let pinned = self.read().ok().flatten().unwrap_or_default();
        let program = pinned.iter().find(|(pinned, _)| pinned == name);
        let id = program.and_then(|(_, program)| program_id(program.as_fd()));
        id.is_some() && id == program_id(path.program(Program::UnderlayIn))
    }

    fn pin_all(&self, path: &KernelPath) -> Result<(), KernelPathError> {
        let directory = self.of_identity();
        let make = |directory: &Path| {
            let made = fs::DirBuilder::new().mode(0o700).create(directory);
            made.map_err(|error| failed("make", directory, error))
        };
        if is_absent(&self.above) {
            make(&self.above)?;
        }
        // Another user may have made it a moment ago.
        self.check()?;
        make(&self.directory)?;
        make(&directory)?;
        for (name, descriptor) in path.descriptors() {
            if name == OBJECT {
                continue;
            }
            let path = directory.join(name);
            pin::pin(descriptor, &path).map_err(|error| failed("make", &path, error))?;
        }
        Ok(())
    }

    /// What [`KernelPath::adopt`] takes, of this service's object; `None` where nothing of it is pinned.
    ///
    /// # Errors
    /// [`KernelPathError::Kernel`], where a part of it is missing too; [`KernelPathError::Foreign`] where the directory is not
    /// ours alone.
    pub fn read(&self) -> Result<Option<Vec<(String, OwnedFd)>>, KernelPathError> {
        let directory = self.of_identity();
        if !self.is_known || !directory.is_dir() {
            return Ok(None);
        }
        self.check()?;
        let programs = Program::ALL.map(Program::name);
        let mut held = vec![descriptors::identity()?];
        for name in TABLES.into_iter().chain(programs).chain([FORGOTTEN]) {
            let path = directory.join(name);
            let descriptor = pin::open(&path).map_err(|error| failed("open", &path, error))?;
            held.push((name.to_owned(), descriptor));
        }
        Ok(Some(held))
    }

    /// Removes every pin of this agent, those of other builds' objects too. Returns whether there was one. Objects that a
    /// filter or a descriptor refers to live on.
    ///
    /// # Errors
    /// As [`Pins::read`].
    pub fn remove(&self) -> Result<bool, KernelPathError> {
        if is_absent(&self.above) {
            return Ok(false);
        }
        self.check()?;
        let is_there = !is_absent(&self.directory);
        if is_there {
            let removed = fs::remove_dir_all(&self.directory);
            removed.map_err(|error| failed("remove", &self.directory, error))?;
        }
        // Another agent's may be in it.
        let _ = fs::remove_dir(&self.above);
        Ok(is_there)
    }

    fn of_identity(&self) -> PathBuf {
        self.directory.join(format!("{:016x}", object::identity()))
    }

    /// Whether the directory is to be in a BPF file system.
    fn is_possible(&self) -> bool {
        let parent = self.above.parent().and_then(|parent| statfs(parent).ok());
        self.is_known && parent.is_some_and(|found| found.f_type == BPF_FS_MAGIC)
    }

    /// That no other user can write to the directory.
    fn check(&self) -> Result<(), KernelPathError> {
        let found = fs::symlink_metadata(&self.above)
            .map_err(|error| failed("look at", &self.above, error))?;
        let is_ours = found.uid() == geteuid().as_raw() && found.mode() & 0o022 == 0;
        if found.is_dir() && is_ours {
            return Ok(());
        }
        Err(KernelPathError::Foreign {
            name: self.above.display().to_string(),
            found: "it is no directory of our user's alone: remove it".to_owned(),
        })
    }
}

fn is_absent(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

fn failed(doing: &'static str, path: &Path, source: io::Error) -> KernelPathError {
    KernelPathError::Kernel {
        doing,
        subject: path.display().to_string(),
        source,
    }
}

/// Below the root.
const ABOVE: &str = "sys/fs/bpf/tartan";
/// linux/magic.h
const BPF_FS_MAGIC: FsWord = 0xcafe_4a11;
