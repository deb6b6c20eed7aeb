//! Reserving: writes a record with names and addresses that no other attachment
//! has, before anything is made, under the range's lock.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use cni_shim::attachment::Lock;
use cni_shim::pod_link::PodNetworks;
use cni_shim::protocol::net_conf::Requested;
use cni_shim::protocol::request::Target;
use cni_shim::protocol::{NetConf, result::Route};
use cni_shim::range::{self, Range};
use cni_shim::{Attachment, NodeFile, RunDir, State, attachment};
use ipnet::IpNet;

use crate::delegate::Delegate;
use crate::end;
use crate::error::Error;
use crate::failpoint;
use crate::inventory;
use crate::netlink::Netlink;
use crate::netns::Netns;
use crate::owner::expect_ours;
use crate::taken::Taken;
use crate::teardown;
use crate::veth;
use cni_shim::link_name::{self, mac_text};

/// What a reservation depends on.
pub(crate) struct Reservation<'a> {
    pub(crate) run: &'a RunDir,
    pub(crate) conf: &'a NetConf,
    pub(crate) target: &'a Target,
    pub(crate) netns: &'a Netns,
    pub(crate) node: &'a NodeFile,
    pub(crate) requested: &'a Requested,
    pub(crate) lock: &'a Lock,
}

