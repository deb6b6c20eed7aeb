use super::*;
use crate::RateLimit;
use proptest::prelude::*;

fn read(text: &str, verb: Verb) -> Result<NetConf, Error> {
    NetConf::read(text.as_bytes(), verb).map_err(|rejection| rejection.error)
}

fn parse(text: &str) -> Result<NetConf, Error> {
    read(text, Verb::Add)
}

/// A configuration of 1.1.0 with these members as well.
fn with(members: &str) -> NetConf {
    parse(&format!(r#"{{"cniVersion":"1.1.0","name":"n",{members}}}"#)).unwrap()
}

fn refused(members: &str) -> String {
    with(members).check().unwrap_err().to_string()
}

#[test]
fn the_plain_configuration() {
    let conf = parse(r#"{"cniVersion":"1.0.0","name":"pods","type":"tartan-cni"}"#).unwrap();
    assert_eq!(conf.version, Version::V1_0_0);
    assert_eq!(conf.name, "pods");
    assert_eq!(conf.root, PathBuf::from("/"));
    assert_eq!(
        (conf.mtu, conf.ipam.clone(), conf.bandwidth),
        (None, None, None)
    );
    conf.check().unwrap();
}

/// Line A4 of the checklist.
#[test]
fn a4_capitals_nulls_floats_duplicates_and_strangers_are_read_as_go_reads_them() {
    let conf = parse(
        r#"{"CNIVersion":"0.4.0","name":"b","Name":"a","name":"c","ROOT":"/srv/n1","Mtu":1.4e3,
            "prevResult":null,"ipam":{},"dns":null,"capabilities":{"ips":true},"x":[1],
            "runtimeConfig":{"ips":[],"Bandwidth":{"IngressRate":0,"EgressRate":1e+06,
              "EgressBurst":4294967295},"portMappings":[{"HostPort":1}],"mac":""},
            "args":{"cni":{"ips":null}}}"#,
    )
    .unwrap();
    assert_eq!(conf.version, Version::V0_4_0);
    assert_eq!(conf.name, "c");
    assert_eq!(conf.root, PathBuf::from("/srv/n1"));
    assert_eq!(conf.mtu, Some(1400));
    assert_eq!((conf.previous.clone(), conf.ipam.clone()), (None, None));
    assert_eq!(
        (&conf.runtime, &conf.args),
        (&Requested::default(), &Requested::default())
    );
    let egress = RateLimit {
        rate: 1_000_000,
        burst: 4_294_967_295,
    };
    let expected = Bandwidth {
        ingress: None,
        egress: Some(egress),
    };
    assert_eq!(conf.bandwidth, Some(expected));
    conf.check().unwrap();
}

#[test]
fn a3_versions_are_exact_and_refused_in_libcnis_words() {
    for name in Version::names() {
        let text = format!(r#"{{"cniVersion":"{name}","name":"n"}}"#);
        assert_eq!(parse(&text).unwrap().version.name(), name);
    }
    for none in [r#""cniVersion":null,"#, r#""cniVersion":"","#, ""] {
        let conf = parse(&format!(r#"{{{none}"name":"n"}}"#)).unwrap();
        assert_eq!(conf.version, Version::V0_1_0, "{none}");
    }
    for version in [r#""1.2.0""#, r#""v1.0.0""#, r#""1.0""#] {
        let text = format!(r#"{{"cniVersion":{version},"name":"n"}}"#);
        let refused = parse(&text);
        assert!(matches!(refused, Err(Error::Version { .. })), "{version}");
    }
    let error = parse(r#"{"cniVersion":"9.0.0","name":"n"}"#).unwrap_err();
    assert_eq!(error.to_string(), "incompatible CNI versions");
    assert_eq!(
        error.details(),
        r#"config is "9.0.0", plugin supports ["0.1.0" "0.2.0" "0.3.0" "0.3.1" "0.4.0" "1.0.0" "1.1.0"]"#
    );
}

/// Line A7 of the checklist.
#[test]
fn a7_verbs_need_the_version_that_brought_them() {
    for (verb, first) in [(Verb::Check, 4), (Verb::Gc, 6), (Verb::Status, 6)] {
        for (n, version) in Version::names().into_iter().enumerate() {
            let text = format!(r#"{{"cniVersion":"{version}","name":"n"}}"#);
            match read(&text, verb) {
                Ok(_) => assert!(n >= first, "{verb:?} {version}"),
                Err(error) => {
                    assert!(n < first, "{verb:?} {version}: {error}");
                    let expected = format!("config version does not allow {}", verb.name());
                    assert_eq!(error.to_string(), expected);
                }
            }
        }
        let newer = read(r#"{"cniVersion":"1.2.0","name":"n"}"#, verb).unwrap_err();
        let expected = format!("plugin version does not allow {}", verb.name());
        assert_eq!(newer.to_string(), expected);
        let nonsense = read(r#"{"cniVersion":"one","name":"n"}"#, verb);
        assert!(matches!(nonsense, Err(Error::Kind { .. })));
        let between = read(r#"{"cniVersion":"1.0.5","name":"n"}"#, Verb::Check);
        assert!(matches!(between, Err(Error::Version { .. })));
    }
}

#[test]
fn a3_each_wrong_input_is_its_own_error() {
    for text in ["", "{", "{} {}", "nonsense"] {
        assert!(matches!(parse(text), Err(Error::Decode { .. })), "{text}");
    }
    for text in ["[]", "1", r#"{"name":1}"#, r#"{"name":"n","cniVersion":1}"#] {
        assert!(matches!(parse(text), Err(Error::Kind { .. })), "{text}");
    }
    for text in [r#"{"cniVersion":"1.0.0"}"#, r#"{"name":""}"#, "null"] {
        assert!(matches!(parse(text), Err(Error::NoName)), "{text}");
    }
    for name in ["a/b", "-a", "ä", "a b"] {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"{name}"}}"#);
        assert!(matches!(parse(&text), Err(Error::Name { .. })), "{name}");
    }
    // The name comes before the version.
    let both = r#"{"cniVersion":"9.0.0","name":"a/b"}"#;
    assert!(matches!(parse(both), Err(Error::Name { .. })));
    let long = " ".repeat(LONGEST as usize + 1);
    assert!(matches!(parse(&long), Err(Error::TooLong)));
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("broken"))
        }
    }
    let refused = NetConf::read(Broken, Verb::Add).map_err(|rejection| rejection.error);
    assert!(matches!(refused, Err(Error::Read { .. })));
}

#[test]
fn impossible_values_are_named_with_their_key_and_do_not_stop_del() {
    for (members, key) in [
        (r#""root":"srv""#, "root"),
        (r#""root":1"#, "root"),
        (r#""mtu":575"#, "mtu"),
        (r#""mtu":65536"#, "mtu"),
        (r#""mtu":1400.5"#, "mtu"),
        (r#""mtu":-1"#, "mtu"),
        (r#""mtu":"1400""#, "mtu"),
        (r#""dns":{"nameservers":["dns.example"]}"#, "dns"),
        (r#""ipam":"host-local""#, "ipam"),
        (r#""ipam":{"type":7}"#, "ipam.type"),
        (r#""runtimeConfig":{"ips":"10.0.0.5"}"#, "runtimeConfig.ips"),
        (r#""runtimeConfig":{"ips":["10.0.0"]}"#, "runtimeConfig.ips"),
        (r#""runtimeConfig":{"mac":"02"}"#, "runtimeConfig.mac"),
        (
            r#""runtimeConfig":{"ipRanges":[[{"subnet":"10.0.0.0/24"}]]}"#,
            "ipRanges",
        ),
        (
            r#""runtimeConfig":{"bandwidth":{"ingressRate":-1}}"#,
            "bandwidth",
        ),
        (r#""runtimeConfig":{"bandwidth":[]}"#, "bandwidth"),
        (r#""args":{"cni":{"ips":[5]}}"#, "args.cni.ips"),
        (r#""args":{"cni":{"mac":5}}"#, "args.cni.mac"),
        (r#""allowedSources":"192.0.2.1""#, "allowedSources"),
        (r#""allowedSources":["0.0.0.0/0"]"#, "allowedSources"),
    ] {
        let error = refused(members);
        assert!(error.starts_with("unsupported field "), "{error}");
        assert!(error.contains(key), "{members}: {error}");
    }
    let conf = with(r#""root":"srv","mtu":1"#);
    assert_eq!((conf.root.to_str(), conf.mtu), (Some("/"), None));
}

#[test]
fn what_is_asked_for_is_read_from_each_of_its_places() {
    let conf = with(
        r#""ipam":{"type":"host-local"},
        "runtimeConfig":{"ips":["10.0.0.5/24","fd00::5"],"mac":"02:00:00:00:00:01","ipRanges":[[{"subnet":"10.0.0.0/24"}]],
          "io.kubernetes.cri.pod-annotations":{"a":"1","b":2}},
        "args":{"cni":{"ips":["10.0.0.6"],"mac":"02:00:00:00:00:02","allowedSources":["192.0.2.9"]}},
        "allowedSources":["198.51.100.7/24","fd99::1"]"#,
    );
    conf.check().unwrap();
    assert_eq!(conf.ipam.as_deref(), Some("host-local"));
    let texts = |wanted: &Requested| -> Vec<String> {
        wanted.ips.iter().map(ToString::to_string).collect()
    };
    assert_eq!(texts(&conf.runtime), ["10.0.0.5", "fd00::5"]);
    assert_eq!(conf.runtime.mac, Some([2, 0, 0, 0, 0, 1]));
    assert_eq!(texts(&conf.args), ["10.0.0.6"]);
    assert_eq!(conf.args.mac, Some([2, 0, 0, 0, 0, 2]));
    let sources: Vec<String> = conf
        .allowed_sources
        .iter()
        .map(ToString::to_string)
        .collect();
    // Not what `args` say, which the pod's author may have written.
    assert_eq!(sources, ["198.51.100.0/24", "fd99::1/128"]);
    assert_eq!(conf.annotations.len(), 1);
    assert_eq!(conf.annotations["a"], "1");
}

#[test]
fn annotations_stay_small() {
    let long = "x".repeat(LONGEST_ANNOTATION);
    let many: Vec<String> = (0..2000)
        .map(|n| format!(r#""k{n:04}":"{n:0100}""#))
        .collect();
    let members = format!(
        r#""runtimeConfig":{{"io.kubernetes.cri.pod-annotations":{{"long":"{long}",{}}}}}"#,
        many.join(",")
    );
    let kept = with(&members).annotations;
    assert!(!kept.contains_key("long") && kept.contains_key("k0000"));
    let bytes: usize = kept.iter().map(|(k, v)| k.len() + v.len()).sum();
    assert!((ANNOTATIONS / 2..ANNOTATIONS).contains(&bytes), "{bytes}");
}

/// Lines F1, F2 and F3 of the checklist, as far as they are reading.
#[test]
fn f3_the_list_of_attachments_is_read_under_both_names() {
    let list = |members: &str| {
        let text = format!(r#"{{"cniVersion":"1.1.0","name":"n"{members}}}"#);
        let conf = read(&text, Verb::Gc).unwrap();
        let names = |keys: Vec<AttachmentKey>| keys.into_iter().map(|key| key.container).collect();
        conf.valid.map(names)
    };
    let none: Option<Vec<String>> = None;
    assert_eq!(list(""), none);
    assert_eq!(list(r#","cni.dev/valid-attachments":null"#), Some(vec![]));
    assert_eq!(list(r#","cni.dev/attachments":[]"#), Some(vec![]));
    let old = r#","cni.dev/attachments":[{"containerID":"old","ifname":"eth0"}]"#;
    assert_eq!(list(old), Some(vec!["old".to_owned()]));
    let new = r#","cni.dev/valid-attachments":[{"ContainerID":"new","IfName":"eth0"}]"#;
    assert_eq!(list(&format!("{old}{new}")), Some(vec!["new".to_owned()]));
    for bad in ["7", r#"[{"containerID":"c"}]"#, r#"["c"]"#] {
        let text =
            format!(r#"{{"cniVersion":"1.1.0","name":"n","cni.dev/valid-attachments":{bad}}}"#);
        assert!(
            matches!(read(&text, Verb::Gc), Err(Error::Kind { .. })),
            "{bad}"
        );
        read(&text, Verb::Del).unwrap();
    }
}

#[test]
fn a_rejection_has_the_version_of_the_request() {
    let version = |text: &str| {
        NetConf::read(text.as_bytes(), Verb::Add)
            .unwrap_err()
            .version
    };
    assert_eq!(
        version(r#"{"cniVersion":"0.4.0","name":"a/b"}"#),
        Version::V0_4_0
    );
    assert_eq!(version(r#"{"cniVersion":"0.3.1"}"#), Version::V0_3_1);
    assert_eq!(
        version(r#"{"cniVersion":"9.0.0","name":"n"}"#),
        Version::NEWEST
    );
    assert_eq!(version("{"), Version::NEWEST);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = NetConf::parse(bytes, Verb::Add);
    }

    #[test]
    fn no_damage_makes_it_panic(at: prop::sample::Index, byte: u8) {
        let mut bytes = br#"{"cniVersion":"1.1.0","name":"pods","mtu":1400,"root":"/srv",
            "runtimeConfig":{"ips":["10.0.0.5"],"mac":"02:00:00:00:00:01","bandwidth":{"ingressRate":1}},
            "args":{"cni":{"ips":["10.0.0.6"]}},"dns":{"nameservers":["10.0.0.1"]},"ipam":{"type":"x"},
            "cni.dev/valid-attachments":[{"containerID":"a","ifname":"b"}],"allowedSources":["10.0.0.0/8"]}"#
            .to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        for verb in [Verb::Add, Verb::Gc] {
            if let Ok(conf) = NetConf::parse(bytes.clone(), verb) {
                let _ = conf.check();
            }
        }
    }
}
