//! The file registry with real files: every way in which editors and programs replace one.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use futures_util::FutureExt;
use tartan::config::NetConf;
use tartan::registry::{FileRegistry, Registry, RegistryPlace, Update};
use tempfile::TempDir;
use tokio::time::timeout;

const OWN: &str =
    "[[node]]\nname = \"n1\"\nsubnets = [\"10.244.1.0/24\"]\npublic-ip = \"192.0.2.1\"\n";
const PEER: &str =
    "[[node]]\nname = \"n2\"\nsubnets = [\"10.244.2.0/24\"]\npublic-ip = \"192.0.2.2\"\n";

fn both() -> String {
    format!("{OWN}{PEER}")
}

struct Bench {
    directory: TempDir,
    registry: Registry,
}

impl Bench {
    fn open(name: &str, prepare: impl FnOnce(&Path)) -> Bench {
        let directory = tempfile::tempdir().unwrap();
        prepare(directory.path());
        let net_conf = NetConf::parse(r#"{"Network":"10.244.0.0/16"}"#).unwrap();
        let file = FileRegistry::watch(&directory.path().join(name), &net_conf, "n1").unwrap();
        Bench {
            directory,
            registry: Registry::File(Box::new(file)),
        }
    }

    /// Another registry of the same file.
    fn again(&self, name: &str) -> Registry {
        let net_conf = NetConf::parse(r#"{"Network":"10.244.0.0/16"}"#).unwrap();
        let file = FileRegistry::watch(&self.path(name), &net_conf, "n1").unwrap();
        Registry::File(Box::new(file))
    }

    fn with(text: &str) -> Bench {
        Bench::open("nodes.toml", |directory| {
            fs::write(directory.join("nodes.toml"), text).unwrap()
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The names of the next list, or why it was refused.
    async fn next(&mut self) -> Result<Vec<String>, (Option<usize>, String)> {
        let update = timeout(Duration::from_secs(5), self.registry.next())
            .await
            .expect("an update in time");
        match update {
            Update::Leases(leases) => Ok(leases.into_iter().map(|lease| lease.name).collect()),
            Update::Refused { place, reason } => {
                let RegistryPlace::File { line, .. } = place else {
                    panic!("{place}");
                };
                Err((line, reason))
            }
            other => panic!("{other:?}"),
        }
    }

    async fn silent(&mut self) {
        let update = timeout(Duration::from_millis(600), self.registry.next()).await;
        assert!(update.is_err(), "{update:?}");
    }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(test);
}

#[test]
fn a_rename_over_the_file_is_noticed() {
    run(async {
        let mut bench = Bench::with(OWN);
        assert_eq!(bench.next().await.unwrap(), ["n1"]);
        fs::write(bench.path("new"), both()).unwrap();
        fs::rename(bench.path("new"), bench.path("nodes.toml")).unwrap();
        assert_eq!(bench.next().await.unwrap(), ["n1", "n2"]);
    });
}

#[test]
fn a_broken_edit_in_place_is_refused_and_a_corrected_one_accepted() {
    run(async {
        let mut bench = Bench::with(OWN);
        bench.next().await.unwrap();
        fs::write(bench.path("nodes.toml"), format!("{OWN}\nsubnet = 1")).unwrap();
        let (line, reason) = bench.next().await.unwrap_err();
        assert_eq!(
            (line, reason.as_str()),
            (Some(6), "unknown key \"subnet\", did you mean \"subnets\"?")
        );
        fs::write(bench.path("nodes.toml"), both()).unwrap();
        assert_eq!(bench.next().await.unwrap(), ["n1", "n2"]);
    });
}

#[test]
fn a_refusal_names_the_file_and_the_line() {
    run(async {
        let mut bench = Bench::with(&format!("{OWN}\nsubnet = 1"));
        let path = bench.path("nodes.toml").display().to_string();
        assert_eq!(bench.registry.describe(), format!("file {path}"));
        assert_eq!(bench.registry.place().to_string(), path);
        let Update::Refused { place, .. } = bench.registry.next().await else {
            panic!("accepted")
        };
        assert_eq!(place.to_string(), format!("{path} line 6"));
    });
}

#[test]
fn the_same_list_after_a_refusal_is_reported_again() {
    run(async {
        let mut bench = Bench::with(OWN);
        bench.next().await.unwrap();
        fs::write(bench.path("nodes.toml"), "?").unwrap();
        bench.next().await.unwrap_err();
        fs::write(bench.path("nodes.toml"), OWN).unwrap();
        assert_eq!(bench.next().await.unwrap(), ["n1"]);
    });
}

#[test]
fn a_configmap_swap_is_noticed() {
    run(async {
        let version = |directory: &Path, name: &str, text: &str| {
            fs::create_dir(directory.join(name)).unwrap();
            fs::write(directory.join(name).join("nodes.toml"), text).unwrap();
        };
        // The layout of a kubelet volume: FILE -> ..data/FILE, ..data -> ..VERSION.
        let mut bench = Bench::open("nodes.toml", |directory| {
            version(directory, "..1", OWN);
            symlink("..1", directory.join("..data")).unwrap();
            symlink("..data/nodes.toml", directory.join("nodes.toml")).unwrap();
        });
        assert_eq!(bench.next().await.unwrap(), ["n1"]);
        version(bench.directory.path(), "..2", &both());
        symlink("..2", bench.path("..data_tmp")).unwrap();
        fs::rename(bench.path("..data_tmp"), bench.path("..data")).unwrap();
        fs::remove_dir_all(bench.path("..1")).unwrap();
        assert_eq!(bench.next().await.unwrap(), ["n1", "n2"]);
    });
}

#[test]
fn a_replaced_link_is_noticed() {
    run(async {
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join("a"), OWN).unwrap();
        fs::write(elsewhere.path().join("b"), both()).unwrap();
        let mut bench = Bench::open("nodes.toml", |directory| {
            symlink(elsewhere.path().join("a"), directory.join("nodes.toml")).unwrap();
        });
        assert_eq!(bench.next().await.unwrap(), ["n1"]);
        fs::remove_file(bench.path("nodes.toml")).unwrap();
        symlink(elsewhere.path().join("b"), bench.path("nodes.toml")).unwrap();
        assert_eq!(bench.next().await.unwrap(), ["n1", "n2"]);
    });
}

#[test]
fn a_list_without_this_node_is_refused() {
    run(async {
        let mut bench = Bench::with(PEER);
        let (line, reason) = bench.next().await.unwrap_err();
        assert_eq!(line, None);
        assert!(
            reason.contains("no node is named \"n1\"") && reason.contains("node-name"),
            "{reason}"
        );
        fs::write(bench.path("nodes.toml"), "").unwrap();
        bench.silent().await;
    });
}

#[test]
fn another_node_with_this_nodes_address_is_refused() {
    run(async {
        let mut bench = Bench::with(&both().replace("192.0.2.2", "192.0.2.1"));
        let (_, reason) = bench.next().await.unwrap_err();
        assert!(
            reason.contains("n2 has this node's public-ip 192.0.2.1"),
            "{reason}"
        );
    });
}

#[test]
fn another_node_with_this_nodes_second_address_is_refused() {
    run(async {
        let with_v6 = |node: &str, v6: &str| format!("{node}public-ipv6 = \"{v6}\"\n");
        let text = with_v6(OWN, "2001:db8::1") + &PEER.replace("192.0.2.2", "2001:db8::1");
        let mut bench = Bench::with(&text);
        let (_, reason) = bench.next().await.unwrap_err();
        assert!(
            reason.contains("n2 and n1 share public-ip 2001:db8::1"),
            "{reason}"
        );
    });
}

/// As of a node that took over flannel's two devices.
#[test]
fn this_node_may_have_a_mac_for_each_family() {
    run(async {
        let macs = "vtep-mac = \"2e:fd:04:c7:59:61\"\nvtep-mac-v6 = \"2e:fd:04:c7:59:62\"\n";
        let mut bench = Bench::with(&format!("{OWN}{macs}"));
        assert_eq!(bench.next().await.unwrap(), ["n1"]);
    });
}

#[test]
fn a_removed_file_is_refused_and_a_restored_one_accepted() {
    run(async {
        let mut bench = Bench::with(OWN);
        bench.next().await.unwrap();
        fs::remove_file(bench.path("nodes.toml")).unwrap();
        let (_, reason) = bench.next().await.unwrap_err();
        assert!(
            reason.contains("cannot read") && reason.contains("No such file"),
            "{reason}"
        );
        fs::write(bench.path("nodes.toml"), OWN).unwrap();
        assert_eq!(bench.next().await.unwrap(), ["n1"]);
    });
}

#[test]
fn a_missing_directory_is_watched_once_it_exists() {
    run(async {
        let mut bench = Bench::open("later/nodes.toml", |_| {});
        assert!(bench.next().await.unwrap_err().1.contains("cannot read"));
        fs::create_dir(bench.path("later")).unwrap();
        fs::write(bench.path("later/nodes.toml"), OWN).unwrap();
        assert_eq!(bench.next().await.unwrap(), ["n1"]);
        // Now the directory is watched, not polled.
        fs::write(bench.path("later/nodes.toml"), both()).unwrap();
        assert_eq!(bench.next().await.unwrap(), ["n1", "n2"]);
    });
}

#[test]
fn a_replaced_directory_is_watched_again() {
    run(async {
        let mut bench = Bench::open("d/nodes.toml", |directory| {
            fs::create_dir(directory.join("d")).unwrap();
            fs::write(directory.join("d/nodes.toml"), OWN).unwrap();
        });
        bench.next().await.unwrap();
        fs::create_dir(bench.path("e")).unwrap();
        fs::write(bench.path("e/nodes.toml"), both()).unwrap();
        fs::rename(bench.path("d"), bench.path("old")).unwrap();
        fs::rename(bench.path("e"), bench.path("d")).unwrap();
        assert_eq!(bench.next().await.unwrap(), ["n1", "n2"]);
        fs::write(bench.path("old/nodes.toml"), "?").unwrap();
        bench.silent().await;
        fs::write(bench.path("d/nodes.toml"), OWN).unwrap();
        assert_eq!(bench.next().await.unwrap(), ["n1"]);
    });
}

#[test]
fn a_write_without_a_change_is_not_reported() {
    run(async {
        let mut bench = Bench::with(OWN);
        bench.next().await.unwrap();
        fs::write(bench.path("other.toml"), "?").unwrap();
        fs::write(bench.path("nodes.toml"), format!("# by hand\n{OWN}")).unwrap();
        bench.silent().await;
    });
}

#[test]
fn a_file_is_read_after_its_writer_pauses() {
    run(async {
        let mut bench = Bench::with(OWN);
        bench.next().await.unwrap();
        let path = bench.path("nodes.toml");
        // Five closes, 100 ms apart, each but the last leaving a broken file.
        let writer = tokio::spawn(async move {
            for _ in 0..4 {
                fs::write(&path, "[[node]").unwrap();
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            fs::write(&path, both()).unwrap();
        });
        assert_eq!(bench.next().await.unwrap(), ["n1", "n2"]);
        writer.await.unwrap();
    });
}

#[test]
fn a_list_being_written_is_not_read() {
    run(async {
        let mut bench = Bench::with(&both());
        assert_eq!(bench.next().await.unwrap(), ["n1", "n2"]);
        let path = bench.path("nodes.toml");
        let mut writer = fs::File::create(&path).unwrap();
        writer.write_all(OWN.as_bytes()).unwrap();
        // The parser accepts half a list. Neither a change of mode nor time may lead to reading it.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let third = PEER
            .replace("n2", "n3")
            .replace("2.0/24", "3.0/24")
            .replace("2.2\"", "2.3\"");
        let update = timeout(Duration::from_millis(2500), bench.registry.next()).await;
        assert!(update.is_err(), "{update:?}");
        writer
            .write_all(format!("{PEER}{third}").as_bytes())
            .unwrap();
        drop(writer);
        assert_eq!(bench.next().await.unwrap(), ["n1", "n2", "n3"]);
    });
}

#[test]
fn a_file_that_becomes_readable_is_read() {
    run(async {
        let mut bench = Bench::open("nodes.toml", |directory| {
            // Root may read every file, so a file of invalid text stands for an unreadable one.
            fs::write(directory.join("nodes.toml"), b"\xff").unwrap();
        });
        bench.next().await.unwrap_err();
        // Written through another directory, so that the watch reports the change of mode alone.
        let elsewhere = tempfile::tempdir_in(bench.directory.path()).unwrap();
        fs::hard_link(bench.path("nodes.toml"), elsewhere.path().join("l")).unwrap();
        bench.silent().await;
        fs::write(elsewhere.path().join("l"), OWN).unwrap();
        bench.silent().await;
        fs::set_permissions(bench.path("nodes.toml"), fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(bench.next().await.unwrap(), ["n1"]);
    });
}

#[test]
fn without_a_watch_a_list_counts_after_one_second_without_change() {
    run(async {
        let mut bench = Bench::open("later/nodes.toml", |_| {});
        bench.next().await.unwrap_err();
        fs::create_dir(bench.path("later")).unwrap();
        let path = bench.path("later/nodes.toml");
        let mut writer = fs::File::create(&path).unwrap();
        writer.write_all(OWN.as_bytes()).unwrap();
        let rest = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            writer.write_all(PEER.as_bytes()).unwrap();
        });
        assert_eq!(bench.next().await.unwrap(), ["n1", "n2"]);
        rest.await.unwrap();
    });
}

#[test]
fn a_file_is_read_within_two_seconds_of_constant_writing() {
    run(async {
        let mut bench = Bench::with(OWN);
        bench.next().await.unwrap();
        let path = bench.path("nodes.toml");
        let start = Instant::now();
        let writer = tokio::spawn(async move {
            loop {
                fs::write(&path, both()).unwrap();
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        assert_eq!(bench.next().await.unwrap(), ["n1", "n2"]);
        assert!(
            start.elapsed() >= Duration::from_millis(1900),
            "{:?}",
            start.elapsed()
        );
        writer.abort();
    });
}

#[test]
fn a_first_list_counts_at_once_where_nothing_has_changed_the_file_for_two_seconds() {
    run(async {
        let prepare = |directory: &Path| {
            fs::write(directory.join("nodes.toml"), OWN).unwrap();
            fs::File::create(directory.join("later.toml"))
                .and_then(|mut file| {
                    file.write_all(OWN.as_bytes())?;
                    file.set_modified(SystemTime::now() + Duration::from_secs(60))
                })
                .unwrap();
        };
        let mut young = Bench::open("nodes.toml", prepare);
        assert_eq!(young.registry.next().now_or_never(), None);
        assert_eq!(young.next().await.unwrap(), ["n1"]);
        let old = Bench::open("nodes.toml", prepare);
        let to_come = Bench::open("later.toml", prepare);
        tokio::time::sleep(Duration::from_millis(2100)).await;
        // As the next services find them.
        let mut again = old.again("nodes.toml");
        assert!(again.next().now_or_never().is_some());
        fs::write(old.path("nodes.toml"), both()).unwrap();
        let Update::Leases(leases) = again.next().await else {
            panic!("refused")
        };
        assert_eq!(leases.len(), 2, "it is watched all the same");
        assert_eq!(to_come.again("later.toml").next().now_or_never(), None);
        assert_eq!(old.again("nodes.toml").next().now_or_never(), None);
    });
}

#[test]
fn a_device_or_an_oversized_file_is_refused_without_reading_it() {
    run(async {
        let mut bench = Bench::open("nodes.toml", |directory| {
            symlink("/dev/zero", directory.join("nodes.toml")).unwrap();
        });
        assert!(
            bench
                .next()
                .await
                .unwrap_err()
                .1
                .contains("is not a regular file")
        );
        fs::remove_file(bench.path("nodes.toml")).unwrap();
        let sparse = fs::File::create(bench.path("sparse")).unwrap();
        sparse.set_len((16 << 20) + 1).unwrap();
        fs::rename(bench.path("sparse"), bench.path("nodes.toml")).unwrap();
        assert!(
            bench
                .next()
                .await
                .unwrap_err()
                .1
                .contains("is larger than 16777216 bytes")
        );
        fs::write(bench.path("nodes.toml"), b"a\n\xff").unwrap();
        assert_eq!(bench.next().await.unwrap_err().0, Some(2));
    });
}

#[test]
fn a_path_without_a_file_name_is_refused() {
    run(async {
        let net_conf = NetConf::parse(r#"{"Network":"10.244.0.0/16"}"#).unwrap();
        let message = FileRegistry::watch(Path::new("/"), &net_conf, "n1")
            .err()
            .unwrap()
            .to_string();
        assert!(message.contains("names no file"), "{message}");
    });
}
