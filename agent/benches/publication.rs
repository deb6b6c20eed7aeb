//! What the agent pays for one change, from what it knows to the tables that workers adopt: the calls that the control
//! loop makes. In a cluster of 5,000 nodes of both families, with 110 pods on this one.
#![allow(missing_docs, reason = "a bench has no callers")]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a bench that cannot be set up should fail loudly"
)]

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cni_shim::Attachment;
use dataplane::families::{PerFamily, PublicAddresses};
use dataplane::publication::Publication;
use encap::{Format, Mac};
use ipnet::IpNet;
use tartan::config::{NetConf, NodeConfig, RunArgs};
use tartan::lease::Lease;
use tartan::reconcile::{Desired, Inputs, reconcile};

const NET_CONF: &str = r#"{"Network":"10.0.0.0/8","EnableIPv6":true,"IPv6Network":"fd00::/48","Backend":{"Type":"vxlan"}}"#;

/// A change of what decides.
type Change = fn(&mut World);

/// What decides, and how often it changed.
struct World {
    net_conf: NetConf,
    config: NodeConfig,
    leases: Vec<Lease>,
    shared: Arc<[Lease]>,
    attachments: Vec<Arc<Attachment>>,
    round: u64,
}

impl World {
    fn desired(&self, previous: Option<&Desired>) -> Desired {
        let own = &self.leases[0];
        let inputs = Inputs {
            net_conf: &self.net_conf,
            config: &self.config,
            leases: &self.shared,
            own,
            bound: own.public,
            attachments: &self.attachments,
            kernel_prefixes: &[],
            pod_links: &[],
            released: &[],
            host_addresses: &[],
            underlay_mtu: 1500,
            device_mac: None,
            version: self.round,
        };
        reconcile(&inputs, previous)
    }

    /// A pod comes, or goes.
    fn change_pod(&mut self) {
        if self.round.is_multiple_of(2) {
            self.attachments.push(attachment(200));
        } else {
            self.attachments.pop();
        }
    }

    /// A node has another subnet; all leases are read again.
    fn change_lease(&mut self) {
        let lease = &mut self.leases[2_500];
        if lease.subnets.len() > 2 {
            lease.subnets.truncate(2);
        } else {
            lease.subnets.push("10.200.0.0/24".parse().unwrap());
        }
        self.shared = self.leases.clone().into();
    }
}

fn main() {
    // `cargo test` runs benches too, without this.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let leases: Vec<Lease> = (1..=NODES).map(lease).collect();
    let mut world = World {
        net_conf: NetConf::parse(NET_CONF).unwrap(),
        config: NodeConfig::load(&RunArgs {
            node_name: Some("n1".to_owned()),
            ..RunArgs::default()
        })
        .unwrap(),
        shared: leases.clone().into(),
        leases,
        attachments: (2..112).map(attachment).collect(),
        round: 1,
    };
    let start = Instant::now();
    let first = world.desired(None);
    let publication = Publication::new(&first.spec);
    println!("the first decision and tables: {:?}", start.elapsed());
    let changes: [(&str, Change); 3] = [
        ("nothing", |_| {}),
        ("one ADD or DEL", World::change_pod),
        ("one lease", World::change_lease),
    ];
    let mut previous = first;
    for (name, change) in changes {
        let mut taken: Vec<(Duration, Duration)> = Vec::new();
        for _ in 0..ROUNDS {
            world.round += 1;
            change(&mut world);
            let start = Instant::now();
            let desired = world.desired(Some(&previous));
            let decided = start.elapsed();
            publication.publish(&desired.spec);
            taken.push((start.elapsed(), decided));
            publication.free(world.round);
            previous = desired;
        }
        taken.sort_unstable();
        let (median, least) = (taken[ROUNDS / 2], taken[0]);
        println!(
            "{name}: median {:?} (of it the decision {:?}), least {:?}",
            median.0, median.1, least.0
        );
    }
}

fn lease(node: u16) -> Lease {
    let [high, low] = node.to_be_bytes();
    let v6 = Ipv6Addr::from([0xfd00, 0, 0, node, 0, 0, 0, 0]);
    let outside = Ipv6Addr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, node]);
    Lease {
        name: format!("n{node}"),
        subnets: vec![
            IpNet::new([10, high, low, 0].into(), 24).unwrap(),
            IpNet::new(v6.into(), 64).unwrap(),
        ],
        public: PublicAddresses::Dual([192, 0, high, low].into(), outside),
        format: Format::Vxlan,
        vtep_mac: PerFamily::each(|_| Mac([2, 0, 0, 0, high, low])),
        accept_sources: Vec::new(),
        underlay_sources: Vec::new(),
        kernel_path: Some(true),
    }
}

fn attachment(pod: u8) -> Arc<Attachment> {
    Arc::new(Attachment {
        version: Attachment::VERSION,
        container: format!("c{pod}"),
        addresses: vec![IpAddr::from([10, 0, 1, pod]).into()],
        ..Attachment::default()
    })
}

const NODES: u16 = 5_000;
const ROUNDS: usize = 201;
