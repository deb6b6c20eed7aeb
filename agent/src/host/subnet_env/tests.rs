use std::os::unix::fs::PermissionsExt;

use super::*;

/// Writes the file at `path`, and the note of it in `state`.
fn put(state: &Path, path: &Path, contents: &str) {
    write(path, contents, |written| {
        let note = Note {
            path: path.to_path_buf(),
            written: vec![written],
            made_directory: true,
        };
        note.write(state).map_err(io::Error::other)
    })
    .unwrap();
}

/// As another process writes it.
fn write_by_another(path: &Path, contents: &str) {
    write(path, contents, |_| Ok(())).unwrap();
}

#[test]
fn a_file_is_readable_by_all_whole_and_alone() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("run/flannel/subnet.env");
    write_by_another(&path, "one");
    write_by_another(&path, "two");
    assert_eq!(fs::read_to_string(&path).unwrap(), "two");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o644);
    let directory = path.parent().unwrap();
    assert_eq!(fs::read_dir(directory).unwrap().count(), 1);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    write(&path, "three", |_| Ok(())).unwrap_err();
    assert_eq!(fs::read_dir(directory).unwrap().count(), 1);
}

#[test]
fn only_what_we_wrote_is_removed() {
    let root = tempfile::tempdir().unwrap();
    let state = root.path().join("state");
    let path = root.path().join("flannel/subnet.env");
    assert!(matches!(clear(&state, false), Cleared::Nothing));
    put(&state, &path, "x");
    assert!(matches!(clear(&state, false), Cleared::Removed(_)));
    assert!(!path.parent().unwrap().exists());
    assert!(matches!(clear(&state, false), Cleared::Nothing));
    for contents in ["x", "another process wrote this"] {
        put(&state, &path, "x");
        write_by_another(&path, contents);
        assert!(
            matches!(clear(&state, false), Cleared::Foreign(_)),
            "{contents}"
        );
        assert!(path.exists());
    }
}

/// The note is written when the new file is complete; until the rename the one before is there.
#[test]
fn a_crash_between_note_and_file_leaves_one_that_is_on_record() {
    let root = tempfile::tempdir().unwrap();
    let state = root.path().join("state");
    let path = root.path().join("flannel/subnet.env");
    put(&state, &path, "old");
    write(&path, "new", |written| {
        let mut note = Note::read(&state).unwrap();
        note.written.push(written);
        note.write(&state).map_err(io::Error::other)?;
        Err(io::Error::other("the process is killed here"))
    })
    .unwrap_err();
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    assert!(matches!(clear(&state, false), Cleared::Removed(_)));
}

#[test]
fn a_directory_with_other_files_or_that_we_did_not_make_stays() {
    let root = tempfile::tempdir().unwrap();
    let state = root.path().join("state");
    let path = root.path().join("flannel/subnet.env");
    let beside = root.path().join("flannel/other");
    put(&state, &path, "x");
    fs::write(&beside, "").unwrap();
    assert!(matches!(clear(&state, false), Cleared::Removed(_)));
    assert!(beside.exists());
    fs::remove_file(&beside).unwrap();
    put(&state, &path, "x");
    let theirs = Note {
        made_directory: false,
        ..Note::read(&state).unwrap()
    };
    theirs.write(&state).unwrap();
    assert!(matches!(clear(&state, false), Cleared::Removed(_)));
    assert!(path.parent().unwrap().exists());
}

#[test]
fn a_note_that_is_none_removes_nothing() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join(NOTE), r#"{"path":"/etc/passwd"}"#).unwrap();
    assert!(matches!(clear(root.path(), false), Cleared::Nothing));
    // A link is not followed: what it leads to is not what we wrote.
    let target = root.path().join("target");
    let link = root.path().join("link");
    put(root.path(), &link, "x");
    fs::rename(&link, &target).unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    assert!(matches!(clear(root.path(), false), Cleared::Foreign(_)));
    assert!(target.exists());
}

#[test]
fn what_a_killed_writer_left_goes_with_the_file() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("flannel/subnet.env");
    put(root.path(), &path, "one");
    fs::write(path.with_file_name(".77.subnet.env.new"), "half").unwrap();
    assert!(remove(&Note::read(root.path()).unwrap()).unwrap());
    assert!(!path.parent().unwrap().exists());
}
