//! Judges net-conf, `tartan.toml` and a list of nodes before they are used, and says what they would change.
//!
//! Each file is read by the code that the service reads it with, so a fault has the service's words. What is not given is
//! taken from where the configuration has it: a list is judged for this node and under its net-conf. What is in force is
//! the last good state on disk, which a service writes with each change that it adopts; no agent needs to run.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;

use crate::causes::causes;
use crate::config::{ConfigFile, Difference, NetConf, NodeConfig, RunArgs, TextFileError};
use crate::config::{difference, document, text_file};
use crate::configuration::Configuration;
use crate::last_good::{self, LastGood};
use crate::registry::{self, ListDifference, Update};

/// What a check found.
#[derive(Debug, Default, Serialize)]
pub struct Verdict {
    /// The files that were judged, in order.
    pub files: Vec<Judged>,
    /// What keeps them from being used.
    pub faults: Vec<Remark>,
    /// What has no effect, or not the one that may be meant.
    pub notes: Vec<Remark>,
    /// What the changes are changes of; `None` where nothing is remembered.
    pub compared_with: Option<PathBuf>,
    /// Nodes that the list adds, removes and changes.
    pub nodes: ListDifference,
    /// Number of nodes in force, where it is known.
    pub nodes_in_force: usize,
    /// The list loses more than half of the nodes, and more than two.
    pub shrinks: bool,
    /// Keys of the net-conf and of `tartan.toml` that change.
    pub settings: Vec<Setting>,
}

/// A file that was judged.
#[derive(Debug, Serialize)]
pub struct Judged {
    /// Its path.
    pub path: PathBuf,
    /// What it was judged as.
    pub kind: Kind,
    /// Whether it can be used.
    pub usable: bool,
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The cluster's configuration.
    NetConf,
    /// This node's configuration.
    Configuration,
    /// The list of nodes.
    Nodes,
}

/// Something to say of a file, in the words of the service.
#[derive(Debug, Serialize)]
pub struct Remark {
    /// The file.
    pub path: PathBuf,
    /// The remark, which names file and line.
    pub sentence: String,
}

/// A key that changes.
#[derive(Debug, Serialize)]
pub struct Setting {
    /// The key.
    pub key: &'static str,
    /// Its value now.
    pub before: String,
    /// Its value then.
    pub after: String,
    /// Whether only a restart of the agent takes it; otherwise SIGHUP does.
    pub needs_restart: bool,
}

/// The files to judge.
struct Files {
    configuration: Option<PathBuf>,
    net_conf: Option<PathBuf>,
    nodes: Option<PathBuf>,
}

/// Judges `files`, or those that the configuration names, for the node that `args` describe.
pub fn check(args: &RunArgs, files: &[PathBuf]) -> Verdict {
    let mut verdict = Verdict::default();
    let usual = ConfigFile::of(args);
    let in_force = Configuration::load(args, None).ok();
    let mut given = Files {
        configuration: None,
        net_conf: None,
        nodes: None,
    };
    for path in files {
        match kind(path, &usual, in_force.as_ref()) {
            Ok(Kind::Configuration) => given.configuration = Some(path.clone()),
            Ok(Kind::NetConf) => given.net_conf = Some(path.clone()),
            Ok(Kind::Nodes) => given.nodes = Some(path.clone()),
            Err(error) => verdict.fault(path, causes(&error)),
        }
    }
    if files.is_empty() {
        given.configuration = Some(usual.path().to_owned());
    }
    let config = match &given.configuration {
        Some(path) => verdict.configuration(&usual, path),
        None => None,
    };
    // Without any that can be used, the defaults say at least where the other files are.
    let config = config.or_else(|| in_force.map(|in_force| in_force.config));
    let config = config.or_else(|| usual.interpret("").ok());
    let Some(config) = config else {
        return verdict;
    };
    if files.is_empty() {
        given.net_conf = Some(config.net_conf.clone());
        given.nodes = Some(config.node_file.clone());
    }
    let kept = LastGood::read(&config.state_dir(), &config.node_name, SystemTime::now());
    let kept = kept.ok().flatten();
    let net_conf = match &given.net_conf {
        Some(path) => verdict.net_conf(path),
        None => NetConf::load(&config.net_conf).ok().map(|(read, _)| read),
    };
    let in_use = net_conf.clone();
    let in_place = || NetConf::load(&config.net_conf).ok().map(|(read, _)| read);
    let in_use = in_use.or_else(in_place);
    let in_use = in_use.or_else(|| kept.as_ref().map(|kept| kept.net_conf.clone()));
    match (in_use, &given.nodes) {
        (Some(in_use), _) => verdict.nodes(&given, &config, &in_use, kept.as_ref()),
        (None, Some(path)) => verdict.notes.push(Remark {
            path: path.clone(),
            sentence: format!(
                "{}: not judged: that needs a net-conf without faults",
                path.display()
            ),
        }),
        (None, None) => {}
    }
    verdict.compare(&usual, &given, &config, net_conf.as_ref(), kept.as_ref());
    verdict
}

