//! System calls that fail on demand, so that tests can run against a kernel that refuses what this one grants: with the cargo
//! feature `faults` alone, which no released program has.
//!
//! Theory of operation: a word of bits, one per [`InjectedFault`], none set unless a test calls [`set`]. Each is read only
//! where the call it spoils would be made with an offload. Without the feature none is ever set, and the compiler removes the
//! question.

#[cfg(feature = "faults")]
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// What the kernel is to refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum InjectedFault {
    /// Super-packets written to the tunnel device: `EINVAL`, as from kernels whose vendors broke them.
    GsoWrites = 1,
    /// Detached queues of the tunnel device: `EBADFD` for whatever is written through one.
    DetachedWrites = 2,
    /// Messages of several datagrams sent to the underlay: `EINVAL`.
    GsoSends = 4,
    /// The tunnel device with a header beside each packet: `EINVAL`, as from kernels that do not know it.
    FastDevice = 8,
    /// No refusal: each worker tries what its limits refuse (`engine/escape.rs`), once it has them.
    Escape = 16,
}

#[cfg(feature = "faults")]
impl InjectedFault {
    /// Every fault.
    pub const ALL: [InjectedFault; 5] = [
        InjectedFault::GsoWrites,
        InjectedFault::DetachedWrites,
        InjectedFault::GsoSends,
        InjectedFault::FastDevice,
        InjectedFault::Escape,
    ];

    /// The name in `TARTAN_FAULTS`.
    pub const fn name(self) -> &'static str {
        match self {
            InjectedFault::GsoWrites => "gso-writes",
            InjectedFault::DetachedWrites => "detached-writes",
            InjectedFault::GsoSends => "gso-sends",
            InjectedFault::FastDevice => "fast-device",
            InjectedFault::Escape => "escape",
        }
    }
}

/// Makes the kernel refuse, or lets it grant again, for the whole process.
#[cfg(feature = "faults")]
pub fn set(fault: InjectedFault, on: bool) {
    if on {
        FAULTS.fetch_or(fault as u32, Relaxed);
    } else {
        FAULTS.fetch_and(!(fault as u32), Relaxed);
    }
}

#[cfg(feature = "faults")]
pub(crate) fn is_set(fault: InjectedFault) -> bool {
    FAULTS.load(Relaxed) & fault as u32 != 0
}

#[cfg(not(feature = "faults"))]
pub(crate) const fn is_set(_: InjectedFault) -> bool {
    false
}

#[cfg(feature = "faults")]
static FAULTS: AtomicU32 = AtomicU32::new(0);
