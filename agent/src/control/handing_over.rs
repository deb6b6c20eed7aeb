//! The place of this service given to one of another program.
//!
//! Theory of operation. On *pause* whatever of this service touches the host, files or callers stops: the API is answered no
//! more (its listeners stay open, so callers wait), the upkeep of pods ends where it is, as it may at any death, the thread
//! of the kernel path's flows ends, the threads of pods that flood stay as they are, the lock is given up, and the workers
//! finish what they have read. With nothing held it says *paused*, and the other service reads. Then either comes *end*, and
//! this process ends without another touch of the host; or *resume*, and everything is started again and read anew, as the
//! host and the page of counters may have been changed by the one that is gone.
//!
//! The other service may be that of another agent, whose keeper this one's cannot kill. So the lock says who reads: a service
//! that does not have it again does not go on.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tracing::{info, warn};

use super::event_loop::Control;
use super::outcome::End;
use super::pods::upkeep::Upkeep;
use crate::api::wire::Reply;
use crate::causes::causes;
use crate::host::Host;
use crate::keeper::channel::{HandOverRequest, UpgradeRequest};
use crate::keeper::descriptors::Order;
use crate::service::{self, start_health};
use crate::signals::Signals;

/// What became of it.
pub(super) enum HandedOver {
    /// This service goes on, and has everything to read anew.
    No,
    /// It ends.
    End(End),
}

impl Control {
    /// Asks the keeper for an upgrade. The connection is its from then on.
    pub(super) async fn ask_for_upgrade(
        &mut self,
        program: Option<String>,
        connection: Option<UnixStream>,
    ) {
        let refusal = "the keeper that runs is of a release that cannot be upgraded while it runs: restart the agent once (systemctl restart tartan)";
        let is_known = self.keeper.can_upgrade();
        let Some(connection) = accept(connection, is_known, refusal) else {
            return;
        };
        let request = UpgradeRequest {
            program: program.map(Into::into),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        if let Err(error) = self.keeper.upgrade(request, connection.as_fd()).await {
            // The keeper has ended, and so will we.
            warn!("{}", causes(&error));
        }
    }

    /// Asks the keeper to hand over to another agent. The connection is its from then on.
    pub(super) async fn ask_for_hand_over(
        &mut self,
        request: HandOverRequest,
        connection: Option<UnixStream>,
    ) {
        let refusal = "the keeper that runs is of a release that does not hand over: stop the agent (delete its pod), and this one starts";
        let is_known = self.keeper.can_hand_over();
        let Some(connection) = accept(connection, is_known, refusal) else {
            return;
        };
        if let Err(error) = self.keeper.hand_over(request, connection.as_fd()).await {
            // As above.
            warn!("{}", causes(&error));
        }
    }

    /// Pauses, and waits for what comes of it.
    pub(super) async fn hand_over(&mut self, signals: &mut Signals) -> HandedOver {
        let mut is_resumed = match self.pause(signals).await {
            Ok(is_resumed) => is_resumed,
            Err(end) => return HandedOver::End(end),
        };
        if let Err(error) = self.keeper.paused().await {
            warn!("{}", causes(&error));
            return HandedOver::End(End::KeeperEnded);
        }
        while !is_resumed {
            let order = tokio::select! {
                () = signals.stop() => return HandedOver::End(End::Asked),
                order = self.keeper.order() => order,
            };
            match order {
                Order::End => return HandedOver::End(End::Replaced),
                Order::KeeperEnded => return HandedOver::End(End::KeeperEnded),
                Order::Resume => is_resumed = true,
                Order::Pause => warn!("the keeper says Pause to a service that has paused"),
            }
        }
        info!("the service of another program has not come to it: this one goes on");
        // Without the lock another service may read.
        if let Err(error) = self.run_files.lock_again() {
            return HandedOver::End(End::Locked(causes(&error)));
        }
        self.resume().await;
        match self.keeper.resumed().await {
            Ok(()) => HandedOver::No,
            Err(_) => HandedOver::End(End::KeeperEnded),
        }
    }

    /// Until nothing is held. Returns whether the keeper had it resumed already, which has waited long enough for it.
    ///
    /// # Errors
    /// Where it is to end before that.
    async fn pause(&mut self, signals: &mut Signals) -> Result<bool, End> {
        self.run_files.pause_answering();
        self.upkeep.stop();
        self.health = None;
        self.gathering.pause();
        self.kernel_path.pause();
        self.tables.engine.pause();
        let deadline = Instant::now() + FINISHING;
        while !self.tables.engine.is_paused() && Instant::now() < deadline {
            sleep(STEP).await;
        }
        if !self.tables.engine.is_paused() {
            // The keeper sees that no *paused* comes, if this lasts; what a worker holds ends by time.
            warn!("a worker does not finish what it has read");
        }
        let mut is_resumed = false;
        while !self.tables.engine.is_paused() {
            tokio::select! {
                biased;
                () = signals.stop() => return Err(End::Asked),
                order = self.keeper.order() => match order {
                    Order::End => return Err(End::Replaced),
                    Order::KeeperEnded => return Err(End::KeeperEnded),
                    Order::Resume => is_resumed = true,
                    Order::Pause => warn!("the keeper says Pause to a service that pauses"),
                },
                () = sleep(STEP) => {}
            }
        }
        self.run_files.unlock();
        Ok(is_resumed)
    }

    async fn resume(&mut self) {
        let counters = &self.tables.counters;
        counters.set_workers(self.tables.engine.workers());
        let lost = counters.book_lost();
        if lost > 0 {
            warn!(
                lost,
                "packets that the other service held are booked as LostInCrash"
            );
        }
        self.tables.engine.resume();
        self.gathering.resume();
        let config = Arc::clone(&self.service.config);
        for opened in [
            Host::open(&config.state_dir())
                .await
                .map(|host| self.kernel.host = host),
            Host::open(&config.state_dir()).await.map(|host| {
                self.upkeep = Upkeep::start(host, Arc::clone(&config));
            }),
        ] {
            if let Err(error) = opened {
                warn!("{}", causes(&error));
            }
        }
        let (endpoints, run_dir) = (service::endpoints(&config), config.run_dir());
        self.health = start_health(endpoints, run_dir.path(), self.published.subscribe());
        self.run_files.answer_again();
    }
}

/// Answers a caller whose connection is to be the keeper's. Returns it where the request is known.
fn accept(connection: Option<UnixStream>, is_known: bool, refusal: &str) -> Option<UnixStream> {
    let mut connection = connection?;
    let reply = match is_known {
        true => Reply::Ok(serde_json::json!({})),
        false => Reply::Error(refusal.to_owned()),
    };
    if let Err(error) = write_line(&mut connection, &reply) {
        info!(%error, "the caller has gone");
        return None;
    }
    is_known.then_some(connection)
}

fn write_line(connection: &mut UnixStream, reply: &Reply) -> std::io::Result<()> {
    use std::io::Write as _;

    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    // A caller that does not read has room for one line.
    connection.set_nonblocking(true)?;
    connection.write_all(&line)
}

/// A worker holds what its socket does not take for 10 ms.
const FINISHING: Duration = Duration::from_millis(500);
const STEP: Duration = Duration::from_millis(1);
