use super::*;
use proptest::prelude::*;
use std::fs;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn run() -> (tempfile::TempDir, RunDir) {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::under(root.path());
    (root, run)
}

fn take_one(range: &Range, subnet: &str, taken: &HashSet<IpAddr>) -> IpAddr {
    range.take(&[net(subnet)], taken).unwrap()[0].addr()
}

#[test]
fn the_first_is_two_and_a_released_one_rests() {
    let (_root, run) = run();
    let range = Range::lock(&run).unwrap();
    let none = HashSet::new();
    for last in 2..=254u8 {
        let given = take_one(&range, "10.244.1.0/24", &none);
        assert_eq!(given, IpAddr::from([10, 244, 1, last]));
    }
    assert_eq!(take_one(&range, "10.244.1.0/24", &none), ip("10.244.1.2"));
}

#[test]
fn both_families_are_given_and_each_is_a_host_prefix() {
    let (_root, run) = run();
    let subnets = [net("fd00:1::/64"), net("10.244.1.0/24")];
    let given = Range::lock(&run)
        .unwrap()
        .take(&subnets, &HashSet::new())
        .unwrap();
    assert_eq!(given, [net("10.244.1.2/32"), net("fd00:1::2/128")]);
}

#[test]
fn a_full_subnet_gives_way_to_the_next_of_its_family() {
    let (_root, run) = run();
    let range = Range::lock(&run).unwrap();
    let subnets = [net("10.1.0.0/30"), net("10.2.0.0/30")];
    let mut taken = HashSet::new();
    for expected in ["10.1.0.2", "10.2.0.2"] {
        let given = range.take(&subnets, &taken).unwrap()[0].addr();
        assert_eq!(given, ip(expected));
        taken.insert(given);
    }
    let refused = range.take(&subnets, &taken).unwrap_err();
    assert!(refused.to_string().contains("1 of 1"), "{refused}");
}

#[test]
fn one_full_family_is_not_hidden_by_the_other() {
    let taken = HashSet::from([ip("fd00::2"), ip("fd00::3")]);
    let subnets = [net("10.1.0.0/24"), net("fd00::/126")];
    let refused = check_room(&subnets, &taken);
    assert!(matches!(
        refused,
        Err(Error::Exhausted {
            taken: 2,
            capacity: 2,
            ..
        })
    ));
    check_room(&subnets[..1], &taken).unwrap();
}

#[test]
fn subnets_without_room_for_a_pod_are_refused() {
    for subnet in ["10.1.0.0/31", "10.1.0.0/32", "fd00::/127", "fd00::/128"] {
        let refused = check_room(&[net(subnet)], &HashSet::new());
        assert!(
            matches!(refused, Err(Error::Exhausted { capacity: 0, .. })),
            "{subnet}"
        );
        assert!(!is_for_pods(&[net(subnet)], net(subnet).addr()));
    }
    assert!(matches!(
        check_room(&[], &HashSet::new()),
        Err(Error::NoSubnet)
    ));
    check_room(&[net("0.0.0.0/0"), net("::/0")], &HashSet::new()).unwrap();
}

#[test]
fn a_torn_cursor_or_one_of_another_subnet_starts_at_the_front() {
    let (_root, run) = run();
    let range = Range::lock(&run).unwrap();
    let none = HashSet::new();
    take_one(&range, "10.244.1.0/24", &none);
    assert_eq!(take_one(&range, "10.244.2.0/24", &none), ip("10.244.2.2"));
    assert_eq!(take_one(&range, "10.244.2.0/24", &none), ip("10.244.2.3"));
    fs::write(
        run.attachments().join(".last"),
        b"{\"10.244.2.0/24\":\"10.2",
    )
    .unwrap();
    assert_eq!(take_one(&range, "10.244.2.0/24", &none), ip("10.244.2.2"));
}

#[test]
fn the_lock_is_exclusive_and_ends_with_its_holder() {
    let (_root, run) = run();
    let held = Range::lock(&run).unwrap();
    let (sent, received) = std::sync::mpsc::channel();
    let waiter = std::thread::spawn(move || {
        let second = Range::lock(&run);
        sent.send(second.is_ok()).unwrap();
    });
    let early = received.recv_timeout(std::time::Duration::from_millis(100));
    assert!(early.is_err(), "two held the lock");
    drop(held);
    assert!(received.recv().unwrap());
    waiter.join().unwrap();
}

