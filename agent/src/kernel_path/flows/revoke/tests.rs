use proptest::prelude::*;

use super::super::policy::tests::facts;
use super::*;
use crate::nfnetlink::attribute::Attribute;

/// A header and attributes.
fn body(header: &[u8], attributes: &[Attribute]) -> Vec<u8> {
    let mut body = header.to_vec();
    attributes
        .iter()
        .for_each(|attribute| attribute.write(&mut body));
    body
}

fn with_index(length: usize, index: u32, flags: u32) -> Vec<u8> {
    let mut header = vec![0; length];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    if length >= 12 {
        header[8..12].copy_from_slice(&flags.to_ne_bytes());
    }
    header
}

/// The effect of an announcement that has one at most.
fn routing(kind: u16, body: &[u8], facts: &FlowFacts) -> Option<Effect> {
    let mut effects = super::routing(kind, body, facts);
    assert!(effects.len() <= 1, "{effects:?}");
    effects.pop()
}

fn pod(address: [u8; 4], ifindex: u32) -> Option<Effect> {
    let address = address.into();
    Some(Effect::Pod { address, ifindex })
}

#[test]
fn forgotten_connections_are_followed_as_long_as_a_flow_may_live() {
    let at = Duration::from_secs;
    let mut watch = Watch::open().unwrap();
    for _ in 0..2 {
        watch.follow_connections(at(20)).unwrap();
        watch.follow_connections(at(10)).unwrap();
        watch.leave_connections(at(19));
        assert_eq!(watch.followed, Some(at(20)), "the longest counts");
        watch.leave_connections(at(20));
        assert_eq!(watch.followed, None);
    }
}

#[test]
fn where_announcements_never_end_they_are_read_every_few_milliseconds() {
    let mut watch = Watch::open().unwrap();
    let polled = |watch: &Watch, now| {
        let (descriptors, pause) = watch.descriptors(now);
        (descriptors.count(), pause)
    };
    let all = polled(&watch, Duration::from_secs(1)).0;
    watch.connections_read = Duration::from_secs(1);
    let soon = Duration::from_millis(1_002);
    let (fewer, pause) = polled(&watch, soon);
    assert_eq!((fewer, pause), (all - 1, Some(Duration::from_millis(3))));
    assert_eq!(polled(&watch, Duration::from_millis(1_005)), (all, None));
}

#[test]
fn a_batch_of_another_process_ends_all_flows_and_our_own_none() {
    // Recorded from Linux 6.18: `nft add table` by process 22915.
    let recorded = [
        0, 0, 0, 3, 8, 0, 1, 0, 0, 0, 0, 3, 8, 0, 2, 0, 0, 0, 0x59, 0x83, 8, 0, 3, 0, b'n', b'f',
        b't', 0,
    ];
    let effects = |kind, body, is_own: bool| -> Vec<Effect> {
        super::rules(kind, body, |thread| (thread == 22_915) == is_own).collect()
    };
    let (all, followed) = (Effect::All(Cause::Rules), Effect::RulesFollowed(3));
    assert_eq!(effects(NEWGEN, &recorded, false), [all, followed]);
    assert_eq!(effects(NEWGEN, &recorded, true), [followed]);
    assert_eq!(effects(NEWGEN, &[], true), [all], "one that cannot be read");
    assert_eq!(
        effects(NEWGEN - 1, &recorded, false),
        [],
        "a part of a batch"
    );
}

#[test]
fn each_batch_has_the_next_generation_and_our_question_is_none() {
    let host = testbed::Namespace::new("rules");
    host.shell("nft list ruleset");
    let now = || host.inside(rules_generation).unwrap();
    let first = now();
    assert!(first != 0 && now() == first);
    host.shell("nft add table ip one");
    assert_eq!(now(), first + 1);
    let mut watch = host.inside(|| Watch::open().unwrap());
    host.shell("nft add table ip two; nft delete table ip one");
    let mut effects = vec![];
    let taken = watch.read(&facts(), Duration::ZERO, &mut |effect| effects.push(effect));
    taken.unwrap();
    let all = Effect::All(Cause::Rules);
    let followed = |batches| Effect::RulesFollowed(first + batches);
    assert_eq!(effects, [all, followed(2), all, followed(3)]);
    assert_eq!(now(), first + 3);
}

#[test]
fn a_thread_of_this_process_is_known_and_another_process_is_not() {
    assert!(is_own_thread(std::process::id()));
    let other = std::thread::spawn(|| {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        assert!(is_own_thread(u32::try_from(own).unwrap()));
    });
    other.join().unwrap();
    assert!(!is_own_thread(1));
}

#[test]
fn threads_are_known_by_number_in_the_initial_pid_namespace_alone() {
    assert!(is_initial(Some(Path::new("pid:[4026531836]"))));
    assert!(!is_initial(Some(Path::new("pid:[4026532201]"))));
    assert!(!is_initial(None), "without /proc");
}

#[test]
fn each_address_of_a_pod_counts() {
    let mut facts = facts();
    let second = Ipv4Addr::new(10, 244, 1, 9);
    let first = Ipv4Addr::new(10, 244, 1, 2);
    facts.pods.insert(second, facts.pods[&first]);
    for (kind, length) in [
        (libc::RTM_DELLINK, 16),
        (libc::RTM_NEWQDISC, TCMSG),
        (libc::RTM_NEWTFILTER, TCMSG),
    ] {
        let effects = super::routing(kind, &with_index(length, 12, 0), &facts);
        assert_eq!(effects.len(), 2, "{kind}");
        for address in [first, second] {
            let ifindex = 12;
            assert!(effects.contains(&Effect::Pod { address, ifindex }));
        }
    }
}

