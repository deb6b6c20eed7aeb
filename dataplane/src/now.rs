//! Time as an argument: nothing in the packet path reads a clock, so a whole cluster runs under virtual time.

use std::time::Duration;

/// Nanoseconds since an origin that the caller chooses; never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Now(pub u64);

impl Now {
    /// The moment `later` than this one, stopping at the end of time.
    pub const fn after(self, later: Duration) -> Now {
        Now(self.0.saturating_add(later.as_nanos() as u64))
    }

    /// How long ago `earlier` was; zero if it is still to come.
    pub const fn since(self, earlier: Now) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
