use crate::config::node::registry::RegistryConfig;
use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    run: RunArgs,
}

fn flags(words: &[&str]) -> RunArgs {
    Line::try_parse_from([&["tartan"], words].concat())
        .unwrap()
        .run
}

/// Reads `file` as the default configuration of a root of its own, under `words`.
fn load(file: &str, words: &[&str]) -> Result<NodeConfig, ConfigError> {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("etc/tartan");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("tartan.toml"), file).unwrap();
    let mut args = flags(words);
    args.root = Some(root.path().to_path_buf());
    NodeConfig::load(&args)
}

fn refusal(file: &str, words: &[&str]) -> String {
    load(file, words).unwrap_err().to_string()
}

#[test]
fn without_any_configuration_the_defaults_apply() {
    let root = tempfile::tempdir().unwrap();
    let args = RunArgs {
        root: Some(root.path().to_path_buf()),
        ..RunArgs::default()
    };
    let config = NodeConfig::load(&args).unwrap();
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let expected = NodeConfig {
        instance: None,
        root: root.path().to_path_buf(),
        node_name: hostname.trim().to_owned(),
        net_conf: root.path().join("etc/tartan/net-conf.json"),
        node_file: root.path().join("etc/tartan/nodes.toml"),
        registry: RegistryConfig::default(),
        local_v4: None,
        local_v6: None,
        device: DeviceKind::Auto,
        device_type: DeviceType::Auto,
        device_name: "tartan0".to_owned(),
        names_device_as_flannel: false,
        strict_pods: false,
        gather: true,
        probe: true,
        ipv6_over_udp: false,
        masquerade: true,
        subnet_file: root.path().join("run/flannel/subnet.env"),
        log: "info".to_owned(),
        workers: None,
        cores: Vec::new(),
        spin: SpinSetting::Auto,
        reclaim_after: Duration::from_secs(60),
        shrink_grace: Duration::from_secs(600),
        replace_flannel: false,
        forward_rules: true,
        kernel_path: KernelPathMode::Off,
        kernel_path_port: 18472,
        healthz: None,
        metrics: None,
        metrics_limit: 256,
    };
    assert_eq!(config, expected);
    assert_eq!(config.run_dir().path(), root.path().join("run/tartan"));
    assert_eq!(config.state_dir(), root.path().join("var/lib/tartan"));
}

const EVERY_KEY: &str = r#"
    node-name = "n1"
    net-conf = "/srv/net-conf.json"
    node-file = "beside.toml"
    local-ip = "192.0.2.1"
    local-ipv6 = "2001:db8::1"
    device = "plain"
    device-type = "tun"
    device-name = "tt0"
    strict-pods = true
    ipv6-over-udp = true
    masquerade = false
    gather = false
    probe = false
    subnet-file = "/srv/subnet.env"
    log = "warn,tartan::host=debug"
    workers = 2
    cores = [4, 6]
    spin = 20
    reclaim-after = 7
    shrink-grace = 9
    kernel-path = "stateless"
    kernel-path-port = 4000
    metrics = "[::]:9467"
    metrics-limit = 0
"#;

#[test]
fn a_file_sets_every_key() {
    let config = load(EVERY_KEY, &[]).unwrap();
    assert_eq!(config.node_name, "n1");
    assert_eq!(config.net_conf, PathBuf::from("/srv/net-conf.json"));
    assert_eq!(
        config.node_file,
        config.root.join("etc/tartan/beside.toml"),
        "relative to the file"
    );
    assert_eq!(config.local_v4, Some([192, 0, 2, 1].into()));
    assert_eq!(config.local_v6, Some("2001:db8::1".parse().unwrap()));
    assert_eq!(
        (config.device, config.device_name.as_str()),
        (DeviceKind::Plain, "tt0")
    );
    assert!(
        config.strict_pods
            && config.ipv6_over_udp
            && !config.masquerade
            && !config.gather
            && !config.probe
    );
    assert_eq!(config.device_type, DeviceType::Tun);
    assert_eq!(config.metrics, Some("[::]:9467".parse().unwrap()));
    assert_eq!(config.metrics_limit, 0);
    assert_eq!(config.subnet_file, PathBuf::from("/srv/subnet.env"));
    assert_eq!(config.log, "warn,tartan::host=debug");
    assert_eq!((config.workers, config.cores), (Some(2), vec![4, 6]));
    assert_eq!(config.spin, SpinSetting::Micros(20));
    assert_eq!(config.reclaim_after, Duration::from_secs(7));
    assert_eq!(config.shrink_grace, Duration::from_secs(9));
    assert_eq!(
        (config.kernel_path, config.kernel_path_port),
        (KernelPathMode::Stateless, 4000)
    );
}

