use super::*;
use proptest::prelude::*;

/// A path, the world at its other end, and virtual time in steps of 20 ms.
struct Lab {
    path: Path,
    now: Now,
    nonce: u64,
    /// Answers on their way: nonce and when it arrives.
    flying: Vec<(u64, Now)>,
    world: World,
    signs: Signs,
    pace: Pace,
    probes: usize,
    /// What pods were told last, and when.
    told: Option<(u16, Now)>,
}

/// What becomes of probes.
#[derive(Clone, Debug, Default)]
struct World {
    is_dead: bool,
    mtu: Option<u16>,
    /// The peer's own probes arrive every second, or as rarely as ours.
    asks: bool,
    refuses: bool,
    sends: bool,
    /// What a router or our own kernel says in place of answers.
    obstacle: Option<&'static str>,
}

const STEP: Duration = Duration::from_millis(20);
/// Of one among 5,000.
const RARE: Pace = Pace {
    watch: Duration::from_secs(25),
    theirs: Duration::from_secs(25),
    is_full: false,
    ..Pace::FASTEST
};

impl Lab {
    fn new(world: World) -> Lab {
        let now = Now::default().after(Duration::from_secs(1000));
        Lab {
            path: Path::new(PathSearch::new(626, 1500), now, now),
            now,
            nonce: 1,
            flying: Vec::new(),
            world,
            signs: Signs::default(),
            pace: Pace::FASTEST,
            probes: 0,
            told: None,
        }
    }

    fn step(&mut self) {
        self.now = self.now.after(STEP);
        let now = self.now;
        let (landed, flying) = self.flying.drain(..).partition(|(_, at)| *at <= now);
        self.flying = flying;
        let landed: Vec<(u64, Now)> = landed;
        for (nonce, at) in landed {
            let answered = self.path.answer(nonce, at);
            assert!(answered.is_some());
            self.tell(answered.and_then(|answered| answered.learned));
            assert!(self.path.answer(nonce, at).is_none(), "counted twice");
            self.signs.heard = Some(at);
        }
        let each = |period: Duration| now.0.is_multiple_of(period.as_nanos() as u64);
        let each_second = each(Duration::from_secs(1));
        let is_asked = match self.pace == RARE {
            true => each(RARE.theirs),
            false => each_second,
        };
        if is_asked && self.world.asks {
            self.path.asked(Some(Duration::from_secs(1)), now);
            self.signs.heard = Some(now);
        }
        if each_second && self.world.sends {
            self.signs.heard = Some(now);
        }
        let mut asks = Vec::new();
        if self.path.wake() <= now || self.path.is_urgent() {
            let learned = self.path.turn(self.pace, now, &mut asks);
            self.tell(learned);
        }
        for ask in asks {
            self.nonce += 1;
            self.probes += 1;
            self.path.note_sent(self.nonce, ask, now);
            let fits = ask
                .size
                .is_none_or(|size| size <= self.world.mtu.unwrap_or(1500));
            if self.world.refuses {
                self.path.fail(Obstacle::Refused, now);
            } else if let Some(why) = self.world.obstacle {
                self.path.fail(Obstacle::Unreachable(why.into()), now);
            } else if !self.world.is_dead && fits {
                self.flying
                    .push((self.nonce, now.after(Duration::from_millis(1))));
            }
        }
        if each_second || self.path.is_outdated() {
            self.path.judge(self.signs, now);
        }
    }

    fn tell(&mut self, learned: Option<u16>) {
        let is_other = |learned| self.told.is_none_or(|(told, _)| told != learned);
        if let Some(learned) = learned.filter(|learned| is_other(*learned)) {
            self.told = Some((learned, self.now));
        }
    }

    /// Runs until pods are told that size; how long it took.
    fn until_told(&mut self, size: u16) -> Duration {
        let began = self.now;
        while self.told.is_none_or(|(told, _)| told != size) {
            self.step();
            assert!(
                self.now.since(began) < TEN,
                "{:?} is told, not {size}",
                self.told
            );
        }
        self.now.since(began)
    }

    /// Runs for so many seconds.
    fn run(&mut self, seconds: u64) {
        for _ in 0..seconds * 50 {
            self.step();
        }
    }

