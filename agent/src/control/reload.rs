//! Taking a changed net-conf or `tartan.toml` while the service runs.
//!
//! Theory of operation. Both decide sockets, workers and tables, so what has changed is taken by a new start of the
//! service, during which packets wait and none is lost. That start is made only where the files can be read, the list of nodes
//! can be used with them, and no other interface has the device's name. Until then they are problems, and are read again with
//! each refresh. What else the next service may be refused, as a kind of device that the kernel lacks, is seen by its start alone.
//!
//! A broken configuration is replaced by the text in force, in the next service by that on disk: as long as it is not there, nothing
//! asks for a start.
//!
//! A file is read again when a signal asked for it, and as long as another text stands in for it: the last good one.
//! The keeper's own part of the configuration, `root` and its log filter, needs a restart of the agent.

use std::path::PathBuf;

use tracing::info;

use super::model::Model;
use super::outcome::Restart;
use super::persistence::net_conf_problem;
use crate::causes::causes;
use crate::config::node::registry::RegistryKind;
use crate::config::{ConfigFile, Difference, NetConf, NodeConfig, difference};
use crate::configuration::Configuration;
use crate::host::Host;
use crate::last_good::{self, LastGoodError};
use crate::problems::Problem;
use crate::registry::{self, Update};

/// Which files are to be read again, and the text of the configuration in force.
#[derive(Debug)]
pub struct Reload {
    file: ConfigFile,
    text: String,
    /// The text in force is not the file's, which could not be used.
    is_cached: bool,
    /// The text in force is not on disk for the next start yet.
    is_unsaved: bool,
    /// A signal asks for both files.
    is_asked: bool,
    /// The service ends because its files have changed, and for no fault.
    pub is_taken: bool,
}

/// What a reload found wrong.
#[derive(Debug, Default)]
pub struct Refused {
    /// The net-conf, if that cannot be used.
    pub net_conf: Option<Problem>,
    /// The configuration, if that cannot be used.
    pub configuration: Option<Problem>,
}

impl Reload {
    /// Of a service that forwards by `configuration`.
    pub fn of(configuration: &Configuration) -> Reload {
        Reload {
            file: configuration.file.clone(),
            text: configuration.text.clone(),
            is_cached: configuration.refused.is_some(),
            is_unsaved: configuration.refused.is_none(),
            is_asked: false,
            is_taken: false,
        }
    }

    /// Asks for both files to be read with the next refresh.
    pub fn ask(&mut self) {
        self.is_asked = true;
    }

    /// Whether the next refresh has something to read.
    pub fn is_to_read(&self) -> bool {
        self.is_asked || self.is_cached
    }

    /// Whether the next refresh has nothing to write.
    pub fn is_saved(&self) -> bool {
        !self.is_unsaved
    }

    /// Reads what is to be read.
    ///
    /// # Errors
    /// [`Restart`], where something has changed and the next service can start with it.
    pub async fn follow(&mut self, model: &mut Model, host: &Host) -> Result<Refused, Restart> {
        let mut refused = Refused::default();
        let mut changes: Vec<Difference> = Vec::new();
        let in_force = std::sync::Arc::clone(&model.known.config);
        let mut config = NodeConfig::clone(&in_force);
        let mut new_text = None;
        if self.is_to_read() {
            match self.read() {
                Ok((mut read, text)) => {
                    read.name_device(&model.known.net_conf.backend);
                    changes.extend(difference::of_node(&in_force, &read));
                    if changes.is_empty() {
                        self.take(text);
                    } else {
                        new_text = Some(text);
                    }
                    config = read;
                }
                Err(problem) => refused.configuration = Some(problem),
            }
        }
        if self.is_asked || model.cached.net_conf || config.net_conf != in_force.net_conf {
            match self.net_conf(model, &config) {
                Ok(differing) => changes.extend(differing),
                Err(problem) => refused.net_conf = Some(problem),
            }
        }
        let has_nothing_kept = refused.configuration.is_some() && self.is_unsaved;
        if changes.is_empty() || refused.net_conf.is_some() || has_nothing_kept {
            if self.is_asked && refused.net_conf.is_none() && refused.configuration.is_none() {
                info!("reload: nothing has changed that the service goes by");
                self.is_asked = false;
            }
            return Ok(refused);
        }
        let is_file = config.registry.kind == RegistryKind::File;
        let other_list =
            config.node_name != in_force.node_name || config.node_file != in_force.node_file;
        if is_file && other_list {
            let list = registry::read_once(&config, &model.known.net_conf);
            if let Update::Refused { place, reason } = list {
                refused.configuration = Some(self.unfit(&format!(
                    "the list of nodes cannot be used with it: {place}: {reason}"
                )));
                return Ok(refused);
            }
        }
        if config.device_name != in_force.device_name
            && let Some(taken) = host.name_taken(&config.device_name).await
        {
            refused.configuration =
                Some(self.unfit(&format!("device-name is taken: {}", causes(&taken))));
            return Ok(refused);
        }
        for change in &changes {
            info!("reload: {change}");
        }
        if let Some(text) = new_text {
            self.tell_root(&text);
        }
        if changes.iter().any(|change| change.key == "log") {
            info!("reload: the keeper takes another log filter with a restart of the agent alone");
        }
        self.is_taken = true;
        Err(Restart("its files have changed".to_owned()))
    }

