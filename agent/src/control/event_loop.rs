//! The control loop: waits for the registry, the kernel, the API and the clock, and decides anew.
//!
//! Three things happen to the node:
//!
//! - a *refresh* ([`refresh`]) reads everything, decides, publishes, and brings the kernel to the desired state. It follows every
//!   announcement of a change, and comes every 10 s in any case;
//! - a *quick check* ([`quick_check`]), once a second, looks at what is announced nowhere, which costs a dozen system calls, and some fifty
//!   every other time. It becomes a refresh where something is found, where the watch is not whole, and as long as anything
//!   is to be tried again;
//! - a *call* ([`calls`]) of the plugin changes one attachment: its record is read, and the tables are published. The rest of
//!   the node is not looked at. A call of the operator may ask for a refresh.
//!
//! What comes from the registry ([`registry_updates`]) and from the upkeep of pods ([`upkeep`]) leads to the first two. Tables
//! and the view that the API shows go out by [`publishing`], problems by [`posting`].

mod calls;
mod posting;
mod publishing;
mod quick_check;
mod refresh;
mod registry_updates;
mod upkeep;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant as Moment, sleep_until};
use tracing::{info, warn};

use super::changed_macs::ChangedMacs;
use super::handing_over::HandedOver;
use super::held_list::HeldList;
use super::kernel::Kernel;
use super::model::Model;
use super::outcome::{End, Restart};
use super::persistence::SavedState;
use super::pods::upkeep::Upkeep;
use super::quick_faults::QuickFaults;
use super::records::RecordKey;
use super::registry_state::RegistryState;
use super::reload::Reload;
use super::retry::Retry;
use super::run_files::RunFiles;
use super::tables::Tables;
use super::underlay::sockets::UnderlaySockets;
use super::view::{ServiceFacts, View};
use crate::api::server::Call;
use crate::api::wire::Reply;
use crate::causes::causes;
use crate::gathering::Gathering;
use crate::health::Health;
use crate::keeper::descriptors::{Descriptors, Order};
use crate::kernel_path::KernelPathControl;
use crate::node_faults::watch::Watch as NodeFaults;
use crate::peer_health::PeerHealth;
use crate::problems::Board;
use crate::registry::{Contact, Registry, Update};
use crate::signals::Signals;
use crate::ticker::Ticker;

/// The loop and the parts that it works with.
pub struct Control {
    /// What is known and decided.
    pub model: Model,
    /// The workers' tables.
    pub tables: Tables,
    /// The kernel's side of the node.
    pub kernel: Kernel,
    /// The underlay sockets.
    pub sockets: UnderlaySockets,
    /// The programs in the kernel.
    pub kernel_path: KernelPathControl,
    /// The upkeep of pods.
    pub upkeep: Upkeep,
    /// What callers find in the run directory.
    pub run_files: RunFiles,
    /// The last good state on disk.
    pub saved: SavedState,
    /// Files that are to be read again.
    pub reload: Reload,
    /// Where leases come from.
    pub registry: Registry,
    /// What it reports beside the leases.
    pub registry_state: RegistryState,
    /// What it reports and is not adopted yet.
    pub held: Option<HeldList>,
    /// What the keeper holds.
    pub keeper: Descriptors,
    /// What is wrong.
    pub board: Board,
    /// What stays the same.
    pub service: Arc<ServiceFacts>,
    /// Where views are published.
    pub published: watch::Sender<Option<Arc<View>>>,
    /// What gathers small packets at the ends of pods.
    pub gathering: Gathering,
    /// What probes the paths to peers.
    pub peer_health: PeerHealth,
    /// The health endpoints; none where the configuration names none.
    pub health: Option<Health>,
    /// What the plugin asks for.
    pub calls: mpsc::Receiver<Call>,
    /// The clock of quick checks.
    pub(crate) ticker: Ticker,
    /// Everything else.
    pub turn: Turn,
}

/// The memory of the loop itself, from turn to turn.
#[derive(Debug)]
pub struct Turn {
    /// When everything was read last.
    refreshed: Instant,
    /// When a flanneld was looked for last.
    flanneld_sought: Instant,
    /// When the refresh after a burst of the kernel's announcements is due.
    burst_ends: Option<Moment>,
    /// When a net-conf of the registry's that differs is taken.
    net_conf_due: Option<Moment>,
    /// Until when the registry is waited for that a reload has read again.
    reload_ends: Option<Moment>,
    /// Bridges of another plugin with pods beside ours.
    bridges: Vec<String>,
    /// Callers whose attachment waits for its limit.
    waiting_for_limit: Vec<(RecordKey, oneshot::Sender<Reply>)>,
    /// Attachments whose link is not as it should be, and why.
    faulty: Arc<HashMap<RecordKey, String>>,
    /// When what was refused is tried again.
    retry: Retry,
    /// Faults of the node outside of Tartan.
    node_faults: NodeFaults,
    /// Peers that have another MAC than their lease's.
    changed_macs: ChangedMacs,
    /// What the quick check found right after everything was read and done.
    left: QuickFaults,
}

