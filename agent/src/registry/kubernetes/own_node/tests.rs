use super::*;

const V4: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
const DUAL: &str = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48","Backend":{"Type":"vxlan"}}"#;
const V6: &str = r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:244::/48","Backend":{"Type":"vxlan"}}"#;

fn names() -> Names {
    Names::below("flannel.alpha.coreos.com")
}

fn announcement(net_conf: &str) -> Announcement {
    let net_conf = NetConf::parse(net_conf).unwrap();
    Announcement {
        node_name: "n1".to_owned(),
        public: match net_conf.ipv6_network {
            None => PublicAddresses::V4("192.0.2.1".parse().unwrap()),
            Some(_) => {
                PublicAddresses::Dual("192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap())
            }
        },
        vtep_mac: PerFamily {
            v4: "02:00:00:00:00:04".parse().unwrap(),
            v6: "02:00:00:00:00:06".parse().unwrap(),
        },
        previous: Vec::new(),
        net_conf,
        forwarding: true,
    }
}

fn node(pod_cidrs: &[&str], annotations: &[(String, String)]) -> Node {
    let text = json!({
        "metadata": {"name": "n1", "uid": "u1", "resourceVersion": "1"},
        "spec": {"podCIDRs": pod_cidrs},
    });
    let mut node: Node = serde_json::from_value(text).unwrap();
    let pairs = annotations.iter();
    let pairs = pairs.map(|(name, value)| (name.as_str(), value.as_str()));
    node.metadata.annotations = Annotations::of(pairs);
    node
}

fn annotated(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let full = |(name, value): &(&str, &str)| {
        (
            format!("flannel.alpha.coreos.com/{name}"),
            (*value).to_owned(),
        )
    };
    pairs.iter().map(full).collect()
}

fn first_plan(node: &Node, net_conf: &str) -> Result<Plan, OwnNodeFault> {
    let now = Instant::now();
    OwnNode::default().plan(node, &names(), &announcement(net_conf), now)
}

/// What a Node that has these annotations has after `plan` is written.
fn after(annotations: &[(String, String)], plan: &Plan) -> Vec<(String, String)> {
    let kept = annotations.iter();
    let kept = kept.filter(|(name, _)| !plan.differing.iter().any(|(other, _)| other == name));
    kept.chain(&plan.differing).cloned().collect()
}

#[test]
fn a_node_without_annotations_gets_all_of_them() {
    let plan = first_plan(&node(&["10.244.1.0/24"], &[]), V4).unwrap();
    let expected = annotated(&[
        ("backend-type", "vxlan"),
        ("backend-data", r#"{"VNI":1,"VtepMAC":"02:00:00:00:00:04"}"#),
        ("public-ip", "192.0.2.1"),
        ("kube-subnet-manager", "true"),
    ]);
    assert_eq!(plan.differing, expected);
    assert!(!plan.by_others);
    assert_eq!(plan.lease.subnets, ["10.244.1.0/24".parse().unwrap()]);
}

#[test]
fn only_what_differs_is_written() {
    let plan = first_plan(&node(&["10.244.1.0/24"], &[]), V4).unwrap();
    let mut written = plan.differing.clone();
    let complete = node(&["10.244.1.0/24"], &written);
    assert_eq!(first_plan(&complete, V4).unwrap().differing, []);
    written[2].1 = "192.0.2.9".to_owned();
    let plan = first_plan(&node(&["10.244.1.0/24"], &written), V4).unwrap();
    assert_eq!(plan.differing, annotated(&[("public-ip", "192.0.2.1")]));
}

#[test]
fn the_macs_that_flannel_left_are_kept() {
    let left = annotated(&[
        ("backend-data", r#"{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}"#),
        (
            "backend-v6-data",
            r#"{"VNI":1,"VtepMAC":"22:c6:65:89:b4:e4"}"#,
        ),
    ]);
    let plan = first_plan(&node(&["10.244.1.0/24"], &left), DUAL).unwrap();
    let mac = plan.lease.vtep_mac;
    assert_eq!(mac.v4.to_string(), "12:c6:65:89:b4:e3");
    assert_eq!(mac.v6.to_string(), "22:c6:65:89:b4:e4");
    let is_data = |(name, _): &(String, String)| name.ends_with("-data");
    assert!(!plan.differing.iter().any(is_data), "{plan:?}");
}

/// flannel reads `<prefix>/backend-data` whatever the prefix ends in.
#[test]
fn a_mac_under_a_prefix_with_hyphen_is_kept() {
    let left = [(
        "example.com/pods-backend-data".to_owned(),
        r#"{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}"#.to_owned(),
    )];
    let names = Names::below("example.com/pods-");
    let node = node(&["10.244.1.0/24"], &left);
    let plan = OwnNode::default().plan(&node, &names, &announcement(V4), Instant::now());
    let mac = plan.unwrap().lease.vtep_mac;
    assert_eq!(mac.v4.to_string(), "12:c6:65:89:b4:e3");
}

#[test]
fn a_mac_that_no_station_can_have_is_not_kept() {
    for bad in ["01:00:5e:00:00:01", "00:00:00:00:00:00", "x"] {
        let data = format!(r#"{{"VNI":1,"VtepMAC":"{bad}"}}"#);
        let left = annotated(&[("backend-data", &data)]);
        let plan = first_plan(&node(&["10.244.1.0/24"], &left), V4).unwrap();
        assert_eq!(plan.lease.vtep_mac.v4.to_string(), "02:00:00:00:00:04");
    }
}

#[test]
fn an_overwrite_is_published_and_followed() {
    let left = annotated(&[
        ("public-ip-overwrite", "198.51.100.1"),
        ("public-ipv6-overwrite", "2001:db8:ff::1"),
    ]);
    let both = ["10.244.1.0/24", "fd00:244:0:1::/64"];
    let plan = first_plan(&node(&both, &left), DUAL).unwrap();
    assert_eq!(
        plan.lease.public,
        PublicAddresses::Dual(
            "198.51.100.1".parse().unwrap(),
            "2001:db8:ff::1".parse().unwrap()
        )
    );
    let public = annotated(&[("public-ip", "198.51.100.1")]).remove(0);
    assert!(plan.differing.contains(&public));
    let bad = annotated(&[("public-ip-overwrite", "nat.example.com")]);
    let fault = first_plan(&node(&both, &bad), DUAL).unwrap_err();
    assert!(fault.to_string().contains("public-ip-overwrite"), "{fault}");
    // The last one that could be read stays in force.
    let (mut own, now) = (OwnNode::default(), Instant::now());
    let good = annotated(&[("public-ip-overwrite", "198.51.100.1")]);
    let mut plan = |annotations: &[(String, String)]| {
        let node = node(&both, annotations);
        own.plan(&node, &names(), &announcement(DUAL), now).unwrap()
    };
    let (before, after) = (plan(&good), plan(&bad));
    assert_eq!((before.fault, after.fault), (None, Some(fault)));
    assert_eq!(before.lease, after.lease);
}

#[test]
fn a_pod_cidr_that_cannot_be_used_names_the_remedy() {
    let fault = |cidrs: &[&str], net_conf| {
        let fault = first_plan(&node(cidrs, &[]), net_conf);
        fault.unwrap_err().to_string()
    };
    let missing = fault(&[], V4);
    assert!(missing.contains("--allocate-node-cidrs"), "{missing}");
    assert!(missing.contains("--pod-network-cidr"), "{missing}");
    let outside = fault(&["10.42.1.0/24"], V4);
    assert!(outside.contains("10.42.1.0/24"), "{outside}");
    assert!(outside.contains("Network 10.244.0.0/16"), "{outside}");
    let v6 = fault(&["10.244.1.0/24", "fd00:244:0:1::/64"], V4);
    assert!(v6.contains("IPv6Network"), "{v6}");
    let v4 = fault(&["10.244.1.0/24"], V6);
    assert!(v4.contains("EnableIPv4"), "{v4}");
    let both = node(&["10.244.1.0/24", "fd00:244:0:1::/64"], &[]);
    assert_eq!(first_plan(&both, V6).unwrap().lease.subnets.len(), 1);
}

/// Another program writes its own MAC each time; ours is written back three times, then the record is refused, and after
/// ten minutes it is written again.
#[test]
fn changes_of_others_are_written_back_three_times_in_ten_minutes() {
    let (mut own, announced) = (OwnNode::default(), announcement(V4));
    let mut now = Instant::now();
    let mut annotations = Vec::new();
    let theirs = r#"{"VNI":1,"VtepMAC":"aa:00:00:00:00:01"}"#;
    let step = |own: &mut OwnNode, annotations: &mut Vec<(String, String)>, now| {
        let plan = own.plan(
            &node(&["10.244.1.0/24"], annotations),
            &names(),
            &announced,
            now,
        );
        let plan = plan.unwrap();
        if let Some(fault) = plan.fault {
            assert_eq!(plan.differing, []);
            return Err(fault);
        }
        own.written(&plan, now);
        *annotations = after(annotations, &plan);
        Ok(plan.by_others)
    };
    let intrude = |annotations: &mut Vec<(String, String)>| {
        for (name, value) in annotations.iter_mut() {
            if name.ends_with("backend-data") {
                theirs.clone_into(value);
            }
        }
    };
    assert_eq!(step(&mut own, &mut annotations, now), Ok(false));
    for _ in 0..MOST_WRITE_BACKS {
        now += Duration::from_secs(60);
        intrude(&mut annotations);
        assert_eq!(step(&mut own, &mut annotations, now), Ok(true));
        assert!(
            annotations
                .iter()
                .any(|(_, value)| value.contains("02:00:00:00:00:04"))
        );
    }
    intrude(&mut annotations);
    let fault = step(&mut own, &mut annotations, now).unwrap_err();
    assert!(fault.to_string().contains("backend-data"), "{fault}");
    assert_eq!(
        own.next_write_back(),
        Some(now - Duration::from_secs(120) + CONTEST)
    );
    now += CONTEST;
    assert_eq!(step(&mut own, &mut annotations, now), Ok(true));
}

#[test]
fn our_own_changes_are_not_those_of_others() {
    let (mut own, mut announced) = (OwnNode::default(), announcement(V4));
    let (now, mut annotations) = (Instant::now(), Vec::new());
    for last in 1..10 {
        announced.public = PublicAddresses::V4([192, 0, 2, last].into());
        let node = node(&["10.244.1.0/24"], &annotations);
        let plan = own.plan(&node, &names(), &announced, now).unwrap();
        assert!(!plan.by_others, "{last}");
        own.written(&plan, now);
        annotations = after(&annotations, &plan);
    }
    // A Node that was deleted and registered again has none.
    let mut anew = node(&["10.244.1.0/24"], &[]);
    anew.metadata.uid = "u2".to_owned();
    let plan = own.plan(&anew, &names(), &announced, now).unwrap();
    assert!(!plan.by_others);
}

#[test]
fn the_patches_are_flannels() {
    let patch = annotation_patch(&annotated(&[("public-ip", "192.0.2.1")]));
    assert_eq!(
        patch.to_string(),
        r#"{"metadata":{"annotations":{"flannel.alpha.coreos.com/public-ip":"192.0.2.1"}}}"#
    );
    let condition = condition_patch("2026-01-02T03:04:05Z");
    let condition = &condition["status"]["conditions"][0];
    assert_eq!(condition["reason"], "FlannelIsUp");
    assert_eq!(condition["message"], "Flannel is running on this node");
}
