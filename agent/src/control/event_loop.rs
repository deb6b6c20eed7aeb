//! The control loop: waits for the registry, the kernel, the API and the clock, and decides anew.
//!
//! Three things happen to the node:
//!
//! - a *refresh* reads everything, decides, publishes, and brings the kernel to the desired state. It follows every
//!   announcement of a change, and comes every 10 s in any case;
//! - a *quick check*, once a second, looks at what is announced nowhere, which costs a dozen system calls, and some fifty
//!   every other time. It becomes a refresh where something is found, where the watch is not whole, and as long as anything
//!   is to be tried again;
//! - a *call* of the plugin changes one attachment: its record is read, and the tables are published. The rest of the node
//!   is not looked at.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cni_shim::Attachment;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant as Moment, sleep_until};
use tracing::{info, warn};

use super::announcing;
use super::changed_macs::ChangedMacs;
use super::diagnosis;
use super::handing_over::HandedOver;
use super::held_list::{HeldList, Time};
use super::kernel::{Kernel, problems};
use super::model::Model;
use super::outcome::{End, Restart};
use super::persistence::SavedState;
use super::pods::upkeep::{self, Report, Upkeep, Work};
use super::quick_faults::QuickFaults;
use super::records::{RecordKey, key};
use super::registry_state::RegistryState;
use super::reload::Reload;
use super::replaced_flannel;
use super::retry::Retry;
use super::run_files::RunFiles;
use super::tables::Tables;
use super::underlay::{self, sockets::UnderlaySockets};
use super::view::{ServiceFacts, View};
use crate::api::server::Call;
use crate::api::wire::{Adopted, Reply, Request};
use crate::causes::causes;
use crate::gathering::Gathering;
use crate::health::Health;
use crate::host::{Host, Picture};
use crate::keeper::channel::HandOverRequest;
use crate::keeper::descriptors::{Descriptors, Order};
use crate::kernel_path::{self, KernelPathControl};
use crate::lease::Lease;
use crate::node_faults::watch::Watch as NodeFaults;
use crate::peer_health::{Following, PeerHealth};
use crate::problems::{Board, Origin, Problem};
use crate::registry::{Contact, ListDifference, Registry, Update};
use crate::signals::Signals;
use crate::takeover::flannel;
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

    /// What the registry says: leases are adopted, held back or refused as a whole, and everything follows.
    async fn on_registry_update(&mut self, update: Update) -> Result<(), Restart> {
        match update {
            Update::Leases(leases) => self.on_leases(leases).await,
            Update::Refused { place, reason } => {
                self.registry_state
                    .note_refused(&format!("{place}: {reason}"));
                // What a remote registry said before it holds on, also a list that is held back.
                if !self.model.known.is_announced() {
                    self.held = None;
                }
                self.learn(Update::Refused { place, reason }).await
            }
            Update::Settings(settings) => {
                let known = &self.model.known;
                let (own, copy) = (&known.own.subnets, &known.config.net_conf);
                let place = self.registry.place();
                if self.registry_state.learn(settings, own, &place, copy) {
                    let (started, restarts) = (self.service.started, self.service.restarts);
                    match net_conf_due(started, restarts, Instant::now()) {
                        None => self.reload.ask(),
                        due => self.turn.net_conf_due = due.map(Moment::from),
                    }
                }
                self.post_contact();
                self.refresh().await
            }
            Update::Contact(contact) => {
                match &contact {
                    Contact::InTouch => info!("the registry answers"),
                    Contact::Lost { reason } => warn!("the registry does not answer: {reason}"),
                }
                self.registry_state.contact(contact);
                self.post_contact();
                Ok(())
            }
            Update::RefusedRecords(records) => {
                self.registry_state.pass_over(records);
                self.post_contact();
                Ok(())
            }
        }
    }

    fn post_contact(&mut self) {
        let problems = self.registry_state.problems();
        self.board.post(Origin::Contact, problems);
    }

    async fn on_leases(&mut self, leases: Vec<Lease>) -> Result<(), Restart> {
        let earlier = self.held.take();
        let known = &self.model.known;
        let (in_force, grace) = (&known.leases, known.config.shrink_grace);
        let own = leases.iter().find(|lease| lease.name == known.own.name);
        let checked = match own.cloned() {
            // As at a start that waited for the registry.
            Some(own) if self.model.cached.are_leases() && earlier.is_none() => {
                HeldList::check_at_start(leases, &own, in_force, &known.own, grace, Time::read())
            }
            _ => HeldList::check(leases, in_force, earlier.as_ref(), grace, Time::read()),
        };
        match checked {
            Ok(leases) => self.learn(Update::Leases(leases)).await,
            Err(held) => {
                let meanwhile = held.meanwhile(in_force);
                let is_announced = known.is_announced();
                self.held = Some(held);
                if is_announced {
                    return self.learn(Update::Leases(meanwhile)).await;
                }
                self.model.cached.is_held = true;
                self.post_registry(None);
                Ok(())
            }
        }
    }

    /// Posts what is refused of the list of nodes, and that one is held back.
    fn post_registry(&mut self, refused: Option<Problem>) {
        let held = self.held.as_ref();
        let held = held.map(|held| held.problem(self.registry.place().to_string()));
        let problems = held.into_iter().chain(refused);
        self.board.post(Origin::Registry, problems);
    }

    async fn adopt_held(&mut self) -> Result<(), Restart> {
        match self.held.take() {
            Some(held) => self.learn(Update::Leases(held.leases().to_vec())).await,
            None => Ok(()),
        }
    }

    async fn learn(&mut self, update: Update) -> Result<(), Restart> {
        if let Update::Leases(leases) = &update {
            self.saved.outdate();
            let changed = ListDifference::between(&self.model.known.leases, leases);
            info!(
                "the list of nodes is adopted: {} nodes, {changed}",
                leases.len()
            );
        }
        self.turn.retry.start_over();
        let refused = self.model.learn(update);
        self.post_registry(refused);
        self.refresh().await
    }

    async fn on_call(&mut self, call: Call) -> Result<(), Restart> {
        let Call {
            request,
            answer,
            connection,
        } = call;
        match request {
            Request::Adopt { container, ifname } => self.adopt(&container, &ifname, answer),
            Request::Release { container, ifname } => self.release(&container, &ifname, answer),
            Request::AdoptList => return self.confirm(answer).await,
            Request::Upgrade { program } => {
                self.ask_for_upgrade(program, connection).await;
            }
            Request::HandOver {
                instance,
                version,
                format,
                ends_first,
            } => {
                let request = HandOverRequest {
                    instance,
                    version,
                    format,
                    ends_first,
                    from: env!("CARGO_PKG_VERSION").to_owned(),
                };
                self.ask_for_hand_over(request, connection).await;
            }
            _ => refuse(answer, "a query is answered elsewhere".to_owned()),
        }
        Ok(())
    }

    /// The operator confirms the list that is held back. Answered once it is in force.
    async fn confirm(&mut self, answer: oneshot::Sender<Reply>) -> Result<(), Restart> {
        let lost = self.held.as_ref().map(|held| held.lost().to_vec());
        let adopted = self.adopt_held().await;
        let said = Adopted {
            adopted: lost.is_some(),
            nodes: self.model.known.leases.len(),
            lost: lost.unwrap_or_default(),
        };
        self.publish_view();
        let reply = serde_json::to_value(said).map_or_else(
            |error| Reply::Error(format!("the answer cannot be written as JSON: {error}")),
            Reply::Ok,
        );
        // The caller may have disconnected.
        let _ = answer.send(reply);
        adopted
    }

    /// The directory of records is the database: the record is read again, whichever caller asks. A pod's limits are in force
    /// before it is delivered to.
    fn adopt(&mut self, container: &str, ifname: &str, answer: oneshot::Sender<Reply>) {
        self.model.reread_record(container, ifname);
        if let Some(reason) = self.model.why_not_served(container, ifname) {
            return refuse(answer, reason);
        }
        self.publish();
        let found = self.model.records.find(container, ifname);
        match found
            .filter(|found| found.bandwidth.is_some())
            .map(|a| key(a))
        {
            // Whether it is in force is asked of the kernel each time: a CHECK is to find what another process removed.
            Some(limited) => {
                self.turn.waiting_for_limit.push((limited, answer));
                self.give_upkeep(None);
            }
            None => self.answer_when_adopted(answer),
        }
    }

    fn release(&mut self, container: &str, ifname: &str, answer: oneshot::Sender<Reply>) {
        self.model.reread_record(container, ifname);
        self.publish();
        if self.model.records.find(container, ifname).is_some() {
            let reason = "its record is still there; remove the record before asking";
            refuse(answer, reason.to_owned());
        } else {
            self.answer_when_adopted(answer);
        }
    }

    /// Answers once the workers use the latest tables. The view shows them by then.
    fn answer_when_adopted(&mut self, answer: oneshot::Sender<Reply>) {
        self.post_records();
        self.publish_view();
        let version = self.model.desired.spec.version;
        self.tables.answer_when_adopted(version, answer);
    }

    /// Takes a report of the upkeep: a limit that is in force lets its pod be served.
    fn on_upkeep(&mut self, report: Report) {
        let Report {
            tried,
            repairs,
            end,
        } = report;
        for (attachment, refused) in tried {
            if refused.is_none() {
                self.model.records.limit_is_in_force(attachment.clone());
                self.publish();
            }
            let waiting = std::mem::take(&mut self.turn.waiting_for_limit);
            for (waits_for, answer) in waiting {
                match &refused {
                    _ if waits_for != attachment => {
                        self.turn.waiting_for_limit.push((waits_for, answer));
                    }
                    Some(reason) => refuse(answer, reason.clone()),
                    None => self.answer_when_adopted(answer),
                }
            }
        }
        self.kernel.note_repairs(&repairs);
        if let Some(upkeep::End {
            problem, reclaimed, ..
        }) = end
        {
            self.board.post(Origin::Pods, problem);
            if !reclaimed.is_empty() {
                self.model.records.relist(&self.model.known.own.subnets);
                self.publish();
            }
        }
    }

    /// Looks at what is announced nowhere, and at everything where that is not enough.
    async fn quick_check(&mut self) -> Result<(), Restart> {
        self.kernel.log_repeats();
        let next_hop_changed = self.kernel.take_next_hop_change();
        let (known, spec) = (&self.model.known, &self.model.desired.spec);
        let has_fault = self
            .kernel_path
            .tick(
                &self.kernel.host,
                known,
                spec,
                &self.tables.engine,
                next_hop_changed,
            )
            .await;
        if self.turn.node_faults.look(known).await {
            let found = self.turn.node_faults.problems();
            self.board.post(Origin::Node, found);
        }
        let is_due = self.turn.refreshed.elapsed() >= REFRESH_EVERY || !self.is_settled();
        let has_changed = self.tables.engine.device_lost() || self.model.records.have_changed();
        if is_due || has_changed || has_fault || self.has_quick_news().await {
            return self.refresh().await;
        }
        self.tables.take_notices();
        self.post_adoption();
        self.post_health();
        self.post_workers();
        self.post_peers();
        self.post_leases();
        self.look_for_flanneld();
        Ok(())
    }

    async fn has_quick_news(&self) -> bool {
        let nothing = QuickFaults::default();
        // What is refused makes its part of the check fail until it is granted: that is no news before its next try.
        let known = match self.turn.retry.is_waiting() {
            true => &self.turn.left,
            false => &nothing,
        };
        self.quick_faults().await.exceed(known)
    }

    async fn quick_faults(&self) -> QuickFaults {
        let host = &self.kernel.host;
        // Of a link that cannot be put right another look is no use.
        let is_sound = |a: &&Arc<Attachment>| !self.turn.faulty.contains_key(&key(a));
        let sound = self.model.records.adopted().iter().filter(is_sound);
        let desired = &self.model.desired.host;
        let has_pods = !self.model.records.adopted().is_empty();
        let links = host.quick_links(desired, has_pods).await.ok();
        let links = links.as_ref();
        QuickFaults {
            host: host.quick_faults(desired, links),
            api: !self.run_files.is_answering(),
            pods: !Host::pods_pass_quick_check(links, sound.map(|a| &**a)),
        }
    }

    /// Whether the next refresh can wait for an announcement: every kind of them arrives, and nothing is to be tried again
    /// yet.
    fn is_settled(&self) -> bool {
        let is_done = || {
            self.kernel.is_applied(&self.model.desired.host)
                && self.saved.is_current()
                && self.reload.is_saved()
                && self.upkeep.is_settled(self.model.records.listed())
                && !self.board.is_retry_due()
        };
        self.kernel.is_watched()
            && !self.model.cached.is_any()
            && !self.reload.is_to_read()
            && (self.turn.retry.is_waiting() || is_done())
    }

    /// Reads the kernel, decides, publishes, brings the kernel to the desired state. What the kernel refuses is posted and
    /// tried again ([`Retry`]).
    async fn refresh(&mut self) -> Result<(), Restart> {
        self.turn.refreshed = Instant::now();
        self.kernel.keep_watching();
        self.tables.take_notices();
        let refused = self
            .reload
            .follow(&mut self.model, &self.kernel.host)
            .await?;
        self.board.post(Origin::NetConf, refused.net_conf);
        self.board
            .post(Origin::Configuration, refused.configuration);
        self.kernel.host.set_add_only(self.model.cached.is_any());
        let picture = self.kernel.host.picture().await;
        // After the picture: a record is written before its route and removed after it, so no route is without its record.
        self.model.relist_changed_records();
        let mut unread = picture.as_ref().ok().and_then(|p| self.model.known.see(p));
        if let Ok(picture) = &picture {
            self.follow_interface(picture);
        }
        if self.follow_underlay().await {
            unread = picture.as_ref().ok().and_then(|p| self.model.known.see(p));
        }
        self.publish();
        if let Ok(picture) = &picture {
            self.follow_kernel_path(picture).await;
        }
        let networks = self.model.pod_networks();
        self.kernel.host.set_pod_networks(networks);
        self.give_upkeep(picture.as_ref().ok());
        if let Ok(picture) = &picture {
            self.turn.node_faults.see(&self.model.known, picture);
            self.mend_pods(picture).await;
            self.gather(picture);
        }
        let past_overlay = picture.as_ref().ok();
        let past_overlay =
            past_overlay.map_or_else(Vec::new, |p| replaced_flannel::routes(&self.model, p));
        let desired = &self.model.desired.host;
        let bridged = self.model.bridged_subnets();
        let applied = self.kernel.apply(picture, desired, &bridged).await;
        if self.tables.engine.device_lost() || applied.device_is_gone {
            let device = &self.model.desired.host.device;
            return Err(Restart(format!(
                "another process deleted the device {device}"
            )));
        }
        let unremoved = replaced_flannel::remove(&self.kernel, &self.model, &past_overlay).await;
        let refused = problems(&unread).into_iter().chain(applied.problems);
        self.board.post(Origin::Kernel, refused.chain(unremoved));
        self.look_for_flanneld();
        let found = self.turn.node_faults.problems();
        self.board.post(Origin::Node, found);
        if let Some(bridges) = applied.bridges {
            self.turn.bridges = bridges;
        }
        self.restore_run_files().await;
        let state = self.saved.save(&self.model);
        self.peer_health.save();
        let configuration = self.reload.save(self.model.known.config.state_dir());
        self.board
            .post(Origin::State, state.into_iter().chain(configuration));
        let unrecorded = self.kernel.host.record_problem();
        self.board.post(Origin::Settings, problems(unrecorded));
        self.post_adoption();
        self.post_decision();
        self.turn.left = self.quick_faults().await;
        if self.board.is_retry_due() {
            self.turn.retry.tried();
        } else {
            self.turn.retry.start_over();
        }
        Ok(())
    }

    /// Brings the kernel path into use or out of use.
    async fn follow_kernel_path(&mut self, picture: &Picture) {
        let with = kernel_path::Surroundings {
            host: &self.kernel.host,
            picture,
            known: &self.model.known,
            model: &self.model,
            spec: &self.model.desired.spec,
            engine: &self.tables.engine,
            keeper: &self.keeper,
            sockets: &mut self.sockets,
        };
        let problem = self.kernel_path.refresh(with).await;
        self.board.post(Origin::KernelPath, problem);
        self.kernel.follow_next_hops(self.kernel_path.neighbours());
    }

    /// Posts a flanneld that was started beside this service. Every process is looked at, so not at every call.
    fn look_for_flanneld(&mut self) {
        if self.turn.flanneld_sought.elapsed() >= FLANNELD_EVERY {
            self.turn.flanneld_sought = Instant::now();
            let running = flannel::running(&self.model.known.config);
            self.board.post(Origin::Flanneld, running);
        }
    }

    /// Repairs the links of pods.
    async fn mend_pods(&mut self, picture: &Picture) {
        let run = self.service.config.run_dir();
        let adopted = self.model.records.adopted();
        let mended = self.kernel.mend_pods(picture, &run, adopted).await;
        if mended.is_busy {
            // The plugin's call ends soon, and may announce nothing more.
            self.turn
                .burst_ends
                .get_or_insert_with(|| Moment::now() + BUSY);
        }
        let faults = mended.faults.into_iter();
        let faults = faults.filter_map(|(place, reason)| Some((adopted.get(place)?, reason)));
        let faulty: HashMap<RecordKey, String> =
            faults.map(|(a, reason)| (key(a), reason)).collect();
        let links = diagnosis::of_links(adopted, &faulty);
        self.turn.faulty = Arc::new(faulty);
        let uncounted = problems(&mended.uncounted);
        self.board
            .post(Origin::Links, links.into_iter().chain(uncounted));
    }

    /// Lets the ends of pods gather small packets.
    fn gather(&mut self, picture: &Picture) {
        let known = &self.model.known;
        let place = (&*known.own.subnets, &*known.config.device_name);
        let adopted = self.model.records.adopted();
        let (underlay, is_on) = (self.kernel_path.underlay(), self.gathering.is_on());
        let host = &mut self.kernel.host;
        let mut gathered = host.gather_at_pods(picture, adopted, place, underlay, is_on);
        self.kernel.note_set_up(&gathered.set_up);
        self.kernel
            .note_repairs(&std::mem::take(&mut gathered.repairs));
        self.gathering.follow(gathered);
    }

    /// Announces the interface by which this node is reached, once the registry has said what it wants of that.
    fn follow_interface(&mut self, picture: &Picture) {
        let Some(settings) = &self.registry_state.settings else {
            return;
        };
        let known = &mut self.model.known;
        let chosen = announcing::choose(&known.config, &known.net_conf, settings, picture);
        let problem = match announcing::keep(known.external.as_ref(), chosen, picture) {
            Ok(external) => {
                let announcement = announcing::running(known, &external);
                self.registry.announce(announcement);
                if known.external.as_ref() != Some(&external) {
                    info!("this node is reached by {external}");
                    known.external = Some(external);
                }
                None
            }
            Err(error) => Some(Problem::NoExternalInterface {
                reason: causes(&error),
            }),
        };
        self.board.post(Origin::Interface, problem);
    }

    /// Moves the sockets when the node's address has moved. Returns whether they have.
    async fn follow_underlay(&mut self) -> bool {
        let Control {
            sockets,
            model,
            tables,
            board,
            ..
        } = self;
        let followed = underlay::follow(sockets, &model.known, &tables.engine);
        board.post(Origin::Underlay, followed.problem);
        let Some((before, bound)) = followed.moved else {
            return false;
        };
        self.model.known.bound = bound;
        // The tables follow at once: they hold the MAC that is ours.
        self.publish();
        if let Err(error) = self.sockets.deposit(&before, &self.keeper).await {
            // The keeper has ended, and so will we.
            warn!("{}", causes(&error));
        }
        // The last duplicates of the old sockets close here.
        drop(before);
        info!("packets leave from and arrive at {bound} now");
        true
    }

    /// Decides and publishes tables that differ.
    fn publish(&mut self) {
        if let Some(spec) = self.model.decide() {
            self.tables.publish(spec);
            let snapshot = self.tables.engine.snapshot();
            self.kernel_path.follow(spec, snapshot);
        }
        self.follow_peers();
    }

    /// Has the paths of the latest tables probed.
    fn follow_peers(&mut self) {
        let (known, desired) = (&self.model.known, &self.model.desired);
        let engine = &self.tables.engine;
        let following = Following {
            version: desired.spec.version,
            bound: known.bound,
            device_mtu: desired.host.mtu,
            is_kernel_path: self.kernel_path.is_announced(),
        };
        self.peer_health.follow(following, || engine.snapshot());
    }

    fn give_upkeep(&mut self, picture: Option<&Picture>) {
        let records = &self.model.records;
        let waiting = std::mem::take(&mut self.turn.waiting_for_limit);
        for (attachment, answer) in waiting {
            if records.has(&attachment) {
                self.turn.waiting_for_limit.push((attachment, answer));
            } else {
                refuse(answer, "its record is gone".to_owned());
            }
        }
        let waiting = &self.turn.waiting_for_limit;
        let is_awaited = |a: &Arc<Attachment>| {
            records.is_withheld(a) || waiting.iter().any(|(waits_for, _)| *waits_for == key(a))
        };
        let with_waiting = |a: &Arc<_>| (Arc::clone(a), is_awaited(a));
        self.upkeep.give(Work {
            attachments: records.adopted().iter().map(with_waiting).collect(),
            links: picture.map(|picture| picture.pod_links().clone()),
            listed: records.listed(),
        });
    }

    async fn restore_run_files(&mut self) {
        let (repaired, problem) = self.run_files.write_node_file(&self.model);
        self.board.post(Origin::NodeFile, problem);
        let (reopened, problem) = self.run_files.restore_socket(&self.keeper).await;
        self.board.post(Origin::Api, problem);
        self.post_health();
        self.board.post(Origin::Locks, self.run_files.check_locks());
        for repair in repaired.iter().chain(&reopened) {
            self.kernel.note_repair(repair);
        }
    }

    fn post_adoption(&mut self) {
        let behind = self.tables.behind(self.model.desired.spec.version);
        self.board.post(Origin::Adoption, behind);
    }

    fn post_health(&mut self) {
        let problems = self.health.iter().flat_map(Health::problems);
        self.board.post(Origin::Health, problems);
    }

    fn post_peers(&mut self) {
        let (known, refused) = (&self.model.known, &mut self.tables.refused_sources);
        let ours = known.net_conf.backend.vni().get();
        let answers = |peer: &str| self.peer_health.answers(peer);
        let peers = refused.problems(&known.leases, ours, answers);
        self.board.post(Origin::Peers, peers);
        let is_down = !known.facts.underlay.out_of_service.is_empty();
        let paths = self.peer_health.problems(is_down);
        self.board.post(Origin::Paths, paths);
    }

    fn post_decision(&mut self) {
        self.post_peers();
        self.post_workers();
        self.post_records();
        self.post_leases();
        let decision = diagnosis::problems(&self.model, &self.turn.bridges);
        self.board.post(Origin::Decision, decision);
    }

    fn post_workers(&mut self) {
        let placement = &self.service.workers;
        let unusable = placement.unusable();
        let unpinned = placement.unpinned(self.tables.engine.unpinned());
        let unconfined = self.tables.engine.unconfined();
        let unconfined = unconfined.map(|reason| Problem::WorkersNotConfined { reason });
        let workers = unusable.into_iter().chain(unpinned).chain(unconfined);
        self.board.post(Origin::Workers, workers);
    }

    fn post_leases(&mut self) {
        let snapshot = self.tables.engine.snapshot();
        let leases = self
            .turn
            .changed_macs
            .examine(snapshot.cluster.peers.iter());
        self.board.post(Origin::Leases, leases);
    }

    fn post_records(&mut self) {
        let records = diagnosis::of_records(&self.model);
        self.board.post(Origin::Records, records);
    }

    fn publish_view(&self) {
        self.peer_health.tell(self.board.list());
        self.published.send_replace(Some(Arc::new(view(self))));
    }
}

