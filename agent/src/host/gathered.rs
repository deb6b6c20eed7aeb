//! Which hosts' ends of pods gather UDP datagrams (`cni_shim::ethtool`), and how that is brought about.
//!
//! Theory of operation. Two kinds of ends are gathered at:
//!
//! - those that `tartan-cni` made. The plugin switches the features on at ADD; here that is repaired, and done for pods
//!   that an older plugin attached. They end with their pod, so nothing of them goes on record;
//! - veths of other plugins, where it is safe: the other end is in another network namespace, so this end is a pod's and
//!   not a piece of another program's plumbing, and it leads to addresses inside this node's subnets: it has routes there,
//!   or is a port of a bridge that has. The features found go on the record of settings first, so that they are restored
//!   when the end leaves that circle, when gathering is switched off, and by a clean-up, unless another process has
//!   changed them since.
//!
//! The underlay device joins datagrams for the programs of the kernel path while those are in use: many inner packets then
//! pass them as one. User space has its sockets join them. Only `rx-udp-gro-forwarding` is changed there, which does nothing
//! where `rx-gro` is off, and it is on record like those of other plugins' ends.
//!
//! Each is read at every refresh, with one request, and set where it differs. The first time that is set-up, later repair.

use std::collections::HashSet;

use cni_shim::Attachment;
use cni_shim::ethtool::{Device, Error, Ethtool, Gathering};
use cni_shim::pod_end;
use ipnet::IpNet;
use rustix::io::Errno;

use super::Host;
use super::change::Change;
use super::error::HostError;
use super::net::links::{Link, LinkKind};
use super::net::prefixes;
use super::picture::Picture;
use super::settings::setting::{Interface, Setting};
use super::settings::sysctls;
use crate::causes::causes;

/// What became of the ends of pods.
#[derive(Debug, Default)]
pub struct GatheredPods {
    /// The ends that gather now.
    pub ends: Vec<GatheredEnd>,
    /// What was never as it is now, or is restored.
    pub set_up: Vec<Change>,
    /// What another process had changed and was put right.
    pub repairs: Vec<Change>,
    /// Why some end does not gather, in words.
    pub refused: Option<String>,
}

/// An end that gathers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatheredEnd {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
}

impl Host {
    /// Lets the ends of `attachments`, and those of other plugins that lead into the `own` subnets, gather; all others that
    /// were made to are restored. Where `is_wanted` is not set, all are. `underlay` is the underlay device while the
    /// programs of the kernel path receive there.
    pub fn gather_at_pods(
        &mut self,
        picture: &Picture,
        attachments: &[impl AsRef<Attachment>],
        (own, device): (&[IpNet], &str),
        underlay: Option<GatheredEnd>,
        is_wanted: bool,
    ) -> GatheredPods {
        let mut gathered = GatheredPods::default();
        let links = picture.pod_links();
        let underlay = underlay.filter(|_| is_wanted);
        let ends = attachments.iter().filter_map(|a| links.end_of(a.as_ref()));
        let ours: Vec<GatheredEnd> = ends
            .map(|(name, end)| gathered_end(end.index, name))
            .collect();
        let foreign = match is_wanted {
            true => picture.foreign_pod_ends(own, device),
            false => Vec::new(),
        };
        let kept: Vec<&GatheredEnd> = foreign.iter().chain(&underlay).collect();
        match self.restore_features(&kept) {
            Ok(changes) => gathered.set_up.extend(changes),
            Err(error) => gathered.refused = Some(causes(&error)),
        }
        if ours.is_empty() && kept.is_empty() {
            self.gathering_ends.clear();
            return gathered;
        }
        let mut ethtool = match Ethtool::open() {
            Ok(ethtool) => ethtool,
            Err(error) => {
                gathered.refused = Some(causes(&error));
                return gathered;
            }
        };
        if let Some(underlay) = &underlay {
            match self.gather_at_underlay(&mut ethtool, underlay) {
                Ok(true) => gathered
                    .set_up
                    .push(Change::GatheringOn(underlay.name.clone())),
                Ok(false) => {}
                Err(error) => gathered.refused = Some(causes(&error)),
            }
        }
        let known = std::mem::take(&mut self.gathering_ends);
        let wanted = match is_wanted {
            true => Gathering::ON,
            false => Gathering::default(),
        };
        let ours = ours.into_iter().map(|end| (end, false));
        let foreign = foreign.into_iter().map(|end| (end, true));
        for (end, is_foreign) in ours.chain(foreign) {
            match self.set_features(&mut ethtool, &end, wanted, is_foreign) {
                // It went with its pod.
                Err(error) if error.is(Errno::NODEV) => {}
                Err(error) => gathered.refused = Some(causes(&error)),
                Ok(is_changed) => {
                    if is_changed {
                        let change = match is_wanted {
                            true => Change::GatheringOn(end.name.clone()),
                            false => Change::GatheringOff(end.name.clone()),
                        };
                        let is_repair = is_wanted && known.contains(&end.index);
                        let list = match is_repair {
                            true => &mut gathered.repairs,
                            false => &mut gathered.set_up,
                        };
                        list.push(change);
                    }
                    if is_wanted {
                        self.gathering_ends.insert(end.index);
                        gathered.ends.push(end);
                    }
                }
            }
        }
        gathered
    }

