//! What was changed on the host, in words.

use std::fmt;
use std::path::PathBuf;

use ipnet::IpNet;

use super::settings::sysctls::Altered;

/// One thing that [`Host::apply`](super::Host::apply) had to change. Its
/// `Display` is a phrase for the log and `tartan status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The device was marked as ours (its alias).
    Marked(String),
    /// The device was brought up.
    Raised(String),
    /// The device is no longer one to send multicast on.
    Silenced(String),
    /// The device's queue was made longer.
    Queue {
        /// The device.
        device: String,
        /// Packets that could wait before.
        found: u32,
        /// Packets that can wait now.
        set: u32,
    },
    /// The device's MTU was set.
    Mtu {
        /// The device.
        device: String,
        /// Its MTU before, in bytes.
        found: u32,
        /// Its MTU now, in bytes.
        set: u16,
    },
    /// An address was put on the device.
    AddressAdded(IpNet),
    /// An address was taken from the device.
    AddressRemoved(IpNet),
    /// A route was added; as ip-route(8) writes it.
    RouteAdded(String),
    /// A route that differed was replaced by this one.
    RouteReplaced(String),
    /// A route of ours that is no longer wanted was removed.
    RouteRemoved(String),
    /// A kernel setting was changed.
    Set(SettingChange),
    /// Our nft table was written anew; its family and name.
    TableWritten(String),
    /// Our accept rules were put into a chain of another table.
    AcceptPlaced(String),
    /// Our accept rules were taken out of a chain of another table.
    AcceptRemoved(String),
    /// A pod's limit was put in force.
    Limited {
        /// The host's end.
        host_ifname: String,
        /// `to` or `from` the pod.
        way: &'static str,
        /// Bits per second.
        rate: u64,
    },
    /// What shaped a pod that is gone was removed; its name.
    LimiterRemoved(String),
    /// `subnet.env` was written; its path.
    SubnetFile(PathBuf),
    /// The memory of earlier changes was refused, and a new one begun; why.
    MemoryRefused(String),
}

/// A kernel setting that was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingChange {
    /// Its name, as sysctl(8) writes it.
    pub key: String,
    /// Its value before.
    pub found: i32,
    /// Its value now.
    pub set: i32,
}

impl From<Altered> for SettingChange {
    fn from(altered: Altered) -> SettingChange {
        SettingChange {
            key: altered.key,
            found: altered.found,
            set: altered.wrote,
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Marked(device) => write!(f, "marked {device} as ours"),
            Change::Raised(device) => write!(f, "brought {device} up"),
            Change::Silenced(device) => write!(f, "took multicast from {device}"),
            Change::Queue { device, found, set } => {
                write!(
                    f,
                    "made the queue of {device} longer, from {found} to {set} packets"
                )
            }
            Change::Mtu { device, found, set } => {
                write!(f, "set the MTU of {device} from {found} to {set}")
            }
            Change::Limited {
                host_ifname,
                way,
                rate,
            } => write!(f, "limited {host_ifname} to {rate} bit/s {way} its pod"),
            Change::LimiterRemoved(name) => {
                write!(f, "deleted {name}, which shaped a pod that is gone")
            }
            Change::AddressAdded(address) => write!(f, "added the address {address}"),
            Change::AddressRemoved(address) => write!(f, "removed the address {address}"),
            Change::RouteAdded(route) => write!(f, "added the route {route}"),
            Change::RouteReplaced(route) => write!(f, "put right the route {route}"),
            Change::RouteRemoved(route) => write!(f, "removed the route {route}"),
            Change::Set(setting) => write!(
                f,
                "set {} from {} to {}",
                setting.key, setting.found, setting.set
            ),
            Change::TableWritten(table) => write!(f, "wrote the nft table {table}"),
            Change::AcceptPlaced(chain) => write!(
                f,
                "let pod traffic through the nft chain {chain}, which cut it off"
            ),
            Change::AcceptRemoved(chain) => write!(
                f,
                "removed our accept rules from the nft chain {chain}, which no longer cuts pods off"
            ),
            Change::SubnetFile(path) => write!(f, "wrote {}", path.display()),
            Change::MemoryRefused(reason) => write!(
                f,
                "began a new memory of changed settings, the old one is refused: {reason}"
            ),
        }
    }
}
