//! The descriptors of programs and tables, by which one service hands them to the next.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use aya::maps::{Map, MapData, MapError};
use rustix::fs::MemfdFlags;

use super::{KernelPathError, Program, object};

/// Every table and program by its name, and the identity of the object that they are of.
pub(super) struct Descriptors {
    /// The tables, the filter and the identity.
    held: BTreeMap<String, OwnedFd>,
    programs: Programs,
}

struct Programs {
    tunnel_out: OwnedFd,
    tunnel_out_ether: OwnedFd,
    underlay_in: OwnedFd,
    gro_in: OwnedFd,
    pod_out: OwnedFd,
    pod_in: OwnedFd,
}

impl Descriptors {
    /// Those of an object that was loaded just now.
    pub(super) fn new(loaded: Vec<(String, OwnedFd)>) -> Result<Descriptors, KernelPathError> {
        let mut held: BTreeMap<String, OwnedFd> = loaded.into_iter().collect();
        held.extend([identity()?]);
        Descriptors::sort(held)
    }

    /// Those that were deposited.
    ///
    /// # Errors
    /// [`KernelPathError::OtherBuild`]; [`KernelPathError::Foreign`] if one is missing.
    pub(super) fn adopt(deposited: Vec<(String, OwnedFd)>) -> Result<Descriptors, KernelPathError> {
        let held: BTreeMap<String, OwnedFd> = deposited.into_iter().collect();
        let identity = held.get(OBJECT).ok_or_else(|| missing(OBJECT))?;
        if read_identity(identity.as_fd()) != Some(object::identity()) {
            return Err(KernelPathError::OtherBuild);
        }
        Descriptors::sort(held)
    }

    fn sort(mut held: BTreeMap<String, OwnedFd>) -> Result<Descriptors, KernelPathError> {
        let mut take = |program: Program| {
            let found = held.remove(program.name());
            found.ok_or_else(|| missing(program.name()))
        };
        let programs = Programs {
            tunnel_out: take(Program::TunnelOut)?,
            tunnel_out_ether: take(Program::TunnelOutEther)?,
            underlay_in: take(Program::UnderlayIn)?,
            gro_in: take(Program::GroIn)?,
            pod_out: take(Program::PodOut)?,
            pod_in: take(Program::PodIn)?,
        };
        let descriptors = Descriptors { held, programs };
        for name in object::TABLES.into_iter().chain([object::FORGOTTEN]) {
            descriptors.get(name)?;
        }
        Ok(descriptors)
    }

    /// A program.
    pub(super) fn program(&self, program: Program) -> BorrowedFd<'_> {
        let programs = &self.programs;
        let descriptor = match program {
            Program::TunnelOut => &programs.tunnel_out,
            Program::TunnelOutEther => &programs.tunnel_out_ether,
            Program::UnderlayIn => &programs.underlay_in,
            Program::GroIn => &programs.gro_in,
            Program::PodOut => &programs.pod_out,
            Program::PodIn => &programs.pod_in,
        };
        descriptor.as_fd()
    }

    /// The descriptor of a table, or of the filter.
    pub(super) fn get(&self, name: &str) -> Result<BorrowedFd<'_>, KernelPathError> {
        let found = self.held.get(name).map(OwnedFd::as_fd);
        found.ok_or_else(|| missing(name))
    }

    /// A table, by a descriptor of its own.
    pub(super) fn table<T: TryFrom<Map, Error = MapError>>(
        &self,
        name: &str,
    ) -> Result<T, KernelPathError> {
        let duplicate = object::duplicate(name, self.get(name)?)?;
        let data = MapData::from_fd(duplicate).map_err(|error| foreign(name, error))?;
        let map = Map::from_map_data(data).map_err(|error| foreign(name, error))?;
        T::try_from(map).map_err(|error| foreign(name, error))
    }

    /// How many entries a table was made for.
    pub(super) fn entries(&self, name: &str) -> Result<u32, KernelPathError> {
        let duplicate = object::duplicate(name, self.get(name)?)?;
        let info = MapData::from_fd(duplicate).and_then(|data| data.info());
        Ok(info.map_err(|error| foreign(name, error))?.max_entries())
    }

    /// Every name and descriptor.
    pub(super) fn all(&self) -> Vec<(String, BorrowedFd<'_>)> {
        let programs = Program::ALL.into_iter();
        let programs = programs.map(|program| (program.name().to_owned(), self.program(program)));
        let held = self.held.iter();
        let held = held.map(|(name, descriptor)| (name.clone(), descriptor.as_fd()));
        held.chain(programs).collect()
    }
}

fn missing(name: &str) -> KernelPathError {
    foreign(name, "it is missing")
}

fn foreign(name: &str, found: impl std::fmt::Display) -> KernelPathError {
    KernelPathError::Foreign {
        name: name.to_owned(),
        found: found.to_string(),
    }
}

/// Name and descriptor of what says that the others are of this service's object.
pub(super) fn identity() -> Result<(String, OwnedFd), KernelPathError> {
    Ok((OBJECT.to_owned(), write_identity(object::identity())?))
}

/// A file in memory that holds the identity, for the next service to compare with its own.
fn write_identity(identity: u64) -> Result<OwnedFd, KernelPathError> {
    let written = || {
        let file = rustix::fs::memfd_create("tartan-kernel-path", MemfdFlags::CLOEXEC)?;
        rustix::io::pwrite(&file, &identity.to_be_bytes(), 0)?;
        Ok(file)
    };
    written().map_err(|error: rustix::io::Errno| KernelPathError::Kernel {
        doing: "note the identity",
        subject: OBJECT.to_owned(),
        source: error.into(),
    })
}

fn read_identity(file: BorrowedFd<'_>) -> Option<u64> {
    let mut identity = [0; 8];
    let read = rustix::io::pread(file, &mut identity, 0).ok()?;
    (read == identity.len()).then_some(u64::from_be_bytes(identity))
}

/// Name of the descriptor that says which object the others are of.
pub(super) const OBJECT: &str = "object";
