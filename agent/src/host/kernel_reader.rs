//! Counters and interfaces of the kernel, read without the right to change anything of ours: for queries.

use std::net::IpAddr;

use ipnet::IpNet;

use super::error::HostError;
use super::net::links::{self, LinkStats};
use super::net::pod_links::{self, PodLinks};
use super::net::routes_of_packets::{self, KernelRoute};
use super::{
    FilterVerdict, FirewallSurvey, Netlink, Picture, PodDrops, ServiceFate, firewall, picture,
};

/// A netlink socket of its own, so that a query waits for nothing else.
#[derive(Debug)]
pub struct KernelReader {
    netlink: Netlink,
}

impl KernelReader {
    /// Opens netlink in the calling thread's network namespace.
    ///
    /// # Errors
    /// When no netlink socket can be had.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn open() -> Result<KernelReader, HostError> {
        Ok(KernelReader {
            netlink: Netlink::open()?,
        })
    }

    /// The kernel's counters of one interface.
    ///
    /// # Errors
    /// [`HostError::NoDevice`] when there is none of that name.
    pub async fn device_stats(&self, device: &str) -> Result<LinkStats, HostError> {
        links::stats(&self.netlink.handle, device).await
    }

    /// The host's ends of pods.
    ///
    /// # Errors
    /// The kernel's refusal to list.
    pub async fn pod_links(&self) -> Result<PodLinks, HostError> {
        pod_links::list(&self.netlink.handle).await
    }

    /// How many packets were dropped where they leave a pod; `None` where no rule counts them.
    ///
    /// # Errors
    /// [`HostError::Rules`]: nf_tables cannot be read.
    pub async fn pod_drops(&self) -> Result<Option<PodDrops>, HostError> {
        firewall::pod_drops().await
    }

    /// Interfaces, addresses and routes.
    ///
    /// # Errors
    /// The kernel's refusal to list.
    pub async fn picture(&self) -> Result<Picture, HostError> {
        picture::read(&self.netlink.handle).await
    }

    /// What the packet filter holds that concerns pods of the `cluster` networks. Nothing is changed.
    ///
    /// # Errors
    /// [`HostError::Rules`]: nf_tables cannot be read.
    pub async fn firewall(&self, cluster: &[IpNet]) -> Result<FirewallSurvey, HostError> {
        firewall::survey(cluster).await
    }

    /// The same with the generation of the rules, where that is another than `since`; `None` where it is that one.
    ///
    /// # Errors
    /// [`HostError::Rules`]: nf_tables cannot be read.
    pub async fn firewall_since(
        &self,
        cluster: &[IpNet],
        since: Option<u32>,
    ) -> Result<Option<(u32, FirewallSurvey)>, HostError> {
        firewall::survey_since(cluster, since).await
    }

    /// How the kernel routes a packet that comes by `interface`, and whether a route leads back to its source there.
    ///
    /// # Errors
    /// [`HostError::NoDevice`] when there is no such interface; the kernel's refusal to list.
    pub async fn route_of_packet(
        &self,
        interface: &str,
        source: IpAddr,
        destination: IpAddr,
    ) -> Result<KernelRoute, HostError> {
        routes_of_packets::ask(&self.netlink.handle, interface, source, destination).await
    }

    /// The interface that the most specific route to an address leads to, if it leads to one.
    ///
    /// # Errors
    /// The kernel's refusal to list.
    pub async fn interface_towards(&self, address: IpAddr) -> Result<Option<String>, HostError> {
        routes_of_packets::interface_towards(&self.netlink.handle, address).await
    }

    /// What the rules of nf_tables do with a packet that is forwarded, as far as addresses decide that; or, where it is not,
    /// until it is routed to the node itself. `is_past_kube_proxy`: [`service_fate`](Self::service_fate) has found that
    /// kube-proxy's table does nothing with it.
    ///
    /// # Errors
    /// [`HostError::Rules`]: nf_tables cannot be read.
    pub async fn filter_verdict(
        &self,
        source: IpAddr,
        destination: IpAddr,
        is_forwarded: bool,
        is_past_kube_proxy: bool,
    ) -> Result<FilterVerdict, HostError> {
        let addresses = firewall::Addresses {
            source,
            destination,
        };
        firewall::judge(addresses, is_forwarded, is_past_kube_proxy).await
    }

    /// What kube-proxy does with a packet of that protocol to that port: to which endpoints it translates it.
    ///
    /// # Errors
    /// [`HostError::Rules`]: nf_tables cannot be read.
    pub async fn service_fate(
        &self,
        (source, destination): (IpAddr, IpAddr),
        protocol: u8,
        port: u16,
    ) -> Result<ServiceFate, HostError> {
        let addresses = firewall::Addresses {
            source,
            destination,
        };
        let packet = firewall::ServicePacket {
            addresses,
            protocol,
            port,
        };
        firewall::translate(packet).await
    }

    /// How many packets were dropped where they leave a pod while the pod's own route was missing; `None` where no rule
    /// counts them.
    ///
    /// # Errors
    /// [`HostError::Rules`]: nf_tables cannot be read.
    pub async fn lost_routes(&self) -> Result<Option<u64>, HostError> {
        firewall::pod_routes::lost_routes().await
    }
}
