//! Chooses and checks one value for each key: of a flag or variable, else of the file, else the default.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::registry::RegistryKind;
use super::{
    ConfigError, DEVICE, DEVICE_AS_FLANNEL, DEVICE_OF_FLANNEL, DeviceKind, DeviceType,
    KERNEL_PATH_PORT, KernelPathMode, LEAST_KERNEL_PATH_PORT, LEAST_RECLAIM_AFTER, METRICS_LIMIT,
    MOST_KERNEL_PATH_PORT, MOST_METRICS_LIMIT, MOST_RECLAIM_AFTER, MOST_SHRINK_GRACE, NodeConfig,
    RunArgs, registry,
};
use crate::config::spin::SpinSetting;
use crate::config::workers;
use crate::lease::unfit_for_underlay;

pub(super) fn resolve(args: &RunArgs, file: RunArgs) -> Result<NodeConfig, ConfigError> {
    let args = args.clone();
    let root = args
        .root
        .or(file.root)
        .unwrap_or_else(|| PathBuf::from("/"));
    let within = |path: &str| root.join("etc/tartan").join(path);
    let (local_v4, local_v6) = addresses(
        Addresses::Local,
        args.local_ip.or(file.local_ip),
        args.local_ipv6.or(file.local_ipv6),
    )?;
    let (workers, cores) = workers::check(
        args.workers.or(file.workers),
        args.cores.or(file.cores).unwrap_or_default(),
    )?;
    let (device_name, names_device_as_flannel) =
        device_name(args.device_name.or(file.device_name))?;
    let device = device(args.device.or(file.device))?;
    let device_type = device_type(args.device_type.or(file.device_type))?;
    if (device, device_type) == (DeviceKind::Plain, DeviceType::Tap) {
        return Err(ConfigError::PlainTap);
    }
    let registry = registry::resolve(args.registry, file.registry)?;
    let net_conf = args.net_conf.or(file.net_conf);
    Ok(NodeConfig {
        instance: args.take_over,
        node_name: node_name(args.node_name.or(file.node_name))?,
        net_conf: match (registry.kind, net_conf) {
            (RegistryKind::Etcd, Some(_)) => return Err(ConfigError::NetConfOfEtcd),
            (RegistryKind::Etcd, None) => root.join(NET_CONF_COPY),
            (_, net_conf) => net_conf.unwrap_or_else(|| within("net-conf.json")),
        },
        node_file: args
            .node_file
            .or(file.node_file)
            .unwrap_or_else(|| within("nodes.toml")),
        registry,
        local_v4,
        local_v6,
        device,
        device_type,
        device_name,
        names_device_as_flannel,
        strict_pods: args.strict_pods.or(file.strict_pods).unwrap_or(false),
        ipv6_over_udp: args.ipv6_over_udp.or(file.ipv6_over_udp).unwrap_or(false),
        masquerade: args.masquerade.or(file.masquerade).unwrap_or(true),
        gather: args.gather.or(file.gather).unwrap_or(true),
        probe: args.probe.or(file.probe).unwrap_or(true),
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
        shrink_grace: shrink_grace(args.shrink_grace.or(file.shrink_grace))?,
        replace_flannel: args
            .replace_flannel
            .or(file.replace_flannel)
            .unwrap_or(false),
        forward_rules: args.forward_rules.or(file.forward_rules).unwrap_or(true),
        kernel_path: kernel_path(args.kernel_path.or(file.kernel_path))?,
        kernel_path_port: kernel_path_port(args.kernel_path_port.or(file.kernel_path_port))?,
        healthz: address_and_port("healthz", args.healthz.or(file.healthz))?,
        metrics: address_and_port("metrics", args.metrics.or(file.metrics))?,
        metrics_limit: metrics_limit(args.metrics_limit.or(file.metrics_limit))?,
        root,
    })
}

/// Where a service keeps the net-conf of etcd, below the root.
const NET_CONF_COPY: &str = "var/lib/tartan/registry-net-conf.json";

/// `tartan cleanup` may run in another working directory than the agent.
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

/// Two keys that name an address of each family.
#[derive(Clone, Copy, Debug)]
pub(super) enum Addresses {
    /// `local-ip` and `local-ipv6`.
    Local,
    /// `public-ip` and `public-ipv6`.
    Public,
}

impl Addresses {
    fn keys(self) -> (&'static str, &'static str) {
        match self {
            Addresses::Local => ("local-ip", "local-ipv6"),
            Addresses::Public => ("public-ip", "public-ipv6"),
        }
    }
}

