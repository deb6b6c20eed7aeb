//! One table of prefixes, and how it comes from one state to the next.
//!
//! Theory of operation: an address has the value of the longest prefix that contains it. A table is changed entry by entry,
//! while the programs read it, so an address may have a third value in between unless the order prevents it.
//! [`Prefixes::extend`] writes first what comes or is another, longest prefixes first, so that no shorter one shows where
//! a longer one is still to come; then it removes what goes, shortest first, so that no shorter one shows that is to go as
//! well. Each address goes from its old value to its new one. [`Prefixes::restrict`], before it, leaves to each address
//! what its old and its new value have in common.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::kernel_path::KernelPathError;
use crate::kernel_path::tables::{Tables, Trie};

/// A prefix that sorts by its address and then by its length: after each that contains it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Prefix(u64);

impl Prefix {
    pub(super) fn new(net: Ipv4Net) -> Prefix {
        Prefix(u64::from(net.network().to_bits()) << 8 | u64::from(net.prefix_len()))
    }

    pub(super) fn net(self) -> Ipv4Net {
        Ipv4Net::new_assert(Ipv4Addr::from_bits(self.bits()), self.length())
    }

    fn bits(self) -> u32 {
        (self.0 >> 8) as u32
    }

    pub(super) fn length(self) -> u8 {
        self.0 as u8
    }

    pub(super) fn contains(self, other: Prefix) -> bool {
        let behind = u32::MAX.checked_shr(self.length().into()).unwrap_or(0);
        self.length() <= other.length() && (self.bits() ^ other.bits()) & !behind == 0
    }
}

/// The prefixes around the one that a walk in their order has reached, outermost first.
pub(super) struct Nest<T>(Vec<(Prefix, T)>);

impl<T: Copy + Default> Nest<T> {
    pub(super) fn new() -> Nest<T> {
        Nest(vec![])
    }

    /// What was entered with the innermost prefix around `prefix`.
    pub(super) fn around(&mut self, prefix: Prefix) -> T {
        while self
            .0
            .pop_if(|(outer, _)| !outer.contains(prefix))
            .is_some()
        {}
        self.0.last().map_or_else(T::default, |(_, value)| *value)
    }

    pub(super) fn enter(&mut self, prefix: Prefix, value: T) {
        self.0.push((prefix, value));
    }
}

/// What a table is to become, sorted, no prefix twice.
pub(super) type Wanted = Vec<(Prefix, u32)>;

/// A table of prefixes as the kernel has it.
pub(super) struct Prefixes {
    trie: Trie,
    written: BTreeMap<Prefix, u32>,
}

impl Prefixes {
    /// What `tables` hold. 0 is the value of addresses without entry.
    pub(super) fn read(trie: Trie, tables: &impl Tables) -> Result<Prefixes, KernelPathError> {
        let written = tables.prefixes(trie)?;
        Ok(Prefixes {
            trie,
            written: written
                .into_iter()
                .map(|(net, value)| (Prefix::new(net), value))
                .collect(),
        })
    }

    /// The values, other than 0, that some address has now and will not have.
    pub(super) fn losers(&self, wanted: &Wanted) -> BTreeSet<u32> {
        let lost = self.transitions(wanted).filter(|(old, new)| old != new);
        lost.map(|(old, _)| old).filter(|old| *old != 0).collect()
    }

    /// Whether some address will have a bit of `bits` that it has not now.
    pub(super) fn gains(&self, wanted: &Wanted, bits: u32) -> bool {
        let mut all = self.transitions(wanted);
        all.any(|(old, new)| new & !old & bits != 0)
    }

    /// The old and the new value of the addresses of each prefix that lie in no longer one.
    fn transitions<'a>(&'a self, wanted: &'a Wanted) -> impl Iterator<Item = (u32, u32)> + 'a {
        let mut nest = Nest::new();
        merged(&self.written, wanted).map(move |(prefix, before, after)| {
            let (old_around, new_around): (u32, u32) = nest.around(prefix);
            let values = (before.unwrap_or(old_around), after.unwrap_or(new_around));
            nest.enter(prefix, values);
            values
        })
    }

    /// Takes away what `wanted` does not have. `meet` gives what two values both admit.
    pub(super) fn restrict(
        &mut self,
        tables: &mut impl Tables,
        wanted: &Wanted,
        meet: fn(u32, u32) -> u32,
    ) -> Result<(), KernelPathError> {
        let mut changes = vec![];
        let mut nest = Nest::new();
        for (prefix, before, after) in merged(&self.written, wanted) {
            let (old_around, new_around, left_around): (u32, u32, u32) = nest.around(prefix);
            let old = before.unwrap_or(old_around);
            let new = after.unwrap_or(new_around);
            let left = meet(old, new);
            if before.unwrap_or(left_around) != left {
                changes.push((prefix, left));
            }
            nest.enter(prefix, (old, new, left));
        }
        for (prefix, value) in changes {
            self.set(tables, prefix, value)?;
        }
        Ok(())
    }

    /// Makes the table what is `wanted`.
    pub(super) fn extend(
        &mut self,
        tables: &mut impl Tables,
        wanted: &Wanted,
    ) -> Result<(), KernelPathError> {
        let mut coming = vec![];
        let mut going = vec![];
        for (prefix, before, after) in merged(&self.written, wanted) {
            match after {
                Some(value) if before != Some(value) => coming.push((prefix, value)),
                Some(_) => {}
                None => going.push(prefix),
            }
        }
        coming.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.length()));
        going.sort_by_key(|prefix| prefix.length());
        for (prefix, value) in coming {
            self.set(tables, prefix, value)?;
        }
        for prefix in going {
            tables.remove_prefix(self.trie, prefix.net())?;
            self.written.remove(&prefix);
        }
        Ok(())
    }

    fn set(
        &mut self,
        tables: &mut impl Tables,
        prefix: Prefix,
        value: u32,
    ) -> Result<(), KernelPathError> {
        tables.set_prefix(self.trie, prefix.net(), value)?;
        self.written.insert(prefix, value);
        Ok(())
    }
}

/// Every prefix of either side in order, with its value on each.
fn merged<'a>(
    before: &'a BTreeMap<Prefix, u32>,
    after: &'a Wanted,
) -> impl Iterator<Item = (Prefix, Option<u32>, Option<u32>)> + 'a {
    let mut before = before
        .iter()
        .map(|(prefix, value)| (*prefix, *value))
        .peekable();
    let mut after = after.iter().copied().peekable();
    std::iter::from_fn(move || {
        let prefix = match (before.peek(), after.peek()) {
            (Some((a, _)), Some((b, _))) => *a.min(b),
            (Some((a, _)), None) => *a,
            (None, Some((b, _))) => *b,
            (None, None) => return None,
        };
        let value = |next: Option<(Prefix, u32)>| next.map(|(_, value)| value);
        let old = value(before.next_if(|(other, _)| *other == prefix));
        let new = value(after.next_if(|(other, _)| *other == prefix));
        Some((prefix, old, new))
    })
}
