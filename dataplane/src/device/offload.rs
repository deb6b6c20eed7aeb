//! What the device takes from us unfinished. What one packet leaves undone is an [`Offload`](super::Offload).

use super::GsoType;

/// What the device takes from us unfinished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Packets with [`Offload::checksum`].
    pub checksum: bool,
    /// Super-packets of TCP.
    pub tcp: bool,
    /// Super-packets of UDP.
    pub udp: bool,
}

impl Offloads {
    /// Finished wire packets only.
    pub const NONE: Offloads = Offloads {
        checksum: false,
        tcp: false,
        udp: false,
    };

    /// Whether the device takes super-packets of `kind`.
    pub fn takes(self, kind: GsoType) -> bool {
        match kind {
            GsoType::Tcp4 | GsoType::Tcp6 => self.tcp,
            GsoType::Udp => self.udp,
        }
    }
}
