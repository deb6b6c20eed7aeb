//! The keys that say where leases come from and what this node publishes of itself.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::ConfigError;
use super::resolve::{Addresses, addresses};

/// Keys of the registries and of the choice of the underlay interface, as flags and environment variables.
#[derive(Args, Clone, Debug, Default)]
pub struct RegistryArgs {
    /// Learn the nodes of the cluster from a list in a file (file), from flannel's keys in etcd (etcd), or from flannel's annotations of Kubernetes nodes (kubernetes) [default: file]
    #[arg(long, env = "TARTAN_REGISTRY", value_name = "KIND")]
    pub registry: Option<String>,
    /// etcd: connect to these servers [default: http://127.0.0.1:2379]
    #[arg(
        long,
        env = "TARTAN_ETCD_ENDPOINTS",
        value_name = "URLS",
        value_delimiter = ','
    )]
    pub etcd_endpoints: Option<Vec<String>>,
    /// etcd: use the keys below PREFIX [default: /coreos.com/network]
    #[arg(long, env = "TARTAN_ETCD_PREFIX", value_name = "PREFIX")]
    pub etcd_prefix: Option<String>,
    /// etcd: trust servers whose certificate is signed by those in FILE (PEM)
    #[arg(long, env = "TARTAN_ETCD_CAFILE", value_name = "FILE")]
    pub etcd_cafile: Option<PathBuf>,
    /// etcd: authenticate with the certificate in FILE (PEM); needs --etcd-keyfile
    #[arg(long, env = "TARTAN_ETCD_CERTFILE", value_name = "FILE")]
    pub etcd_certfile: Option<PathBuf>,
    /// etcd: authenticate with the private key in FILE (PEM); needs --etcd-certfile
    #[arg(long, env = "TARTAN_ETCD_KEYFILE", value_name = "FILE")]
    pub etcd_keyfile: Option<PathBuf>,
    /// etcd: authenticate as the user NAME; needs a password
    #[arg(long, env = "TARTAN_ETCD_USERNAME", value_name = "NAME")]
    pub etcd_username: Option<String>,
    /// etcd: password of that user; other users of the host see a command line, so prefer the variable or the file
    #[arg(
        long,
        env = "TARTAN_ETCD_PASSWORD",
        value_name = "PASSWORD",
        hide_env_values = true
    )]
    pub etcd_password: Option<String>,
    /// etcd: renew this node's lease, of 24 hours, this many minutes before it ends, 1 to 1439 [default: 60]
    #[arg(long, env = "TARTAN_SUBNET_LEASE_RENEW_MARGIN", value_name = "MINUTES")]
    pub subnet_lease_renew_margin: Option<u16>,
    /// kubernetes: read server and credentials from FILE [default: KUBECONFIG, else those of the pod that this runs in]
    #[arg(long, env = "TARTAN_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// kubernetes: connect to the API server at URL in place of the one that the credentials name
    #[arg(long, env = "TARTAN_KUBE_API_URL", value_name = "URL")]
    pub kube_api_url: Option<String>,
    /// kubernetes: use the node annotations below PREFIX [default: flannel.alpha.coreos.com]
    #[arg(long, env = "TARTAN_KUBE_ANNOTATION_PREFIX", value_name = "PREFIX")]
    pub kube_annotation_prefix: Option<String>,
    /// kubernetes: set the node's condition NetworkUnavailable to False once this node forwards [default: true]
    #[arg(long, env = "TARTAN_SET_NODE_NETWORK_UNAVAILABLE", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub set_node_network_unavailable: Option<bool>,
    /// etcd, kubernetes: use this interface, given by name or address, to reach other nodes; may be given several times, the first that exists counts [default: the interface of the default route]
    #[arg(long, env = "TARTAN_IFACE", value_name = "NAME", value_delimiter = ',')]
    pub iface: Option<Vec<String>>,
    /// etcd, kubernetes: use the first interface of which an address, or else the name, matches this regular expression; may be given several times; tried after --iface
    #[arg(long, env = "TARTAN_IFACE_REGEX", value_name = "REGEX")]
    pub iface_regex: Option<Vec<String>>,
    /// etcd, kubernetes: use the interface by which the kernel would send to ADDRESS; tried after --iface-regex
    #[arg(long, env = "TARTAN_IFACE_CAN_REACH", value_name = "ADDRESS")]
    pub iface_can_reach: Option<IpAddr>,
    /// etcd, kubernetes: publish this address for peers to send to; without --iface it also chooses the interface [default: the address of the interface]
    #[arg(long, env = "TARTAN_PUBLIC_IP", value_name = "ADDRESS")]
    pub public_ip: Option<IpAddr>,
    /// etcd, kubernetes: the same for IPv6
    #[arg(
        long = "public-ipv6",
        env = "TARTAN_PUBLIC_IPV6",
        value_name = "ADDRESS"
    )]
    pub public_ipv6: Option<IpAddr>,
}