    /// Runs until the state has that name; how long it took.
    fn until(&mut self, name: &str) -> Duration {
        let began = self.now;
        while self.path.state.name() != name {
            self.step();
            assert!(
                self.now.since(began) < Duration::from_secs(70),
                "still {:?}, not {name}",
                self.path.state
            );
        }
        self.now.since(began)
    }

    fn up() -> Lab {
        let mut lab = Lab::new(World::default());
        assert!(lab.until("up") <= Duration::from_secs(2));
        lab.run(20);
        assert_eq!(lab.path.state, State::Up);
        lab
    }

    /// One that is asked rarely.
    fn rare() -> Lab {
        let mut lab = Lab::up();
        lab.pace = RARE;
        lab.run(100);
        assert_eq!(lab.path.state, State::Up);
        lab
    }
}

const TEN: Duration = Duration::from_secs(10);

#[test]
fn a_peer_that_dies_is_silent_within_ten_seconds_and_up_again_as_soon() {
    let mut lab = Lab::up();
    let died = lab.now;
    lab.world.is_dead = true;
    assert!(lab.until("silent") < Duration::from_secs(6));
    let (_, since) = lab.path.state();
    assert!(since <= died && died.since(since) <= WATCH_EVERY + STEP);
    lab.world.is_dead = false;
    assert!(lab.until("up") < Duration::from_secs(3));
    lab.world.is_dead = true;
    lab.run(300);
    lab.world.is_dead = false;
    assert!(lab.until("up") < TEN, "after a long death too");
}

/// Regression: where a path is asked rarely, the last answer is so old that each restart of a peer was a silence.
#[test]
fn a_restart_of_a_peer_that_is_asked_rarely_is_no_silence() {
    for outage in [100, 1000, 1500, 2000, 2600] {
        let mut lab = Lab::rare();
        let mut asked = lab.probes;
        for _ in 0..10 {
            // The next probe that watches is the first that is lost.
            while lab.probes == asked {
                lab.world.is_dead = lab.path.next <= lab.now.after(STEP);
                lab.step();
            }
            for _ in 0..outage / 20 {
                lab.step();
                assert_eq!(lab.path.state, State::Up, "after an outage of {outage} ms");
            }
            lab.world.is_dead = false;
            lab.run(10);
            assert_eq!(lab.path.state, State::Up);
            asked = lab.probes;
        }
    }
}

#[test]
fn what_is_asked_rarely_keeps_its_state_while_its_cause_lasts() {
    let seconds = |of: Duration| of.as_secs();
    let dead = World {
        is_dead: true,
        ..World::default()
    };
    let causes = [
        ("silent", dead.clone()),
        (
            "one-way",
            World {
                asks: true,
                ..dead.clone()
            },
        ),
        (
            "refused",
            World {
                refuses: true,
                ..World::default()
            },
        ),
        (
            "unreachable",
            World {
                obstacle: Some("no route"),
                ..World::default()
            },
        ),
    ];
    for (name, world) in causes {
        let mut lab = Lab::rare();
        lab.world = world;
        // The first lost probe, and the first of the peer's after it.
        assert!(lab.until(name) < RARE.watch * 2 + Duration::from_secs(5));
        for _ in 0..seconds(RARE.watch) * 20 {
            lab.run(1);
            assert_eq!(lab.path.state.name(), name);
        }
        lab.world = World::default();
        assert!(lab.until("up") <= RARE.watch + GRACE);
    }
    // A short outage's end is seen long before the next probe that watches would be due.
    let mut lab = Lab::rare();
    lab.world = dead;
    lab.until("silent");
    lab.run(10);
    lab.world = World::default();
    let took = lab.until("up");
    assert!(took <= LOST_EVERY + STEP * 3, "{took:?}");
}

#[test]
fn another_network_is_named_for_as_long_as_its_probes_come_rarely() {
    let mut lab = Lab::rare();
    lab.world.is_dead = true;
    lab.until("silent");
    for _ in 0..10 {
        lab.signs.other_vni = Some((7, lab.now));
        for _ in 0..RARE.theirs.as_secs() {
            lab.run(1);
            assert_eq!(lab.path.state, State::WrongVni(7));
        }
    }
}

