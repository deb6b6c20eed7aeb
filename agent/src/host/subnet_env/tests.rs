use super::*;

fn note(path: &Path, written: &[&str]) -> Note {
    Note {
        path: path.to_path_buf(),
        written: written.iter().map(|text| (*text).to_owned()).collect(),
        made_directory: true,
    }
}

#[test]
fn a_file_is_readable_by_all_whole_and_alone() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("run/flannel/subnet.env");
    write(&path, "one").unwrap();
    write(&path, "two").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "two");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o644);
    let directory = path.parent().unwrap();
    assert_eq!(fs::read_dir(directory).unwrap().count(), 1);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    write(&path, "three").unwrap_err();
    assert_eq!(fs::read_dir(directory).unwrap().count(), 1);
}

#[test]
fn only_what_we_wrote_is_removed() {
    let root = tempfile::tempdir().unwrap();
    let state = root.path().join("state");
    let path = root.path().join("flannel/subnet.env");
    assert!(matches!(clear(&state), Cleared::Nothing));
    note(&path, &["old", "new"]).write(&state).unwrap();
    assert!(matches!(clear(&state), Cleared::Nothing), "not yet written");
    // A crash between note and file leaves the contents before.
    for contents in ["old", "new"] {
        write(&path, contents).unwrap();
        assert!(matches!(clear(&state), Cleared::Removed(_)), "{contents}");
        assert!(!path.parent().unwrap().exists());
    }
    write(&path, "another process wrote this").unwrap();
    assert!(matches!(clear(&state), Cleared::Foreign(_)));
    assert!(path.exists());
}

#[test]
fn a_directory_with_other_files_or_of_somebody_else_stays() {
    let root = tempfile::tempdir().unwrap();
    let state = root.path().join("state");
    let path = root.path().join("flannel/subnet.env");
    let beside = root.path().join("flannel/other");
    note(&path, &["x"]).write(&state).unwrap();
    write(&path, "x").unwrap();
    fs::write(&beside, "").unwrap();
    assert!(matches!(clear(&state), Cleared::Removed(_)));
    assert!(beside.exists());
    fs::remove_file(&beside).unwrap();
    let theirs = Note {
        made_directory: false,
        ..note(&path, &["x"])
    };
    theirs.write(&state).unwrap();
    write(&path, "x").unwrap();
    assert!(matches!(clear(&state), Cleared::Removed(_)));
    assert!(path.parent().unwrap().exists());
}

#[test]
fn a_note_that_is_none_removes_nothing() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join(NOTE), r#"{"path":"/etc/passwd"}"#).unwrap();
    assert!(matches!(clear(root.path()), Cleared::Nothing));
    // A link is not followed: what it leads to is not what we wrote.
    let target = root.path().join("target");
    let link = root.path().join("link");
    fs::write(&target, "x").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    note(&link, &["x"]).write(root.path()).unwrap();
    assert!(matches!(clear(root.path()), Cleared::Foreign(_)));
    assert!(target.exists());
}

#[test]
fn what_a_killed_writer_left_goes_with_the_file() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("flannel/subnet.env");
    write(&path, "one").unwrap();
    fs::write(path.with_file_name("subnet.env.tartan-new"), "half").unwrap();
    assert!(remove(&note(&path, &["one"])).unwrap());
    assert!(!path.parent().unwrap().exists());
}
