//! ADD: attach a pod.
//!
//! Theory of operation. Prove everything (configuration, namespace, agent,
//! node), then reserve, then make, then have it adopted:
//!
//! | step | left behind by a crash | who clears it |
//! |---|---|---|
//! | write the record, `Reserved`, under the range's lock | a record | DEL, a repeated ADD |
//! | make the veth pair and its routes | a record and a link it names | DEL, a repeated ADD |
//! | the agent adopts it | the same | DEL, a repeated ADD |
//! | write the record, `Attached` | a whole attachment | DEL |
//!
//! An error after the first step undoes all of it; what cannot be undone
//! keeps its record. A repeated ADD of a standing attachment is refused, as
//! the specification demands, and changes nothing. Of a half-made one, or one
//! whose namespace is no more, the link is removed and the address kept.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cni_shim::range::{self, Range};
use cni_shim::{Attachment, NodeFile, RunDir, State, attachment, node_file};
use ipnet::IpNet;
use serde_json::Value;

use crate::agent::{self, Agent, Call};
use crate::error::Error;
use crate::link_name::{self, mac_text};
use crate::net_conf::NetConf;
use crate::netlink::Netlink;
use crate::netns::Netns;
use crate::request::{AddRequest, Key};
use crate::result::AddResult;
use crate::veth::{self, Made, Plan};

/// Serves ADD and returns its result. On error nothing is left.
pub(crate) fn add(request: &AddRequest, conf: &NetConf) -> Result<Value, Error> {
    conf.check_for_add()?;
    let run = RunDir::under(&conf.root);
    let netns = Netns::open(&request.netns)?;
    let mut host = Netlink::open()?;
    let deadline = Instant::now() + AGENT_WAIT;
    let agent = Agent::connect(&run.socket(), deadline)?;
    let node = wait_for_node(&run, deadline)?;
    let mtu = conf.mtu.map_or(node.mtu, |mtu| mtu.min(node.mtu));
    let mut reservation = Reservation {
        run: &run,
        conf,
        request,
        netns: &netns,
        host: &mut host,
    };
    let (mut record, mut pod) = reservation.reserve(&node.subnets)?;
    let plan = Plan {
        netns: &netns,
        ifname: &record.ifname,
        host_ifname: &record.host_ifname,
        pod_mac: link_name::pod_mac(&conf.name, &request.key),
        addresses: &record.addresses,
        mtu,
    };
    let made = match make(&mut host, &mut pod, &plan, agent, &request.key) {
        Ok(made) => made,
        Err(error) => {
            undo(&run, &mut host, &record, &request.key);
            return Err(error);
        }
    };
    record.state = State::Attached;
    if let Err(error) = record.write(&run) {
        undo(&run, &mut host, &record, &request.key);
        return Err(error.into());
    }
    let result = AddResult {
        version: conf.version,
        host: (&record.host_ifname, &made.host_mac),
        pod: (&record.ifname, &made.pod_mac),
        sandbox: &request.netns,
        mtu,
        addresses: &record.addresses,
        default_routes: &made.default_routes,
        dns: &conf.dns,
    };
    Ok(result.to_json())
}

/// The node file, which an agent that is starting may not have written yet.
fn wait_for_node(run: &RunDir, deadline: Instant) -> Result<NodeFile, Error> {
    loop {
        match NodeFile::read(run) {
            Err(node_file::Error::Missing { .. }) if Instant::now() < deadline => {
                std::thread::sleep(NODE_POLL);
            }
            read => return Ok(read?),
        }
    }
}

fn make(
    host: &mut Netlink,
    pod: &mut Netlink,
    plan: &Plan<'_>,
    agent: Agent,
    key: &Key,
) -> Result<Made, Error> {
    let made = veth::make(host, pod, plan)?;
    agent.call(Call::adopt(key), Instant::now() + AGENT_WAIT)?;
    Ok(made)
}

