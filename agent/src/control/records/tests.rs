use cni_shim::{Bandwidth, RateLimit};

use super::*;

fn run_dir() -> (tempfile::TempDir, RunDir) {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::under(root.path());
    run.make().unwrap();
    (root, run)
}

fn subnets() -> Vec<IpNet> {
    vec!["10.244.1.0/24".parse().unwrap()]
}

fn record(container: &str, address: &str) -> Attachment {
    Attachment {
        version: Attachment::VERSION,
        container: container.into(),
        ifname: "eth0".into(),
        addresses: vec![address.parse().unwrap()],
        ..Attachment::default()
    }
}

fn limited(container: &str, address: &str) -> Attachment {
    Attachment {
        bandwidth: Some(Bandwidth {
            ingress: Some(RateLimit {
                rate: 1_000_000,
                burst: 100_000,
            }),
            egress: None,
        }),
        ..record(container, address)
    }
}

fn served(records: &Records) -> Vec<String> {
    let served = records.served();
    served.iter().map(|a| a.container.clone()).collect()
}

#[test]
fn a_record_that_was_refused_is_served_once_the_address_is_free() {
    let (_root, run) = run_dir();
    let mut records = Records::list(run.clone(), &subnets());
    record("a", "10.244.1.2/32").write(&run).unwrap();
    records.reread(&subnets(), "a", "eth0");
    record("b", "10.244.1.2/32").write(&run).unwrap();
    records.reread(&subnets(), "b", "eth0");
    assert_eq!(
        (served(&records), records.refused().len()),
        (vec!["a".to_owned()], 1)
    );
    assert!(records.refusal("b", "eth0").is_some());
    record("a", "10.244.1.2/32").remove(&run).unwrap();
    records.reread(&subnets(), "a", "eth0");
    assert_eq!(
        (served(&records), records.refused().len()),
        (vec!["b".to_owned()], 0)
    );
    // No call announces this one.
    record("b", "10.244.1.2/32").remove(&run).unwrap();
    assert!(records.have_changed());
    records.relist_if_changed(&subnets());
    assert!(served(&records).is_empty());
}

/// A record that cannot be read, or a directory, may be a living pod's: only a removed record is gone.
#[test]
fn only_a_removed_record_is_gone() {
    let (_root, run) = run_dir();
    let mut records = Records::list(run.clone(), &subnets());
    for (container, address) in [("a", "10.244.1.2/32"), ("b", "10.244.1.3/32")] {
        record(container, address).write(&run).unwrap();
        records.reread(&subnets(), container, "eth0");
    }
    let path = Attachment::path(&run, "a", "eth0").unwrap();
    std::fs::write(&path, "garbage").unwrap();
    records.relist(&subnets());
    assert_eq!(
        (served(&records), records.take_gone()),
        (vec!["b".to_owned()], vec![])
    );
    let (directory, aside) = (run.attachments(), run.path().join("aside"));
    std::fs::rename(&directory, &aside).unwrap();
    std::fs::write(&directory, "no directory").unwrap();
    records.relist(&subnets());
    assert_eq!(
        (served(&records), records.take_gone()),
        (vec!["b".to_owned()], vec![])
    );
    assert!(records.have_changed(), "it is listed again");
    std::fs::remove_file(&directory).unwrap();
    std::fs::rename(&aside, &directory).unwrap();
    record("b", "10.244.1.3/32").remove(&run).unwrap();
    records.reread(&subnets(), "b", "eth0");
    assert_eq!(records.take_gone(), [IpAddr::from([10, 244, 1, 3])]);
    assert!(records.take_gone().is_empty());
}

#[test]
fn an_attachment_with_a_limit_is_withheld_until_its_limit_is_in_force() {
    let (_root, run) = run_dir();
    limited("before", "10.244.1.2/32").write(&run).unwrap();
    let mut records = Records::list(run.clone(), &subnets());
    assert_eq!(served(&records), ["before"]);
    limited("new", "10.244.1.3/32").write(&run).unwrap();
    records.reread(&subnets(), "new", "eth0");
    assert_eq!(served(&records), ["before"]);
    // Another reading of the same record, however it comes about, changes nothing.
    records.relist(&subnets());
    assert_eq!(served(&records), ["before"]);
    let new = records.find("new", "eth0").unwrap().clone();
    assert!(records.is_withheld(&new));
    let withheld: Vec<IpAddr> = records.withheld_addresses().collect();
    assert_eq!(withheld, [IpAddr::from([10, 244, 1, 3])]);
    records.limit_is_in_force(key(&new));
    assert_eq!(records.withheld_addresses().count(), 0);
    assert_eq!(served(&records), ["before", "new"]);
    // An attachment of the same name that was made later is another.
    let later = Attachment {
        created: 7,
        ..limited("new", "10.244.1.3/32")
    };
    later.write(&run).unwrap();
    records.reread(&subnets(), "new", "eth0");
    assert_eq!(served(&records), ["before"]);
    records.limit_is_in_force(key(&new));
    assert_eq!(served(&records), ["before"]);
}
