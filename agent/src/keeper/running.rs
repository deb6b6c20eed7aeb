//! A service that the keeper has started: its process, the channel to it, and what is known of it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use dataplane::counters::Counters;
use tokio::time::timeout;
use tracing::warn;

use super::channel::{Channel, ChannelError, FromKeeper, PROTOCOL, TablePart};
use super::child::{Program, Service};
use super::supervision::{DYING_PATIENCE, Keeper, Verdict};
use super::table::DescriptorTable;
use super::watchdog::Watchdog;
use super::{KeeperError, channel::Upgraded};

/// A service, and what it is watched by.
pub(super) struct Running {
    pub(super) channel: Channel,
    pub(super) service: Service,
    /// When it began to start, or to wait.
    pub(super) started: Instant,
    /// Its workers' ticks, once it forwards.
    pub(super) watch: Option<(Watchdog, Counters)>,
    /// It has got the table.
    pub(super) has_table: bool,
    /// It waits for its registry, by the files that it has read.
    pub(super) is_waiting: bool,
    /// It is to read its files again once it forwards.
    pub(super) is_reload_due: bool,
}

impl Running {
    /// Starts the program.
    pub(super) fn start(program: &Program) -> Result<Running, KeeperError> {
        let (channel, theirs) = Channel::pair().map_err(KeeperError::Channel)?;
        let service = Service::start(program, theirs).map_err(|source| KeeperError::Start {
            path: program.path.clone(),
            source,
        })?;
        Ok(Running::of(channel, service))
    }

    /// One that has been started.
    pub(super) fn of(channel: Channel, service: Service) -> Running {
        Running {
            channel,
            service,
            started: Instant::now(),
            watch: None,
            has_table: false,
            is_waiting: false,
            is_reload_due: false,
        }
    }

    /// Waits a moment for a service that is ending anyway, so that the log gives its own end as the reason.
    pub(super) async fn broken(&mut self, error: &impl std::fmt::Display) -> Verdict {
        match timeout(DYING_PATIENCE, self.service.ended()).await {
            Ok(ending) => Verdict::Died(ending),
            Err(_elapsed) => Verdict::Kill(error.to_string()),
        }
    }
}

/// The table for a service: messages, and duplicates of the descriptors. Of its own, so that the keeper can attend to other
/// things while a service takes its time to read it.
pub(super) struct Handed(Vec<(TablePart, Vec<OwnedFd>)>);

impl Handed {
    /// The whole of `table`, each part described by `about` but for its names.
    pub(super) fn of(table: &DescriptorTable, about: &TablePart) -> Result<Handed, ChannelError> {
        let parts = table.parts();
        let count = parts.len();
        let mut handed = Vec::with_capacity(count);
        for (index, (names, descriptors)) in parts.into_iter().enumerate() {
            let copies = descriptors.iter().map(|it| it.try_clone_to_owned());
            let copies: Result<Vec<OwnedFd>, _> = copies.collect();
            let part = TablePart {
                names,
                last: index + 1 == count,
                ..about.clone()
            };
            handed.push((part, copies.map_err(ChannelError::Socket)?));
        }
        Ok(Handed(handed))
    }

    /// Sends it.
    pub(super) async fn send(self, channel: &Channel) -> Result<(), ChannelError> {
        for (part, descriptors) in self.0 {
            let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            channel.send(&FromKeeper::Table(part), &borrowed).await?;
        }
        Ok(())
    }
}

impl Keeper {
    /// Starts a service of the program that runs now or, where its file is gone, of the one by which the agent was started.
    pub(super) fn start_program(&self) -> Result<Running, KeeperError> {
        match Running::start(&self.program) {
            Err(KeeperError::Start { path, source })
                if source.kind() == io::ErrorKind::NotFound && path != self.started_by =>
            {
                warn!(
                    "{} is gone: the service is started from {}, by which the agent was started",
                    path.display(),
                    self.started_by.display()
                );
                Running::start(&Program {
                    path: self.started_by.clone(),
                    arguments: self.program.arguments.clone(),
                })
            }
            started => started,
        }
    }

    /// The whole table. `beside` is what a service is to become that starts beside another.
    pub(super) fn table_for(&self, beside: Option<Upgraded>) -> Result<Handed, ChannelError> {
        let about = TablePart {
            names: Vec::new(),
            last: true,
            restarts: self.restarts,
            last_end: self.last_end.clone(),
            protocol: PROTOCOL,
            beside: beside.is_some(),
            upgraded: beside.or_else(|| self.upgraded.clone()),
        };
        Handed::of(&self.table, &about)
    }
}