/// What the loop knows now.
fn view(control: &Control) -> View {
    let model = &control.model;
    let known = &model.known;
    View {
        service: Arc::clone(&control.service),
        problems: control.board.list(),
        own: Arc::new(known.own_in_force()),
        underlay: known.facts.underlay.clone(),
        bypassing: Arc::clone(&known.facts.bypassing),
        spec: model.desired.spec.clone(),
        snapshot: control.tables.engine.snapshot(),
        counters: control.tables.counters.clone(),
        clock: control.tables.engine.clock(),
        device_mtu: model.desired.host.mtu,
        cores: (control.service.workers).pinned_cores(control.tables.engine.unpinned()),
        attachments: model.records.adopted().to_vec(),
        stranded: model.stranded().count(),
        leaving: Arc::clone(&control.upkeep.state.leaving),
        faulty: Arc::clone(&control.turn.faulty),
        refused_records: Arc::clone(model.records.refused()),
        refused_sources: control.tables.refused_sources.list(),
        leases_read: model.leases_read,
        leases_cached: model.cached.leases,
        is_registry_cached: model.cached.are_leases(),
        in_touch: control.registry_state.in_touch(),
        refused_leases: Arc::clone(&control.registry_state.refused_records),
        repairs: control.kernel.repairs.count,
        last_repair: control.kernel.repairs.last.clone(),
        reclaimed: control.upkeep.state.reclaimed,
        last_reclaimed: control.upkeep.state.last_reclaimed.clone(),
        sockets: control.sockets.receiving(),
        kernel_path: control.kernel_path.view(),
        gathering: control.gathering.facts(),
        peer_health: control.peer_health.view(),
    }
}

