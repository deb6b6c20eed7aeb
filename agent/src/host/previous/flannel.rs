//! What flannel leaves: github.com/flannel-io/flannel, and its plugin github.com/flannel-io/cni-plugin.

use super::catalogue::{Catalogue, Device, FileForm, FilePlace, Name, Named, RouteForm};
use crate::host::firewall::nft::{IPV4, IPV6};

pub(super) const CATALOGUE: Catalogue = Catalogue {
    project: "flannel",
    daemons: &["flanneld"],
    // k3s has flanneld inside. An agent of k3s does not say which backend its server chose.
    embedders: &["k3s", "k3s-server", "k3s-agent"],
    switched_off: ("flannel-backend", "none"),
    // Its health port is off unless asked for, and its UDP ports are Tartan's too.
    ports: &[],
    devices: &[
        Device {
            name: Name::Number("flannel."),
            kinds: &["vxlan"],
            source: VXLAN,
        },
        Device {
            name: Name::Number("flannel-v6."),
            kinds: &["vxlan"],
            source: VXLAN,
        },
        Device {
            name: Name::Exact("flannel-wg"),
            kinds: &["wireguard"],
            source: WIREGUARD,
        },
        Device {
            name: Name::Exact("flannel-wg-v6"),
            kinds: &["wireguard"],
            source: WIREGUARD,
        },
        Device {
            name: Name::Exact("flannel.ipip"),
            kinds: &["ipip"],
            source: "flannel pkg/backend/ipip/ipip.go",
        },
        Device {
            name: Name::Exact("cni0"),
            kinds: &["bridge"],
            source: "containernetworking plugins/main/bridge/bridge.go",
        },
    ],
    tables: &[
        (IPV4, "flannel-ipv4", NFTABLES),
        (IPV6, "flannel-ipv6", NFTABLES),
    ],
    chains: &[
        Named {
            name: Name::Exact("FLANNEL-POSTRTG"),
            source: IPTABLES,
        },
        Named {
            name: Name::Exact("FLANNEL-FWD"),
            source: IPTABLES,
        },
    ],
    // Before 0.20 the rules stood in the chains of the kernel.
    comments: &[
        Named {
            name: Name::Exact("flanneld masq"),
            source: IPTABLES,
        },
        Named {
            name: Name::Exact("flanneld forward"),
            source: IPTABLES,
        },
    ],
    forward_rules: &[],
    sets: &[],
    filters: &[],
    rules: &[],
    routes: &[RouteForm::InFlannelNetwork(
        "flannel pkg/backend/route_network.go",
    )],
    files: &[
        FileForm {
            at: FilePlace::Configuration("/etc/cni/net.d/10-flannel.conflist"),
            source: MANIFEST,
        },
        FileForm {
            at: FilePlace::Configuration("/etc/cni/net.d/10-flannel.conf"),
            source: MANIFEST,
        },
        FileForm {
            at: FilePlace::Tree("/run/flannel"),
            source: "flannel main.go, subnet-file",
        },
        FileForm {
            at: FilePlace::Tree("/var/lib/cni/flannel"),
            source: "flannel-io/cni-plugin flannel.go, dataDir",
        },
        FileForm {
            at: FilePlace::Tree("/var/lib/cni/networks/cbr0"),
            source: MANIFEST,
        },
    ],
};

const VXLAN: &str = "flannel pkg/backend/vxlan/vxlan.go";
const WIREGUARD: &str = "flannel pkg/backend/wireguard/wireguard.go";
const NFTABLES: &str = "flannel pkg/trafficmngr/nftables/nftables.go";
const IPTABLES: &str = "flannel pkg/trafficmngr/iptables/iptables.go";
const MANIFEST: &str = "flannel Documentation/kube-flannel.yml";
