//! Files and directories. Nothing is followed out of where it was looked for: a symbolic link goes itself, and a directory
//! on which something is mounted stays.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::catalogue::{Catalogue, FileForm, FilePlace, reason};
use super::in_use::InUse;
use super::mounts::Mounts;
use super::{Leftover, LeftoverError, LeftoverKind, MOST_FILES, Thing};
use crate::host::error::HostError;

pub(super) fn find(
    catalogue: &Catalogue,
    root: &Path,
    in_use: &InUse,
) -> Result<Vec<Leftover>, LeftoverError> {
    let mut found = Vec::new();
    for form in catalogue.files {
        match &form.at {
            FilePlace::Configuration(path) => {
                let path = below(root, path);
                if path.symlink_metadata().is_ok() {
                    found.push(configuration(form, path, in_use));
                }
            }
            FilePlace::Tree(path) => {
                let path = below(root, path);
                if path.symlink_metadata().is_ok() {
                    found.push(tree(form, path, in_use));
                }
            }
            FilePlace::In(directory, name) => {
                let why = reason("the name", name, form.source);
                let files = entries(&below(root, directory))?;
                let named = files.into_iter().filter(|path| {
                    let file = path.file_name().and_then(|file| file.to_str());
                    file.is_some_and(|file| name.matches(file))
                });
                found.extend(named.map(|path| of_path(path, why.clone())));
            }
        }
    }
    Ok(found)
}

fn configuration(form: &FileForm, path: PathBuf, in_use: &InUse) -> Leftover {
    Leftover {
        kind: LeftoverKind::CniConfiguration,
        place: path.display().to_string(),
        why: reason("the name", file_name(&path), form.source),
        effect: "no runtime calls that plugin for a new pod any more".to_owned(),
        rules: Vec::new(),
        kept: in_use.stock_plugin.then(|| STOCK_PLUGIN.to_owned()),
        thing: Thing::File(path),
    }
}

fn tree(form: &FileForm, path: PathBuf, in_use: &InUse) -> Leftover {
    let why = reason("the path", path.display(), form.source);
    let mut leftover = of_path(path.clone(), why);
    leftover.kept = match in_use.below(&path) {
        Some(file) => Some(format!("{} names this node's subnet", file.display())),
        // What the plugin and its address manager note of pods that run.
        _ if in_use.stock_plugin => Some(STOCK_PLUGIN.to_owned()),
        _ => None,
    };
    leftover
}

/// A directory goes with all it holds.
fn of_path(path: PathBuf, why: String) -> Leftover {
    let is_directory = path.symlink_metadata().is_ok_and(|found| found.is_dir());
    let (kind, effect) = match is_directory {
        true => (
            LeftoverKind::Directory,
            "the directory goes with all its files",
        ),
        false => (LeftoverKind::File, "the file goes"),
    };
    Leftover {
        kind,
        place: path.display().to_string(),
        why,
        effect: effect.to_owned(),
        rules: Vec::new(),
        kept: None,
        thing: match is_directory {
            true => Thing::Tree(path),
            false => Thing::File(path),
        },
    }
}

/// Removes a file. One that is gone already is no error.
pub(super) fn remove_file(path: &Path) -> Result<(), LeftoverError> {
    gone(path, fs::remove_file(path))
}

/// Removes a directory with what it holds, unless something is mounted on it or below.
pub(super) fn remove_tree(path: &Path) -> Result<(), LeftoverError> {
    let Ok(top) = path.symlink_metadata() else {
        return Ok(());
    };
    if top.is_symlink() {
        return remove_file(path);
    }
    // The number of the file system does not tell: a bind mount may be of the same one.
    let mounts = Mounts::read().map_err(LeftoverError::NoMounts)?;
    let place = path
        .canonicalize()
        .map_err(|source| unreadable(path, source))?;
    if let Some(point) = mounts.at_or_below(&place) {
        return Err(LeftoverError::MountPoint(point.to_owned()));
    }
    let mut pending = vec![path.to_owned()];
    let mut seen = 0_usize;
    while let Some(directory) = pending.pop() {
        for entry in entries(&directory)? {
            seen += 1;
            if seen > MOST_FILES {
                return Err(LeftoverError::TooMany(path.to_owned()));
            }
            match entry.symlink_metadata() {
                Ok(found) if found.dev() != top.dev() => {
                    return Err(LeftoverError::MountPoint(entry));
                }
                Ok(found) if found.is_dir() => pending.push(entry),
                _ => {}
            }
        }
    }
    gone(path, fs::remove_dir_all(path))
}

