//! ADD: attach a pod.
//!
//! Theory of operation. Prove everything (configuration, namespace, agent,
//! node), then reserve, then make, then have it adopted:
//!
//! | step | left behind by a crash | removed by |
//! |---|---|---|
//! | take the attachment's lock | a file without a lock | the next call, the agent |
//! | give back what a delegated IPAM plugin gave an earlier try | the earlier record | DEL, a repeated ADD, GC |
//! | write the record, `Reserved`, under the range's lock | a record | DEL, a repeated ADD, GC |
//! | a delegated IPAM plugin gives addresses, where one is named | a record, addresses of the plugin's | the same |
//! | make the veth pair and its routes | a record and a link it names | the same |
//! | the agent adopts it | the same | the same |
//! | write the record, `Attached` | a whole attachment | DEL, GC |
//!
//! An error after the first step undoes all of it; what cannot be undone
//! keeps its record. A repeated ADD of a complete attachment is refused, as
//! the specification demands, and changes nothing. Of an incomplete one, or one
//! whose namespace is gone, ADD removes the link and keeps the address.

use std::time::{Duration, Instant};

use cni_shim::api::Request;
use cni_shim::attachment::Lock;
use cni_shim::protocol::request::Target;
use cni_shim::protocol::result::{Dns, Interface, Ip, Route};
use cni_shim::protocol::{CniResult, NetConf};
use cni_shim::{Attachment, NodeFile, RunDir, State, node_file, range};
use ipnet::IpNet;
use serde_json::Value;

use crate::agent::{self, Agent};
use crate::delegate::{Delegate, PATIENCE};
use crate::error::Error;
use crate::failpoint;
use crate::netlink::Netlink;
use crate::netns::Netns;
use crate::owner::{self, Owner, expect_ours};
use crate::requested::requested;
use crate::reserve::{Reservation, route_destinations};
use crate::teardown;
use crate::veth::{self, Made, PairSpec};
use cni_shim::link_name::mac_text;

/// Serves ADD and returns its result. On error nothing is left.
pub(crate) fn add(target: &Target, conf: &NetConf) -> Result<Value, Error> {
    conf.check()?;
    let previous = previous(conf)?;
    let delegate = match &conf.ipam {
        Some(kind) => Some(Delegate::find(kind, &target.path, conf)?),
        None => None,
    };
    let run = RunDir::under(&conf.root);
    let (netns, mut pod) = Netns::open(&target.netns)?;
    let mut host = Netlink::open()?;
    let deadline = Instant::now() + AGENT_WAIT;
    let agent = Agent::connect(&run, deadline)?;
    let node = wait_for_node(&run, deadline)?;
    run.make()
        .map_err(|source| range::Error::Directory { source })?;
    let lock = owner::lock(&run, &target.key, PATIENCE)?;
    let reservation = Reservation {
        run: &run,
        conf,
        target,
        netns: &netns,
        node: &node,
        requested: &requested(conf, &target.arguments),
        lock: &lock,
    };
    let mut record = reservation.reserve(&mut host, &mut pod)?;
    let attach = || -> Result<Value, Error> {
        failpoint::after("reserved")?;
        // A DEL or another ADD may have seized the lock: an address that the IPAM plugin gives now would be that one's.
        expect_ours(&run, &record, &lock)?;
        let given = match &delegate {
            None => CniResult::default(),
            Some(delegate) => {
                let given = match delegate.add(&lock) {
                    Err(refused) if refused.is_refusal() => {
                        // It gave nothing, and is run with DEL all the same (SPEC section 4).
                        if expect_ours(&run, &record, &lock).is_ok() {
                            let _ = delegate.delete(&target.key, &lock);
                        }
                        record.ipam = None;
                        return Err(refused.into());
                    }
                    given => given?,
                };
                failpoint::after("ipam")?;
                let addresses: Vec<IpNet> = given.ips.iter().map(|ip| ip.address).collect();
                reservation.assign(&mut host, &mut record, &addresses)?;
                given
            }
        };
        expect_ours(&run, &record, &lock)?;
        failpoint::after("confirmed")?;
        let made = veth::make(
            &mut host,
            &mut pod,
            &PairSpec {
                netns: &netns,
                record: &record,
                routes: &route_destinations(&given.routes),
                mtu_v6: reservation.mtu_v6(&record),
                node: &node,
                is_ours: &|| expect_ours(&run, &record, &lock).is_ok(),
            },
        )?;
        agent.call(&Request::adopt(&target.key), Instant::now() + AGENT_WAIT)?;
        failpoint::after("adopted")?;
        finish(&run, &mut record, &lock)?;
        failpoint::after("attached")?;
        Ok(result(target, conf, &record, &made, given.dns, previous).to_json(conf.version)?)
    };
    let attached = attach();
    if attached.is_err() {
        undo(&run, &mut host, &record, target, conf, &lock);
    }
    attached
}

