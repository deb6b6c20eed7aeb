//! `tartan.toml`: where it is, what is in it, and the configuration that it gives with flags and variables.

use std::path::{Path, PathBuf};

use super::resolve::resolve;
use super::{ConfigError, NodeConfig, RunArgs, from_file, is_flag, variable};
use crate::config::{document, text_file};

/// The file that flags and variables are completed by.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    args: RunArgs,
    path: PathBuf,
    /// Relative paths in it are relative to this.
    directory: PathBuf,
    may_be_missing: bool,
    /// A flag or a variable says where the files are.
    root_is_given: bool,
}

impl ConfigFile {
    /// The file that `args` name, or the usual one, which may be missing.
    pub fn of(args: &RunArgs) -> ConfigFile {
        let usual = || {
            let root = args.root.as_deref().unwrap_or(Path::new("/"));
            root.join("etc/tartan/tartan.toml")
        };
        let path = args.config.clone().unwrap_or_else(usual);
        ConfigFile {
            directory: path.parent().unwrap_or(Path::new("")).to_owned(),
            path,
            may_be_missing: args.config.is_none(),
            root_is_given: args.root.is_some(),
            args: args.clone(),
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The same file, in an agent whose files are below `root` whatever the file says.
    pub fn below(mut self, root: &Path) -> ConfigFile {
        self.args.root = Some(root.to_owned());
        self
    }

    /// A file at another path that is to be put in the place of this one.
    pub fn written_to(mut self, path: &Path) -> ConfigFile {
        self.may_be_missing &= path == self.path;
        self.path = path.to_owned();
        self
    }

    /// Its text; empty where it is missing and may be.
    ///
    /// # Errors
    /// [`ConfigError::File`].
    pub fn text(&self) -> Result<String, ConfigError> {
        match text_file::read(&self.path, MOST_BYTES) {
            Err(error) if error.is_missing() && self.may_be_missing => Ok(String::new()),
            text => Ok(text?),
        }
    }

    /// The configuration that a file of this text gives. Flags and variables override the text, and the text overrides
    /// the defaults.
    ///
    /// # Errors
    /// [`ConfigError`] with the first fault.
    pub fn interpret(&self, text: &str) -> Result<NodeConfig, ConfigError> {
        let file = from_file(text, &self.directory).map_err(|error| ConfigError::Toml {
            path: self.path.clone(),
            error,
        })?;
        resolve(&self.args, file).map_err(|error| self.placed(error, text))
    }

    /// What becomes of another `root` in the text `after` than in the one `before`, where that differs: an agent that runs
    /// stays where its files are.
    pub fn root_remark(&self, before: &str, after: &str) -> Option<String> {
        let root = |text| document::text_despite_faults(text, "root");
        let (before, after) = (root(before), root(after));
        if before == after {
            return None;
        }
        let shown = |root: Option<String>| root.unwrap_or_else(|| "-".to_owned());
        let effect = match self.root_is_given {
            true => "without effect, --root or TARTAN_ROOT overrides it",
            false => "needs a restart of the agent",
        };
        Some(format!(
            "root: {} -> {}: {effect}",
            shown(before),
            shown(after)
        ))
    }

    /// The fault, with where its value stands.
    fn placed(&self, error: ConfigError, text: &str) -> ConfigError {
        let Some(key) = error.key() else {
            return error;
        };
        let place = if self.args.sets(key) {
            let variable = variable(key);
            match std::env::var_os(&variable).is_some() && !is_flag(key) {
                true => variable,
                false => format!("--{key}"),
            }
        } else if let Some(line) = document::line_of(text, key) {
            format!("{}: line {line}", self.path.display())
        } else {
            return error;
        };
        ConfigError::Placed {
            place,
            error: Box::new(error),
        }
    }

    /// The directory above all files of the agent, as far as it can be told from a file with faults.
    pub fn root_despite_faults(&self) -> PathBuf {
        let in_file = || {
            let text = self.text().ok()?;
            let written = document::text_despite_faults(&text, "root")?;
            Some(self.directory.join(written))
        };
        let flag = self.args.root.clone();
        flag.or_else(in_file).unwrap_or_else(|| PathBuf::from("/"))
    }
}

/// About a thousand times the size of such a file.
const MOST_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_root_is_told_with_its_effect() {
        let mut args = RunArgs::default();
        let file = ConfigFile::of(&args).below(Path::new("/"));
        assert_eq!(file.root_remark("", "workers = 2\n"), None);
        let remark = file.root_remark("", "root = \"/b\"\n").unwrap();
        assert_eq!(remark, "root: - -> /b: needs a restart of the agent");
        args.root = Some(PathBuf::from("/a"));
        let remark = ConfigFile::of(&args)
            .root_remark("root = \"/b\"\n", "")
            .unwrap();
        assert!(
            remark.starts_with("root: /b -> -: without effect"),
            "{remark}"
        );
    }
}