fn gone(path: &Path, done: io::Result<()>) -> Result<(), LeftoverError> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done.map_err(|source| unreadable(path, source)),
    }
}

/// What is in a directory; nothing where there is none.
fn entries(path: &Path) -> Result<Vec<PathBuf>, LeftoverError> {
    let read = fs::read_dir(path).and_then(|read| {
        read.take(MOST_FILES)
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<io::Result<Vec<PathBuf>>>()
    });
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => {
            let mut found = read.map_err(|source| unreadable(path, source))?;
            found.sort_unstable();
            Ok(found)
        }
    }
}

fn unreadable(path: &Path, source: io::Error) -> LeftoverError {
    let path = path.to_owned();
    HostError::RemoveFile { path, source }.into()
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn file_name(path: &Path) -> std::borrow::Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

const STOCK_PLUGIN: &str =
    "flannel's plugin attaches pods beside Tartan: `tartan cni install` takes its place";

#[cfg(test)]
mod tests {
    use super::super::{calico, flannel};
    use super::*;

    fn make(root: &Path, files: &[&str]) {
        for file in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
    }

    const FLANNELS: [&str; 3] = [
        "etc/cni/net.d/10-flannel.conflist",
        "run/flannel/subnet.env",
        "var/lib/cni/networks/cbr0/10.244.1.2",
    ];
    const OTHERS: [&str; 4] = [
        "etc/cni/net.d/10-tartan.conflist",
        "etc/cni/net.d/87-podman.conflist",
        "var/lib/cni/networks/podman/10.88.0.2",
        "var/lib/tartan/subnet-env.json",
    ];

    #[test]
    fn files_of_the_cni_go_and_those_of_others_stay() {
        let root = tempfile::tempdir().unwrap();
        make(root.path(), &FLANNELS);
        make(root.path(), &OTHERS);
        let found = find(&flannel::CATALOGUE, root.path(), &InUse::default()).unwrap();
        assert_eq!(found.len(), 3);
        assert!(
            find(&calico::CATALOGUE, root.path(), &InUse::default())
                .unwrap()
                .is_empty()
        );
        for _ in 0..2 {
            for leftover in &found {
                match &leftover.thing {
                    Thing::File(path) => remove_file(path).unwrap(),
                    Thing::Tree(path) => remove_tree(path).unwrap(),
                    other => panic!("{other:?} is no file"),
                }
            }
        }
        for file in FLANNELS {
            assert!(!root.path().join(file).exists(), "{file}");
        }
        for file in OTHERS {
            assert!(root.path().join(file).exists(), "{file}");
        }
    }

    #[test]
    fn what_the_stock_plugin_needs_is_kept() {
        let root = tempfile::tempdir().unwrap();
        make(root.path(), &FLANNELS);
        let in_use = |stock_plugin| InUse {
            subnet_files: vec![root.path().join("run/flannel/subnet.env")],
            stock_plugin,
            ..InUse::default()
        };
        let kept = |in_use: &InUse| -> Vec<bool> {
            let found = find(&flannel::CATALOGUE, root.path(), in_use).unwrap();
            found
                .iter()
                .map(|leftover| leftover.kept.is_some())
                .collect()
        };
        assert_eq!(kept(&in_use(true)), [true, true, true]);
        assert_eq!(kept(&in_use(false)), [false, true, false]);
        assert_eq!(kept(&InUse::default()), [false, false, false]);
    }

    #[test]
    fn a_link_goes_itself_and_what_it_leads_to_stays() {
        let root = tempfile::tempdir().unwrap();
        make(
            root.path(),
            &["srv/data/file", "var/lib/weave/weave-netdata.db"],
        );
        let data = root.path().join("srv/data");
        std::os::unix::fs::symlink(&data, root.path().join("var/lib/weave/link")).unwrap();
        remove_tree(&root.path().join("var/lib/weave")).unwrap();
        std::os::unix::fs::symlink(&data, root.path().join("var/lib/weave")).unwrap();
        remove_tree(&root.path().join("var/lib/weave")).unwrap();
        assert!(data.join("file").exists());
        assert!(
            root.path()
                .join("var/lib/weave")
                .symlink_metadata()
                .is_err()
        );
    }
}
