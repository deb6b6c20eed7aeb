//! Where the kernel path would be in use on this node, or why it cannot be.

use std::net::{IpAddr, Ipv4Addr};

use cni_shim::ethtool::{Device, Ethtool};
use dataplane::kernel_path::{Program, TunnelFacts, UnderlayFacts};
use encap::{Family, Format};

use super::OffReason;
use super::switching::Surroundings;
use crate::causes::causes;
use crate::control::model::Known;
use crate::host::Host;
use crate::host::kernel_path::filters::{Direction, Hook};
use crate::host::kernel_path::{VxlanDevice, device_name};

/// The devices that it works between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The underlay device, and our address there.
    pub underlay: UnderlayFacts,
    /// Its name.
    pub underlay_name: String,
    /// The tunnel device.
    pub tunnel: TunnelFacts,
    /// Its name.
    pub tunnel_name: String,
    /// The VXLAN device, as it is to be.
    pub device: VxlanDevice,
    /// Its index, once it is there.
    pub device_index: Option<u32>,
    /// Host's ends of the pods whose flows may leave the host's stack out: index and name.
    pub pod_ends: Vec<(u32, String)>,
}

impl Site {
    /// Each program with the index of the device that it is to be attached to. What marks packets comes before what knows the mark.
    pub fn programs(&self) -> Vec<(u32, Program)> {
        let tunnel_out = match self.tunnel.mac {
            None => Program::TunnelOut,
            Some(_) => Program::TunnelOutEther,
        };
        let mut programs = vec![
            (self.underlay.ifindex, Program::UnderlayIn),
            (self.tunnel.ifindex, tunnel_out),
        ];
        programs.extend(self.device_index.map(|index| (index, Program::GroIn)));
        for (index, _) in &self.pod_ends {
            programs.push((*index, Program::PodOut));
            programs.push((*index, Program::PodIn));
        }
        programs
    }

    /// The same as hooks.
    pub(super) fn hooks(&self) -> Vec<(Hook, Program)> {
        let hook = |index: u32, program| {
            let end = || self.pod_ends.iter().find(|(end, _)| *end == index);
            let device = match program {
                Program::UnderlayIn => self.underlay_name.clone(),
                Program::GroIn => self.device.name.clone(),
                Program::TunnelOut | Program::TunnelOutEther => self.tunnel_name.clone(),
                Program::PodOut | Program::PodIn => {
                    end().map_or_else(String::new, |(_, name)| name.clone())
                }
            };
            let direction = match program {
                Program::TunnelOut | Program::TunnelOutEther | Program::PodIn => Direction::Egress,
                Program::UnderlayIn | Program::GroIn | Program::PodOut => Direction::Ingress,
            };
            Hook {
                index,
                device,
                direction,
            }
        };
        let programs = self.programs().into_iter();
        programs
            .map(|(index, program)| (hook(index, program), program))
            .collect()
    }

    /// Whether the device of the hook is the host's end of a pod.
    pub(super) fn is_pod_end(&self, hook: &Hook) -> bool {
        self.pod_ends.iter().any(|(index, _)| *index == hook.index)
    }
}

/// The site, from what host and configuration say.
pub(super) async fn of(with: &Surroundings<'_>) -> Result<Site, OffReason> {
    let Known {
        config,
        net_conf,
        bound,
        ..
    } = with.known;
    let backend = &net_conf.backend;
    if backend.format() != Format::Vxlan {
        return Err(OffReason::UdpBackend);
    }
    let Some(IpAddr::V4(address)) = bound.of(Family::V4) else {
        return Err(OffReason::NoIpv4Underlay);
    };
    if bound.of(Family::V6).is_some() {
        return Err(OffReason::Ipv6Underlay);
    }
    let port = config.kernel_path_port;
    if [backend.udp_port(), backend.vxlan_port()].contains(&port) {
        return Err(OffReason::PortInUse(port));
    }
    let (underlay_name, ifindex, mac) = underlay(with.host, with.picture, address).await?;
    let tunnel_name = config.device_name.clone();
    let Some((index, tunnel_mac)) = with.host.index_and_mac(&tunnel_name).await? else {
        return Err(OffReason::NoTunnelDevice);
    };
    Ok(Site {
        underlay: UnderlayFacts {
            ifindex,
            mac,
            address,
            cuts_datagrams_alone: cuts_datagrams_alone(ifindex),
        },
        underlay_name,
        tunnel: TunnelFacts {
            ifindex: index,
            mac: tunnel_mac,
        },
        device: VxlanDevice {
            name: device_name(&tunnel_name),
            port: backend.vxlan_port(),
            mtu: with.spec.cluster.node.inner_mtu.v4,
        },
        tunnel_name,
        device_index: None,
        pod_ends: Vec::new(),
    })
}

/// Whether the device takes super-packets of UDP uncut, and those of tunnels not. Where the kernel does not tell, the
/// programs send everything.
fn cuts_datagrams_alone(ifindex: u32) -> bool {
    let found = Ethtool::open().and_then(|mut it| it.segmentation(Device::Index(ifindex)));
    found.is_ok_and(|takes| takes.udp && !takes.tunnel)
}

async fn underlay(
    host: &Host,
    picture: &crate::host::Picture,
    address: Ipv4Addr,
) -> Result<(String, u32, encap::Mac), OffReason> {
    let Some(name) = picture.holder(IpAddr::V4(address)) else {
        return Err(OffReason::NoUnderlayDevice);
    };
    match host.index_and_mac(&name).await? {
        Some((index, Some(mac))) if mac != encap::Mac([0; 6]) => Ok((name, index, mac)),
        _ => Err(OffReason::NotEthernet(name)),
    }
}

/// The private port, where a service and a keeper that ended left the VXLAN device behind, which has the port of the
/// format: what arrives goes to the private port, whether the kernel path is configured any more or not. The first refresh
/// goes on from there, into use or out of it.
pub async fn port_without_sockets(host: &Host, known: &Known) -> Option<u16> {
    let backend = &known.net_conf.backend;
    let port = known.config.kernel_path_port;
    let is_free = ![backend.udp_port(), backend.vxlan_port()].contains(&port);
    // The device has the port of both families.
    if !is_free || known.wanted().of(Family::V6).is_some() {
        return None;
    }
    let device = VxlanDevice {
        name: device_name(&known.config.device_name),
        port: backend.vxlan_port(),
        mtu: 0,
    };
    let index = host.has_vxlan_device(&device).await.ok()?;
    index.map(|_| port)
}

/// Frees the port of the format for sockets, where a service and a keeper that ended left a VXLAN device that is of no use.
/// Returns whether there was one.
pub async fn free_format_port(host: &Host, known: &Known) -> bool {
    let device = device_name(&known.config.device_name);
    match host.remove_vxlan_device(&device).await {
        Ok(Some(change)) => {
            tracing::info!("{change}");
            true
        }
        Ok(None) => false,
        Err(error) => {
            tracing::warn!("{}", causes(&error));
            false
        }
    }
}

/// Has what arrives stay at the port of the format, where sockets have it and a service and a keeper that ended left
/// programs that send to the private port.
pub async fn detach_left_underlay_in(host: &Host) {
    match host.detach_everywhere(Program::UnderlayIn.name()).await {
        Ok(devices) => devices
            .iter()
            .for_each(|device| tracing::info!("kernel path: detached the program from {device}")),
        Err(error) => tracing::warn!("{}", causes(&error)),
    }
}
