//! Removal: the configuration first, so that no runtime starts a pod whose program is about to go; then the program.
//! Only what is ours.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cni_shim::RunDir;

use super::conf_dir::{self, OUR_PLUGIN};
use super::install::{CniError, Deed, Done, Step, unusable};
use super::place;

/// What is to be removed, and from where.
#[derive(Clone, Debug)]
pub struct Removal {
    /// What the agent's paths hang off.
    pub root: PathBuf,
    /// Where runtimes look for programs.
    pub bin_dir: PathBuf,
    /// Where they look for configurations.
    pub conf_dir: PathBuf,
    /// Although pods are attached.
    pub force: bool,
    /// Do nothing, only tell.
    pub dry_run: bool,
}

/// Removes every configuration of ours that the directory holds, and the program.
///
/// # Errors
/// [`CniError`]; with pods attached nothing is removed unless forced.
pub fn uninstall(removal: &Removal) -> Result<Done, CniError> {
    let run = RunDir::under(&removal.root);
    let count = cni_shim::list(&run).map_or(0, |records| records.len());
    if count > 0 && !removal.force {
        return Err(CniError::Attached { count });
    }
    let mut done = Done::default();
    let program = removal.bin_dir.join(OUR_PLUGIN);
    let files =
        conf_dir::read(&removal.conf_dir).map_err(|source| unusable(&removal.conf_dir, source))?;
    for file in files {
        match file.content {
            Some(conf) if conf.is_ours() => {
                let above = removal.conf_dir.parent().unwrap_or(Path::new("/"));
                for directory in [removal.conf_dir.as_path(), above] {
                    remove_leftovers(removal, &file.path, directory, &mut done)?;
                }
                done.steps.push(remove(removal, &file.path)?);
            }
            Some(_) => {}
            None => done.warnings.push(format!(
                "{} cannot be read as JSON and is left: if it was Tartan's, delete it",
                file.path.display()
            )),
        }
    }
    remove_leftovers(removal, &program, &removal.bin_dir, &mut done)?;
    done.steps.push(remove(removal, &program)?);
    Ok(done)
}

fn remove_leftovers(
    removal: &Removal,
    path: &Path,
    directory: &Path,
    done: &mut Done,
) -> Result<(), CniError> {
    for leftover in place::leftovers(path, directory) {
        done.steps.push(remove(removal, &leftover)?);
    }
    Ok(())
}

fn remove(removal: &Removal, path: &Path) -> Result<Step, CniError> {
    let removed = match removal.dry_run {
        true => path.symlink_metadata().map(|_| ()),
        false => fs::remove_file(path),
    };
    let deed = match removed {
        Ok(()) => Deed::Removed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Deed::Absent,
        Err(source) => {
            return Err(CniError::Remove {
                path: path.to_owned(),
                source,
            });
        }
    };
    Ok(Step {
        deed,
        file: path.to_owned(),
    })
}