#[test]
fn a_flag_overrides_the_file() {
    let words = [
        "--node-name=n2",
        "--net-conf=a",
        "--node-file=b",
        "--local-ip=192.0.2.2",
        "--local-ipv6=2001:db8::2",
        "--device=auto",
        "--device-type=tap",
        "--device-name=tt1",
        "--strict-pods=false",
        "--ipv6-over-udp=false",
        "--masquerade",
        "--subnet-file=/tmp/s",
        "--log=trace",
        "--workers=3",
        "--cores=1,0,5",
        "--spin=off",
        "--reclaim-after=3600",
        "--shrink-grace=0",
        "--kernel-path=auto",
        "--kernel-path-port=65534",
    ];
    let config = load(EVERY_KEY, &words).unwrap();
    assert_eq!(
        (config.workers, &config.cores[..]),
        (Some(3), &[1, 0, 5][..])
    );
    assert_eq!(config.spin, SpinSetting::Off);
    assert_eq!(config.reclaim_after, Duration::from_secs(3600));
    assert_eq!(config.shrink_grace, Duration::ZERO);
    assert_eq!(
        (config.kernel_path, config.kernel_path_port),
        (KernelPathMode::Auto, 65534)
    );
    assert_eq!(
        (config.node_name.as_str(), config.device_name.as_str()),
        ("n2", "tt1")
    );
    assert_eq!(
        (config.net_conf, config.node_file),
        (PathBuf::from("a"), PathBuf::from("b"))
    );
    assert_eq!(
        (config.local_v4, config.local_v6),
        (
            Some([192, 0, 2, 2].into()),
            Some("2001:db8::2".parse().unwrap())
        )
    );
    assert_eq!(
        (config.device, config.device_type),
        (DeviceKind::Auto, DeviceType::Tap)
    );
    assert!(!config.strict_pods && !config.ipv6_over_udp && config.masquerade);
    assert_eq!(config.subnet_file, PathBuf::from("/tmp/s"));
    assert_eq!(config.log, "trace");
}

/// A configured address replaces the public one of its family, and no other.
#[test]
fn a_local_address_replaces_the_public_one_of_its_family() {
    let (v4, v6) = (
        "198.51.100.1".parse().unwrap(),
        "2001:db8:a::1".parse().unwrap(),
    );
    let public = |text: &str| PublicAddresses::from(text.parse::<IpAddr>().unwrap());
    let dual = PublicAddresses::Dual(v4, v6);
    let underlay = |words: &[&str], public| load("", words).unwrap().underlay(public);
    assert_eq!(underlay(&[], dual), dual);
    assert_eq!(
        underlay(&["--local-ip=192.0.2.1"], dual),
        PublicAddresses::Dual([192, 0, 2, 1].into(), v6)
    );
    for words in ["--local-ip=2001:db8::1", "--local-ipv6=2001:db8::1"] {
        let expected = PublicAddresses::Dual(v4, "2001:db8::1".parse().unwrap());
        assert_eq!(underlay(&[words], dual), expected);
        assert_eq!(underlay(&[words], v4_alone(v4)), v4_alone(v4));
        assert_eq!(
            underlay(&[words], public("2001:db8:a::1")),
            public("2001:db8::1")
        );
    }
}

fn v4_alone(v4: Ipv4Addr) -> PublicAddresses {
    PublicAddresses::V4(v4)
}

