//! Installation: the program first, the configuration last. A runtime that finds a configuration whose program is not
//! there yet fails pods, or says that the node is not ready until something else wakes it (CRI-O).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cni_shim::atomic_file::Replacement;
use cni_shim::{FileAction, FileError};
use serde::Serialize;

use super::chain;
use super::conf_dir::{self, Conf, ConfFile, OUR_PLUGIN};
use super::conf_list::{self, ConfList, PORTMAP, VERSIONS};
use super::installed::Installed;
use super::lost;
use super::version;
use crate::causes::causes;

/// What is to be installed, and where.
#[derive(Clone, Debug)]
pub struct InstallOptions {
    /// What the agent's paths hang off.
    pub root: PathBuf,
    /// The program to install.
    pub program: PathBuf,
    /// Where runtimes look for programs.
    pub bin_dir: PathBuf,
    /// Where they look for configurations.
    pub conf_dir: PathBuf,
    /// The name of our configuration.
    pub conf_name: String,
    /// The name of the network.
    pub network: String,
    /// Overwrite a configuration that was changed since.
    pub replace_conf: bool,
    /// Do nothing, only report.
    pub dry_run: bool,
}

/// What was done, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Nothing was done: the steps are those that would be.
    pub dry_run: bool,
    /// In order.
    pub steps: Vec<FileStep>,
    /// What will not work as it is, each with its remedy.
    pub warnings: Vec<String>,
}

/// One thing that was done with one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileStep {
    /// What was done.
    pub action: Action,
    /// To which.
    pub file: PathBuf,
}

/// What is done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Written where there was none.
    Installed,
    /// Written in the place of an older one.
    Replaced,
    /// It says already what it should.
    Unchanged,
    /// It was edited, and stays as it is.
    Kept,
    /// Deleted.
    Removed,
    /// It was edited: it has another name now, which no runtime reads.
    SetAside,
    /// There was none.
    Absent,
}

/// Why nothing more was done.
#[derive(Debug, thiserror::Error)]
pub enum CniError {
    /// The program to install cannot be read.
    #[error("cannot read {path}: name the plugin's program with --from")]
    NoProgram {
        /// The program looked for.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// What is to be installed is no CNI plugin.
    #[error("{path} is not Tartan's plugin, or cannot run on this host: name another with --from")]
    NotOurs {
        /// The program.
        path: PathBuf,
        /// What it did.
        source: io::Error,
    },
    /// A name that no runtime would read.
    #[error(
        "{0:?} is no name for a configuration: use one without '/' that ends in .conflist, as 10-tartan.conflist"
    )]
    ConfName(String),
    /// A name that no network can have.
    #[error(
        "{0:?} is no name for a network: use letters, digits, '_', '.' and '-', the first a letter or digit"
    )]
    Network(String),
    /// The configuration's file is not ours.
    #[error(
        "{path} is not Tartan's: move it away, choose another name with --conf-name, or overwrite it with --replace-conf"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A file could not be written or removed, or a directory not be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The records of attached pods cannot be read.
    #[error(
        "cannot find out whether pods are attached, which no runtime could delete without the plugin: correct what is named below, or use --force"
    )]
    Records {
        /// Why not.
        source: cni_shim::attachment::Error,
    },
    /// A runtime runs the plugin.
    #[error("a runtime runs {path}, which does not end: try again, or use --force")]
    AtWork {
        /// The program.
        path: PathBuf,
    },
    /// Pods are attached.
    #[error(
        "pods are attached ({count}), and without the plugin no runtime can delete them: drain the node first (`tartan pods` lists them), or use --force"
    )]
    Attached {
        /// How many.
        count: usize,
    },
}