/// A path that carries less than every path is taken to: there is nothing to seek, and it is not asked for it.
#[test]
fn what_carries_less_than_the_least_takes_no_more_probes_than_others() {
    let mut lab = Lab::up();
    lab.world.mtu = Some(600);
    lab.run(60);
    let before = lab.probes;
    for _ in 0..100 * 50 {
        lab.step();
        assert_eq!(lab.path.state.name(), "narrow");
    }
    let each = Duration::from_secs(100).as_millis() / WATCH_EVERY.as_millis();
    let probes = (lab.probes - before) as u128;
    assert!(probes <= each + 30, "{probes}, not {each}");
}

#[test]
fn a_peer_whose_packets_arrive_does_not_hear_us() {
    let mut lab = Lab::up();
    lab.world = World {
        is_dead: true,
        asks: true,
        ..World::default()
    };
    assert!(lab.until("one-way") < Duration::from_secs(6));
    // It dies altogether.
    lab.world.asks = false;
    lab.until("silent");
    lab.world = World::default();
    assert!(lab.until("up") < Duration::from_secs(3));
    // The same of one that never answered.
    let mut lab = Lab::new(World {
        is_dead: true,
        asks: true,
        ..World::default()
    });
    assert!(lab.until("one-way") < TEN);
}

#[test]
fn a_black_hole_is_found_within_five_seconds_and_its_end_within_ten() {
    let mut lab = Lab::up();
    lab.world.mtu = Some(1400);
    assert!(lab.until("narrow") < Duration::from_secs(5));
    let narrow = State::Narrow {
        measured: 1400,
        configured: 1500,
    };
    assert_eq!(lab.path.state, narrow);
    lab.run(30);
    assert_eq!(lab.path.state, narrow);
    lab.world.mtu = None;
    assert!(lab.until("up") < TEN);
}

/// TCP's second retransmission comes 600 ms after the first packet was lost, its third after 1.4 s.
#[test]
fn pods_are_told_before_tcp_sends_for_the_third_time() {
    for wait in 0..70 {
        let mut lab = Lab::up();
        for _ in 0..wait {
            lab.step();
        }
        lab.world.mtu = Some(1400);
        let took = lab.until_told(1400);
        assert!(took <= WATCH_EVERY + Duration::from_millis(200), "{took:?}");
        let took = took + lab.until("narrow");
        assert!(took <= WATCH_EVERY + Duration::from_millis(350), "{took:?}");
        // Where a flow has ceased at once, before the second.
        let mut lab = Lab::up();
        for _ in 0..wait {
            lab.step();
        }
        lab.world.mtu = Some(1400);
        lab.path.suspect(Pace::FASTEST, lab.now);
        let took = lab.until_told(1400);
        assert!(took <= Duration::from_millis(140), "{took:?}");
    }
}

#[test]
fn a_path_that_changes_twice_within_seconds_is_found_twice() {
    let mut lab = Lab::up();
    for mtu in [1437, 1290] {
        lab.run(40);
        lab.world.mtu = Some(mtu);
        lab.until_told(mtu);
        lab.run(3);
    }
    let mut lab = Lab::up();
    lab.run(60);
    for mtu in [1492, 1400, 1280] {
        lab.world.mtu = Some(mtu);
        let took = lab.until_told(mtu);
        assert!(took <= Duration::from_secs(2), "{mtu}: {took:?}");
        lab.run(3);
    }
}

/// Flows cease all the time, and probes are few: what is suspected leaves enough for a search.
#[test]
fn suspicion_on_a_good_path_costs_little_and_leaves_a_search() {
    let mut lab = Lab::up();
    let (began, before) = (lab.now, lab.probes);
    for _ in 0..300 {
        lab.path.suspect(Pace::FASTEST, lab.now);
        lab.run(1);
        assert_eq!(lab.path.state, State::Up);
        assert_eq!(lab.told.map(|(told, _)| told), Some(1500));
    }
    let seconds = lab.now.since(began).as_secs() as usize;
    let took = lab.probes - before;
    assert!(took <= seconds + 30, "{took} probes in {seconds} s");
    lab.world.mtu = Some(1437);
    let took = lab.until_told(1437);
    assert!(took <= Duration::from_secs(3), "{took:?}");
}

