//! Files that are damaged, disks that are full, settings that cannot be made:
//! lines G2, G7, G8 and G9 of the checklist.

use std::process::Command;

use crate::rig::{Answer, Rig, ip, ping, variables};

const BOTH: &[&str] = &["10.244.7.0/24", "fd00:7::/64"];

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
}

/// A small file system over the directory of records, gone when dropped.
struct SmallDisk(String);

impl SmallDisk {
    fn over(rig: &Rig) -> SmallDisk {
        let path = rig.run().attachments().display().to_string();
        run(
            "mount",
            &["-t", "tmpfs", "-o", "size=64k,mode=0700", "cs-small", &path],
        );
        SmallDisk(path)
    }

    /// Takes whatever room is left.
    fn fill(&self) {
        let mut file = std::fs::File::create(format!("{}/.filler", self.0)).unwrap();
        while std::io::Write::write_all(&mut file, &[0; 4096]).is_ok() {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        run("umount", &["-l", &self.0]);
    }
}

#[test]
fn g8_a_full_disk_stops_add_cleanly_and_del_not_at_all() {
    let mut rig = Rig::new(BOTH);
    let (one, two) = (rig.pod(), rig.pod());
    let disk = SmallDisk::over(&rig);
    rig.add("c1", "eth0", &one).result();
    disk.fill();
    let before = rig.census();
    let (code, message) = rig.add("c2", "eth0", &two).error();
    assert_eq!(code, 5);
    assert!(message.contains("check free space"), "{message}");
    assert_eq!(rig.census(), before);
    rig.del("c1", "eth0", &one).silent();
    assert!(rig.census().records().is_empty());
    assert_eq!(ip(&["-n", &rig.node, "link", "show", "type", "veth"]), "");
    drop(disk);
}

/// A crash of the machine may leave a record of any length.
#[test]
fn g7_a_torn_record_of_any_length_is_set_aside_and_its_pod_freed() {
    let mut rig = Rig::new(BOTH);
    let pod = rig.pod();
    rig.add("c1", "eth0", &pod).result();
    let path = cni_shim::Attachment::path(&rig.run(), "c1", "eth0").unwrap();
    let whole = std::fs::read(&path).unwrap();
    rig.del("c1", "eth0", &pod).silent();
    let before = rig.census();
    for length in (0..whole.len()).step_by(61) {
        rig.add("c1", "eth0", &pod).result();
        std::fs::write(&path, &whole[..length]).unwrap();
        if length % 2 == 0 {
            let removed = rig.del("c1", "eth0", &pod);
            removed.silent();
            assert!(removed.stderr.contains("set aside"), "{removed:?}");
        } else {
            let mut conf = rig.conf("1.1.0");
            conf["cni.dev/valid-attachments"] = serde_json::json!([]);
            rig.call(&[("CNI_COMMAND", "GC")], conf.to_string())
                .silent();
        }
        assert_eq!(rig.census(), before, "{length}");
    }
}

/// The run directory is on a file system that a reboot empties, and so are the
/// pods' namespaces.
#[test]
fn g2_after_a_reboot_nothing_is_taken() {
    let mut rig = Rig::new(BOTH);
    let pod = rig.pod();
    let first = rig.add("c1", "eth0", &pod).address();
    ip(&["netns", "del", pod.trim_start_matches("/run/netns/")]);
    let veths = ["-n", &rig.node, "link", "show", "type", "veth"];
    while !ip(&veths).is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    std::fs::remove_dir_all(rig.run().attachments()).unwrap();
    ip(&["netns", "add", pod.trim_start_matches("/run/netns/")]);
    let again = rig.add("c1", "eth0", &pod);
    assert_eq!(again.address(), first);
    assert!(ping(&rig.node, &first));
    rig.del("c1", "eth0", &pod).silent();
}

/// The plugin where /proc/sys is read-only.
fn read_only(rig: &Rig, container: &str, pod: &str) -> Answer {
    let script =
        "mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && exec \"$@\"";
    let unshare = ["unshare", "--mount", "sh", "-c", script, "sh"];
    let conf = rig.conf("1.0.0").to_string();
    rig.run_inside(&unshare, &variables("ADD", container, "eth0", pod), &conf)
}

/// Writes below the node's /proc/sys/net.
fn set(rig: &Rig, name: &str, value: &str) {
    let script = format!("echo {value} >/proc/sys/net/{name}");
    ip(&["netns", "exec", &rig.node, "sh", "-c", &script]);
}

/// Its settings are made by netlink, that of forwarding too.
#[test]
fn g9_a_pod_of_ipv4_alone_needs_nothing_of_a_read_only_proc_sys() {
    let mut rig = Rig::new(&["10.244.7.0/24"]);
    let (one, two) = (rig.pod(), rig.pod());
    set(&rig, "ipv4/ip_forward", "0");
    set(&rig, "ipv6/conf/all/forwarding", "0");
    let ends = [("c1", &one), ("c2", &two)].map(|(container, pod)| {
        let added = read_only(&rig, container, pod);
        let said = &added.stderr;
        assert!(said.contains("disable_ipv6 is not 1"), "{added:?}");
        assert!(!said.contains("forwarding"), "{added:?}");
        (added.host_ifname(), added.address())
    });
    for (end, _) in &ends {
        let path = format!("/proc/sys/net/ipv4/conf/{end}/forwarding");
        let forwarding = ip(&["netns", "exec", &rig.node, "cat", &path]);
        assert_eq!(forwarding.trim(), "1", "{end}");
    }
    assert!(ping(&one, &ends[1].1) && ping(&two, &ends[0].1));
    rig.del("c1", "eth0", &one).silent();
    rig.del("c2", "eth0", &two).silent();
    assert!(rig.census().records().is_empty());
}

#[test]
fn g9_a_read_only_proc_sys_is_enough_where_ipv6_is_forwarded_already() {
    let mut rig = Rig::new(BOTH);
    let pod = rig.pod();
    set(&rig, "ipv4/ip_forward", "0");
    set(&rig, "ipv6/conf/all/forwarding", "0");
    set(&rig, "ipv6/conf/default/forwarding", "0");
    rig.add("warm", "eth0", &pod).result();
    rig.del("warm", "eth0", &pod).silent();
    let before = rig.census();
    let (code, message) = read_only(&rig, "c1", &pod).error();
    assert_eq!(code, 104);
    assert!(message.contains("/proc/sys writable"), "{message}");
    assert_eq!(rig.census(), before);
    set(&rig, "ipv4/ip_forward", "1");
    set(&rig, "ipv6/conf/all/forwarding", "1");
    set(&rig, "ipv6/conf/default/forwarding", "1");
    let added = read_only(&rig, "c1", &pod);
    assert!(added.stderr.contains("accept_ra is not 0"), "{added:?}");
    assert!(!added.stderr.contains("ipv4"), "{added:?}");
    assert!(ping(&rig.node, &added.address()));
    rig.del("c1", "eth0", &pod).silent();
    assert_eq!(rig.census(), before);
}
