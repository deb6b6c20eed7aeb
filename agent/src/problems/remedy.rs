//! What an operator can do, worded: the remedy of each problem. All of them stand here.
//!
//! A remedy is typed as it stands, by a person in a hurry. So none deletes, flushes or kills what is not known to be ours:
//! where something of another program is in the way, the remedy is another name, port or network, or to ask that
//! program. The test of this module reads all of them with that eye.

use encap::Family;
use ipnet::IpNet;

use super::{ChangedMac, LeasesInForce, Problem, UnderlayFault};
use crate::host::{HostError, NftError, PortHolder};

impl Problem {
    /// What to do, in one clause without its full stop.
    pub fn remedy(&self) -> String {
        match self {
            Problem::NetConfRefused { cached: true, .. } => {
                "correct the file; Tartan reads it again by itself".to_owned()
            }
            Problem::NetConfRefused { cached: false, .. } => {
                "correct the file and start Tartan".to_owned()
            }
            Problem::ConfigurationRefused { .. } => {
                "correct the file (`tartan check` names its faults); Tartan reads it again by itself".to_owned()
            }
            Problem::NetConfMissing { .. } => "write the file, readable by root".to_owned(),
            Problem::LeasesRefused { in_force, .. } => match in_force {
                LeasesInForce::Nothing => "correct the list and start Tartan".to_owned(),
                LeasesInForce::Cache | LeasesInForce::Earlier => {
                    "correct the list; Tartan adopts it as soon as it changes".to_owned()
                }
            },
            Problem::RegistryLost { .. } => "bring the registry back; Tartan tries again by itself, and adopts what it has missed".to_owned(),
            Problem::LeaseRefused { .. } => "correct the record; Tartan adopts it as soon as it changes".to_owned(),
            Problem::NoExternalInterface { .. } => "bring the interface up, or name another with iface; Tartan tries again by itself".to_owned(),
            Problem::ListShrinks { .. } => "put the missing entries back, or run `tartan adopt` if these nodes are gone".to_owned(),
            Problem::WorkersBehind { .. } => "look into the agent's log; if a worker hangs, its keeper restarts the service".to_owned(),
            Problem::ApiSocket { path, .. } => format!("if something else is at {}, move it elsewhere; Tartan tries again by itself", path.display()),
            Problem::HealthPort { .. } => "set healthz (flanneld: -healthz-port) to a free port of this host; Tartan tries again by itself".to_owned(),
            Problem::MetricsPort { .. } => "set metrics to a free port of this host, or to the address of healthz; Tartan tries again by itself".to_owned(),
            Problem::LocksRemoved { .. } => "restart the agent (`systemctl restart tartan`)".to_owned(),
            Problem::StateNotSaved { .. } => "check that the state directory is writable by root and its disk not full".to_owned(),
            Problem::UnderlaySocket { wanted, fault, kept, .. } => match fault {
                UnderlayFault::NotOnHost if kept.is_some() => format!("give {} to an interface, or correct this node's entry in the list of nodes", wanted.address),
                UnderlayFault::NotOnHost => "correct this node's public address, or bring the interface up".to_owned(),
                UnderlayFault::PortTaken(holder) => port_taken(wanted.port, holder.as_ref()),
                UnderlayFault::Refused(_) => "look into the kernel's log (`dmesg`); Tartan tries again by itself".to_owned(),
            },
            Problem::UnderlayMove { .. } => "check the limit of open descriptors (`ulimit -n`); Tartan tries again by itself".to_owned(),
            Problem::CoresUnusable { .. } => format!("name other cores, or widen the service's affinity (`taskset -p {}`)", std::process::id()),
            Problem::WorkersNotPinned { .. } => "name cores that are online and in the service's cpuset, and restart the agent".to_owned(),
            Problem::WorkersNotConfined { .. } => "run a kernel with CONFIG_SECCOMP_FILTER, and a container whose profile allows seccomp(2); packets are forwarded all the same".to_owned(),
            Problem::UnderlayDown(interface) if interface.up => "check its cable, or what its other end is attached to".to_owned(),
            Problem::UnderlayDown(interface) => format!("bring it up (`ip link set {} up`)", interface.name),
            Problem::Host(problem) => problem.remedy.clone(),
            Problem::NodeFile { .. } => "check free space, and that the run directory is writable by root".to_owned(),
            Problem::PodUpkeep { .. } => "correct what the reason names; Tartan tries again by itself".to_owned(),
            Problem::PodLink { .. } => "find the program that changes it, or delete and recreate the pod, see `tartan pods`".to_owned(),
            Problem::MixedPods { .. } => "drain the node, end the other plugin's network (docs/migrate.md) and uncordon: then all pods are Tartan's".to_owned(),
            Problem::UnusedAddress { .. } => "add an address of that family to this node's entry in the list of nodes, or leave it out of the configuration".to_owned(),
            Problem::UnderlayNarrow { interface, needs, .. } => format!("raise the MTU of {interface}, or Backend.MTU in the net-conf, to at least {needs}"),
            Problem::UnderlayBelowMtu { interface, configured, .. } => format!("raise the MTU of {interface} and of the path to {configured} (`ip link set {interface} mtu {configured}`), or lower Backend.MTU in the net-conf of all nodes"),
            Problem::FlannelLeftOver { device, .. } => format!("{}; what flannel left also goes with a reboot", take_flannels_place(device)),
            Problem::BridgeOtherSubnet { .. } => "drain the node and reboot it, which makes the bridge anew in the node's subnet; or give the node its old subnet back".to_owned(),
            Problem::PeersUnreachable { .. } => "give one of the two an address of the other's family, public-ipv6 beside public-ip".to_owned(),
            Problem::PeerOtherVni { .. } => "give both the same Backend.VNI in net-conf.json".to_owned(),
            Problem::ReversePathFilter { interface, .. } => format!("run `sysctl -w net.ipv4.conf.{}.rp_filter=2`, and put it into a file of /etc/sysctl.d", interface.replace('.', "/")),
            Problem::BridgeNetfilterOff { key, is_loaded: true, .. } => format!("run `sysctl -w net.bridge.{key}=1`, and put it into a file of /etc/sysctl.d"),
            Problem::BridgeNetfilterOff { key, .. } => format!("load br_netfilter (`modprobe br_netfilter`), and at each boot by a file in /etc/modules-load.d; then `sysctl -w net.bridge.{key}=1`"),
            Problem::FlannelRulesLeft { .. } => "take them out as docs/migrate.md says for flannel's chains, or reboot the node".to_owned(),
            Problem::ChecksumErrors => "find the sender (`tcpdump -vv udp` shows `bad udp cksum`), and switch the offload off there: `ethtool -K eth0 tx-checksum-ip-generic off`, on a flannel node for flannel.1 too".to_owned(),
            Problem::ClockSetBack { .. } => "let a time service set the clock (`timedatectl`, `chronyc tracking`), then restart the agent".to_owned(),
            Problem::PeerSilent { peer, address, .. } => format!("look at {peer}: is the host up and Tartan running (`tartan status` there), and does {address} answer `ping`; then at firewalls on the way, for the overlay's UDP port"),
            Problem::PeerOneWay { peer, address } => format!("look for a firewall that drops the overlay's UDP port from this node to {address}: on this node (output), on the way, and on {peer} (input)"),
            Problem::PeerNarrow { peer, address, measured, .. } => format!("raise the MTU of the links on the way to {address} ({peer}), or set Backend.MTU in the net-conf to what fits {measured} bytes; then restart pods"),
            Problem::PeerRefused { peer, .. } => format!("start Tartan, or flanneld, on {peer}, and give both nodes the same Backend.Type and Backend.Port; if {peer} is gone, take it out of the list of nodes"),
            Problem::PeerUnreachable { peer, address, .. } => format!("see `ip route get {address}`, and whether {peer} is up and its cable in; if it is gone, take it out of the list of nodes"),
            Problem::PeerWrongMac { peer, .. } => format!("correct `vtep-mac` of this node in the list of nodes that {peer} reads (`ip link show` of the tunnel device, or `tartan peers -o json` on a third node, has the right one)"),
            Problem::PeerProbes { .. } => "give this node the address, or look into the kernel's log (`dmesg`)".to_owned(),
            Problem::PeerUnknownAddress { node, outer, .. } => format!("if that is {node}, correct its public-ip, or list {outer} under its underlay-sources; if not, find the sender"),
            Problem::FamilyWithoutSubnets { family: Family::V6, .. } => "add one to its entry in the list of nodes, or switch EnableIPv6 off in net-conf.json".to_owned(),
            Problem::FamilyWithoutSubnets { .. } => "add one to its entry in the list of nodes, or switch EnableIPv4 off in net-conf.json".to_owned(),
            Problem::PeerLostFamily { lost, .. } => format!("if it is not meant, give {} its entry back; the next start of the service takes it as meant", lost.node),
            Problem::VtepMacChanged { peer, changed } => vtep_mac_changed(peer, changed),
            Problem::FlanneldRunning(_) => "stop it for good: `systemctl disable --now flanneld`, or take the node out of flannel's DaemonSet (docs/migrate.md)".to_owned(),
            Problem::PodsStranded { .. } => "delete and recreate them, see `tartan pods`".to_owned(),
            Problem::DirectRouting(_) => "take DirectRouting out of the net-conf of all nodes, or trust what sends on that link".to_owned(),
            Problem::DirectRoutingFiltered(senders) => format!(
                "run `sysctl -w net.ipv4.conf.{}.rp_filter=2`, and the same for flannel.1 on those nodes; or take DirectRouting out of the net-conf of all nodes",
                sysctl_word(&senders.interface)
            ),
            Problem::RouteBypasses(bypass) => format!("if that is not meant, have the program that set the route (`ip route show {} proto {}`) take it back", bypass.prefix, bypass.protocol),
            Problem::MoreOfAKind { command, .. } => format!("see `{command}`"),
            Problem::ApiThread { .. } => {
                "raise the limit of threads (`ulimit -u`, pids.max of the control group); Tartan tries again by itself".to_owned()
            }
            Problem::KernelPathOff { remedy, .. } => remedy.clone(),
            Problem::RecordRefused { .. } => "delete and recreate the pod, see `tartan pods`".to_owned(),
        }
    }
}