#[test]
fn a_probe_that_others_overtake_is_lost_and_one_that_is_late_is_not_forgotten() {
    let mut lab = Lab::up();
    let now = lab.now;
    let mut send = |nonce, ask| lab.path.note_sent(nonce, ask, now);
    send(1_000, Ask::trial(1400));
    send(1_001, Ask::SMALL);
    let at = now.after(Duration::from_millis(1));
    assert!(lab.path.answer(1_001, at).is_some());
    let is_lost = |path: &Path| path.open.iter().any(|open| open.is_lost);
    lab.path.turn(
        Pace::FASTEST,
        at.after(LEAST_ORDER - STEP / 2),
        &mut Vec::new(),
    );
    assert!(!is_lost(&lab.path));
    lab.path
        .turn(Pace::FASTEST, at.after(LEAST_ORDER), &mut Vec::new());
    assert!(is_lost(&lab.path));
    assert!(lab.path.answer(1_000, at.after(MOST_PATIENCE)).is_some());
}

#[test]
fn what_the_peers_host_refuses_is_said() {
    let mut lab = Lab::up();
    lab.world.refuses = true;
    assert!(lab.until("refused") < Duration::from_secs(6));
    lab.world.refuses = false;
    assert!(lab.until("up") < Duration::from_secs(3));
    // What never answered is asked a few times first.
    let mut lab = Lab::new(World {
        refuses: true,
        ..World::default()
    });
    let took = lab.until("refused");
    assert!(took >= NEVER_UP && took < TEN, "{took:?}");
    lab.world.refuses = false;
    assert!(lab.until("up") < TEN);
}

#[test]
fn what_keeps_probes_from_getting_there_is_said_in_its_own_words() {
    let firewall = "a firewall of this node drops what is sent there (EPERM)";
    let router = "host unreachable (ICMP type 3 code 1 from 192.0.2.9)";
    let mut lab = Lab::up();
    lab.world.obstacle = Some(firewall);
    assert!(lab.until("unreachable") < Duration::from_secs(6));
    assert_eq!(lab.path.state, State::Unreachable(firewall.into()));
    assert_eq!(lab.path.state.to_string(), firewall);
    assert!(lab.path.state.is_bad());
    // Another reason is news, and the words are of now.
    let (_, since) = lab.path.state();
    lab.world.obstacle = Some(router);
    lab.run(3);
    assert_eq!(lab.path.state.to_string(), router);
    assert!(lab.path.state().1 > since);
    // Its own packets arrive all the same: what is known of the way there is said.
    lab.world.asks = true;
    lab.run(20);
    assert_eq!(lab.path.state.to_string(), router);
    lab.world.asks = false;
    // No host and no router says anything any more: the reason is not of now, and neither are the peer's own packets.
    lab.world.obstacle = None;
    lab.world.is_dead = true;
    assert!(lab.until("silent") < RECENT + Duration::from_secs(2));
    lab.world.obstacle = Some(router);
    assert!(lab.until("unreachable") < TEN);
    lab.world = World::default();
    assert!(lab.until("up") < Duration::from_secs(3));
    assert_eq!(lab.path.state.to_string(), "");
    // One error beside answers, which anyone may have forged, is no state.
    lab.path.fail(Obstacle::Unreachable(router.into()), lab.now);
    for _ in 0..20 {
        lab.run(1);
        assert_eq!(lab.path.state, State::Up);
    }
}

#[test]
fn what_never_answered_and_does_not_get_there_is_unreachable_after_a_while() {
    let mut lab = Lab::new(World {
        obstacle: Some("this node has no route there (ENETUNREACH)"),
        ..World::default()
    });
    let took = lab.until("unreachable");
    assert!(took >= NEVER_UP && took < TEN, "{took:?}");
    lab.world.obstacle = None;
    assert!(lab.until("up") < TEN);
}

