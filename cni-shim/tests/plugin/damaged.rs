//! Records that name what is not theirs. Whatever a record says, an interface, a limiter, a rule or a pod that is another's
//! stays, the call succeeds, and the pod's own interface goes.

use std::collections::BTreeSet;
use std::time::Duration;

use cni_shim::{Attachment, Bandwidth, RateLimit};
use serde_json::json;

use crate::rig::{Answer, Rig, ip};

const SUBNET: &[&str] = &["10.244.7.0/24"];

/// Of every kind that a node has, each with a name that a record may come to hold.
const FOREIGN: [(&str, &str); 7] = [
    ("eth0", "type veth peer name eth0-up"),
    ("cni0", "type bridge"),
    ("veth1234", "type veth peer name veth5678"),
    // Names of ours; the first of another program's, the second a bridge.
    ("ttveth0", "type veth peer name ttveth1"),
    ("tt0123456789", "type bridge"),
    ("tleth0", "type bridge"),
    ("tl0123456789", "type ifb"),
];

/// A node with an uplink, a tunnel device, bridges, a stranger's veths, and a neighbour's pod with a limiter.
struct Node {
    rig: Rig,
    pod: String,
    neighbour: String,
}

impl Node {
    fn new() -> Node {
        let mut rig = Rig::new(SUBNET);
        let pods = [rig.pod(), rig.pod()];
        for (name, kind) in FOREIGN {
            rig.ip(&format!("link add {name} {kind}"));
        }
        rig.ip("tuntap add tartan0 mode tun");
        let neighbour = rig.add("c2", "eth0", &pods[1]).host_ifname();
        rig.ip(&format!("link add {} type ifb", limiter(&neighbour)));
        let [pod, _] = pods;
        Node {
            rig,
            pod,
            neighbour,
        }
    }

    /// Attaches c1 with a limit, and damages its record.
    fn attach(&self, damage: impl Fn(&mut Attachment)) {
        let own = self.rig.add("c1", "eth0", &self.pod).host_ifname();
        self.rig.ip(&format!("link add {} type ifb", limiter(&own)));
        let mut record = self.rig.record("c1", "eth0");
        record.bandwidth = Some(Bandwidth {
            ingress: None,
            egress: Some(RateLimit {
                rate: 1_000_000,
                burst: 0,
            }),
        });
        damage(&mut record);
        record.write(&self.rig.run()).unwrap();
    }

    fn links(&self) -> BTreeSet<String> {
        let links = ip(&["-n", &self.rig.node, "-br", "link"]);
        let names = links
            .lines()
            .filter_map(|line| line.split(['@', ' ']).next());
        names.map(str::to_owned).collect()
    }

    /// Every name that an interface here has which is not c1's, and names that none has.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = FOREIGN.iter().map(|(name, _)| (*name).to_owned()).collect();
        let more = [
            "lo",
            "tartan0",
            "none",
            "",
            "../lo",
            "a-name-of-far-too-many-bytes",
        ];
        names.extend(more.map(str::to_owned));
        names.push(self.neighbour.clone());
        names.push(limiter(&self.neighbour));
        names
    }

    fn collect(&self) -> Answer {
        let mut conf = self.rig.conf("1.1.0");
        conf["cni.dev/valid-attachments"] = json!([{"containerID": "c2", "ifname": "eth0"}]);
        // Records are as old as their file times say.
        std::thread::sleep(Duration::from_millis(10));
        self.rig.call(&[("CNI_COMMAND", "GC")], conf.to_string())
    }

    /// Each call that takes c1 away.
    fn calls(&self) -> [(&'static str, Call<'_>); 3] {
        let del = || self.rig.del("c1", "eth0", &self.pod);
        let add_again = || {
            // Of a record whose namespace is gone, ADD removes what it names.
            let mut record = self.rig.record("c1", "eth0");
            record.netns_inode = 1;
            record.write(&self.rig.run()).unwrap();
            let again = self.rig.add("c1", "eth0", &self.pod);
            self.rig.del("c1", "eth0", &self.pod).silent();
            again
        };
        [
            ("DEL", Box::new(del)),
            ("GC", Box::new(|| self.collect())),
            ("ADD", Box::new(add_again)),
        ]
    }
}

type Call<'a> = Box<dyn Fn() -> Answer + 'a>;