/// Where leases come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RegistryKind {
    /// A list of nodes in a file.
    #[default]
    File,
    /// flannel's keys in etcd.
    Etcd,
    /// flannel's annotations of Kubernetes nodes.
    Kubernetes,
}

impl fmt::Display for RegistryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RegistryKind::File => "file",
            RegistryKind::Etcd => "etcd",
            RegistryKind::Kubernetes => "kubernetes",
        })
    }
}

/// The registry and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryConfig {
    /// Which one.
    pub kind: RegistryKind,
    /// The keys of `etcd`.
    pub etcd: EtcdConfig,
    /// The keys of `kubernetes`.
    pub kubernetes: KubernetesConfig,
    /// Which addresses this node publishes.
    pub underlay: UnderlayChoice,
}

impl Default for RegistryConfig {
    fn default() -> RegistryConfig {
        RegistryConfig {
            kind: RegistryKind::File,
            etcd: EtcdConfig {
                endpoints: vec![ETCD_ENDPOINT.to_owned()],
                prefix: ETCD_PREFIX.to_owned(),
                cafile: None,
                identity: None,
                user: None,
                renew_margin: RENEW_MARGIN,
            },
            kubernetes: KubernetesConfig {
                kubeconfig: None,
                api_url: None,
                annotation_prefix: ANNOTATION_PREFIX.to_owned(),
                set_network_unavailable: true,
            },
            underlay: UnderlayChoice::default(),
        }
    }
}

/// How etcd is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdConfig {
    /// Servers, each `http://` or `https://`, a host and a port; at least one.
    pub endpoints: Vec<String>,
    /// The keys' prefix: begins with a slash and ends without one.
    pub prefix: String,
    /// Certificates to trust.
    pub cafile: Option<PathBuf>,
    /// Our certificate and its private key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// User name and password.
    pub user: Option<(String, Secret)>,
    /// How long before its end our lease is renewed, 1 minute to 1 day less a minute.
    pub renew_margin: Duration,
}

/// How the Kubernetes API is reached, and what is written there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesConfig {
    /// File with server and credentials; `None`: `KUBECONFIG`, else those of the pod that the service runs in.
    pub kubeconfig: Option<PathBuf>,
    /// The server, in place of the one that the credentials name.
    pub api_url: Option<String>,
    /// The annotations' prefix as flannel's flag has it, without the slash or hyphen that joins it to their names.
    pub annotation_prefix: String,
    /// Set `NetworkUnavailable=False` once this node forwards.
    pub set_network_unavailable: bool,
}

/// Which interface and addresses this node tells its peers, by flannel's rules (flannel `pkg/ipmatch/match.go`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnderlayChoice {
    /// Names or addresses of interfaces, the first that exists counts.
    pub ifaces: Vec<String>,
    /// Regular expressions over addresses and names, checked.
    pub regexes: Vec<String>,
    /// The interface by which the kernel would send to this address.
    pub can_reach: Option<IpAddr>,
    /// The IPv4 address to publish.
    pub public_v4: Option<Ipv4Addr>,
    /// The IPv6 address to publish.
    pub public_v6: Option<Ipv6Addr>,
}

