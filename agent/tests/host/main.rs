//! Host set-up in network namespaces of its own, with iproute2 as the
//! independent oracle. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod cleanup;
mod external_interface;
mod firewalls;
mod ipsec;
mod kernel_path;
mod legacy;
mod namespace;
mod pods;
mod port_holder;
mod quick_check;
mod reading;
mod refusals;
mod repair;
mod rules;
mod setup;
mod subnet_env;
mod tracking;
mod watching;

use dataplane::families::PerFamily;
use ipnet::IpNet;
use tartan::host::HostState;
use tartan::host::{Change, Encapsulation, Host, HostError, SubnetEnv};
use tartan::problems::{HostProblem, Problem};

use namespace::Namespace;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| net(text)).collect()
}

/// Node 1 of an IPv4 cluster.
fn v4() -> HostState {
    HostState {
        device: "tartan0".to_owned(),
        addresses: nets(&["10.244.1.0/32"]),
        mtu: 1450,
        inner_mtu: PerFamily { v4: 1450, v6: 1430 },
        cluster_routes: nets(&["10.244.0.0/16"]),
        unreachable: nets(&["10.244.1.0/24"]),
        masquerade: true,
        encapsulation: Encapsulation {
            ports: [8285, 8472],
            private_port: None,
            is_private_port_ours: false,
            own: vec!["192.0.2.1".parse().unwrap()],
            nodes: ["10.244.2.0", "10.244.2.1", "192.0.2.2", "2001:db8::2"]
                .map(|address| address.parse().unwrap())
                .into(),
            pod_links: vec!["cni0".to_owned()],
        },
        subnet_file: "/run/flannel/subnet.env".into(),
        mac: None,
        subnet_env: SubnetEnv {
            v4: Some((net("10.244.0.0/16"), net("10.244.1.0/24"))),
            v6: None,
            mtu: 1450,
            masquerade: true,
        },
    }
}

/// Node 1 of a dual-stack cluster.
fn dual() -> HostState {
    HostState {
        addresses: nets(&["10.244.1.0/32", "fd00:244:0:1::/128"]),
        cluster_routes: nets(&["10.244.0.0/16", "fd00:244::/48"]),
        unreachable: nets(&["10.244.1.0/24", "fd00:244:0:1::/64"]),
        ..v4()
    }
}

/// One call of apply by an agent just started.
fn apply(namespace: &Namespace, desired: &HostState) -> Result<Vec<Change>, HostError> {
    let state = namespace.state_dir();
    namespace.inside(|| async move { Host::open(&state).await?.apply(desired).await })
}

/// The error as the log shows it: the sentence and the remedy.
fn text(error: &HostError) -> String {
    Problem::Host(HostProblem::of(error)).to_string()
}
