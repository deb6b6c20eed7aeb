//! What `tartan peers` shows of a peer's paths.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dataplane::families::PerFamily;

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

impl PeerHealthView {
    /// Every path, by the peer's name, in the order of address families.
    pub fn paths(&self) -> HashMap<Arc<str>, Vec<PathReport>> {
        let mut paths: HashMap<Arc<str>, Vec<PathReport>> = HashMap::new();
        // The control loop waits for the table: it is only copied while it is held.
        let slots: Vec<(Target, Path)> = lock(&self.0.table)
            .slots()
            .iter()
            .map(|slot| (slot.target.clone(), slot.path.clone()))
            .collect();
        for (target, path) in slots {
            let report = self.report(&target, &path);
            paths.entry(target.name).or_default().push(report);
        }
        paths
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

    fn report(&self, target: &Target, path: &Path) -> PathReport {
        let now = self.0.clock.now();
        let (state, since) = path.state();
        let state = match state {
            // Without probes what is not heard is quiet.
            State::New if !self.0.is_on => State::Quiet,
            state => state.clone(),
        };
        let trips = &path.trips;
        PathReport {
            address: target.address,
            state,
            since: self.0.time_of(since),
            is_probed: path.is_probed(now),
            round_trips: trips.percentile(50).zip(trips.percentile(99)),
            loss: (path.loss.share(SHORT, now), path.loss.share(LONG, now)),
            measured: path.search.measured(),
            configured: path.search.ceiling(),
            next: (self.0.is_on).then(|| path.next().since(now)),
        }
    }
}
