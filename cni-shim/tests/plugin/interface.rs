//! The pod's interfaces: lines B1 and B5 of the checklist, virtual addresses,
//! and a pod that reaches itself through a service.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::rig::{Answer, PLUGIN, Rig, ip, ping, variables};

const BOTH: &[&str] = &["10.244.7.0/24", "fd00:7::/64"];

#[test]
fn b5_a_second_interface_answers_where_it_was_asked() {
    let mut rig = Rig::new(BOTH);
    let pod = rig.pod();
    let name = pod.trim_start_matches("/run/netns/").to_owned();
    let first = rig.add("c1", "eth0", &pod);
    let before = rig.census();
    let mut conf = rig.conf("1.0.0");
    conf["name"] = json!("second");
    let added = rig.call(&variables("ADD", "c1", "net1", &pod), conf.to_string());
    assert_eq!(
        added.result()["routes"],
        json!([]),
        "the default route is the first's"
    );
    let record = rig.record("c1", "net1");
    assert_eq!(record.table, Some(1001));
    assert_eq!(rig.record("c1", "eth0").table, None);
    for (address, family, tunnel) in [
        (added.address(), "-4", "10.244.7.0"),
        ("fd00:7::3".to_owned(), "-6", "fd00:7::"),
    ] {
        let route = ip(&[
            "-n", &name, family, "route", "get", tunnel, "from", &address,
        ]);
        assert!(route.contains("dev net1"), "{route}");
        assert!(ping(&rig.node, &address), "{address}");
    }
    assert!(ping(&rig.node, &first.address()));
    // Each packet must come from where its source is routed.
    for device in ["all", &record.host_ifname] {
        let path = format!("/proc/sys/net/ipv4/conf/{device}/rp_filter");
        ip(&[
            "netns",
            "exec",
            &rig.node,
            "sh",
            "-c",
            &format!("echo 1 >{path}"),
        ]);
    }
    assert!(ping(&rig.node, &added.address()));
    let third = rig.add("c1", "net2", &pod);
    assert_eq!(rig.record("c1", "net2").table, Some(1002));
    assert!(ping(&rig.node, &third.address()));
    rig.del("c1", "net2", &pod).silent();
    rig.del("c1", "net1", &pod).silent();
    assert_eq!(rig.census(), before, "rules and table are gone");
}

/// Two work queues of the kernel are late where much is going on: the link
/// watch, without which the host's end, that comes up first, sends nothing; and
/// that of IPv6, without which the pod does not know its address for its own.
/// Files tell whether they are done, and unlike netlink hasten nothing.
#[test]
fn b1_the_first_packet_after_add_is_not_lost_beside_many_others() {
    const AT_ONCE: usize = 20;
    const ROUNDS: usize = 8;
    let mut rig = Rig::new(BOTH);
    let pods: Vec<String> = (0..AT_ONCE).map(|_| rig.pod()).collect();
    let rig = &rig;
    let late = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let attach = |number: usize, pod: &str| {
        let container = format!("c{number}");
        let end = rig.add(&container, "eth0", pod).host_ifname();
        // The pod's /proc/net, as long as this one is there.
        let name = pod.trim_start_matches("/run/netns/");
        let mut command = Command::new("ip");
        let mut sleeper = command
            .args(["netns", "exec", name, "sleep", "120"])
            .spawn()
            .unwrap();
        wait_until_inside(sleeper.id(), pod);
        let routes = format!("/proc/{}/net/ipv6_route", sleeper.id());
        // The shell starts nothing but the plugin. 80200001: RTF_LOCAL, RTF_NONEXTHOP, RTF_UP (linux/ipv6_route.h).
        let script = "\"$0\"; read -r state <\"/sys/class/net/$1/operstate\"; own=no; \
            while read -r route; do case $route in fd000007*' 80200001 '*) own=yes;; esac; done <\"$2\"; \
            echo; echo \"$state $own\"";
        for _ in 0..ROUNDS {
            rig.del(&container, "eth0", pod).silent();
            let by = ["sh", "-c", script, PLUGIN, &end, &routes];
            let call = variables("ADD", &container, "eth0", pod);
            let answer = rig.run_by(&by, &call, rig.conf("1.0.0").to_string());
            let (result, found) = answer.stdout.trim_end().rsplit_once('\n').unwrap();
            assert!(result.contains(&end), "{answer:?}");
            let (state, own) = found.split_once(' ').unwrap();
            for (late, is_late) in late.iter().zip([state != "up", own != "yes"]) {
                late.fetch_add(usize::from(is_late), Ordering::Relaxed);
            }
        }
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    };
    std::thread::scope(|scope| {
        for (number, pod) in pods.iter().enumerate() {
            let attach = &attach;
            scope.spawn(move || attach(number, pod));
        }
    });
    let late = late.map(AtomicUsize::into_inner);
    assert_eq!(late, [0, 0], "of {} pods", AT_ONCE * ROUNDS);
}

