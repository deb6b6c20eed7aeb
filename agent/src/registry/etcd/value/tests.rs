use proptest::prelude::*;

use super::super::key::SubnetKey;
use super::*;

fn conf(rest: &str) -> NetConf {
    NetConf::parse(&format!(r#"{{"Network":"10.244.0.0/16"{rest}}}"#)).unwrap()
}

fn parse(text: &str) -> Result<LeaseAttrs, ValueFault> {
    LeaseAttrs::parse(text.as_bytes())
}

fn lease(text: &str) -> Result<Lease, ValueFault> {
    let subnets = vec!["10.244.1.0/24".parse().unwrap()];
    parse(text)?.lease("n".to_owned(), subnets)
}

/// Keys and values that flanneld 0.20.2 wrote.
const UDP_KEYS: &str = include_str!("../../../../tests/flannel/etcd-udp.txt");
const VXLAN_KEYS: &str = include_str!("../../../../tests/flannel/etcd-vxlan.txt");

#[test]
fn what_flanneld_wrote_is_read_and_written_back_byte_for_byte() {
    for text in [UDP_KEYS, VXLAN_KEYS] {
        let lines: Vec<_> = text.lines().collect();
        let net_conf = NetConf::parse(lines[1]).unwrap();
        for pair in lines[2..].chunks(2) {
            let key = pair[0]
                .strip_prefix("/coreos.com/network/subnets/")
                .unwrap();
            let parsed: SubnetKey = key.parse().unwrap();
            assert_eq!(parsed.to_string(), key);
            let attrs = parse(pair[1]).unwrap();
            assert_eq!(attrs.render(), pair[1]);
            let lease = attrs.lease(parsed.name(), parsed.subnets()).unwrap();
            assert_eq!(lease.format, net_conf.backend.format());
            let own = LeaseAttrs::of(lease.public, lease.vtep_mac, &net_conf);
            assert_eq!(own.render(), pair[1], "a node of ours writes the same");
            assert_eq!(own, attrs);
        }
    }
}

#[test]
fn both_families_have_their_own_data() {
    let both =
        conf(r#","EnableIPv6":true,"IPv6Network":"fd00::/48","Backend":{"Type":"vxlan","VNI":7}"#);
    let public = PublicAddresses::Dual([192, 0, 2, 1].into(), "2001:db8::1".parse().unwrap());
    let macs = PerFamily {
        v4: Mac([2, 0, 0, 0, 0, 1]),
        v6: Mac([2, 0, 0, 0, 0, 2]),
    };
    let text = LeaseAttrs::of(public, macs, &both).render();
    assert_eq!(
        text,
        r#"{"PublicIP":"192.0.2.1","PublicIPv6":"2001:db8::1","BackendType":"vxlan","BackendData":{"VNI":7,"VtepMAC":"02:00:00:00:00:01"},"BackendV6Data":{"VNI":7,"VtepMAC":"02:00:00:00:00:02"}}"#
    );
    let peer = lease(
        r#"{"PublicIP":"192.0.2.1","PublicIPv6":"2001:db8::1","BackendType":"vxlan","BackendData":{"VtepMAC":"02:00:00:00:00:01"},"BackendV6Data":{"VtepMAC":"02:00:00:00:00:02"}}"#,
    );
    let PerFamily { v4, v6 } = peer.unwrap().vtep_mac;
    assert_eq!((v4, v6), (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])));
}

#[test]
fn a_node_without_ipv4_has_zeros_in_its_place() {
    let v6 = NetConf::parse(r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/48","Backend":{"Type":"vxlan"}}"#).unwrap();
    let public = PublicAddresses::V6("2001:db8::1".parse().unwrap());
    let attrs = LeaseAttrs::of(public, PerFamily::each(|_| Mac([2, 0, 0, 0, 0, 1])), &v6);
    assert_eq!(
        attrs.render(),
        r#"{"PublicIP":"0.0.0.0","PublicIPv6":"2001:db8::1","BackendType":"vxlan","BackendV6Data":{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}}"#
    );
    assert_eq!(attrs.public(), public);
    assert_eq!(attrs.vtep_mac().v6, Some(Mac([2, 0, 0, 0, 0, 1])));
    assert_eq!(attrs.vtep_mac().v4, None);
}

#[test]
fn no_backend_type_is_udp_as_is_alloc() {
    for text in [
        r#"{"PublicIP":"192.0.2.1","PublicIPv6":null}"#,
        r#"{"publicip":"192.0.2.1"}"#,
        r#"{"PublicIP":"192.0.2.1","BackendType":""}"#,
        r#"{"PublicIP":"192.0.2.1","BackendType":null,"BackendData":null}"#,
    ] {
        let lease = lease(text).unwrap();
        assert_eq!(lease.format, Format::Udp, "{text}");
        assert_eq!(lease.vtep_mac.v4.to_string(), "0a:74:c0:00:02:01");
    }
}

#[test]
fn other_backends_are_refused_by_name() {
    for kind in ["host-gw", "wireguard", "ipip", "VXLAN", "extension"] {
        let text =
            format!(r#"{{"PublicIP":"192.0.2.1","BackendType":"{kind}","BackendData":"x"}}"#);
        assert_eq!(lease(&text), Err(ValueFault::Backend(kind.to_owned())));
    }
}

#[test]
fn values_that_flannel_refuses_are_refused() {
    for text in [
        "",
        "null",
        "[]",
        "{",
        r#"{"PublicIP":null}"#,
        r#"{"PublicIP":"hi"}"#,
        r#"{"PublicIP":"2001:db8::1"}"#,
        r#"{"PublicIP":7}"#,
        r#"{"PublicIP":"192.0.2.1","PublicIPv6":"192.0.2.1"}"#,
        r#"{"PublicIP":"192.0.2.1","PublicIPv6":7}"#,
        r#"{"PublicIP":"192.0.2.1","BackendType":7}"#,
    ] {
        assert!(parse(text).is_err(), "{text}");
    }
    let long = format!(
        r#"{{"PublicIP":"192.0.2.1","x":"{}"}}"#,
        "x".repeat(LeaseAttrs::MOST_BYTES)
    );
    assert!(matches!(parse(&long), Err(ValueFault::Long)));
}

#[test]
fn a_vxlan_lease_needs_a_unicast_mac() {
    for data in [
        "null",
        "{}",
        r#"{"VtepMAC":7}"#,
        r#"{"VtepMAC":"hi"}"#,
        r#"{"VtepMAC":"00:00:00:00:00:00"}"#,
        r#"{"VtepMAC":"01:00:5e:00:00:01"}"#,
        r#""text""#,
    ] {
        let text =
            format!(r#"{{"PublicIP":"192.0.2.1","BackendType":"vxlan","BackendData":{data}}}"#);
        assert_eq!(lease(&text), Err(ValueFault::NoMac), "{data}");
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(v4 in any::<u32>(), v6 in prop::option::of(any::<u128>()), mac in any::<[u8; 6]>(), vxlan in any::<bool>()) {
        let v4 = Ipv4Addr::from_bits(v4);
        let public = match v6 {
            Some(v6) => PublicAddresses::Dual(v4, v6.into()),
            None => PublicAddresses::V4(v4),
        };
        let conf = conf(if vxlan { r#","Backend":{"Type":"vxlan"}"# } else { "" });
        let attrs = LeaseAttrs::of(public, PerFamily::each(|_| Mac(mac)), &conf);
        prop_assert_eq!(parse(&attrs.render()), Ok(attrs));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(attrs) = LeaseAttrs::parse(&bytes) {
            let _ = attrs.lease("n".to_owned(), vec![]);
        }
    }

    #[test]
    fn no_json_makes_it_panic(data in r#"(null|7|"x"|\{"VtepMAC":("02:00:00:00:00:01"|null|7)\})"#, kind in "(vxlan|udp|x)?") {
        let text = format!(r#"{{"PublicIP":"192.0.2.1","BackendType":"{kind}","BackendData":{data}}}"#);
        let _ = lease(&text);
        prop_assert_eq!(parse(&text).unwrap().render().parse::<serde_json::Value>().is_ok(), true);
    }
}

#[test]
fn of_a_backends_data_little_is_kept() {
    let zeros = vec!["0"; 900].join(",");
    let text = format!(
        r#"{{"PublicIP":"192.0.2.5","BackendType":"vxlan","BackendData":{{"a":[{zeros}],"VtepMAC":"02:00:00:00:00:05"}},"BackendV6Data":[{zeros}]}}"#
    );
    let attrs = LeaseAttrs::parse(text.as_bytes()).unwrap();
    assert!(attrs.render().len() < 200, "{}", attrs.render());
    let mac = attrs.vtep_mac().v4.map(|mac| mac.to_string());
    assert_eq!(mac.as_deref(), Some("02:00:00:00:00:05"));
}
