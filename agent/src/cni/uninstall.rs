//! Removal: the configuration first, so that no runtime starts a pod whose program is about to go; then the program.
//! Only what is ours.
//!
//! Pods are counted twice: before anything is done, and when no runtime sees the configuration and none runs the plugin any more,
//! because a pod may have come in between. If one has, the configuration is put back: without it the runtime could not
//! delete that pod. A list that was edited is set aside under a name that no runtime reads.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use cni_shim::{FileAction, RunDir, atomic_file};

use super::chain::{BIN_DIR, CONF_DIR};
use super::conf_dir::{self, OUR_PLUGIN};
use super::conf_list;
use super::install::{Action, CniError, FileStep, Report};
use super::installed::{Installed, InstalledList};
use crate::causes::causes;

/// What is to be removed, and from where.
#[derive(Clone, Debug)]
pub struct UninstallOptions {
    /// What the agent's paths hang off.
    pub root: PathBuf,
    /// Where runtimes look for programs; none: where installations put it, and in the default directory.
    pub bin_dir: Option<PathBuf>,
    /// Where they look for configurations; none: where installations put ours, and in the default directory.
    pub conf_dir: Option<PathBuf>,
    /// Although pods are attached.
    pub force: bool,
    /// Do nothing, only report.
    pub dry_run: bool,
}

/// A configuration that runtimes no longer see.
struct SetAside {
    from: PathBuf,
    to: PathBuf,
}

/// Where to look.
struct Places {
    bin_dirs: Vec<PathBuf>,
    conf_dirs: Vec<PathBuf>,
}

impl Places {
    fn of(options: &UninstallOptions, installed: &Installed) -> Places {
        let lists = installed.lists.iter().filter_map(InstalledList::directory);
        let known = |named: &Option<PathBuf>, mut known: Vec<PathBuf>, default: &str| {
            if let Some(named) = named {
                return vec![named.clone()];
            }
            let default = options.root.join(default);
            if !known.contains(&default) {
                known.push(default);
            }
            known
        };
        let mut conf_dirs: Vec<PathBuf> = lists.collect();
        conf_dirs.sort();
        conf_dirs.dedup();
        Places {
            bin_dirs: known(&options.bin_dir, installed.bin_dirs.clone(), BIN_DIR),
            conf_dirs: known(&options.conf_dir, conf_dirs, CONF_DIR),
        }
    }

    fn programs(&self) -> impl Iterator<Item = PathBuf> {
        self.bin_dirs
            .iter()
            .map(|directory| directory.join(OUR_PLUGIN))
    }
}

/// Removes every configuration of ours that the directories hold, and the programs.
///
/// # Errors
/// [`CniError`]; with pods attached, or where their records cannot be read, everything is as it was, unless forced.
pub fn uninstall(options: &UninstallOptions) -> Result<Report, CniError> {
    let mut done = Report {
        dry_run: options.dry_run,
        ..Report::default()
    };
    let mut installed = Installed::read(&options.root).unwrap_or_else(|error| {
        done.warnings.push(format!(
            "{}, so only the default directories, or those named, are looked through",
            causes(&error)
        ));
        Installed::default()
    });
    let places = Places::of(options, &installed);
    let mut away = Vec::new();
    for directory in &places.conf_dirs {
        away.extend(interrupted(directory)?);
    }
    if !options.force
        && let Err(error) = expect_no_pods(options)
    {
        if !options.dry_run {
            put_back(&away)?;
        }
        return Err(error);
    }
    let mut ours = Vec::new();
    for directory in &places.conf_dirs {
        ours.extend(configurations(directory, &mut done)?);
    }
    for path in ours {
        let to = set_aside_name(&path);
        if !options.dry_run
            && let Err(source) = fs::rename(&path, &to)
        {
            put_back(&away)?;
            return Err(FileAction::Remove.failed(&path)(source).into());
        }
        away.push(SetAside { from: path, to });
    }
    if !options.force && !options.dry_run {
        let mut programs = places.programs();
        let idle = programs
            .try_for_each(|program| wait_until_idle(&program))
            .and_then(|()| expect_no_pods(options));
        if let Err(error) = idle {
            put_back(&away)?;
            return Err(error);
        }
    }
    for conf in written(&away, &installed, &places) {
        // conf_dir::write makes it above the directory that runtimes watch.
        for directory in conf.ancestors().skip(1).take(2) {
            remove_leftovers(options, &conf, directory, &mut done)?;
        }
    }
    for SetAside { from, to } in away {
        let now = if to.exists() { &to } else { &from };
        let as_installed = fs::read(now).is_ok_and(|bytes| {
            conf_list::is_as_installed(&bytes) || installed.wrote(&from, &bytes)
        });
        let (action, file) = match as_installed {
            true => (remove(options, now)?.action, from),
            false => (Action::SetAside, to),
        };
        done.steps.push(FileStep { action, file });
    }
    for (program, directory) in places.programs().zip(&places.bin_dirs) {
        remove_leftovers(options, &program, directory, &mut done)?;
        done.steps.push(remove(options, &program)?);
    }
    for leftover in Installed::temporaries(&options.root) {
        done.steps.push(remove(options, &leftover)?);
    }
    if !options.dry_run && installed != Installed::default() {
        installed.forget(&places.bin_dirs, &places.conf_dirs);
        installed.write(&options.root)?;
    }
    Ok(done)
}

