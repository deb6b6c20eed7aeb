//! Nodes that have no part in a family of the cluster, or none any more.

use encap::Family;
use ipnet::IpNet;

use crate::lease::Lease;

/// A family that a peer had beside the other, and has no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostFamily {
    /// The peer's name.
    pub node: String,
    /// The family.
    pub family: Family,
    /// Whether it is that of its underlay address, or of its subnets.
    pub is_of_address: bool,
}

/// What peers have lost from one list to the next, and what they had lost before and have not got back.
pub fn lost(before: &[Lease], after: &[Lease], known: &[LostFamily]) -> Vec<LostFamily> {
    let earlier: std::collections::HashMap<&str, &Lease> =
        before.iter().map(|lease| (&*lease.name, lease)).collect();
    let mut lost = Vec::new();
    for lease in after {
        let earlier = earlier.get(&*lease.name).copied();
        for is_of_address in [true, false] {
            for family in [Family::V4, Family::V6] {
                let had_both = |lease: &Lease| {
                    let each = [Family::V4, Family::V6];
                    each.iter().all(|family| has(lease, *family, is_of_address))
                };
                let missing = LostFamily {
                    node: lease.name.clone(),
                    family,
                    is_of_address,
                };
                let is_missing = !has(lease, family, is_of_address);
                if is_missing && (earlier.is_some_and(had_both) || known.contains(&missing)) {
                    lost.push(missing);
                }
            }
        }
    }
    lost
}

/// The names of nodes that have no subnet of a family that the cluster has a network of, for the first such family.
pub fn without_subnets<'a>(
    cluster: &[IpNet],
    leases: &'a [Lease],
) -> Option<(Family, Vec<&'a str>)> {
    let families = cluster.iter().map(|network| Family::of(network.addr()));
    families
        .map(|family| {
            let lacking = leases.iter().filter(|lease| !has(lease, family, false));
            (
                family,
                lacking.map(|lease| &*lease.name).collect::<Vec<_>>(),
            )
        })
        .find(|(_, lacking)| !lacking.is_empty())
}

fn has(lease: &Lease, family: Family, is_of_address: bool) -> bool {
    match is_of_address {
        true => lease.public.of(family).is_some(),
        false => {
            let mut subnets = lease.subnets.iter();
            subnets.any(|subnet| Family::of(subnet.addr()) == family)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NetConf;
    use crate::registry::parse;

    fn list(subnets: &str, public: &str) -> Vec<Lease> {
        let net_conf = NetConf::parse(
            "{\"Network\":\"10.244.0.0/16\",\"EnableIPv6\":true,\"IPv6Network\":\"fd00::/48\"}",
        );
        let text = format!("[[node]]\nname = \"n1\"\nsubnets = [{subnets}]\n{public}\n");
        parse(&text, &net_conf.unwrap()).unwrap()
    }

    #[test]
    fn a_family_is_lost_until_it_is_back() {
        let (v4, both) = ("\"10.244.1.0/24\"", "\"10.244.1.0/24\", \"fd00::/64\"");
        let public = "public-ip = \"192.0.2.1\"";
        let (one, two) = (list(v4, public), list(both, public));
        assert!(lost(&one, &one, &[]).is_empty(), "never had");
        let missing = lost(&two, &one, &[]);
        assert_eq!(missing.len(), 1);
        assert_eq!(
            (missing[0].family, missing[0].is_of_address),
            (Family::V6, false)
        );
        assert_eq!(lost(&one, &one, &missing), missing, "not back yet");
        assert!(lost(&one, &two, &missing).is_empty());
        assert!(lost(&one, &[], &missing).is_empty(), "the node is gone");
        let dual = list(v4, &format!("{public}\npublic-ipv6 = \"2001:db8::1\""));
        assert!(lost(&dual, &one, &[])[0].is_of_address);
    }
}
