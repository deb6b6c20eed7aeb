//! What an operator can do, worded: the remedy of each problem. All of them stand here.

use super::{Problem, UnderlayFault};
use crate::host::{HostError, PortHolder};

impl Problem {
    /// What to do, in one clause without its full stop.
    pub fn remedy(&self) -> String {
        match self {
            Problem::NetConfRefused { .. } => "correct the file; Tartan reads it again by itself".to_owned(),
            Problem::NetConfMissing { .. } => "write the file, readable by root; Tartan reads it again by itself".to_owned(),
            Problem::LeasesRefused { .. } => "correct the list; Tartan adopts it as soon as it changes".to_owned(),
            Problem::WorkersBehind { .. } => "look into the agent's log; if a worker hangs, its keeper restarts the service".to_owned(),
            Problem::ApiSocket { path, .. } => format!("remove what is at {} if it is not Tartan's socket; Tartan tries again each second", path.display()),
            Problem::LocksRemoved { .. } => "restart the agent (`systemctl restart tartan`)".to_owned(),
            Problem::StateNotSaved { .. } => "check that the state directory is writable by root and its disk not full".to_owned(),
            Problem::UnderlaySocket { wanted, fault, kept, .. } => match fault {
                UnderlayFault::NotOnHost if kept.is_some() => format!("give {} to an interface, or correct this node's entry in the list of nodes", wanted.address),
                UnderlayFault::NotOnHost => "correct public-ip of this node, or bring the interface up".to_owned(),
                UnderlayFault::PortTaken(holder) => port_taken(wanted.port, holder.as_ref()),
                UnderlayFault::Refused(_) => "look into the kernel's log (`dmesg`); Tartan tries again each second".to_owned(),
            },
            Problem::UnderlayMove { .. } => "check the limit of open descriptors (`ulimit -n`); Tartan tries again each second".to_owned(),
            Problem::CoresUnusable { .. } => format!("name other cores, or widen the service's affinity (`taskset -p {}`)", std::process::id()),
            Problem::WorkersNotPinned { .. } => "name cores that are online and in the service's cpuset, and restart the agent".to_owned(),
            Problem::UnderlayDown(interface) if interface.up => "check its cable, or what its other end is attached to".to_owned(),
            Problem::UnderlayDown(interface) => format!("bring it up (`ip link set {} up`)", interface.name),
            Problem::Host(problem) => problem.remedy.clone(),
            Problem::NodeFile { .. } => "check free space, and that the run directory is writable by root".to_owned(),
            Problem::PodUpkeep { .. } => "correct what the reason names; Tartan tries again each second".to_owned(),
            Problem::MixedPods { .. } => "drain the node, delete the bridge and uncordon: then all pods are Tartan's".to_owned(),
            Problem::UnusedAddress { .. } => "add an address of that family to this node's entry in the list of nodes, or leave it out of the configuration".to_owned(),
            Problem::UnderlayNarrow { interface, needs, .. } => format!("raise the MTU of {interface}, or Backend.MTU in the net-conf, to at least {needs}"),
            Problem::PeersUnreachable { .. } => "give one of the two an address of the other's family, public-ipv6 beside public-ip".to_owned(),
            Problem::PodsStranded { .. } => "delete and recreate them, see `tartan pods`".to_owned(),
            Problem::RouteBypasses(bypass) => format!("if that is not meant, `ip route delete {}`", bypass.prefix),
            Problem::RecordRefused { .. } => "delete and recreate the pod, see `tartan pods`".to_owned(),
        }
    }
}

/// What frees a UDP port that another process or device has.
fn port_taken(port: u16, holder: Option<&PortHolder>) -> String {
    match holder {
        None => format!(
            "'ss -lunp sport = :{port}' names the process; a kernel VXLAN device shows in 'ip -d link show type vxlan' and must be deleted first"
        ),
        Some(PortHolder::VxlanDevice(device)) => format!(
            "stop what made {device} (flanneld?) and delete it with 'ip link delete {device}'"
        ),
        Some(holder @ PortHolder::Process { .. }) if holder.is_tartan() => {
            "stop that one, or run this one in a network namespace of its own".to_owned()
        }
        Some(PortHolder::Process { .. }) => "stop that first".to_owned(),
    }
}

/// What removes the cause of a kernel's refusal.
pub(super) fn of_host(_error: &HostError) -> String {
    "see the sentence".to_owned()
}