impl Reservation<'_> {
    /// Writes the record and returns it. With a delegated IPAM plugin it has no
    /// addresses yet: see [`Reservation::assign`].
    pub(crate) fn reserve(
        &self,
        host: &mut Netlink,
        pod: &mut Netlink,
    ) -> Result<Attachment, Error> {
        let subnets = &self.node.subnets;
        let previous = self.clear_previous(host)?;
        // Only the earlier record says what an IPAM plugin gave, so the addresses are given
        // back before that record is replaced; and before the range is locked, because the
        // plugin may take long.
        self.give_back(previous.as_ref())?;
        let mut taken = Taken::read(host, &self.conf.root, subnets)?;
        let range = Range::lock(self.run)?;
        veth::expect_free(pod, &self.target.key.ifname)?;
        self.add_others(&mut taken)?;
        let table = self.table(pod, &taken)?;
        let addresses = match self.conf.ipam {
            Some(_) => Vec::new(),
            None => {
                let previous = previous.filter(|record| record.ipam.is_none());
                let previous = previous.map(|record| record.addresses).unwrap_or_default();
                self.addresses(&range, &taken, previous)?
            }
        };
        let record = self.record(addresses, table, &taken);
        self.check(&record)?;
        record.write(self.run)?;
        Ok(record)
    }

    /// Gives the record the addresses of a delegated IPAM plugin, unless
    /// another attachment has one or the node does not serve it. Where a DEL that
    /// did not wait for us has given them back, ADD fails ([`Error::Removed`]).
    pub(crate) fn assign(
        &self,
        host: &mut Netlink,
        record: &mut Attachment,
        addresses: &[IpNet],
    ) -> Result<(), Error> {
        let _range = Range::lock(self.run)?;
        // Otherwise a later ADD may have the address by now.
        expect_ours(self.run, record, self.lock)?;
        let mut taken = Taken::read(host, &self.conf.root, &self.node.subnets)?;
        // host-local lists these addresses because it gave them to this attachment.
        taken.forget_network(&self.conf.name);
        self.add_others(&mut taken)?;
        let mut host_prefixes = Vec::new();
        for address in addresses.iter().map(IpNet::addr) {
            self.refuse_foreign(address)?;
            if let Some(holder) = taken.holder(address) {
                return Err(Error::Taken { address, holder });
            }
            host_prefixes.push(IpNet::from(address));
        }
        record.addresses = host_prefixes;
        self.check(record)?;
        // A DEL that did not wait for us may have run in between.
        expect_ours(self.run, record, self.lock)?;
        Ok(record.write(self.run)?)
    }

    /// Removes what an earlier try of the same attachment left, and returns
    /// its record. Refuses a complete attachment and changes nothing of it.
    fn clear_previous(&self, host: &mut Netlink) -> Result<Option<Attachment>, Error> {
        let key = &self.target.key;
        let path = Attachment::path(self.run, &key.container, &key.ifname)?;
        let record = match Attachment::read(&path) {
            Ok(record) => record,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => {
                // A link it may have had bears the name the new one will
                // bear, and is replaced with it.
                let aside = attachment::set_aside(&path)?;
                eprintln!("tartan-cni: {error}; set aside as {}", aside.display());
                return Ok(None);
            }
        };
        let complete = record.state == State::Attached
            && record.netns_inode == self.netns.inode()
            && !end::find(
                host,
                key,
                &[&self.conf.name, &record.network],
                Some(&record.host_ifname),
            )?
            .is_empty();
        if complete {
            return Err(veth::Error::Exists {
                ifname: key.ifname.clone(),
            }
            .into());
        }
        teardown::remove_links(host, &record, &self.conf.name)?;
        Ok(Some(record))
    }

    /// Gives back what a delegated IPAM plugin holds for an earlier try; it
    /// would refuse to give twice.
    fn give_back(&self, previous: Option<&Attachment>) -> Result<(), Error> {
        let Some(kind) = previous.and_then(|record| record.ipam.as_ref()) else {
            return Ok(());
        };
        let key = &self.target.key;
        let found = Delegate::find(kind, &self.target.path, self.conf);
        let freed = found.and_then(|delegate| delegate.delete(key, self.lock));
        let gave = previous.is_some_and(|record| !record.addresses.is_empty());
        match freed {
            // As at DEL: a plugin that is not there has given nothing as far as we know.
            Err(error) if !gave && error.is_not_found() => {}
            freed => freed?,
        }
        Ok(failpoint::after("given-back")?)
    }

    fn add_others(&self, taken: &mut Taken) -> Result<(), Error> {
        let key = &self.target.key;
        let own = Attachment::path(self.run, &key.container, &key.ifname)?;
        for (path, record) in attachment::list(self.run)? {
            // The addresses of a record that cannot be read are in the routes.
            if let Ok(record) = record
                && path != own
            {
                taken.add(record);
            }
        }
        Ok(())
    }

    /// A table of the pod that no other attachment of it uses, where one of
    /// them has its default route already.
    fn table(&self, pod: &mut Netlink, taken: &Taken) -> Result<Option<u32>, Error> {
        let mut second = false;
        for v4 in [true, false] {
            let routes = inventory::routes(pod, v4)?;
            let is_default = |route: &inventory::SeenRoute| {
                let everything = route.destination.prefix_len() == 0;
                everything && route.leads && route.table == inventory::MAIN_TABLE
            };
            second |= routes.iter().any(is_default);
        }
        let used: HashSet<u32> = taken
            .records()
            .iter()
            .filter(|record| record.netns_inode == self.netns.inode())
            .filter_map(|record| record.table)
            .collect();
        let free = (FIRST_TABLE..).find(|table| !used.contains(table));
        Ok(free.filter(|_| second))
    }

    /// The addresses asked for, those of an earlier try, or the next ones.
    fn addresses(
        &self,
        range: &Range,
        taken: &Taken,
        previous: Vec<IpNet>,
    ) -> Result<Vec<IpNet>, Error> {
        let subnets = &self.node.subnets;
        let all = taken.addresses();
        let asked: Vec<IpNet> = self
            .requested
            .ips
            .iter()
            .copied()
            .map(IpNet::from)
            .collect();
        let as_asked = asked.iter().all(|address| previous.contains(address));
        if as_asked && reusable(&previous, subnets, &all) {
            return Ok(previous);
        }
        for address in self.requested.ips.iter().copied() {
            self.refuse_foreign(address)?;
            if let Some(holder) = taken.holder(address) {
                return Err(Error::Taken { address, holder });
            }
        }
        let of_other_family = |subnet: &&IpNet| {
            let family = subnet.addr().is_ipv4();
            !asked.iter().any(|asked| asked.addr().is_ipv4() == family)
        };
        let rest: Vec<IpNet> = subnets.iter().filter(of_other_family).copied().collect();
        let mut addresses = asked.clone();
        if asked.is_empty() || !rest.is_empty() {
            let given = range.take(&rest, &all);
            addresses.extend(given.map_err(|error| full(error, taken, &rest))?);
        }
        addresses.sort_by_key(|address| address.addr().is_ipv6());
        Ok(addresses)
    }

    fn refuse_foreign(&self, address: IpAddr) -> Result<(), Error> {
        let subnets = &self.node.subnets;
        if range::is_for_pods(subnets, address) {
            return Ok(());
        }
        let subnets: Vec<String> = subnets.iter().map(ToString::to_string).collect();
        Err(Error::Foreign {
            address,
            subnets: subnets.join(", "),
        })
    }

    fn record(&self, addresses: Vec<IpNet>, table: Option<u32>, taken: &Taken) -> Attachment {
        let key = &self.target.key;
        let names: HashSet<&str> = taken
            .records()
            .iter()
            .map(|record| record.host_ifname.as_str())
            .collect();
        let name = |attempt| link_name::host_ifname(&self.conf.name, key, attempt);
        let mac = self.requested.mac;
        let mac = mac.unwrap_or_else(|| link_name::pod_mac(&self.conf.name, key));
        let mtu = self.node.mtu;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default();
        Attachment {
            version: Attachment::VERSION,
            network: self.conf.name.clone(),
            container: key.container.clone(),
            ifname: key.ifname.clone(),
            netns: self.target.netns.clone(),
            netns_inode: self.netns.inode(),
            // 256 collisions in a row do not happen; the kernel would refuse.
            host_ifname: (0..=u8::MAX)
                .map(name)
                .find(|name| !names.contains(name.as_str()))
                .unwrap_or_else(|| name(0)),
            addresses,
            mac: mac_text(&mac),
            pod: self.target.arguments.pod.clone(),
            created: now.as_secs(),
            written_by: format!("{}-{}", std::process::id(), now.as_nanos()),
            state: State::Reserved,
            bandwidth: self.conf.bandwidth,
            mtu: self.conf.mtu.map_or(mtu, |limit| limit.min(mtu)),
            ipam: self.conf.ipam.clone(),
            table,
            allowed_sources: self.conf.allowed_sources.clone(),
            annotations: self.conf.annotations.clone(),
        }
    }

    /// The MTU of the pod's IPv6 routes, where it is less than the interface's.
    pub(crate) fn mtu_v6(&self, record: &Attachment) -> Option<u16> {
        self.node.mtu_v6.filter(|mtu| *mtu < record.mtu)
    }

    /// Refuses what the kernel would refuse with a less useful message.
    fn check(&self, record: &Attachment) -> Result<(), Error> {
        let has = |v4| {
            let mut addresses = record.addresses.iter();
            addresses.any(|address| address.addr().is_ipv4() == v4)
        };
        if has(false) && record.mtu < SMALLEST_V6_MTU {
            return Err(Error::SmallMtu { mtu: record.mtu });
        }
        let networks = PodNetworks {
            own: self.node.subnets.clone(),
            cluster: self.node.cluster.clone(),
        };
        let of_pods = |prefix: &&IpNet| networks.may_hold_pods(prefix);
        if let Some(prefix) = record.allowed_sources.iter().find(of_pods) {
            return Err(Error::SourceOfPods { prefix: *prefix });
        }
        let mut sources = record.allowed_sources.iter();
        match sources.find(|prefix| !has(prefix.addr().is_ipv4())) {
            Some(prefix) if !record.addresses.is_empty() => {
                Err(Error::SourceFamily { prefix: *prefix })
            }
            _ => Ok(()),
        }
    }
}

