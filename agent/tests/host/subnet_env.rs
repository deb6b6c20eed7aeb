//! flannel's file, and what a clean-up makes of it.

use std::fs;
use std::path::PathBuf;

use tartan::host::HostState;
use tartan::host::{Change, Host, HostError};

use crate::cleanup::clean;
use crate::namespace::Namespace;
use crate::text;
use crate::v4;

fn at(namespace: &Namespace, path: &str) -> (PathBuf, HostState) {
    let path = namespace.root().join(path);
    let desired = HostState {
        subnet_file: path.clone(),
        ..v4()
    };
    (path, desired)
}

fn write(namespace: &Namespace, desired: &HostState) -> Result<Option<Change>, HostError> {
    let state = namespace.state_dir();
    namespace.inside(|| async move { Host::open(&state).await?.write_subnet_env(desired) })
}

#[test]
fn the_file_is_written_once_followed_and_mended() {
    let namespace = Namespace::new();
    let (path, mut desired) = at(&namespace, "run/flannel/subnet.env");
    let written = Some(Change::SubnetEnvWritten(path.clone()));
    assert_eq!(write(&namespace, &desired).unwrap(), written);
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text, desired.subnet_env.to_string());
    assert_eq!(write(&namespace, &desired).unwrap(), None);
    desired.subnet_env.mtu = 1400;
    assert_eq!(write(&namespace, &desired).unwrap(), written);
    assert!(
        fs::read_to_string(&path)
            .unwrap()
            .contains("FLANNEL_MTU=1400\n")
    );
    fs::remove_file(&path).unwrap();
    assert_eq!(write(&namespace, &desired).unwrap(), written);
    fs::write(&path, "FLANNEL_MTU=9\n").unwrap();
    assert_eq!(write(&namespace, &desired).unwrap(), written);
    assert_eq!(write(&namespace, &desired).unwrap(), None);
}

#[test]
fn another_path_moves_it_and_a_cleanup_removes_it() {
    let namespace = Namespace::new();
    let before = namespace.census();
    let (old, desired) = at(&namespace, "run/flannel/subnet.env");
    write(&namespace, &desired).unwrap();
    let (new, desired) = at(&namespace, "elsewhere/subnet.env");
    write(&namespace, &desired).unwrap();
    assert!(new.exists() && !old.parent().unwrap().exists());
    let outcomes = clean(&namespace);
    let words: Vec<String> = outcomes.iter().map(ToString::to_string).collect();
    assert!(
        words.contains(&format!("removed {}", new.display())),
        "{words:?}"
    );
    assert!(!new.parent().unwrap().exists());
    namespace.census().must_be(&before, "after the clean-up");
    assert_eq!(clean(&namespace).len(), 0);
}

#[test]
fn what_flanneld_wrote_since_is_kept() {
    let namespace = Namespace::new();
    let (path, desired) = at(&namespace, "run/flannel/subnet.env");
    write(&namespace, &desired).unwrap();
    fs::write(&path, "FLANNEL_MTU=1472\n").unwrap();
    let outcomes = clean(&namespace);
    let words: Vec<String> = outcomes.iter().map(ToString::to_string).collect();
    assert!(
        words[0].contains("another process has written it since"),
        "{words:?}"
    );
    assert!(path.exists());
}

#[test]
fn a_place_that_cannot_be_written_is_named_with_the_key() {
    let namespace = Namespace::new();
    let (_, desired) = at(&namespace, "file/subnet.env");
    fs::write(namespace.root().join("file"), "in the way").unwrap();
    let error = text(&write(&namespace, &desired).unwrap_err());
    assert!(
        error.contains("file/subnet.env") && error.contains("`subnet-file`"),
        "{error}"
    );
}

/// As by a flanneld on the same node: the same bytes, by a temporary file and a rename. Pods need the file, and forwarding
/// to get out.
#[test]
fn the_same_bytes_of_another_process_are_kept_and_so_is_forwarding() {
    let namespace = Namespace::with_tun();
    let (path, desired) = at(&namespace, "run/flannel/subnet.env");
    crate::apply(&namespace, &desired).unwrap();
    write(&namespace, &desired).unwrap();
    let temporary = path.with_file_name(".subnet.env");
    fs::copy(&path, &temporary).unwrap();
    fs::rename(&temporary, &path).unwrap();
    let outcomes = clean(&namespace);
    let words: Vec<String> = outcomes.iter().map(ToString::to_string).collect();
    assert!(path.exists(), "{words:?}");
    let kept = format!(
        "kept {}: another process has written it since",
        path.display()
    );
    assert!(words.contains(&kept), "{words:?}");
    assert_eq!(namespace.setting("net/ipv4/ip_forward"), "1", "{words:?}");
}

/// What was written over in its place has another time, and what Tartan itself finds right it does not take for its own.
#[test]
fn a_file_that_another_process_wrote_in_place_is_kept() {
    let namespace = Namespace::new();
    let (path, desired) = at(&namespace, "run/flannel/subnet.env");
    write(&namespace, &desired).unwrap();
    let contents = fs::read(&path).unwrap();
    let written = path.metadata().unwrap().modified().unwrap();
    // The clock of a file system has ticks of some milliseconds.
    while path.metadata().unwrap().modified().unwrap() == written {
        fs::write(&path, &contents).unwrap();
    }
    assert_eq!(write(&namespace, &desired).unwrap(), None);
    clean(&namespace);
    assert!(path.exists());
}
