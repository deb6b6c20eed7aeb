//! The quick check: what is announced nowhere, once a second.

use std::sync::Arc;

use cni_shim::Attachment;

use super::{Control, REFRESH_EVERY};
use crate::control::outcome::Restart;
use crate::control::quick_faults::QuickFaults;
use crate::control::records::key;
use crate::host::Host;
use crate::problems::Origin;

impl Control {
    /// Looks at what is announced nowhere, and at everything where that is not enough.
    pub(super) async fn quick_check(&mut self) -> Result<(), Restart> {
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

    pub(super) async fn quick_faults(&self) -> QuickFaults {
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
}