/// Takes back what was made. The record goes last, and only when the link is
/// gone: while one is there, DEL has to find it.
fn undo(run: &RunDir, host: &mut Netlink, record: &Attachment, key: &Key) {
    let limiter = match record.bandwidth {
        Some(_) => veth::remove(host, &record.limiter_ifname()),
        None => Ok(()),
    };
    let undone = limiter
        .and_then(|()| veth::remove(host, &record.host_ifname))
        .map_err(Error::from)
        .and_then(|()| Ok(record.remove(run)?));
    if let Err(error) = undone {
        // Standard error is the plugin's log; the caller reports the first error.
        eprintln!("tartan-cni: could not undo everything, DEL will: {error}");
    }
    agent::tell(&run.socket(), Call::release(key));
}

/// Everything the reservation of an address looks at.
struct Reservation<'a> {
    run: &'a RunDir,
    conf: &'a NetConf,
    request: &'a AddRequest,
    netns: &'a Netns,
    host: &'a mut Netlink,
}

impl Reservation<'_> {
    /// Writes a record with a name and addresses that nobody else has, and
    /// opens the pod's side.
    fn reserve(&mut self, subnets: &[IpNet]) -> Result<(Attachment, Netlink), Error> {
        // A route that appears after this is refused by the kernel later.
        let mut taken: HashSet<IpAddr> = self.host.host_routes()?.into_iter().collect();
        let range = Range::lock(self.run)?;
        let previous = self.clear_previous()?;
        let pod = veth::open_pod_side(self.netns, &self.request.key.ifname)?;
        let key = &self.request.key;
        let own = Attachment::path(self.run, &key.container, &key.ifname)?;
        for address in &previous {
            // Its route went with its link.
            taken.remove(&address.addr());
        }
        let mut names = HashSet::new();
        for (path, record) in attachment::list(self.run)? {
            // The addresses of a record that cannot be read are in the routes.
            if let Ok(record) = record
                && path != own
            {
                taken.extend(record.addresses.iter().map(IpNet::addr));
                names.insert(record.host_ifname);
            }
        }
        let addresses = if reusable(&previous, subnets, &taken) {
            previous
        } else {
            range.take(subnets, &taken)?
        };
        let record = self.record(addresses, &names);
        record.write(self.run)?;
        Ok((record, pod))
    }

    /// Removes the link of a half-made or orphaned attachment of the same
    /// name and returns its addresses. A standing one is left alone, and
    /// opening the pod's side will refuse it.
    fn clear_previous(&mut self) -> Result<Vec<IpNet>, Error> {
        let key = &self.request.key;
        let path = Attachment::path(self.run, &key.container, &key.ifname)?;
        match Attachment::read(&path) {
            Ok(record) => {
                let standing = record.state == State::Attached
                    && record.netns_inode == self.netns.inode()
                    && self.host.link(&record.host_ifname)?.is_some();
                if standing {
                    veth::open_pod_side(self.netns, &key.ifname)?;
                }
                veth::remove(self.host, &record.host_ifname)?;
                Ok(record.addresses)
            }
            // There is none, or none that can be read. A link it may have had bears
            // the name the new one will bear, and is replaced with it.
            Err(_) => Ok(Vec::new()),
        }
    }

    fn record(&self, addresses: Vec<IpNet>, names: &HashSet<String>) -> Attachment {
        let key = &self.request.key;
        let name = |attempt| link_name::host_ifname(&self.conf.name, key, attempt);
        Attachment {
            version: Attachment::VERSION,
            network: self.conf.name.clone(),
            container: key.container.clone(),
            ifname: key.ifname.clone(),
            netns: self.request.netns.clone(),
            netns_inode: self.netns.inode(),
            // 256 collisions in a row do not happen; the kernel would refuse.
            host_ifname: (0..=u8::MAX)
                .map(name)
                .find(|name| !names.contains(name))
                .unwrap_or_else(|| name(0)),
            addresses,
            mac: mac_text(&link_name::pod_mac(&self.conf.name, key)),
            pod: self.request.pod.clone(),
            created: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            state: State::Reserved,
            bandwidth: None,
        }
    }
}

/// Whether the addresses of an earlier try are still good: in today's
/// subnets, nobody else's, and one of each family.
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

/// How long ADD waits for an agent that is down or starting, and again for
/// its answer. A restart takes less.
const AGENT_WAIT: Duration = Duration::from_secs(5);

const NODE_POLL: Duration = Duration::from_millis(20);

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
