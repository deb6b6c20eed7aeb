//! What is said of a peer, in one word and a reason.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use encap::Mac;

/// The state of the path to one address of a peer, or the worst of a peer's paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing is known yet.
    New,
    /// It answers probes, as large as the largest packets of pods.
    Up,
    /// It answers, and larger packets than `measured` do not arrive. Bytes of outer packet.
    Narrow {
        /// The largest that arrives.
        measured: u16,
        /// The largest that pods' packets make.
        configured: u16,
    },
    /// It answered, and nothing of it arrives any more.
    Silent,
    /// Its packets arrive, and it answers no probe: it does not hear us.
    OneWay {
        /// Since when it has heard no answer of ours, as it says itself; `None`: never, or it does not say.
        unheard: Option<Duration>,
    },
    /// It sends datagrams of this VXLAN network, which is not ours.
    WrongVni(u32),
    /// Its frames come from this MAC, which is not its lease's.
    WrongMac(Mac),
    /// Its frames are addressed to this MAC, which is not this node's: its list of nodes has another one.
    WrongStation(Mac),
    /// Its host answers that no process has the port.
    Refused,
    /// Probes do not get there, for this reason: an ICMP error or what the kernel says.
    Unreachable(Arc<str>),
    /// It answers no probes, as a node that runs flannel, and its packets arrive.
    Heard,
    /// It answers no probes, and nothing of it has arrived lately.
    Quiet,
}

impl State {
    /// The word of `tartan peers` and `-o json`.
    pub const fn name(&self) -> &'static str {
        match self {
            State::New => "new",
            State::Up => "up",
            State::Narrow { .. } => "narrow",
            State::Silent => "silent",
            State::OneWay { .. } => "one-way",
            State::WrongVni(_) => "wrong-vni",
            State::WrongMac(_) | State::WrongStation(_) => "wrong-mac",
            State::Refused => "refused",
            State::Unreachable(_) => "unreachable",
            State::Heard => "heard",
            State::Quiet => "quiet",
        }
    }

    /// Whether the peer hears this node; `None` where that is not known. A peer whose frames come from another MAC than its
    /// lease's takes none that are addressed to that of its lease.
    pub const fn hears_us(&self) -> Option<bool> {
        match self {
            State::Up | State::Narrow { .. } => Some(true),
            State::OneWay { .. } | State::WrongMac(_) => Some(false),
            State::New
            | State::WrongVni(_)
            | State::WrongStation(_)
            | State::Silent
            | State::Unreachable(_)
            | State::Refused
            | State::Heard
            | State::Quiet => None,
        }
    }

    /// Whether something is wrong.
    pub const fn is_bad(&self) -> bool {
        self.rank() > RANK_OF_QUIET
    }

    /// The worse, the higher: of a peer with two addresses the worse path is shown.
    pub const fn rank(&self) -> u8 {
        match self {
            State::Up => 0,
            State::Heard => 1,
            State::New => 2,
            State::Quiet => RANK_OF_QUIET,
            State::Narrow { .. } => 4,
            State::OneWay { .. } => 5,
            State::WrongVni(_) => 6,
            State::WrongMac(_) | State::WrongStation(_) => 7,
            State::Silent => 8,
            State::Unreachable(_) => 9,
            State::Refused => 10,
        }
    }

    /// Whether it is the same state, whatever its figures.
    pub(super) fn is_same(&self, other: &State) -> bool {
        match (self, other) {
            (State::Unreachable(a), State::Unreachable(b)) => a == b,
            _ => self.name() == other.name(),
        }
    }
}

/// The reason in words; empty where the name says all.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::Up => Ok(()),
            State::New => f.write_str("not probed yet"),
            State::Narrow {
                measured,
                configured,
            } => write!(
                f,
                "the path carries {measured} bytes, this node's packets need {configured}"
            ),
            State::Silent => f.write_str("it answers no probe, and nothing else of it arrives"),
            State::OneWay { unheard } => {
                f.write_str(
                    "they do not hear us: their packets arrive, our probes are not answered",
                )?;
                match unheard {
                    Some(unheard) => write!(f, " (they say: for {} s)", unheard.as_secs()),
                    None => Ok(()),
                }
            }
            State::WrongVni(vni) => write!(f, "its datagrams are of VXLAN network {vni}"),
            State::WrongMac(mac) => write!(f, "its frames come from {mac}, the lease has another"),
            State::WrongStation(mac) => {
                write!(f, "it sends to VTEP MAC {mac}, which is not this node's")
            }
            State::Refused => f.write_str("no process has the port there (port unreachable)"),
            State::Unreachable(reason) => f.write_str(reason),
            State::Heard => f.write_str("answers no probes; its packets arrive"),
            State::Quiet => f.write_str("answers no probes; nothing arrived lately"),
        }
    }
}

const RANK_OF_QUIET: u8 = 3;
