//! What the kubernetes registry costs: a list of 5,000 Nodes, and a server that is gone. The measures are of the whole
//! process, so this test has one of its own, and the API server another: this program again, started as a child.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dataplane::families::{PerFamily, PublicAddresses};
use tartan::config::NetConf;
use tartan::config::node::registry::{KubernetesConfig, RegistryConfig};
use tartan::registry::{Announcement, Contact, Update, kubernetes};
use testbed::apiserver::ApiServer;

const NODES: u32 = 5000;
/// CPU time from the request for the list until the leases are reported, in every build: other programs of a busy machine do
/// not count, and one without optimisation needs a tenth of it.
const MOST_CPU_TIME: Duration = Duration::from_secs(2);
/// Growth of the process's memory at its highest, KiB.
const MOST_MEMORY: u64 = 64 << 10;
/// Of a core, while the server is gone, percent.
const MOST_CPU_SHARE: f64 = 2.0;
const SERVES: &str = "TARTAN_TEST_SERVES";

/// The server's half: no test unless started by the other.
#[test]
fn serves_nodes_until_its_input_ends() {
    if std::env::var_os(SERVES).is_none() {
        return;
    }
    let server = ApiServer::start();
    server.generate(NODES);
    println!("serving {}", server.url());
    let _ = std::io::stdin().read(&mut [0]);
}

struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start() -> Server {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "serves_nodes_until_its_input_ends",
                "--nocapture",
            ])
            .env(SERVES, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let url = output
            .lines()
            .find_map(|line| Some(line.unwrap().split_once("serving ")?.1.to_owned()));
        let url = url.expect("the server's address");
        Server { child, url }
    }

    fn stop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A figure of `/proc/self/status`, KiB.
fn memory(key: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// CPU time of this process.
fn cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        now.tv_sec.try_into().unwrap(),
        now.tv_nsec.try_into().unwrap(),
    )
}

#[tokio::test]
async fn five_thousand_nodes() {
    let mut server = Server::start();
    let config = KubernetesConfig {
        api_url: Some(server.url.clone()),
        set_network_unavailable: false,
        ..RegistryConfig::default().kubernetes
    };
    // Start the highest mark anew (proc_pid_clear_refs(5)).
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let (before, cpu_before, began) = (memory("VmRSS"), cpu(), Instant::now());
    let mut registry = kubernetes::open(&config, "node-00007").unwrap();
    let leases = loop {
        match registry.next().await {
            Update::Settings(_) => registry.announce(announcement()),
            Update::Leases(leases) => break leases,
            Update::Contact(Contact::InTouch) => {}
            other => panic!("{other:?}"),
        }
    };
    let (took, worked) = (began.elapsed(), cpu() - cpu_before);
    let grown = memory("VmHWM") - before;
    println!(
        "{NODES} nodes: {took:?}, {worked:?} CPU, {grown} KiB at the highest, {} KiB afterwards",
        memory("VmRSS").saturating_sub(before)
    );
    assert_eq!(leases.len(), NODES as usize);
    assert!(worked < MOST_CPU_TIME, "{worked:?} CPU");
    assert!(grown < MOST_MEMORY, "{grown} KiB");

    server.stop();
    let lost = match registry.next().await {
        Update::Contact(Contact::Lost { reason }) => reason,
        other => panic!("{other:?}"),
    };
    let (cpu_before, began) = (cpu(), Instant::now());
    tokio::time::sleep(Duration::from_secs(10)).await;
    let share = 100.0 * (cpu() - cpu_before).as_secs_f64() / began.elapsed().as_secs_f64();
    println!("without the server ({lost}): {share:.2} % of a core");
    assert!(share < MOST_CPU_SHARE, "{share} %");
}

fn announcement() -> Announcement {
    let mac = encap::Mac([2, 0, 0, 0, 0, 7]);
    Announcement {
        node_name: "node-00007".to_owned(),
        public: PublicAddresses::V4([172, 16, 0, 7].into()),
        vtep_mac: PerFamily { v4: mac, v6: mac },
        previous: Vec::new(),
        net_conf: NetConf::parse(r#"{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}"#).unwrap(),
        forwarding: true,
    }
}
