//! This node's configuration: one TOML file, `TARTAN_*` variables and flags, the later over the earlier.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;

/// The keys of `tartan.toml` as flags and environment variables.
#[derive(Args, Clone, Debug, Default)]
pub struct RunArgs {
    /// Configuration file [default: ROOT/etc/tartan/tartan.toml, which may be missing]
    #[arg(long, env = "TARTAN_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Directory that every path hangs off: run directory, state, configuration, socket [default: /]
    #[arg(long, env = "TARTAN_ROOT", value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Name of this node in the list of nodes [default: the host name]
    #[arg(long, env = "TARTAN_NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String>,
    /// Cluster configuration, as flannel's [default: ROOT/etc/tartan/net-conf.json]
    #[arg(long, env = "TARTAN_NET_CONF", value_name = "FILE")]
    pub net_conf: Option<PathBuf>,
    /// List of nodes [default: ROOT/etc/tartan/nodes.toml]
    #[arg(long, env = "TARTAN_NODE_FILE", value_name = "FILE")]
    pub node_file: Option<PathBuf>,
    /// Local underlay address to send from and receive on [default: public-ip of our entry in the list of nodes]
    #[arg(long, env = "TARTAN_PUBLIC_IP", value_name = "ADDRESS")]
    pub public_ip: Option<IpAddr>,
    /// How packets are taken from the kernel: auto or plain [default: auto]
    #[arg(long, env = "TARTAN_DEVICE", value_name = "KIND")]
    pub device: Option<String>,
    /// Name of the tunnel device [default: tartan0]
    #[arg(long, env = "TARTAN_DEVICE_NAME", value_name = "NAME")]
    pub device_name: Option<String>,
    /// Serve only pods attached through tartan-cni, not whatever the kernel routes inside our subnets
    #[arg(long, env = "TARTAN_STRICT_PODS", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub strict_pods: Option<bool>,
    /// Carry IPv6 in the udp format; stock flannel nodes parse only IPv4 there
    #[arg(long, env = "TARTAN_IPV6_OVER_UDP", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub ipv6_over_udp: Option<bool>,
    /// What to log: a level, or directives as in info,tartan::host=debug [default: info]
    #[arg(long, env = "TARTAN_LOG", value_name = "FILTER")]
    pub log: Option<String>,
    /// Number of packet workers; 1 is the only choice so far [default: 1]
    #[arg(long, env = "TARTAN_WORKERS", value_name = "N")]
    pub workers: Option<u16>,
}

/// This node's configuration, complete and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// Directory that every path hangs off.
    pub root: PathBuf,
    /// Name of this node in the list of nodes.
    pub node_name: String,
    /// Path of the cluster configuration.
    pub net_conf: PathBuf,
    /// Path of the list of nodes.
    pub node_file: PathBuf,
    /// Local underlay address, where it is not the public address of our own lease.
    pub public_ip: Option<IpAddr>,
    /// How packets are taken from the kernel.
    pub device: Device,
    /// Name of the tunnel device, 1 to 15 bytes.
    pub device_name: String,
    /// Leave out the kernel's prefixes: only adopted attachments are local.
    pub strict_pods: bool,
    /// Carry inner IPv6 in the `udp` format.
    pub ipv6_over_udp: bool,
    /// What to log: directives of `tracing_subscriber::EnvFilter`, checked.
    pub log: String,
    /// Number of packet workers.
    pub workers: u16,
}

/// How packets are taken from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The best there is, which so far is `Plain`.
    Auto,
    /// One queue, one packet per read, no offloads.
    Plain,
}

impl NodeConfig {
    /// Run directory, `<root>/run/tartan`.
    pub fn run_dir(&self) -> cni_shim::RunDir {
        cni_shim::RunDir::under(&self.root)
    }

    /// State directory, `<root>/var/lib/tartan`: outlives a reboot.
    pub fn state_dir(&self) -> PathBuf {
        self.root.join("var/lib/tartan")
    }
}
