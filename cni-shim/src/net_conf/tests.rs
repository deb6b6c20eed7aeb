use super::*;
use proptest::prelude::*;

fn parse(text: &str) -> Result<NetConf, Error> {
    NetConf::read(text.as_bytes()).map_err(|rejection| rejection.error)
}

#[test]
fn the_plain_configuration() {
    let conf = parse(r#"{"cniVersion":"1.0.0","name":"pods","type":"tartan-cni"}"#).unwrap();
    assert_eq!(conf.version, Version::V1_0_0);
    assert_eq!(conf.name, "pods");
    assert_eq!(conf.root, PathBuf::from("/"));
    assert_eq!(conf.mtu, None);
    conf.check_for_add().unwrap();
}

#[test]
fn capitals_nulls_floats_duplicates_and_strangers_are_read_as_go_reads_them() {
    let conf = parse(
        r#"{"CNIVersion":"0.4.0","Name":"a","name":"b","ROOT":"/srv/n1","Mtu":1.4e3,
            "prevResult":null,"ipam":{},"dns":null,"capabilities":{"ips":true},"x":[1],
            "runtimeConfig":{"ips":[],"Bandwidth":{"IngressRate":0},"portMappings":[{"HostPort":1}]},
            "args":{"cni":{"ips":null}}}"#,
    )
    .unwrap();
    assert_eq!(conf.version, Version::V0_4_0);
    assert_eq!(conf.name, "b");
    assert_eq!(conf.root, PathBuf::from("/srv/n1"));
    assert_eq!(conf.mtu, Some(1400));
    conf.check_for_add().unwrap();
    let twice = r#"{"name":"a","cniVersion":"1.0.0","name":"c"}"#;
    assert_eq!(parse(twice).unwrap().name, "c");
}

#[test]
fn every_version_spoken_is_parsed_and_no_other() {
    for name in Version::names() {
        let text = format!(r#"{{"cniVersion":"{name}","name":"n"}}"#);
        assert_eq!(parse(&text).unwrap().version.name(), name);
    }
    for version in [r#""0.2.0""#, r#""1.2.0""#, r#""v1.0.0""#, "null", "1"] {
        let text = format!(r#"{{"cniVersion":{version},"name":"n"}}"#);
        assert!(
            matches!(parse(&text), Err(Error::Version { .. })),
            "{version}"
        );
    }
    let error = parse(r#"{"cniVersion":"9.0.0","name":"n"}"#).unwrap_err();
    assert_eq!(
        error.to_string(),
        "incompatible CNI versions: config is \"9.0.0\", plugin supports \
         [\"0.3.0\", \"0.3.1\", \"0.4.0\", \"1.0.0\", \"1.1.0\"]"
    );
}

#[test]
fn each_wrong_input_is_its_own_error() {
    assert!(matches!(parse(""), Err(Error::Decode { .. })));
    assert!(matches!(parse("[]"), Err(Error::Decode { .. })));
    assert!(matches!(parse("{} {}"), Err(Error::Decode { .. })));
    assert!(matches!(
        parse(r#"{"cniVersion":"1.0.0"}"#),
        Err(Error::NoName)
    ));
    for name in ["a/b", "-a", "ä", "a b"] {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"{name}"}}"#);
        assert!(matches!(parse(&text), Err(Error::Name { .. })), "{name}");
    }
    let long = " ".repeat(LONGEST as usize + 1);
    assert!(matches!(parse(&long), Err(Error::TooLong)));
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("broken"))
        }
    }
    assert!(matches!(
        NetConf::read(Broken).map_err(|rejection| rejection.error),
        Err(Error::Read { .. })
    ));
}

#[test]
fn impossible_values_are_named_with_their_key_and_do_not_stop_del() {
    for field in [
        r#""root":"srv""#,
        r#""root":1"#,
        r#""mtu":575"#,
        r#""mtu":65536"#,
        r#""mtu":1400.5"#,
        r#""mtu":-1"#,
        r#""mtu":"1400""#,
    ] {
        let text = format!(r#"{{"cniVersion":"1.1.0","name":"n",{field}}}"#);
        let conf = parse(&text).unwrap();
        assert_eq!((conf.root.to_str(), conf.mtu), (Some("/"), None));
        conf.check_for_status().unwrap_err();
        let error = conf.check_for_add().unwrap_err();
        let key = field.split('"').nth(1).unwrap();
        assert!(error.to_string().contains(key), "{error}");
    }
}

#[test]
fn a_rejection_is_told_in_the_version_of_the_request() {
    let version = |text: &str| NetConf::read(text.as_bytes()).unwrap_err().version;
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

#[test]
fn what_add_does_not_offer_is_refused_by_name_and_does_not_stop_del() {
    for (field, named) in [
        (r#""prevResult":{"cniVersion":"1.0.0"}"#, "prevResult"),
        (r#""ipam":{"type":"host-local"}"#, "ipam"),
        (r#""runtimeConfig":{"ips":["10.0.0.5"]}"#, "ips"),
        (r#""runtimeConfig":{"Mac":"02:00:00:00:00:01"}"#, "mac"),
        (
            r#""runtimeConfig":{"ipRanges":[[{"Subnet":"10.0.0.0/24"}]]}"#,
            "ipRanges",
        ),
        (
            r#""runtimeConfig":{"bandwidth":{"ingressRate":1}}"#,
            "bandwidth",
        ),
        (r#""args":{"cni":{"ips":["10.0.0.5"]}}"#, "args.cni.ips"),
        (
            r#""args":{"cni":{"mac":"02:00:00:00:00:01"}}"#,
            "args.cni.mac",
        ),
    ] {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"n",{field}}}"#);
        let error = parse(&text).unwrap().check_for_add().unwrap_err();
        assert!(error.to_string().contains(named), "{error}");
    }
}

#[test]
fn status_needs_the_version_that_brought_it() {
    let at = |version: &str| {
        parse(&format!(r#"{{"cniVersion":"{version}","name":"n"}}"#))
            .unwrap()
            .check_for_status()
    };
    at("1.1.0").unwrap();
    assert!(matches!(at("1.0.0"), Err(Error::TooOld { .. })));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = NetConf::read(bytes.as_slice());
    }

    #[test]
    fn no_damage_makes_it_panic(at: prop::sample::Index, byte: u8) {
        let mut bytes = br#"{"cniVersion":"1.0.0","name":"pods","mtu":1400,"root":"/srv",
            "runtimeConfig":{"ips":["10.0.0.5"]},"dns":{}}"#
            .to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(conf) = NetConf::read(bytes.as_slice()) {
            let _ = conf.check_for_add();
        }
    }
}
