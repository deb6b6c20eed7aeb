//! Whether packets between pods on one bridge meet kube-proxy's rules.
//!
//! A packet that a Service translated comes back past the rules that would translate it again, unless the bridge hands its
//! packets to them (`br_netfilter`). So this matters where kube-proxy translates and a bridge leads to pods, and nowhere else.

use std::path::Path;

use ipnet::IpNet;

use crate::config::text_file;
use crate::host::Picture;
use crate::problems::Problem;

/// The bridges that lead to pods of these subnets.
pub fn pod_bridges(picture: &Picture, subnets: &[IpNet], device: &str) -> Vec<String> {
    let is_bridge = |name: &String| Path::new(NET).join(name).join("bridge").exists();
    let interfaces = picture.pod_interfaces(subnets, device);
    interfaces.into_iter().filter(is_bridge).collect()
}

/// The settings that decide, with their values, for the families of these subnets; no value where the module is not loaded.
pub fn settings(subnets: &[IpNet]) -> Vec<(&'static str, Option<String>)> {
    let has = |is_v4: bool| {
        let mut subnets = subnets.iter();
        subnets.any(|net| net.addr().is_ipv4() == is_v4)
    };
    let keys = [
        (true, "bridge-nf-call-iptables"),
        (false, "bridge-nf-call-ip6tables"),
    ];
    let wanted = keys.into_iter().filter(|(is_v4, _)| has(*is_v4));
    let read = |key: &str| {
        let read = text_file::read(&Path::new(SETTINGS).join(key), LONGEST);
        read.ok().map(|value| value.trim().to_owned())
    };
    wanted.map(|(_, key)| (key, read(key))).collect()
}

/// Judges them, where kube-proxy translates and a bridge leads to pods.
pub fn judge(
    bridges: &[String],
    translates: bool,
    settings: &[(&'static str, Option<String>)],
) -> Vec<Problem> {
    if bridges.is_empty() || !translates {
        return Vec::new();
    }
    let off = settings
        .iter()
        .filter(|(_, value)| value.as_deref() != Some("1"));
    let problem = |(key, value): &(&'static str, Option<String>)| Problem::BridgeNetfilterOff {
        key,
        bridges: bridges.to_vec(),
        is_loaded: value.is_some(),
    };
    off.map(problem).collect()
}

const NET: &str = "/sys/class/net";
/// Where the settings are, once the module is loaded.
pub const SETTINGS: &str = "/proc/sys/net/bridge";
/// A digit and a newline, in bytes.
const LONGEST: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_matters_where_a_bridge_leads_to_pods_and_services_are_translated() {
        let off = [("bridge-nf-call-iptables", Some("0".to_owned()))];
        let bridges = ["cni0".to_owned()];
        let of = |bridges: &[String], translates, settings: &[(&'static str, Option<String>)]| {
            judge(bridges, translates, settings).len()
        };
        assert_eq!(of(&bridges, true, &off), 1);
        assert_eq!(of(&[], true, &off), 0);
        assert_eq!(of(&bridges, false, &off), 0);
        let on = [("bridge-nf-call-iptables", Some("1".to_owned()))];
        assert_eq!(of(&bridges, true, &on), 0);
        let missing = [
            ("bridge-nf-call-iptables", None),
            ("bridge-nf-call-ip6tables", None),
        ];
        assert_eq!(of(&bridges, true, &missing), 2);
    }
}