/// What the plugins before us made, where we are not the first.
fn previous(conf: &NetConf) -> Result<CniResult, Error> {
    match &conf.previous {
        None => Ok(CniResult::default()),
        Some(previous) => {
            CniResult::parse(previous, conf.version).map_err(|source| Error::Previous { source })
        }
    }
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

/// Marks the record as attached.
fn finish(run: &RunDir, record: &mut Attachment, lock: &Lock) -> Result<(), Error> {
    expect_ours(run, record, lock)?;
    record.state = State::Attached;
    Ok(record.write(run)?)
}

/// Removes what was made. Where another ADD has taken over the attachment since, under the same names, it removes
/// nothing.
fn undo(
    run: &RunDir,
    host: &mut Netlink,
    record: &Attachment,
    target: &Target,
    conf: &NetConf,
    lock: &Lock,
) {
    if matches!(owner::owner(run, record), Ok(Owner::Other)) {
        eprintln!("tartan-cni: another ADD has made this attachment since; nothing is removed");
        return;
    }
    if let Err(error) = teardown::remove(host, run, record, &target.path, conf, lock) {
        // Standard error is the plugin's log; the caller reports the first error.
        eprintln!("tartan-cni: cannot remove everything that this ADD made, a DEL will: {error}");
    }
    agent::notify(run, &Request::release(&target.key));
}

/// The earlier plugins' result, followed by what this ADD made.
fn result(
    target: &Target,
    conf: &NetConf,
    record: &Attachment,
    made: &Made,
    given_dns: Dns,
    previous: CniResult,
) -> CniResult {
    let mut result = previous;
    let interface = |name: &str, mac: &[u8], sandbox| Interface {
        name: name.to_owned(),
        mac: Some(mac_text(mac)),
        sandbox,
        mtu: Some(record.mtu.into()),
        ..Interface::default()
    };
    result.interfaces.extend([
        interface(&record.host_ifname, &made.host_mac, None),
        interface(&record.ifname, &made.pod_mac, Some(target.netns.clone())),
    ]);
    let pod_interface = result.interfaces.len().saturating_sub(1) as u64;
    result.ips.extend(record.addresses.iter().map(|address| Ip {
        address: *address,
        gateway: Some(veth::gateway(address.addr())),
        interface: Some(pod_interface),
    }));
    result.routes.extend(made.routes.iter().map(|dst| Route {
        dst: *dst,
        gw: Some(veth::gateway(dst.addr())),
        metrics: Vec::new(),
    }));
    // The configuration's dns comes before the IPAM plugin's, and that before the earlier plugins' (plugins/main/ptp).
    for dns in [given_dns, conf.dns.clone()] {
        if dns != Dns::default() {
            result.dns = dns;
        }
    }
    result
}

/// How long ADD waits for an agent that is down or starting, and again for
/// its answer. A restart takes less.
const AGENT_WAIT: Duration = Duration::from_secs(5);

const NODE_POLL: Duration = Duration::from_millis(20);