    /// Writes the text in force for the next start, if it is not there.
    pub fn save(&mut self, state_dir: PathBuf) -> Option<Problem> {
        if !self.is_unsaved {
            return None;
        }
        match last_good::configuration::write(&state_dir, self.file.path(), &self.text) {
            Ok(()) => {
                self.is_unsaved = false;
                None
            }
            Err(LastGoodError::Write { path, source }) => Some(Problem::StateNotSaved {
                path,
                reason: source.to_string(),
            }),
            Err(error @ LastGoodError::Refused { .. }) => Some(Problem::StateNotSaved {
                path: state_dir,
                reason: causes(&error),
            }),
        }
    }

    fn read(&self) -> Result<(NodeConfig, String), Problem> {
        let text = self.file.text();
        let read = text.and_then(|text| Ok((self.file.interpret(&text)?, text)));
        read.map_err(|error| Problem::ConfigurationRefused {
            path: self.file.path().to_owned(),
            reason: causes(&error),
        })
    }

    /// That the file is sound, and that a service could not start with it.
    fn unfit(&self, why: &str) -> Problem {
        Problem::ConfigurationRefused {
            path: self.file.path().to_owned(),
            reason: format!("it differs from the one in force, and {why}"),
        }
    }

    /// No service takes another `root`.
    fn tell_root(&self, text: &str) {
        if let Some(remark) = self.file.root_remark(&self.text, text) {
            info!("reload: {remark}");
        }
    }

    /// The file gives what is in force.
    fn take(&mut self, text: String) {
        if self.is_cached {
            info!("{} can be used again", self.file.path().display());
        }
        self.is_cached = false;
        if self.text != text {
            self.tell_root(&text);
            self.text = text;
            self.is_unsaved = true;
        }
    }

    /// The keys of the net-conf that differ from those in force.
    fn net_conf(&self, model: &mut Model, config: &NodeConfig) -> Result<Vec<Difference>, Problem> {
        let known = &mut model.known;
        let (net_conf, text) = NetConf::load(&config.net_conf)
            .map_err(|error| net_conf_problem(config, &error, true))?;
        let changes = difference::of_net_conf(&known.net_conf, &net_conf);
        if changes.is_empty() {
            if model.cached.net_conf {
                info!("the net-conf can be read again");
            }
            known.net_conf = net_conf;
            known.net_conf_text = text;
            model.cached.net_conf = false;
            return Ok(changes);
        }
        if config.registry.kind != RegistryKind::File {
            return Ok(changes);
        }
        match registry::read_once(config, &net_conf) {
            Update::Leases(_)
            | Update::Settings(_)
            | Update::RefusedRecords(_)
            | Update::Contact(_) => Ok(changes),
            Update::Refused { place, reason } => Err(Problem::NetConfRefused {
                path: config.net_conf.clone(),
                reason: format!(
                    "it differs from the one in force, and the list of nodes cannot be used with it: {place}: {reason}"
                ),
                cached: true,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RunArgs;

    #[test]
    fn a_text_that_cannot_be_written_is_nothing_to_read() {
        let directory = tempfile::tempdir().unwrap();
        let args = RunArgs {
            root: Some(directory.path().to_owned()),
            node_name: Some("node1".to_owned()),
            ..RunArgs::default()
        };
        let mut reload = Reload::of(&Configuration::load(&args, None).unwrap());
        assert!(!reload.is_saved() && !reload.is_to_read());
        let state_dir = directory.path().join("state");
        std::fs::write(&state_dir, "no directory").unwrap();
        assert!(reload.save(state_dir.clone()).is_some());
        assert!(!reload.is_saved() && !reload.is_to_read());
        std::fs::remove_file(&state_dir).unwrap();
        assert!(reload.save(state_dir).is_none());
        assert!(reload.is_saved() && !reload.is_to_read());
        reload.ask();
        assert!(reload.is_to_read());
    }
}
