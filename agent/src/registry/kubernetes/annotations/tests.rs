use proptest::prelude::*;

use super::*;

const V4: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
const DUAL: &str = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48","Backend":{"Type":"vxlan"}}"#;
const V6: &str = r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:244::/48","Backend":{"Type":"vxlan"}}"#;
const UDP: &str = r#"{"Network":"10.244.0.0/16"}"#;

fn net_conf(text: &str) -> NetConf {
    NetConf::parse(text).unwrap()
}

fn names() -> Names {
    Names::below("flannel.alpha.coreos.com")
}

fn mac_of(text: &str) -> Mac {
    text.parse().unwrap()
}

/// Annotations under flannel's default prefix.
fn under_default(pairs: &[(&str, &str)]) -> Annotations {
    let full: Vec<_> = pairs
        .iter()
        .map(|(name, value)| (format!("flannel.alpha.coreos.com/{name}"), *value))
        .collect();
    Annotations::of(full.iter().map(|(name, value)| (name.as_str(), *value)))
}

fn vxlan_node() -> Vec<(&'static str, &'static str)> {
    vec![
        ("kube-subnet-manager", "true"),
        ("backend-type", "vxlan"),
        ("backend-data", r#"{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}"#),
        ("public-ip", "192.0.2.1"),
    ]
}

/// The table of flannel's `annotations_test.go`.
#[test]
fn prefixes_are_joined_as_in_flannel() {
    for (prefix, expected) in [
        (
            "flannel.alpha.coreos.com",
            "flannel.alpha.coreos.com/backend-type",
        ),
        (
            "flannel.alpha.coreos.com/",
            "flannel.alpha.coreos.com/backend-type",
        ),
        (
            "flannel.alpha.coreos.com/prefix",
            "flannel.alpha.coreos.com/prefix-backend-type",
        ),
        (
            "flannel.alpha.coreos.com/prefix-",
            "flannel.alpha.coreos.com/prefix-backend-type",
        ),
        ("org.com", "org.com/backend-type"),
        ("org9.com", "org9.com/backend-type"),
        ("org.com/9", "org.com/9-backend-type"),
    ] {
        assert_eq!(Names::below(prefix).backend_type, expected);
        assert!(may_be_ours(expected), "{expected}");
    }
}

#[test]
fn only_flannels_annotations_are_kept() {
    for other in [
        "kubeadm.alpha.kubernetes.io/cri-socket",
        "node.alpha.kubernetes.io/ttl",
        "example.com/xpublic-ip",
        "public-ip",
    ] {
        assert!(!may_be_ours(other), "{other}");
    }
    assert!(may_be_ours("example.com/a-public-ip"));
}

#[test]
fn a_vxlan_node_is_read() {
    let published = read(&under_default(&vxlan_node()), &names(), &net_conf(V4));
    let mac = mac_of("12:c6:65:89:b4:e3");
    let expected = Published {
        public: PublicAddresses::V4("192.0.2.1".parse().unwrap()),
        format: Format::Vxlan,
        vtep_mac: Some(PerFamily { v4: mac, v6: mac }),
    };
    assert_eq!(published, Ok(Some(expected)));
}

#[test]
fn a_udp_node_is_read() {
    let annotations = under_default(&[
        ("kube-subnet-manager", "true"),
        ("backend-type", ""),
        ("backend-data", "null"),
        ("public-ip", "192.0.2.1"),
    ]);
    let published = read(&annotations, &names(), &net_conf(UDP)).unwrap();
    let published = published.unwrap();
    assert_eq!((published.format, published.vtep_mac), (Format::Udp, None));
}

#[test]
fn a_node_that_is_not_managed_is_passed_over_silently() {
    let mut pairs = vxlan_node();
    for value in ["false", "", "True"] {
        pairs[0].1 = value;
        let read = read(&under_default(&pairs), &names(), &net_conf(V4));
        assert_eq!(read, Ok(None), "{value:?}");
    }
    assert_eq!(
        read(&Annotations::default(), &names(), &net_conf(V4)),
        Ok(None)
    );
    let other = Names::below("flannel.alpha.coreos.com/other");
    assert_eq!(
        read(&under_default(&vxlan_node()), &other, &net_conf(V4)),
        Ok(None)
    );
}

#[test]
fn each_family_has_its_mac_and_its_address() {
    let mut pairs = vxlan_node();
    pairs.push((
        "backend-v6-data",
        r#"{"VNI":1,"VtepMAC":"22:c6:65:89:b4:e4"}"#,
    ));
    pairs.push(("public-ipv6", "2001:db8::1"));
    let annotations = under_default(&pairs);
    let dual = read(&annotations, &names(), &net_conf(DUAL))
        .unwrap()
        .unwrap();
    let macs = dual.vtep_mac.unwrap();
    assert_eq!(macs.v4, mac_of("12:c6:65:89:b4:e3"));
    assert_eq!(macs.v6, mac_of("22:c6:65:89:b4:e4"));
    assert!(matches!(dual.public, PublicAddresses::Dual(..)));
    let v4 = read(&annotations, &names(), &net_conf(V4))
        .unwrap()
        .unwrap();
    assert!(matches!(v4.public, PublicAddresses::V4(_)), "as flannel");
    let v6 = read(&annotations, &names(), &net_conf(V6))
        .unwrap()
        .unwrap();
    assert_eq!(v6.vtep_mac.unwrap().v6, mac_of("22:c6:65:89:b4:e4"));
    assert!(matches!(v6.public, PublicAddresses::V6(_)), "as flannel");
}

#[test]
fn what_cannot_be_used_names_the_annotation_and_the_remedy() {
    let fault = |change: (&'static str, &'static str)| {
        let mut pairs = vxlan_node();
        pairs.retain(|(name, _)| *name != change.0);
        pairs.push(change);
        let fault = read(&under_default(&pairs), &names(), &net_conf(DUAL));
        fault.unwrap_err().to_string()
    };
    for (name, value, remedy) in [
        ("backend-type", "host-gw", "set Backend"),
        ("backend-type", "wireguard", "set Backend"),
        ("public-ip", "192.0.2.300", "correct or remove"),
        ("public-ip", "2001:db8::1", "correct or remove"),
        ("public-ipv6", "192.0.2.1", "correct or remove"),
        ("public-ip", "", "restart"),
        ("backend-data", "null", "restart"),
        ("backend-data", "", "restart"),
        ("backend-data", "{}", "restart"),
        ("backend-data", "[1]", "restart"),
        ("backend-data", r#"{"VNI":1,"VtepMAC":7}"#, "restart"),
        ("backend-data", r#"{"VNI":1,"VtepMAC":"12:c6"}"#, "restart"),
        ("backend-data", r#"{"VNI":1"#, "restart"),
    ] {
        let sentence = fault((name, value));
        assert!(sentence.contains(name), "{sentence}");
        assert!(sentence.contains(remedy), "{name} {value}: {sentence}");
    }
}

#[test]
fn keys_match_as_in_go() {
    let mut pairs = vxlan_node();
    pairs[2].1 = r#"{"vni":7,"vtepmac":"12:c6:65:89:b4:e3","new":1}"#;
    let published = read(&under_default(&pairs), &names(), &net_conf(V4));
    assert!(published.unwrap().is_some());
}

#[test]
fn a_long_value_is_shown_in_part() {
    let long = "x".repeat(1 << 16);
    let annotations = under_default(&[("kube-subnet-manager", "true"), ("backend-type", &long)]);
    let fault = read(&annotations, &names(), &net_conf(V4)).unwrap_err();
    assert!(fault.to_string().len() < 500, "{fault}");
}

/// What flannel v0.28 writes for each backend and family.
#[test]
fn what_is_written_is_flannels_byte_for_byte() {
    let mac = PerFamily {
        v4: mac_of("12:c6:65:89:b4:e3"),
        v6: mac_of("22:c6:65:89:b4:e4"),
    };
    let dual = PublicAddresses::Dual("192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap());
    let written = |text: &str, public| {
        let net_conf = net_conf(text);
        let format = net_conf.backend.format();
        let published = Published {
            public,
            format,
            vtep_mac: (format == Format::Vxlan).then_some(mac),
        };
        let written = write(&published, &names(), net_conf.backend.vni(), &net_conf);
        let lines: Vec<_> = written
            .iter()
            .map(|(name, value)| format!("{} {value}", name.rsplit('/').next().unwrap()))
            .collect();
        lines.join("\n")
    };
    let v4 = r#"backend-data {"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}
public-ip 192.0.2.1"#;
    let v6 = r#"backend-v6-data {"VNI":1,"VtepMAC":"22:c6:65:89:b4:e4"}
public-ipv6 2001:db8::1"#;
    let managed = "kube-subnet-manager true";
    let vxlan = "backend-type vxlan";
    assert_eq!(
        written(DUAL, dual),
        format!("{vxlan}\n{v4}\n{v6}\n{managed}")
    );
    assert_eq!(written(V4, dual), format!("{vxlan}\n{v4}\n{managed}"));
    assert_eq!(written(V6, dual), format!("{vxlan}\n{v6}\n{managed}"));
    let udp = "backend-type \nbackend-data null\npublic-ip 192.0.2.1";
    assert_eq!(written(UDP, dual), format!("{udp}\n{managed}"));
}

fn macs() -> impl Strategy<Value = PerFamily<Mac>> {
    let mac = || any::<[u8; 6]>().prop_map(Mac);
    (mac(), mac()).prop_map(|(v4, v6)| PerFamily { v4, v6 })
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        v4 in any::<Ipv4Addr>(),
        v6 in any::<Ipv6Addr>(),
        macs in macs(),
        udp in any::<bool>(),
    ) {
        let net_conf = net_conf(DUAL);
        let published = Published {
            public: if udp { PublicAddresses::V4(v4) } else { PublicAddresses::Dual(v4, v6) },
            format: if udp { Format::Udp } else { Format::Vxlan },
            vtep_mac: (!udp).then_some(macs),
        };
        let written = write(&published, &names(), net_conf.backend.vni(), &net_conf);
        let written = written.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let annotations = Annotations::of(written);
        prop_assert_eq!(read(&annotations, &names(), &net_conf), Ok(Some(published)));
    }

    #[test]
    fn no_text_makes_it_panic(
        backend in ".{0,20}",
        data in ".{0,60}",
        address in ".{0,40}",
        vxlan in any::<bool>(),
    ) {
        let backend = if vxlan { "vxlan" } else { &backend };
        let annotations = under_default(&[
            ("kube-subnet-manager", "true"),
            ("backend-type", backend),
            ("backend-data", &data),
            ("public-ip", &address),
            ("public-ipv6", &address),
        ]);
        for text in [V4, DUAL, V6, UDP] {
            let _ = read(&annotations, &names(), &net_conf(text));
        }
    }
}
