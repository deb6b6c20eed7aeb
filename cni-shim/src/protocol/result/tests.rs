use super::*;
use proptest::prelude::*;

fn both() -> CniResult {
    let ip = |address: &str, gateway: &str| Ip {
        address: address.parse().unwrap(),
        gateway: Some(gateway.parse().unwrap()),
        interface: Some(1),
    };
    CniResult {
        interfaces: vec![
            Interface {
                name: "tt0123456789".to_owned(),
                mac: Some("ee:ee:ee:ee:ee:ee".to_owned()),
                mtu: Some(1450),
                ..Interface::default()
            },
            Interface {
                name: "eth0".to_owned(),
                mac: Some("02:00:00:00:00:01".to_owned()),
                sandbox: Some("/run/netns/x".to_owned()),
                mtu: Some(1450),
                ..Interface::default()
            },
        ],
        ips: vec![
            ip("10.244.1.2/32", "169.254.1.1"),
            ip("fd00::2/128", "fe80::1"),
        ],
        routes: ["169.254.1.1", "fe80::1"]
            .map(|gateway| Route::default_by(gateway.parse().unwrap()))
            .to_vec(),
        dns: Dns {
            nameservers: vec!["10.0.0.10".to_owned()],
            search: vec!["cluster.local".to_owned()],
            ..Dns::default()
        },
    }
}

/// Line A1 of the checklist: the whole of each form, byte for byte but for order.
#[test]
fn a1_every_version_in_full() {
    let dns = json!({"nameservers": ["10.0.0.10"], "search": ["cluster.local"]});
    let routes = json!([
        {"dst": "0.0.0.0/0", "gw": "169.254.1.1"},
        {"dst": "::/0", "gw": "fe80::1"},
    ]);
    let interfaces = json!([
        {"name": "tt0123456789", "mac": "ee:ee:ee:ee:ee:ee"},
        {"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/x"},
    ]);
    let ips = json!([
        {"address": "10.244.1.2/32", "gateway": "169.254.1.1", "interface": 1},
        {"address": "fd00::2/128", "gateway": "fe80::1", "interface": 1},
    ]);
    for version in Version::ALL {
        let expected = match version {
            Version::V0_1_0 | Version::V0_2_0 => json!({
                "cniVersion": version.name(),
                "ip4": {"ip": "10.244.1.2/32", "gateway": "169.254.1.1", "routes": [routes[0]]},
                "ip6": {"ip": "fd00::2/128", "gateway": "fe80::1", "routes": [routes[1]]},
                "dns": dns,
            }),
            _ => {
                let (mut interfaces, mut ips) = (interfaces.clone(), ips.clone());
                if version <= Version::V0_4_0 {
                    ips[0]["version"] = json!("4");
                    ips[1]["version"] = json!("6");
                }
                if version == Version::V1_1_0 {
                    interfaces[0]["mtu"] = json!(1450);
                    interfaces[1]["mtu"] = json!(1450);
                }
                json!({
                    "cniVersion": version.name(),
                    "interfaces": interfaces, "ips": ips, "routes": routes, "dns": dns,
                })
            }
        };
        assert_eq!(both().to_json(version).unwrap(), expected);
    }
}

fn read(value: &Value, assumed: Version) -> Result<CniResult, Error> {
    CniResult::parse(&Json::parse(value.to_string().as_bytes()).unwrap(), assumed)
}

#[test]
fn every_version_is_read_back_as_far_as_it_says() {
    for version in Version::ALL {
        let mut expected = both();
        if version <= Version::V0_2_0 {
            expected.interfaces.clear();
            expected.ips.iter_mut().for_each(|ip| ip.interface = None);
        }
        if version < Version::V1_1_0 {
            expected.interfaces.iter_mut().for_each(|i| i.mtu = None);
        }
        let mut written = both().to_json(version).unwrap();
        assert_eq!(read(&written, Version::NEWEST).unwrap(), expected);
        // Without a version it is of the configuration's.
        written.as_object_mut().unwrap().remove("cniVersion");
        assert_eq!(read(&written, version).unwrap(), expected);
    }
}

#[test]
fn metrics_of_routes_are_kept_where_there_are_any() {
    let written = json!({"cniVersion": "1.1.0", "routes": [
        {"dst": "10.0.0.0/8", "gw": "", "mtu": 1400, "table": 0, "scope": 253, "priority": 1e2}]});
    let result = read(&written, Version::NEWEST).unwrap();
    let newest = result.to_json(Version::V1_1_0).unwrap();
    let expected =
        json!({"dst": "10.0.0.0/8", "mtu": 1400, "table": 0, "scope": 253, "priority": 100});
    assert_eq!(newest["routes"][0], expected);
    let older = result.to_json(Version::V1_0_0).unwrap();
    assert_eq!(older["routes"][0], json!({"dst": "10.0.0.0/8"}));
}

#[test]
fn the_oldest_need_an_address_and_take_the_first_of_a_family() {
    let mut result = both();
    result.ips.insert(1, result.ips[0].clone());
    result.ips[1].address = "10.244.1.3/32".parse().unwrap();
    let written = result.to_json(Version::V0_1_0).unwrap();
    assert_eq!(written["ip4"]["ip"], "10.244.1.2/32");
    result.ips.retain(|ip| ip.address.addr().is_ipv6());
    let written = result.to_json(Version::V0_2_0).unwrap();
    assert!(written.get("ip4").is_none() && written.get("ip6").is_some());
    result.ips.clear();
    assert_eq!(result.to_json(Version::V0_2_0), Err(Error::NoAddress));
    assert_eq!(result.to_json(Version::V0_3_0).unwrap()["ips"], json!([]));
}

#[test]
fn nulls_capitals_and_strangers_are_no_harm_and_nonsense_is_refused() {
    let written = json!({"CNIVersion": "1.0.0", "Interfaces": null, "DNS": null, "x": 1,
        "IPs": [{"Address": "10.0.0.5/24", "Gateway": null, "Interface": null}]});
    let result = read(&written, Version::V0_4_0).unwrap();
    assert_eq!(result.ips[0].address, "10.0.0.5/24".parse().unwrap());
    for (written, what) in [
        (json!([]), "text"),
        (json!({"ips": [{"address": "10.0.0.5"}]}), "ips"),
        (json!({"ips": [{}]}), "ips"),
        (json!({"ips": {}}), "ips"),
        (
            json!({"ips": [{"address": "10.0.0.5/24", "interface": -1}]}),
            "ips",
        ),
        (json!({"interfaces": [{"name": 1}]}), "interfaces"),
        (json!({"routes": [{"gw": "10.0.0.1"}]}), "routes"),
        (json!({"dns": {"nameservers": ["dns.example"]}}), "dns"),
        (json!({"cniVersion": "0.2.0", "ip4": {}}), "ip4"),
    ] {
        assert_eq!(
            read(&written, Version::V1_0_0),
            Err(Error::Malformed { what })
        );
    }
    for version in [json!("2.0.0"), json!(1)] {
        let refused = read(&json!({"cniVersion": version}), Version::V1_0_0);
        assert!(matches!(refused, Err(Error::Version { .. })), "{version}");
    }
}

proptest! {
    #[test]
    fn no_damage_makes_it_panic(
        at: prop::sample::Index, byte: u8, version in prop::sample::select(&Version::ALL),
    ) {
        let mut bytes = both().to_json(version).unwrap().to_string().into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(json) = Json::parse(&bytes)
            && let Ok(result) = CniResult::parse(&json, version)
        {
            for version in Version::ALL {
                let _ = result.to_json(version);
            }
        }
    }
}