/// Installs program and configuration.
///
/// # Errors
/// [`CniError`]; what was done before stays, and a second call goes on from there.
pub fn install(options: &InstallOptions) -> Result<Report, CniError> {
    check_names(options)?;
    let mut done = Report {
        dry_run: options.dry_run,
        ..Report::default()
    };
    let mut installed = Installed::read(&options.root).unwrap_or_else(|error| {
        done.warnings.push(format!(
            "{}, so it begins anew: name the directories with --bin-dir and --conf-dir if an earlier installation did",
            causes(&error)
        ));
        Installed::default()
    });
    let bytes = fs::read(&options.program).map_err(|source| CniError::NoProgram {
        path: options.program.clone(),
        source,
    })?;
    let target = options.bin_dir.join(OUR_PLUGIN);
    let conf = options.conf_dir.join(&options.conf_name);
    let portmap = portmap(options, &mut done.warnings);
    let text = text(options, portmap.as_deref());
    let conf_step = conf_step(options, &installed, &conf, &text)?;
    if conf_step != Action::Kept {
        done.warnings.extend(lost_by(options, &text)?);
    }
    if !options.dry_run {
        installed.note(&options.bin_dir, &conf, &options.network, &text);
        installed.write(&options.root)?;
        for directory in [&options.bin_dir, &options.conf_dir] {
            fs::create_dir_all(directory).map_err(FileAction::UseDirectory.failed(directory))?;
        }
    }
    done.steps.push(program(options, &target, &bytes)?);
    configuration(options, &conf, &text, conf_step)?;
    done.steps.push(FileStep {
        action: conf_step,
        file: conf,
    });
    done.warnings.extend(warnings(options)?);
    Ok(done)
}

fn check_names(options: &InstallOptions) -> Result<(), CniError> {
    let name = &options.conf_name;
    if name.contains('/') || !name.ends_with(".conflist") || name.starts_with('.') {
        return Err(CniError::ConfName(name.clone()));
    }
    if !cni_shim::attachment::is_identifier(&options.network) {
        return Err(CniError::Network(options.network.clone()));
    }
    Ok(())
}

/// By rename, even over a program that runs this moment.
fn program(options: &InstallOptions, target: &Path, bytes: &[u8]) -> Result<FileStep, CniError> {
    let action = match fs::read(target) {
        Ok(old) if old == bytes && is_executable(target) => Action::Unchanged,
        Ok(_) => Action::Replaced,
        Err(_) => Action::Installed,
    };
    if !options.dry_run && action != Action::Unchanged {
        let replacement = Replacement::of(target).mode(0o755).synced();
        let placed = replacement.write_checked(bytes, answers_version);
        placed.map_err(|source| match source.kind() {
            io::ErrorKind::InvalidData => CniError::NotOurs {
                path: options.program.clone(),
                source,
            },
            _ => FileAction::Write.failed(target)(source).into(),
        })?;
    }
    Ok(FileStep {
        action,
        file: target.to_owned(),
    })
}

/// A program that does not run here would fail every pod.
fn answers_version(file: &Path) -> io::Result<()> {
    let invalid = |error: io::Error| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
    version::supported(file).map(|_| ()).map_err(invalid)
}

/// What becomes of the file at `conf`. An unchanged list is renewed, whichever options or release it was written
/// with.
fn conf_step(
    options: &InstallOptions,
    installed: &Installed,
    conf: &Path,
    text: &str,
) -> Result<Action, CniError> {
    let Ok(old) = fs::read(conf) else {
        return Ok(Action::Installed);
    };
    if old == text.as_bytes() {
        return Ok(Action::Unchanged);
    }
    if installed.wrote(conf, &old) || conf_list::is_as_installed(&old) {
        return Ok(Action::Replaced);
    }
    let is_ours = Conf::parse(&old).is_some_and(|conf| conf.is_ours());
    match (is_ours, options.replace_conf) {
        (_, true) => Ok(Action::Replaced),
        (true, false) => Ok(Action::Kept),
        (false, false) => Err(CniError::Foreign {
            path: conf.to_owned(),
        }),
    }
}

fn configuration(
    options: &InstallOptions,
    conf: &Path,
    text: &str,
    action: Action,
) -> Result<(), CniError> {
    if options.dry_run || matches!(action, Action::Unchanged | Action::Kept) {
        return Ok(());
    }
    Ok(conf_dir::write(conf, text).map_err(FileAction::Write.failed(conf))?)
}

/// The versions that `portmap` speaks of those that we do, where it is there and speaks any.
fn portmap(options: &InstallOptions, warnings: &mut Vec<String>) -> Option<Vec<&'static str>> {
    let program = options.bin_dir.join(PORTMAP);
    if !is_executable(&program) {
        return None;
    }
    let why_not = match version::supported(&program).map(|theirs| conf_list::common(&theirs)) {
        Ok(versions) if !versions.is_empty() => return Some(versions),
        Ok(_) => format!("it speaks none of the versions {}", VERSIONS.join(", ")),
        Err(error) => error.to_string(),
    };
    warnings.push(format!(
        "{} is left out, and no host port is served: {why_not}; install another portmap, then install again",
        program.display()
    ));
    None
}