#[test]
fn a_holder_that_keeps_it_is_named_and_not_waited_for_for_ever() {
    let (_root, run) = run();
    let held = Range::lock(&run).unwrap();
    let soon = Duration::from_millis(200);
    let start = std::time::Instant::now();
    let refused = Range::lock_within(&run, soon).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(5));
    let holder = format!("by process {} (", std::process::id());
    assert!(refused.to_string().contains(&holder), "{refused}");
    // A waiter that was given up keeps no process out.
    drop(held);
    Range::lock_within(&run, Duration::from_secs(5)).unwrap();
}

#[test]
fn what_cannot_be_locked_or_noted_is_named() {
    let (_root, run) = run();
    run.make().unwrap();
    fs::create_dir(run.attachments().join(".last")).unwrap();
    let range = Range::lock(&run).unwrap();
    let refused = range.take(&[net("10.1.0.0/24")], &HashSet::new());
    assert!(matches!(
        refused,
        Err(Error::File(FileError {
            action: FileAction::Write,
            ..
        }))
    ));
    drop(range);
    fs::remove_file(run.attachments().join(".lock")).unwrap();
    fs::create_dir(run.attachments().join(".lock")).unwrap();
    assert!(matches!(
        Range::lock(&run),
        Err(Error::File(FileError {
            action: FileAction::Lock,
            ..
        }))
    ));
    fs::remove_dir_all(run.path()).unwrap();
    fs::write(run.path(), b"").unwrap();
    assert!(matches!(Range::lock(&run), Err(Error::Directory { .. })));
}

/// Give an address, or release the n-th given.
#[derive(Clone, Copy, Debug)]
enum Step {
    Take,
    Release(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Take),
        2 => any::<prop::sample::Index>().prop_map(Step::Release),
    ];
    prop::collection::vec(step, 1..80)
}

proptest! {
    /// Never doubled, never reserved, never outside; refused exactly when full.
    #[test]
    fn any_history_keeps_the_range_sound(
        base: u32, length in 26u8..=30, v6: bool, steps in steps(),
    ) {
        let subnet = if v6 {
            let base = (0xfdu128 << 120) | u128::from(base);
            IpNet::new(Ipv6Addr::from_bits(base).into(), length + 96).unwrap().trunc()
        } else {
            IpNet::new(Ipv4Addr::from_bits(base).into(), length).unwrap().trunc()
        };
        let usable = (1usize << (32 - length)) - if v6 { 2 } else { 3 };
        let mut cursor = BTreeMap::new();
        let mut held: Vec<IpAddr> = Vec::new();
        for step in steps {
            match step {
                Step::Release(_) if held.is_empty() => {}
                Step::Release(index) => {
                    held.swap_remove(index.index(held.len()));
                }
                Step::Take => {
                    let taken: HashSet<IpAddr> = held.iter().copied().collect();
                    match choose(&[subnet], &taken, &cursor, &Resting::default()) {
                        Ok(given) => {
                            let address = given[0].1;
                            prop_assert!(!taken.contains(&address));
                            prop_assert!(subnet.contains(&address));
                            prop_assert!(is_for_pods(&[subnet], address));
                            prop_assert_ne!(address, subnet.network());
                            let second = subnet.hosts().find(|a| *a != subnet.network());
                            prop_assert_ne!(Some(address), second);
                            prop_assert!(v6 || address != subnet.broadcast());
                            cursor.insert(subnet, address);
                            held.push(address);
                        }
                        Err(_) => prop_assert_eq!(held.len(), usable),
                    }
                }
            }
        }
    }

    /// Addresses of others never make the search give up early.
    #[test]
    fn foreign_addresses_do_not_count(last in 0u8..=255, others: Vec<u32>) {
        let subnet = net("10.244.1.0/24");
        let taken = others
            .into_iter()
            .map(|bits| IpAddr::from(Ipv4Addr::from_bits(bits)))
            .filter(|address| !subnet.contains(address))
            .collect();
        let cursor = BTreeMap::from([(subnet, IpAddr::from([10, 244, 1, last]))]);
        let given = choose(&[subnet], &taken, &cursor, &Resting::default()).unwrap()[0].1;
        let expected = if (2..254).contains(&last) { last + 1 } else { 2 };
        prop_assert_eq!(given, IpAddr::from([10, 244, 1, expected]));
    }
}

#[test]
fn a_caller_that_must_not_wait_learns_that_the_lock_is_taken() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::under(root.path());
    let held = Range::lock(&run).unwrap();
    assert!(Range::try_lock(&run).unwrap().is_none());
    drop(held);
    assert!(Range::try_lock(&run).unwrap().is_some());
}

