//! The last good state while the service runs: when it is written, and when the net-conf that it stands in for is taken
//! back.

use tracing::info;

use super::model::Model;
use super::outcome::Restart;
use crate::causes::causes;
use crate::config::{NetConf, NetConfError, NodeConfig};
use crate::last_good::LastGoodError;
use crate::problems::Problem;
use crate::registry::{Registry, Update};

/// Whether the last good state on disk is the one in force, or what is in force was read from it.
#[derive(Debug)]
pub struct SavedState {
    is_current: bool,
}

impl SavedState {
    /// `is_current` says whether the state in force was read from the disk.
    pub fn new(is_current: bool) -> SavedState {
        SavedState { is_current }
    }

    /// The state in force has changed.
    pub fn outdate(&mut self) {
        self.is_current = false;
    }

    /// Whether nothing is to be written.
    pub fn is_current(&self) -> bool {
        self.is_current
    }

    /// Writes what a start without the registry begins from, if that is outdated. What the disk refuses is tried again by
    /// the next call.
    pub fn save(&mut self, model: &Model) -> Option<Problem> {
        if self.is_current {
            return None;
        }
        let refused = model.save().err();
        self.is_current = refused.is_none();
        refused.map(|error| match error {
            LastGoodError::Write { path, source } => Problem::StateNotSaved {
                path,
                reason: source.to_string(),
            },
            LastGoodError::Refused { ref path, .. } => Problem::StateNotSaved {
                path: path.clone(),
                reason: causes(&error),
            },
        })
    }
}

/// Reads the net-conf again where the one in force is the last good state's. One that differs decides sockets and tables,
/// so it is taken by a new start, and only by one that would succeed.
///
/// # Errors
/// [`Restart`] when that is due.
pub fn reread_net_conf(model: &mut Model, registry: &Registry) -> Result<Option<Problem>, Restart> {
    if !model.cached.net_conf {
        return Ok(None);
    }
    let known = &mut model.known;
    let (net_conf, text) = match NetConf::load(&known.config.net_conf) {
        Ok(read) => read,
        Err(error) => return Ok(Some(net_conf_problem(&known.config, &error, true))),
    };
    if net_conf == known.net_conf {
        info!("the net-conf can be read again");
        known.net_conf_text = text;
        model.cached.net_conf = false;
        return Ok(None);
    }
    match registry.read_with(&net_conf) {
        Update::Leases(_) => Err(Restart(
            "the net-conf can be read again, and differs from the one in force".to_owned(),
        )),
        Update::Refused { place, reason } => Ok(Some(Problem::NetConfRefused {
            path: known.config.net_conf.clone(),
            reason: format!(
                "it differs from the one in force, and the list of nodes cannot be used with it: {place}: {reason}"
            ),
            cached: true,
        })),
    }
}

/// Why the net-conf cannot be used, as a problem; `cached` says whether the last good state's is in force.
pub fn net_conf_problem(config: &NodeConfig, error: &NetConfError, cached: bool) -> Problem {
    let (path, reason) = (config.net_conf.clone(), causes(error));
    match error {
        NetConfError::File(_) => Problem::NetConfMissing {
            path,
            reason,
            cached,
        },
        _ => Problem::NetConfRefused {
            path,
            reason,
            cached,
        },
    }
}
