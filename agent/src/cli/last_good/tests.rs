use super::*;
use crate::config::NetConf;
use crate::last_good;
use crate::registry;

const NET_CONF: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
const NODES: &str = r#"
[[node]]
name = "n1"
subnets = ["10.244.1.0/24"]
public-ip = "192.0.2.1"
[[node]]
name = "n2"
subnets = ["10.244.2.0/24", "10.244.9.0/24"]
public-ip = "192.0.2.2"
backend = "udp"
vtep-mac = "2e:fd:04:c7:59:61"
[[node]]
name = "n3"
subnets = ["10.244.3.0/24"]
public-ip = "2001:db8::3"
"#;

/// What is kept below a root where node n1 wrote its state so many seconds ago.
fn kept(ago: u64, shown: Shown) -> Kept {
    let root = tempfile::tempdir().unwrap();
    let net_conf = NetConf::parse(NET_CONF).unwrap();
    let leases = registry::parse(NODES, &net_conf).unwrap();
    let at = SystemTime::now() - std::time::Duration::from_secs(ago);
    let directory = root.path().join("var/lib/tartan");
    last_good::write(&directory, "n1", NET_CONF, &leases, at).unwrap();
    Kept::read(root.path(), shown, &View::default())
}

#[test]
fn each_command_shows_its_part_and_says_how_old_it_is() {
    // Of two units: half a minute more or less of a busy machine shows in neither.
    let node = kept(3 * 3600 + 4 * 60 + 30, Shown::Node);
    let (mark, body) = node.text.split_once("\n\n").unwrap();
    assert!(
        mark.starts_with("LAST GOOD STATE, 3 h 4 min old: "),
        "{mark}"
    );
    assert_eq!(
        body,
        "\
node      n1
underlay  192.0.2.1
subnets   10.244.1.0/24 of 10.244.0.0/16
format    vxlan
peers     2
"
    );
    let body = |kept: Kept| kept.text.split_once("\n\n").unwrap().1.to_owned();
    assert_eq!(
        body(kept(184, Shown::Peers)),
        "\
PEER  ADDRESS      FORMAT  SUBNETS                       VTEP MAC
n2    192.0.2.2    udp     10.244.2.0/24, 10.244.9.0/24  2e:fd:04:c7:59:61
n3    2001:db8::3  vxlan   10.244.3.0/24                 0a:74:70:5b:08:1a
2 peers
"
    );
    let routes = body(kept(184, Shown::Routes));
    for line in [
        "10.244.1.0/24  n1     -            -       this node\n",
        "10.244.9.0/24  n2     192.0.2.2    udp\n",
        "10.244.3.0/24  n3     2001:db8::3  vxlan   UNREACHABLE",
        "\n4 prefixes\n",
    ] {
        assert!(routes.contains(line), "{routes}");
    }
}

#[test]
fn the_document_has_the_part_of_its_command_alone() {
    let node = kept(7, Shown::Node).json;
    let age = node["age"].as_u64().unwrap();
    assert!((7..60).contains(&age), "{age}");
    assert_eq!(node["node"], "n1");
    assert_eq!(node["public_ip"], "192.0.2.1");
    assert_eq!(node["peer_count"], 2);
    assert!(node.get("peers").is_none() && node.get("routes").is_none());
    let peers = kept(7, Shown::Peers).json;
    assert_eq!(peers["peers"][0]["name"], "n2");
    assert_eq!(peers["peers"][0]["vtep_mac"], "2e:fd:04:c7:59:61");
    assert!(peers.get("routes").is_none());
    let routes = kept(7, Shown::Routes).json;
    assert_eq!(routes["routes"][0]["kind"], "own");
    assert_eq!(routes["routes"][1]["via"], "192.0.2.2");
    assert_eq!(routes["routes"][2]["kind"], "no-way");
}

#[test]
fn without_a_state_nothing_shows_and_a_damaged_one_is_named() {
    let root = tempfile::tempdir().unwrap();
    let read = || Kept::read(root.path(), Shown::Node, &View::default());
    let none = read();
    assert_eq!((none.text, none.json), (String::new(), Value::Null));
    assert_eq!(none.refused, None);
    let directory = root.path().join("var/lib/tartan");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("last-good.json"), "{}").unwrap();
    let damaged = read();
    assert_eq!((damaged.text, damaged.json), (String::new(), Value::Null));
    let refused = damaged.refused.unwrap();
    assert!(refused.contains("last-good.json is refused"), "{refused}");
}
