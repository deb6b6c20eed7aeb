use super::*;
use crate::FileError;
use proptest::prelude::*;

fn record(container: &str, ifname: &str) -> Attachment {
    Attachment {
        version: Attachment::VERSION,
        network: "tartan".to_owned(),
        container: container.to_owned(),
        ifname: ifname.to_owned(),
        netns: "/run/netns/x".to_owned(),
        netns_inode: 4_026_531_840,
        host_ifname: "tt0123456789".to_owned(),
        addresses: vec!["10.244.1.2/32".parse().unwrap()],
        mac: "02:00:00:00:00:01".to_owned(),
        pod: Some(PodName {
            namespace: "default".to_owned(),
            name: "web-0".to_owned(),
        }),
        created: 1,
        state: State::Attached,
        ..Attachment::default()
    }
}

fn run() -> (tempfile::TempDir, RunDir) {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::under(root.path());
    run.make().unwrap();
    (root, run)
}

#[test]
fn what_is_written_is_read_listed_and_removed() {
    let (_root, run) = run();
    let one = record("c1", "eth0");
    one.write(&run).unwrap();
    let path = Attachment::path(&run, "c1", "eth0").unwrap();
    assert_eq!(Attachment::read(&path).unwrap(), one);
    let listed = list(&run).unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].0, path);
    assert_eq!(listed[0].1.as_ref().unwrap(), &one);
    one.remove(&run).unwrap();
    one.remove(&run).unwrap();
    assert!(list(&run).unwrap().is_empty());
}

#[test]
fn bad_files_are_reported_and_do_not_hide_good_ones() {
    let (_root, run) = run();
    let good = record("c2", "eth0");
    good.write(&run).unwrap();
    let at = |name: &str| run.attachments().join(name);
    let bytes = serde_json::to_vec(&good).unwrap();
    fs::write(at("c1:eth0.json"), &bytes[..bytes.len() / 2]).unwrap();
    fs::write(at("c3:eth0.json"), b"").unwrap();
    fs::write(at("c4:eth0.json"), &bytes).unwrap();
    let mut newer = record("c5", "eth0");
    newer.version = 2;
    newer.write(&run).unwrap();
    fs::create_dir(at("c6:eth0.json")).unwrap();
    fs::write(at(".lock"), b"").unwrap();
    fs::write(at(".77.c2:eth0.json"), b"").unwrap();
    fs::write(at("notes"), b"").unwrap();
    let kinds: Vec<&str> = list(&run)
        .unwrap()
        .iter()
        .map(|(_, read)| match read {
            Ok(_) => "good",
            Err(Error::Parse { .. }) => "parse",
            Err(Error::Misnamed { .. }) => "misnamed",
            Err(Error::Version { version: 2, .. }) => "version",
            Err(Error::File(FileError {
                action: FileAction::Read,
                ..
            })) => "read",
            Err(_) => "other",
        })
        .collect();
    assert_eq!(
        kinds,
        ["parse", "good", "parse", "misnamed", "version", "read"]
    );
}

#[test]
fn a_missing_directory_holds_no_records_and_takes_none() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::under(root.path());
    assert!(list(&run).unwrap().is_empty());
    let refused = record("c", "eth0").write(&run);
    assert!(matches!(
        refused,
        Err(Error::File(FileError {
            action: FileAction::Write,
            ..
        }))
    ));
    record("c", "eth0").remove(&run).unwrap();
}

#[test]
fn a_directory_in_the_way_is_an_error_to_remove_and_to_list() {
    let (_root, run) = run();
    fs::create_dir(run.attachments().join("c:eth0.json")).unwrap();
    let refused = record("c", "eth0").remove(&run);
    assert!(matches!(
        refused,
        Err(Error::File(FileError {
            action: FileAction::Remove,
            ..
        }))
    ));
    fs::remove_dir_all(run.attachments()).unwrap();
    fs::write(run.attachments(), b"").unwrap();
    assert!(matches!(
        list(&run),
        Err(Error::File(FileError {
            action: FileAction::Read,
            ..
        }))
    ));
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let (_root, run) = run();
    let long = "c".repeat(201);
    for container in ["", "..", "../x", "a/b", "a:b", "-a", "ä", "a b", &long] {
        let refused = record(container, "eth0").write(&run);
        assert!(matches!(refused, Err(Error::Name { .. })), "{container}");
    }
    for ifname in [
        "",
        ".",
        "..",
        "a/b",
        "a:b",
        "a b",
        "a\n",
        "0123456789abcdef",
    ] {
        let refused = record("c", ifname).write(&run);
        assert!(matches!(refused, Err(Error::Name { .. })), "{ifname:?}");
    }
    record(&"c".repeat(200), "0123456789abcde")
        .write(&run)
        .unwrap();
}

