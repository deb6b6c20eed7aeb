use super::*;
use proptest::prelude::*;
use std::collections::HashMap;
use std::os::unix::ffi::OsStringExt;

fn parse(pairs: &[(&'static str, &str)]) -> Result<Option<Request>, Error> {
    let map: HashMap<&str, OsString> = pairs.iter().map(|(k, v)| (*k, OsString::from(v))).collect();
    Request::parse(|name| map.get(name).cloned())
}

const ADD: [(&str, &str); 5] = [
    ("CNI_COMMAND", "ADD"),
    ("CNI_CONTAINERID", "c1"),
    ("CNI_NETNS", "/run/netns/x"),
    ("CNI_IFNAME", "eth0"),
    ("CNI_PATH", "/opt/cni/bin:/usr/lib/cni"),
];

fn add_with(args: &str) -> Result<Arguments, Error> {
    let mut pairs = ADD.to_vec();
    pairs.push(("CNI_ARGS", args));
    match parse(&pairs)? {
        Some(Request::Add(target)) => Ok(target.arguments),
        other => panic!("no ADD: {other:?}"),
    }
}

#[test]
fn an_add_is_read() {
    let Ok(Some(Request::Add(add))) = parse(&ADD) else {
        panic!("no ADD");
    };
    assert_eq!(add.key.container, "c1");
    assert_eq!(add.key.ifname, "eth0");
    assert_eq!(add.netns, "/run/netns/x");
    let found = add.path.candidates("host-local");
    assert_eq!(found.len(), 2);
    assert_eq!(found[1], PathBuf::from("/usr/lib/cni/host-local"));
    for kind in ["", "..", "../x", "a/b"] {
        assert!(add.path.candidates(kind).is_empty(), "{kind:?}");
    }
}

#[test]
fn arguments_name_the_pod_its_addresses_and_its_mac() {
    let args = "IgnoreUnknown=1;K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=shop;X=a=b;;";
    let pod = add_with(args).unwrap().pod.unwrap();
    assert_eq!((&*pod.namespace, &*pod.name), ("shop", "web-0"));
    assert_eq!(add_with("K8S_POD_NAMESPACE=shop").unwrap().pod, None);
    let asked = add_with("IP=10.0.0.5/24,fd00::5;MAC=02-00-00-00-00-0A").unwrap();
    let expected: [IpAddr; 2] = ["10.0.0.5".parse().unwrap(), "fd00::5".parse().unwrap()];
    assert_eq!(asked.ips, expected);
    assert_eq!(asked.mac, Some([2, 0, 0, 0, 0, 10]));
    assert_eq!(add_with("IP=;MAC=").unwrap(), Arguments::default());
    for args in [
        "nonsense",
        "IP=10.0.0",
        "IP=10.0.0.5,",
        "IP=10.0.0.5/33",
        "MAC=02:00:00:00:00",
        "MAC=02:00:00:00:00:01:02",
        "MAC=00:00:00:00:00:00",
        "MAC=01:00:00:00:00:00",
        "MAC=+2:00:00:00:00:00",
    ] {
        let error = add_with(args).unwrap_err();
        assert!(error.to_string().contains("CNI_ARGS"), "{args}: {error}");
    }
}

/// Line A2 of the checklist.
#[test]
fn a2_everything_missing_is_named_at_once_in_the_order_of_the_specification() {
    for (verb, missing) in [
        ("ADD", "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH"),
        ("CHECK", "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH"),
        ("DEL", "CNI_CONTAINERID,CNI_IFNAME,CNI_PATH"),
        ("GC", "CNI_PATH"),
        ("STATUS", "CNI_PATH"),
    ] {
        let error = parse(&[("CNI_COMMAND", verb), ("CNI_IFNAME", "")]).unwrap_err();
        let expected = format!("required env variables [{missing}] missing");
        assert_eq!(error.to_string(), expected);
    }
    for at in 1..ADD.len() {
        let mut pairs = ADD;
        pairs[at].1 = "";
        let error = parse(&pairs).unwrap_err();
        let expected = format!("required env variables [{}] missing", ADD[at].0);
        assert_eq!(error.to_string(), expected);
    }
}

/// Lines A2 and B6 of the checklist.
#[test]
fn a2_b6_bad_values_name_their_variable() {
    for (at, value) in [
        (1, "../x"),
        (1, "pöd"),
        (1, "-c"),
        (3, "a/b"),
        (3, "a b"),
        (3, ".."),
        (3, "0123456789abcdef"),
    ] {
        let mut pairs = ADD;
        pairs[at].1 = value;
        let error = parse(&pairs).unwrap_err();
        assert!(error.to_string().contains(pairs[at].0), "{error}");
    }
    for ifname in ["0123456789abcde", "net1.100"] {
        let mut pairs = ADD;
        pairs[3].1 = ifname;
        assert!(parse(&pairs).is_ok(), "{ifname}");
    }
    let error = Request::parse(|_| Some(OsString::from_vec(vec![0xff]))).unwrap_err();
    assert_eq!(error.to_string(), "CNI_COMMAND is not UTF-8");
}

#[test]
fn del_does_without_a_namespace_and_looks_at_no_arguments() {
    let del = parse(&[
        ("CNI_COMMAND", "DEL"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/x"),
        ("CNI_ARGS", "nonsense"),
    ]);
    assert!(matches!(del, Ok(Some(Request::Del(_)))));
}

#[test]
fn version_needs_nothing_and_no_command_is_no_request() {
    let version = parse(&[("CNI_COMMAND", "VERSION")]).unwrap().unwrap();
    assert_eq!(version, Request::Version);
    assert_eq!(version.verb(), None);
    assert_eq!(parse(&[]).unwrap(), None);
    assert_eq!(parse(&[("CNI_COMMAND", "")]).unwrap(), None);
    let error = parse(&[("CNI_COMMAND", "add")]).unwrap_err();
    assert_eq!(error.to_string(), "unknown CNI_COMMAND: add");
}

proptest! {
    #[test]
    fn no_environment_makes_it_panic(
        verb in prop_oneof![Just("ADD".to_owned()), Just("DEL".to_owned()), ".*"],
        container in ".*", ifname in ".*", args in ".*",
    ) {
        let _ = parse(&[
            ("CNI_COMMAND", &verb),
            ("CNI_CONTAINERID", &container),
            ("CNI_IFNAME", &ifname),
            ("CNI_NETNS", "/x"),
            ("CNI_PATH", "/x"),
            ("CNI_ARGS", &args),
        ]);
    }
}