fn refuse(answer: oneshot::Sender<Reply>, reason: String) {
    // The caller may have disconnected.
    let _ = answer.send(Reply::Error(reason));
}

/// When a service that began at `started`, after so many `restarts`, takes a net-conf that the registry changes at `now`;
/// `None`: at once. Each is taken by a new start, so one that keeps changing would keep packets waiting most of the time.
fn net_conf_due(started: Instant, restarts: u64, now: Instant) -> Option<Instant> {
    let soonest = started + LEAST_SERVICE;
    (restarts > 0 && soonest > now).then_some(soonest)
}

async fn due(moment: Option<Moment>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Longer than many times what a start takes.
const LEAST_SERVICE: Duration = Duration::from_secs(2);
/// A call of the plugin takes less.
const BUSY: Duration = Duration::from_millis(200);
/// How long the registry is waited for before a reload counts as done: a file is reported only where it says something new.
const REREAD: Duration = Duration::from_secs(1);
/// Changes of the kernel come in bursts; one reading serves all of a burst.
const BURST: Duration = Duration::from_millis(50);
/// Some settings change without an announcement.
pub const QUICK_CHECK_EVERY: Duration = Duration::from_secs(1);
/// Least time between two looks at all processes.
const FLANNELD_EVERY: Duration = Duration::from_secs(5);
/// Not every way by which a kernel changes is known.
pub(crate) const REFRESH_EVERY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_net_conf_that_keeps_changing_does_not_keep_the_service_starting() {
        let started = Instant::now();
        let soon = started + Duration::from_millis(100);
        assert_eq!(net_conf_due(started, 0, soon), None, "the first start");
        let due = net_conf_due(started, 1, soon);
        assert_eq!(due, Some(started + LEAST_SERVICE));
        assert_eq!(net_conf_due(started, 1, started + LEAST_SERVICE), None);
    }
}
