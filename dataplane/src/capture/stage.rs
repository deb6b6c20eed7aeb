//! Where on its path a packet is captured.

/// A stage of the path at which packets are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Stage {
    /// Read from the tunnel device: a pod sent it.
    Device = 0,
    /// The kernel took it for a peer.
    Sent = 1,
    /// Received from the underlay, before any check.
    Received = 2,
    /// The tunnel device took it.
    Written = 3,
    /// Dropped, whatever the direction.
    Dropped = 4,
}

/// A set of stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages(u8);

impl Stage {
    /// Every stage, in the order of its number.
    pub const ALL: [Stage; 5] = [
        Stage::Device,
        Stage::Sent,
        Stage::Received,
        Stage::Written,
        Stage::Dropped,
    ];

    /// The name, as options and interfaces of a capture file have it.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Device => "device",
            Stage::Sent => "sent",
            Stage::Received => "received",
            Stage::Written => "written",
            Stage::Dropped => "dropped",
        }
    }

    /// One sentence for the operator.
    pub const fn gloss(self) -> &'static str {
        match self {
            Stage::Device => "read from the tunnel device: a pod sent it",
            Stage::Sent => "sent to a peer",
            Stage::Received => "received from the underlay, before any check",
            Stage::Written => "written to the tunnel device, for a pod",
            Stage::Dropped => "dropped, for the reason that the comment names",
        }
    }

    /// The stage of that name.
    pub fn named(name: &str) -> Option<Stage> {
        Stage::ALL.into_iter().find(|stage| stage.name() == name)
    }
}

impl Stages {
    /// No stage.
    pub const NONE: Stages = Stages(0);
    /// Every stage.
    pub const ALL: Stages = Stages((1 << Stage::ALL.len()) - 1);

    /// The same and `stage`.
    #[must_use]
    pub const fn with(self, stage: Stage) -> Stages {
        Stages(self.0 | 1 << stage as u8)
    }

    /// Those of both.
    #[must_use]
    pub const fn or(self, other: Stages) -> Stages {
        Stages(self.0 | other.0)
    }

    /// Whether it is one of them.
    #[inline]
    pub const fn has(self, stage: Stage) -> bool {
        self.0 & 1 << stage as u8 != 0
    }

    /// Those of the set, in the order of their numbers.
    pub fn each(self) -> impl Iterator<Item = Stage> {
        Stage::ALL.into_iter().filter(move |stage| self.has(*stage))
    }
}

impl FromIterator<Stage> for Stages {
    fn from_iter<I: IntoIterator<Item = Stage>>(stages: I) -> Stages {
        stages.into_iter().fold(Stages::NONE, Stages::with)
    }
}
