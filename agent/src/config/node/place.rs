//! Where a value of this node's configuration stands: as a flag, in a variable, or on a line of the file.

use super::{ConfigError, KEYS, RunArgs};
use crate::config::document::nearest;
use crate::config::workers::WorkersError;

/// Flags of `tartan run` that have a variable, and no key in the file.
pub(super) const NO_KEYS: [&str; 2] = ["config", "take-over"];

/// The variable of a key.
pub fn variable(key: &str) -> String {
    format!("TARTAN_{}", key.to_uppercase().replace('-', "_"))
}

/// Whether a key is set by a word of this process's command line.
pub fn is_flag(key: &str) -> bool {
    let flag = format!("--{key}");
    std::env::args().any(|word| {
        let rest = word.strip_prefix(&flag);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    })
}

/// What is wrong with the first variable that looks like one of ours and is none.
///
/// # Errors
/// A sentence that names it, and the one that is probably meant.
pub fn check_variables() -> Result<(), String> {
    let mut names: Vec<String> = std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .collect();
    names.sort_unstable();
    for name in names {
        let Some(rest) = name.strip_prefix("TARTAN_") else {
            continue;
        };
        let key = rest.to_lowercase().replace('_', "-");
        let is_other = OTHERS.iter().any(|other| rest.starts_with(other));
        if is_other
            || is_service_link(rest)
            || NO_KEYS.contains(&key.as_str())
            || KEYS.contains(&key.as_str())
        {
            continue;
        }
        let meant = match nearest(&key, KEYS.into_iter().chain(NO_KEYS)) {
            Some(meant) => format!(", did you mean {}?", variable(meant)),
            None => ", see `tartan run --help` for all".to_owned(),
        };
        return Err(format!("{name} is no variable of Tartan{meant}"));
    }
    Ok(())
}

/// Whether Kubernetes sets the variable `TARTAN_` and `rest` in a container for a Service named `tartan` or `tartan-...`.
/// A key of ours is none: a Service named `tartan-kernel-path` would set the one that ends in `PORT`.
fn is_service_link(rest: &str) -> bool {
    if KEYS
        .iter()
        .any(|key| variable(key).ends_with(&format!("_{rest}")) && key.len() == rest.len())
    {
        return false;
    }
    let words: Vec<&str> = rest.split('_').collect();
    let service = |tail: &[&str]| words.ends_with(tail);
    // NAME_PORT_9090_TCP, and the same with _ADDR and others behind.
    let is_of_port = |at: &[&str]| match at {
        ["PORT", number, "TCP" | "UDP" | "SCTP", rest @ ..] => {
            number.parse::<u16>().is_ok() && matches!(rest, [] | ["ADDR" | "PORT" | "PROTO"])
        }
        _ => false,
    };
    service(&["SERVICE", "HOST"])
        || service(&["PORT"])
        // NAME_SERVICE_PORT, and NAME_SERVICE_PORT_METRICS for a port with a name.
        || words.windows(2).any(|pair| pair == ["SERVICE", "PORT"])
        || (0..words.len()).any(|at| words.get(at..).is_some_and(is_of_port))
}

impl ConfigError {
    /// The key whose value is wrong; where there are several, the one that `args` and the text are asked for first.
    pub(super) fn key(&self) -> Option<&'static str> {
        Some(match self {
            ConfigError::NodeName(_) => "node-name",
            ConfigError::UnfitAddress { key, .. }
            | ConfigError::NotIpv6 { key, .. }
            | ConfigError::TwoIpv6 { key, .. }
            | ConfigError::Lacks { key, .. } => key,
            ConfigError::PublicOfFile => "public-ip",
            ConfigError::NetConfOfEtcd => "net-conf",
            ConfigError::HttpAddress { key, .. } => key,
            ConfigError::MetricsLimit(_) => "metrics-limit",
            ConfigError::Registry(_) => "registry",
            ConfigError::Endpoint(_) | ConfigError::EndpointUser => "etcd-endpoints",
            ConfigError::EtcdPrefix(_) => "etcd-prefix",
            ConfigError::RenewMargin(_) => "subnet-lease-renew-margin",
            ConfigError::AnnotationPrefix(_) => "kube-annotation-prefix",
            ConfigError::IfaceRegex { .. } => "iface-regex",
            ConfigError::Device(_) => "device",
            ConfigError::DeviceType(_) | ConfigError::PlainTap => "device-type",
            ConfigError::DeviceName(_) => "device-name",
            ConfigError::Log(_) => "log",
            ConfigError::Workers(WorkersError::Workers(_) | WorkersError::TooFew { .. }) => {
                "workers"
            }
            ConfigError::Workers(_) => "cores",
            ConfigError::Spin(_) => "spin",
            ConfigError::ReclaimAfter(_) => "reclaim-after",
            ConfigError::ShrinkGrace(_) => "shrink-grace",
            ConfigError::KernelPath(_) => "kernel-path",
            ConfigError::KernelPathPort(_) => "kernel-path-port",
            ConfigError::File(_)
            | ConfigError::Toml { .. }
            | ConfigError::NoNodeName
            | ConfigError::Placed { .. } => return None,
        })
    }
}

