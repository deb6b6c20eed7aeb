//! What Weave Net leaves: github.com/weaveworks/weave.
//!
//! The device `datapath` of Open vSwitch cannot be deleted as an interface: the kernel's refusal is reported.

use super::catalogue::{Catalogue, Device, FileForm, FilePlace, Name, Named};

pub(super) const CATALOGUE: Catalogue = Catalogue {
    project: "Weave Net",
    daemons: &["weaver", "weave-npc"],
    embedders: &[],
    switched_off: ("", ""),
    ports: &[
        (6783, "connections of weaver"),
        (6784, "the status of weaver"),
    ],
    devices: &[
        Device {
            name: Name::Exact("weave"),
            kinds: &["bridge"],
            source: BRIDGE,
        },
        Device {
            name: Name::Exact("datapath"),
            kinds: &["openvswitch"],
            source: BRIDGE,
        },
        Device {
            name: Name::Prefix("vethwe"),
            kinds: &["veth"],
            source: BRIDGE,
        },
        Device {
            name: Name::Exact("vxlan-6784"),
            kinds: &["vxlan"],
            source: "weave router/fastdp.go",
        },
    ],
    tables: &[],
    chains: &[
        Named {
            name: Name::Exact("WEAVE"),
            source: BRIDGE,
        },
        Named {
            name: Name::Prefix("WEAVE-"),
            source: "weave net/bridge.go, npc/constants.go",
        },
    ],
    comments: &[Named {
        name: Name::Prefix("Block non-local access to Weave Net control port"),
        source: BRIDGE,
    }],
    // Others may have rules for the bridge as well: these alone are Weave's.
    forward_rules: &[
        ("-i docker0 -o weave -j DROP", BRIDGE),
        (
            "-o weave -m state --state NEW -j NFLOG --nflog-group 86",
            BRIDGE,
        ),
        ("-o weave -j DROP", BRIDGE),
        ("-i weave -o weave -j ACCEPT", BRIDGE),
        ("-i weave ! -o weave -j ACCEPT", BRIDGE),
        (
            "-o weave -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            BRIDGE,
        ),
    ],
    sets: &[
        Named {
            name: Name::Exact("weaver-no-masq-local"),
            source: BRIDGE,
        },
        Named {
            name: Name::Prefix("weave-"),
            source: "weave npc/shortname.go",
        },
    ],
    filters: &[],
    rules: &[],
    routes: &[],
    files: &[
        FileForm {
            at: FilePlace::Configuration("/etc/cni/net.d/10-weave.conflist"),
            source: SETUP,
        },
        FileForm {
            at: FilePlace::Configuration("/etc/cni/net.d/10-weave.conf"),
            source: SETUP,
        },
        FileForm {
            at: FilePlace::Tree("/var/lib/weave"),
            source: "weave prog/weave-kube/weave-daemonset-k8s-1.11.yaml",
        },
    ],
};

const BRIDGE: &str = "weave net/bridge.go";
const SETUP: &str = "weave plugin/cni/cni.go, prog/weaver/weave";
