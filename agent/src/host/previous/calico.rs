//! What Calico leaves: github.com/projectcalico/calico.
//!
//! The device `tunl0` of its IPIP mode stays: it is the kernel's own, which it makes in every network namespace.

use super::catalogue::{
    Catalogue, Device, FileForm, FilePlace, Name, Named, PolicyRule, RouteForm,
};
use crate::host::firewall::nft::{IPV4, IPV6};

pub(super) const CATALOGUE: Catalogue = Catalogue {
    project: "Calico",
    daemons: &["calico-node", "calico-felix"],
    embedders: &[],
    switched_off: ("", ""),
    ports: &[(9099, "the health of Felix")],
    devices: &[
        Device {
            name: Name::Hex("cali", 11),
            kinds: &["veth", "netkit"],
            source: "libcalico-go lib/backend/k8s/conversion, VethNameForWorkload",
        },
        Device {
            name: Name::Exact("vxlan.calico"),
            kinds: &["vxlan"],
            source: DEVICES,
        },
        Device {
            name: Name::Exact("vxlan-v6.calico"),
            kinds: &["vxlan"],
            source: DEVICES,
        },
        Device {
            name: Name::Exact("wireguard.cali"),
            kinds: &["wireguard"],
            source: CONFIG,
        },
        Device {
            name: Name::Exact("wg-v6.cali"),
            kinds: &["wireguard"],
            source: CONFIG,
        },
        Device {
            name: Name::Exact("bpfin.cali"),
            kinds: &["veth"],
            source: DEVICES,
        },
        Device {
            name: Name::Exact("bpfout.cali"),
            kinds: &["veth"],
            source: DEVICES,
        },
    ],
    tables: &[
        (IPV4, "calico", "felix nftables/table.go"),
        (IPV6, "calico", "felix nftables/table.go"),
    ],
    chains: &[Named {
        name: Name::Prefix("cali-"),
        source: RULES,
    }],
    // Of rules that Felix puts into the chains of the kernel: the prefix of their hash.
    comments: &[Named {
        name: Name::Prefix("cali:"),
        source: RULES,
    }],
    forward_rules: &[],
    sets: &[
        Named {
            name: Name::Prefix("cali40"),
            source: SETS,
        },
        Named {
            name: Name::Prefix("cali60"),
            source: SETS,
        },
        Named {
            name: Name::Prefix("cali4t"),
            source: SETS,
        },
        Named {
            name: Name::Prefix("cali6t"),
            source: SETS,
        },
    ],
    filters: &[Named {
        name: Name::Prefix("cali_tc"),
        source: "felix bpf/tc/attach.go",
    }],
    rules: &[PolicyRule {
        priority: 99,
        table: None,
        inverted: true,
        source: CONFIG,
    }],
    routes: &[
        RouteForm::Protocol(80, DEVICES),
        RouteForm::ProtocolOf(
            12,
            &["bird", "bird6"],
            "calico confd/etc/calico/confd/templates/bird.cfg.template",
        ),
    ],
    files: &[
        FileForm {
            at: FilePlace::Configuration("/etc/cni/net.d/10-calico.conflist"),
            source: INSTALL,
        },
        FileForm {
            at: FilePlace::Configuration("/etc/cni/net.d/10-canal.conflist"),
            source: "calico manifests/canal.yaml",
        },
        FileForm {
            at: FilePlace::Configuration("/etc/cni/net.d/calico-kubeconfig"),
            source: INSTALL,
        },
        FileForm {
            at: FilePlace::In("/sys/fs/bpf/tc/globals", Name::Prefix("cali_")),
            source: PINS,
        },
        FileForm {
            at: FilePlace::In("/sys/fs/bpf", Name::Prefix("calico_")),
            source: PINS,
        },
        FileForm {
            at: FilePlace::Tree("/run/calico"),
            source: "calico manifests/calico.yaml, var-run-calico",
        },
        FileForm {
            at: FilePlace::Tree("/var/lib/calico"),
            source: "calico manifests/calico.yaml, var-lib-calico",
        },
    ],
};

const DEVICES: &str = "felix dataplane/linux/dataplanedefs/dataplane_defs.go";
const CONFIG: &str = "felix config/config_params.go";
const RULES: &str = "felix rules/rule_defs.go";
const SETS: &str = "felix ipsets/ipset_defs.go";
const PINS: &str = "felix bpf/bpfdefs/defs.go";
const INSTALL: &str = "calico cni-plugin/pkg/install/install.go";