/// A text that neither logs nor debug output show.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// One value for each key: of `args`, else of `file`, else the default.
pub(super) fn resolve(
    args: RegistryArgs,
    file: RegistryArgs,
) -> Result<RegistryConfig, ConfigError> {
    let kind = kind(args.registry.or(file.registry))?;
    let public = addresses(
        Addresses::Public,
        args.public_ip.or(file.public_ip),
        args.public_ipv6.or(file.public_ipv6),
    )?;
    if kind == RegistryKind::File && public != (None, None) {
        return Err(ConfigError::PublicOfFile);
    }
    let identity = both(
        ("etcd-certfile", args.etcd_certfile.or(file.etcd_certfile)),
        ("etcd-keyfile", args.etcd_keyfile.or(file.etcd_keyfile)),
    )?;
    let user = both(
        ("etcd-username", args.etcd_username.or(file.etcd_username)),
        ("etcd-password", args.etcd_password.or(file.etcd_password)),
    )?;
    Ok(RegistryConfig {
        kind,
        etcd: EtcdConfig {
            endpoints: endpoints(args.etcd_endpoints.or(file.etcd_endpoints))?,
            prefix: prefix(args.etcd_prefix.or(file.etcd_prefix))?,
            cafile: args.etcd_cafile.or(file.etcd_cafile),
            identity,
            user: user.map(|(name, password)| (name, Secret(password))),
            renew_margin: renew_margin(
                args.subnet_lease_renew_margin
                    .or(file.subnet_lease_renew_margin),
            )?,
        },
        kubernetes: KubernetesConfig {
            kubeconfig: args.kubeconfig.or(file.kubeconfig),
            api_url: args.kube_api_url.or(file.kube_api_url),
            annotation_prefix: annotation_prefix(
                args.kube_annotation_prefix.or(file.kube_annotation_prefix),
            )?,
            set_network_unavailable: args
                .set_node_network_unavailable
                .or(file.set_node_network_unavailable)
                .unwrap_or(true),
        },
        underlay: UnderlayChoice {
            ifaces: args.iface.or(file.iface).unwrap_or_default(),
            regexes: regexes(args.iface_regex.or(file.iface_regex))?,
            can_reach: args.iface_can_reach.or(file.iface_can_reach),
            public_v4: public.0,
            public_v6: public.1,
        },
    })
}

fn kind(written: Option<String>) -> Result<RegistryKind, ConfigError> {
    match written.as_deref() {
        None | Some("file") => Ok(RegistryKind::File),
        Some("etcd") => Ok(RegistryKind::Etcd),
        Some("kubernetes") => Ok(RegistryKind::Kubernetes),
        Some(other) => Err(ConfigError::Registry(other.to_owned())),
    }
}

fn endpoints(written: Option<Vec<String>>) -> Result<Vec<String>, ConfigError> {
    let endpoints = written.unwrap_or_else(|| vec![ETCD_ENDPOINT.to_owned()]);
    let is_url = |url: &String| {
        let rest = url
            .strip_prefix("http://")
            .or_else(|| url.strip_prefix("https://"));
        rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(char::is_whitespace))
    };
    // It would be in the log and in `tartan status`, and etcd does not take it from there.
    if endpoints.iter().any(|url| url.contains('@')) {
        return Err(ConfigError::EndpointUser);
    }
    match endpoints.iter().find(|url| !is_url(url)) {
        Some(wrong) => Err(ConfigError::Endpoint(wrong.clone())),
        None if endpoints.is_empty() => Err(ConfigError::Endpoint(String::new())),
        None => Ok(endpoints),
    }
}

