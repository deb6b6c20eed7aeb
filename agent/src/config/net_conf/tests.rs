use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> NetConf {
    NetConf::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refusal(text: &str) -> String {
    match NetConf::parse(text) {
        Ok(conf) => panic!("{text}: accepted as {conf:?}"),
        Err(error) => error.to_string(),
    }
}

fn range(len: u8, min: &str, max: &str) -> Option<SubnetRange> {
    Some(SubnetRange {
        len,
        min: min.parse().unwrap(),
        max: max.parse().unwrap(),
    })
}

/// Files used with a real flanneld v0.20.2.
#[test]
fn flannels_own_files_parse() {
    let udp = parse(
        r#"{"Network":"10.244.0.0/16","SubnetLen":24,"SubnetMin":"10.244.1.0","SubnetMax":"10.244.250.0","Backend":{"Type":"udp","Port":8285}}"#,
    );
    assert_eq!(udp.backend, Backend::Udp { port: 8285 });
    assert_eq!(udp.network, Some("10.244.0.0/16".parse().unwrap()));
    assert_eq!(udp.subnets, range(24, "10.244.1.0", "10.244.250.0"));
    let vxlan = parse(
        r#"{"Network":"10.244.0.0/16","SubnetLen":24,"SubnetMin":"10.244.1.0","SubnetMax":"10.244.250.0","Backend":{"Type":"vxlan","VNI":1}}"#,
    );
    assert_eq!(
        (vxlan.backend.vni().get(), vxlan.backend.vxlan_port()),
        (1, 8472)
    );
    assert!(udp.unknown_keys().is_empty() && vxlan.unknown_keys().is_empty());
}

/// The defaults that flannel's own unit test expects (`pkg/subnet/config_test.go`).
#[test]
fn defaults_are_flannels() {
    let v4 = parse(r#"{"network":"10.3.0.0/16"}"#);
    assert_eq!(v4.subnets, range(24, "10.3.1.0", "10.3.255.0"));
    assert_eq!(
        (v4.backend, v4.ipv6_network),
        (Backend::Udp { port: 8285 }, None)
    );
    let v6 = parse(r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fc00::/48"}"#);
    assert_eq!(
        v6.ipv6_subnets,
        range(64, "fc00:0:0:1::", "fc00:0:0:ffff::")
    );
    assert_eq!((v6.network, v6.subnets), (None, None));
    let both = parse(
        r#"{"Network":"10.3.7.0/16","EnableIPv6":true,"IPv6Network":"fc00::/60","Backend":{"Type":"VXLAN"}}"#,
    );
    assert_eq!(
        both.cluster(),
        [
            "10.3.0.0/16".parse().unwrap(),
            "fc00::/60".parse::<IpNet>().unwrap()
        ]
    );
    let vxlan = Backend::Vxlan {
        vni: encap::Vni::new(1).unwrap(),
        port: 8472,
        gbp: false,
        mtu: None,
        direct_routing: false,
    };
    assert_eq!(both.backend, vxlan);
}

#[test]
fn the_subnet_length_follows_the_network() {
    let len = |network: &str| {
        parse(&format!(r#"{{"Network":"{network}"}}"#))
            .subnets
            .unwrap()
            .len
    };
    assert_eq!(
        ["10.0.0.0/8", "10.0.0.0/22", "10.0.0.0/23", "10.0.0.0/28"].map(len),
        [24, 24, 25, 30]
    );
    let bounds = parse(r#"{"Network":"10.0.0.0/28"}"#).subnets;
    assert_eq!(bounds, range(30, "10.0.0.4", "10.0.0.12"));
    assert_eq!(
        parse(r#"{"Network":"223.0.0.0/8"}"#).subnets,
        range(24, "223.0.1.0", "223.255.255.0")
    );
}

#[test]
fn a_vxlan_backend_is_read_in_full() {
    let conf = parse(
        r#"{"NETWORK":"10.3.0.0/16","backend":{"type":"Vxlan","vni":77,"PORT":4789,"Mtu":1400,"gbp":true,"LEARNING":true,"directrouting":true}}"#,
    );
    let vxlan = Backend::Vxlan {
        vni: encap::Vni::new(77).unwrap(),
        port: 4789,
        gbp: true,
        mtu: Some(1400),
        direct_routing: true,
    };
    assert_eq!(conf.backend, vxlan);
    assert!(conf.unknown_keys().is_empty());
    assert_eq!(
        (
            conf.backend.cap_underlay_mtu(1500),
            conf.backend.cap_underlay_mtu(1300)
        ),
        (1400, 1300)
    );
}

#[test]
fn keys_that_flannel_ignores_are_listed() {
    let conf = parse(r#"{"Network":"10.3.0.0/16","Networks":1,"Backend":{"Type":"udp","VNI":1}}"#);
    let shown: Vec<String> = conf
        .unknown_keys()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        shown,
        ["Networks (did you mean \"Network\"?)", "Backend.VNI"]
    );
    let vxlan = parse(
        r#"{"Network":"10.3.0.0/16","subnetln":25,"Backend":{"Type":"vxlan","DirectRoute":true,"x":1}}"#,
    );
    let nearest: Vec<_> = vxlan.unknown_keys().iter().map(|key| key.nearest).collect();
    assert_eq!(nearest, [Some("SubnetLen"), Some("DirectRouting"), None]);
}

#[test]
fn the_last_of_several_keys_counts() {
    let conf = parse(
        r#"{"Network":"10.1.0.0/16","network":"10.2.0.0/16","Backend":{"Type":"udp"},"BACKEND":{"Type":"vxlan"}}"#,
    );
    assert_eq!(conf.network, Some("10.2.0.0/16".parse().unwrap()));
    assert_eq!(conf.backend.format(), encap::Format::Vxlan);
}

#[test]
fn every_refusal_names_its_remedy() {
    let network = |rest: &str| format!(r#"{{"Network":"10.3.0.0/16",{rest}}}"#);
    let backend = |rest: &str| network(&format!(r#""Backend":{{{rest}}}"#));
    let cases = [
        ("{".to_owned(), "is not JSON"),
        ("[]".to_owned(), "one JSON object"),
        ("null".to_owned(), "one JSON object"),
        (
            "{}".to_owned(),
            "please define a correct Network parameter in the flannel config",
        ),
        (
            r#"{"Network":"0.0.0.0/0"}"#.to_owned(),
            "please define a correct Network parameter",
        ),
        (
            r#"{"Network":"10.3.0.0"}"#.to_owned(),
            "invalid CIDR address: \"10.3.0.0\"",
        ),
        (
            r#"{"Network":"10.3.0.0/+16"}"#.to_owned(),
            "invalid CIDR address",
        ),
        (
            r#"{"Network":"10.3.0.0/33"}"#.to_owned(),
            "invalid CIDR address",
        ),
        (
            r#"{"Network":"fc00::/48"}"#.to_owned(),
            "invalid CIDR address",
        ),
        (
            r#"{"Network":10}"#.to_owned(),
            "value of Network must be text",
        ),
        (
            r#"{"Network":"127.0.0.0/8"}"#.to_owned(),
            "overlaps 127.0.0.0/8",
        ),
        (
            r#"{"Network":"128.0.0.0/1"}"#.to_owned(),
            "overlaps 169.254.0.0/16",
        ),
        (network(r#""EnableIPv4":false"#), "none defined stack"),
        (
            network(r#""EnableIPv4":"no""#),
            "value of EnableIPv4 must be true or false",
        ),
        (
            network(r#""EnableIPv6":true"#),
            "please define a correct IPv6Network parameter",
        ),
        (
            network(r#""EnableIPv6":true,"IPv6Network":"10.0.0.0/8""#),
            "IPv6Network: invalid CIDR address",
        ),
        (
            network(r#""EnableIPv6":true,"IPv6Network":"fe80::/64""#),
            "overlaps fe80::/10",
        ),
        (
            network(r#""EnableIPv6":true,"IPv6Network":"fc00::/125""#),
            "Minimum useful network prefix is /124",
        ),
        (
            network(r#""EnableIPv6":true,"IPv6Network":"fc00::/64","IPv6SubnetLen":127"#),
            "less than /127",
        ),
        (
            r#"{"Network":"10.0.0.0/29"}"#.to_owned(),
            "Network is too small. Minimum useful network prefix is /28",
        ),
        (
            network(r#""SubnetLen":31"#),
            "SubnetLen must be less than /31",
        ),
        (
            network(r#""SubnetLen":-1"#),
            "value of SubnetLen must be a whole number from 0",
        ),
        (
            network(r#""SubnetLen":24.0"#),
            "value of SubnetLen must be a whole number",
        ),
        (
            network(r#""SubnetLen":17"#),
            "at least four subnets: SubnetLen must be at least 18",
        ),
        (
            network(r#""SubnetMin":"10.4.0.0""#),
            "SubnetMin is not in the range of the Network",
        ),
        (
            network(r#""SubnetMax":"10.4.0.0""#),
            "SubnetMax is not in the range of the Network",
        ),
        (
            network(r#""SubnetMin":"10.3.1.7""#),
            "SubnetMin is not on a SubnetLen boundary: 10.3.1.7",
        ),
        (
            network(r#""SubnetMax":"10.3.9.128""#),
            "SubnetMax is not on a SubnetLen boundary: 10.3.9.128",
        ),
        (
            network(r#""SubnetMin":"10.3.1.0-hi""#),
            "invalid IP address",
        ),
        (
            network(r#""Backend":"vxlan""#),
            "value of Backend must be an object",
        ),
        (network(r#""Backend":{}"#), "unknown backend type: ;"),
        (network(r#""Backend":null"#), "unknown backend type: ;"),
        (
            backend(r#""Type":"host-gw""#),
            "unknown backend type: host-gw; Tartan supports udp and vxlan",
        ),
        (backend(r#""Type":7"#), "value of Type must be text"),
        (
            backend(r#""Type":"udp","Port":0"#),
            "Port is 0, but must be 1 to 65535",
        ),
        (backend(r#""Type":"udp","Port":65536"#), "Port is 65536"),
        (backend(r#""Type":"vxlan","Port":-1"#), "Port is -1"),
        (
            backend(r#""Type":"vxlan","VNI":16777216"#),
            "VNI is 16777216, but must be 0 to 16777215",
        ),
        (
            backend(r#""Type":"vxlan","MTU":600"#),
            "MTU is 600, but must be 626 to 65535",
        ),
        (
            backend(r#""Type":"vxlan","GBP":1"#),
            "value of GBP must be true or false",
        ),
        (
            backend(r#""Type":"vxlan","Learning":1"#),
            "value of Learning must be true or false",
        ),
        (
            backend(r#""Type":"vxlan","DirectRouting":"yes""#),
            "value of DirectRouting must be true or false",
        ),
    ];
    for (text, expected) in cases {
        let message = refusal(&text);
        assert!(message.contains(expected), "{text}: {message}");
    }
}

/// Text close enough to the format to reach every branch.
fn nearly() -> impl Strategy<Value = String> {
    let key = prop::sample::select(KEYS.to_vec());
    let value = prop_oneof![
        "(10\\.[0-9]{1,3}\\.0\\.0|fc00::)(/[0-9]{1,3})?".prop_map(|text| format!("{text:?}")),
        any::<i64>().prop_map(|number| number.to_string()),
        (0..200i64).prop_map(|number| number.to_string()),
        prop::sample::select(vec!["null", "true", "false", "{}", "[]", "\"udp\"", "1.5"])
            .prop_map(str::to_owned),
        (
            prop::sample::select(vec!["udp", "vxlan", "VXLAN", ""]),
            -5..70_000i64
        )
            .prop_map(|(kind, n)| format!(r#"{{"Type":"{kind}","Port":{n},"VNI":{n},"MTU":{n}}}"#)),
    ];
    let fields = prop::collection::vec((key, value), 0..8);
    fields.prop_map(|fields| {
        let fields: Vec<String> = fields
            .iter()
            .map(|(key, value)| format!("\"{key}\":{value}"))
            .collect();
        format!("{{{}}}", fields.join(","))
    })
}

proptest! {
    #[test]
    fn no_text_panics(text in any::<String>()) {
        let _ = NetConf::parse(&text);
    }

    #[test]
    fn a_parsed_configuration_is_consistent(text in nearly()) {
        if let Ok(conf) = NetConf::parse(&text) {
            prop_assert!(!conf.cluster().is_empty());
            prop_assert_eq!(conf.network.is_some(), conf.subnets.is_some());
            prop_assert_eq!(conf.ipv6_network.is_some(), conf.ipv6_subnets.is_some());
            for (network, range) in conf.cluster().iter().zip(conf.subnets.iter().chain(&conf.ipv6_subnets)) {
                for base in [range.min, range.max] {
                    let subnet = IpNet::new(base, range.len).unwrap();
                    prop_assert!(network.contains(&subnet));
                    prop_assert_eq!(subnet.network(), base);
                }
            }
            prop_assert!(conf.backend.udp_port() > 0 && conf.backend.vxlan_port() > 0);
        }
    }
}
