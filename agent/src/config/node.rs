//! This node's configuration. A flag overrides its `TARTAN_*` variable, and a variable overrides `tartan.toml`.

mod error;
mod file;
mod place;
pub mod registry;
mod resolve;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use dataplane::families::PublicAddresses;
use encap::Family;

use super::backend::Backend;
use super::document::{self, TomlError};
use super::spin::SpinSetting;
use super::workers::{CORES, MOST_WORKERS};
use registry::{MOST_RENEW_MARGIN, RegistryArgs, RegistryConfig};

pub use error::ConfigError;
pub use file::ConfigFile;
#[cfg(test)]
use place::NO_KEYS;
pub use place::{check_variables, is_flag, variable};

/// The keys of `tartan.toml` as flags and environment variables.
#[derive(Args, Clone, Debug, Default)]
pub struct RunArgs {
    /// Read this node's configuration from FILE [default: ROOT/etc/tartan/tartan.toml, if it exists]
    #[arg(long, env = "TARTAN_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Keep all files of the agent below DIR: configuration, state, run directory, socket [default: /]
    #[arg(long, env = "TARTAN_ROOT", value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Take over from the agent that runs on the same files, without a pause, and hand over to the next; NAME, 1 to 64 characters, is no other agent's
    #[arg(long, env = "TARTAN_TAKE_OVER", value_name = "NAME", value_parser = instance)]
    pub take_over: Option<String>,
    /// Find this node under NAME in the list of nodes [default: the host name]
    #[arg(long, env = "TARTAN_NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String>,
    /// Read the cluster configuration, in flannel's form, from FILE [default: ROOT/etc/tartan/net-conf.json]
    #[arg(long, env = "TARTAN_NET_CONF", value_name = "FILE")]
    pub net_conf: Option<PathBuf>,
    /// Read and watch the list of nodes in FILE [default: ROOT/etc/tartan/nodes.toml]
    #[arg(long, env = "TARTAN_NODE_FILE", value_name = "FILE")]
    pub node_file: Option<PathBuf>,
    /// Where leases come from, and what this node publishes.
    #[command(flatten)]
    pub registry: RegistryArgs,
    /// Send from and receive on this local underlay address; needed behind NAT [default: the public address of this node]
    #[arg(long, env = "TARTAN_LOCAL_IP", value_name = "ADDRESS")]
    pub local_ip: Option<IpAddr>,
    /// Send from and receive on this local underlay address of IPv6; needed behind NAT [default: the public IPv6 address of this node]
    #[arg(long = "local-ipv6", env = "TARTAN_LOCAL_IPV6", value_name = "ADDRESS")]
    pub local_ipv6: Option<IpAddr>,
    /// Open the tunnel device with offloads if the kernel has them (auto), only with offloads (offload), or without (plain) [default: auto]
    #[arg(long, env = "TARTAN_DEVICE", value_name = "KIND")]
    pub device: Option<String>,
    /// Make the tunnel device a TUN, which carries IP packets (tun), a TAP, which carries Ethernet frames and has the VTEP MAC (tap), or what suits (auto) [default: auto]
    #[arg(long, env = "TARTAN_DEVICE_TYPE", value_name = "TYPE")]
    pub device_type: Option<String>,
    /// Name the tunnel device NAME, or with as-flannel as flannel names its own: flannel.VNI for vxlan, flannel0 for udp [default: tartan0]
    #[arg(long, env = "TARTAN_DEVICE_NAME", value_name = "NAME")]
    pub device_name: Option<String>,
    /// Deliver only to pods attached through tartan-cni, not to other addresses that the kernel routes in this node's subnets [default: false]
    #[arg(long, env = "TARTAN_STRICT_PODS", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub strict_pods: Option<bool>,
    /// Send IPv6 packets in the udp format; flannel nodes accept only IPv4 in that format [default: false]
    #[arg(long, env = "TARTAN_IPV6_OVER_UDP", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub ipv6_over_udp: Option<bool>,
    /// Masquerade packets from pods to addresses outside the cluster network, as flannel's --ip-masq does [default: true]
    #[arg(long, env = "TARTAN_MASQUERADE", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub masquerade: Option<bool>,
    /// Join small UDP packets of pods on their way to the overlay, and let a pod wait that sends faster than they are taken [default: true]
    #[arg(long, env = "TARTAN_GATHER", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub gather: Option<bool>,
    /// Probe the paths to the other nodes: reachability, round trips, loss and path MTU [default: true]
    #[arg(long, env = "TARTAN_PROBE", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub probe: Option<bool>,
    /// Write flannel's subnet.env to FILE [default: ROOT/run/flannel/subnet.env]
    #[arg(long, env = "TARTAN_SUBNET_FILE", value_name = "FILE")]
    pub subnet_file: Option<PathBuf>,
    /// Log messages of this level and above: off, error, warn, info, debug or trace; a directive sets the level of one part, as in info,tartan::host=debug [default: info]
    #[arg(long, env = "TARTAN_LOG", value_name = "FILTER")]
    pub log: Option<String>,
    /// Run N packet workers, 1 to 32 [default: one for each of --cores, else half the physical cores, 1 to 4]
    #[arg(long, env = "TARTAN_WORKERS", value_name = "N")]
    pub workers: Option<u16>,
    /// Pin the workers to these cores, as in 2,3 [default: Tartan chooses cores if the workers leave half of them free, else does not pin]
    #[arg(long, env = "TARTAN_CORES", value_name = "LIST", value_delimiter = ',')]
    pub cores: Option<Vec<u16>>,
    /// Let a worker without packets busy-poll this long before it sleeps: auto, off or microseconds, 1 to 1000 [default: auto]
    #[arg(long, env = "TARTAN_SPIN", value_name = "MICROSECONDS")]
    pub spin: Option<String>,
    /// Free a pod's address this many seconds after its interface disappeared without a CNI DEL, 5 to 3600 [default: 60]
    #[arg(long, env = "TARTAN_RECLAIM_AFTER", value_name = "SECONDS")]
    pub reclaim_after: Option<u16>,
    /// Hold a list that loses more than half of the nodes back for this many seconds, unless `tartan adopt` confirms it, 0 to 3600 [default: 600]
    #[arg(long, env = "TARTAN_SHRINK_GRACE", value_name = "SECONDS")]
    pub shrink_grace: Option<u16>,
    /// Take the place of flannel on this node: remove the kernel device of the name --device-name that a stopped flanneld left, with its routes, and keep its VTEP MAC [default: false]
    #[arg(long, env = "TARTAN_REPLACE_FLANNEL", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub replace_flannel: Option<bool>,
    /// Accept forwarded packets of the cluster network in firewall chains of other programs that drop what they do not know [default: true]
    #[arg(long, env = "TARTAN_FORWARD_RULES", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub forward_rules: Option<bool>,
    /// Let the kernel repeat what Tartan decided, so that fewer packets pass through user space: not at all (off), packet by packet behind the host's packet filter (stateless), or also by flow (auto) [default: off]
    #[arg(long, env = "TARTAN_KERNEL_PATH", value_name = "MODE")]
    pub kernel_path: Option<String>,
    /// Receive at this UDP port what the kernel path passes on to user space, 1024 to 65534 [default: 18472]
    #[arg(long, env = "TARTAN_KERNEL_PATH_PORT", value_name = "PORT")]
    pub kernel_path_port: Option<u16>,
    /// Answer /healthz and /readyz over HTTP on this address and port, or not at all (off) [default: off]
    #[arg(long, env = "TARTAN_HEALTHZ", value_name = "ADDRESS:PORT")]
    pub healthz: Option<String>,
    /// Answer /metrics over HTTP on this address and port, which may be that of --healthz, or not at all (off) [default: off]
    #[arg(long, env = "TARTAN_METRICS", value_name = "ADDRESS:PORT")]
    pub metrics: Option<String>,
    /// Give at most N peers, and N pods, metrics of their own, 0 to 10000; the rest share one series [default: 256]
    #[arg(long, env = "TARTAN_METRICS_LIMIT", value_name = "N")]
    pub metrics_limit: Option<u16>,
}