/// What brings a lease and the device of its node together again.
fn vtep_mac_changed(peer: &str, changed: &[ChangedMac]) -> String {
    let entry = |changed: &ChangedMac| {
        let key = match changed.inner {
            Family::V4 => "vtep-mac",
            Family::V6 => "vtep-mac-v6",
        };
        format!("{key} = \"{}\"", changed.seen)
    };
    let entries: Vec<String> = changed.iter().map(entry).collect();
    format!(
        "set {} in {peer}'s entry of the list of nodes (flannel prints the MAC as VtepMAC in the node's lease), or give the node's VXLAN device its old MAC back",
        entries.join(" and ")
    )
}

/// The name of an interface within that of a setting, where sysctl(8) takes a dot for a separator.
fn sysctl_word(interface: &str) -> String {
    interface.replace('.', "/")
}

/// What frees a UDP port that another process or device has.
fn port_taken(port: u16, holder: Option<&PortHolder>) -> String {
    match holder {
        None => format!(
            "see who has it (`ss -lunp sport = :{port}`, or `ip -d link show type vxlan` for a device of the kernel) and have it give the port up, or set Backend.Port of all nodes to another port"
        ),
        Some(PortHolder::VxlanDevice(device)) => format!(
            "{}; or set Backend.Port of all nodes to another port",
            take_flannels_place(device)
        ),
        Some(holder @ PortHolder::Process { .. }) if holder.is_tartan() => {
            "stop that one, or run this one in a network namespace of its own".to_owned()
        }
        Some(PortHolder::Process { .. }) => {
            "give that process another port, or set Backend.Port of all nodes to another one"
                .to_owned()
        }
    }
}

