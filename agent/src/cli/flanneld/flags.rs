//! flanneld's flags and their defaults (flannel `main.go`), and those of its log (klog).

use super::go_flags::{Flag, Kind};

const fn flag(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Flag {
    Flag {
        name,
        kind,
        default,
        help,
    }
}

/// All of them.
pub(super) const FLAGS: [Flag; 37] = [
    flag(
        "etcd-endpoints",
        Kind::Text,
        "http://127.0.0.1:4001,http://127.0.0.1:2379",
        "etcd: connect to these servers, separated by commas",
    ),
    flag(
        "etcd-prefix",
        Kind::Text,
        "/coreos.com/network",
        "etcd: use the keys below this prefix",
    ),
    flag(
        "etcd-keyfile",
        Kind::Text,
        "",
        "etcd: authenticate with the private key in this file",
    ),
    flag(
        "etcd-certfile",
        Kind::Text,
        "",
        "etcd: authenticate with the certificate in this file",
    ),
    flag(
        "etcd-cafile",
        Kind::Text,
        "",
        "etcd: trust servers whose certificate is signed by those in this file",
    ),
    flag(
        "etcd-username",
        Kind::Text,
        "",
        "etcd: authenticate as this user",
    ),
    flag(
        "etcd-password",
        Kind::Text,
        "",
        "etcd: password of that user; prefer FLANNELD_ETCD_PASSWORD, since other users of the host see a command line",
    ),
    flag(
        "iface",
        Kind::Texts,
        "",
        "interface to reach other nodes by, name or address; may be given several times, the first that can be used counts",
    ),
    flag(
        "iface-regex",
        Kind::Texts,
        "",
        "regular expression for an address or the name of that interface; may be given several times; tried after -iface",
    ),
    flag(
        "iface-can-reach",
        Kind::Text,
        "",
        "use the interface by which the kernel would send to this address; tried after -iface-regex",
    ),
    flag(
        "subnet-file",
        Kind::Text,
        "/run/flannel/subnet.env",
        "file to write subnet, MTU and masquerading to",
    ),
    flag(
        "public-ip",
        Kind::Text,
        "",
        "IPv4 address that other nodes send to",
    ),
    flag(
        "public-ipv6",
        Kind::Text,
        "",
        "IPv6 address that other nodes send to",
    ),
    flag(
        "subnet-lease-renew-margin",
        Kind::Int,
        "60",
        "etcd: renew the lease this many minutes before it ends, 1 to 1439",
    ),
    flag(
        "ip-masq",
        Kind::Bool,
        "false",
        "masquerade packets from pods to addresses outside the cluster network",
    ),
    flag(
        "ip-masq-fully-random-disable",
        Kind::Bool,
        "false",
        "accepted; without effect, ports of masqueraded packets are never chosen at random",
    ),
    flag(
        "kube-subnet-mgr",
        Kind::Bool,
        "false",
        "learn subnets from the Kubernetes API in place of etcd",
    ),
    flag(
        "kube-api-url",
        Kind::Text,
        "",
        "Kubernetes: URL of the API server; needed outside a pod where the kubeconfig names none",
    ),
    flag(
        "kube-annotation-prefix",
        Kind::Text,
        "flannel.alpha.coreos.com",
        "Kubernetes: prefix of the node annotations",
    ),
    flag(
        "kubeconfig-file",
        Kind::Text,
        "",
        "Kubernetes: file with server and credentials; not needed in a pod",
    ),
    flag("version", Kind::Bool, "false", "print the version and exit"),
    flag(
        "healthz-ip",
        Kind::Text,
        "0.0.0.0",
        "address on which /healthz and /readyz are answered",
    ),
    flag(
        "healthz-port",
        Kind::Int,
        "0",
        "port on which they are answered, 0 for not at all",
    ),
    flag(
        "iptables-resync",
        Kind::Int,
        "5",
        "accepted; without effect, rules are restored when they change",
    ),
    flag(
        "iptables-forward-rules",
        Kind::Bool,
        "true",
        "accept the cluster's packets in firewall chains of other programs that drop what they do not know",
    ),
    flag(
        "ip-blackhole-route",
        Kind::Bool,
        "false",
        "accepted; without effect, a route always refuses packets to unassigned addresses of this node",
    ),
    flag(
        "net-config-path",
        Kind::Text,
        "/etc/kube-flannel/net-conf.json",
        "Kubernetes: file with the cluster's configuration",
    ),
    flag(
        "set-node-network-unavailable",
        Kind::Bool,
        "true",
        "Kubernetes: set the node's condition NetworkUnavailable to False once this node forwards",
    ),
    flag("v", Kind::Int, "0", "log more: debug messages from 4 on"),
    flag("vmodule", Kind::Text, "", "accepted; without effect"),
    flag(
        "log_backtrace_at",
        Kind::Text,
        "",
        "accepted; without effect",
    ),
    flag(
        "logtostderr",
        Kind::Bool,
        "true",
        "accepted; without effect, the log is always on standard error",
    ),
    flag(
        "alsologtostderr",
        Kind::Bool,
        "false",
        "accepted; without effect",
    ),
    flag(
        "stderrthreshold",
        Kind::Text,
        "",
        "accepted; without effect",
    ),
    flag("log_dir", Kind::Text, "", "accepted; without effect"),
    flag("log_file", Kind::Text, "", "accepted; without effect"),
    flag(
        "skip_headers",
        Kind::Bool,
        "false",
        "accepted; without effect",
    ),
];
