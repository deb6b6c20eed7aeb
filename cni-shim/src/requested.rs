//! Which addresses and which MAC a pod is to have. There are three places to
//! ask (CNI CONVENTIONS.md), in this order: the capabilities `ips` and `mac`,
//! `args.cni`, and `IP=` and `MAC=` in CNI_ARGS. For each family the first
//! place that names an address decides, and for the MAC the first that names
//! one.

use std::net::IpAddr;

use cni_shim::protocol::NetConf;
use cni_shim::protocol::net_conf::Requested;
use cni_shim::protocol::request::Arguments;

/// What is asked for in all.
pub(crate) fn requested(conf: &NetConf, arguments: &Arguments) -> Requested {
    let places = [&conf.runtime.ips, &conf.args.ips, &arguments.ips];
    let mut ips = Vec::new();
    for v4 in [true, false] {
        let of_family = |place: &&Vec<IpAddr>| -> Vec<IpAddr> {
            let chosen = place.iter().filter(|ip| ip.is_ipv4() == v4);
            chosen.copied().collect()
        };
        let first = places.iter().map(of_family).find(|ips| !ips.is_empty());
        for ip in first.unwrap_or_default() {
            if !ips.contains(&ip) {
                ips.push(ip);
            }
        }
    }
    Requested {
        ips,
        mac: conf.runtime.mac.or(conf.args.mac).or(arguments.mac),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cni_shim::protocol::Verb;

    fn asked(runtime: &str, args: &str, arguments: &str) -> (Vec<String>, Option<u8>) {
        let text = format!(
            r#"{{"cniVersion":"1.0.0","name":"n","runtimeConfig":{{{runtime}}},"args":{{"cni":{{{args}}}}}}}"#
        );
        let conf = NetConf::parse(text.into_bytes(), Verb::Add).unwrap();
        conf.check().unwrap();
        let all = requested(&conf, &Arguments::parse(arguments).unwrap());
        let ips = all.ips.iter().map(ToString::to_string).collect();
        (ips, all.mac.map(|mac| mac[5]))
    }

    /// Line B7 of the checklist.
    #[test]
    fn b7_the_first_place_that_names_a_family_decides_it() {
        let runtime = r#""ips":["10.0.0.5/24"],"mac":"02:00:00:00:00:01""#;
        let args = r#""ips":["10.0.0.6","fd00::6"],"mac":"02:00:00:00:00:02""#;
        let arguments = "IP=10.0.0.7;MAC=02:00:00:00:00:03";
        let (ips, mac) = asked(runtime, args, arguments);
        assert_eq!(
            (ips, mac),
            (vec!["10.0.0.5".into(), "fd00::6".into()], Some(1))
        );
        let (ips, mac) = asked("", args, arguments);
        assert_eq!(
            (ips, mac),
            (vec!["10.0.0.6".into(), "fd00::6".into()], Some(2))
        );
        let (ips, mac) = asked("", "", arguments);
        assert_eq!((ips, mac), (vec!["10.0.0.7".into()], Some(3)));
        assert_eq!(asked("", "", ""), (vec![], None));
        let twice = r#""ips":["10.0.0.5","10.0.0.5/24","10.0.0.8"]"#;
        assert_eq!(asked(twice, "", "").0, ["10.0.0.5", "10.0.0.8"]);
    }
}
