//! What Cilium leaves: github.com/cilium/cilium, whose own list is in cilium-dbg/cmd/cleanup.go.
//!
//! The rule that looks up the table `local` stays at priority 100, where Cilium has moved it: without it the host receives
//! nothing. Programs that are attached to a cgroup, and XDP programs, are not looked for: a restart of the host removes them.

use super::catalogue::{
    Catalogue, Device, FileForm, FilePlace, Name, Named, PolicyRule, RouteForm,
};

pub(super) const CATALOGUE: Catalogue = Catalogue {
    project: "Cilium",
    daemons: &["cilium-agent"],
    embedders: &[],
    switched_off: ("", ""),
    ports: &[(9879, "the health of cilium-agent")],
    devices: &[
        // Any kind: the mode decides it.
        Device {
            name: Name::Prefix("cilium_"),
            kinds: &[],
            source: CLEANUP,
        },
        Device {
            name: Name::Hex("lxc", 12),
            kinds: &["veth", "netkit"],
            source: CONNECTOR,
        },
        Device {
            name: Name::Exact("lxc_health"),
            kinds: &["veth", "netkit"],
            source: "cilium pkg/defaults/node.go",
        },
    ],
    tables: &[],
    chains: &[
        Named {
            name: Name::Prefix("CILIUM_"),
            source: IPTABLES,
        },
        Named {
            name: Name::Prefix("OLD_CILIUM_"),
            source: IPTABLES,
        },
    ],
    comments: &[Named {
        name: Name::Prefix("cilium-feeder:"),
        source: IPTABLES,
    }],
    forward_rules: &[],
    sets: &[
        Named {
            name: Name::Exact("cilium_node_set_v4"),
            source: "cilium pkg/datapath/iptables/ipset",
        },
        Named {
            name: Name::Exact("cilium_node_set_v6"),
            source: "cilium pkg/datapath/iptables/ipset",
        },
    ],
    filters: &[
        Named {
            name: Name::Prefix("cil_"),
            source: CLEANUP,
        },
        Named {
            name: Name::Prefix("cilium"),
            source: CLEANUP,
        },
        Named {
            name: Name::Prefix("bpf_netdev"),
            source: CLEANUP,
        },
        Named {
            name: Name::Prefix("bpf_network"),
            source: CLEANUP,
        },
        Named {
            name: Name::Prefix("bpf_host"),
            source: CLEANUP,
        },
        Named {
            name: Name::Prefix("bpf_lxc"),
            source: CLEANUP,
        },
        Named {
            name: Name::Prefix("bpf_overlay"),
            source: CLEANUP,
        },
    ],
    rules: &[
        PolicyRule {
            priority: 9,
            table: Some(2004),
            inverted: false,
            source: DEFAULTS,
        },
        PolicyRule {
            priority: 10,
            table: Some(2005),
            inverted: false,
            source: DEFAULTS,
        },
    ],
    routes: &[
        RouteForm::Table(2004, DEFAULTS),
        RouteForm::Table(2005, DEFAULTS),
    ],
    files: &[
        FileForm {
            at: FilePlace::Configuration("/etc/cni/net.d/05-cilium.conflist"),
            source: CLEANUP,
        },
        FileForm {
            at: FilePlace::Configuration("/etc/cni/net.d/05-cilium.conf"),
            source: CLEANUP,
        },
        FileForm {
            at: FilePlace::Configuration("/etc/cni/net.d/05-cilium-cni.conf"),
            source: CLEANUP,
        },
        FileForm {
            at: FilePlace::Configuration("/etc/cni/net.d/00-cilium-cni.conf"),
            source: CLEANUP,
        },
        FileForm {
            at: FilePlace::Configuration("/etc/cni/net.d/10-cilium-cni.conf"),
            source: CLEANUP,
        },
        FileForm {
            at: FilePlace::In("/sys/fs/bpf/tc/globals", Name::Prefix("cilium_")),
            source: CLEANUP,
        },
        FileForm {
            at: FilePlace::Tree("/sys/fs/bpf/cilium"),
            source: "cilium pkg/bpf/bpffs_linux.go, CiliumPath",
        },
        FileForm {
            at: FilePlace::Tree("/run/cilium"),
            source: "cilium pkg/defaults/defaults.go, RuntimePath",
        },
        FileForm {
            at: FilePlace::Tree("/var/lib/cilium"),
            source: "cilium pkg/defaults/defaults.go, LibraryPath",
        },
    ],
};

const CLEANUP: &str = "cilium cilium-dbg/cmd/cleanup.go";
const CONNECTOR: &str = "cilium pkg/datapath/connector, Endpoint2IfName";
const IPTABLES: &str = "cilium pkg/datapath/iptables/iptables.go";
const DEFAULTS: &str = "cilium pkg/datapath/linux/linux_defaults/linux_defaults.go";
