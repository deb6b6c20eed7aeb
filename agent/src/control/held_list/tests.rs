use proptest::prelude::*;

use super::*;

const GRACE: Duration = Duration::from_secs(600);

fn list(numbers: impl IntoIterator<Item = u8>) -> Vec<Lease> {
    let net_conf = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
    let net_conf = crate::config::NetConf::parse(net_conf).unwrap();
    let entry = |n: u8| {
        format!(
            "[[node]]\nname = \"n{n}\"\nsubnets = [\"10.244.{n}.0/24\"]\npublic-ip = \"192.0.2.{n}\"\n"
        )
    };
    let text: String = numbers.into_iter().map(entry).collect();
    crate::registry::parse(&text, &net_conf).unwrap()
}

fn at(seconds: u64, begin: Time) -> Time {
    let passed = Duration::from_secs(seconds);
    Time {
        now: begin.now + passed,
        wall: begin.wall + passed,
    }
}

#[test]
fn more_than_half_and_more_than_two_are_held_back() {
    let begin = Time::read();
    let is_held = |before: u8, after: u8| {
        HeldList::check(list(1..=after), &list(1..=before), None, GRACE, begin).is_err()
    };
    let rows = [
        ((200, 1), true),
        ((200, 99), true),
        ((200, 100), false),
        ((5, 2), true),
        ((4, 1), true),
        ((4, 2), false),
        ((3, 1), false),
        ((2, 1), false),
        ((1, 1), false),
        ((1, 200), false),
    ];
    for ((before, after), expected) in rows {
        assert_eq!(is_held(before, after), expected, "{before} to {after}");
    }
    let free = HeldList::check(list(1..=1), &list(1..=200), None, Duration::ZERO, begin);
    assert!(free.is_ok(), "no grace");
}

#[test]
fn a_node_of_another_name_or_of_other_subnets_is_not_lost() {
    let old = list(1..=6);
    let mut renamed = old.clone();
    for lease in &mut renamed {
        lease.name += "-new";
    }
    assert_eq!(lost(&old, &renamed), [""; 0]);
    let mut moved = old.clone();
    for (lease, other) in moved.iter_mut().zip(list(11..=16)) {
        lease.subnets = other.subnets;
    }
    assert_eq!(lost(&old, &moved), [""; 0]);
    // A subnet that another node has now: its first holder is replaced, not lost.
    let mut replaced = list(1..=2);
    replaced[1].name = "n9".to_owned();
    assert_eq!(lost(&old, &replaced), ["n3", "n4", "n5", "n6"]);
}

#[test]
fn a_list_that_loses_no_other_nodes_keeps_the_time() {
    let begin = Time::read();
    let old = list(1..=10);
    let check = |new: Vec<Lease>, earlier: Option<&HeldList>, seconds| {
        HeldList::check(new, &old, earlier, GRACE, at(seconds, begin)).unwrap_err()
    };
    let first = check(list(1..=3), None, 0);
    assert_eq!(first.due(), begin.now + GRACE);
    let grown = check(list(1..=4), Some(&first), 300);
    assert_eq!(grown.due(), first.due());
    let worse = check(list(1..=1), Some(&grown), 590);
    assert_eq!(worse.due(), begin.now + GRACE + Duration::from_secs(590));
    assert_eq!(worse.lost().len(), 9);
}

#[test]
fn a_start_at_another_address_or_subnet_holds_nothing_back_and_one_that_lost_a_line_does() {
    let (mut old, new) = (list(1..=10), list(1..=1));
    let (v4, v6) = ("192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap());
    old[0].public = dataplane::families::PublicAddresses::Dual(v4, v6);
    old[0].vtep_mac.v4 = encap::Mac([2; 6]);
    let time = Time::read();
    let check = |own: &Lease| {
        HeldList::check_at_start(new.clone(), own, &old, &old[0], GRACE, time).is_err()
    };
    assert!(check(&old[0]));
    assert!(check(&new[0]), "without public-ipv6 and vtep-mac");
    let mut moved = new[0].clone();
    moved.public = "192.0.2.77".parse::<std::net::IpAddr>().unwrap().into();
    assert!(!check(&moved));
    let mut renumbered = new[0].clone();
    renumbered.subnets = list(11..=11)[0].subnets.clone();
    assert!(!check(&renumbered));
}

proptest! {
    /// Whatever changes, no list withdraws more than half and more than two at once, and none is held back that does not.
    #[test]
    fn what_is_adopted_at_once_loses_few(
        old in prop::collection::btree_set(1..=60u8, 1..40),
        new in prop::collection::btree_set(1..=60u8, 1..40),
    ) {
        let gone = old.difference(&new).count();
        let checked = HeldList::check(list(new), &list(old.clone()), None, GRACE, Time::read());
        prop_assert_eq!(checked.is_err(), gone > 2 && 2 * gone > old.len());
    }
}

#[test]
fn where_each_node_writes_its_own_record_only_the_loss_is_held_back() {
    let old = list(1..=9);
    // Five are gone; the second has the subnet that was the eighth's.
    let mut new = list(1..=3);
    new[1].subnets = old[7].subnets.clone();
    let held = HeldList::check(new.clone(), &old, None, GRACE, Time::read()).unwrap_err();
    let meanwhile = held.meanwhile(&old);
    let names: Vec<&str> = meanwhile.iter().map(|lease| &*lease.name).collect();
    assert_eq!(names, ["n1", "n2", "n3", "n4", "n5", "n6", "n7", "n9"]);
    assert_eq!(meanwhile[1].subnets, old[7].subnets);
}