/// Waits until that process has entered the pod's network namespace: before,
/// what /proc says of it is our own.
fn wait_until_inside(process: u32, pod: &str) {
    let inode = |path: &str| std::fs::metadata(path).unwrap().ino();
    let deadline = Instant::now() + Duration::from_secs(30);
    while inode(&format!("/proc/{process}/ns/net")) != inode(pod) {
        assert!(Instant::now() < deadline, "{process} is not in {pod}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A pod may bar its way out. While the kernel has no route yet to the pod's
/// own address, that is what it answers when asked for the way there.
#[test]
fn b1_a_pod_that_bars_its_way_out_is_waited_for_as_any() {
    let mut rig = Rig::new(BOTH);
    let pod = rig.pod();
    let name = pod.trim_start_matches("/run/netns/").to_owned();
    let in_pod = |arguments: &[&str]| ip(&[&["-n", &name, "-6"], arguments].concat());
    // So that something comes before the routes to its own addresses.
    in_pod(&["rule", "add", "pref", "9", "lookup", "local"]);
    in_pod(&["rule", "del", "pref", "0"]);
    for bar in ["unreachable", "prohibit", "blackhole"] {
        let bar = ["to", "fd00:7::/64", "pref", "5", bar];
        in_pod(&[&["rule", "add"], &bar[..]].concat());
        let call = variables("ADD", "c1", "eth0", &pod);
        let mut add = rig.spawn(&call, rig.conf("1.0.0").to_string());
        let deadline = Instant::now() + Duration::from_secs(30);
        while !in_pod(&["addr", "show"]).contains("fd00:7::") {
            let ended = add.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < deadline, "{bar:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        // It asks every 200 µs, for 5 s.
        std::thread::sleep(Duration::from_millis(500));
        in_pod(&[&["rule", "del"], &bar[..]].concat());
        let added = Answer::of(add.wait_with_output().unwrap());
        assert!(ping(&rig.node, &added.address()), "{bar:?}: {added:?}");
        rig.del("c1", "eth0", &pod).silent();
    }
}

#[test]
fn b1_addresses_are_announced_and_redirects_are_not_believed() {
    let mut rig = Rig::new(BOTH);
    let pod = rig.pod();
    let filter = "arp or (icmp6 and ip6[40] == 136)";
    let mut tcpdump = Command::new("timeout")
        .args(["30", "ip", "netns", "exec", &rig.node])
        .args(["tcpdump", "-lnni", "any", filter])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = BufReader::new(tcpdump.stderr.take().unwrap()).lines();
    assert!(ready.any(|line| line.unwrap().starts_with("listening on")));
    rig.add("c1", "eth0", &pod).result();
    let mut expected = vec![
        "who-has 10.244.7.2",
        "tell 10.244.7.2",
        "neighbor advertisement, tgt is fd00:7::2",
    ];
    for line in BufReader::new(tcpdump.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        expected.retain(|part| !line.contains(part));
        if expected.is_empty() {
            break;
        }
    }
    assert!(expected.is_empty(), "not seen: {expected:?}");
    let id = rustix::process::Pid::from_child(&tcpdump);
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    tcpdump.wait().unwrap();
    let name = pod.trim_start_matches("/run/netns/");
    let lo = ip(&["-n", name, "-br", "link", "show", "lo"]);
    assert!(lo.contains("<LOOPBACK,UP"), "{lo}");
    let path = "/proc/sys/net/ipv6/conf/eth0/accept_redirects";
    assert_eq!(ip(&["netns", "exec", name, "cat", path]).trim(), "0");
}

#[test]
fn a_virtual_address_is_routed_to_the_pod_that_may_use_it() {
    let mut rig = Rig::new(BOTH);
    let (one, two) = (rig.pod(), rig.pod());
    let mut conf = rig.conf("1.0.0");
    conf["allowedSources"] = json!(["192.0.2.10", "fd99::/64"]);
    let added = rig.call(&variables("ADD", "c1", "eth0", &one), conf.to_string());
    let host = added.host_ifname();
    for address in ["192.0.2.10", "fd99::5"] {
        let route = ip(&["-n", &rig.node, "route", "get", address]);
        assert!(route.contains(&format!("dev {host}")), "{route}");
    }
    let name = one.trim_start_matches("/run/netns/");
    ip(&["-n", name, "addr", "add", "192.0.2.10/32", "dev", "eth0"]);
    assert!(ping(&rig.node, "192.0.2.10"));
    let before = rig.census();
    let (code, message) = rig
        .call(&variables("ADD", "c2", "eth0", &two), conf.to_string())
        .error();
    assert_eq!(code, 101);
    assert!(message.contains("192.0.2.10"), "{message}");
    assert_eq!(rig.census(), before);
    conf["prevResult"] = added.result();
    let check = || rig.call(&variables("CHECK", "c1", "eth0", &one), conf.to_string());
    check().silent();
    ip(&["-n", &rig.node, "route", "del", "192.0.2.10"]);
    assert_eq!(check().error().0, 106);
    rig.del("c1", "eth0", &one).silent();
    rig.lease(&["10.244.7.0/24"]);
    let v6 = rig.call(&variables("ADD", "c1", "eth0", &one), conf.to_string());
    assert_eq!(v6.error().0, 2, "no address of that family");
}

#[test]
fn a_pod_reaches_itself_through_its_own_service() {
    let mut rig = Rig::new(&["10.244.7.0/24"]);
    let pod = rig.pod();
    let name = pod.trim_start_matches("/run/netns/").to_owned();
    let address = rig.add("c1", "eth0", &pod).address();
    let rules = format!(
        "add table ip service
         add chain ip service pre {{ type nat hook prerouting priority dstnat; }}
         add chain ip service post {{ type nat hook postrouting priority srcnat; }}
         add rule ip service pre ip daddr 10.96.0.1 tcp dport 80 dnat to {address}:8080
         add rule ip service post ip saddr {address} ip daddr {address} masquerade"
    );
    ip(&["netns", "exec", &rig.node, "nft", &rules]);
    let script = "import socket,threading\n\
        s=socket.create_server(('',8080))\n\
        threading.Thread(target=lambda:s.accept()[0].sendall(b'x'*100000),daemon=True).start()\n\
        c=socket.create_connection(('10.96.0.1',80),5)\n\
        n=0\n\
        while n<100000: n+=len(c.recv(65536))\n\
        print(n)";
    let said = ip(&["netns", "exec", &name, "python3", "-c", script]);
    assert_eq!(said.trim(), "100000");
}

/// Names of the longest and oddest kind: 15 bytes, dots.
#[test]
fn b6_the_longest_and_the_oddest_names_work() {
    let mut rig = Rig::new(BOTH);
    let pod = rig.pod();
    let before = rig.census().records();
    for ifname in ["net1.100", "123456789012345", "a-b_c"] {
        let added = rig.add("c1", ifname, &pod);
        assert_eq!(added.result()["interfaces"][1]["name"], ifname);
        assert!(ping(&rig.node, &added.address()));
        rig.del("c1", ifname, &pod).silent();
    }
    assert_eq!(rig.census().records(), before);
}

/// Line G3: the program is replaced while it runs.
#[test]
fn g3_an_upgrade_by_rename_disturbs_no_call() {
    let mut rig = Rig::new(BOTH);
    let pod = rig.pod();
    let program = rig.root().join("tartan-cni");
    let copy = rig.root().join(".new");
    let plugin = env!("CARGO_BIN_EXE_tartan-cni");
    let replace = || {
        // By another process: a child that a test forks meanwhile would have our descriptor, and with it the program
        // could not be run ("text file busy").
        let mut cp = Command::new("cp");
        assert!(cp.arg(plugin).arg(&copy).status().unwrap().success());
        std::fs::rename(&copy, &program).unwrap();
    };
    replace();
    let conf = rig.conf("1.0.0").to_string();
    let rig = &rig;
    let replaced = AtomicUsize::new(0);
    let ended = AtomicBool::new(false);
    // A call that fails does not say that it has ended.
    let deadline = Instant::now() + Duration::from_secs(60);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) && Instant::now() < deadline {
                replace();
                replaced.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let mut rounds = 0;
        while rounds < 20 || replaced.load(Ordering::Relaxed) < 20 {
            rig.run_program(&program, &variables("ADD", "c1", "eth0", &pod), &conf)
                .result();
            rig.run_program(&program, &variables("DEL", "c1", "eth0", &pod), &conf)
                .silent();
            rounds += 1;
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert!(rig.census().records().is_empty());
}
