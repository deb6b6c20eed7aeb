//! The refresh: everything is read and decided, and the host is brought to the desired state.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::Instant as Moment;
use tracing::{info, warn};

use super::Control;
use crate::causes::causes;
use crate::control::kernel::problems;
use crate::control::outcome::Restart;
use crate::control::records::{RecordKey, key};
use crate::control::{announcing, diagnosis, replaced_flannel, underlay};
use crate::host::Picture;
use crate::kernel_path;
use crate::problems::{Origin, Problem};
use crate::takeover::flannel;

impl Control {
    /// Reads the kernel, decides, publishes, brings the kernel to the desired state. What the kernel refuses is posted and
    /// tried again ([`Retry`](crate::control::retry::Retry)).
    pub(super) async fn refresh(&mut self) -> Result<(), Restart> {
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
    pub(super) fn look_for_flanneld(&mut self) {
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
}

/// A call of the plugin takes less.
const BUSY: Duration = Duration::from_millis(200);
/// Least time between two looks at all processes.
const FLANNELD_EVERY: Duration = Duration::from_secs(5);
