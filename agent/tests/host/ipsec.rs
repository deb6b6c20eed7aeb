//! IPsec policies, set with ip(8).

use tartan::host::has_ipsec_policies;

use super::namespace::Namespace;

#[test]
fn policies_are_seen_in_every_direction() {
    let namespace = Namespace::new();
    let asked = || namespace.inside(|| async { has_ipsec_policies().unwrap() });
    assert!(!asked());
    for direction in ["in", "out", "fwd"] {
        let policy = format!("src 192.0.2.1/32 dst 192.0.2.2/32 dir {direction}");
        namespace.ip(&format!(
            "xfrm policy add {policy} tmpl proto esp mode transport"
        ));
        assert!(asked(), "{direction}");
        namespace.ip(&format!("xfrm policy delete {policy}"));
        assert!(!asked(), "{direction}");
    }
    // What no policy is for.
    for direction in ["in", "out", "fwd"] {
        namespace.ip(&format!("xfrm policy setdefault {direction} block"));
        assert!(asked(), "{direction}");
        namespace.ip(&format!("xfrm policy setdefault {direction} accept"));
        assert!(!asked(), "{direction}");
    }
}