#[test]
fn the_device_has_three_kinds() {
    for (word, kind) in [
        ("auto", DeviceKind::Auto),
        ("offload", DeviceKind::Offload),
        ("plain", DeviceKind::Plain),
    ] {
        let config = load(&format!("device = {word:?}"), &[]).unwrap();
        assert_eq!(config.device, kind);
    }
}

#[test]
fn a_switch_needs_no_value() {
    assert!(
        load("strict-pods = false", &["--strict-pods"])
            .unwrap()
            .strict_pods
    );
}

#[test]
fn every_key_of_the_file_is_a_flag_and_a_variable() {
    let command = <Line as clap::CommandFactory>::command();
    let described = |key: &str| {
        let flag = command
            .get_arguments()
            .find(|flag| flag.get_long() == Some(key));
        flag.and_then(|flag| flag.get_env())
            .map(|name| name.to_string_lossy().into_owned())
    };
    for key in KEYS {
        let variable = format!("TARTAN_{}", key.to_uppercase().replace('-', "_"));
        assert_eq!(described(key), Some(variable), "{key}");
    }
    let flags = command
        .get_arguments()
        .filter(|flag| flag.get_env().is_some())
        .count();
    assert_eq!(
        flags,
        KEYS.len() + NO_KEYS.len(),
        "and those that are none of the file"
    );
}

/// The file is the same for all agents of a node.
#[test]
fn the_instance_is_a_flag_and_no_key() {
    assert_eq!(
        flags(&["--take-over", "a-1"]).take_over.as_deref(),
        Some("a-1")
    );
    for refused in ["", "a b", "\u{e4}", &"n".repeat(65)] {
        let words = ["run", "--take-over", refused];
        assert!(Line::try_parse_from(words).is_err(), "{refused}");
    }
    assert!(from_file("take-over = \"a\"", Path::new("/")).is_err());
}

#[test]
fn the_file_may_name_the_root() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.toml");
    std::fs::write(&path, "root = \"n1\"").unwrap();
    let args = RunArgs {
        config: Some(path),
        ..RunArgs::default()
    };
    let config = NodeConfig::load(&args).unwrap();
    assert_eq!(config.root, directory.path().join("n1"));
    assert_eq!(
        config.net_conf,
        config.root.join("etc/tartan/net-conf.json")
    );
}

#[test]
fn a_named_file_must_exist() {
    let args = RunArgs {
        config: Some(PathBuf::from("/nowhere/tartan.toml")),
        ..RunArgs::default()
    };
    let message = NodeConfig::load(&args).unwrap_err().to_string();
    assert!(
        message.contains("cannot read /nowhere/tartan.toml"),
        "{message}"
    );
}

