//! What flanneld's flags and variables mean in keys of Tartan's own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use super::go_flags::Given;
use crate::config::RunArgs;
use crate::config::node::DEVICE_AS_FLANNEL;
use crate::config::node::registry::RegistryArgs;

/// A value that flanneld does not take either; the sentence names the remedy.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ArgumentError {
    /// flannel: "out of acceptable range".
    #[error("subnet-lease-renew-margin is {0}: use 1 to 1439 minutes, or leave it out for 60")]
    RenewMargin(i64),
    /// No TCP port.
    #[error("healthz-port is {0}: use a port, or 0 for no health endpoints")]
    HealthzPort(i64),
    /// No address.
    #[error("{flag} {value:?} is not an IP address: correct it, or leave it out")]
    Address {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: String,
    },
}

/// The keys of `tartan run` for flanneld's flags. `own` are those that Tartan's variables set: they count where no flag of
/// flanneld's decides.
///
/// # Errors
/// [`ArgumentError`].
pub(super) fn run_args(given: &Given, own: RunArgs) -> Result<RunArgs, ArgumentError> {
    let path = |name| given.text(name).map(PathBuf::from);
    let is_kubernetes = given.flag("kube-subnet-mgr").unwrap_or(false);
    let kind = match is_kubernetes {
        true => "kubernetes",
        false => "etcd",
    };
    let net_conf = path("net-config-path").unwrap_or_else(|| PathBuf::from(NET_CONFIG_PATH));
    let debug = given.number("v").is_some_and(|level| level >= DEBUG_FROM);
    let mut keys = own;
    keys.registry = registry(given, kind, keys.registry)?;
    if is_kubernetes {
        // In etcd the cluster's configuration is a key.
        keys.net_conf = Some(net_conf);
    }
    let named = || DEVICE_AS_FLANNEL.to_owned();
    keys.device_name.get_or_insert_with(named);
    keys.masquerade = Some(given.flag("ip-masq").unwrap_or(false));
    keys.subnet_file = path("subnet-file").or(keys.subnet_file);
    if debug {
        keys.log.get_or_insert_with(|| DEBUG.to_owned());
    }
    keys.replace_flannel.get_or_insert(true);
    keys.forward_rules = given.flag("iptables-forward-rules").or(keys.forward_rules);
    keys.healthz = healthz(given)?.or(keys.healthz);
    Ok(keys)
}

/// The keys of registries and of the choice of the interface.
fn registry(given: &Given, kind: &str, own: RegistryArgs) -> Result<RegistryArgs, ArgumentError> {
    let path = |name| given.text(name).map(PathBuf::from);
    Ok(RegistryArgs {
        registry: Some(kind.to_owned()),
        etcd_endpoints: endpoints(given).or(own.etcd_endpoints),
        etcd_prefix: given.text("etcd-prefix").or(own.etcd_prefix),
        etcd_cafile: path("etcd-cafile").or(own.etcd_cafile),
        etcd_certfile: path("etcd-certfile").or(own.etcd_certfile),
        etcd_keyfile: path("etcd-keyfile").or(own.etcd_keyfile),
        etcd_username: given.text("etcd-username").or(own.etcd_username),
        etcd_password: given.text("etcd-password").or(own.etcd_password),
        subnet_lease_renew_margin: renew_margin(given)?.or(own.subnet_lease_renew_margin),
        kubeconfig: path("kubeconfig-file").or(own.kubeconfig),
        kube_api_url: given.text("kube-api-url").or(own.kube_api_url),
        kube_annotation_prefix: given
            .text("kube-annotation-prefix")
            .or(own.kube_annotation_prefix),
        set_node_network_unavailable: given
            .flag("set-node-network-unavailable")
            .or(own.set_node_network_unavailable),
        iface: given.texts("iface").or(own.iface),
        iface_regex: given.texts("iface-regex").or(own.iface_regex),
        iface_can_reach: address(given, "iface-can-reach")?.or(own.iface_can_reach),
        public_ip: address(given, "public-ip")?.or(own.public_ip),
        public_ipv6: address(given, "public-ipv6")?.or(own.public_ipv6),
    })
}