#[test]
fn a_record_without_a_state_counts_as_half_made() {
    let (_root, run) = run();
    let mut value = serde_json::to_value(record("c", "eth0")).unwrap();
    value.as_object_mut().unwrap().remove("state");
    let path = Attachment::path(&run, "c", "eth0").unwrap();
    fs::write(&path, value.to_string()).unwrap();
    assert_eq!(Attachment::read(&path).unwrap().state, State::Reserved);
}

const CONTAINER: &str = "[a-zA-Z0-9][a-zA-Z0-9_.\\-]{0,12}";
const IFNAME: &str = "[a-zA-Z0-9_.@\\-]{3,15}";

proptest! {
    #[test]
    fn file_names_are_injective(
        a in CONTAINER, b in IFNAME, c in CONTAINER, d in IFNAME,
    ) {
        let same = Attachment::file_name(&a, &b) == Attachment::file_name(&c, &d);
        prop_assert_eq!(same, (a, b) == (c, d));
    }

    #[test]
    fn a_file_name_gives_its_parts_back(container in CONTAINER, ifname in IFNAME) {
        let name = Attachment::file_name(&container, &ifname);
        let (c, i) = name.strip_suffix(".json").unwrap().split_once(':').unwrap();
        prop_assert_eq!((c, i), (container.as_str(), ifname.as_str()));
    }

    #[test]
    fn no_bytes_make_reading_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let (_root, run) = run();
        let path = run.attachments().join("c:eth0.json");
        fs::write(&path, &bytes).unwrap();
        prop_assert!(Attachment::read(&path).is_err());
    }

    #[test]
    fn a_damaged_record_is_an_error_or_a_record(at in 0usize..400, byte: u8) {
        let (_root, run) = run();
        let path = run.attachments().join("c:eth0.json");
        let mut bytes = serde_json::to_vec(&record("c", "eth0")).unwrap();
        let at = at % bytes.len();
        bytes[at] = byte;
        fs::write(&path, &bytes).unwrap();
        if let Ok(read) = Attachment::read(&path) {
            prop_assert_eq!((read.container.as_str(), read.ifname.as_str()), ("c", "eth0"));
        }
    }
}

#[test]
fn limits_are_kept_and_their_absence_is_too() {
    let (_root, run) = run();
    let mut limited = record("c1", "eth0");
    limited.bandwidth = Some(Bandwidth {
        ingress: Some(RateLimit {
            rate: 10_000_000,
            burst: u64::from(u32::MAX),
        }),
        egress: None,
    });
    limited.write(&run).unwrap();
    let path = Attachment::path(&run, "c1", "eth0").unwrap();
    assert_eq!(Attachment::read(&path).unwrap(), limited);
    let text = serde_json::to_string(&record("c1", "eth0")).unwrap();
    assert!(!text.contains("bandwidth"), "{text}");
    assert_eq!(limited.limiter_ifname(), "tl0123456789");
}

#[test]
fn g7_a_damaged_record_is_set_aside_and_named() {
    let (_root, run) = run();
    run.make().unwrap();
    let path = Attachment::path(&run, "c1", "eth0").unwrap();
    fs::write(&path, b"{\"version\":1,").unwrap();
    let named = Some(("c1".to_owned(), "eth0".to_owned()));
    assert_eq!(named_by(&path), named);
    let aside = set_aside(&path).unwrap();
    assert_eq!(fs::read(&aside).unwrap(), b"{\"version\":1,");
    assert!(list(&run).unwrap().is_empty());
    set_aside(&path).unwrap();
    for name in ["c1.json", "..:eth0.json", "c1:eth0", ".x:eth0.json"] {
        assert_eq!(named_by(Path::new(name)), None, "{name}");
    }
}

#[test]
fn a_record_of_an_older_plugin_is_read() {
    let text = r#"{"version":1,"network":"n","container":"c1","ifname":"eth0","netns":"/x",
        "netns_inode":7,"host_ifname":"tt0","addresses":["10.1.0.2/32"],"mac":"02:00:00:00:00:01",
        "pod":null,"created":1,"state":"attached"}"#;
    let record: Attachment = serde_json::from_str(text).unwrap();
    assert_eq!((record.mtu, record.table, record.ipam), (0, None, None));
}

#[test]
fn what_a_killed_writer_left_goes_with_the_record() {
    let (_root, run) = run();
    let one = record("c1", "eth0");
    one.write(&run).unwrap();
    let left = [".77.c1:eth0.json", ".78.c1:eth0.json"];
    let kept = [
        ".77.c1:eth01.json",
        ".77.xc1:eth0.json",
        ".damaged-c1:eth0.json",
        ".x.c1:eth0.json",
    ];
    for name in left.iter().chain(&kept) {
        fs::write(run.attachments().join(name), b"{").unwrap();
    }
    one.remove(&run).unwrap();
    for name in left {
        assert!(!run.attachments().join(name).exists(), "{name}");
    }
    for name in kept {
        assert!(run.attachments().join(name).exists(), "{name}");
    }
}
