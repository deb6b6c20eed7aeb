//! The VXLAN device that has the format's port while the kernel path is in use.
//!
//! Its socket is what makes the kernel join datagrams of VXLAN on arrival (GRO looks a socket up by the port), and what
//! decapsulates the ones that a program has marked. Nothing is sent through it. It has no address, learns nothing, and its
//! MAC is none that a peer sends to: should its program be missing, the stack drops what comes out of it as another host's.
//!
//! It is an `external` one, which hands its program the outer source and the VNI of each packet, and so has the port in
//! both families. A socket of ours at that port of IPv6 keeps it from coming up.

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use rustix::io::Errno;

use crate::host::Host;
use crate::host::change::Change;
use crate::host::error::{HostError, errno};
use crate::host::net::links::{self, Link, LinkKind};
use crate::host::settings::setting::Interface;
use crate::host::settings::sysctls;
use crate::host::shaping::send_request;

/// The device, as it is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VxlanDevice {
    /// Its name.
    pub name: String,
    /// The UDP port that it has.
    pub port: u16,
    /// Its MTU, in bytes of inner packet.
    pub mtu: u16,
}

/// The name of the device beside a tunnel device: no longer than an interface's may be.
pub fn device_name(tunnel: &str) -> String {
    let room = LONGEST_NAME - SUFFIX.len();
    // Names of devices are ASCII: the configuration takes no others.
    let stem: String = tunnel.chars().take(room).collect();
    format!("{stem}{SUFFIX}")
}

impl Host {
    /// Makes the device and brings it up; one of ours that differs is made anew. Returns its index and what had to be done.
    ///
    /// # Errors
    /// [`HostError::ForeignDevice`] where another program has a device of that name, [`HostError::VxlanPort`] where the
    /// port is taken, or the kernel's refusal.
    pub async fn ensure_vxlan_device(
        &self,
        wanted: &VxlanDevice,
    ) -> Result<(u32, Vec<Change>), HostError> {
        let handle = &self.netlink.handle;
        let mut changes = Vec::new();
        if let Some((link, found)) = self.vxlan_device_named(&wanted.name).await? {
            if found == Some(wanted.port) && link.up {
                return Ok((link.index, changes));
            }
            links::delete(handle, &link).await?;
        }
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(wanted.name.clone()),
            LinkAttribute::Mtu(u32::from(wanted.mtu)),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Vxlan),
                LinkInfo::Data(InfoData::Vxlan(vec![
                    InfoVxlan::CollectMetadata(true),
                    InfoVxlan::Learning(false),
                    InfoVxlan::Port(wanted.port),
                ])),
            ]),
        ];
        let request = RouteNetlinkMessage::NewLink(message);
        send_request(handle, request, NLM_F_CREATE | NLM_F_EXCL)
            .await
            .map_err(|source| port_error(wanted, "make", source))?;
        let link = links::named(handle, &wanted.name).await?;
        let link = link.ok_or_else(|| HostError::NoDevice {
            name: wanted.name.clone(),
        })?;
        let done = self.finish(wanted, &link).await;
        if let Err(error) = done {
            links::delete(handle, &link).await?;
            return Err(error);
        }
        changes.push(Change::VxlanDeviceMade(wanted.name.clone()));
        Ok((link.index, changes))
    }

    async fn finish(&self, wanted: &VxlanDevice, link: &Link) -> Result<(), HostError> {
        let handle = &self.netlink.handle;
        links::set_alias(handle, link, ALIAS.to_owned()).await?;
        if let Some(name) = Interface::parse(&link.name) {
            sysctls::disable_ipv6(&name)?;
        }
        // The kernel binds the port now, and no sooner.
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        let up = handle.link().change(message).execute().await;
        up.map_err(|source| port_error(wanted, "bring up", source))
    }

    /// Deletes the device, if it is there and ours. Returns what was done.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub async fn remove_vxlan_device(&self, name: &str) -> Result<Option<Change>, HostError> {
        let handle = &self.netlink.handle;
        match links::named(handle, name).await? {
            Some(link) if is_ours(&link) => {
                links::delete(handle, &link).await?;
                Ok(Some(Change::VxlanDeviceRemoved(name.to_owned())))
            }
            _ => Ok(None),
        }
    }

    /// The index of our device of that name, if it has this port and is up.
    ///
    /// # Errors
    /// The kernel's refusal to list.
    pub async fn has_vxlan_device(&self, wanted: &VxlanDevice) -> Result<Option<u32>, HostError> {
        let found = match self.vxlan_device_named(&wanted.name).await {
            Err(HostError::ForeignDevice { .. }) => None,
            found => found?,
        };
        let right = |(link, port): &(Link, Option<u16>)| link.up && *port == Some(wanted.port);
        Ok(found.filter(right).map(|(link, _)| link.index))
    }

    /// Our device of that name, with its port if it is `external`.
    async fn vxlan_device_named(
        &self,
        name: &str,
    ) -> Result<Option<(Link, Option<u16>)>, HostError> {
        let Some(message) = links::message(&self.netlink.handle, name).await? else {
            return Ok(None);
        };
        let link = links::parse(&message);
        if !is_ours(&link) {
            return Err(HostError::ForeignDevice {
                name: name.to_owned(),
                found: "not made by Tartan".to_owned(),
            });
        }
        Ok(Some((link, external_port(&message))))
    }
}

fn port_error(wanted: &VxlanDevice, doing: &'static str, source: rtnetlink::Error) -> HostError {
    match errno(&source) {
        Some(Errno::ADDRINUSE | Errno::EXIST) => HostError::VxlanPort {
            device: wanted.name.clone(),
            port: wanted.port,
        },
        _ => HostError::shaping(doing, &wanted.name, "vxlan", source),
    }
}

fn external_port(message: &LinkMessage) -> Option<u16> {
    let infos = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::LinkInfo(infos) => Some(infos),
            _ => None,
        })?;
    let options = infos.iter().find_map(|info| match info {
        LinkInfo::Data(InfoData::Vxlan(options)) => Some(options),
        _ => None,
    })?;
    let is_external = options.contains(&InfoVxlan::CollectMetadata(true));
    let port = options.iter().find_map(|option| match option {
        InfoVxlan::Port(number) => Some(*number),
        _ => None,
    });
    port.filter(|_| is_external)
}

/// Whether a Tartan agent made the device.
pub(in crate::host) fn is_ours(link: &Link) -> bool {
    link.kind == LinkKind::Other("vxlan".to_owned()) && link.alias == ALIAS
}

const SUFFIX: &str = "-gro";
/// IFNAMSIZ without the terminating zero.
const LONGEST_NAME: usize = 15;
/// The alias that marks the device as ours.
const ALIAS: &str = "Tartan kernel path";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_never_longer_than_an_interfaces() {
        assert_eq!(device_name("tartan0"), "tartan0-gro");
        assert_eq!(device_name("flannel.9999999"), "flannel.999-gro");
        assert_eq!(device_name("flannel.9999999").len(), 15);
    }
}
