use super::*;
use crate::config::RunArgs;

/// Cores of two threads each, numbered as usual: the second threads after all first ones.
fn machine(cores: usize, time: usize) -> Machine {
    Machine {
        cores: (0..cores).map(|core| vec![core, cores + core]).collect(),
        time,
    }
}

fn config(node: &str, workers: Option<u16>, cores: &[u16]) -> NodeConfig {
    let root = tempfile::tempdir().unwrap();
    let args = RunArgs {
        root: Some(root.path().to_owned()),
        node_name: Some(node.to_owned()),
        workers,
        cores: Some(cores.to_vec()),
        ..RunArgs::default()
    };
    NodeConfig::load(&args).unwrap()
}

#[test]
fn half_of_the_cores_work_unless_it_is_said_otherwise() {
    let unsaid = config("n", None, &[]);
    for (cores, time, workers) in [
        (1, 2, 1),
        (2, 4, 1),
        (4, 8, 2),
        (5, 10, 2),
        (8, 16, 4),
        (64, 128, 4),
        // A control group that grants less.
        (64, 3, 1),
        (64, 4, 2),
    ] {
        let machine = machine(cores, time);
        assert_eq!(machine.workers(&unsaid), workers, "{machine:?}");
    }
    assert_eq!(machine(1, 1).workers(&config("n", Some(7), &[])), 7);
    assert_eq!(machine(8, 8).workers(&config("n", None, &[3, 2])), 2);
}

#[test]
fn workers_are_pinned_where_they_leave_half_of_the_cores_to_others() {
    let node = config("n", None, &[]);
    for (cores, time, workers) in [(8, 16, 1), (8, 16, 5), (2, 4, 2), (8, 4, 3)] {
        let (places, unusable) = machine(cores, time).places(workers, &node);
        assert_eq!((places, unusable), (vec![None; workers], vec![]));
    }
    let (places, _) = machine(8, 16).places(4, &node);
    let mut places: Vec<usize> = places.into_iter().map(Option::unwrap).collect();
    let first = places[0];
    let next: Vec<usize> = (first..first + 4).map(|core| core % 8).collect();
    assert_eq!(places, next, "one after the other");
    places.dedup();
    assert_eq!(places.len(), 4);
    assert!(places.iter().all(|place| *place < 8), "no second threads");
}

#[test]
fn nodes_of_one_machine_begin_at_different_cores() {
    let machine = machine(8, 16);
    let firsts: std::collections::BTreeSet<_> = (0..32)
        .map(|n| {
            machine
                .places(2, &config(&format!("kind-worker{n}"), None, &[]))
                .0[0]
        })
        .collect();
    assert!(firsts.len() > 5, "{firsts:?}");
}

#[test]
fn named_cores_are_used_and_those_that_are_not_there_are_told() {
    let machine = machine(2, 1);
    let (places, unusable) = machine.places(2, &config("n", None, &[3, 0, 1]));
    assert_eq!((places, unusable), (vec![Some(3), Some(0)], vec![]));
    let (places, unusable) = machine.places(3, &config("n", None, &[1, 9, 17]));
    assert_eq!(places, [Some(1), None, None]);
    assert_eq!(unusable, [9, 17]);
}

#[test]
fn threads_of_one_core_are_one() {
    let topology = tempfile::tempdir().unwrap();
    for (id, siblings) in [
        (0, "0,2\n"),
        (1, "1,3\n"),
        (2, "0,2\n"),
        (3, "1,3\n"),
        (4, "4-5\n"),
    ] {
        let directory = topology.path().join(format!("cpu{id}/topology"));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("thread_siblings_list"), siblings).unwrap();
    }
    let found = physical(topology.path(), 0..5);
    assert_eq!(found, [vec![0, 2], vec![1, 3], vec![4]]);
    // Only what this process may use counts.
    assert_eq!(
        physical(topology.path(), [2, 3].into_iter()),
        [vec![2], vec![3]]
    );
    assert_eq!(physical(Path::new("/nowhere"), 0..2), [vec![0], vec![1]]);
    let here = Machine::read();
    assert!(!here.cores.is_empty() && here.time > 0, "{here:?}");
}
