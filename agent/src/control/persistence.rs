//! The last good state while the service runs: when it is written.

use super::model::Model;
use crate::causes::causes;
use crate::config::{NetConfError, NodeConfig, TextFileError};
use crate::last_good::LastGoodError;
use crate::problems::Problem;

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

/// Why the net-conf cannot be used, as a problem; `cached` says whether the last good state's is in force.
pub fn net_conf_problem(config: &NodeConfig, error: &NetConfError, cached: bool) -> Problem {
    let (path, reason) = (config.net_conf.clone(), causes(error));
    match error {
        NetConfError::File(TextFileError::Read { .. }) => Problem::NetConfMissing {
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