/// How Tartan takes the place of a VXLAN device that is flannel's.
fn take_flannels_place(device: &str) -> String {
    let name = device.replacen("flannel-v6.", "flannel.", 1);
    format!(
        "if flannel left {device}, set `replace-flannel = true` and `device-name = \"{name}\"` (docs/migrate.md); if not, have what made it give it up"
    )
}

/// What removes the cause of a kernel's refusal.
pub(super) fn of_host(error: &HostError) -> String {
    match error {
        HostError::Socket { .. } => {
            "check that the sandbox (seccomp, AppArmor) allows AF_NETLINK".to_owned()
        }
        HostError::NotPermitted { .. } => "run as root, or with CAP_NET_ADMIN".to_owned(),
        HostError::Netlink { .. } => "look into the kernel's log (`dmesg`); Tartan tries again by itself".to_owned(),
        HostError::NoShaper { module, .. } => format!(
            "load the kernel's {module} (`modprobe -a {module}`), or take the bandwidth limit off the pod"
        ),
        HostError::ForeignQdisc { device } => format!(
            "have the program that set it use `clsact` (`tc qdisc show dev {device}`), or set `kernel-path = \"off\"`"
        ),
        HostError::VxlanPort { port, .. } => format!(
            "see which device has it (`ip -d link show type vxlan`) or which process (`ss -lunp sport = :{port}`) and have it give it up, or set `kernel-path = \"off\"`"
        ),
        HostError::Ipsec { .. } => {
            "run with CAP_NET_ADMIN, in a sandbox that allows NETLINK_XFRM, or set `kernel-path = \"off\"`".to_owned()
        }
        HostError::DeviceName { .. } => {
            "set `device-name` to 1 to 15 characters without '/', ':' or blanks".to_owned()
        }
        HostError::NoDevice { .. } => "restart Tartan, which creates it".to_owned(),
        HostError::ForeignDevice { name, found } if found.ends_with(VXLAN) => format!(
            "{}; or set `device-name` to a name that no interface has",
            take_flannels_place(name)
        ),
        HostError::ForeignDevice { .. } => {
            "set `device-name` to a name that no interface has".to_owned()
        }
        HostError::DeviceInUse { .. } => {
            "stop that one, or set `device-name` to another name".to_owned()
        }
        HostError::NetworkHeld { prefix, protocol, .. } => format!(
            "stop what set it up (flanneld?), see `ip route show {prefix} proto {protocol}` and docs/migrate.md; or give the cluster another network"
        ),
        HostError::MtuBelowIpv6 { .. } => {
            "raise the underlay's MTU or drop IPv6Network from the net-conf".to_owned()
        }
        HostError::NoIpv6 => {
            "boot without `ipv6.disable=1`, or drop IPv6Network from the net-conf".to_owned()
        }
        HostError::NoUnderlay { key, held, .. } => format!(
            "correct this node's public address, or set `{key}`, where that is not the local one, to one of {held}"
        ),
        HostError::ReadSetting { .. } => "check that /proc/sys is mounted".to_owned(),
        HostError::WriteSetting { key, value, .. } => format!(
            "make /proc/sys/net writable (in a container mount the host's at /host/proc/sys/net), or run `sysctl -w {key}={value}` on the host"
        ),
        HostError::Identity { .. } => "check that /proc is mounted".to_owned(),
        HostError::WriteRecord { .. } => {
            "check that the state directory is writable by root and its disk not full".to_owned()
        }
        HostError::Rules { source, .. } => of_nft(source),
        HostError::CutOff { networks, .. } => let_through(networks),
        HostError::RulesBesideLegacy { problem, .. } => of_host(problem),
        HostError::WriteSubnetFile { .. } => {
            "make its directory writable by root, or set `subnet-file` to another path".to_owned()
        }
        HostError::ReadRecord { .. } => {
            "move it elsewhere: Tartan then forgets which kernel settings it changed".to_owned()
        }
        HostError::OtherNamespace { .. } => {
            "run this command there (ip netns exec, nsenter), or delete the file if that namespace no longer exists".to_owned()
        }
        HostError::RemoveFile { .. } => "remove it by hand".to_owned(),
    }
}

