//! Every request of the corpus: read by the fuzz target's oracle, whole and
//! damaged, and served by the program. Requests of podman, `ctr` and
//! containerd's CRI as they came, and hand-made nonsense. A file's name ends in
//! the code its answer has, or 0 for none. Line A4 of the checklist, and that
//! nothing malformed creates anything.

use std::path::PathBuf;

use proptest::prelude::*;

use crate::rig::Rig;

#[path = "../oracle/request.rs"]
mod oracle;

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/request");

fn corpus() -> Vec<(PathBuf, Vec<u8>)> {
    let files = std::fs::read_dir(CORPUS).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 30, "the corpus has shrunk to {}", files.len());
    let read = |path: PathBuf| (path.clone(), std::fs::read(path).unwrap());
    files.into_iter().map(read).collect()
}

/// `input` with our root behind whatever it says, so that no other agent is
/// asked; the last of several keys wins.
fn at_root(rig: &Rig, input: &[u8]) -> Vec<u8> {
    match input.trim_ascii_end().strip_suffix(b"}") {
        Some(head) if head.trim_ascii_end() != b"{" => {
            let root = format!(",\"root\":\"{}\"}}", rig.root().display());
            [head, root.as_bytes()].concat()
        }
        _ => input.to_vec(),
    }
}

#[test]
fn a4_every_request_has_the_answer_that_its_name_says() {
    let mut rig = Rig::new(&["10.244.7.0/24", "fd00:7::/64"]);
    let pod = rig.pod();
    let before = rig.census();
    for (path, bytes) in corpus() {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let expected: u64 = name.rsplit('.').next().unwrap().parse().unwrap();
        let (environment, input) = oracle::split(&bytes);
        let environment: Vec<(&str, &str)> = environment
            .iter()
            .map(|(key, value)| {
                (
                    key.as_str(),
                    if value == "POD" { &pod } else { value.as_str() },
                )
            })
            .collect();
        let answer = rig.call(&environment, at_root(&rig, input));
        if expected == 0 {
            assert!(answer.ok, "{name}: {answer:?}");
            let add = environment.contains(&("CNI_COMMAND", "ADD"));
            let version = environment.contains(&("CNI_COMMAND", "VERSION"));
            if add || version {
                answer.result();
            } else {
                assert_eq!(answer.stdout, "", "{name}");
            }
            let mut undo = environment.clone();
            undo.push(("CNI_COMMAND", "DEL"));
            if add {
                rig.call(&undo, at_root(&rig, input)).silent();
            }
        } else {
            assert_eq!(answer.error().0, expected, "{name}: {answer:?}");
        }
        assert!(!answer.stderr.contains("panicked"), "{name}: {answer:?}");
        // Loopback came up with the first pod.
        let now = rig.census();
        assert_eq!(now.records(), before.records(), "{name}");
        assert_eq!(
            crate::rig::ip(&["-n", &rig.node, "link", "show", "type", "veth"]),
            "",
            "{name}"
        );
    }
}

#[test]
fn the_oracle_holds_for_the_whole_corpus() {
    for (_, bytes) in corpus() {
        oracle::read(&bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_oracle_holds_for_a_damaged_corpus(
        file: prop::sample::Index, damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..6),
    ) {
        let files = corpus();
        let mut bytes = files[file.index(files.len())].1.clone();
        for (at, byte, kind) in damage {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => { bytes.remove(at); }
            }
        }
        oracle::read(&bytes);
    }
}
