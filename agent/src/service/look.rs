//! One look at the node.
//!
//! Everything is read, decided and made to agree ([`Control::refresh`]) when somebody says that it changed: the
//! registry, a netlink announcement, a caller. Once a second there is a *glance* at what nobody announces, which costs a
//! few dozen system calls and becomes a full look where something is found, where the watch is not whole, and as long as
//! anything is in the way; and every 10 s there is a full look whatever was announced.

use std::time::Instant;

use dataplane::engine::Notice;
use tracing::{info, warn};

use super::control::{Control, LOOK_EVERY, Restart};
use crate::api::server;
use crate::causes::causes;
use crate::host::{self, Change, HostError, Picture, Watch};

impl Control {
    /// Looks at what nobody announces, and at everything where that is not enough.
    pub(super) async fn glance(&mut self) -> Result<(), Restart> {
        let quiet = self.is_settled()
            && self.looked.elapsed() < LOOK_EVERY
            && !self.engine.device_lost()
            && !self.node.have_records_changed()
            && server::is_socket(&self.node.known.config.run_dir().socket())
            && self.host.is_undisturbed(&self.node.desired.host);
        if !quiet {
            return self.refresh().await;
        }
        self.notice();
        self.note_offloads();
        Ok(())
    }

    /// Whether the next look can wait for an announcement: every kind of them arrives, and nothing is to be tried again.
    fn is_settled(&self) -> bool {
        let problems = [
            &self.host_problem,
            &self.underlay_problem,
            &self.node_file_problem,
            &self.api_problem,
            &self.tending.problem,
        ];
        self.watch.as_ref().is_some_and(Watch::is_whole)
            && self.saved
            && !self.node.cached.is_any()
            && self.applied == self.node.desired.host
            && self.tending.is_settled(self.node.records_of())
            && problems.iter().all(|problem| problem.is_none())
    }

    /// Reads the kernel, decides, publishes, makes the kernel agree. What the kernel refuses is told in
    /// `tartan status` and tried again at the next turn.
    pub(super) async fn refresh(&mut self) -> Result<(), Restart> {
        self.looked = Instant::now();
        if self.watch.is_none() {
            self.watch = host::watch().ok();
        }
        self.notice();
        self.note_offloads();
        self.reread_net_conf()?;
        self.host.only_add(self.node.cached.is_any());
        self.node.reread_changed_records();
        let picture = self.host.picture().await;
        let mut unread = picture.as_ref().ok().and_then(|p| self.node.known.see(p));
        if self.follow_underlay().await {
            unread = picture.as_ref().ok().and_then(|p| self.node.known.see(p));
        }
        let looked_after = self.tend_pods(picture.as_ref().ok()).await;
        self.note_repairs(&looked_after);
        self.publish();
        let (changes, applied, beside) = self.make_kernel_agree(picture).await;
        if self.engine.device_lost() || matches!(applied, Err(HostError::NoDevice { .. })) {
            let device = &self.node.desired.host.device;
            return Err(Restart(format!("somebody deleted the device {device}")));
        }
        if self.applied == self.node.desired.host {
            self.note_repairs(&changes);
        } else {
            changes.iter().for_each(|change| info!("set up: {change}"));
            if applied.is_ok() {
                self.applied = self.node.desired.host.clone();
            }
        }
        let problem = applied.err().or(unread).or(beside);
        self.note_problem(problem.map(|error| causes(&error)));
        self.write_node_file();
        self.save();
        self.reopen_api().await;
        self.look_at_locks();
        Ok(())
    }

    /// All that the host is to hold: what had to be changed, what was refused of what forwarding needs, and of what
    /// it does not. Neither waits for the other.
    async fn make_kernel_agree(
        &mut self,
        picture: Result<Picture, HostError>,
    ) -> (Vec<Change>, Result<(), HostError>, Option<HostError>) {
        let desired = &self.node.desired.host;
        let applied = match picture {
            Ok(picture) => self.host.apply_to(picture, desired).await,
            Err(error) => Err(error),
        };
        let (mut changes, applied) = match applied {
            Ok(changes) => (changes, Ok(())),
            Err(error) => (Vec::new(), Err(error)),
        };
        let (more, refused) = self.host.apply_beside(desired).await;
        changes.extend(more);
        (changes, applied, refused)
    }

    /// Decides and publishes tables that differ.
    pub(super) fn publish(&mut self) {
        if let Some(spec) = self.node.decide() {
            self.engine.publish(spec);
            self.published = Instant::now();
            info!(
                version = spec.version,
                peers = spec.cluster.peers.len(),
                "tables published"
            );
        }
    }

    fn notice(&mut self) {
        for Notice::RefusedSource {
            outer,
            inner,
            owner,
        } in self.engine.notices()
        {
            self.refused.note(outer, inner, owner);
        }
        self.engine.free_retired();
        let snapshot = self.engine.snapshot();
        self.refused
            .forget(|source| snapshot.cluster.peers.by_source(source).is_some());
    }

    pub(super) fn note_repairs(&mut self, changes: &[Change]) {
        for change in changes {
            self.note_repair(change.to_string());
        }
    }

    /// Takes note of something that was put right, in words.
    pub(super) fn note_repair(&mut self, what: String) {
        warn!("repaired: {what}");
        self.repairs = self.repairs.saturating_add(1);
        self.last_repair = Some(what);
    }

    pub(super) fn note_problem(&mut self, problem: Option<String>) {
        if problem != self.host_problem {
            match &problem {
                Some(problem) => warn!("{problem}"),
                None => info!("the kernel agrees again"),
            }
        }
        self.host_problem = problem;
    }
}
