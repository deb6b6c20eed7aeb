//! Peers that the programs do not send to, so that user space does, and why.

use std::fmt;

use dataplane::peers::Peer;

use crate::lease::default_vtep_mac;

/// Why the programs do not send to a peer. What they receive from it they carry all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
pub enum UserSpaceReason {
    /// The registry says that it is not to be sent what kernels encapsulate.
    Written,
    /// It says itself that its kernel path is not in use.
    Announced,
    /// Nothing says that its kernel path is in use.
    Unannounced,
    /// A router reported that our packets are too large.
    Reported,
    /// The path is known to be narrower than the underlay device's.
    Narrow,
    /// The kernel does not know its next hop.
    NoNextHop,
}

impl UserSpaceReason {
    /// Every reason.
    pub const ALL: [UserSpaceReason; 6] = [
        UserSpaceReason::Written,
        UserSpaceReason::Announced,
        UserSpaceReason::Unannounced,
        UserSpaceReason::Reported,
        UserSpaceReason::Narrow,
        UserSpaceReason::NoNextHop,
    ];

    /// Its name in `-o json` and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            UserSpaceReason::Written => "written",
            UserSpaceReason::Announced => "announced",
            UserSpaceReason::Unannounced => "unannounced",
            UserSpaceReason::Reported => "reported",
            UserSpaceReason::Narrow => "narrow",
            UserSpaceReason::NoNextHop => "no-next-hop",
        }
    }

    /// What it means, in a clause about the peer.
    pub const fn gloss(self) -> &'static str {
        match self {
            UserSpaceReason::Written => "the list of nodes has kernel-path = false for it",
            UserSpaceReason::Announced => "its probes say that its kernel path is not in use",
            UserSpaceReason::Unannounced => {
                "it has a VTEP MAC of Tartan's, and no probe of it has said that its kernel path is in use"
            }
            UserSpaceReason::Reported => "a router reported that packets to it are too large",
            UserSpaceReason::Narrow => "its path is narrower than the underlay device's MTU",
            UserSpaceReason::NoNextHop => "the kernel does not know the next hop to it yet",
        }
    }
}

impl fmt::Display for UserSpaceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.gloss())
    }
}

/// Why a peer is not to be sent what a kernel encapsulates, without an outer checksum; `None` if it may be. What the
/// operator writes against it counts first, then what the peer's own probes say, then what the operator writes for it. Where
/// nothing is said, a peer with the VTEP MAC that Tartan derives is a Tartan node whose kernel path is in doubt; one with
/// another MAC is a kernel VXLAN device, of flannel's, which takes such datagrams as fast as those of its own kind: it
/// receives them in super-packets, and its kernel never needed the checksum.
pub(super) fn incapable(
    written: Option<bool>,
    announced: Option<bool>,
    has_derived_mac: bool,
) -> Option<UserSpaceReason> {
    match (written, announced) {
        (Some(false), _) => Some(UserSpaceReason::Written),
        (_, Some(false)) => Some(UserSpaceReason::Announced),
        (_, Some(true)) | (Some(true), None) => None,
        (None, None) => has_derived_mac.then_some(UserSpaceReason::Unannounced),
    }
}

/// Whether a peer has the VTEP MAC that Tartan derives from its address.
pub(super) fn has_derived_mac(peer: &Peer) -> bool {
    peer.vtep_mac.v4 == default_vtep_mac(peer.public.first())
}
