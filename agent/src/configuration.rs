//! This node's configuration with its file, or with what stands in for the file while it is broken.

use std::fmt;
use std::path::Path;

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

/// Why there is none: neither the file can be used, nor what is kept of it.
#[derive(Debug)]
pub struct Unusable {
    error: ConfigError,
    /// Why the kept text cannot be used, where there is one and the file's fault is not its fault, too.
    kept: Option<String>,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&causes(&self.error))?;
        match &self.kept {
            Some(kept) => write!(
                f,
                "; and the text by which a service forwarded last does not stand in for it: {kept}"
            ),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Unusable {}

impl Configuration {
    /// Reads it. `root` is the directory above all files of an agent that runs already: the file cannot move it.
    ///
    /// # Errors
    /// [`Unusable`] with the first fault, where nothing stands in for the file.
    pub fn load(args: &RunArgs, root: Option<&Path>) -> Result<Configuration, Unusable> {
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
        let kept = match last_good::configuration::read(&state_dir, file.path()) {
            // Flags and variables may have a fault of their own.
            Ok(Some(text)) => match file.interpret(&text) {
                Ok(config) => {
                    return Ok(Configuration {
                        config,
                        text,
                        file,
                        refused: Some(error),
                    });
                }
                Err(fault) => Some(causes(&fault)),
            },
            Ok(None) => None,
            Err(refusal) => Some(causes(&refusal)),
        };
        let kept = kept.filter(|kept| *kept != causes(&error));
        Err(Unusable { error, kept })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_neither_text_can_be_used_is_told() {
        let root = tempfile::tempdir().unwrap();
        let state_dir = root.path().join("var/lib/tartan");
        let file = root.path().join("etc/tartan/tartan.toml");
        std::fs::create_dir_all(&state_dir).unwrap();
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "= 1\n").unwrap();
        let args = RunArgs {
            root: Some(root.path().to_owned()),
            node_name: Some("node1".to_owned()),
            ..RunArgs::default()
        };
        let fault = || Configuration::load(&args, None).unwrap_err().to_string();
        let alone = fault();
        assert!(
            alone.contains("line 1: not TOML") && !alone.contains("stand in"),
            "{alone}"
        );
        last_good::configuration::write(&state_dir, &file, "workers = 0\n").unwrap();
        assert!(fault().contains("stand in for it: "), "{}", fault());
        assert!(fault().contains("workers must be 1 to 32"), "{}", fault());
        std::fs::write(state_dir.join("last-good-configuration.json"), "{").unwrap();
        assert!(fault().contains("it is damaged"), "{}", fault());
        last_good::configuration::write(&state_dir, &file, "workers = 2\n").unwrap();
        let loaded = Configuration::load(&args, None).unwrap();
        assert_eq!(loaded.config.workers, Some(2));
        assert!(loaded.refused.is_some());
    }
}
