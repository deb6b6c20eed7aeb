//! Thousands of random ADD, DEL, CHECK and GC, plugins killed anywhere, the
//! agent restarted anywhere: nothing leaks, and nobody gets an address that
//! somebody has. `TARTAN_CNI_CAMPAIGN` is the number of operations, by default
//! few; `TARTAN_CNI_SEED` repeats a run.

use std::collections::HashMap;
use std::sync::{Mutex, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::rig::{Answer, Mood, Rig, ip, variables};

const WORKERS: usize = 4;

/// xorshift64*: enough to choose by, and the same everywhere.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// What the runtime believes: which attachment has which address.
type Held = Mutex<HashMap<String, (String, String)>>;

/// One operation, killed part of the time. None: killed.
fn operate(rig: &Rig, chance: &mut Chance, call: &[(&str, &str)], conf: &str) -> Option<Answer> {
    let mut child = rig.spawn(call, conf);
    if chance.below(100) >= 30 {
        return Some(Answer::of(child.wait_with_output().unwrap()));
    }
    std::thread::sleep(Duration::from_micros(chance.below(15_000)));
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    // It may have been faster.
    output.status.code().map(|_| Answer::of(output))
}

fn hold(held: &Held, key: &str, answer: &Answer) {
    let mut held = held.lock().unwrap();
    for ip in answer.result()["ips"].as_array().unwrap() {
        let address = ip["address"].as_str().unwrap().to_owned();
        let result = answer.stdout.clone();
        if let Some((other, _)) = held.insert(address.clone(), (key.to_owned(), result)) {
            assert_eq!(other, key, "{address} was given twice");
        }
    }
}

fn let_go(held: &Held, key: &str) {
    held.lock().unwrap().retain(|_, (holder, _)| holder != key);
}

fn result_of(held: &Held, key: &str) -> Option<String> {
    let held = held.lock().unwrap();
    let mut results = held.values();
    results
        .find(|(holder, _)| holder == key)
        .map(|(_, result)| result.clone())
}

/// The operations of one worker, on pods of its own, because no runtime does
/// two things to one container at a time. GC is alone, as the specification
/// demands.
fn work(
    rig: &Rig,
    pods: &[String],
    held: &Held,
    alone: &RwLock<()>,
    mut chance: Chance,
    count: u64,
) {
    for _ in 0..count {
        let n = chance.below(pods.len() as u64) as usize;
        let pod = &pods[n];
        let container = pod.rsplit('-').next().unwrap();
        let ifname = ["eth0", "net1"][chance.below(2) as usize];
        let key = format!("{container}:{ifname}");
        let mut conf = rig.conf("1.1.0");
        match chance.below(100) {
            0..45 => {
                let _shared = alone.read().unwrap();
                let call = variables("ADD", container, ifname, pod);
                match operate(rig, &mut chance, &call, &conf.to_string()) {
                    Some(answer) if answer.ok => hold(held, &key, &answer),
                    Some(answer) => {
                        let code = answer.error().0;
                        let standing = result_of(held, &key).is_some();
                        assert!(code == 105 || !standing && code == 11, "{answer:?}");
                    }
                    None => {}
                }
            }
            45..80 => {
                let _shared = alone.read().unwrap();
                let_go(held, &key);
                let netns = if chance.below(3) == 0 { "" } else { pod };
                let call = variables("DEL", container, ifname, netns);
                if let Some(answer) = operate(rig, &mut chance, &call, &conf.to_string()) {
                    answer.silent();
                }
            }
            80..95 => {
                let _shared = alone.read().unwrap();
                let Some(result) = result_of(held, &key) else {
                    continue;
                };
                conf["prevResult"] = serde_json::from_str(&result).unwrap();
                let call = variables("CHECK", container, ifname, pod);
                if let Some(answer) = operate(rig, &mut chance, &call, &conf.to_string())
                    && !answer.ok
                {
                    // The agent was being restarted.
                    assert_eq!(answer.error().0, 11, "{answer:?}");
                }
            }
            _ => {
                let _alone = alone.write().unwrap();
                let valid = held.lock().unwrap();
                let valid: Vec<_> = valid
                    .values()
                    .map(|(key, _)| key.split_once(':').unwrap())
                    .collect();
                let valid = valid
                    .iter()
                    .map(|(c, i)| json!({"containerID": c, "ifname": i}));
                conf["cni.dev/valid-attachments"] = valid.collect();
                let call = [("CNI_COMMAND", "GC")];
                if let Some(answer) = operate(rig, &mut chance, &call, &conf.to_string()) {
                    answer.silent();
                }
            }
        }
    }
}

#[test]
fn nothing_leaks_and_nothing_is_given_twice() {
    let operations = number("TARTAN_CNI_CAMPAIGN").unwrap_or(160);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = number("TARTAN_CNI_SEED").unwrap_or(now.as_nanos() as u64 | 1);
    println!("TARTAN_CNI_SEED={seed}");
    // Few addresses, so that they come round.
    let mut rig = Rig::new(&["10.244.7.0/26", "fd00:7::/64"]);
    let pods: Vec<String> = (0..4 * WORKERS).map(|_| rig.pod()).collect();
    for pod in &pods {
        rig.add("warm", "eth0", pod).result();
        rig.del("warm", "eth0", pod).silent();
    }
    let before = rig.census();
    let held = Held::default();
    let mut left = operations;
    let mut chance = Chance(seed);
    while left > 0 {
        let round = left.min(400);
        left -= round;
        let (alone, rig_now) = (RwLock::new(()), &rig);
        std::thread::scope(|scope| {
            for pods in pods.chunks(4) {
                let own = Chance(seed ^ (chance.below(u64::from(u32::MAX)) << 8) | 1);
                let (held, alone) = (&held, &alone);
                scope.spawn(move || work(rig_now, pods, held, alone, own, round / WORKERS as u64));
            }
            scope.spawn(|| {
                let mut chance = Chance(seed | 2);
                for _ in 0..round / 40 {
                    std::thread::sleep(Duration::from_millis(chance.below(200)));
                    rig_now.restart_agent(Duration::from_millis(chance.below(100)));
                }
            });
        });
    }
    rig.start_agent(Mood::Adopt);
    for (key, _) in held.lock().unwrap().values() {
        let (container, ifname) = key.split_once(':').unwrap();
        rig.record(container, ifname);
    }
    for pod in &pods {
        for ifname in ["eth0", "net1"] {
            rig.del(pod.rsplit('-').next().unwrap(), ifname, "")
                .silent();
        }
    }
    let after = rig.census();
    assert_eq!(after.records(), before.records());
    assert_eq!(after, before);
    assert_eq!(ip(&["-n", &rig.node, "link", "show", "type", "veth"]), "");
}
