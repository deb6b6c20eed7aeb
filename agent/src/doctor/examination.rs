//! What all checks look at, read once.

use std::io;
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

use ipnet::IpNet;

use super::board::Board;
use super::dry_start::{self, DryStart};
use crate::api::client::{ClientError, call};
use crate::api::wire::{Drops, Peers, Request, Status};
use crate::config::RunArgs;
use crate::configuration::{Configuration, Unusable};
use crate::host::{FirewallSurvey, Flanneld, HostError, KernelReader, Picture};
use crate::node_faults::checksum_errors::ChecksumErrors;

/// What was read of the node.
pub(super) struct Examination {
    /// When.
    pub(super) now: SystemTime,
    /// The agent's socket.
    pub(super) socket: PathBuf,
    /// What the agent answers.
    pub(super) status: Result<Status, ClientError>,
    /// What the agent says of the other nodes, if it answers.
    pub(super) peers: Option<Peers>,
    /// What the agent says of dropped packets, if it answers.
    pub(super) drops: Option<Drops>,
    /// What it reports to be wrong, or what a start would meet.
    pub(super) board: Board,
    /// The arguments that it was asked with.
    pub(super) args: RunArgs,
    /// The configuration, as a start would read it.
    pub(super) configuration: Result<Configuration, Unusable>,
    /// What a start would find, where no agent runs.
    pub(super) dry_start: Option<DryStart>,
    /// Interfaces, addresses and routes.
    pub(super) picture: Result<Picture, HostError>,
    /// The packet filter.
    pub(super) firewall: Result<FirewallSurvey, HostError>,
    /// A flanneld on this node.
    pub(super) flanneld: Option<Flanneld>,
    /// Datagrams with a wrong checksum so far, and when that was read.
    pub(super) checksum_errors: (Instant, io::Result<ChecksumErrors>),
}

impl Examination {
    /// Reads everything.
    pub(super) async fn begin(args: &RunArgs) -> Examination {
        let checksum_errors = (Instant::now(), ChecksumErrors::read());
        let now = SystemTime::now();
        let configuration = Configuration::load(args, None);
        let root = match &configuration {
            Ok(read) => read.config.root.clone(),
            Err(_) => args.root.clone().unwrap_or_else(|| PathBuf::from("/")),
        };
        let socket = cni_shim::RunDir::under(&root).socket();
        let ask = |request| call(&socket, &request);
        let status = ask(Request::Status).and_then(|answer| {
            serde_json::from_value::<Status>(answer).map_err(ClientError::Answer)
        });
        let (mut peers, mut drops) = (None, None);
        if status.is_ok() {
            peers = ask(Request::Peers)
                .ok()
                .and_then(|answer| serde_json::from_value(answer).ok());
            drops = ask(Request::Drops)
                .ok()
                .and_then(|answer| serde_json::from_value(answer).ok());
        }
        let picture = picture().await;
        let mut board = Board::default();
        let mut dry_start = None;
        match (&status, &configuration) {
            (Ok(status), _) => board.report(&status.problems, now),
            (Err(_), Ok(configuration)) => {
                let found = dry_start::run(configuration, picture.as_ref().ok()).await;
                board.foresee(&found.problems);
                dry_start = Some(found);
            }
            (Err(_), Err(_)) => {}
        }
        let mut examination = Examination {
            now,
            socket,
            status,
            peers,
            drops,
            board,
            args: args.clone(),
            configuration,
            dry_start,
            picture,
            firewall: Ok(FirewallSurvey::default()),
            flanneld: Flanneld::running(),
            checksum_errors,
        };
        examination.firewall = firewall(&examination.cluster()).await;
        examination
    }

    /// The node's name.
    pub(super) fn node(&self) -> Option<String> {
        match (&self.status, &self.configuration) {
            (Ok(status), _) => Some(status.node.clone()),
            (Err(_), Ok(configuration)) => Some(configuration.config.node_name.clone()),
            (Err(_), Err(_)) => None,
        }
    }

    /// The cluster networks; none where they are not known.
    pub(super) fn cluster(&self) -> Vec<IpNet> {
        match (&self.status, &self.dry_start) {
            (Ok(status), _) => status.cluster.clone(),
            (Err(_), Some(DryStart { net_conf, .. })) => {
                net_conf.as_ref().map_or_else(Vec::new, |it| it.cluster())
            }
            (Err(_), None) => Vec::new(),
        }
    }

    /// This node's subnets; none where they are not known.
    pub(super) fn subnets(&self) -> Vec<IpNet> {
        match (&self.status, &self.dry_start) {
            (Ok(status), _) => status.subnets.clone(),
            (Err(_), Some(DryStart { model, .. })) => model
                .as_ref()
                .map_or_else(Vec::new, |model| model.known.own.subnets.clone()),
            (Err(_), None) => Vec::new(),
        }
    }

    /// The name of the tunnel device.
    pub(super) fn device(&self) -> Option<&str> {
        match (&self.status, &self.configuration) {
            (Ok(status), _) => Some(&status.device),
            (Err(_), Ok(configuration)) => Some(&configuration.config.device_name),
            (Err(_), Err(_)) => None,
        }
    }
}

async fn picture() -> Result<Picture, HostError> {
    KernelReader::open()?.picture().await
}

async fn firewall(cluster: &[IpNet]) -> Result<FirewallSurvey, HostError> {
    KernelReader::open()?.firewall(cluster).await
}
