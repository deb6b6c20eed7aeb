use proptest::prelude::*;
use std::os::unix::fs::PermissionsExt;

use super::*;

fn pair(network: &str, subnet: &str) -> Option<(IpNet, IpNet)> {
    Some((network.parse().unwrap(), subnet.parse().unwrap()))
}

fn env(mtu: u16) -> SubnetEnv {
    SubnetEnv {
        v4: pair("10.244.0.0/16", "10.244.1.0/24"),
        v6: None,
        mtu,
        masquerade: true,
    }
}

#[test]
fn a_real_flanneld_wrote_the_same_bytes() {
    // Written by flanneld v0.20.2 with -ip-masq on nodes of these subnets.
    for (mtu, file) in [
        (1472, include_str!("fixtures/subnet-udp.env")),
        (1450, include_str!("fixtures/subnet-vxlan.env")),
    ] {
        assert_eq!(env(mtu).to_string(), file);
    }
}

#[test]
fn both_families_and_no_masquerade_are_as_flannel_writes_them() {
    let dual = SubnetEnv {
        v6: pair("2001:cafe:42::/56", "2001:cafe:42:1::/64"),
        masquerade: false,
        ..env(1450)
    };
    let text = "FLANNEL_NETWORK=10.244.0.0/16\n\
        FLANNEL_SUBNET=10.244.1.1/24\n\
        FLANNEL_IPV6_NETWORK=2001:cafe:42::/56\n\
        FLANNEL_IPV6_SUBNET=2001:cafe:42:1::1/64\n\
        FLANNEL_MTU=1450\n\
        FLANNEL_IPMASQ=false\n";
    assert_eq!(dual.to_string(), text);
    let only_v6 = SubnetEnv { v4: None, ..dual };
    let lines: Vec<&str> = text.lines().skip(2).collect();
    assert_eq!(only_v6.to_string(), lines.join("\n") + "\n");
}

proptest! {
    #[test]
    fn the_subnet_is_shown_by_its_first_host(bits in any::<u32>(), length in 8..=30_u8) {
        let subnet = ipnet::Ipv4Net::new(bits.into(), length).unwrap().trunc();
        let shown = with_gateway(IpNet::V4(subnet));
        let parsed: ipnet::Ipv4Net = shown.parse().unwrap();
        prop_assert_eq!(Some(parsed.addr()), subnet.hosts().next());
        prop_assert_eq!(parsed.trunc(), subnet);
    }
}

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
    write(&path, "another process's").unwrap();
    assert!(matches!(clear(&state), Cleared::Foreign(_)));
    assert!(path.exists());
}

#[test]
fn a_directory_with_other_files_or_that_we_did_not_make_stays() {
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
    fs::write(path.with_file_name(".77.subnet.env.new"), "half").unwrap();
    assert!(remove(&note(&path, &["one"])).unwrap());
    assert!(!path.parent().unwrap().exists());
}
