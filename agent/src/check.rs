//! Judges net-conf, `tartan.toml` and a list of nodes before they are used, and says what they would change.
//!
//! Each file is read by the code that the service reads it with, so a fault has the service's words. What is not given is
//! taken from where the configuration has it: a list is judged for this node and under its net-conf. What is in force is
//! the last good state on disk, which a service writes with each change that it adopts; no agent needs to run.

mod comparison;

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;

use crate::causes::causes;
use crate::config::node::registry::RegistryKind;
use crate::config::{ConfigFile, Difference, NetConf, NodeConfig, RunArgs, TextFileError};
use crate::config::{difference, document, text_file};
use crate::configuration::Configuration;
use crate::control::held_list::{HeldList, Time};
use crate::last_good::LastGood;
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
    /// What the changes are changes of; `None` where nothing was compared.
    pub compared_with: Option<PathBuf>,
    /// The files that were compared with it.
    pub compared: Vec<Kind>,
    /// Something is remembered, though it may be unusable: a note says why then.
    #[serde(skip)]
    pub is_remembered: bool,
    /// Nodes that the list adds, removes and changes.
    pub nodes: ListDifference,
    /// Number of nodes in force, where it is known.
    pub nodes_in_force: usize,
    /// A service that runs would hold the list back, because it loses most nodes.
    pub shrinks: bool,
    /// In that case the names of the nodes whose name and subnets it lacks.
    pub lost: Vec<String>,
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
#[derive(Default)]
struct Files {
    configuration: Option<PathBuf>,
    net_conf: Option<PathBuf>,
    nodes: Option<PathBuf>,
}

impl Files {
    fn add(&mut self, kind: Kind, path: &Path) -> Result<(), TwoOfAKind> {
        let place = match kind {
            Kind::Configuration => &mut self.configuration,
            Kind::NetConf => &mut self.net_conf,
            Kind::Nodes => &mut self.nodes,
        };
        match place.replace(path.to_owned()) {
            None => Ok(()),
            Some(first) => Err(TwoOfAKind {
                first,
                second: path.to_owned(),
                kind,
            }),
        }
    }
}

/// Two files stand for the same one.
#[derive(Debug, thiserror::Error)]
#[error("{first} and {second} are both taken for {}: check one file of a kind at a time", .kind.name())]
pub struct TwoOfAKind {
    first: PathBuf,
    second: PathBuf,
    kind: Kind,
}

impl Kind {
    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::NetConf => "net-conf",
            Kind::Configuration => "tartan.toml",
            Kind::Nodes => "list of nodes",
        }
    }
}

/// Judges `files`, or those that the configuration names, for the node that `args` describe.
///
/// # Errors
/// [`TwoOfAKind`], where one of them would go unjudged.
pub fn check(args: &RunArgs, files: &[PathBuf]) -> Result<Verdict, TwoOfAKind> {
    let mut verdict = Verdict::default();
    let usual = ConfigFile::of(args);
    let in_force = Configuration::load(args, None).ok();
    let mut given = Files::default();
    for path in files {
        match kind(path, &usual, in_force.as_ref()) {
            Ok(kind) => given.add(kind, path)?,
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
        return Ok(verdict);
    };
    if files.is_empty() {
        // What a registry holds is not judged here: the service says of it what it refuses.
        let kind = config.registry.kind;
        given.net_conf = (kind != RegistryKind::Etcd).then(|| config.net_conf.clone());
        given.nodes = (kind == RegistryKind::File).then(|| config.node_file.clone());
    }
    let state_dir = config.state_dir();
    let kept = LastGood::read(&state_dir, &config.node_name, SystemTime::now());
    let kept = verdict.remembered(&state_dir, kept);
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
    if let (Some(_), Some(net_conf), Some(kept)) = (&given.net_conf, &net_conf, &kept) {
        verdict.compared.push(Kind::NetConf);
        let changes = difference::of_net_conf(&kept.net_conf, net_conf);
        verdict
            .settings
            .extend(changes.into_iter().map(Setting::of));
    }
    if let Some(path) = &given.configuration {
        verdict.compare_configuration(&usual, path, &config);
    }
    verdict.compared_with = (!verdict.compared.is_empty()).then_some(state_dir);
    Ok(verdict)
}

impl Verdict {
    fn fault(&mut self, path: &Path, sentence: String) {
        self.faults.push(Remark {
            path: path.to_owned(),
            sentence,
        });
    }

    fn note(&mut self, path: &Path, sentence: String) {
        self.notes.push(Remark {
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
        if given.nodes.is_none() && config.registry.kind != RegistryKind::File {
            return;
        }
        let mut config = config.clone();
        if let Some(path) = &given.nodes {
            config.node_file.clone_from(path);
        }
        let grace = config.shrink_grace;
        let read = registry::read_once(&config, net_conf);
        let path = config.node_file.clone();
        if given.nodes.is_some() {
            self.judged(&path, Kind::Nodes, matches!(read, Update::Leases(_)));
        }
        match (read, &given.nodes, &given.net_conf) {
            (Update::Leases(leases), Some(_), _) => {
                if let Some(kept) = kept {
                    self.compared.push(Kind::Nodes);
                    self.nodes = ListDifference::between(&kept.leases, &leases);
                    self.nodes_in_force = kept.leases.len();
                    let own = registry::own(&leases, &config.node_name).ok().cloned();
                    if let Err(held) =
                        HeldList::check(leases, &kept.leases, None, grace, Time::read())
                    {
                        self.shrinks = true;
                        self.lost = held.lost().to_vec();
                        if own.is_some_and(|own| own != kept.own) {
                            let file = path.display();
                            self.note(
                                &path,
                                format!("{file}: this node's own entry differs: a service that starts adopts the list at once"),
                            );
                        }
                    }
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