#[test]
fn links_of_the_kernel_path_and_lost_links_of_pods_count() {
    let facts = facts();
    let up = libc::IFF_UP as u32;
    let of = |kind, index, flags| routing(kind, &with_index(16, index, flags), &facts);
    for index in [2, 3, 4] {
        assert_eq!(
            of(libc::RTM_NEWLINK, index, up),
            Some(Effect::All(Cause::Link))
        );
    }
    assert_eq!(of(libc::RTM_DELLINK, 12, up), pod([10, 244, 1, 2], 12));
    assert_eq!(of(libc::RTM_NEWLINK, 12, 0), pod([10, 244, 1, 2], 12));
    assert_eq!(of(libc::RTM_NEWLINK, 12, up), None, "a pod's that is up");
    assert_eq!(of(libc::RTM_DELLINK, 99, 0), None, "no pod's");
    let mut of_bridge = with_index(16, 2, up);
    of_bridge[0] = libc::AF_BRIDGE as u8;
    assert_eq!(routing(libc::RTM_DELLINK, &of_bridge, &facts), None);
}

fn route_message(destination: [u8; 4], length: u8, device: u32, flags: u32) -> Vec<u8> {
    let mut header = [0; RTMSG];
    (header[0], header[1]) = (libc::AF_INET as u8, length);
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    let mut attributes = vec![Attribute::bytes(RTA_OIF, &device.to_ne_bytes())];
    if length > 0 {
        attributes.push(Attribute::bytes(RTA_DST, &destination));
    }
    body(&header, &attributes)
}

#[test]
fn routes_of_the_cluster_and_to_peers_count_and_a_pods_own_does_not() {
    let facts = facts();
    let of = |kind, destination, length, device| {
        routing(kind, &route_message(destination, length, device, 0), &facts)
    };
    let all = Some(Effect::All(Cause::Route));
    for (destination, length) in [
        ([0, 0, 0, 0], 0),
        ([10, 0, 0, 0], 8),
        ([10, 244, 0, 0], 16),
        ([10, 244, 2, 0], 24),
        ([10, 244, 2, 2], 32),
        ([10, 244, 1, 0], 24),
        ([10, 244, 1, 0], 32),
        ([192, 0, 2, 0], 24),
        ([192, 0, 2, 2], 32),
    ] {
        for kind in [libc::RTM_NEWROUTE, libc::RTM_DELROUTE] {
            assert_eq!(of(kind, destination, length, 12), all, "{destination:?}");
        }
    }
    for (destination, length) in [
        ([172, 17, 0, 0], 16),
        ([192, 0, 2, 9], 32),
        ([11, 0, 0, 0], 8),
    ] {
        assert_eq!(of(libc::RTM_NEWROUTE, destination, length, 2), None);
    }
    let own = [10, 244, 1, 2];
    assert_eq!(of(libc::RTM_NEWROUTE, own, 32, 12), None);
    assert_eq!(of(libc::RTM_NEWROUTE, own, 32, 13), pod(own, 12));
    assert_eq!(of(libc::RTM_DELROUTE, own, 32, 12), pod(own, 12));
    assert_eq!(
        of(libc::RTM_NEWROUTE, [10, 244, 1, 8], 32, 18),
        None,
        "a new pod"
    );
    let cached = route_message([10, 244, 2, 0], 24, 2, RTM_F_CLONED);
    assert_eq!(routing(libc::RTM_NEWROUTE, &cached, &facts), None);
}

#[test]
fn addresses_rules_and_filters_count_where_flows_pass() {
    let facts = facts();
    let address = |index, address: [u8; 4]| {
        let header = with_index(IFADDRMSG, index, 0);
        let message = body(&header, &[Attribute::bytes(IFA_LOCAL, &address)]);
        routing(libc::RTM_NEWADDR, &message, &facts)
    };
    let all = Some(Effect::All(Cause::Address));
    assert_eq!(address(2, [192, 0, 2, 9]), all);
    assert_eq!(address(77, [10, 244, 2, 2]), all);
    assert_eq!(address(77, [172, 17, 0, 1]), None);
    assert_eq!(
        routing(libc::RTM_NEWRULE, &[], &facts),
        Some(Effect::All(Cause::PolicyRule))
    );
    let filter = |index, preference: u32| {
        let mut header = with_index(TCMSG, index, 0);
        header[16..20].copy_from_slice(&(preference << 16 | 8).to_ne_bytes());
        routing(libc::RTM_NEWTFILTER, &header, &facts)
    };
    let control = Some(Effect::All(Cause::TrafficControl));
    assert_eq!(filter(2, 1), control);
    assert_eq!(filter(2, OWN_PREFERENCE), None);
    assert_eq!(filter(12, 1), pod([10, 244, 1, 2], 12));
    assert_eq!(filter(99, 1), None);
    let discipline = |name| {
        let message = body(&with_index(TCMSG, 2, 0), &[Attribute::text(TCA_KIND, name)]);
        routing(libc::RTM_NEWQDISC, &message, &facts)
    };
    assert_eq!(discipline("tbf"), control);
    assert_eq!(discipline("clsact"), None);
}

proptest! {
    #[test]
    fn any_bytes_have_an_effect_or_none(
        kind in 16..120_u16,
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let facts = facts();
        super::routing(kind, &bytes, &facts);
        let _ = rules(NEWGEN, &bytes, |_| false).count();
        connection(0x102, &bytes, &facts);
        prop_assert!(messages(&bytes).count() <= bytes.len() / 4 + 1);
    }
}
