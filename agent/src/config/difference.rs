//! What differs between two configurations, key by key, for the log and `tartan check`.

use std::fmt;
use std::path::{Path, PathBuf};

use super::node::registry::{EtcdConfig, RegistryConfig, Secret};
use super::{Backend, DeviceKind, DeviceType, NetConf, NodeConfig, SpinSetting};

/// A key whose value differs. Its `Display` is `key: before -> after`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The key; one inside `Backend` as `Backend.KEY`.
    pub key: &'static str,
    /// Its value before, `-` where it has none.
    pub before: String,
    /// Its value after.
    pub after: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} -> {}", self.key, self.before, self.after)
    }
}

/// The keys that have an effect and differ between two net-confs.
pub fn of_net_conf(before: &NetConf, after: &NetConf) -> Vec<Difference> {
    let values = |net_conf: &NetConf| {
        // Each field by name, so that a new one is not forgotten here.
        let NetConf {
            network,
            ipv6_network,
            // They are for new leases: a node keeps the subnet that it has.
            subnets: _,
            ipv6_subnets: _,
            backend,
            unknown: _,
        } = net_conf;
        let (mtu, direct_routing) = match backend {
            Backend::Vxlan {
                vni: _,
                port: _,
                gbp: _,
                mtu,
                direct_routing,
            } => (*mtu, *direct_routing),
            Backend::Udp { port: _ } => (None, false),
        };
        [
            ("Network", or_none(*network)),
            ("IPv6Network", or_none(*ipv6_network)),
            ("Backend.Type", backend.format().to_string()),
            ("Backend.Port (udp)", backend.udp_port().to_string()),
            ("Backend.Port (vxlan)", backend.vxlan_port().to_string()),
            ("Backend.VNI", backend.vni().get().to_string()),
            ("Backend.GBP", backend.gbp().to_string()),
            ("Backend.MTU", or_none(mtu)),
            ("Backend.DirectRouting", direct_routing.to_string()),
        ]
    };
    differing(values(before), values(after))
}

/// The keys that differ between two configurations of this node.
pub fn of_node(before: &NodeConfig, after: &NodeConfig) -> Vec<Difference> {
    let values = |config: &NodeConfig| {
        let path = |path: &Path| path.display().to_string();
        // Each field by name, so that a new one is not forgotten here.
        let NodeConfig {
            root,
            // No key of the file, and the same for the life of a service.
            instance: _,
            node_name,
            net_conf,
            node_file,
            registry,
            local_v4,
            local_v6,
            device,
            device_type,
            device_name,
            // The name shows it.
            names_device_as_flannel: _,
            strict_pods,
            ipv6_over_udp,
            masquerade,
            gather,
            probe,
            subnet_file,
            log,
            workers,
            cores,
            spin,
            reclaim_after,
            shrink_grace,
            replace_flannel,
            forward_rules,
            kernel_path,
            kernel_path_port,
            healthz,
            metrics,
            metrics_limit,
        } = config;
        let RegistryConfig {
            kind,
            etcd,
            kubernetes,
            underlay,
        } = registry;
        let file = |path: &Option<PathBuf>| or_none(path.as_ref().map(|path| path.display()));
        let device = match device {
            DeviceKind::Auto => "auto",
            DeviceKind::Offload => "offload",
            DeviceKind::Plain => "plain",
        };
        let device_type = match device_type {
            DeviceType::Auto => "auto",
            DeviceType::Tun => "tun",
            DeviceType::Tap => "tap",
        };
        let spin = match spin {
            SpinSetting::Auto => "auto".to_owned(),
            SpinSetting::Off => "off".to_owned(),
            SpinSetting::Micros(micros) => micros.to_string(),
        };
        let cores: Vec<String> = cores.iter().map(u16::to_string).collect();
        [
            ("root", path(root)),
            ("node-name", node_name.clone()),
            ("net-conf", path(net_conf)),
            ("node-file", path(node_file)),
            ("registry", kind.to_string()),
            ("etcd-endpoints", etcd.endpoints.join(",")),
            ("etcd-prefix", etcd.prefix.clone()),
            ("etcd-cafile", file(&etcd.cafile)),
            (
                "etcd-certfile",
                or_none(etcd.identity.as_ref().map(|(cert, _)| cert.display())),
            ),
            (
                "etcd-keyfile",
                or_none(etcd.identity.as_ref().map(|(_, key)| key.display())),
            ),
            (
                "etcd-username",
                or_none(etcd.user.as_ref().map(|(name, _)| name)),
            ),
            (
                "subnet-lease-renew-margin",
                (etcd.renew_margin.as_secs() / 60).to_string(),
            ),
            ("kubeconfig", file(&kubernetes.kubeconfig)),
            ("kube-api-url", or_none(kubernetes.api_url.as_ref())),
            (
                "kube-annotation-prefix",
                kubernetes.annotation_prefix.clone(),
            ),
            (
                "set-node-network-unavailable",
                kubernetes.set_network_unavailable.to_string(),
            ),
            ("iface", underlay.ifaces.join(",")),
            ("iface-regex", underlay.regexes.join(" ")),
            ("iface-can-reach", or_none(underlay.can_reach)),
            ("public-ip", or_none(underlay.public_v4)),
            ("public-ipv6", or_none(underlay.public_v6)),
            ("local-ip", or_none(*local_v4)),
            ("local-ipv6", or_none(*local_v6)),
            ("device", device.to_owned()),
            ("device-type", device_type.to_owned()),
            ("device-name", device_name.clone()),
            ("strict-pods", strict_pods.to_string()),
            ("ipv6-over-udp", ipv6_over_udp.to_string()),
            ("masquerade", masquerade.to_string()),
            ("gather", gather.to_string()),
            ("probe", probe.to_string()),
            ("subnet-file", path(subnet_file)),
            ("log", log.clone()),
            ("workers", or_none(*workers)),
            (
                "cores",
                or_none((!cores.is_empty()).then(|| cores.join(","))),
            ),
            ("spin", spin),
            ("reclaim-after", reclaim_after.as_secs().to_string()),
            ("shrink-grace", shrink_grace.as_secs().to_string()),
            ("replace-flannel", replace_flannel.to_string()),
            ("forward-rules", forward_rules.to_string()),
            ("kernel-path", kernel_path.word().to_owned()),
            ("kernel-path-port", kernel_path_port.to_string()),
            ("healthz", or_none(*healthz)),
            ("metrics", or_none(*metrics)),
            ("metrics-limit", metrics_limit.to_string()),
        ]
    };
    let mut differing = differing(values(before), values(after));
    differing.extend(of_password(&before.registry.etcd, &after.registry.etcd));
    differing
}

