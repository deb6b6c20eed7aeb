//! IPsec policies, set with ip(8).

use tartan::host::{IpsecRules, read_ipsec_rules};

use super::namespace::Namespace;

#[test]
fn policies_are_seen_in_every_direction() {
    let namespace = Namespace::new();
    let asked = || namespace.inside(|| async { read_ipsec_rules().unwrap() });
    assert_eq!(asked(), None);
    for direction in ["in", "out", "fwd"] {
        let policy = format!("src 192.0.2.1/32 dst 192.0.2.2/32 dir {direction}");
        namespace.ip(&format!(
            "xfrm policy add {policy} tmpl proto esp mode transport"
        ));
        assert_eq!(asked(), Some(IpsecRules::Policies), "{direction}");
        namespace.ip(&format!("xfrm policy delete {policy}"));
        assert_eq!(asked(), None, "{direction}");
    }
    // Without a policy.
    for direction in ["in", "out", "fwd"] {
        namespace.ip(&format!("xfrm policy setdefault {direction} block"));
        assert_eq!(asked(), Some(IpsecRules::BlockByDefault), "{direction}");
        namespace.ip(&format!("xfrm policy setdefault {direction} accept"));
        assert_eq!(asked(), None, "{direction}");
    }
}
