//! The tabs of `tartan top`.

use clap::ValueEnum;

/// A part of the picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Tab {
    /// The way of packets through the node
    #[default]
    Path,
    /// The other nodes
    Peers,
    /// The pods of this node
    Pods,
    /// The heaviest flows
    Flows,
    /// The packet workers
    Workers,
    /// What was dropped, and why
    Drops,
}

impl Tab {
    /// All, in the order of their numbers.
    pub(super) const ALL: [Tab; 6] = [
        Tab::Path,
        Tab::Peers,
        Tab::Pods,
        Tab::Flows,
        Tab::Workers,
        Tab::Drops,
    ];

    /// Its name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Tab::Path => "path",
            Tab::Peers => "peers",
            Tab::Pods => "pods",
            Tab::Flows => "flows",
            Tab::Workers => "workers",
            Tab::Drops => "drops",
        }
    }

    pub(super) fn next(self) -> Tab {
        self.moved(1)
    }

    pub(super) fn previous(self) -> Tab {
        self.moved(Tab::ALL.len() - 1)
    }

    fn moved(self, by: usize) -> Tab {
        let number = (self as usize + by) % Tab::ALL.len();
        Tab::ALL.get(number).copied().unwrap_or_default()
    }
}
