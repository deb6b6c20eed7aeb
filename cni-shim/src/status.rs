//! STATUS: would an ADD be served now?

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use cni_shim::{NodeFile, RunDir, attachment, range};
use ipnet::IpNet;

use crate::agent::Agent;
use crate::error::Error;
use crate::net_conf::NetConf;

/// Serves STATUS: the agent listens, the node has a subnet, the subnet has
/// room. Waits for nothing, because runtimes ask every few seconds.
pub(crate) fn status(conf: &NetConf) -> Result<(), Error> {
    conf.check_for_status()?;
    available(&RunDir::under(&conf.root)).map_err(|reason| Error::NotAvailable {
        reason: Box::new(reason),
    })
}

fn available(run: &RunDir) -> Result<(), Error> {
    Agent::connect(&run.socket(), Instant::now() + PATIENCE)?;
    let node = NodeFile::read(run)?;
    let records = attachment::list(run)?;
    let taken: HashSet<IpAddr> = records
        .iter()
        .filter_map(|(_, record)| record.as_ref().ok())
        .flat_map(|record| record.addresses.iter().map(IpNet::addr))
        .collect();
    range::check_room(&node.subnets, &taken)?;
    Ok(())
}

/// Shorter than one retry: an agent that is down is reported at once.
const PATIENCE: Duration = Duration::from_millis(40);
