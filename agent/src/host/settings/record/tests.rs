use proptest::prelude::*;

use super::*;
use crate::host::settings::setting::Interface;
use crate::problems::{HostProblem, Problem};

fn current(dir: &Path) -> Vec<RecordedChange> {
    match SettingsRecord::read(dir, &Scope::here().unwrap()).unwrap() {
        RecordOnDisk::Current(record) => record.changes().to_vec(),
        other => panic!("no current record: {other:?}"),
    }
}

#[test]
fn what_is_remembered_is_read_back_and_the_last_value_found_counts() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("var/lib/tartan");
    let mut record = SettingsRecord::new(&state, Scope::here().unwrap());
    record.add(&Setting::Forward6, 0, 1);
    record.add(&Setting::Forward4, 0, 1);
    record.add(&Setting::Forward6, 7, 1);
    assert_eq!(
        current(&state),
        [
            RecordedChange {
                setting: Setting::Forward4,
                found: 0,
                wrote: 1
            },
            RecordedChange {
                setting: Setting::Forward6,
                found: 7,
                wrote: 1
            },
        ]
    );
}

#[test]
fn no_file_is_no_record() {
    let dir = tempfile::tempdir().unwrap();
    let found = SettingsRecord::read(dir.path(), &Scope::here().unwrap()).unwrap();
    assert!(matches!(found, RecordOnDisk::Nothing));
}

#[test]
fn a_record_of_another_boot_or_namespace_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let here = Scope::here().unwrap();
    for elsewhere in [
        Scope {
            boot: "another".to_owned(),
            ..here.clone()
        },
        Scope {
            namespace: "net:[1]".to_owned(),
            ..here.clone()
        },
    ] {
        SettingsRecord::new(dir.path(), elsewhere).add(&Setting::Forward4, 0, 1);
        let found = SettingsRecord::read(dir.path(), &here).unwrap();
        assert!(matches!(
            found,
            RecordOnDisk::EarlierBoot | RecordOnDisk::OtherNamespace(_)
        ));
    }
}

#[test]
fn hostile_contents_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let here = Scope::here().unwrap();
    let place = serde_json::to_string(&here).unwrap();
    let long = format!("\"{}\"", "x".repeat(300_000));
    for (contents, reason) in [
        ("", "EOF"),
        ("{\"version\":1", "EOF"),
        (
            &*format!("{{\"version\":2,\"place\":{place},\"settings\":[]}}"),
            "version 2",
        ),
        (
            &*format!(
                "{{\"version\":1,\"place\":{place},\"settings\":[{{\"key\":\"kernel/core_pattern\",\"found\":0,\"wrote\":1}}]}}"
            ),
            "not a setting that Tartan changes",
        ),
        (
            &*format!("{{\"version\":1,\"place\":{place},\"settings\":[],\"more\":1}}"),
            "more",
        ),
        (&*long, "longer"),
    ] {
        fs::write(dir.path().join(NAME), contents).unwrap();
        let error = SettingsRecord::read(dir.path(), &here).unwrap_err();
        let error = Problem::Host(HostProblem::of(&error)).to_string();
        assert!(error.contains(reason), "{error}");
        assert!(error.contains("move it elsewhere"), "{error}");
    }
}

#[test]
fn an_unwritable_directory_is_named_and_written_once_it_can_be() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    let state = dir.path().join("file/below");
    let mut record = SettingsRecord::new(&state, Scope::here().unwrap());
    record.add(&Setting::Forward4, 0, 1);
    record.retry_write();
    let error = record.write_error().unwrap().to_string();
    assert!(error.contains("file/below/host.json"), "{error}");
    fs::remove_file(dir.path().join("file")).unwrap();
    record.retry_write();
    assert!(record.write_error().is_none());
    assert_eq!(current(&state), record.changes());
}

proptest! {
    #[test]
    fn random_bytes_are_refused_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(parse(&bytes).is_err());
    }

    #[test]
    fn a_record_survives_the_disk(names in proptest::collection::btree_set("[a-z][a-z0-9.]{0,10}", 0..4), found: i32, wrote: i32) {
        let dir = tempfile::tempdir().unwrap();
        let mut record = SettingsRecord::new(dir.path(), Scope::here().unwrap());
        record.add(&Setting::Forward4, found, wrote);
        for interface in names.iter().filter_map(|name| Interface::parse(name)) {
            record.add(&Setting::AcceptRa(interface), found, wrote);
        }
        prop_assert_eq!(current(dir.path()), record.changes().to_vec());
    }
}