impl RunArgs {
    /// Whether a flag or a variable sets the key.
    pub(super) fn sets(&self, key: &str) -> bool {
        match key {
            "node-name" => self.node_name.is_some(),
            "healthz" => self.healthz.is_some(),
            "metrics" => self.metrics.is_some(),
            "metrics-limit" => self.metrics_limit.is_some(),
            "net-conf" => self.net_conf.is_some(),
            "registry" => self.registry.registry.is_some(),
            "etcd-endpoints" => self.registry.etcd_endpoints.is_some(),
            "etcd-prefix" => self.registry.etcd_prefix.is_some(),
            "etcd-certfile" => self.registry.etcd_certfile.is_some(),
            "etcd-keyfile" => self.registry.etcd_keyfile.is_some(),
            "etcd-username" => self.registry.etcd_username.is_some(),
            "etcd-password" => self.registry.etcd_password.is_some(),
            "subnet-lease-renew-margin" => self.registry.subnet_lease_renew_margin.is_some(),
            "kube-annotation-prefix" => self.registry.kube_annotation_prefix.is_some(),
            "iface-regex" => self.registry.iface_regex.is_some(),
            "public-ip" => self.registry.public_ip.is_some(),
            "public-ipv6" => self.registry.public_ipv6.is_some(),
            "local-ip" => self.local_ip.is_some(),
            "local-ipv6" => self.local_ipv6.is_some(),
            "device" => self.device.is_some(),
            "device-type" => self.device_type.is_some(),
            "device-name" => self.device_name.is_some(),
            "log" => self.log.is_some(),
            "workers" => self.workers.is_some(),
            "cores" => self.cores.is_some(),
            "spin" => self.spin.is_some(),
            "reclaim-after" => self.reclaim_after.is_some(),
            "shrink-grace" => self.shrink_grace.is_some(),
            "kernel-path" => self.kernel_path.is_some(),
            "kernel-path-port" => self.kernel_path_port.is_some(),
            _ => false,
        }
    }
}

/// Variables of tests and of the plugin.
const OTHERS: [&str; 3] = ["FAULTS", "CNI_", "TEST_"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_services_are_told_from_ours() {
        for service in ["", "METRICS_", "MY_LOG_", "PORT_"] {
            for rest in [
                "SERVICE_HOST",
                "SERVICE_PORT",
                "SERVICE_PORT_METRICS",
                "PORT",
                "PORT_9090_TCP",
                "PORT_9090_TCP_ADDR",
                "PORT_9090_UDP_PORT",
                "PORT_9090_SCTP_PROTO",
            ] {
                assert!(
                    is_service_link(&format!("{service}{rest}")),
                    "{service}{rest}"
                );
            }
        }
        let keys = KEYS.map(|key| variable(key)["TARTAN_".len()..].to_owned());
        for other in keys.iter().map(String::as_str).chain([
            "WORKRES",
            "SERVICE",
            "PORTS",
            "PORT_X_TCP",
            "PORT_9090",
            "PORT_9090_TCP_X",
            "SERVICEHOST",
        ]) {
            assert!(!is_service_link(other), "{other}");
        }
    }
}