/// The configured address of each family.
pub(super) fn addresses(
    which: Addresses,
    first: Option<IpAddr>,
    second: Option<IpAddr>,
) -> Result<(Option<Ipv4Addr>, Option<Ipv6Addr>), ConfigError> {
    let (key, key_v6) = which.keys();
    for (key, written) in [(key, first), (key_v6, second)] {
        if let Some((address, fault)) = written.and_then(|a| Some((a, unfit_for_underlay(a)?))) {
            return Err(ConfigError::UnfitAddress {
                key,
                address,
                fault,
            });
        }
    }
    match (first, second) {
        (_, Some(address @ IpAddr::V4(_))) => Err(ConfigError::NotIpv6 {
            key: key_v6,
            other: key,
            address,
        }),
        (Some(address @ IpAddr::V6(_)), Some(_)) => Err(ConfigError::TwoIpv6 {
            key,
            other: key_v6,
            address,
        }),
        (Some(IpAddr::V6(v6)), None) | (None, Some(IpAddr::V6(v6))) => Ok((None, Some(v6))),
        (Some(IpAddr::V4(v4)), None) => Ok((Some(v4), None)),
        (Some(IpAddr::V4(v4)), Some(IpAddr::V6(v6))) => Ok((Some(v4), Some(v6))),
        (None, None) => Ok((None, None)),
    }
}

/// Where an endpoint is answered, if at all.
fn address_and_port(
    key: &'static str,
    written: Option<String>,
) -> Result<Option<SocketAddr>, ConfigError> {
    match written.as_deref() {
        None | Some("off") => Ok(None),
        Some(text) => match text.parse::<SocketAddr>() {
            Ok(address) if address.port() != 0 => Ok(Some(address)),
            _ => Err(ConfigError::HttpAddress {
                key,
                value: text.to_owned(),
            }),
        },
    }
}

fn metrics_limit(written: Option<u16>) -> Result<u16, ConfigError> {
    match written.unwrap_or(METRICS_LIMIT) {
        limit if limit <= MOST_METRICS_LIMIT => Ok(limit),
        limit => Err(ConfigError::MetricsLimit(limit)),
    }
}

fn device(written: Option<String>) -> Result<DeviceKind, ConfigError> {
    match written.as_deref() {
        None | Some("auto") => Ok(DeviceKind::Auto),
        Some("plain") => Ok(DeviceKind::Plain),
        Some("offload") => Ok(DeviceKind::Offload),
        Some(other) => Err(ConfigError::Device(other.to_owned())),
    }
}

fn device_type(written: Option<String>) -> Result<DeviceType, ConfigError> {
    match written.as_deref() {
        None | Some("auto") => Ok(DeviceType::Auto),
        Some("tun") => Ok(DeviceType::Tun),
        Some("tap") => Ok(DeviceType::Tap),
        Some(other) => Err(ConfigError::DeviceType(other.to_owned())),
    }
}

fn kernel_path(written: Option<String>) -> Result<KernelPathMode, ConfigError> {
    match written.as_deref() {
        None | Some("off") => Ok(KernelPathMode::Off),
        Some("stateless") => Ok(KernelPathMode::Stateless),
        Some("auto") => Ok(KernelPathMode::Auto),
        Some(other) => Err(ConfigError::KernelPath(other.to_owned())),
    }
}

fn kernel_path_port(written: Option<u16>) -> Result<u16, ConfigError> {
    let port = written.unwrap_or(KERNEL_PATH_PORT);
    if (LEAST_KERNEL_PATH_PORT..=MOST_KERNEL_PATH_PORT).contains(&port) {
        Ok(port)
    } else {
        Err(ConfigError::KernelPathPort(port))
    }
}

/// The name, and whether it follows the cluster's backend.
fn device_name(written: Option<String>) -> Result<(String, bool), ConfigError> {
    let name = written.unwrap_or_else(|| DEVICE.to_owned());
    if name == DEVICE_AS_FLANNEL {
        return Ok((DEVICE_OF_FLANNEL.to_owned(), true));
    }
    // /proc/sys/net has directories `all` and `default` beside those of interfaces.
    let taken = ["lo", "all", "default", ".", ".."].contains(&name.as_str());
    if (1..=15).contains(&name.len()) && is_plain(&name) && !taken {
        Ok((name, false))
    } else {
        Err(ConfigError::DeviceName(name))
    }
}

fn spin(written: Option<String>) -> Result<SpinSetting, ConfigError> {
    let Some(written) = written else {
        return Ok(SpinSetting::Auto);
    };
    SpinSetting::parse(&written).ok_or(ConfigError::Spin(written))
}

fn reclaim_after(written: Option<u16>) -> Result<Duration, ConfigError> {
    let seconds = written.unwrap_or(60);
    if (LEAST_RECLAIM_AFTER..=MOST_RECLAIM_AFTER).contains(&seconds) {
        Ok(Duration::from_secs(seconds.into()))
    } else {
        Err(ConfigError::ReclaimAfter(seconds))
    }
}

/// Ten minutes: an operator who reads an alert can put a file back in that time.
fn shrink_grace(written: Option<u16>) -> Result<Duration, ConfigError> {
    let seconds = written.unwrap_or(600);
    if seconds <= MOST_SHRINK_GRACE {
        Ok(Duration::from_secs(seconds.into()))
    } else {
        Err(ConfigError::ShrinkGrace(seconds))
    }
}

/// A bare word must be a level: `EnvFilter` would read "inof" as the name of a module and log nothing else.
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
