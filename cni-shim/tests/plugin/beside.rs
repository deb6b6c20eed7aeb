//! Calls for the same attachment at once, which no runtime should make, with an
//! IPAM plugin that takes its time: line C7 of the checklist. Whatever comes
//! beside whatever, in the end all of an attachment stands or nothing of it.

use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant, SystemTime};

use cni_shim::Attachment;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::requested::{debtor, ended};
use crate::rig::{Answer, Census, Rig, ping, variables};

/// A node, a pod, and an IPAM plugin that takes a second, or what is asked for,
/// before it serves a verb that it was made [`Beside::slow`] for, once.
struct Beside {
    rig: Rig,
    pod: String,
    path: String,
    held: PathBuf,
    conf: String,
    nothing: Census,
}

impl Beside {
    fn new() -> Beside {
        let mut rig = Rig::new(&["10.244.7.0/24"]);
        let pod = rig.pod();
        let (path, held) = debtor(&rig, "slow");
        let program = held.with_file_name("slow");
        let wait = format!(
            "cat >/dev/null; cd {path}; \
             if mv slow-$CNI_COMMAND begun-$CNI_COMMAND 2>/dev/null; then \
             sleep $(cat begun-$CNI_COMMAND) & echo $! >pid; mv pid sleeps-$CNI_COMMAND; wait; fi"
        );
        let script = std::fs::read_to_string(&program).unwrap();
        let script = script.replacen("cat >/dev/null", &wait, 1);
        std::fs::write(&program, script).unwrap();
        let mut conf = rig.conf("1.0.0");
        conf["ipam"] = json!({"type": "slow"});
        let conf = conf.to_string();
        let nothing = rig.census();
        Beside {
            rig,
            pod,
            path,
            held,
            conf,
            nothing,
        }
    }

    fn slow(&self, verb: &str, seconds: &str) {
        let _ = std::fs::remove_file(self.held.with_file_name(format!("begun-{verb}")));
        std::fs::write(self.held.with_file_name(format!("slow-{verb}")), seconds).unwrap();
    }

    fn until_begun(&self, verb: &str) {
        self.wait_for(&format!("begun-{verb}"));
    }

    fn wait_for(&self, name: &str) -> PathBuf {
        let file = self.held.with_file_name(name);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !file.exists() {
            assert!(Instant::now() < deadline, "{name} never came");
            std::thread::sleep(Duration::from_millis(5));
        }
        file
    }

    /// The IPAM plugin has taken long enough.
    fn hurry(&self, verb: &str) {
        let sleeps = self.wait_for(&format!("sleeps-{verb}"));
        let id = std::fs::read_to_string(&sleeps).unwrap();
        let id = Pid::from_raw(id.trim().parse().unwrap()).unwrap();
        kill_process(id, Signal::KILL).unwrap();
    }

    fn spawn(&self, verb: &str) -> Child {
        let mut call = variables(verb, "c1", "eth0", &self.pod).to_vec();
        call.push(("CNI_PATH", &self.path));
        self.rig.spawn(&call, &self.conf)
    }

    /// GC of everything.
    fn gc(&self) -> Child {
        let mut conf: serde_json::Value = serde_json::from_str(&self.conf).unwrap();
        conf["cniVersion"] = json!("1.1.0");
        conf["cni.dev/valid-attachments"] = json!([]);
        let call = [("CNI_COMMAND", "GC"), ("CNI_PATH", self.path.as_str())];
        self.rig.spawn(&call, conf.to_string())
    }

    fn call(&self, verb: &str) -> Answer {
        ended(self.spawn(verb))
    }

    fn nothing_stands(&self, case: &str) {
        assert_eq!(self.rig.census(), self.nothing, "{case}");
        assert!(!self.held.exists(), "{case}: the address is owed");
    }

    /// The ADD that was answered so has made all of it, and DEL takes all of it.
    fn all_stands(&self, added: &Answer, case: &str) {
        let record = self.rig.record("c1", "eth0");
        assert_eq!(record.addresses.len(), 1, "{case}");
        assert!(self.held.exists(), "{case}: the address is given back");
        assert!(ping(&self.rig.node, &added.address()), "{case}: {added:?}");
        assert_eq!(record.host_ifname, added.host_ifname(), "{case}");
        self.call("DEL").silent();
        self.nothing_stands(case);
    }
}

#[test]
fn c7_a_del_beside_an_add_leaves_nothing() {
    let beside = Beside::new();
    for slow in [&["ADD"][..], &["ADD", "DEL"]] {
        slow.iter().for_each(|verb| beside.slow(verb, "1"));
        let add = beside.spawn("ADD");
        beside.until_begun("ADD");
        beside.call("DEL").silent();
        ended(add);
        beside.nothing_stands(&format!("{slow:?}"));
    }
}

