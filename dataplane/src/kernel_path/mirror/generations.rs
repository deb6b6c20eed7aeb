//! Generations of peers and pods.

use crate::kernel_path::KernelPathError;
use crate::kernel_path::layout::Peer;
use crate::kernel_path::tables::Tables;

/// Gives out generations, no one twice as long as the tables live: a flow whose peer or pod went, and another came in
/// its place, must not meet its old generation again. The service dies and the tables stay, so how far the
/// generations were given out stands in the tables: in the entry of peers that no peer has, for [`RESERVED`] at a time.
pub(super) struct Generations {
    next: u32,
    reserved: u32,
}

impl Generations {
    /// Those behind the ones that were reserved before.
    pub(super) fn after(reserved: u32) -> Generations {
        Generations {
            next: reserved,
            reserved,
        }
    }

    /// None was ever given out.
    pub(super) fn is_first(&self) -> bool {
        self.reserved == 0
    }

    /// The next one; never 0, which empty entries have.
    pub(super) fn next(&mut self, tables: &mut impl Tables) -> Result<u32, KernelPathError> {
        self.next = self.next.wrapping_add(1).max(1);
        if self.next > self.reserved || self.next == 1 {
            let reserved = self.next.saturating_add(RESERVED);
            let entry = Peer {
                generation: reserved,
                ..Peer::default()
            };
            tables.set_peer(0, &entry)?;
            self.reserved = reserved;
        }
        Ok(self.next)
    }
}

/// Generations reserved with one write.
const RESERVED: u32 = 1_024;
