//! What `tartan peers` shows of a peer's paths.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dataplane::families::PerFamily;
use dataplane::now::Now;

use super::histogram::Histogram;
use super::loss::{LONG, Outcomes, SHORT};
use super::path::Path;
use super::state::State;
use super::table::Target;
use super::{PeerHealthView, lock};

/// One path, as it is now.
#[derive(Clone, Debug, PartialEq)]
pub struct PathReport {
    /// The peer's address.
    pub address: IpAddr,
    /// Its state.
    pub state: State,
    /// Since when.
    pub since: SystemTime,
    /// Packets of pods have gone there, or come, within the last seconds.
    pub is_busy: bool,
    /// Whether the peer is known to answer probes or to send them.
    pub is_probed: bool,
    /// The median of the last round trips, and what 99 of 100 do not exceed.
    pub round_trips: Option<(Duration, Duration)>,
    /// The share of probes lost within a minute and within ten, 0 to 1.
    pub loss: (Option<f64>, Option<f64>),
    /// The largest outer packet that was proved to pass, bytes.
    pub measured: Option<u16>,
    /// The largest outer packet that pods' packets make, bytes.
    pub configured: u16,
    /// Until the next probe; `None` where none is sent.
    pub next: Option<Duration>,
}

impl PathReport {
    /// Why it is in its state, in words; empty where the name says all.
    pub fn reason(&self) -> String {
        match (&self.state, self.is_busy) {
            // Of packets that come it would be `heard`.
            (State::Quiet, true) => {
                "answers no probes; nothing arrived lately, though this node sends to it".to_owned()
            }
            (state, _) => state.to_string(),
        }
    }
}

impl PeerHealthView {
    /// Every path, by the peer's name, in the order of address families.
    pub fn paths(&self) -> HashMap<Arc<str>, Vec<PathReport>> {
        let mut paths: HashMap<Arc<str>, Vec<PathReport>> = HashMap::new();
        // The control loop waits for the table: it is only copied while it is held.
        let slots: Vec<(Target, Path, bool)> = lock(&self.0.table)
            .slots()
            .iter()
            .map(|slot| (slot.target.clone(), slot.path.clone(), slot.is_busy))
            .collect();
        for (target, path, is_busy) in slots {
            let report = self.report(&target, &path, is_busy);
            paths.entry(target.name).or_default().push(report);
        }
        paths
    }

    /// The name of the state of each peer's worst path, by the peer's name.
    pub fn states(&self) -> HashMap<Arc<str>, &'static str> {
        let mut worst: HashMap<Arc<str>, (u8, &'static str)> = HashMap::new();
        for slot in lock(&self.0.table).slots() {
            let (state, _) = slot.path.state();
            let state = self.shown(state);
            let named = (state.rank(), state.name());
            let of_peer = worst.entry(Arc::clone(&slot.target.name)).or_insert(named);
            *of_peer = named.max(*of_peer);
        }
        let names = worst.into_iter();
        names.map(|(peer, (_, state))| (peer, state)).collect()
    }

    /// Round trips of the probes of all paths since the service started, by the family of the peer's address.
    pub fn round_trips(&self) -> PerFamily<Histogram> {
        lock(&self.0.table).round_trips()
    }

    /// Outcomes of the probes of which the loss of paths is made since the service started, of all paths, by the family of
    /// the peer's address.
    pub fn outcomes(&self) -> PerFamily<Outcomes> {
        lock(&self.0.table).outcomes()
    }

    /// The path in the worst state.
    pub fn worst(paths: &[PathReport]) -> Option<&PathReport> {
        paths.iter().max_by_key(|path| path.state.rank())
    }

    /// A state as it is shown: without probes what is not heard is quiet.
    fn shown<'a>(&self, state: &'a State) -> &'a State {
        match state {
            State::New if !self.0.is_on => &State::Quiet,
            state => state,
        }
    }

    /// The time of day of a moment of the engine's clock.
    pub fn time_of(&self, moment: Now) -> SystemTime {
        self.0.time_of(moment)
    }

    fn report(&self, target: &Target, path: &Path, is_busy: bool) -> PathReport {
        let now = self.0.clock.now();
        let (state, since) = path.state();
        let state = self.shown(state).clone();
        let trips = &path.trips;
        PathReport {
            address: target.address,
            state,
            since: self.0.time_of(since),
            is_busy,
            is_probed: path.is_probed(now),
            round_trips: trips.percentile(50).zip(trips.percentile(99)),
            loss: (path.loss.share(SHORT, now), path.loss.share(LONG, now)),
            measured: path.search.measured(),
            configured: path.search.ceiling(),
            next: (self.0.is_on).then(|| path.next().since(now)),
        }
    }
}