/// What shapes what comes from the pod of that interface.
fn limiter(host_ifname: &str) -> String {
    format!("tl{}", host_ifname.trim_start_matches("tt"))
}

#[test]
fn a_damaged_record_takes_no_interface_but_its_own() {
    let node = Node::new();
    let before = node.links();
    for name in node.names() {
        for (verb, call) in node.calls() {
            node.attach(|record| record.host_ifname.clone_from(&name));
            let answer = call();
            assert!(answer.ok, "{verb} {name:?}: {answer:?}");
            assert_eq!(node.links(), before, "{verb} {name:?}");
            assert_eq!(
                node.rig.census().records(),
                ["c2:eth0.json"],
                "{verb} {name:?}"
            );
        }
    }
}

#[test]
fn an_interface_with_our_name_and_no_sign_of_ours_stays() {
    let node = Node::new();
    node.attach(|_| {});
    let own = node.rig.record("c1", "eth0").host_ifname;
    node.rig.del("c1", "eth0", &node.pod).silent();
    for (kind, change) in [
        ("bridge", "alias none"),
        ("veth peer name stranger", "alias mine"),
        ("veth peer name stranger", "address 02:00:00:00:00:01"),
    ] {
        node.rig.ip(&format!("link add {own} type {kind}"));
        node.rig.ip(&format!("link set {own} {change}"));
        let before = node.links();
        // Without a record, with one that cannot be read, and with a whole one.
        let path = Attachment::path(&node.rig.run(), "c1", "eth0").unwrap();
        node.rig.del("c1", "eth0", &node.pod).silent();
        assert_eq!(node.links(), before, "{kind} {change}");
        std::fs::write(&path, b"{").unwrap();
        node.rig.del("c1", "eth0", &node.pod).silent();
        assert_eq!(node.links(), before, "{kind} {change}, unreadable");
        std::fs::write(&path, b"{").unwrap();
        assert!(node.collect().ok);
        assert_eq!(node.links(), before, "{kind} {change}, unreadable, GC");
        let _ = std::fs::remove_file(&path);
        let refused = node.rig.add("c1", "eth0", &node.pod);
        assert!(refused.error().1.contains(&own), "{refused:?}");
        assert_eq!(node.links(), before, "{kind} {change}, ADD");
        assert_eq!(node.rig.census().records(), ["c2:eth0.json"]);
        node.rig.ip(&format!("link del {own}"));
    }
}

/// `ip rule from ADDRESS lookup TABLE` of the node itself, and of another pod, that a record's namespace and table name.
#[test]
fn a_damaged_record_takes_no_rule_but_its_own() {
    let mut node = Node::new();
    node.rig
        .ip("rule add from 10.244.7.9 lookup main priority 20000");
    node.rig
        .ip("rule add from 198.51.100.1 lookup 1001 priority 20000");
    let other = node.rig.pod();
    node.rig.add("c3", "eth0", &other).result();
    node.rig.add("c3", "net1", &other).result();
    let name = other.trim_start_matches("/run/netns/").to_owned();
    let space = node.rig.node.clone();
    let rules = || {
        ["rule", "-6 rule"].map(|what| {
            [&space, &name].map(|at| {
                ip(&[
                    &["-n", at.as_str()][..],
                    &what.split(' ').collect::<Vec<_>>(),
                ]
                .concat())
            })
        })
    };
    let before = rules();
    let taken = node.rig.record("c3", "net1").addresses;
    for (netns, table) in [
        (format!("/run/netns/{}", node.rig.node), 254),
        (format!("/run/netns/{}", node.rig.node), 1001),
        (other.clone(), 1001),
        (other.clone(), 254),
    ] {
        for addresses in [
            Vec::new(),
            taken.clone(),
            vec!["10.244.7.9/32".parse().unwrap()],
            vec!["0.0.0.0/0".parse().unwrap()],
        ] {
            node.attach(|record| {
                use std::os::unix::fs::MetadataExt;
                record.netns_inode = std::fs::metadata(&netns).unwrap().ino();
                record.netns.clone_from(&netns);
                record.table = Some(table);
                record.addresses.clone_from(&addresses);
            });
            node.rig.del("c1", "eth0", &node.pod).silent();
            assert_eq!(rules(), before, "{netns} {table} {addresses:?}");
        }
    }
}