/// What pods lose by the new list against the one that runtimes took so far: the first of the directory, where the new one
/// takes its place.
fn lost_by(options: &InstallOptions, text: &str) -> Result<Vec<String>, CniError> {
    let files = conf_dir::read(&options.conf_dir)
        .map_err(FileAction::UseDirectory.failed(&options.conf_dir))?;
    let before = files.first().filter(|file| file.name >= options.conf_name);
    let before = before.and_then(|file| Some((&file.path, file.content.as_ref()?)));
    let (Some((path, old)), Some(new)) = (before, Conf::parse(text.as_bytes())) else {
        return Ok(Vec::new());
    };
    Ok(lost::lost(path, old, &new, options.dry_run))
}

/// The configuration, with `portmap` where its versions are given.
fn text(options: &InstallOptions, portmap: Option<&[&'static str]>) -> String {
    let list = ConfList {
        network: &options.network,
        root: &options.root,
        versions: portmap.unwrap_or(&VERSIONS),
        portmap: portmap.is_some(),
    };
    list.text()
}

/// Which networks come before ours, and what will not work.
fn warnings(options: &InstallOptions) -> Result<Vec<String>, CniError> {
    let files = conf_dir::read(&options.conf_dir)
        .map_err(FileAction::UseDirectory.failed(&options.conf_dir))?;
    let before = files
        .iter()
        .take_while(|file| file.name < options.conf_name);
    let mut warnings: Vec<String> = before.map(comes_before).collect();
    let ours = files.iter().filter_map(|file| {
        let conf = file.content.as_ref().filter(|conf| conf.is_ours())?;
        Some((file, conf))
    });
    for (file, conf) in ours {
        if chain::is_limited_twice(conf) {
            let twice = chain::LimitedTwice {
                file: file.path.clone(),
                network: conf.network.clone(),
            };
            warnings.push(twice.to_string());
        }
        let chained = conf.plugins.iter().filter(|p| p.kind != OUR_PLUGIN);
        warnings.extend(
            chained.filter_map(|plugin| cannot_be_chained(options, file, conf, &plugin.kind)),
        );
    }
    if Path::new(BRIDGES).join("cni0").exists() {
        warnings.push(
            "the bridge cni0 of another plugin is here: its pods and new ones reach each other by proxy ARP, IPv4 alone; drain the node to have all of them on one plugin"
                .to_owned(),
        );
    }
    Ok(warnings)
}

/// Why a plugin of a list with ours would fail its pods, if it would.
fn cannot_be_chained(
    options: &InstallOptions,
    file: &ConfFile,
    conf: &Conf,
    kind: &str,
) -> Option<String> {
    let program = options.bin_dir.join(kind);
    let (list, directory) = (file.path.display(), options.bin_dir.display());
    if !is_executable(&program) {
        return Some(format!(
            "{list} chains the plugin {kind}, which is not in {directory}: install it there, or take it out of the list"
        ));
    }
    match version::supported(&program) {
        Err(error) => Some(format!(
            "{list} chains the plugin {kind}, which does not work: {error}; install another in {directory}, or take it out of the list"
        )),
        Ok(theirs) => {
            let unknown = conf
                .versions
                .iter()
                .find(|version| !theirs.contains(version))?;
            Some(format!(
                "{list} offers runtimes version {unknown}, which the plugin {kind} does not speak ({}): take it out of \"cniVersion\" and \"cniVersions\"",
                theirs.join(", ")
            ))
        }
    }
}

fn comes_before(file: &ConfFile) -> String {
    let path = file.path.display();
    match &file.content {
        Some(conf) => format!(
            "{path} sorts before ours, so runtimes take its network {:?}: move it away, or choose an earlier name with --conf-name",
            conf.network
        ),
        None => format!(
            "{path} sorts before ours and cannot be read as JSON, which stops containerd's pods: correct it or move it away"
        ),
    }
}

pub(super) fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Where the kernel lists interfaces by name.
const BRIDGES: &str = "/sys/class/net";

#[cfg(test)]
mod tests;
