use super::*;
use proptest::prelude::*;

fn peer(number: u8) -> SocketAddr {
    SocketAddr::new([192, 0, 2, number].into(), 8472)
}

/// Pushes datagrams of these lengths to one peer and returns the GSO batches as lengths.
fn batches(lengths: &[usize]) -> Vec<Vec<usize>> {
    let pushed: Vec<_> = lengths.iter().map(|len| (1, *len, Ecn::NotEct)).collect();
    let batches = push_all(&pushed);
    let lengths = batches.into_iter().map(|(_, numbers)| {
        let of = |number: &u32| lengths[*number as usize];
        numbers.iter().map(of).collect()
    });
    lengths.collect()
}

/// Pushes datagrams (peer, length, ECN) and returns the GSO batches, each with the numbers of its datagrams.
fn push_all(pushed: &[(u8, usize, Ecn)]) -> Vec<(GsoBatch, Vec<u32>)> {
    let mut queue = TxQueue::new(16);
    let mut next = vec![None; pushed.len()];
    for (number, (to, len, ecn)) in (0u32..).zip(pushed) {
        if let Some(before) = queue.push(number, *len, peer(*to), *ecn) {
            next[before as usize] = Some(number);
        }
    }
    assert_eq!(queue.count(), pushed.len());
    let numbers = |batch: &GsoBatch| {
        let walk = |number: &u32| next[*number as usize];
        let numbers: Vec<_> = std::iter::successors(Some(batch.first), walk)
            .take(batch.count)
            .collect();
        assert_eq!(numbers.last(), Some(&batch.last));
        numbers
    };
    queue.waiting().iter().map(|t| (*t, numbers(t))).collect()
}

#[test]
fn equal_lengths_leave_together_and_a_shorter_one_ends_them() {
    assert_eq!(batches(&[100, 100, 100]), [[100; 3]]);
    assert_eq!(
        batches(&[100, 100, 60, 100]),
        [vec![100, 100, 60], vec![100]]
    );
    assert_eq!(batches(&[100, 101]), [[100], [101]]);
    assert_eq!(batches(&[1_472; 50]), [vec![1_472; 44], vec![1_472; 6]]);
    assert_eq!(
        batches(&[90; 130]),
        [vec![90; 63], vec![90; 63], vec![90; 4]]
    );
    assert_eq!(batches(&[65_507, 1]), [[65_507], [1]]);
}

#[test]
fn a_discarded_queue_has_no_filled_batch() {
    let mut queue = TxQueue::new(1);
    for number in 0..44 {
        assert!(!queue.was_filled());
        queue.push(number, 1_472, peer(1), Ecn::NotEct);
    }
    assert!(queue.was_filled());
    assert_eq!(queue.discard(), 44);
    assert!(!queue.was_filled());
}

#[test]
fn peers_and_codepoints_do_not_mix() {
    let (a, b) = (Ecn::NotEct, Ecn::Ce);
    let batches = push_all(&[
        (1, 9, a),
        (2, 9, a),
        (1, 9, a),
        (1, 9, b),
        (1, 9, a),
        (2, 9, a),
    ]);
    let numbers: Vec<_> = batches.into_iter().map(|(_, numbers)| numbers).collect();
    assert_eq!(numbers, [vec![0, 2], vec![1, 5], vec![3], vec![4]]);
}

proptest! {
    /// Every datagram is sent once; those to one peer keep their order; no GSO batch is larger than the kernel
    /// takes.
    #[test]
    fn any_traffic_keeps_its_order(
        pushed in proptest::collection::vec((1u8..12, 20usize..1_500, 0u8..4), 0..300),
        same in any::<bool>(),
    ) {
        let ecn = |bits| [Ecn::NotEct, Ecn::Ect0, Ecn::Ect0, Ecn::Ce][usize::from(bits)];
        let pushed: Vec<_> = pushed
            .into_iter()
            .map(|(to, len, bits)| (to, if same { len / 500 * 500 + 20 } else { len }, ecn(bits)))
            .collect();
        let batches = push_all(&pushed);
        let mut all: Vec<u32> = Vec::new();
        for to in 1..12 {
            let ours = batches.iter().filter(|(batch, _)| batch.to == peer(to));
            let order: Vec<u32> = ours.flat_map(|(_, numbers)| numbers.clone()).collect();
            prop_assert!(order.is_sorted());
            all.extend(order);
        }
        all.sort_unstable();
        prop_assert_eq!(all, (0..pushed.len() as u32).collect::<Vec<_>>());
        for (batch, numbers) in batches {
            let of = |number: &u32| pushed[*number as usize];
            let (last, before) = numbers.split_last().unwrap();
            prop_assert!(before.iter().all(|n| of(n).1 == batch.size));
            prop_assert!(of(last).1 <= batch.size);
            prop_assert!(numbers.iter().all(|n| of(n).2 == batch.ecn));
            let bytes: usize = numbers.iter().map(|n| of(n).1).sum();
            prop_assert!(numbers.len() <= GSO_SEGMENTS && bytes <= GSO_BYTES_V4);
            prop_assert!(numbers.len() == 1 || bytes + 48 <= GSO_SEGMENTS * batch.size);
        }
    }
}
