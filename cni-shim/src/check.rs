//! CHECK: is an attachment as ADD made it?
//!
//! What we made must be there: the record, both ends, their addresses, MAC and
//! MTU, the way to the pod and the pod's ways out, and an agent that would
//! deliver to it. What plugins behind us changed is theirs: further addresses
//! and routes, another MAC where the result says so, a smaller MTU (`tuning`).
//! A route of the result must lead somewhere; which way is not asked, because
//! others may turn the default route (Multus).

use std::net::IpAddr;
use std::time::{Duration, Instant};

use cni_shim::api::Request;
use cni_shim::protocol::request::Target;
use cni_shim::protocol::{CniResult, NetConf, Verb};
use cni_shim::{Attachment, RunDir, State};
use ipnet::IpNet;

use crate::agent::Agent;
use crate::check_error::CheckError;
use crate::delegate::Delegate;
use crate::error::Error;
use crate::inventory::{self, MAIN_TABLE, SeenQueue};
use crate::netlink::{Link, Netlink};
use crate::netns::Netns;
use cni_shim::link_name::mac_text;

/// Serves CHECK.
pub(crate) fn check(target: &Target, conf: &NetConf) -> Result<(), Error> {
    conf.check()?;
    let previous = conf.previous.as_ref().ok_or(Error::NoPrevious)?;
    let previous = CniResult::parse(previous, conf.version);
    let previous = previous.map_err(|source| Error::Previous { source })?;
    let run = RunDir::under(&conf.root);
    let (netns, mut pod) = Netns::open(&target.netns)?;
    let record = recorded(&run, target, &netns)?;
    let mut host = Netlink::open()?;
    check_host(&mut host, &record)?;
    check_pod(&mut pod, &record, target, &previous)?;
    if let Some(kind) = &record.ipam {
        Delegate::find(kind, &target.path, conf)?.forward(Verb::Check)?;
    }
    // The agent answers once it would deliver; asking again changes nothing.
    let deadline = Instant::now() + AGENT_WAIT;
    let agent = Agent::connect(&run, deadline)?;
    Ok(agent.call(&Request::adopt(&target.key), deadline)?)
}

fn recorded(run: &RunDir, target: &Target, netns: &Netns) -> Result<Attachment, Error> {
    let path = Attachment::path(run, &target.key.container, &target.key.ifname)?;
    let record = match Attachment::read(&path) {
        Err(error) if error.is_not_found() => return Err(CheckError::NoRecord.into()),
        read => read?,
    };
    if record.state != State::Attached {
        return Err(CheckError::HalfMade.into());
    }
    if record.netns_inode != netns.inode() {
        return Err(CheckError::OtherNetns.into());
    }
    Ok(record)
}

fn check_host(host: &mut Netlink, record: &Attachment) -> Result<(), Error> {
    let name = &record.host_ifname;
    let link = expect_up(host, name)?;
    let expected = u32::from(record.mtu);
    if expected != 0 && link.mtu != expected {
        return Err(CheckError::Mtu {
            name: name.clone(),
            found: link.mtu,
            expected,
        }
        .into());
    }
    let held = record.addresses.iter();
    for destination in held.chain(&record.allowed_sources).copied() {
        let routes = inventory::routes(host, destination.addr().is_ipv4())?;
        let leads_there = |route: &inventory::SeenRoute| {
            route.destination == destination && route.index == Some(link.index)
        };
        if !routes.iter().any(leads_there) {
            return Err(CheckError::NoHostRoute { destination }.into());
        }
    }
    for address in record.addresses.iter().map(IpNet::addr) {
        expect_neighbour(host, &link, name, address)?;
    }
    Ok(())
}

fn check_pod(
    pod: &mut Netlink,
    record: &Attachment,
    target: &Target,
    previous: &CniResult,
) -> Result<(), Error> {
    let name = &record.ifname;
    let link = expect_up(pod, name)?;
    let reported = previous.interfaces.iter().find(|interface| {
        interface.sandbox.as_ref() == Some(&target.netns) && interface.name == *name
    });
    let expected = reported.and_then(|interface| interface.mac.clone());
    let expected = expected.unwrap_or_else(|| record.mac.clone());
    let found = mac_text(&link.mac);
    if !found.eq_ignore_ascii_case(&expected) {
        let name = name.clone();
        return Err(CheckError::Mac {
            name,
            found,
            expected,
        }
        .into());
    }
    // Larger would lose packets; smaller is another plugin's choice.
    if record.mtu != 0 && link.mtu > u32::from(record.mtu) {
        return Err(CheckError::Mtu {
            name: name.clone(),
            found: link.mtu,
            expected: record.mtu.into(),
        }
        .into());
    }
    check_addresses(pod, &link, record, previous)?;
    for gateway in gateways(record) {
        expect_neighbour(pod, &link, name, gateway)?;
    }
    check_routes(pod, &link, record, previous)?;
    check_queue(pod, &link, name)
}

/// A queue that holds packets and sends none is stalled (`agent/src/gathering/queue.rs`): from the pod nothing more comes.
fn check_queue(pod: &mut Netlink, link: &Link, name: &str) -> Result<(), Error> {
    let Some(first) = inventory::queue(pod, link.index)? else {
        return Ok(());
    };
    let began = Instant::now();
    let mut latest = first;
    while is_standing(first, latest) {
        if began.elapsed() >= STALLED_FOR {
            let (name, waiting) = (name.to_owned(), latest.waiting);
            return Err(CheckError::Stalled { name, waiting }.into());
        }
        std::thread::sleep(QUEUE_POLL);
        let Some(queue) = inventory::queue(pod, link.index)? else {
            return Ok(());
        };
        latest = queue;
    }
    Ok(())
}