/// This node's configuration, complete and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// Directory above all files of the agent.
    pub root: PathBuf,
    /// The name by which the agent takes over and hands over; none: it does neither.
    pub instance: Option<String>,
    /// Name of this node in the list of nodes.
    pub node_name: String,
    /// Path of the cluster configuration; with etcd of the copy that the service keeps of it.
    pub net_conf: PathBuf,
    /// Path of the list of nodes.
    pub node_file: PathBuf,
    /// Where leases come from, and what this node publishes of itself.
    pub registry: RegistryConfig,
    /// Local underlay address of IPv4, if it differs from the public one of this node's lease.
    pub local_v4: Option<Ipv4Addr>,
    /// Local underlay address of IPv6, if it differs from the public one of this node's lease.
    pub local_v6: Option<Ipv6Addr>,
    /// How the tunnel device exchanges packets with the kernel.
    pub device: DeviceKind,
    /// What the tunnel device is to the kernel's stack.
    pub device_type: DeviceType,
    /// Name of the tunnel device, 1 to 15 bytes.
    pub device_name: String,
    /// That name is flannel's for the backend of the cluster: see [`name_device`](NodeConfig::name_device).
    pub names_device_as_flannel: bool,
    /// Ignore prefixes that the kernel routes: only adopted attachments are local.
    pub strict_pods: bool,
    /// Send inner IPv6 in the `udp` format.
    pub ipv6_over_udp: bool,
    /// Masquerade packets from pods to addresses outside the cluster network.
    pub masquerade: bool,
    /// Gather small packets at the hosts' ends of pods: see [`crate::gathering`].
    pub gather: bool,
    /// Probe the paths to peers: see [`crate::peer_health`].
    pub probe: bool,
    /// Path of flannel's `subnet.env`; absolute.
    pub subnet_file: PathBuf,
    /// Log filter: directives of `tracing_subscriber::EnvFilter`, checked.
    pub log: String,
    /// Number of packet workers, 1 to [`MOST_WORKERS`]; `None` chooses by the machine.
    pub workers: Option<u16>,
    /// Cores to pin the workers to, by the kernel's numbers, at least one for each; empty chooses by the machine.
    pub cores: Vec<u16>,
    /// How long a worker without packets busy-polls before it sleeps.
    pub spin: SpinSetting,
    /// How long the interface of an attachment must be gone before the attachment is removed, whole seconds.
    pub reclaim_after: Duration,
    /// How long a list that loses most of the nodes is held back, whole seconds; 0: not at all.
    pub shrink_grace: Duration,
    /// Remove what a stopped flanneld left under the device's name, and keep its VTEP MAC.
    pub replace_flannel: bool,
    /// Accept the cluster's packets in other programs' firewall chains.
    pub forward_rules: bool,
    /// What the kernel repeats of the decisions made here.
    pub kernel_path: KernelPathMode,
    /// UDP port at which user space receives what the kernel path passes on, [`LEAST_KERNEL_PATH_PORT`] and above.
    pub kernel_path_port: u16,
    /// Where `/healthz` and `/readyz` are answered, if at all.
    pub healthz: Option<SocketAddr>,
    /// Where `/metrics` is answered, if at all.
    pub metrics: Option<SocketAddr>,
    /// How many peers, and how many pods, have series of their own.
    pub metrics_limit: u16,
}

