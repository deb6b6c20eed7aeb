//! A remedy is read in a hurry and typed as it stands: none destroys what is not ours.

use std::fs;
use std::path::{Path, PathBuf};

/// Words that take something away for good.
const DESTRUCTIVE: [&str; 9] = [
    "delete",
    "remove",
    "flush",
    "kill",
    "destroy",
    "uninstall",
    "unlink",
    " del ",
    " rm ",
];

/// Remedies with such a word, and why what they name is ours.
const OURS: [(&str, &str); 4] = [
    (
        "\"delete and recreate them, see `tartan pods`\"",
        "attachments of ours, known by their records",
    ),
    (
        "delete and recreate the pod, see `tartan pods`\"",
        "an attachment of ours, known by its record",
    ),
    (
        "or delete the file if that namespace no longer exists",
        "the record of settings, which was read before",
    ),
    (
        "\"remove it by hand\"",
        "a file or directory that a clean-up knows as ours",
    ),
];

/// Commands that destroy. A message that names one would name it for whatever has the name at that moment.
const COMMANDS: [&str; 14] = [
    "ip link del",
    "ip route del",
    "ip -6 route del",
    "ip addr del",
    "ip address del",
    "ip rule del",
    "ip neigh del",
    " flush ",
    "nft delete",
    "bridge fdb del",
    "kill -",
    "pkill",
    "killall",
    "rm -",
];

/// Over the text of all remedies, so that one that is added is judged too.
#[test]
fn a_remedy_destroys_only_what_was_established_to_be_ours() {
    let wrong: Vec<&str> = messages(include_str!("../remedy.rs"))
        .filter(|line| DESTRUCTIVE.iter().any(|word| line.contains(word)))
        .filter(|line| !OURS.iter().any(|(text, _)| line.contains(text)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    for (text, why) in OURS {
        assert!(
            messages(include_str!("../remedy.rs")).any(|line| line.contains(text)),
            "no remedy says {text:?} ({why}): take it off this list"
        );
    }
}

/// Neither does any other message of ours name such a command.
#[test]
fn no_message_names_a_command_that_destroys() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for folder in ["agent/src", "cni-shim/src", "dataplane/src"] {
        sources(&home.join(folder), &mut files);
    }
    assert!(files.len() > 100, "only {} files found", files.len());
    let mut wrong = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let named = |line: &str| COMMANDS.iter().any(|command| line.contains(command));
        let found = messages(&text).filter(|line| named(line));
        wrong.extend(found.map(|line| format!("{}: {}", file.display(), line.trim())));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The same of the page that lists the remedies.
#[test]
fn the_page_of_problems_names_no_such_command_either() {
    let page = include_str!("../../../../docs/problems.md");
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let wrong: Vec<&str> = rows
        .filter(|row| COMMANDS.iter().any(|command| row.contains(command)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Lines of code with text in them, those of tests excepted.
fn messages(source: &str) -> impl Iterator<Item = &str> {
    source
        .lines()
        .take_while(|line| !line.starts_with("#[cfg(test)]"))
        .filter(|line| !line.trim_start().starts_with("//"))
}

fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" {
            sources(&path, files);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            files.push(path);
        }
    }
}
