//! What was changed on the host, in words.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use encap::Mac;
use ipnet::IpNet;

/// One thing that [`Host::apply`](super::Host::apply) had to change. Its
/// `Display` is a phrase for the log and `tartan status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The device was given the alias that marks it as ours.
    AliasSet(String),
    /// The device was brought up.
    BroughtUp(String),
    /// Multicast was disabled on the device.
    MulticastDisabled(String),
    /// ARP was disabled on the device.
    ArpDisabled(String),
    /// The device's queue length was raised.
    QueueLength {
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
    /// The device, or the host's end of a pod, was given its hardware address.
    MacSet(String),
    /// A permanent neighbour entry was set.
    NeighbourSet {
        /// The pod's address.
        address: IpAddr,
        /// The host's end.
        device: String,
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
    Setting(SettingChange),
    /// Our nft table was replaced; its family and name.
    TableWritten(String),
    /// Elements of a set of our nft table were changed.
    SetChanged {
        /// Its family, table and name.
        set: String,
        /// How many elements are new.
        added: usize,
        /// How many went.
        removed: usize,
    },
    /// Our accept rules were put into a chain of another table.
    AcceptRulesAdded(String),
    /// Our accept rules were taken out of a chain of another table.
    AcceptRulesRemoved(String),
    /// A pod's limit was set.
    Limited {
        /// The host's end.
        host_ifname: String,
        /// `to` or `from` the pod.
        way: &'static str,
        /// Bits per second.
        rate: u64,
    },
    /// A host's end of a pod was made to gather UDP datagrams; its name.
    GatheringOn(String),
    /// It was made to gather no more.
    GatheringOff(String),
    /// The limiter of a pod that is gone was removed; its name.
    LimiterRemoved(String),
    /// `subnet.env` was written; its path.
    SubnetEnvWritten(PathBuf),
    /// A VXLAN device that a stopped flanneld left was brought down.
    LeftoverDown {
        /// The device.
        device: String,
        /// Its MAC.
        mac: Option<Mac>,
    },
    /// A VXLAN device that a stopped flanneld left was deleted; its name then.
    LeftoverDeleted(String),
    /// A route past the overlay that flannel had set was removed; as ip-route(8) writes it.
    FlannelRouteRemoved(String),
    /// An nft table of flannel's was deleted; its family and name.
    FlannelTableDeleted(String),
    /// The VXLAN device of the kernel path was made; its name.
    VxlanDeviceMade(String),
    /// The VXLAN device of the kernel path was removed; its name.
    VxlanDeviceRemoved(String),
    /// A program of the kernel path was attached.
    ProgramAttached {
        /// Its name.
        program: &'static str,
        /// The device.
        device: String,
    },
    /// A program of the kernel path was detached from the device.
    ProgramDetached(String),
    /// The record of earlier changes cannot be used, and a new one was started; why.
    RecordRefused(String),
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

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::AliasSet(device) => write!(f, "set the alias of {device}"),
            Change::BroughtUp(device) => write!(f, "brought {device} up"),
            Change::MulticastDisabled(device) => write!(f, "disabled multicast on {device}"),
            Change::ArpDisabled(device) => write!(f, "disabled ARP on {device}"),
            Change::QueueLength { device, found, set } => {
                write!(
                    f,
                    "set the queue length of {device} from {found} to {set} packets"
                )
            }
            Change::Mtu { device, found, set } => {
                write!(f, "set the MTU of {device} from {found} to {set}")
            }
            Change::Limited {
                host_ifname,
                way,
                rate,
            } => write!(
                f,
                "set a limit of {rate} bit/s {way} the pod of {host_ifname}"
            ),
            Change::GatheringOn(name) => {
                write!(f, "switched GRO and rx-udp-gro-forwarding of {name} on")
            }
            Change::GatheringOff(name) => {
                write!(f, "switched GRO and rx-udp-gro-forwarding of {name} off")
            }
            Change::LimiterRemoved(name) => {
                write!(f, "deleted {name}, the limiter of a pod that is gone")
            }
            Change::MacSet(device) => write!(f, "set the hardware address of {device}"),
            Change::NeighbourSet { address, device } => {
                write!(f, "set the neighbour {address} on {device}")
            }
            Change::AddressAdded(address) => write!(f, "added the address {address}"),
            Change::AddressRemoved(address) => write!(f, "removed the address {address}"),
            Change::RouteAdded(route) => write!(f, "added the route {route}"),
            Change::RouteReplaced(route) => write!(f, "replaced the route {route}"),
            Change::RouteRemoved(route) => write!(f, "removed the route {route}"),
            Change::Setting(setting) => write!(
                f,
                "set {} from {} to {}",
                setting.key, setting.found, setting.set
            ),
            Change::TableWritten(table) => write!(f, "wrote the nft table {table}"),
            Change::SetChanged {
                set,
                added,
                removed,
            } => write!(
                f,
                "changed the nft set {set}: {added} elements added, {removed} removed"
            ),
            Change::AcceptRulesAdded(chain) => write!(
                f,
                "added accept rules to the nft chain {chain}, which cut pods off"
            ),
            Change::AcceptRulesRemoved(chain) => write!(
                f,
                "removed the accept rules from the nft chain {chain}, which no longer cuts pods off"
            ),
            Change::SubnetEnvWritten(path) => write!(f, "wrote {}", path.display()),
            Change::LeftoverDeleted(device) => {
                write!(f, "deleted the VXLAN device {device}, which flannel left")
            }
            Change::LeftoverDown { device, mac } => {
                write!(
                    f,
                    "took the place of the VXLAN device {device} that flannel left"
                )?;
                match mac {
                    Some(mac) => write!(f, ", VTEP MAC {mac}"),
                    None => Ok(()),
                }
            }
            Change::FlannelRouteRemoved(route) => {
                write!(f, "removed the route {route}, which flannel left")
            }
            Change::FlannelTableDeleted(table) => {
                write!(f, "deleted the nft table {table}, which flannel left")
            }
            Change::VxlanDeviceMade(device) => write!(f, "made the VXLAN device {device}"),
            Change::VxlanDeviceRemoved(device) => write!(f, "removed the VXLAN device {device}"),
            Change::ProgramAttached { program, device } => {
                write!(f, "attached the program {program} to {device}")
            }
            Change::ProgramDetached(device) => {
                write!(f, "detached the kernel path's program from {device}")
            }
            Change::RecordRefused(reason) => write!(
                f,
                "started a new record of changed settings, the old one cannot be used: {reason}"
            ),
        }
    }
}
