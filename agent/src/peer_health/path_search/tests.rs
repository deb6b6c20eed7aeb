use super::*;
use proptest::prelude::*;

/// A path of an MTU that loses some of its packets: what comes next of `random` decides.
struct Way {
    mtu: u16,
    loss: u32,
    random: u64,
}

impl Way {
    fn carries(&mut self, size: u16) -> bool {
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        size <= self.mtu && self.random % 100 >= u64::from(self.loss)
    }
}

/// One step: what would be sent now is sent, and its outcome told 300 ms later. Returns the probes it took.
fn step(search: &mut PathSearch, way: &mut Way, now: &mut Now) -> usize {
    let sent = *now;
    *now = now.after(Duration::from_millis(300));
    let sizes = search.unsent();
    if !sizes.is_empty() {
        search.mark_sent(sent);
        if way.carries(48) {
            search.behind_passed(sent, *now);
        }
        for size in &sizes {
            match way.carries(*size) {
                true => search.passed(*size, *now),
                false => search.lost(*size, sent, *now),
            };
        }
        return sizes.len();
    }
    search.expire(*now);
    let full = search.raise(sent).unwrap_or(search.full());
    let small = way.carries(48);
    match way.carries(full) {
        true => search.passed(full, *now),
        false => search.lost(full, sent, *now),
    };
    if small {
        search.small_passed(sent, *now);
    }
    2
}

/// Steps until it has settled; how many it took and how many probes.
fn settle(search: &mut PathSearch, way: &mut Way, now: &mut Now) -> (usize, usize) {
    let (mut steps, mut probes) = (0, 0);
    while search.measured() != Some(way.mtu.min(search.ceiling()).max(search.floor))
        || !search.unsent().is_empty()
    {
        probes += step(search, way, now);
        steps += 1;
        assert!(steps < 1000, "{search:?}");
    }
    (steps, probes)
}

fn sound(mtu: u16) -> Way {
    Way {
        mtu,
        loss: 0,
        random: 1,
    }
}

#[test]
fn a_sound_path_is_measured_by_one_probe() {
    let (mut search, mut now) = (PathSearch::new(626, 1500), Now(1));
    assert_eq!((search.measured(), search.full()), (None, 1500));
    assert_eq!(settle(&mut search, &mut sound(1500), &mut now), (1, 2));
    assert_eq!(search.raise_due(), None);
}

#[test]
fn black_holes_are_found_in_both_directions() {
    let (mut search, mut now) = (PathSearch::new(626, 1500), Now(1));
    settle(&mut search, &mut sound(9000), &mut now);
    let (steps, probes) = settle(&mut search, &mut sound(1400), &mut now);
    assert!(steps <= 9 && probes <= 25, "{steps} steps, {probes} probes");
    // Upwards, once the raise is due.
    now = now.after(RAISE_EVERY);
    let (steps, _) = settle(&mut search, &mut sound(1450), &mut now);
    assert!(steps <= 8, "{steps}");
    now = now.after(RAISE_EVERY);
    let (steps, _) = settle(&mut search, &mut sound(9000), &mut now);
    assert!(steps <= 3, "{steps}");
}

#[test]
fn a_lost_probe_and_a_dead_path_are_no_black_hole() {
    let (mut search, now) = (PathSearch::new(626, 1500), Now(10_000));
    for _ in 0..2 {
        search.passed(1500, now);
        search.small_passed(now, now);
        search.lost(1500, now, now);
    }
    assert!(!search.is_seeking(), "two lost, but not in a row");
    search.passed(1500, now);
    // The small one that was answered had been sent before.
    let later = now.after(Duration::from_millis(1));
    for _ in 0..10 {
        search.lost(1500, later, later);
        assert!(search.unsent().is_empty());
    }
    assert_eq!(search.measured(), Some(1500));
}