fn released(addresses: &[&str], at: u64, run: &RunDir) {
    let prefixes: Vec<IpNet> = addresses.iter().map(|a| IpNet::from(ip(a))).collect();
    resting::note(run, &prefixes, at);
}

#[test]
fn a_released_address_rests_and_then_is_given_again() {
    let (_root, run) = run();
    let range = Range::lock(&run).unwrap();
    let none = HashSet::new();
    let now = unix_seconds();
    released(&["10.1.0.3", "10.1.0.2"], now, &run);
    assert_eq!(take_one(&range, "10.1.0.0/29", &none), ip("10.1.0.4"));
    assert_eq!(take_one(&range, "10.1.0.0/29", &none), ip("10.1.0.5"));
    assert_eq!(take_one(&range, "10.1.0.0/29", &none), ip("10.1.0.6"));
    let (_root, run) = self::run();
    let range = Range::lock(&run).unwrap();
    released(&["10.1.0.2"], now - REST.as_secs(), &run);
    assert_eq!(take_one(&range, "10.1.0.0/29", &none), ip("10.1.0.2"));
}

/// When few addresses are left, the one that has rested longest is given.
#[test]
fn resting_addresses_give_way_the_oldest_first() {
    let (_root, run) = run();
    let range = Range::lock(&run).unwrap();
    let now = unix_seconds();
    released(&["10.1.0.4"], now - 9, &run);
    released(&["10.1.0.2"], now - 8, &run);
    released(&["10.1.0.6"], now - 7, &run);
    // Released again later: the later time counts.
    released(&["10.1.0.4"], now - 6, &run);
    let mut taken = HashSet::from([ip("10.1.0.3"), ip("10.1.0.5")]);
    for expected in ["10.1.0.2", "10.1.0.6", "10.1.0.4"] {
        let given = take_one(&range, "10.1.0.0/29", &taken);
        assert_eq!(given, ip(expected));
        taken.insert(given);
    }
    let full = range.take(&[net("10.1.0.0/29")], &taken);
    assert!(matches!(
        full,
        Err(Error::Exhausted {
            taken: 5,
            capacity: 5,
            ..
        })
    ));
}

/// A tenth of a /26 less its ends is 6.1.
#[test]
fn rest_ends_early_while_fewer_than_a_tenth_are_free() {
    let (_root, run) = run();
    let range = Range::lock(&run).unwrap();
    let now = unix_seconds();
    released(&["10.1.0.9"], now - 2, &run);
    released(&["10.1.0.8"], now - 9, &run);
    // Neither another subnet's rest nor what rests and is taken again counts.
    released(&["10.2.0.8", "10.1.0.40"], now - 20, &run);
    let free = |last: u8| (8..=9).contains(&last) || (50..57).contains(&last);
    let mut taken: HashSet<IpAddr> = (2..=62)
        .filter(|last| !free(*last))
        .map(|last| IpAddr::from([10, 1, 0, last]))
        .collect();
    for expected in ["10.1.0.50", "10.1.0.8", "10.1.0.9", "10.1.0.51"] {
        let given = take_one(&range, "10.1.0.0/26", &taken);
        assert_eq!(given, ip(expected));
        taken.insert(given);
    }
}

#[test]
fn a_note_of_rest_that_is_torn_foreign_or_huge_harms_nothing() {
    let (_root, run) = run();
    let range = Range::lock(&run).unwrap();
    let path = run.attachments().join(".resting");
    let mut text = b"10.1.0.2\n\xff\xfe 7\nx 9\n10.1.0.3 99999999999999999999\n".to_vec();
    text.extend(format!("10.1.0.4 {}", unix_seconds()).bytes());
    fs::write(&path, &text).unwrap();
    let none = HashSet::new();
    for expected in ["10.1.0.2", "10.1.0.3", "10.1.0.5"] {
        assert_eq!(take_one(&range, "10.1.0.0/29", &none), ip(expected));
    }
    for _ in 0..100 {
        let many: Vec<IpNet> = (0..250u8)
            .map(|n| IpNet::from(IpAddr::from([10, 9, n, 2])))
            .collect();
        resting::note(&run, &many, unix_seconds());
        take_one(&range, "10.2.0.0/24", &none);
    }
    assert!(fs::metadata(&path).unwrap().len() < 128 * 1024);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    released(&["10.1.0.2"], 1, &run);
    take_one(&range, "10.1.0.0/29", &none);
}