#[test]
fn every_refusal_names_its_remedy() {
    let in_file = [
        (
            "\nnode_nmae = \"a\"",
            "tartan.toml: line 2: unknown key \"node_nmae\", did you mean \"node-name\"?",
        ),
        (
            "strict-pods = 1",
            "line 1: strict-pods must be true or false, not a number",
        ),
        (
            "local-ip = \"here\"",
            "line 1: local-ip must be an IP address, not \"here\"",
        ),
        (
            "local-ipv6 = \"192.0.2.1\"",
            "local-ipv6 192.0.2.1 is an IPv4 address: name it as local-ip",
        ),
        (
            "local-ip = \"2001:db8::1\"\nlocal-ipv6 = \"2001:db8::2\"",
            "local-ip 2001:db8::1 is an IPv6 address already: leave local-ipv6 out",
        ),
        (
            "local-ipv6 = \"fe80::1\"",
            "local-ipv6 fe80::1 is link-local: name an address of this host",
        ),
        ("workers = 0", "line 1: workers must be 1 to 32"),
        (
            "spin = \"on\"",
            "spin \"on\" is not a valid time: use \"auto\"",
        ),
        ("spin = 0", "spin \"0\" is not a valid time"),
        ("spin = true", "line 1: spin must be text"),
        (
            "kernel-path = \"on\"",
            "kernel-path \"on\" does not exist: use \"off\"",
        ),
        (
            "metrics-limit = 10001",
            "line 1: metrics-limit must be 0 to 10000",
        ),
        (
            "kernel-path-port = 80",
            "line 1: kernel-path-port must be 1024 to 65534",
        ),
        (
            "reclaim-after = 4",
            "line 1: reclaim-after must be 5 to 3600",
        ),
        ("cores = 2", "line 1: cores must be a list"),
        ("cores = [2, 2000]", "line 1: cores must be 0 to 1023"),
        (
            "workers = 3\ncores = [0, 1]",
            "cores has 2 for 3 workers: name a core for each, or leave cores out",
        ),
        (
            "device = \"tap\"",
            "device \"tap\" does not exist: use \"auto\", \"offload\" or \"plain\"",
        ),
        (
            "device-type = \"plain\"",
            "line 1: device-type \"plain\" does not exist: use \"auto\", \"tun\" or \"tap\"",
        ),
        (
            "device = \"plain\"\ndevice-type = \"tap\"",
            "line 2: device-type \"tap\" needs offloads, and device \"plain\" has none: leave device out",
        ),
        (
            "log = \"inof\"",
            "log \"inof\" is not a valid filter: use off, error, warn",
        ),
        ("log = \"tartan=loud\"", "is not a valid filter"),
        ("log = \"3\"", "is not a valid filter"),
        ("= 1", "line 1: not TOML"),
    ];
    for (file, expected) in in_file {
        let message = refusal(file, &[]);
        assert!(message.contains(expected), "{file}: {message}");
    }
    for name in [
        "",
        "lo",
        "all",
        "default",
        "..",
        "a/b",
        "a b",
        "sixteen-letters-",
    ] {
        let message = refusal(&format!("device-name = {name:?}"), &[]);
        assert!(
            message.contains("is not a valid interface name"),
            "{name}: {message}"
        );
    }
    for (name, expected) in [
        ("", "has no name"),
        ("(none)", "has no name"),
        ("a b", "is not a valid node name"),
    ] {
        let message = refusal("", &[&format!("--node-name={name}")]);
        assert!(message.contains(expected), "{name}: {message}");
    }
    for address in ["127.0.0.1", "0.0.0.0", "ff02::1", "fe80::1"] {
        let message = refusal("", &[&format!("--local-ip={address}")]);
        assert!(
            message.contains(address) && message.contains("that other nodes reach"),
            "{message}"
        );
    }
}

/// What stands there is in the log and in `tartan status`.
#[test]
fn a_password_in_the_address_of_etcd_is_refused_and_not_repeated() {
    let endpoints = "http://root:secret@192.0.2.1:2379";
    let refused = refusal("", &["--registry", "etcd", "--etcd-endpoints", endpoints]);
    assert!(refused.contains("etcd-password"), "{refused}");
    assert!(!refused.contains("secret"), "{refused}");
}

#[test]
fn the_device_is_named_as_flannel_names_its_own() {
    let named = |device_name: &str, backend: &str| {
        let args = RunArgs {
            node_name: Some("node1".to_owned()),
            device_name: Some(device_name.to_owned()),
            ..RunArgs::default()
        };
        let mut config = ConfigFile::of(&args).interpret("").unwrap();
        let net_conf = format!(r#"{{"Network":"10.244.0.0/16","Backend":{backend}}}"#);
        config.name_device(&crate::config::NetConf::parse(&net_conf).unwrap().backend);
        config.device_name
    };
    for (backend, name) in [
        (r#"{"Type":"vxlan"}"#, "flannel.1"),
        (r#"{"Type":"vxlan","VNI":9999999}"#, "flannel.9999999"),
        (r#"{"Type":"vxlan","VNI":16777215}"#, "tartan0"),
        (r#"{"Type":"udp"}"#, "flannel0"),
    ] {
        assert_eq!(named(DEVICE_AS_FLANNEL, backend), name);
        assert_eq!(named("tartan7", backend), "tartan7");
    }
}
