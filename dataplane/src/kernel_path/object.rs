//! The object: programs and tables, made by the kernel of the bytes that `scripts/bpf` builds of `dataplane/bpf/`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use aya::maps::Map;
use aya::programs::{SchedClassifier, SocketFilter};
use aya::{Ebpf, EbpfLoader};

use super::{KernelPathError, Program, Sizes};

/// The tables of the object.
pub(super) const TABLES: [&str; 15] = [
    SETTINGS,
    FIB,
    LOCAL,
    PEERS,
    PODS,
    FLOWS_OUT,
    FLOWS_IN,
    SEEN,
    REPORTS,
    EVENTS,
    COUNTERS,
    PASSES,
    PEER_COUNTS,
    POD_COUNTS,
    LAST_MARKED,
];
pub(super) const SETTINGS: &str = "settings";
pub(super) const FIB: &str = "fib";
pub(super) const LOCAL: &str = "local";
pub(super) const PEERS: &str = "peers";
pub(super) const PODS: &str = "pods";
pub(super) const FLOWS_OUT: &str = "flows_out";
pub(super) const FLOWS_IN: &str = "flows_in";
pub(super) const SEEN: &str = "seen";
pub(super) const REPORTS: &str = "reports";
pub(super) const EVENTS: &str = "events";
pub(super) const COUNTERS: &str = "counters";
pub(super) const PASSES: &str = "passes";
pub(super) const PEER_COUNTS: &str = "peer_counts";
pub(super) const POD_COUNTS: &str = "pod_counts";
pub(super) const LAST_MARKED: &str = "last_marked";
/// The filter of announcements of forgotten connections.
pub(super) const FORGOTTEN: &str = "forgotten";

/// A number for the bytes of the object and what this service means by its tables (FNV-1a).
pub(super) fn identity() -> u64 {
    let bytes = OBJECT.iter().chain(&MEANING);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Loads tables of those sizes, every program and the filter. Returns their names and descriptors.
pub(super) fn load(sizes: Sizes) -> Result<Vec<(String, OwnedFd)>, KernelPathError> {
    let mut loader = EbpfLoader::new();
    for (table, entries) in sizes.of_tables() {
        loader.map_max_entries(table, entries);
    }
    // No program reads a structure of the kernel.
    loader.btf(None);
    let mut object = loader.load(OBJECT).map_err(KernelPathError::loading)?;
    let mut held = vec![];
    for name in TABLES {
        let map = object.map(name).and_then(descriptor);
        let map = map.ok_or_else(|| missing(name))?;
        held.push((name.to_owned(), duplicate(name, map)?));
    }
    for program in Program::ALL {
        held.push((program.name().to_owned(), verified(&mut object, program)?));
    }
    held.push((FORGOTTEN.to_owned(), verified_filter(&mut object)?));
    Ok(held)
}

/// Has the kernel verify a program.
fn verified(object: &mut Ebpf, program: Program) -> Result<OwnedFd, KernelPathError> {
    let name = program.name();
    let found = object.program_mut(name).ok_or_else(|| missing(name))?;
    let refused = |error| KernelPathError::verifying(name, error);
    let classifier: &mut SchedClassifier = found.try_into().map_err(refused)?;
    classifier.load().map_err(refused)?;
    duplicate(name, classifier.fd().map_err(refused)?.as_fd())
}

/// Has the kernel verify the filter of a socket.
fn verified_filter(object: &mut Ebpf) -> Result<OwnedFd, KernelPathError> {
    let found = object.program_mut(FORGOTTEN);
    let found = found.ok_or_else(|| missing(FORGOTTEN))?;
    let refused = |error| KernelPathError::verifying(FORGOTTEN, error);
    let filter: &mut SocketFilter = found.try_into().map_err(refused)?;
    filter.load().map_err(refused)?;
    duplicate(FORGOTTEN, filter.fd().map_err(refused)?.as_fd())
}

pub(super) fn duplicate(
    name: &str,
    descriptor: BorrowedFd<'_>,
) -> Result<OwnedFd, KernelPathError> {
    descriptor
        .try_clone_to_owned()
        .map_err(|source| KernelPathError::Kernel {
            doing: "duplicate the descriptor of",
            subject: name.to_owned(),
            source,
        })
}

fn descriptor(map: &Map) -> Option<BorrowedFd<'_>> {
    match map {
        Map::Array(data)
        | Map::PerCpuArray(data)
        | Map::HashMap(data)
        | Map::LruHashMap(data)
        | Map::LpmTrie(data)
        | Map::RingBuf(data) => Some(data.fd().as_fd()),
        _ => None,
    }
}

fn missing(name: &str) -> KernelPathError {
    KernelPathError::Foreign {
        name: name.to_owned(),
        found: "the object does not have it".to_owned(),
    }
}

static OBJECT: &[u8] = aya::include_bytes_aligned!("../../bpf/kernel_path.o");

/// Raised where the same object's tables come to mean something else to the service.
const MEANING: [u8; 1] = [1];