/// That a password differs, without the password.
fn of_password(before: &EtcdConfig, after: &EtcdConfig) -> Option<Difference> {
    let secret = |config: &EtcdConfig| config.user.as_ref().map(|(_, secret)| secret.clone());
    let (before, after) = (secret(before), secret(after));
    let shown = |secret: &Option<Secret>, what: &str| or_none(secret.as_ref().map(|_| what));
    (before != after).then(|| Difference {
        key: "etcd-password",
        before: shown(&before, "(secret)"),
        after: shown(&after, "(another secret)"),
    })
}

fn differing<const N: usize>(
    before: [(&'static str, String); N],
    after: [(&'static str, String); N],
) -> Vec<Difference> {
    let pairs = before.into_iter().zip(after);
    let differing = pairs.filter(|((_, before), (_, after))| before != after);
    differing
        .map(|((key, before), (_, after))| Difference { key, before, after })
        .collect()
}

fn or_none(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigFile, RunArgs};

    #[test]
    fn only_what_differs_and_has_an_effect_is_listed() {
        let read = |text| NetConf::parse(text).unwrap();
        let plain = read("{\"Network\":\"10.244.0.0/16\",\"Backend\":{\"Type\":\"vxlan\"}}");
        let other = read(
            "{\"Network\":\"10.244.0.0/16\",\"SubnetLen\":25,\"Backend\":{\"Type\":\"vxlan\",\"VNI\":7,\"MTU\":1400}}",
        );
        assert!(of_net_conf(&plain, &plain).is_empty());
        let listed: Vec<String> = of_net_conf(&plain, &other)
            .iter()
            .map(Difference::to_string)
            .collect();
        assert_eq!(listed, ["Backend.VNI: 1 -> 7", "Backend.MTU: - -> 1400"]);
    }
    #[test]
    fn a_password_that_differs_is_told_without_it() {
        let read = |password: &str| {
            let args = RunArgs {
                node_name: Some("node1".to_owned()),
                ..RunArgs::default()
            };
            let text = format!("etcd-username = \"u\"\netcd-password = \"{password}\"\n");
            ConfigFile::of(&args).interpret(&text).unwrap()
        };
        let listed = of_node(&read("first"), &read("second"));
        let [listed] = &listed[..] else {
            panic!("{listed:?}");
        };
        assert_eq!(
            listed.to_string(),
            "etcd-password: (secret) -> (another secret)"
        );
        assert!(of_node(&read("first"), &read("first")).is_empty());
    }

    #[test]
    fn every_key_of_a_file_is_listed() {
        let read = |text: &str| {
            let args = RunArgs {
                node_name: Some("node1".to_owned()),
                ..RunArgs::default()
            };
            ConfigFile::of(&args).interpret(text).unwrap()
        };
        let listed: Vec<String> = of_node(&read("shrink-grace = 5\n"), &read("log = \"warn\"\n"))
            .iter()
            .map(Difference::to_string)
            .collect();
        assert_eq!(listed, ["log: info -> warn", "shrink-grace: 5 -> 600"]);
        let read = |backend| {
            let text = format!("{{\"Network\":\"10.244.0.0/16\",\"Backend\":{backend}}}");
            NetConf::parse(&text).unwrap()
        };
        let plain = read("{\"Type\":\"vxlan\"}");
        let direct = read("{\"Type\":\"vxlan\",\"DirectRouting\":true}");
        let listed = of_net_conf(&plain, &direct);
        let [listed] = &listed[..] else {
            panic!("{listed:?}");
        };
        assert_eq!(listed.to_string(), "Backend.DirectRouting: false -> true");
    }
}
