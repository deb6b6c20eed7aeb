//! What differs between two configurations, key by key, for the log and `tartan check`.

use std::fmt;
use std::path::Path;

use super::{Backend, DeviceKind, NetConf, NodeConfig, SpinSetting};

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
        let backend = &net_conf.backend;
        let mtu = match backend {
            Backend::Vxlan { mtu, .. } => *mtu,
            Backend::Udp { .. } => None,
        };
        [
            ("Network", or_none(net_conf.network)),
            ("IPv6Network", or_none(net_conf.ipv6_network)),
            ("Backend.Type", backend.format().to_string()),
            ("Backend.Port (udp)", backend.udp_port().to_string()),
            ("Backend.Port (vxlan)", backend.vxlan_port().to_string()),
            ("Backend.VNI", backend.vni().get().to_string()),
            ("Backend.GBP", backend.gbp().to_string()),
            ("Backend.MTU", or_none(mtu)),
        ]
    };
    differing(values(before), values(after))
}

/// The keys that differ between two configurations of this node.
pub fn of_node(before: &NodeConfig, after: &NodeConfig) -> Vec<Difference> {
    let values = |config: &NodeConfig| {
        let path = |path: &Path| path.display().to_string();
        let device = match config.device {
            DeviceKind::Auto => "auto",
            DeviceKind::Offload => "offload",
            DeviceKind::Plain => "plain",
        };
        let spin = match config.spin {
            SpinSetting::Auto => "auto".to_owned(),
            SpinSetting::Off => "off".to_owned(),
            SpinSetting::Micros(micros) => micros.to_string(),
        };
        let cores: Vec<String> = config.cores.iter().map(u16::to_string).collect();
        [
            ("root", path(&config.root)),
            ("node-name", config.node_name.clone()),
            ("net-conf", path(&config.net_conf)),
            ("node-file", path(&config.node_file)),
            ("public-ip", or_none(config.public_v4)),
            ("public-ipv6", or_none(config.public_v6)),
            ("device", device.to_owned()),
            ("device-name", config.device_name.clone()),
            ("strict-pods", config.strict_pods.to_string()),
            ("ipv6-over-udp", config.ipv6_over_udp.to_string()),
            ("masquerade", config.masquerade.to_string()),
            ("subnet-file", path(&config.subnet_file)),
            ("log", config.log.clone()),
            ("workers", or_none(config.workers)),
            (
                "cores",
                or_none((!cores.is_empty()).then(|| cores.join(","))),
            ),
            ("spin", spin),
            ("reclaim-after", config.reclaim_after.as_secs().to_string()),
        ]
    };
    differing(values(before), values(after))
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
}
