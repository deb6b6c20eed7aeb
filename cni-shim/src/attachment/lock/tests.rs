use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

const SOON: Duration = Duration::from_millis(50);

fn node() -> (tempfile::TempDir, RunDir) {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::under(root.path());
    run.make().unwrap();
    (root, run)
}

fn take(run: &RunDir, patience: Duration) -> Result<Lock, Error> {
    Lock::take(run, "c1", "eth0", patience)
}

fn files(run: &RunDir) -> usize {
    fs::read_dir(run.attachments()).unwrap().count()
}

/// A child that has inherited the lock.
fn heir(lock: &Lock) -> Child {
    let inherited = lock.pass_to_child().unwrap();
    let child = Command::new("sleep").arg("60").spawn().unwrap();
    drop(inherited);
    child
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn one_holds_it_and_leaves_no_file() {
    let (_root, run) = node();
    let first = take(&run, SOON).unwrap();
    let error = take(&run, SOON).unwrap_err();
    let ourselves = format!("process {} (", std::process::id());
    assert!(error.to_string().contains(&ourselves), "{error}");
    let other = Lock::take(&run, "c1", "net1", SOON).unwrap();
    assert_eq!(files(&run), 2, "another attachment's is another");
    drop(first);
    drop(take(&run, SOON).unwrap());
    drop(other);
    assert_eq!(files(&run), 0);
}

/// Each of them removes the file under the others, which wait for it.
#[test]
fn of_many_one_holds_it_at_a_time() {
    let (_root, run) = node();
    let held = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let lock = take(&run, Duration::from_secs(60)).unwrap();
                    assert!(!held.swap(true, Ordering::SeqCst));
                    std::thread::yield_now();
                    held.store(false, Ordering::SeqCst);
                    drop(lock);
                }
            });
        }
    });
    assert_eq!(files(&run), 0);
}

#[test]
fn a_child_holds_what_was_inherited_to_it_and_no_other() {
    let (_root, run) = node();
    // As if we were killed: the file is closed and nothing is done.
    let killed = |mut lock: Lock| drop(lock.held.take());
    let lock = take(&run, SOON).unwrap();
    let stranger = Command::new("sleep").arg("60").spawn().unwrap();
    killed(lock);
    let lock = take(&run, SOON).unwrap();
    end(stranger);
    let child = heir(&lock);
    killed(lock);
    let error = take(&run, SOON).unwrap_err();
    assert!(matches!(error, Error::AtWork { .. }), "{error}");
    let file = path(&run, "c1", "eth0").unwrap();
    let remedy = format!("fuser {}", file.display());
    assert!(error.to_string().contains(&remedy), "{error}");
    assert_eq!(sweep(&run).unwrap(), 1);
    end(child);
    drop(take(&run, SOON).unwrap());
    assert_eq!(files(&run), 0);
}

/// An IPAM plugin may leave a process behind that lives for as long as the node.
#[test]
fn what_a_child_has_ends_with_the_holder() {
    let (_root, run) = node();
    let lock = take(&run, SOON).unwrap();
    let child = heir(&lock);
    // Another one waits at the file that the holder removes.
    let waiting = open(&path(&run, "c1", "eth0").unwrap(), false).unwrap();
    drop(lock);
    waiting.try_lock().unwrap();
    drop(take(&run, SOON).unwrap());
    end(child);
}

#[test]
fn a_seized_lock_is_void_and_leaves_the_next_alone() {
    let (_root, run) = node();
    let lost = take(&run, SOON).unwrap();
    assert!(lost.is_valid());
    let next = Lock::seize(&run, "c1", "eth0").unwrap();
    assert!(!lost.is_valid() && next.is_valid());
    drop(lost);
    assert!(next.is_valid());
    assert!(take(&run, SOON).is_err());
    drop(next);
    assert_eq!(files(&run), 0);
    // No process holds it.
    drop(Lock::seize(&run, "c1", "eth0").unwrap());
    assert!(Lock::none().is_valid());
}

/// Neither one that waits nor the agent's sweep has it for a moment.
#[test]
fn who_seizes_it_has_it_whoever_else_is_after_it() {
    let (_root, run) = node();
    let over = AtomicBool::new(false);
    let mut lock = take(&run, SOON).unwrap();
    std::thread::scope(|scope| {
        for sweeps in [false, false, true] {
            let (run, over) = (&run, &over);
            scope.spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    if sweeps {
                        sweep(run).unwrap();
                    } else if take(run, Duration::ZERO).is_ok() {
                        over.store(true, Ordering::SeqCst);
                    }
                }
            });
        }
        for _ in 0..2000 {
            let seized = Lock::seize(&run, "c1", "eth0");
            let holds = seized.as_ref().is_ok_and(Lock::is_valid) && !lock.is_valid();
            if !holds || over.load(Ordering::SeqCst) {
                over.store(true, Ordering::SeqCst);
                panic!("{seized:?}");
            }
            // The one before it goes.
            lock = seized.unwrap();
        }
        over.store(true, Ordering::SeqCst);
    });
    drop(lock);
    assert_eq!(files(&run), 0);
}

#[test]
fn what_killed_holders_left_is_swept_and_nothing_else() {
    let (_root, run) = node();
    let at = |name: &str| run.attachments().join(name);
    let kept = [".lock", ".77.c1:eth0.json", "c1:eth0.json"];
    for name in kept.iter().chain(&[".lock-c1:eth0", ".lock-c2:eth0"]) {
        fs::write(at(name), "").unwrap();
    }
    let held = Lock::take(&run, "c3", "eth0", SOON).unwrap();
    assert_eq!(sweep(&run).unwrap(), 1);
    assert_eq!(files(&run), kept.len() + 1);
    assert!(kept.iter().all(|name| at(name).exists()));
    drop(held);
    fs::remove_dir_all(run.attachments()).unwrap();
    assert_eq!(sweep(&run).unwrap(), 0);
}

#[test]
fn a_lock_that_cannot_be_made_is_an_error() {
    let (_root, run) = node();
    let long = "x".repeat(200);
    drop(Lock::take(&run, &long, "longest-ifname1", SOON).unwrap());
    for (container, ifname) in [("../x", "eth0"), ("c1", "a/b")] {
        let error = Lock::take(&run, container, ifname, SOON).unwrap_err();
        assert!(matches!(error, Error::Name { .. }), "{error}");
    }
    fs::remove_dir_all(run.attachments()).unwrap();
    assert!(take(&run, SOON).unwrap_err().is_not_found());
    fs::write(run.attachments(), "").unwrap();
    let error = take(&run, SOON).unwrap_err();
    assert!(error.to_string().contains("check free space"), "{error}");
}