/// How the tunnel device exchanges packets with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// With offloads if the kernel has them, else plain.
    Auto,
    /// With offloads in both directions; the start fails without.
    Offload,
    /// One queue, one packet per read, without offloads.
    Plain,
}

/// What the tunnel device is to the kernel's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceType {
    /// A TUN; the type that a device taken over has.
    Auto,
    /// A TUN: IP packets.
    Tun,
    /// A TAP: Ethernet frames.
    Tap,
}

/// What the kernel repeats of the decisions made in user space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelPathMode {
    /// Nothing.
    Off,
    /// Encapsulation and decapsulation, packet by packet; every packet passes the host's packet filter.
    Stateless,
    /// The same, and established flows pass between pod and underlay past the host's stack.
    Auto,
}

impl KernelPathMode {
    /// The word of the configuration.
    pub fn word(self) -> &'static str {
        match self {
            KernelPathMode::Off => "off",
            KernelPathMode::Stateless => "stateless",
            KernelPathMode::Auto => "auto",
        }
    }
}

impl NodeConfig {
    /// Reads the file that `args` name. `args` override the file, and the file overrides the defaults. The default
    /// file may be missing; a file that `args` name must exist.
    ///
    /// # Errors
    /// [`ConfigError`] with the first fault.
    pub fn load(args: &RunArgs) -> Result<NodeConfig, ConfigError> {
        let file = ConfigFile::of(args);
        file.interpret(&file.text()?)
    }

