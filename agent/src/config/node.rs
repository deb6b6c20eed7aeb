//! This node's configuration: one TOML file, `TARTAN_*` variables and flags, the later over the earlier.

mod error;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use dataplane::families::PublicAddresses;
use encap::Family;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::document::{self, Misread};
use super::spin::Spin;
use super::text_file;
use super::workers::{self, CORES, MOST_WORKERS};
use crate::lease::unfit_for_underlay;

pub use error::ConfigError;

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
    /// Local underlay address of IPv6 beside an IPv4 one [default: public-ipv6 of our entry in the list of nodes]
    #[arg(
        long = "public-ipv6",
        env = "TARTAN_PUBLIC_IPV6",
        value_name = "ADDRESS"
    )]
    pub public_ipv6: Option<IpAddr>,
    /// The tunnel device: auto, offload (super-packets, or no start) or plain (packet by packet) [default: auto]
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
    /// Give packets from pods to the outside this node's address, as flannel's --ip-masq does [default: true]
    #[arg(long, env = "TARTAN_MASQUERADE", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub masquerade: Option<bool>,
    /// Where flannel's subnet.env is written [default: ROOT/run/flannel/subnet.env]
    #[arg(long, env = "TARTAN_SUBNET_FILE", value_name = "FILE")]
    pub subnet_file: Option<PathBuf>,
    /// What to log: a level, or directives as in info,tartan::host=debug [default: info]
    #[arg(long, env = "TARTAN_LOG", value_name = "FILTER")]
    pub log: Option<String>,
    /// Number of packet workers, 1 to 32 [default: one for each of `cores`, else half the physical cores, 1 to 4]
    #[arg(long, env = "TARTAN_WORKERS", value_name = "N")]
    pub workers: Option<u16>,
    /// Cores to pin the workers to, as in 2,3 [default: chosen, where the workers leave half of the cores to others]
    #[arg(long, env = "TARTAN_CORES", value_name = "LIST", value_delimiter = ',')]
    pub cores: Option<Vec<u16>>,
    /// How long a worker without packets looks for more before it sleeps: auto, off or microseconds, 1 to 1000 [default: auto]
    #[arg(long, env = "TARTAN_SPIN", value_name = "MICROSECONDS")]
    pub spin: Option<String>,
    /// Seconds for which a pod's interface is gone before its address is freed without a DEL, 5 to 3600 [default: 60]
    #[arg(long, env = "TARTAN_RECLAIM_AFTER", value_name = "SECONDS")]
    pub reclaim_after: Option<u16>,
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
    /// Local underlay address of IPv4, where it is not the public one of our own lease.
    pub public_v4: Option<Ipv4Addr>,
    /// Local underlay address of IPv6, where it is not the public one of our own lease.
    pub public_v6: Option<Ipv6Addr>,
    /// How packets are taken from the kernel.
    pub device: Device,
    /// Name of the tunnel device, 1 to 15 bytes.
    pub device_name: String,
    /// Leave out the kernel's prefixes: only adopted attachments are local.
    pub strict_pods: bool,
    /// Carry inner IPv6 in the `udp` format.
    pub ipv6_over_udp: bool,
    /// Give packets from pods to the outside this node's address.
    pub masquerade: bool,
    /// Where flannel's `subnet.env` is written; absolute.
    pub subnet_file: PathBuf,
    /// What to log: directives of `tracing_subscriber::EnvFilter`, checked.
    pub log: String,
    /// Number of packet workers, 1 to [`MOST_WORKERS`]; `None` leaves it to the machine.
    pub workers: Option<u16>,
    /// Cores to pin them to, by the kernel's numbers, one for each worker at least; empty leaves it to the machine.
    pub cores: Vec<u16>,
    /// How long a worker without packets looks for more before it sleeps.
    pub spin: Spin,
    /// How long the interface of an attachment is gone before the attachment is taken away, whole seconds.
    pub reclaim_after: Duration,
}

/// How packets are taken from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The best that the kernel offers.
    Auto,
    /// Super-packets both ways, or no start.
    Offload,
    /// One queue, one packet per read, no offloads.
    Plain,
}