/// What is found out at the end of one outage is not to be missing for the next.
#[test]
fn outages_one_after_another_are_each_found_within_ten_seconds() {
    let kinds = [
        World {
            is_dead: true,
            ..World::default()
        },
        World {
            is_dead: true,
            asks: true,
            ..World::default()
        },
        World {
            obstacle: Some("no route"),
            ..World::default()
        },
        World {
            refuses: true,
            ..World::default()
        },
    ];
    for up_for in [1, 2, 3, 5] {
        let mut lab = Lab::up();
        for (world, name) in kinds
            .iter()
            .zip(["silent", "one-way", "unreachable", "refused"])
            .cycle()
            .take(24)
        {
            lab.world = world.clone();
            let took = lab.until(name);
            assert!(took < TEN, "{name} after {took:?}");
            lab.world = World::default();
            let took = lab.until("up");
            assert!(took < Duration::from_secs(5), "up after {took:?}");
            lab.run(up_for);
        }
    }
}

/// A search that waits for credit does not hide that the path dies.
#[test]
fn a_path_that_dies_after_many_searches_is_found_within_ten_seconds() {
    for changes in 1..8 {
        for (index, after) in [0, 1, 2, 3, 5, 8, 13].into_iter().enumerate() {
            let mut lab = Lab::up();
            for change in 0..changes {
                lab.world.mtu = (change % 2 == 0).then_some(1400 - 10 * index as u16);
                lab.run(7);
            }
            lab.run(after);
            lab.world.is_dead = true;
            let took = lab.until("silent");
            assert!(took < TEN, "{changes} changes, {after} s: {took:?}");
        }
    }
}

#[test]
fn a_flannel_peer_is_spared_and_judged_by_what_arrives() {
    let mut lab = Lab::new(World {
        is_dead: true,
        ..World::default()
    });
    assert!(lab.until("quiet") < TEN);
    lab.world.sends = true;
    assert!(lab.until("heard") < Duration::from_secs(3));
    let before = lab.probes;
    lab.run(600);
    assert!(lab.probes - before <= 21, "{}", lab.probes - before);
    assert!(!lab.path.state.is_bad());
    lab.world.sends = false;
    lab.until("quiet");
}

/// Regression: a Tartan node that was dead when the service started was taken for one that runs flannel, and was no problem.
#[test]
fn a_peer_that_answered_before_the_start_is_silent_where_it_is_dead() {
    let expected = |world: World, pace: Pace| {
        let mut lab = Lab::new(world);
        lab.pace = pace;
        lab.path.expect_answers();
        lab
    };
    let dead = World {
        is_dead: true,
        ..World::default()
    };
    for pace in [Pace::FASTEST, RARE] {
        let mut lab = expected(dead.clone(), pace);
        assert!(lab.until("silent") < TEN);
        assert!(lab.path.is_to_answer());
        lab.run(300);
        assert_eq!(lab.path.state, State::Silent);
        lab.world.is_dead = false;
        assert!(lab.until("up") < Duration::from_secs(25));
        // It runs flannel since: it sends packets, and nothing that is a probe.
        let flannel = World {
            sends: true,
            ..dead.clone()
        };
        let mut lab = expected(flannel, pace);
        lab.run(10);
        assert_eq!(lab.path.state, State::Heard);
        assert!(!lab.path.is_to_answer());
    }
    assert!(expected(World::default(), Pace::FASTEST).until("up") < Duration::from_secs(2));
}

#[test]
fn a_peer_that_runs_flannel_again_is_judged_so_in_the_end() {
    let mut lab = Lab::up();
    lab.world = World {
        is_dead: true,
        sends: true,
        ..World::default()
    };
    lab.run(150);
    assert_eq!(lab.path.state, State::Heard);
    let before = lab.probes;
    lab.run(300);
    assert!(lab.probes - before <= 12, "{}", lab.probes - before);
}