#[test]
fn c7_an_add_beside_a_del_stays_complete() {
    let beside = Beside::new();
    for recorded in [true, false] {
        for slow in [&["DEL"][..], &["DEL", "ADD"]] {
            let case = format!("{slow:?}, recorded: {recorded}");
            if recorded {
                beside.call("ADD").result();
            }
            slow.iter().for_each(|verb| beside.slow(verb, "1"));
            let del = beside.spawn("DEL");
            beside.until_begun("DEL");
            let added = beside.call("ADD");
            ended(del).silent();
            beside.all_stands(&added, &case);
        }
    }
}

/// The first is waited for, whatever it is, and the second is refused or finds
/// nothing more to do.
#[test]
fn c7_of_two_equal_calls_the_second_does_no_harm() {
    let beside = Beside::new();
    beside.slow("ADD", "1");
    let first = beside.spawn("ADD");
    beside.until_begun("ADD");
    assert_eq!(beside.call("ADD").error().0, 105);
    let first = ended(first);
    beside.all_stands(&first, "two ADDs");

    beside.call("ADD").result();
    beside.slow("DEL", "1");
    let first = beside.spawn("DEL");
    beside.until_begun("DEL");
    beside.call("DEL").silent();
    ended(first).silent();
    beside.nothing_stands("two DELs");
}

/// Killing a DEL does not kill its IPAM plugin, whose word would be the
/// next ADD's.
#[test]
fn c7_an_ipam_plugin_that_outlives_its_del_is_waited_for() {
    let beside = Beside::new();
    for next in ["ADD", "DEL"] {
        beside.call("ADD").result();
        beside.slow("DEL", "1");
        let mut killed = beside.spawn("DEL");
        beside.until_begun("DEL");
        killed.kill().unwrap();
        assert!(!killed.wait().unwrap().success());
        let answer = beside.call(next);
        // What it does late it has done by then.
        std::thread::sleep(Duration::from_millis(1200));
        if next == "ADD" {
            beside.all_stands(&answer, next);
        } else {
            answer.silent();
            beside.nothing_stands(next);
        }
    }
}

/// GC waits for a DEL at work, and takes nothing of the ADD that waits with it.
#[test]
fn c7_gc_beside_a_del_takes_nothing_of_the_next_add() {
    let beside = Beside::new();
    for _ in 0..3 {
        beside.call("ADD").result();
        beside.slow("DEL", "1");
        let del = beside.spawn("DEL");
        beside.until_begun("DEL");
        let gc = beside.gc();
        let added = beside.call("ADD");
        ended(gc).silent();
        ended(del).silent();
        beside.all_stands(&added, "GC");
    }
}

/// A record that is older than an ADD takes may be that of one that lives all
/// the same, and stands when GC has waited for it.
#[test]
fn c7_gc_takes_nothing_of_an_old_add_that_it_waited_for() {
    let beside = Beside::new();
    beside.slow("ADD", "25");
    let add = beside.spawn("ADD");
    beside.until_begun("ADD");
    let record = Attachment::path(&beside.rig.run(), "c1", "eth0").unwrap();
    let written = std::fs::File::options().write(true).open(&record).unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(120);
    written.set_modified(long_ago).unwrap();
    let mut gc = beside.gc();
    // It has looked at the record by then, and waits.
    std::thread::sleep(Duration::from_millis(500));
    assert!(gc.try_wait().unwrap().is_none());
    beside.hurry("ADD");
    let added = ended(add);
    ended(gc).silent();
    beside.all_stands(&added, "GC");
}

#[test]
fn other_attachments_are_not_waited_for() {
    let mut beside = Beside::new();
    let other = beside.rig.pod();
    beside.slow("ADD", "25");
    let mut add = beside.spawn("ADD");
    beside.until_begun("ADD");
    for (container, ifname) in [("c2", "eth0"), ("c1", "net1")] {
        beside.rig.add(container, ifname, &other).result();
        beside.rig.del(container, ifname, &other).silent();
    }
    assert!(add.try_wait().unwrap().is_none());
    beside.hurry("ADD");
    ended(add).result();
    beside.call("DEL").silent();
}

/// One that stands still is waited for as long as an IPAM plugin may take.
/// When it goes on, its IPAM plugin having answered, it makes nothing any more.
#[test]
fn c7_a_del_waits_half_a_minute_for_a_stopped_add() {
    let beside = Beside::new();
    beside.slow("ADD", "0.1");
    beside.slow("DEL", "2");
    let add = beside.spawn("ADD");
    beside.until_begun("ADD");
    let stopped = Pid::from_child(&add);
    kill_process(stopped, Signal::STOP).unwrap();
    let began = Instant::now();
    let del = beside.spawn("DEL");
    beside.until_begun("DEL");
    let waited = began.elapsed().as_secs();
    assert!((29..40).contains(&waited), "{waited} s");
    kill_process(stopped, Signal::CONT).unwrap();
    let (code, message) = ended(add).error();
    assert_eq!(code, 104, "{message}");
    assert!(message.contains("was removed"), "{message}");
    let del = ended(del);
    del.silent();
    assert!(del.stderr.contains("has not ended"), "{del:?}");
    beside.nothing_stands("seized");
}