/// What a removal that was killed renamed, and neither removed nor put back. Lists that people edited stay
/// set aside for good.
fn interrupted(conf_dir: &Path) -> Result<Vec<SetAside>, CniError> {
    let unusable = || FileAction::UseDirectory.failed(conf_dir);
    let entries = match fs::read_dir(conf_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(unusable())?,
    };
    let mut away = Vec::new();
    for entry in entries {
        let to = entry.map_err(unusable())?.path();
        let ours = fs::read(&to).is_ok_and(|bytes| conf_list::is_as_installed(&bytes));
        let from = to.with_extension("");
        if to.extension() == Some(SET_ASIDE.as_ref()) && ours && !from.exists() {
            away.push(SetAside { from, to });
        }
    }
    Ok(away)
}

/// The configurations whose temporary files may lie about: also one whose first installation was killed before the file
/// had its name, which the record alone knows.
fn written(away: &[SetAside], installed: &Installed, places: &Places) -> BTreeSet<PathBuf> {
    let lists = installed.lists.iter();
    let recorded = lists.filter(|list| {
        let directory = list.directory();
        directory.is_some_and(|directory| places.conf_dirs.contains(&directory))
    });
    let recorded = recorded.map(|list| list.path.clone());
    recorded
        .chain(away.iter().map(|list| list.from.clone()))
        .collect()
}

/// Those with our plugin in them. Warns of what cannot be read.
fn configurations(directory: &Path, done: &mut Report) -> Result<Vec<PathBuf>, CniError> {
    let files = conf_dir::read(directory).map_err(FileAction::UseDirectory.failed(directory))?;
    let mut ours = Vec::new();
    for file in files {
        match file.content {
            Some(conf) if conf.is_ours() => ours.push(file.path),
            Some(_) => {}
            None => done.warnings.push(format!(
                "{} cannot be read as JSON and is left: see whether it was Tartan's",
                file.path.display()
            )),
        }
    }
    Ok(ours)
}

fn expect_no_pods(options: &UninstallOptions) -> Result<(), CniError> {
    let records = cni_shim::list(&RunDir::under(&options.root));
    let count = records
        .map_err(|source| CniError::Records { source })?
        .len();
    match count {
        0 => Ok(()),
        count => Err(CniError::Attached { count }),
    }
}

/// Waits until no process runs the program: one that was started by the configuration before may be attaching a pod. A
/// runtime that had read it may start the program a moment after a check that found none, so there are several checks.
fn wait_until_idle(program: &Path) -> Result<(), CniError> {
    let Ok(program) = program.canonicalize() else {
        return Ok(());
    };
    let deadline = Instant::now() + LONGEST_ADD;
    let mut idle_checks = 0;
    while idle_checks < IDLE_CHECKS {
        if is_running(&program) {
            idle_checks = 0;
            if Instant::now() > deadline {
                return Err(CniError::AtWork { path: program });
            }
        } else {
            idle_checks += 1;
        }
        thread::sleep(CHECK_EVERY);
    }
    Ok(())
}

fn is_running(program: &Path) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    // Other files there have no `exe`, nor have processes that have ended.
    let mut programs =
        processes.filter_map(|process| fs::read_link(process.path().join("exe")).ok());
    programs.any(|runs| {
        // The kernel names a program so that was replaced or removed since it started (proc_pid_exe(5)).
        let runs = runs.as_os_str().as_bytes();
        runs.strip_suffix(b" (deleted)").unwrap_or(runs) == program.as_os_str().as_bytes()
    })
}

/// By a rename inside the directory, which containerd notices. Where one fails the others are put back all the same.
fn put_back(away: &[SetAside]) -> Result<(), CniError> {
    let mut all = Ok(());
    for SetAside { from, to } in away {
        let back = fs::rename(to, from).map_err(FileAction::Write.failed(from));
        all = all.and(back);
    }
    Ok(all?)
}

/// Beside it, free, and with an extension that no runtime reads.
fn set_aside_name(path: &Path) -> PathBuf {
    let numbered = |number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(".");
        name.push(SET_ASIDE);
        if number > 1 {
            name.push(format!(".{number}"));
        }
        PathBuf::from(name)
    };
    let mut names = (1..MOST_SET_ASIDE).map(numbered);
    let free = names.find(|name| name.symlink_metadata().is_err());
    free.unwrap_or_else(|| numbered(MOST_SET_ASIDE))
}

fn remove_leftovers(
    options: &UninstallOptions,
    path: &Path,
    directory: &Path,
    done: &mut Report,
) -> Result<(), CniError> {
    for leftover in atomic_file::temporaries(path, directory) {
        done.steps.push(remove(options, &leftover)?);
    }
    Ok(())
}

fn remove(options: &UninstallOptions, path: &Path) -> Result<FileStep, CniError> {
    let removed = match options.dry_run {
        true => path.symlink_metadata().map(|_| ()),
        false => fs::remove_file(path),
    };
    let action = match removed {
        Ok(()) => Action::Removed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Action::Absent,
        Err(source) => return Err(FileAction::Remove.failed(path)(source).into()),
    };
    Ok(FileStep {
        action,
        file: path.to_owned(),
    })
}

/// As long as an ADD takes at most: it waits for the agent, the range's lock and a delegated IPAM plugin.
const LONGEST_ADD: Duration = Duration::from_secs(60);
const CHECK_EVERY: Duration = Duration::from_millis(20);
/// Checks in a row that find no process.
const IDLE_CHECKS: u32 = 25;
const SET_ASIDE: &str = "uninstalled";
/// Lists of one name that are set aside side by side; the last is replaced.
const MOST_SET_ASIDE: u32 = 100;