/// As flannel: a prefix without a leading slash gets one.
fn prefix(written: Option<String>) -> Result<String, ConfigError> {
    let written = written.unwrap_or_else(|| ETCD_PREFIX.to_owned());
    let bare = written.trim_matches('/');
    match bare.is_empty() {
        true => Err(ConfigError::EtcdPrefix(written)),
        false => Ok(format!("/{bare}")),
    }
}

fn renew_margin(written: Option<u16>) -> Result<Duration, ConfigError> {
    let Some(minutes) = written else {
        return Ok(RENEW_MARGIN);
    };
    match (1..=MOST_RENEW_MARGIN).contains(&minutes) {
        true => Ok(Duration::from_secs(u64::from(minutes) * 60)),
        false => Err(ConfigError::RenewMargin(minutes)),
    }
}

/// flannel `pkg/subnet/kube/annotations.go`: a domain, and behind a slash `[a-z0-9_-]*`.
fn annotation_prefix(written: Option<String>) -> Result<String, ConfigError> {
    let prefix = written.unwrap_or_else(|| ANNOTATION_PREFIX.to_owned());
    let (domain, name) = prefix.split_once('/').unwrap_or((&prefix, ""));
    let label = |label: &str| {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !label.is_empty() && label.bytes().all(plain)
    };
    let in_name = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_');
    let is_sound = domain.contains('.')
        && domain.split('.').all(label)
        && name.bytes().all(in_name)
        && prefix.len() <= 200;
    match is_sound {
        true => Ok(prefix),
        false => Err(ConfigError::AnnotationPrefix(prefix)),
    }
}

fn regexes(written: Option<Vec<String>>) -> Result<Vec<String>, ConfigError> {
    let regexes = written.unwrap_or_default();
    for regex in &regexes {
        if let Err(error) = regex::Regex::new(regex) {
            return Err(ConfigError::IfaceRegex {
                regex: regex.clone(),
                reason: error.to_string().replace('\n', " "),
            });
        }
    }
    Ok(regexes)
}

/// Two keys of which one is no use without the other.
fn both<T>(
    (first_key, first): (&'static str, Option<T>),
    (second_key, second): (&'static str, Option<T>),
) -> Result<Option<(T, T)>, ConfigError> {
    match (first, second) {
        (Some(first), Some(second)) => Ok(Some((first, second))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(ConfigError::Lacks {
            key: first_key,
            lacks: second_key,
        }),
        (None, Some(_)) => Err(ConfigError::Lacks {
            key: second_key,
            lacks: first_key,
        }),
    }
}

/// flannel also tries port 4001, which etcd does not use any more.
const ETCD_ENDPOINT: &str = "http://127.0.0.1:2379";
/// flannel `main.go`.
const ETCD_PREFIX: &str = "/coreos.com/network";
/// flannel `main.go`.
const ANNOTATION_PREFIX: &str = "flannel.alpha.coreos.com";
/// flannel `main.go`.
const RENEW_MARGIN: Duration = Duration::from_secs(3600);
/// Minutes; the lease lasts a day.
pub(super) const MOST_RENEW_MARGIN: u16 = 1439;

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of flannel's `annotations_test.go`.
    #[test]
    fn an_annotation_prefix_is_a_domain_and_perhaps_a_name() {
        let is_sound = |prefix: &str| annotation_prefix(Some(prefix.to_owned())).is_ok();
        for prefix in [
            "flannel.alpha.coreos.com",
            "flannel.alpha.coreos.com/",
            "flannel.alpha.coreos.com/prefix",
            "flannel.alpha.coreos.com/prefix-",
            "org.com",
            "org9.com",
            "org.com/9",
        ] {
            assert!(is_sound(prefix), "{prefix}");
        }
        for prefix in [
            "org",
            "org/",
            "org/prefix",
            "org.COM",
            "org.com/PREFIX",
            "org.com/a/b",
        ] {
            assert!(!is_sound(prefix), "{prefix}");
        }
    }
}
