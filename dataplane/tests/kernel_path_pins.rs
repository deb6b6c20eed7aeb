//! Pins of programs and tables in a BPF file system: what is found there, and what is refused.
//!
//! Needs root (CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN to mount); fails, never skips, without.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use dataplane::kernel_path::{KernelPath, KernelPathError, Pins, Program, Sizes};
use tempfile::TempDir;
use testbed::Namespace;

const SIZES: Sizes = Sizes {
    peers: 1_024,
    pods: 1_024,
    flows: 1_024,
};

/// A root with a BPF file system where an agent looks for it.
struct Root {
    directory: TempDir,
    is_mounted: bool,
}

impl Root {
    fn new() -> Root {
        let mut root = Root::without();
        let mounted = Command::new("mount")
            .args(["-t", "bpf", "-o", "mode=1777", "bpf"])
            .arg(root.bpf())
            .status();
        assert!(mounted.unwrap().success());
        root.is_mounted = true;
        root
    }

    fn without() -> Root {
        let root = Root {
            directory: tempfile::tempdir().unwrap(),
            is_mounted: false,
        };
        fs::create_dir_all(root.bpf()).unwrap();
        root
    }

    fn bpf(&self) -> PathBuf {
        self.directory.path().join("sys/fs/bpf")
    }

    fn pins(&self) -> Pins {
        Pins::below(self.directory.path())
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        if self.is_mounted {
            let _ = Command::new("umount").arg(self.bpf()).status();
        }
    }
}

/// Everything below a directory.
fn names(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    let mut found = vec![];
    for entry in entries.map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            found.extend(names(&entry));
        }
        found.push(entry);
    }
    found
}

#[test]
fn programs_and_tables_outlive_whoever_held_them() {
    let root = Root::new();
    let pins = root.pins();
    assert!(pins.read().unwrap().is_none());
    let path = KernelPath::load(SIZES).unwrap();
    let epoch = path.flows().unwrap().next_epoch().unwrap();
    assert!(pins.write(&path).unwrap());
    // Neither directory is for others to look into.
    for directory in [pins.directory(), above(&pins)] {
        let mode = fs::metadata(directory).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
    let objects = path.descriptors().len() - 1;
    assert_eq!(names(pins.directory()).len(), objects + 1);
    // What is pinned already is not pinned anew: there is no moment without it.
    let number = |pins: &Pins| fs::metadata(pins.directory()).unwrap().ino();
    let before = number(&pins);
    assert!(pins.write(&path).unwrap());
    assert_eq!(number(&pins), before);
    drop(path);

    let found = pins.read().unwrap().unwrap();
    let path = KernelPath::adopt(found).unwrap();
    assert_eq!(path.flows().unwrap().epoch(), epoch);
    assert_eq!(path.sizes(), SIZES);
    // What is loaded next takes their place.
    let other = KernelPath::load(SIZES).unwrap();
    assert!(pins.write(&other).unwrap());
    assert_ne!(number(&pins), before);
    let found = KernelPath::adopt(pins.read().unwrap().unwrap()).unwrap();
    assert_ne!(found.flows().unwrap().epoch(), epoch);

    assert!(pins.remove().unwrap());
    assert!(!pins.remove().unwrap());
    assert!(pins.read().unwrap().is_none());
    assert!(!above(&pins).exists());
}

/// Of the pins of all agents.
fn above(pins: &Pins) -> &Path {
    pins.directory().parent().unwrap()
}

/// Two containers may be nodes of one host.
#[test]
fn agents_of_two_network_namespaces_have_pins_of_their_own() {
    let root = Root::new();
    let path = KernelPath::load(SIZES).unwrap();
    assert!(root.pins().write(&path).unwrap());
    let ours = root.pins().directory().to_owned();
    Namespace::new("pins").inside(|| {
        let pins = root.pins();
        assert!(pins.read().unwrap().is_none());
        let path = KernelPath::load(SIZES).unwrap();
        assert!(pins.write(&path).unwrap());
        assert_ne!(pins.directory(), ours);
        assert!(pins.remove().unwrap());
    });
    assert!(root.pins().read().unwrap().is_some());
    assert!(above(&root.pins()).exists());
}

#[test]
fn what_another_build_or_a_broken_start_left_is_not_taken() {
    let root = Root::new();
    let pins = root.pins();
    let path = KernelPath::load(SIZES).unwrap();
    assert!(pins.write(&path).unwrap());
    let program = Program::PodIn.name();
    let is_program = |path: &PathBuf| path.ends_with(program);
    let gone = names(&root.bpf()).into_iter().find(is_program).unwrap();
    fs::remove_file(&gone).unwrap();
    let error = pins.read().unwrap_err().to_string();
    assert!(error.contains(&*gone.to_string_lossy()), "{error}");

    let ours = gone.parent().unwrap();
    let other = ours.with_file_name("0123456789abcdef");
    fs::rename(ours, &other).unwrap();
    assert!(pins.read().unwrap().is_none());
    assert!(pins.write(&path).unwrap());
    assert!(!other.exists(), "it goes with what takes its place");
    assert!(pins.read().unwrap().is_some());
}

/// In a file system that all may write to, what another user made is neither taken nor touched.
#[test]
fn a_directory_that_others_may_write_to_is_refused() {
    let root = Root::new();
    let pins = root.pins();
    let path = KernelPath::load(SIZES).unwrap();
    assert!(pins.write(&path).unwrap());
    let others = [
        ("others may write", 0o777, 0),
        ("the group may write", 0o770, 0),
        ("another user's", 0o700, 65_534),
    ];
    for (what, mode, owner) in others {
        fs::set_permissions(above(&pins), fs::Permissions::from_mode(mode)).unwrap();
        std::os::unix::fs::chown(above(&pins), Some(owner), None).unwrap();
        let errors = [
            pins.read().map(drop).unwrap_err(),
            pins.write(&path).map(drop).unwrap_err(),
            pins.remove().map(drop).unwrap_err(),
        ];
        for error in errors {
            let KernelPathError::Foreign { name, .. } = &error else {
                panic!("{what}: {error}");
            };
            assert_eq!(Path::new(name), above(&pins), "{what}");
        }
        assert!(!names(pins.directory()).is_empty(), "{what}");
    }
    fs::remove_dir_all(above(&pins)).unwrap();
    std::os::unix::fs::symlink(root.directory.path(), above(&pins)).unwrap();
    assert!(pins.write(&path).is_err() && pins.remove().is_err());
}

#[test]
fn without_a_bpf_file_system_nothing_is_pinned() {
    let root = Root::without();
    let path = KernelPath::load(SIZES).unwrap();
    assert!(!root.pins().write(&path).unwrap());
    assert!(names(&root.bpf()).is_empty());
    assert!(root.pins().read().unwrap().is_none());
    assert!(!root.pins().remove().unwrap());
    assert!(
        !Pins::below(&root.directory.path().join("none"))
            .write(&path)
            .unwrap()
    );
}