    /// The local addresses to send from and receive on. `public` are the addresses that peers send to.
    pub fn underlay(&self, public: PublicAddresses) -> PublicAddresses {
        let v4 = |address| self.local_v4.unwrap_or(address);
        let v6 = |address| self.local_v6.unwrap_or(address);
        match public {
            PublicAddresses::V4(a) => PublicAddresses::V4(v4(a)),
            PublicAddresses::V6(b) => PublicAddresses::V6(v6(b)),
            PublicAddresses::Dual(a, b) => PublicAddresses::Dual(v4(a), v6(b)),
        }
    }

    /// Whether the configuration names a local address of `family`, which may differ from the public one.
    pub fn names_local(&self, family: Family) -> bool {
        match family {
            Family::V4 => self.local_v4.is_some(),
            Family::V6 => self.local_v6.is_some(),
        }
    }

    /// Gives the device its name, where that follows the cluster's backend: flannel's `flannel.<VNI>` for `vxlan`
    /// (flannel `pkg/backend/vxlan/vxlan.go`) and `flannel0` for `udp` (`pkg/backend/udp/udp_amd64.go`).
    pub fn name_device(&mut self, backend: &Backend) {
        if self.names_device_as_flannel {
            self.device_name = match backend {
                // A longer name is that of no interface, and flannel's device cannot have it either.
                Backend::Vxlan { vni, .. } if vni.get() > LONGEST_VNI => DEVICE.to_owned(),
                Backend::Vxlan { vni, .. } => format!("flannel.{}", vni.get()),
                Backend::Udp { .. } => "flannel0".to_owned(),
            };
        }
    }

    /// Run directory, `<root>/run/tartan`.
    pub fn run_dir(&self) -> cni_shim::RunDir {
        cni_shim::RunDir::under(&self.root)
    }

    /// State directory, `<root>/var/lib/tartan`: survives a reboot.
    pub fn state_dir(&self) -> PathBuf {
        self.root.join("var/lib/tartan")
    }
}