impl NodeConfig {
    /// Reads the file that `args` name and completes the two: flags and variables count before the file, the
    /// file before the defaults. The default file may be missing, a named one may not.
    ///
    /// # Errors
    /// [`ConfigError`] with the first thing that is wrong.
    pub fn load(args: &RunArgs) -> Result<NodeConfig, ConfigError> {
        let usual = || {
            args.root
                .as_deref()
                .unwrap_or(Path::new("/"))
                .join("etc/tartan/tartan.toml")
        };
        let path = args.config.clone().unwrap_or_else(usual);
        let text = match text_file::read(&path, MOST_BYTES) {
            Err(error) if error.is_missing() && args.config.is_none() => String::new(),
            text => text?,
        };
        let directory = path.parent().unwrap_or(Path::new(""));
        let file = from_file(&text, directory).map_err(|fault| ConfigError::Misread {
            path: path.clone(),
            fault,
        })?;
        resolve(args, file)
    }

    /// The addresses of this host to send from and receive on, where others know the node by `public`.
    pub fn underlay(&self, public: PublicAddresses) -> PublicAddresses {
        let v4 = |address| self.public_v4.unwrap_or(address);
        let v6 = |address| self.public_v6.unwrap_or(address);
        match public {
            PublicAddresses::V4(a) => PublicAddresses::V4(v4(a)),
            PublicAddresses::V6(b) => PublicAddresses::V6(v6(b)),
            PublicAddresses::Dual(a, b) => PublicAddresses::Dual(v4(a), v6(b)),
        }
    }

    /// Whether a local address of `family` is named, which is not the one that others know the node by.
    pub fn names_local(&self, family: Family) -> bool {
        match family {
            Family::V4 => self.public_v4.is_some(),
            Family::V6 => self.public_v6.is_some(),
        }
    }

    /// Run directory, `<root>/run/tartan`.
    pub fn run_dir(&self) -> cni_shim::RunDir {
        cni_shim::RunDir::under(&self.root)
    }

    /// State directory, `<root>/var/lib/tartan`: outlives a reboot.
    pub fn state_dir(&self) -> PathBuf {
        self.root.join("var/lib/tartan")
    }
}

/// The keys of `tartan.toml`. Relative paths in it are relative to its own directory.
fn from_file(text: &str, directory: &Path) -> Result<RunArgs, Misread> {
    document::parse(text, |table| {
        table.only(&KEYS)?;
        let text = |key| table.entry(key).map(|entry| entry.text()).transpose();
        let owned = |key| Ok::<_, Misread>(text(key)?.map(str::to_owned));
        let path = |key| Ok::<_, Misread>(text(key)?.map(|path| directory.join(path)));
        let address = |key| table.entry(key).map(|entry| entry.address()).transpose();
        let flag = |key| table.entry(key).map(|entry| entry.flag()).transpose();
        Ok(RunArgs {
            config: None,
            root: path("root")?,
            node_name: owned("node-name")?,
            net_conf: path("net-conf")?,
            node_file: path("node-file")?,
            public_ip: address("public-ip")?,
            public_ipv6: address("public-ipv6")?,
            device: owned("device")?,
            device_name: owned("device-name")?,
            strict_pods: flag("strict-pods")?,
            ipv6_over_udp: flag("ipv6-over-udp")?,
            masquerade: flag("masquerade")?,
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
        })
    })
}

fn resolve(args: &RunArgs, file: RunArgs) -> Result<NodeConfig, ConfigError> {
    let args = args.clone();
    let root = args
        .root
        .or(file.root)
        .unwrap_or_else(|| PathBuf::from("/"));
    let within = |path: &str| root.join("etc/tartan").join(path);
    let (public_v4, public_v6) = public(
        args.public_ip.or(file.public_ip),
        args.public_ipv6.or(file.public_ipv6),
    )?;
    let (workers, cores) = workers::check(
        args.workers.or(file.workers),
        args.cores.or(file.cores).unwrap_or_default(),
    )?;
    Ok(NodeConfig {
        node_name: node_name(args.node_name.or(file.node_name))?,
        net_conf: args
            .net_conf
            .or(file.net_conf)
            .unwrap_or_else(|| within("net-conf.json")),
        node_file: args
            .node_file
            .or(file.node_file)
            .unwrap_or_else(|| within("nodes.toml")),
        public_v4,
        public_v6,
        device: device(args.device.or(file.device))?,
        device_name: device_name(args.device_name.or(file.device_name))?,
        strict_pods: args.strict_pods.or(file.strict_pods).unwrap_or(false),
        ipv6_over_udp: args.ipv6_over_udp.or(file.ipv6_over_udp).unwrap_or(false),
        masquerade: args.masquerade.or(file.masquerade).unwrap_or(true),
        subnet_file: absolute(
            args.subnet_file
                .or(file.subnet_file)
                .unwrap_or_else(|| root.join("run/flannel/subnet.env")),
        ),
        log: log(args.log.or(file.log))?,
        workers,
        cores,
        spin: spin(args.spin.or(file.spin))?,
        reclaim_after: reclaim_after(args.reclaim_after.or(file.reclaim_after))?,
        root,
    })
}

