//! A peer's number, by which the tables of one snapshot name it to each other.

/// A peer's place in its snapshot. Means nothing in another snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerId(pub u32);