#[test]
fn a_path_that_dies_while_it_is_searched_keeps_its_measure() {
    let (mut search, mut now) = (PathSearch::new(626, 1500), Now(1));
    settle(&mut search, &mut sound(1500), &mut now);
    let mut narrow = sound(1000);
    while search.unsent().is_empty() {
        step(&mut search, &mut narrow, &mut now);
    }
    for _ in 0..10 {
        step(&mut search, &mut sound(0), &mut now);
    }
    assert_eq!(search.measured(), Some(1500));
    assert!(search.unsent().is_empty());
}

#[test]
fn a_path_below_the_floor_is_measured_as_the_floor() {
    let (mut search, mut now) = (PathSearch::new(626, 1500), Now(1));
    search.lost(1500, now, now);
    search.lost(1500, now, now);
    search.small_passed(now, now);
    while search.measured().is_none() {
        now = now.after(Duration::from_millis(300));
        let sizes = search.unsent();
        search.mark_sent(now);
        for size in sizes {
            search.lost(size, now, now);
        }
        search.behind_passed(now, now);
    }
    assert_eq!(search.measured(), Some(626));
}

/// A forger that draws the peer's answers leaves few of them, and the small one is sent last.
#[test]
fn a_peer_that_answers_little_is_no_narrow_path() {
    let (mut search, mut now) = (PathSearch::new(626, 1500), Now(1));
    settle(&mut search, &mut sound(1500), &mut now);
    for turn in 0..400_u32 {
        now = now.after(Duration::from_millis(300));
        search.expire(now);
        let sizes = search.unsent();
        search.mark_sent(now);
        // Of what is sent at once the peer answers the first, in every third turn a lone small one.
        for (place, size) in sizes.iter().enumerate() {
            match place {
                0 => search.passed(*size, now),
                _ => search.lost(*size, now, now),
            };
        }
        if sizes.is_empty() {
            search.lost(search.full(), now, now);
            if turn % 3 == 0 {
                search.small_passed(now, now);
            }
        }
        assert_eq!(search.measured(), Some(1500), "turn {turn}");
    }
}

#[test]
fn another_ceiling_is_tried_at_once() {
    let (mut search, mut now) = (PathSearch::new(626, 1500), Now(1));
    settle(&mut search, &mut sound(9000), &mut now);
    search.bound(626, 9000);
    assert_eq!(search.measured(), Some(1500));
    let (steps, _) = settle(&mut search, &mut sound(9000), &mut now);
    assert!(steps <= 4, "{steps}");
    search.bound(626, 1400);
    assert_eq!(search.measured(), Some(1400));
}

proptest! {
    /// Whatever the path, it is measured to the byte, by few probes.
    #[test]
    fn every_mtu_is_found(ceiling in 1280u16..9001, first in 600u16..9001, then in 600u16..9001) {
        let (mut search, mut now) = (PathSearch::new(626, ceiling), Now(1));
        for mtu in [first.max(626), then.max(626)] {
            now = now.after(RAISE_EVERY);
            let (steps, probes) = settle(&mut search, &mut sound(mtu), &mut now);
            prop_assert!(steps <= 14 && probes <= 40, "{} steps, {} probes", steps, probes);
        }
    }

    /// On a path that loses packets too, in the end; and more than it carries is never measured.
    #[test]
    fn loss_only_delays(mtu in 626u16..1501, loss in 0u32..20, random in 1u64..u64::MAX) {
        let mut way = Way { mtu, loss, random };
        let (mut search, mut now) = (PathSearch::new(626, 1500), Now(1));
        let mut exact = 0;
        for _ in 0..2000 {
            step(&mut search, &mut way, &mut now);
            prop_assert!(search.measured().is_none_or(|measured| measured <= mtu));
            exact += u32::from(search.measured() == Some(mtu));
        }
        prop_assert!(exact > 500, "{}", exact);
    }
}

impl PathSearch {
    /// For tests of paths.
    pub(in crate::peer_health) fn is_outgrown(&self) -> bool {
        self.is_outgrown
    }
}
