//! What the kernel says that decides the tables.

use std::net::IpAddr;
use std::sync::Arc;

use cni_shim::NodeFile;
use dataplane::families::PublicAddresses;
use ipnet::IpNet;

use super::direct_routing::{self, DirectSenders};
use crate::config::{NetConf, NodeConfig};
use crate::host::{Bypass, ForeignBridge, HostError, Picture, Underlay};
use crate::lease::Lease;
use crate::reconcile::underlay_mtu;

/// What the kernel says that decides the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The interface that carries the overlay.
    pub underlay: Underlay,
    /// Prefixes inside our subnets that the kernel serves on other devices.
    pub prefixes: Vec<IpNet>,
    /// Interfaces that lead to them.
    pub pod_links: Vec<String>,
    /// Addresses of attachments that are gone, as long as the kernel may still route to them.
    pub released: Vec<IpAddr>,
    /// Addresses the host holds on other devices.
    pub addresses: Vec<IpAddr>,
    /// Routes that take packets past the overlay.
    pub bypassing: Arc<[Bypass]>,
    /// Peers that send past the overlay.
    pub direct: Arc<[DirectSenders]>,
    /// VXLAN devices that flannel left, each with its address inside the cluster network.
    pub flannel_devices: Vec<(String, IpNet)>,
    /// Bridges of pods in a subnet that is not ours.
    pub foreign_bridges: Vec<ForeignBridge>,
}

impl Facts {
    /// Before anything was read. The MTU is the one that a service before this one went by.
    pub fn unread(config: &NodeConfig, own: &Lease, leases: &Arc<[Lease]>) -> Facts {
        let mtu = |file: NodeFile| underlay_mtu(file.mtu, config, own, leases);
        Facts {
            underlay: Underlay {
                name: "no interface".to_owned(),
                mtu: NodeFile::read(&config.run_dir()).map_or(ETHERNET_MTU, mtu),
                out_of_service: Vec::new(),
            },
            prefixes: Vec::new(),
            pod_links: Vec::new(),
            released: Vec::new(),
            addresses: Vec::new(),
            bypassing: Arc::default(),
            direct: Arc::default(),
            flannel_devices: Vec::new(),
            foreign_bridges: Vec::new(),
        }
    }

    /// Takes them from a picture; `bound` are the addresses of our sockets. Where no interface holds one of these, that
    /// is returned: an interface that is gone hides no pod.
    pub fn see(
        &mut self,
        picture: &Picture,
        net_conf: &NetConf,
        (own, leases): (&Lease, &[Lease]),
        device: &str,
        bound: PublicAddresses,
    ) -> Option<HostError> {
        self.prefixes = picture.kernel_prefixes(&own.subnets, device);
        self.pod_links = picture.pod_interfaces(&own.subnets, device);
        self.forget_released();
        self.addresses = picture.addresses();
        let cluster = net_conf.cluster();
        self.bypassing = picture.bypassing(&cluster, &own.subnets, device).into();
        self.flannel_devices = picture.flannel_devices(&cluster, device);
        self.foreign_bridges = picture.foreign_bridges(&cluster, &own.subnets);
        self.direct = if net_conf.backend.direct_routing() {
            direct_routing::senders(own, leases, |address| picture.on_link(address, device)).into()
        } else {
            Arc::default()
        };
        match picture.underlay(bound) {
            Ok(underlay) => {
                self.underlay = underlay;
                None
            }
            Err(error) => {
                self.underlay.out_of_service.clear();
                Some(error)
            }
        }
    }

    /// Notes addresses of attachments that are gone.
    pub fn release(&mut self, addresses: Vec<IpAddr>) {
        for address in addresses {
            if !self.released.contains(&address) {
                self.released.push(address);
            }
        }
    }

    /// Forgets released addresses that the kernel no longer routes to: a pod that has one next is another one.
    pub fn forget_released(&mut self) {
        let routed = |address: &IpAddr| self.prefixes.contains(&IpNet::from(*address));
        self.released.retain(routed);
    }
}

/// Where no service has written another into the node file.
const ETHERNET_MTU: u16 = 1500;