/// The name of an agent among those of one node.
///
/// # Errors
/// What a name is.
pub(crate) fn instance(text: &str) -> Result<String, String> {
    let is_one = (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    match is_one {
        true => Ok(text.to_owned()),
        false => Err("give 1 to 64 printable ASCII characters, and no space".to_owned()),
    }
}

/// Reads `tartan.toml`. Relative paths in it are relative to its directory.
fn from_file(text: &str, directory: &Path) -> Result<RunArgs, TomlError> {
    document::parse(text, |table| {
        table.only(&KEYS)?;
        let text = |key| table.entry(key).map(|entry| entry.text()).transpose();
        let owned = |key| Ok::<_, TomlError>(text(key)?.map(str::to_owned));
        let path = |key| Ok::<_, TomlError>(text(key)?.map(|path| directory.join(path)));
        let address = |key| table.entry(key).map(|entry| entry.address()).transpose();
        let flag = |key| table.entry(key).map(|entry| entry.flag()).transpose();
        let words = |key| -> Result<Option<Vec<String>>, TomlError> {
            let Some(entry) = table.entry(key) else {
                return Ok(None);
            };
            let mut words = Vec::new();
            for item in entry.list()? {
                words.push(item.text()?.to_owned());
            }
            Ok(Some(words))
        };
        Ok(RunArgs {
            config: None,
            take_over: None,
            root: path("root")?,
            node_name: owned("node-name")?,
            net_conf: path("net-conf")?,
            node_file: path("node-file")?,
            registry: RegistryArgs {
                registry: owned("registry")?,
                etcd_endpoints: words("etcd-endpoints")?,
                etcd_prefix: owned("etcd-prefix")?,
                etcd_cafile: path("etcd-cafile")?,
                etcd_certfile: path("etcd-certfile")?,
                etcd_keyfile: path("etcd-keyfile")?,
                etcd_username: owned("etcd-username")?,
                etcd_password: owned("etcd-password")?,
                subnet_lease_renew_margin: table
                    .entry("subnet-lease-renew-margin")
                    .map(|entry| entry.whole(1..MOST_RENEW_MARGIN + 1))
                    .transpose()?,
                kubeconfig: path("kubeconfig")?,
                kube_api_url: owned("kube-api-url")?,
                kube_annotation_prefix: owned("kube-annotation-prefix")?,
                set_node_network_unavailable: flag("set-node-network-unavailable")?,
                iface: words("iface")?,
                iface_regex: words("iface-regex")?,
                iface_can_reach: address("iface-can-reach")?,
                public_ip: address("public-ip")?,
                public_ipv6: address("public-ipv6")?,
            },
            local_ip: address("local-ip")?,
            local_ipv6: address("local-ipv6")?,
            device: owned("device")?,
            device_type: owned("device-type")?,
            device_name: owned("device-name")?,
            strict_pods: flag("strict-pods")?,
            ipv6_over_udp: flag("ipv6-over-udp")?,
            masquerade: flag("masquerade")?,
            gather: flag("gather")?,
            probe: flag("probe")?,
            subnet_file: path("subnet-file")?,
            log: owned("log")?,
            workers: table
                .entry("workers")
                .map(|entry| entry.whole(1..MOST_WORKERS + 1))
                .transpose()?,
            cores: table
                .entry("cores")
                .map(|entry| entry.list()?.map(|core| core.whole(0..CORES)).collect())
                .transpose()?,
            spin: table
                .entry("spin")
                .map(|entry| entry.text_or_digits())
                .transpose()?,
            reclaim_after: table
                .entry("reclaim-after")
                .map(|entry| entry.whole(LEAST_RECLAIM_AFTER..MOST_RECLAIM_AFTER + 1))
                .transpose()?,
            shrink_grace: table
                .entry("shrink-grace")
                .map(|entry| entry.whole(0..MOST_SHRINK_GRACE + 1))
                .transpose()?,
            replace_flannel: flag("replace-flannel")?,
            forward_rules: flag("forward-rules")?,
            kernel_path: owned("kernel-path")?,
            kernel_path_port: table
                .entry("kernel-path-port")
                .map(|entry| entry.whole(LEAST_KERNEL_PATH_PORT..MOST_KERNEL_PATH_PORT + 1))
                .transpose()?,
            healthz: owned("healthz")?,
            metrics: owned("metrics")?,
            metrics_limit: table
                .entry("metrics-limit")
                .map(|entry| entry.whole(0..MOST_METRICS_LIMIT + 1))
                .transpose()?,
        })
    })
}

/// The value of `device-name` that makes the name follow the cluster's backend.
pub const DEVICE_AS_FLANNEL: &str = "as-flannel";
/// The name by default.
const DEVICE: &str = "tartan0";
/// Of seven digits: an interface's name has 15 bytes at most.
const LONGEST_VNI: u32 = 9_999_999;
/// The name until the backend is known: that of flannel's default VNI.
const DEVICE_OF_FLANNEL: &str = "flannel.1";
/// Seconds: many times the pause between the record of an attachment and its interface.
const LEAST_RECLAIM_AFTER: u16 = 5;
const MOST_RECLAIM_AFTER: u16 = 3600;
/// Seconds.
const MOST_SHRINK_GRACE: u16 = 3600;
/// Its digits are those of flannel's VXLAN port, 8472.
const KERNEL_PATH_PORT: u16 = 18472;
/// Below it are the ports of well-known services.
const LEAST_KERNEL_PATH_PORT: u16 = 1024;
const MOST_KERNEL_PATH_PORT: u16 = 65534;
/// More than the pods of a node, and in a cluster of as many nodes 65,536 series of each counter of peers.
const METRICS_LIMIT: u16 = 256;
const MOST_METRICS_LIMIT: u16 = 10_000;
const KEYS: [&str; 46] = [
    "root",
    "node-name",
    "net-conf",
    "node-file",
    "registry",
    "etcd-endpoints",
    "etcd-prefix",
    "etcd-cafile",
    "etcd-certfile",
    "etcd-keyfile",
    "etcd-username",
    "etcd-password",
    "subnet-lease-renew-margin",
    "kubeconfig",
    "kube-api-url",
    "kube-annotation-prefix",
    "set-node-network-unavailable",
    "iface",
    "iface-regex",
    "iface-can-reach",
    "public-ip",
    "public-ipv6",
    "local-ip",
    "local-ipv6",
    "device",
    "device-type",
    "device-name",
    "strict-pods",
    "ipv6-over-udp",
    "masquerade",
    "gather",
    "probe",
    "subnet-file",
    "log",
    "workers",
    "cores",
    "spin",
    "reclaim-after",
    "shrink-grace",
    "replace-flannel",
    "forward-rules",
    "kernel-path",
    "kernel-path-port",
    "healthz",
    "metrics",
    "metrics-limit",
];

#[cfg(test)]
mod tests;
