//! STATUS: would an ADD be served now?

use std::time::{Duration, Instant};

use cni_shim::api::Request;
use cni_shim::protocol::request::SearchPath;
use cni_shim::protocol::{NetConf, Verb};
use cni_shim::{NodeFile, RunDir, attachment, range};

use crate::agent::{self, Agent};
use crate::delegate::Delegate;
use crate::error::Error;
use crate::netlink::Netlink;
use crate::taken::Taken;

/// Serves STATUS: the agent listens and its dataplane works, the node has a
/// subnet, the subnet has room. Waits for nothing but an agent that listens and
/// does not answer, because runtimes ask every few seconds.
pub(crate) fn status(path: &SearchPath, conf: &NetConf) -> Result<(), Error> {
    let run = RunDir::under(&conf.root);
    let connected = conf.check().map_err(Error::from).and_then(|()| {
        let deadline = Instant::now() + PATIENCE;
        Ok(Agent::connect(&run, deadline)?)
    });
    let agent = connected.map_err(not_available)?;
    // Pods may be cut off where an agent listens and does not answer, or answers
    // that it does not work.
    match agent.call(&Request::Ready, Instant::now() + ANSWER) {
        Ok(()) => {}
        // An older agent does not know the request, but it answers, so it works.
        Err(agent::Error::Refused { reason }) if reason.contains("unknown variant") => {}
        Err(reason) => {
            let reason = Box::new(Error::from(reason));
            return Err(Error::CutOff { reason });
        }
    }
    available(&run, path, conf).map_err(not_available)
}

fn not_available(reason: Error) -> Error {
    Error::NotAvailable {
        reason: Box::new(reason),
    }
}

fn available(run: &RunDir, path: &SearchPath, conf: &NetConf) -> Result<(), Error> {
    let subnets = NodeFile::read(run)?.subnets;
    if let Some(kind) = &conf.ipam {
        return Ok(Delegate::find(kind, path, conf)?.forward(Verb::Status)?);
    }
    let mut taken = Taken::read(&mut Netlink::open()?, &conf.root, &subnets)?;
    for (_, record) in attachment::list(run)? {
        if let Ok(record) = record {
            taken.add(record);
        }
    }
    match range::check_room(&subnets, &taken.addresses()) {
        Err(full @ range::Error::Exhausted { .. }) => Err(Error::Full {
            full,
            by: taken.summary(&subnets),
        }),
        room => Ok(room?),
    }
}

/// Shorter than one retry: an agent that is down is reported at once.
const PATIENCE: Duration = Duration::from_millis(40);

/// How long an agent that listens may take to answer.
const ANSWER: Duration = Duration::from_secs(2);