#[test]
fn another_network_and_another_mac_are_named_while_no_answer_comes() {
    let mac = Mac([2, 0, 0, 0, 0, 7]);
    let mut lab = Lab::up();
    lab.signs.other_mac = Some(mac);
    lab.run(2);
    assert_eq!(lab.path.state, State::Up, "it answers");
    lab.world.is_dead = true;
    assert!(lab.until("wrong-mac") < TEN);
    lab.signs.other_mac = None;
    lab.signs.other_vni = Some((7, lab.now));
    lab.run(1);
    assert_eq!(lab.path.state, State::WrongVni(7));
    lab.run(20);
    assert_eq!(lab.path.state, State::Silent);
    lab.signs.other_station = Some((mac, lab.now));
    lab.run(1);
    assert_eq!(lab.path.state, State::WrongStation(mac));
    lab.world.is_dead = false;
    assert!(lab.until("up") < TEN);
    // Of a peer that never answered, too.
    let mut lab = Lab::new(World {
        is_dead: true,
        ..World::default()
    });
    lab.signs.other_vni = Some((9, lab.now));
    lab.run(2);
    assert_eq!(lab.path.state, State::WrongVni(9));
}

proptest! {
    /// Whatever happens, a path gets no more than its probes, its memory is bounded, and it is up again soon after.
    #[test]
    fn a_path_recovers_from_everything(worlds in prop::collection::vec(
        (any::<bool>(), prop::option::of(600u16..1500), any::<bool>(), any::<bool>(), any::<bool>(), 1u64..40), 1..12,
    )) {
        let mut lab = Lab::new(World::default());
        let began = lab.now;
        for (is_dead, mtu, asks, refuses, sends, seconds) in worlds {
            lab.world = World { is_dead, mtu, asks, refuses, sends, obstacle: None };
            for _ in 0..seconds {
                lab.run(1);
                prop_assert!(lab.path.open.len() <= MOST_OPEN);
            }
        }
        let seconds = lab.now.since(began).as_secs() as usize;
        prop_assert!(lab.probes <= seconds + MOST_CREDIT as usize + 1, "{} probes in {} s", lab.probes, seconds);
        // A peer that never answered is asked every 30 s; one that did, at once.
        lab.world = World { asks: true, ..World::default() };
        // What changed all the time has no credit left for a search at once, and one that is going on ends first.
        prop_assert!(lab.until("up") < Duration::from_secs(70));
    }
}

#[test]
fn one_forged_probe_is_forgotten_and_makes_no_flannel_peer_silent() {
    let mut lab = Lab::new(World {
        is_dead: true,
        ..World::default()
    });
    assert!(lab.until("quiet") < TEN);
    lab.path.asked(None, lab.now);
    for _ in 0..130 {
        lab.run(1);
        assert_ne!(lab.path.state, State::Silent);
    }
    assert!(!lab.path.is_probed(lab.now));
    let before = lab.probes;
    lab.run(300);
    assert_eq!(lab.path.state, State::Quiet);
    assert!(lab.probes - before <= 12, "{}", lab.probes - before);
}

#[test]
fn a_larger_ceiling_makes_no_good_path_narrow() {
    for (mtu, state) in [(9000, "up"), (1500, "narrow")] {
        let mut lab = Lab::up();
        lab.world.mtu = Some(mtu);
        lab.path.search.bound(626, 9000);
        lab.path.judge(lab.signs, lab.now);
        assert_eq!(
            lab.path.state,
            State::Up,
            "before a larger packet was tried"
        );
        while lab.path.search.measured() != Some(mtu) || lab.path.search.is_outgrown() {
            assert_eq!(lab.path.state, State::Up);
            lab.step();
        }
        lab.run(2);
        assert_eq!(lab.path.state.name(), state);
    }
}

#[test]
fn an_answer_counts_until_it_is_too_late_and_nothing_is_waited_for_meanwhile() {
    for (after, counts) in [(LATE - STEP, true), (LATE, false)] {
        let mut lab = Lab::new(World {
            is_dead: true,
            ..World::default()
        });
        while lab.probes < FIRST_PROBES as usize {
            lab.step();
        }
        let (nonce, sent) = (lab.nonce, lab.now);
        lab.now = lab.now.after(MOST_PATIENCE);
        lab.path.turn(Pace::FASTEST, lab.now, &mut Vec::new());
        // The next turn is the next probe's, half a minute later.
        assert!(lab.path.wake() > sent.after(LATE * 2));
        let answered = lab.path.answer(nonce, sent.after(after));
        assert_eq!(answered.is_some(), counts);
    }
}
