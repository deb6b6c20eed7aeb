//! The table in `../README.md` names tests that exist, for every line.

use std::path::{Path, PathBuf};

use crate::faults::{ADD, DEL};
use crate::requested::ADD_WITH_IPAM;

const LINES: [(char, usize); 9] = [
    ('A', 7),
    ('B', 10),
    ('C', 8),
    ('D', 4),
    ('E', 4),
    ('F', 6),
    ('G', 9),
    ('H', 3),
    ('I', 4),
];

/// Every Rust file below `directory`, as one text.
fn sources(directory: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text += &sources(&path);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text += &std::fs::read_to_string(path).unwrap();
        }
    }
    text
}

#[test]
fn every_line_of_the_checklist_has_its_tests() {
    let home = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let table = std::fs::read_to_string(home.join("tests/README.md")).unwrap();
    let code = sources(&home.join("src")) + &sources(&home.join("tests"));
    for (letter, count) in LINES {
        for n in 1..=count {
            let start = format!("| {letter}{n} |");
            let rows: Vec<&str> = table
                .lines()
                .filter(|row| row.starts_with(&start))
                .collect();
            let [row] = rows[..] else {
                panic!("{start} is there {} times", rows.len());
            };
            let tests = row.split('|').nth(3).unwrap();
            let named: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
            assert!(!named.is_empty(), "{start} has no test");
            for name in named {
                let exists = match name.contains('/') {
                    true => home.join("..").join(name).exists(),
                    false => {
                        code.contains(&format!("fn {name}()"))
                            || code.contains(&format!("fn {name}(\n"))
                    }
                };
                assert!(exists, "{start} names {name}, which is not there");
            }
        }
    }
}

/// Without a test that makes a step fail it is unknown what the step leaves.
#[test]
fn every_step_is_made_to_fail() {
    let home = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let tests = sources(&home.join("tests"));
    let listed = [&ADD[..], &DEL, &ADD_WITH_IPAM].concat();
    let code = sources(&home.join("src")).replace("(BEGUN)", "(\"removal-begun\")");
    let steps: Vec<&str> = code
        .split("failpoint::after(\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    assert!(steps.len() >= 14, "{steps:?}");
    for step in steps {
        let fails = listed.contains(&step) || tests.contains(&format!("\"{step}:fail\""));
        assert!(fails, "nothing fails after {step}");
    }
}