/// What removes the cause of a refusal of nf_tables.
fn of_nft(error: &NftError) -> String {
    match error {
        NftError::Unsupported => "load or build in nf_tables, nft_fib_inet and nft_ct, and for masquerade nft_chain_nat and nft_masq",
        NftError::Socket { .. } => "check that the sandbox (seccomp, AppArmor) allows AF_NETLINK",
        NftError::NotPermitted => "run as root, or with CAP_NET_ADMIN",
        NftError::Refused { .. } | NftError::Interrupted | NftError::NoAnswer => "Tartan tries again by itself",
        NftError::TooMany => "find the program that makes them (`nft list ruleset`) and end that",
    }
    .to_owned()
}

/// How [`HostError::ForeignDevice`] names a VXLAN device of the kernel.
const VXLAN: &str = "vxlan device";

/// How another program's firewall lets pod traffic through.
fn let_through(networks: &[IpNet]) -> String {
    let networks: Vec<String> = networks.iter().map(ToString::to_string).collect();
    let sources: Vec<String> = networks
        .iter()
        .map(|network| format!("--add-source={network}"))
        .collect();
    format!(
        "accept packets from and to {} there (with firewalld: `firewall-cmd --permanent --zone=trusted {}`, then `firewall-cmd --reload`)",
        networks.join(" and "),
        sources.join(" ")
    )
}

#[cfg(test)]
mod tests;
