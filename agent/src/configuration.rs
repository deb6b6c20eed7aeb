//! This node's configuration with its file, or with what stands in for the file while it is broken.

use std::path::Path;

use tracing::warn;

use crate::causes::causes;
use crate::config::{ConfigError, ConfigFile, NodeConfig, RunArgs};
use crate::last_good;

/// A configuration that can be used.
#[derive(Debug)]
pub struct Configuration {
    /// The keys.
    pub config: NodeConfig,
    /// The text of the file that gave them, empty where there is no file.
    pub text: String,
    /// The file.
    pub file: ConfigFile,
    /// Why the file cannot be used, in which case the text is the one that a service forwarded by last.
    pub refused: Option<ConfigError>,
}

impl Configuration {
    /// Reads it. `root` is the directory above all files of an agent that runs already: the file cannot move it.
    ///
    /// # Errors
    /// [`ConfigError`] with the first fault, where nothing stands in for the file.
    pub fn load(args: &RunArgs, root: Option<&Path>) -> Result<Configuration, ConfigError> {
        let mut file = ConfigFile::of(args);
        if let Some(root) = root {
            file = file.below(root);
        }
        let text = file.text();
        let error = match text.and_then(|text| Ok((file.interpret(&text)?, text))) {
            Ok((config, text)) => {
                return Ok(Configuration {
                    config,
                    text,
                    file,
                    refused: None,
                });
            }
            Err(error) => error,
        };
        let state_dir = file.root_despite_faults().join("var/lib/tartan");
        let kept = last_good::configuration::read(&state_dir, file.path());
        let kept = kept.map_err(|error| warn!("{}", causes(&error))).ok();
        let kept = kept.flatten().and_then(|text| {
            // Flags and variables may have a fault of their own.
            Some((file.interpret(&text).ok()?, text))
        });
        match kept {
            Some((config, text)) => Ok(Configuration {
                config,
                text,
                file,
                refused: Some(error),
            }),
            None => Err(error),
        }
    }
}
