//! What is published: tables, to the workers, the kernel path and the prober of paths; and the view, to the API.

use std::sync::Arc;

use super::Control;
use crate::control::view::View;
use crate::peer_health::Following;

impl Control {
    /// Decides and publishes tables that differ.
    pub(super) fn publish(&mut self) {
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

    pub(super) fn publish_view(&self) {
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