/// A clean-up is run in another directory than the agent.
fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

fn node_name(written: Option<String>) -> Result<String, ConfigError> {
    let name = match written {
        Some(name) => name,
        None => rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned(),
    };
    match name.as_str() {
        "" | "(none)" => Err(ConfigError::NoNodeName),
        _ if name.len() <= 253 && is_plain(&name) => Ok(name),
        _ => Err(ConfigError::NodeName(name)),
    }
}

/// The address of each family, where one is named.
fn public(
    first: Option<IpAddr>,
    second: Option<IpAddr>,
) -> Result<(Option<Ipv4Addr>, Option<Ipv6Addr>), ConfigError> {
    for (key, written) in [("public-ip", first), ("public-ipv6", second)] {
        if let Some((address, fault)) = written.and_then(|a| Some((a, unfit_for_underlay(a)?))) {
            return Err(ConfigError::PublicIp {
                key,
                address,
                fault,
            });
        }
    }
    match (first, second) {
        (_, Some(address @ IpAddr::V4(_))) => Err(ConfigError::NotIpv6(address)),
        (Some(address @ IpAddr::V6(_)), Some(_)) => Err(ConfigError::TwoIpv6(address)),
        (Some(IpAddr::V6(v6)), None) | (None, Some(IpAddr::V6(v6))) => Ok((None, Some(v6))),
        (Some(IpAddr::V4(v4)), None) => Ok((Some(v4), None)),
        (Some(IpAddr::V4(v4)), Some(IpAddr::V6(v6))) => Ok((Some(v4), Some(v6))),
        (None, None) => Ok((None, None)),
    }
}

fn device(written: Option<String>) -> Result<Device, ConfigError> {
    match written.as_deref() {
        None | Some("auto") => Ok(Device::Auto),
        Some("plain") => Ok(Device::Plain),
        Some("offload") => Ok(Device::Offload),
        Some(other) => Err(ConfigError::Device(other.to_owned())),
    }
}

fn device_name(written: Option<String>) -> Result<String, ConfigError> {
    let name = written.unwrap_or_else(|| "tartan0".to_owned());
    // `all` and `default` are directories of /proc/sys/net beside those of interfaces.
    let taken = ["lo", "all", "default", ".", ".."].contains(&name.as_str());
    if (1..=15).contains(&name.len()) && is_plain(&name) && !taken {
        Ok(name)
    } else {
        Err(ConfigError::DeviceName(name))
    }
}

fn spin(written: Option<String>) -> Result<Spin, ConfigError> {
    let Some(written) = written else {
        return Ok(Spin::Auto);
    };
    Spin::read(&written).ok_or(ConfigError::Spin(written))
}

fn reclaim_after(written: Option<u16>) -> Result<Duration, ConfigError> {
    let seconds = written.unwrap_or(60);
    if (LEAST_RECLAIM_AFTER..=MOST_RECLAIM_AFTER).contains(&seconds) {
        Ok(Duration::from_secs(seconds.into()))
    } else {
        Err(ConfigError::ReclaimAfter(seconds))
    }
}

/// A bare word must be a level: `EnvFilter` would take "inof" for a part of the program and log nothing else.
fn log(written: Option<String>) -> Result<String, ConfigError> {
    let filter = written.unwrap_or_else(|| "info".to_owned());
    let level = |word: &str| word.parse::<LevelFilter>().is_ok() && word.parse::<u8>().is_err();
    let clear = |part: &str| part.contains('=') || level(part);
    let right =
        filter.split(',').all(|part| clear(part.trim())) && EnvFilter::try_new(&filter).is_ok();
    if right {
        Ok(filter)
    } else {
        Err(ConfigError::Log(filter))
    }
}

fn is_plain(name: &str) -> bool {
    name.bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
}

/// A thousand times what such a file holds.
const MOST_BYTES: u64 = 1 << 20;
/// Seconds: many times what lies between the record of an attachment and its interface.
const LEAST_RECLAIM_AFTER: u16 = 5;
const MOST_RECLAIM_AFTER: u16 = 3600;
const KEYS: [&str; 17] = [
    "root",
    "node-name",
    "net-conf",
    "node-file",
    "public-ip",
    "public-ipv6",
    "device",
    "device-name",
    "strict-pods",
    "ipv6-over-udp",
    "masquerade",
    "subnet-file",
    "log",
    "workers",
    "cores",
    "spin",
    "reclaim-after",
];

#[cfg(test)]
mod tests;