/// Whether packets waited at both moments, and none was sent in between.
fn is_standing(first: SeenQueue, latest: SeenQueue) -> bool {
    first.waiting > 0 && latest.waiting > 0 && first.sent == latest.sent
}

fn check_addresses(
    pod: &mut Netlink,
    link: &Link,
    record: &Attachment,
    previous: &CniResult,
) -> Result<(), Error> {
    let present = inventory::addresses(pod, link.index)?;
    let held: Vec<IpAddr> = record.addresses.iter().map(IpNet::addr).collect();
    if let Some(address) = held.iter().find(|address| !present.contains(address)) {
        return Err(CheckError::NoAddress { address: *address }.into());
    }
    // Those of the result that are said to be on our interface: no other
    // plugin gives it any, unless it did and they are there.
    for ip in &previous.ips {
        let interface = ip.interface.and_then(|index| usize::try_from(index).ok());
        let interface = interface.and_then(|index| previous.interfaces.get(index));
        let ours = interface.is_some_and(|interface| {
            interface.name == record.ifname && interface.sandbox.is_some()
        });
        let address = ip.address.addr();
        if ours && !held.contains(&address) && !present.contains(&address) {
            return Err(CheckError::NotOurs { address }.into());
        }
    }
    Ok(())
}

fn check_routes(
    pod: &mut Netlink,
    link: &Link,
    record: &Attachment,
    previous: &CniResult,
) -> Result<(), Error> {
    let mut routes = inventory::routes(pod, true)?;
    routes.extend(inventory::routes(pod, false)?);
    for reported in &previous.routes {
        let table = reported.metrics.iter().find(|(key, _)| *key == "table");
        let table = table.map_or(u64::from(MAIN_TABLE), |(_, table)| *table);
        let destination = reported.dst.trunc();
        let there = |route: &inventory::SeenRoute| {
            route.destination == destination && route.leads && u64::from(route.table) == table
        };
        if !routes.iter().any(there) {
            return Err(CheckError::NoRoute { destination }.into());
        }
    }
    let Some(table) = record.table else {
        return Ok(());
    };
    for address in record.addresses.iter().map(IpNet::addr) {
        let rules = inventory::source_rules(pod, address.is_ipv4())?;
        let mut rules = rules.iter();
        if !rules.any(|rule| rule.source == address && rule.table == table) {
            return Err(CheckError::NoRule { address }.into());
        }
        let own = |route: &&inventory::SeenRoute| {
            let family = route.destination.addr().is_ipv4() == address.is_ipv4();
            family && route.table == table && route.index == Some(link.index)
        };
        if !routes.iter().any(|route| own(&route)) {
            let destination = everything(address);
            return Err(CheckError::NoRoute { destination }.into());
        }
    }
    Ok(())
}

fn expect_up(netlink: &mut Netlink, name: &str) -> Result<Link, Error> {
    let name = name.to_owned();
    match netlink.link(&name)? {
        None => Err(CheckError::NoLink { name }.into()),
        Some(link) if !link.up => Err(CheckError::Down { name }.into()),
        Some(link) => Ok(link),
    }
}

fn expect_neighbour(
    netlink: &mut Netlink,
    link: &Link,
    name: &str,
    address: IpAddr,
) -> Result<(), Error> {
    let neighbours = inventory::neighbours(netlink, address.is_ipv4())?;
    let mut neighbours = neighbours.iter();
    let there = |seen: &inventory::SeenNeighbour| {
        seen.permanent && seen.address == address && seen.index == link.index
    };
    if neighbours.any(there) {
        return Ok(());
    }
    let name = name.to_owned();
    Err(CheckError::NoNeighbour { address, name }.into())
}

/// The gateway of each of the pod's families.
fn gateways(record: &Attachment) -> Vec<IpAddr> {
    let mut gateways: Vec<IpAddr> = record
        .addresses
        .iter()
        .map(|address| crate::veth::gateway(address.addr()))
        .collect();
    gateways.dedup();
    gateways
}

fn everything(address: IpAddr) -> IpNet {
    match address {
        IpAddr::V4(_) => IpNet::V4(ipnet::Ipv4Net::default()),
        IpAddr::V6(_) => IpNet::V6(ipnet::Ipv6Net::default()),
    }
}

/// A veth hands a packet over as soon as a core takes it; one that takes none for this long has stopped.
const STALLED_FOR: Duration = Duration::from_secs(1);
const QUEUE_POLL: Duration = Duration::from_millis(50);

/// How long CHECK waits for the agent.
const AGENT_WAIT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_queue_that_holds_packets_and_sends_none_stands() {
        let queue = |waiting, sent| SeenQueue { waiting, sent };
        assert!(is_standing(queue(1, 7), queue(1000, 7)));
        for latest in [queue(0, 7), queue(1, 8), queue(0, 8)] {
            assert!(!is_standing(queue(1, 7), latest), "{latest:?}");
        }
        assert!(!is_standing(queue(0, 7), queue(5, 7)), "they came since");
    }
}