/// The routes a delegated IPAM plugin wants, or none: then everything.
pub(crate) fn route_destinations(routes: &[Route]) -> Vec<IpNet> {
    routes.iter().map(|route| route.dst.trunc()).collect()
}

fn full(error: range::Error, taken: &Taken, subnets: &[IpNet]) -> Error {
    match error {
        full @ range::Error::Exhausted { .. } => Error::Full {
            full,
            by: taken.summary(subnets),
        },
        other => other.into(),
    }
}

/// Whether the addresses of an earlier try are still good: in the present
/// subnets, in no other use, and one of each family.
fn reusable(previous: &[IpNet], subnets: &[IpNet], taken: &HashSet<IpAddr>) -> bool {
    let families = |prefixes: &[IpNet]| -> HashSet<bool> {
        prefixes.iter().map(|p| p.addr().is_ipv4()).collect()
    };
    !previous.is_empty()
        && families(previous) == families(subnets)
        && previous
            .iter()
            .map(IpNet::addr)
            .all(|a| range::is_for_pods(subnets, a) && !taken.contains(&a))
}

/// Tables of pods count up from here: beyond those that the kernel, systemd
/// and administrators number by hand.
const FIRST_TABLE: u32 = 1001;

/// RFC 8200 section 5.
const SMALLEST_V6_MTU: u16 = 1280;

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn an_address_is_kept_only_while_it_is_good() {
        let v4 = nets(&["10.244.1.0/24"]);
        let both = nets(&["10.244.1.0/24", "fd00::/64"]);
        let none = HashSet::new();
        let taken = HashSet::from(["10.244.1.5".parse().unwrap()]);
        assert!(reusable(&nets(&["10.244.1.5/32"]), &v4, &none));
        assert!(!reusable(&[], &v4, &none));
        assert!(!reusable(&nets(&["10.244.1.5/32"]), &v4, &taken));
        assert!(!reusable(&nets(&["10.244.2.5/32"]), &v4, &none));
        assert!(!reusable(&nets(&["10.244.1.1/32"]), &v4, &none));
        assert!(!reusable(&nets(&["10.244.1.5/32"]), &both, &none));
        assert!(reusable(
            &nets(&["10.244.1.5/32", "fd00::5/128"]),
            &both,
            &none
        ));
    }
}