impl Verdict {
    fn fault(&mut self, path: &Path, sentence: String) {
        self.faults.push(Remark {
            path: path.to_owned(),
            sentence,
        });
    }

    fn judged(&mut self, path: &Path, kind: Kind, usable: bool) {
        self.files.push(Judged {
            path: path.to_owned(),
            kind,
            usable,
        });
    }

    fn configuration(&mut self, usual: &ConfigFile, path: &Path) -> Option<NodeConfig> {
        let file = usual.clone().written_to(path);
        let read = file.text().and_then(|text| file.interpret(&text));
        self.judged(path, Kind::Configuration, read.is_ok());
        read.map_err(|error| self.fault(path, causes(&error))).ok()
    }

    fn net_conf(&mut self, path: &Path) -> Option<NetConf> {
        let read = NetConf::load(path);
        self.judged(path, Kind::NetConf, read.is_ok());
        match read {
            Ok((net_conf, _)) => {
                for key in net_conf.unknown_keys() {
                    let file = path.display();
                    self.notes.push(Remark {
                        path: path.to_owned(),
                        sentence: format!("{file}: unknown key, ignored as flannel does: {key}"),
                    });
                }
                Some(net_conf)
            }
            Err(error) => {
                let reason = causes(&error);
                let shown = path.display().to_string();
                let sentence = match reason.contains(&shown) {
                    true => reason,
                    false => format!("{shown}: {reason}"),
                };
                self.fault(path, sentence);
                None
            }
        }
    }

    /// The list of nodes that is given, or the one in use under a net-conf that is given.
    fn nodes(
        &mut self,
        given: &Files,
        config: &NodeConfig,
        net_conf: &NetConf,
        kept: Option<&LastGood>,
    ) {
        let mut config = config.clone();
        if let Some(path) = &given.nodes {
            config.node_file.clone_from(path);
        }
        let read = registry::read_once(&config, net_conf);
        let path = config.node_file.clone();
        if given.nodes.is_some() {
            self.judged(&path, Kind::Nodes, matches!(read, Update::Leases(_)));
        }
        match (read, &given.nodes, &given.net_conf) {
            (Update::Leases(leases), Some(_), _) => {
                if let Some(kept) = kept {
                    self.nodes = ListDifference::between(&kept.leases, &leases);
                    let (lost, of) = (self.nodes.removed.len(), kept.leases.len());
                    self.nodes_in_force = of;
                    self.shrinks = lost > 2 && lost > of / 2;
                }
            }
            (Update::Refused { place, reason }, Some(_), _) => {
                self.fault(&path, format!("{place}: {reason}"));
            }
            (Update::Refused { place, reason }, None, Some(net_conf)) => {
                let net_conf = net_conf.clone();
                let shown = net_conf.display();
                let sentence =
                    format!("{shown}: the list of nodes cannot be used with it: {place}: {reason}");
                self.fault(&net_conf, sentence);
            }
            _ => {}
        }
    }

    fn compare(
        &mut self,
        usual: &ConfigFile,
        given: &Files,
        config: &NodeConfig,
        net_conf: Option<&NetConf>,
        kept: Option<&LastGood>,
    ) {
        let Some(kept) = kept else {
            return;
        };
        self.compared_with = Some(config.state_dir());
        if let (Some(_), Some(net_conf)) = (&given.net_conf, net_conf) {
            let changes = difference::of_net_conf(&kept.net_conf, net_conf);
            self.settings.extend(changes.into_iter().map(Setting::of));
        }
        let text = last_good::configuration::read(&config.state_dir(), usual.path());
        let before = text.ok().flatten();
        let before = before.and_then(|text| usual.interpret(&text).ok());
        if let (Some(_), Some(before)) = (&given.configuration, before) {
            let changes = difference::of_node(&before, config);
            self.settings.extend(changes.into_iter().map(Setting::of));
        }
    }
}

impl Setting {
    fn of(change: Difference) -> Setting {
        Setting {
            needs_restart: change.key == "root",
            key: change.key,
            before: change.before,
            after: change.after,
        }
    }
}

/// What a file is: by its place, else by its content, else by its name.
fn kind(
    path: &Path,
    usual: &ConfigFile,
    in_force: Option<&Configuration>,
) -> Result<Kind, TextFileError> {
    let text = text_file::read(path, MOST_BYTES)?;
    let is_at = |place: &Path| std::path::absolute(path).ok() == std::path::absolute(place).ok();
    if is_at(usual.path()) {
        return Ok(Kind::Configuration);
    }
    if let Some(Configuration { config, .. }) = in_force {
        if is_at(&config.net_conf) {
            return Ok(Kind::NetConf);
        }
        if is_at(&config.node_file) {
            return Ok(Kind::Nodes);
        }
    }
    let named = |part: &str| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(part)
    };
    Ok(if named(".json") || text.trim_start().starts_with('{') {
        Kind::NetConf
    } else if document::has_key_despite_faults(&text, "node") || named("nodes.toml") {
        Kind::Nodes
    } else {
        Kind::Configuration
    })
}

/// The longest of the three: a list of nodes.
const MOST_BYTES: u64 = 16 << 20;
