//! What the kernel says that decides the tables.

use std::net::IpAddr;

use cni_shim::NodeFile;
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
    /// Reads them all.
    ///
    /// # Errors
    /// The first that the kernel refuses, or no interface that holds the underlay address.
    pub async fn read(
        host: &Host,
        config: &NodeConfig,
        net_conf: &NetConf,
        own: &Lease,
    ) -> Result<Facts, HostError> {
        let device = &config.device_name;
        Ok(Facts {
            underlay: host.underlay(config.underlay(own.public)).await?,
            prefixes: host.kernel_prefixes(&own.subnets, device).await?,
            addresses: host.addresses().await?,
            bypassing: host
                .bypassing(&net_conf.cluster(), &own.subnets, device)
                .await?,
        })
    }

    /// What a take-over goes on with where [`Facts::read`] fails: as much as the kernel tells. An underlay that
    /// is not found has the MTU that the service before went by.
    pub async fn salvage(
        host: &Host,
        config: &NodeConfig,
        net_conf: &NetConf,
        own: &Lease,
        leases: &[Lease],
    ) -> Facts {
        let device = &config.device_name;
        let lost = || Underlay {
            name: "no interface".to_owned(),
            mtu: NodeFile::read(&config.run_dir()).map_or(ETHERNET_MTU, |file| {
                underlay_mtu(file.mtu, config, own, leases)
            }),
        };
        let underlay = host.underlay(config.underlay(own.public)).await;
        let prefixes = host.kernel_prefixes(&own.subnets, device).await;
        let addresses = host.addresses().await;
        let cluster = net_conf.cluster();
        let bypassing = host.bypassing(&cluster, &own.subnets, device).await;
        Facts {
            underlay: underlay.unwrap_or_else(|_| lost()),
            prefixes: prefixes.unwrap_or_default(),
            addresses: addresses.unwrap_or_default(),
            bypassing: bypassing.unwrap_or_default(),
        }
    }
}

/// Where nobody ever wrote down another.
const ETHERNET_MTU: u16 = 1500;
