use super::*;

const BELOW: &str = "/p/subnets/";
const N1: &str = r#"{"PublicIP":"192.0.2.1","PublicIPv6":null}"#;
const N2: &str = r#"{"PublicIP":"192.0.2.2","PublicIPv6":null}"#;

fn written(key: &str, value: &str, revision: i64) -> Written {
    Written {
        key: format!("{BELOW}{key}").into_bytes(),
        value: value.as_bytes().to_vec(),
        create_revision: revision,
        mod_revision: revision,
        lease: 0,
    }
}

fn table(records: &[(&str, &str)]) -> Table {
    let mut table = Table::new("/p");
    let list = records.iter().zip(1..);
    table.replace(
        list.map(|((key, value), revision)| written(key, value, revision))
            .collect(),
    );
    table
}

/// Names and public addresses of the candidates, and the places of what is refused.
fn seen(table: &Table) -> (Vec<String>, Vec<String>) {
    let (candidates, refused) = table.candidates(b"");
    let name =
        |candidate: Candidate| format!("{} {}", candidate.lease.name, candidate.lease.public);
    let place = |record: RefusedRecord| record.place.to_string();
    (
        candidates.into_iter().map(name).collect(),
        refused.into_iter().map(place).collect(),
    )
}

#[test]
fn records_come_in_the_order_of_their_creation() {
    let mut table = table(&[("10.244.9.0-24", N1)]);
    table.put(written("10.244.1.0-24", N2, 5));
    let (names, _) = seen(&table);
    assert_eq!(
        names,
        ["10.244.9.0-24 192.0.2.1", "10.244.1.0-24 192.0.2.2"]
    );
    let mut again = written("10.244.9.0-24", N1, 9);
    again.create_revision = 1;
    table.put(again);
    assert_eq!(seen(&table).0, names, "a renewal is no creation");
}

#[test]
fn a_change_that_comes_late_is_passed_over() {
    let mut table = table(&[]);
    table.put(written("10.244.1.0-24", N2, 7));
    table.put(written("10.244.1.0-24", N1, 5));
    table.delete(b"/p/subnets/10.244.1.0-24", 6);
    assert_eq!(seen(&table).0, ["10.244.1.0-24 192.0.2.2"]);
    table.delete(b"/p/subnets/10.244.1.0-24", 8);
    assert!(seen(&table).0.is_empty());
}

#[test]
fn a_restored_store_counts_its_revisions_anew() {
    let mut table = table(&[]);
    table.put(written("10.244.1.0-24", N1, 700));
    table.replace(vec![written("10.244.1.0-24", N2, 3)]);
    assert_eq!(seen(&table).0, ["10.244.1.0-24 192.0.2.2"]);
    table.replace(vec![]);
    assert!(seen(&table).0.is_empty());
}

#[test]
fn a_value_that_cannot_be_read_leaves_the_last_one_in_force() {
    let mut table = table(&[("10.244.1.0-24", N1)]);
    table.put(written("10.244.1.0-24", "{", 5));
    let (candidates, refused) = table.candidates(b"");
    assert_eq!((candidates.len(), refused.len()), (1, 1));
    assert_eq!(
        refused[0].place.to_string(),
        "etcd key /p/subnets/10.244.1.0-24"
    );
    assert!(
        refused[0]
            .reason
            .ends_with("what it said before stays in force")
    );
    // Over a new list too.
    table.replace(vec![written("10.244.1.0-24", "{", 5)]);
    assert_eq!(table.candidates(b"").0.len(), 1);
    table.put(written("10.244.1.0-24", N2, 6));
    assert_eq!(
        seen(&table),
        (vec!["10.244.1.0-24 192.0.2.2".to_owned()], vec![])
    );
    table.put(written("10.244.1.0-24", "", 7));
    table.delete(b"/p/subnets/10.244.1.0-24", 8);
    assert_eq!(seen(&table), (vec![], vec![]), "deleted");
}

#[test]
fn a_value_that_never_could_be_read_claims_its_subnet_all_the_same() {
    let table = table(&[("10.244.1.0-24", "hi")]);
    let (candidates, refused) = table.candidates(b"");
    assert_eq!((candidates.len(), refused.len()), (0, 1));
    assert_eq!(refused[0].subnets, ["10.244.1.0/24".parse().unwrap()]);
    assert_eq!(table.leased().len(), 1);
}

#[test]
fn a_key_that_cannot_be_read_is_reported_and_the_others_are_in_force() {
    let mut table = table(&[
        ("10.244.1.0-24hi", N1),
        ("", N1),
        ("a/b", N1),
        ("10.244.2.0-24", N2),
    ]);
    let mut binary = written("", N1, 8);
    binary.key.extend(b"\xff\n");
    table.put(binary);
    let (names, places) = seen(&table);
    assert_eq!(names, ["10.244.2.0-24 192.0.2.2"]);
    assert_eq!(
        places,
        [
            "etcd key /p/subnets/",
            "etcd key /p/subnets/10.244.1.0-24hi",
            "etcd key /p/subnets/a/b",
            "etcd key /p/subnets/\u{fffd}\\n",
        ]
    );
    let (_, refused) = table.candidates(b"");
    assert_eq!(refused[3].name, "__");
}

#[test]
fn keys_elsewhere_are_ignored() {
    let mut table = table(&[]);
    for key in ["/p/config", "/p/subnets", "/q/subnets/10.244.1.0-24", ""] {
        let mut elsewhere = written("", N1, 1);
        elsewhere.key = key.as_bytes().to_vec();
        table.put(elsewhere);
    }
    assert_eq!(seen(&table), (vec![], vec![]));
}

#[test]
fn the_number_of_keys_is_bounded() {
    let mut table = table(&[]);
    for number in 0..=MOST_KEYS + 1 {
        table.put(written(&format!("x{number}"), "", 1));
    }
    assert_eq!(table.records.len(), MOST_KEYS);
    let (_, refused) = table.candidates(b"");
    assert_eq!(refused.len(), MOST_KEYS + 1);
    assert!(refused[MOST_KEYS].reason.contains("more than 40000 keys"));
}

#[test]
fn of_two_keys_that_overlap_the_later_one_is_late() {
    let both = |v6: u8| format!("10.244.1.0-24&fd00:0:0:{v6}::-64");
    let mut table = table(&[]);
    table.put(written(&both(1), N1, 5));
    table.put(written(&both(2), N2, 6));
    let key = |v6: u8| format!("{BELOW}{}", both(v6)).into_bytes();
    assert!(table.is_late(&key(2)));
    assert!(!table.is_late(&key(1)));
    assert!(!table.is_late(&key(3)), "unknown");
}

#[test]
fn the_length_of_keys_and_values_is_bounded() {
    let mut table = table(&[]);
    let long = "x".repeat(1 << 20);
    table.put(written("10.244.1.0-24", &long, 1));
    table.put(written(&long, N1, 1));
    assert!(table.records.keys().all(|key| key.len() <= MOST_KEY_BYTES));
    let (_, refused) = table.candidates(b"");
    assert!(
        refused[0].reason.contains("more than 4096 bytes"),
        "{}",
        refused[0].reason
    );
    assert_eq!(refused.len(), 2);
    table.delete(format!("{BELOW}{long}").as_bytes(), 2);
    assert_eq!(table.records.len(), 1);
}