/// As an etcd client of Go's takes them: without a scheme, TLS is used where there is a certificate.
fn endpoints(given: &Given) -> Option<Vec<String>> {
    let scheme = match given.text("etcd-certfile").and(given.text("etcd-keyfile")) {
        Some(_) => "https",
        None => "http",
    };
    let written = given.text("etcd-endpoints")?;
    let servers = written.split(',').map(str::trim);
    let servers = servers.filter(|server| !server.is_empty());
    let with_scheme = servers.map(|server| match server.contains("://") {
        true => server.to_owned(),
        false => format!("{scheme}://{server}"),
    });
    Some(with_scheme.collect())
}

fn renew_margin(given: &Given) -> Result<Option<u16>, ArgumentError> {
    let Some(minutes) = given.number("subnet-lease-renew-margin") else {
        return Ok(None);
    };
    match u16::try_from(minutes) {
        Ok(minutes @ 1..=1439) => Ok(Some(minutes)),
        _ => Err(ArgumentError::RenewMargin(minutes)),
    }
}

/// Where the health endpoints are answered; a port that is not positive stands for not at all.
fn healthz(given: &Given) -> Result<Option<String>, ArgumentError> {
    let ip = address(given, "healthz-ip")?;
    let Some(port) = given.number("healthz-port") else {
        return Ok(None);
    };
    match u16::try_from(port.max(0)) {
        Ok(0) => Ok(Some("off".to_owned())),
        Ok(port) => {
            let ip = ip.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
            Ok(Some(SocketAddr::new(ip, port).to_string()))
        }
        Err(_) => Err(ArgumentError::HealthzPort(port)),
    }
}

fn address(given: &Given, flag: &'static str) -> Result<Option<IpAddr>, ArgumentError> {
    let Some(value) = given.text(flag) else {
        return Ok(None);
    };
    match value.parse() {
        Ok(address) => Ok(Some(address)),
        Err(_) => Err(ArgumentError::Address { flag, value }),
    }
}

/// flannel `main.go`.
const NET_CONFIG_PATH: &str = "/etc/kube-flannel/net-conf.json";
/// What Kubernetes calls the level of debug messages (klog's conventions).
const DEBUG_FROM: i64 = 4;
/// Of Tartan's own parts: libraries log each poll.
const DEBUG: &str = "info,tartan=debug,dataplane=debug";

#[cfg(test)]
mod tests {
    use super::super::flags::FLAGS;
    use super::*;
    use crate::config::node::registry::RegistryKind;
    use crate::config::{ConfigFile, NodeConfig};

    fn given(line: &str) -> Given {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Given::parse(&words, &FLAGS).unwrap()
    }

    fn args(line: &str) -> RunArgs {
        run_args(&given(line), own()).unwrap()
    }

    fn own() -> RunArgs {
        RunArgs {
            node_name: Some("node1".to_owned()),
            ..RunArgs::default()
        }
    }

    fn config(args: &RunArgs) -> NodeConfig {
        ConfigFile::of(args).interpret("").unwrap()
    }

    /// The command line of flannel's manifest (`Documentation/kube-flannel.yml`).
    #[test]
    fn the_manifests_command_line() {
        let config = config(&args("--ip-masq --kube-subnet-mgr --healthz-port=8081"));
        assert_eq!(config.registry.kind, RegistryKind::Kubernetes);
        assert_eq!(
            config.net_conf,
            PathBuf::from("/etc/kube-flannel/net-conf.json")
        );
        assert_eq!(
            config.healthz.map(|it| it.to_string()).as_deref(),
            Some("0.0.0.0:8081")
        );
        assert!(config.masquerade && config.replace_flannel && config.forward_rules);
        assert!(config.names_device_as_flannel);
        assert_eq!(config.subnet_file, PathBuf::from("/run/flannel/subnet.env"));
    }