    /// Sets the features of one end if they differ; whether they did.
    fn set_features(
        &mut self,
        ethtool: &mut Ethtool,
        end: &GatheredEnd,
        wanted: Gathering,
        is_foreign: bool,
    ) -> Result<bool, Error> {
        let device = Device::Index(end.index);
        let found = ethtool.gathering(device)?;
        if found == wanted {
            return Ok(false);
        }
        if is_foreign && let Some(interface) = Interface::parse(&end.name) {
            let gro = (found.gro != wanted.gro).then(|| Setting::Gro(interface.clone()));
            let udp = found.udp_forwarding != wanted.udp_forwarding;
            let udp = udp.then_some(Setting::UdpGroForwarding(interface));
            let changed = gro.into_iter().chain(udp);
            // On record first: see `sysctls::set_recorded`.
            self.record.add_all(changed.map(|setting| (setting, 0, 1)));
        }
        ethtool.set_gathering(device, wanted)?;
        Ok(true)
    }

    /// Has the underlay device join datagrams that are forwarded; whether it did not.
    fn gather_at_underlay(
        &mut self,
        ethtool: &mut Ethtool,
        underlay: &GatheredEnd,
    ) -> Result<bool, Error> {
        let found = ethtool.gathering(Device::Index(underlay.index))?;
        let wanted = Gathering {
            udp_forwarding: true,
            ..found
        };
        self.set_features(ethtool, underlay, wanted, true)
    }

    /// Restores the features of ends on record, but of these.
    fn restore_features(&mut self, except: &[&GatheredEnd]) -> Result<Vec<Change>, HostError> {
        let kept: HashSet<&str> = except.iter().map(|end| &*end.name).collect();
        let is_unwanted = |setting: &Setting| match setting {
            Setting::Gro(end) | Setting::UdpGroForwarding(end) => !kept.contains(end.name()),
            _ => false,
        };
        sysctls::restore_unwanted(is_unwanted, &mut self.record)
    }
}

impl Picture {
    /// The ends of pods of other plugins that lead into the `own` subnets.
    fn foreign_pod_ends(&self, own: &[IpNet], device: &str) -> Vec<GatheredEnd> {
        let device = self.links.iter().find(|link| link.name == device);
        let device = device.map(|link| link.index);
        let leading = prefixes::pod_interfaces(&self.routes, &self.held, own, device);
        let leads_there = |link: &Link| {
            leading.contains(&link.index) || link.master.is_some_and(|of| leading.contains(&of))
        };
        let ends = self.links.iter().filter(|link| {
            link.kind == LinkKind::Other(pod_end::VETH.to_owned())
                && link.leads_elsewhere
                && !pod_end::has_form(&link.name)
                && leads_there(link)
        });
        ends.map(|link| gathered_end(link.index, &link.name))
            .collect()
    }
}

fn gathered_end(index: u32, name: &str) -> GatheredEnd {
    let name = name.to_owned();
    GatheredEnd { index, name }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::address::AddressFlags;

    use super::*;
    use crate::host::net::addresses::InterfaceAddress;
    use crate::host::net::pod_links::PodLinks;

    fn link(
        index: u32,
        name: &str,
        kind: &str,
        leads_elsewhere: bool,
        master: Option<u32>,
    ) -> Link {
        Link {
            index,
            name: name.to_owned(),
            kind: LinkKind::Other(kind.to_owned()),
            alias: String::new(),
            up: true,
            multicast: true,
            carrier: true,
            mtu: 1450,
            queue: 1000,
            arp: true,
            mac: None,
            master,
            leads_elsewhere,
        }
    }

    #[test]
    fn of_other_plugins_only_veths_of_pods_in_our_subnets_are_chosen() {
        let held = [
            (1, "10.244.1.1/24"),
            (2, "172.17.0.1/16"),
            (9, "10.244.1.9/32"),
        ];
        let picture = Picture {
            links: vec![
                link(1, "cni0", "bridge", false, None),
                link(2, "docker0", "bridge", false, None),
                link(3, "vethpod", "veth", true, Some(1)),
                link(4, "vethdocker", "veth", true, Some(2)),
                // A pair within the host, and a VLAN's port of the bridge.
                link(5, "vethlocal", "veth", false, Some(1)),
                link(6, "eth0.7", "vlan", true, Some(1)),
                link(7, "vethalone", "veth", true, None),
                link(8, "tt0123456789", "veth", true, Some(1)),
                link(9, "vethptp", "veth", true, None),
            ],
            held: held
                .map(|(index, address)| InterfaceAddress {
                    index,
                    address: address.parse().unwrap(),
                    flags: AddressFlags::Permanent,
                })
                .into(),
            routes: Vec::new(),
            pod_links: PodLinks::default(),
        };
        let own = ["10.244.1.0/24".parse().unwrap()];
        let chosen = picture.foreign_pod_ends(&own, "tartan0");
        let names: Vec<&str> = chosen.iter().map(|end| &*end.name).collect();
        assert_eq!(names, ["vethpod", "vethptp"]);
        assert!(picture.foreign_pod_ends(&[], "tartan0").is_empty());
    }
}
