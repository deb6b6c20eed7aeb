//! What the kernel says that decides the tables.

use std::net::IpAddr;

use cni_shim::NodeFile;
use dataplane::families::PublicAddresses;
use ipnet::IpNet;

use crate::config::{NetConf, NodeConfig};
use crate::host::{Bypass, Host, HostError, Underlay};
use crate::lease::Lease;
use crate::reconcile::underlay_mtu;

/// What the kernel says that decides the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The interface that carries the overlay.
    pub underlay: Underlay,
    /// Prefixes inside our subnets that the kernel serves on other devices.
    pub prefixes: Vec<IpNet>,
    /// Addresses the host holds on other devices.
    pub addresses: Vec<IpAddr>,
    /// Routes that take packets past the overlay.
    pub bypassing: Vec<Bypass>,
}

impl Facts {
    /// Before anything was read. The MTU is the one that a service before this one went by.
    pub fn unread(config: &NodeConfig, own: &Lease, leases: &[Lease]) -> Facts {
        let mtu = |file: NodeFile| underlay_mtu(file.mtu, config, own, leases);
        Facts {
            underlay: Underlay {
                name: "no interface".to_owned(),
                mtu: NodeFile::read(&config.run_dir()).map_or(ETHERNET_MTU, mtu),
                out_of_service: Vec::new(),
            },
            prefixes: Vec::new(),
            addresses: Vec::new(),
            bypassing: Vec::new(),
        }
    }

    /// Reads them again; `bound` are the addresses of our sockets. What the kernel does not tell stays as it was, and
    /// the first of that is returned: an interface that is gone hides no pod.
    pub async fn refresh(
        &mut self,
        host: &Host,
        net_conf: &NetConf,
        own: &Lease,
        device: &str,
        bound: PublicAddresses,
    ) -> Option<HostError> {
        let mut first = None;
        let mut keep = |error| {
            first.get_or_insert(error);
        };
        match host.underlay(bound).await {
            Ok(underlay) => self.underlay = underlay,
            Err(error) => {
                self.underlay.out_of_service.clear();
                keep(error);
            }
        }
        match host.kernel_prefixes(&own.subnets, device).await {
            Ok(prefixes) => self.prefixes = prefixes,
            Err(error) => keep(error),
        }
        match host.addresses().await {
            Ok(addresses) => self.addresses = addresses,
            Err(error) => keep(error),
        }
        let cluster = net_conf.cluster();
        match host.bypassing(&cluster, &own.subnets, device).await {
            Ok(bypassing) => self.bypassing = bypassing,
            Err(error) => keep(error),
        }
        first
    }
}

/// Where nobody ever wrote down another.
const ETHERNET_MTU: u16 = 1500;
