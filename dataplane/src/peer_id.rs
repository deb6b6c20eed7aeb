//! A peer's number, by which the tables of one snapshot name it to each other.

/// A peer's place in its snapshot. It stays with a peer whose spec is unchanged, and may be another peer's in the next
/// snapshot: nothing keeps it beyond a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerId(pub u32);
