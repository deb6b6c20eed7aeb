//! Problems that show in what is known already, posted on the board after a quick check, a refresh or a call.

use super::Control;
use crate::control::diagnosis;
use crate::health::Health;
use crate::problems::{Origin, Problem};

impl Control {
    pub(super) fn post_adoption(&mut self) {
        let behind = self.tables.behind(self.model.desired.spec.version);
        self.board.post(Origin::Adoption, behind);
    }

    pub(super) fn post_health(&mut self) {
        let problems = self.health.iter().flat_map(Health::problems);
        self.board.post(Origin::Health, problems);
    }

    pub(super) fn post_peers(&mut self) {
        let (known, refused) = (&self.model.known, &mut self.tables.refused_sources);
        let ours = known.net_conf.backend.vni().get();
        let answers = |peer: &str| self.peer_health.answers(peer);
        let peers = refused.problems(&known.leases, ours, answers);
        self.board.post(Origin::Peers, peers);
        let is_down = !known.facts.underlay.out_of_service.is_empty();
        let paths = self.peer_health.problems(is_down);
        self.board.post(Origin::Paths, paths);
    }

    pub(super) fn post_decision(&mut self) {
        self.post_peers();
        self.post_workers();
        self.post_records();
        self.post_leases();
        let decision = diagnosis::problems(&self.model, &self.turn.bridges);
        self.board.post(Origin::Decision, decision);
    }

    pub(super) fn post_workers(&mut self) {
        let placement = &self.service.workers;
        let unusable = placement.unusable();
        let unpinned = placement.unpinned(self.tables.engine.unpinned());
        let unconfined = self.tables.engine.unconfined();
        let unconfined = unconfined.map(|reason| Problem::WorkersNotConfined { reason });
        let workers = unusable.into_iter().chain(unpinned).chain(unconfined);
        self.board.post(Origin::Workers, workers);
    }

    pub(super) fn post_leases(&mut self) {
        let snapshot = self.tables.engine.snapshot();
        let leases = self
            .turn
            .changed_macs
            .examine(snapshot.cluster.peers.iter());
        self.board.post(Origin::Leases, leases);
    }

    pub(super) fn post_records(&mut self) {
        let records = diagnosis::of_records(&self.model);
        self.board.post(Origin::Records, records);
    }
}
