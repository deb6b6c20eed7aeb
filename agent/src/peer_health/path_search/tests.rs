use super::*;
use proptest::prelude::*;

/// A path of an MTU that loses some of its packets: what comes next of `random` decides.
struct Way {
    mtu: u16,
    loss: u32,
    random: u64,
    /// What pods were told last.
    told: Option<u16>,
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
            way.told = search.behind_passed(sent, *now).or(way.told);
        }
        for size in &sizes {
            let learned = match way.carries(*size) {
                true => search.passed(*size, *now),
                false => search.lost(*size, sent, *now),
            };
            way.told = learned.or(way.told);
        }
        return sizes.len();
    }
    search.expire(*now);
    let full = search.raise(sent).unwrap_or(search.full());
    let small = way.carries(48);
    let learned = match way.carries(full) {
        true => search.passed(full, *now),
        false => search.lost(full, sent, *now),
    };
    way.told = learned.or(way.told);
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
        told: None,
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
        let mut way = Way { mtu, loss, random, told: None };
        let (mut search, mut now) = (PathSearch::new(626, 1500), Now(1));
        let mut exact = 0;
        for _ in 0..2000 {
            step(&mut search, &mut way, &mut now);
            prop_assert!(search.measured().is_none_or(|measured| measured <= mtu));
            exact += u32::from(search.measured() == Some(mtu));
        }
        prop_assert!(exact > 500, "{}", exact);
    }

    /// What pods are told while a search goes on passes and is not below the floor, and when the search has ended they are told
    /// what is measured. So a good path that was lost to chance is undone within so many rounds.
    #[test]
    fn what_is_told_meanwhile_passes_and_is_replaced(mtu in 626u16..1501, loss in 0u32..20, random in 1u64..u64::MAX) {
        let mut way = Way { mtu, loss, random, told: None };
        let (mut search, mut now) = (PathSearch::new(626, 1500), Now(1));
        let mut since = 0;
        for _ in 0..2000 {
            step(&mut search, &mut way, &mut now);
            prop_assert!(way.told.is_none_or(|told| (626..=mtu).contains(&told)), "{:?}", way.told);
            since = if way.told == search.measured() { 0 } else { since + 1 };
            prop_assert!(since <= 100, "{:?} was told, {:?}", way.told, search);
        }
    }

    /// Chance makes no good path narrow that loses as much as TCP can bear, or hardly ever, and not for long.
    #[test]
    fn loss_tells_no_good_path_narrow(loss in 0u32..6, random in 1u64..u64::MAX) {
        let mut way = Way { mtu: 1500, loss, random, told: None };
        let (mut search, mut now) = (PathSearch::new(626, 1500), Now(1));
        let mut narrow = 0;
        for _ in 0..2000 {
            step(&mut search, &mut way, &mut now);
            narrow += u32::from(way.told.is_some_and(|told| told < 1500));
        }
        prop_assert!(narrow <= 40, "{}", narrow);
    }
}

#[test]
fn pods_are_told_a_size_that_passes_before_the_search_has_ended() {
    for (mtu, first) in [(1437, 1400), (1400, 1400), (1300, 1280), (700, 626)] {
        let (mut search, mut now) = (PathSearch::new(626, 1500), Now(1));
        settle(&mut search, &mut sound(1500), &mut now);
        let mut way = sound(mtu);
        let mut told = Vec::new();
        let mut steps = 0;
        while search.measured() == Some(1500) {
            step(&mut search, &mut way, &mut now);
            steps += 1;
            if told.last().copied() != way.told {
                told.extend(way.told);
                // Two lost probes, and one round; one more where the least likely size is too large.
                assert!(told.len() > 1 || steps <= 4, "{mtu}: {steps}");
            }
        }
        assert!(
            told.is_sorted() && told.iter().all(|told| *told <= mtu),
            "{told:?}"
        );
        assert_eq!((told.first(), told.last()), (Some(&first), Some(&mtu)));
        assert_eq!(search.measured(), Some(mtu));
    }
}

#[test]
fn a_likely_size_is_found_in_three_rounds() {
    for (ceiling, mtu) in [(9000, 1500), (1500, 1400), (1500, 1492), (9000, 1280)] {
        let (mut search, mut now) = (PathSearch::new(626, ceiling), Now(1));
        settle(&mut search, &mut sound(ceiling), &mut now);
        let (steps, probes) = settle(&mut search, &mut sound(mtu), &mut now);
        assert!(
            steps <= 2 + 3 && probes <= 2 * 2 + 7 + 3 + 3,
            "{mtu}: {steps} steps, {probes} probes"
        );
    }
}

#[test]
fn packets_that_cease_to_flow_are_one_lost_probe_and_no_more() {
    let (mut search, mut now) = (PathSearch::new(626, 1500), Now(1));
    settle(&mut search, &mut sound(1500), &mut now);
    search.suspect(now);
    search.suspect(now);
    search.small_passed(now, now);
    assert!(!search.is_seeking());
    search.passed(1500, now);
    search.lost(1500, now, now);
    search.small_passed(now, now);
    assert!(!search.is_seeking(), "one that passes is the end of it");
    search.passed(1500, now);
    search.suspect(now);
    search.lost(1500, now, now);
    search.small_passed(now, now);
    assert!(search.is_seeking());
    // The full size is in the first round, twice, and ends it.
    let full = search.unsent().into_iter().filter(|size| *size == 1500);
    assert_eq!(full.count(), 2);
    search.mark_sent(now);
    assert_eq!(search.passed(1500, now), Some(1500));
    assert!(!search.is_seeking());
}

impl PathSearch {
    /// For tests of paths.
    pub(in crate::peer_health) fn is_outgrown(&self) -> bool {
        self.is_outgrown
    }
}