impl Default for Turn {
    fn default() -> Turn {
        Turn {
            refreshed: Instant::now(),
            flanneld_sought: Instant::now(),
            burst_ends: None,
            net_conf_due: None,
            reload_ends: None,
            bridges: Vec::new(),
            waiting_for_limit: Vec::new(),
            faulty: Arc::default(),
            retry: Retry::default(),
            node_faults: NodeFaults::default(),
            changed_macs: ChangedMacs::default(),
            left: QuickFaults::default(),
        }
    }
}

impl Control {
    /// Runs until something ends it.
    pub async fn run(&mut self, signals: &mut Signals) -> End {
        // Once now: the kernel announced nothing of what changed before the watch was there.
        let mut outcome = self.refresh().await;
        let mut is_view_current = false;
        loop {
            if let Err(Restart(reason)) = outcome {
                return match self.reload.is_taken {
                    true => End::Reload,
                    false => End::Restart(reason),
                };
            }
            if !is_view_current {
                self.publish_view();
            }
            is_view_current = false;
            outcome = tokio::select! {
                is_stop = signals.stop_or_reload() => match is_stop {
                    true => {
                        self.kernel_path.leave(&self.kernel.host).await;
                        return End::Asked;
                    }
                    false => {
                        info!("reload: SIGHUP, the files are read again");
                        self.reload.ask();
                        self.registry.reread();
                        // Said once the registry has been read too, or does not answer.
                        self.turn.reload_ends = Some(Moment::now() + REREAD);
                        self.refresh().await
                    }
                },
                order = self.keeper.order() => match order {
                    Order::KeeperEnded => return End::KeeperEnded,
                    Order::Pause => match self.hand_over(signals).await {
                        HandedOver::No => self.refresh().await,
                        HandedOver::End(end) => {
                            if matches!(end, End::Asked) {
                                self.kernel_path.leave(&self.kernel.host).await;
                            }
                            return end;
                        }
                    },
                    Order::Resume | Order::End => {
                        warn!("the keeper says {order:?} to a service that has not paused");
                        Ok(())
                    }
                },
                update = self.registry.next() => {
                    let is_answer = !matches!(update, Update::Contact(Contact::InTouch));
                    let adopted = self.on_registry_update(update).await;
                    if is_answer && adopted.is_ok() && self.turn.reload_ends.take().is_some() {
                        self.say_reloaded().await;
                    }
                    adopted
                }
                () = due(self.turn.reload_ends) => {
                    self.turn.reload_ends = None;
                    is_view_current = true;
                    self.say_reloaded().await;
                    Ok(())
                }
                Some(call) = self.calls.recv() => self.on_call(call).await,
                () = due(self.held.as_ref().map(|held| held.due().into())) => {
                    warn!("the list of nodes that was held back is adopted: its time has passed");
                    self.adopt_held().await
                }
                Some(report) = self.upkeep.report() => {
                    self.on_upkeep(report);
                    Ok(())
                }
                () = self.kernel.changed() => {
                    let ends = || Moment::now() + BURST;
                    self.turn.burst_ends.get_or_insert_with(ends);
                    is_view_current = true;
                    Ok(())
                }
                () = due(self.turn.net_conf_due) => {
                    self.turn.net_conf_due = None;
                    self.reload.ask();
                    self.refresh().await
                }
                () = due(self.turn.burst_ends) => {
                    self.turn.burst_ends = None;
                    self.turn.retry.start_over();
                    self.refresh().await
                }
                tick = self.ticker.tick() => match tick {
                    Ok(()) => self.quick_check().await,
                    Err(error) => Err(Restart(format!(
                        "its timer fails ({error}); the next gets a new timer, and if that fails too see the kernel's log and restart tartan"
                    ))),
                },
                () = self.tables.next_settle(), if self.tables.is_awaited() => {
                    self.tables.settle();
                    is_view_current = true;
                    Ok(())
                }
            };
        }
    }

    /// Ends the answers, and then the workers: what is asked from here on is the next service's. Where that forwards already
    /// (`is_replaced`), what gathers small packets of pods is left to it as it is.
    pub fn stop(mut self, is_replaced: bool) {
        self.run_files.stop_answering();
        // Before the workers leave the device: without a keeper that takes its carrier, which would end all flows.
        self.kernel_path.pause();
        self.tables.engine.stop();
        if is_replaced {
            // Its thread would take from pods the NAPI threads that it has switched on.
            std::mem::forget(self.gathering);
        }
    }

    async fn say_reloaded(&self) {
        if let Err(error) = self.keeper.reloaded().await {
            // The keeper has ended, and so will we.
            warn!("{}", causes(&error));
        }
    }
}

async fn due(moment: Option<Moment>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// How long the registry is waited for before a reload counts as done: a file is reported only where it says something new.
const REREAD: Duration = Duration::from_secs(1);
/// Changes of the kernel come in bursts; one reading serves all of a burst.
const BURST: Duration = Duration::from_millis(50);
/// Some settings change without an announcement.
pub const QUICK_CHECK_EVERY: Duration = Duration::from_secs(1);
/// Not every way by which a kernel changes is known.
pub(crate) const REFRESH_EVERY: Duration = Duration::from_secs(10);