    /// The command line of flannel's functional tests (`dist/functional-test.sh`).
    #[test]
    fn the_functional_tests_command_line() {
        let args = args(
            "--etcd-cafile=/c/ca.pem --etcd-certfile=/c/client.pem --etcd-keyfile=/c/key.pem \
             --etcd-endpoints=https://192.0.2.9:2379 -v 10 -etcd-prefix=/other -subnet-file /x/env",
        );
        assert_eq!(args.log.as_deref(), Some(DEBUG));
        let config = config(&args);
        assert_eq!(config.registry.kind, RegistryKind::Etcd);
        assert_eq!(config.registry.etcd.endpoints, ["https://192.0.2.9:2379"]);
        assert_eq!(config.registry.etcd.prefix, "/other");
        assert!(config.registry.etcd.identity.is_some());
        assert_eq!(config.subnet_file, PathBuf::from("/x/env"));
        // flannel's defaults.
        assert!(!config.masquerade);
        assert_eq!(config.healthz, None);
    }

    #[test]
    fn endpoints_need_no_scheme() {
        for (line, expected) in [
            (
                "-etcd-endpoints=192.0.2.1:2379,http://192.0.2.2:2379,",
                ["http://192.0.2.1:2379", "http://192.0.2.2:2379"],
            ),
            (
                "-etcd-certfile=/c -etcd-keyfile=/k -etcd-endpoints=a:1,b:2",
                ["https://a:1", "https://b:2"],
            ),
        ] {
            let endpoints = args(line).registry.etcd_endpoints;
            assert_eq!(endpoints.unwrap(), expected);
        }
    }

    #[test]
    fn the_choice_of_the_interface_is_passed_on() {
        let args = args(
            "-iface=eth7 --iface 192.0.2.1 --iface= --iface-regex ^eth -iface-can-reach=192.0.2.9 \
             --public-ip=198.51.100.1 -public-ipv6=2001:db8::1",
        );
        let choice = config(&args).registry.underlay;
        assert_eq!(choice.ifaces, ["eth7", "192.0.2.1"]);
        assert_eq!(choice.regexes, ["^eth"]);
        assert_eq!(choice.can_reach, "192.0.2.9".parse().ok());
        assert_eq!(choice.public_v4, "198.51.100.1".parse().ok());
        assert_eq!(choice.public_v6, "2001:db8::1".parse().ok());
    }

    #[test]
    fn tartans_own_variables_count_beside_the_flags() {
        let own = RunArgs {
            workers: Some(3),
            log: Some("trace".to_owned()),
            masquerade: Some(true),
            device_name: Some("tartan7".to_owned()),
            replace_flannel: Some(false),
            ..own()
        };
        let args = run_args(&given("-v=6"), own).unwrap();
        assert_eq!(args.workers, Some(3));
        assert_eq!(args.log.as_deref(), Some("trace"));
        assert_eq!(args.device_name.as_deref(), Some("tartan7"));
        assert_eq!(args.replace_flannel, Some(false));
        // This one is flanneld's to decide, and off where it is not given.
        assert_eq!(args.masquerade, Some(false));
    }

    #[test]
    fn values_out_of_range_are_refused_with_the_remedy() {
        for (line, part) in [
            ("-subnet-lease-renew-margin=0", "1 to 1439"),
            ("-subnet-lease-renew-margin=1440", "1 to 1439"),
            ("-subnet-lease-renew-margin=-70000", "1 to 1439"),
            ("-healthz-port=65536", "use a port"),
            (
                "-public-ip=node1",
                "public-ip \"node1\" is not an IP address",
            ),
            ("-iface-can-reach=x", "iface-can-reach \"x\" is not"),
            ("-healthz-ip=x", "healthz-ip \"x\" is not"),
        ] {
            let error = run_args(&given(line), own()).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
        for (line, expected) in [
            ("-healthz-port=-1", Some("off")),
            ("-healthz-port=0 -healthz-ip=::1", Some("off")),
            ("-healthz-port=81 -healthz-ip=::1", Some("[::1]:81")),
            ("-healthz-port=81 -healthz-ip=", Some("0.0.0.0:81")),
            ("-healthz-ip=::1", None),
        ] {
            assert_eq!(args(line).healthz.as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn every_flag_that_does_nothing_is_accepted() {
        let line = "-iptables-resync=5 -ip-blackhole-route -ip-masq-fully-random-disable=true -vmodule=a=2 \
                    -log_backtrace_at=x:1 -logtostderr -alsologtostderr=false -stderrthreshold=INFO -log_dir=/x";
        let mut expected = args("");
        let found = args(line);
        expected.node_name = found.node_name.clone();
        assert_eq!(config(&found), config(&expected));
    }
}
