use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use super::super::uninstall::{UninstallOptions, uninstall};
use super::*;

struct Rig {
    root: tempfile::TempDir,
}

impl Rig {
    fn new() -> Rig {
        let rig = Rig {
            root: tempfile::tempdir().unwrap(),
        };
        rig.program("v1");
        rig
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    /// A plugin that answers VERSION, of a version of its own.
    fn program(&self, version: &str) {
        let text = format!("#!/bin/sh\n# {version}\n{}", says(&["1.0.0"]));
        executable(&self.at("tartan-cni"), &text);
    }

    /// A plugin beside ours that speaks these versions.
    fn chained(&self, name: &str, versions: &[&str]) {
        let text = format!("#!/bin/sh\n{}", says(versions));
        executable(&self.at("opt/cni/bin").join(name), &text);
    }

    fn installed(&self) -> serde_json::Value {
        let path = self.at("etc/cni/net.d/10-tartan.conflist");
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    /// Changes our list as a person would.
    fn edit(&self) {
        let path = self.at("etc/cni/net.d/10-tartan.conflist");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text + "\n").unwrap();
    }

    fn plan(&self) -> InstallOptions {
        InstallOptions {
            root: self.root.path().to_owned(),
            program: self.at("tartan-cni"),
            bin_dir: self.at("opt/cni/bin"),
            conf_dir: self.at("etc/cni/net.d"),
            conf_name: "10-tartan.conflist".to_owned(),
            network: "tartan".to_owned(),
            replace_conf: false,
            dry_run: false,
        }
    }

    fn removal(&self) -> UninstallOptions {
        UninstallOptions {
            root: self.root.path().to_owned(),
            bin_dir: None,
            conf_dir: None,
            force: false,
            dry_run: false,
        }
    }

    fn conf(&self, name: &str, text: &str) -> PathBuf {
        let path = self.at("etc/cni/net.d").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }
}

fn says(versions: &[&str]) -> String {
    let answer = serde_json::json!({ "supportedVersions": versions });
    format!("echo '{answer}'\n")
}

fn executable(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn actions(done: &Report) -> Vec<(Action, &str)> {
    let name = |step: &FileStep| step.file.file_name().unwrap().to_str().unwrap().to_owned();
    let named = done.steps.iter().map(|step| {
        let name: &'static str = Box::leak(name(step).into_boxed_str());
        (step.action, name)
    });
    named.collect()
}

#[test]
fn the_program_comes_first_and_a_second_time_nothing_is_done() {
    let rig = Rig::new();
    let first = install(&rig.plan()).unwrap();
    assert_eq!(
        actions(&first),
        [
            (Action::Installed, "tartan-cni"),
            (Action::Installed, "10-tartan.conflist")
        ]
    );
    let second = install(&rig.plan()).unwrap();
    assert_eq!(
        actions(&second),
        [
            (Action::Unchanged, "tartan-cni"),
            (Action::Unchanged, "10-tartan.conflist")
        ]
    );
    rig.program("v2");
    let third = install(&rig.plan()).unwrap();
    assert_eq!(third.steps[0].action, Action::Replaced);
    assert!(
        fs::read_to_string(rig.at("opt/cni/bin/tartan-cni"))
            .unwrap()
            .contains("v2")
    );
}

#[test]
fn a_program_that_is_no_plugin_replaces_none() {
    let rig = Rig::new();
    install(&rig.plan()).unwrap();
    executable(&rig.at("tartan-cni"), "#!/bin/sh\necho hello\n");
    let error = install(&rig.plan()).unwrap_err();
    assert!(matches!(error, CniError::NotOurs { .. }), "{error}");
    assert!(error.to_string().contains("--from"));
    assert!(
        fs::read_to_string(rig.at("opt/cni/bin/tartan-cni"))
            .unwrap()
            .contains("v1")
    );
}

#[test]
fn what_people_wrote_is_kept_and_what_is_not_ours_refused() {
    let rig = Rig::new();
    let ours = r#"{"name":"mine","plugins":[{"type":"tartan-cni"}]}"#;
    let path = rig.conf("10-tartan.conflist", ours);
    let done = install(&rig.plan()).unwrap();
    assert_eq!(done.steps[1].action, Action::Kept);
    assert_eq!(fs::read_to_string(&path).unwrap(), ours);
    for foreign in [r#"{"name":"x","plugins":[{"type":"bridge"}]}"#, "{"] {
        fs::write(&path, foreign).unwrap();
        fs::remove_file(rig.at("opt/cni/bin/tartan-cni")).unwrap();
        let error = install(&rig.plan()).unwrap_err();
        assert!(matches!(error, CniError::Foreign { .. }), "{error}");
        assert!(
            !rig.at("opt/cni/bin/tartan-cni").exists(),
            "checked before anything is done"
        );
        let plan = InstallOptions {
            replace_conf: true,
            ..rig.plan()
        };
        assert_eq!(install(&plan).unwrap().steps[1].action, Action::Replaced);
    }
}

#[test]
fn a_file_that_sorts_before_is_named_and_one_behind_is_not() {
    let rig = Rig::new();
    rig.conf("05-first.conf", r#"{"name":"first","type":"ptp"}"#);
    rig.conf("06-broken.conflist", "{");
    rig.conf(
        "87-podman-bridge.conflist",
        r#"{"name":"podman","plugins":[]}"#,
    );
    let warnings = install(&rig.plan()).unwrap().warnings;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("05-first.conf") && warnings[0].contains("\"first\""));
    assert!(warnings[1].contains("06-broken.conflist") && warnings[1].contains("correct it"));
}

#[test]
fn host_ports_are_served_where_portmap_is_and_what_is_missing_is_named() {
    let rig = Rig::new();
    rig.chained("portmap", &VERSIONS);
    assert_eq!(install(&rig.plan()).unwrap().warnings, [""; 0]);
    let conf = fs::read_to_string(rig.at("etc/cni/net.d/10-tartan.conflist")).unwrap();
    assert!(conf.contains("portmap"), "{conf}");
    fs::remove_file(rig.at("opt/cni/bin/portmap")).unwrap();
    rig.edit();
    let warnings = install(&rig.plan()).unwrap().warnings;
    assert!(
        warnings[0].contains("the plugin portmap, which is not in"),
        "{warnings:?}"
    );
}

#[test]
fn runtimes_are_offered_what_every_plugin_of_the_list_speaks() {
    let rig = Rig::new();
    rig.chained("portmap", &["0.3.1", "0.4.0", "1.0.0"]);
    assert_eq!(install(&rig.plan()).unwrap().warnings, [""; 0]);
    assert_eq!(rig.installed()["cniVersion"], "1.0.0");
    assert_eq!(
        rig.installed()["cniVersions"],
        serde_json::json!(["0.4.0", "1.0.0"])
    );
    // A newer one is as good a reason to install again as a newer plugin of ours.
    rig.chained("portmap", &["0.4.0", "1.0.0", "1.1.0"]);
    install(&rig.plan()).unwrap();
    assert_eq!(rig.installed()["cniVersions"], serde_json::json!(VERSIONS));
    // An older one makes a list of that kind one that fails pods, where it stays because it was changed.
    rig.chained("portmap", &["0.4.0", "1.0.0"]);
    rig.edit();
    let warnings = install(&rig.plan()).unwrap().warnings;
    assert!(
        warnings[0]
            .contains("offers runtimes version 1.1.0, which the plugin portmap does not speak"),
        "{warnings:?}"
    );
}

#[test]
fn a_portmap_that_cannot_work_is_left_out_and_named() {
    let rig = Rig::new();
    for (script, why) in [
        ("#!/bin/sh\nexit 1\n".to_owned(), "exit status: 1"),
        (
            format!("#!/bin/sh\n{}", says(&["0.2.0"])),
            "none of the versions 0.4.0",
        ),
    ] {
        executable(&rig.at("opt/cni/bin/portmap"), &script);
        let warnings = install(&rig.plan()).unwrap().warnings;
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(
            warnings[0].contains("no host port is served") && warnings[0].contains(why),
            "{warnings:?}"
        );
        assert_eq!(rig.installed()["plugins"].as_array().unwrap().len(), 1);
        assert_eq!(rig.installed()["cniVersions"], serde_json::json!(VERSIONS));
    }
}

#[test]
fn a_second_limiter_is_named() {
    let rig = Rig::new();
    let chained = r#"{"type":"bandwidth","capabilities":{"bandwidth":true}}"#;
    let ours = r#"{"type":"tartan-cni","capabilities":{"bandwidth":true}}"#;
    let conf = format!(r#"{{"name":"tartan","plugins":[{ours},{chained}]}}"#);
    rig.conf("10-tartan.conflist", &conf);
    rig.chained("bandwidth", &VERSIONS);
    let warnings = install(&rig.plan()).unwrap().warnings;
    assert!(warnings[0].contains("the plugin bandwidth"), "{warnings:?}");
}

#[test]
fn names_that_no_runtime_reads_are_refused() {
    let rig = Rig::new();
    for name in ["x", "a/b.conflist", ".x.conflist", "10-tartan.conf"] {
        let plan = InstallOptions {
            conf_name: name.to_owned(),
            ..rig.plan()
        };
        assert!(
            matches!(install(&plan), Err(CniError::ConfName(_))),
            "{name}"
        );
    }
    let plan = InstallOptions {
        network: "a b".to_owned(),
        ..rig.plan()
    };
    assert!(matches!(install(&plan), Err(CniError::Network(_))));
}

#[test]
fn nothing_is_done_dry_and_nothing_of_ours_is_left_in_the_end() {
    let rig = Rig::new();
    let dry = InstallOptions {
        dry_run: true,
        ..rig.plan()
    };
    let planned = install(&dry).unwrap();
    assert_eq!(planned.steps.len(), 2);
    assert!(!rig.at("opt").exists() && !rig.at("etc").exists());
    let foreign = rig.conf(
        "10-flannel.conflist",
        r#"{"name":"cbr0","plugins":[{"type":"flannel"}]}"#,
    );
    executable(&rig.at("opt/cni/bin/flannel"), "");
    assert_eq!(install(&rig.plan()).unwrap().steps, planned.steps);
    executable(&rig.at("opt/cni/bin/.77.tartan-cni.new"), "half");
    let dry = UninstallOptions {
        dry_run: true,
        ..rig.removal()
    };
    let planned = uninstall(&dry).unwrap();
    assert!(rig.at("opt/cni/bin/tartan-cni").exists());
    let done = uninstall(&rig.removal()).unwrap();
    assert_eq!(
        actions(&done),
        [
            (Action::Removed, "10-tartan.conflist"),
            (Action::Removed, ".77.tartan-cni.new"),
            (Action::Removed, "tartan-cni"),
        ]
    );
    assert_eq!(planned.steps, done.steps);
    assert!(foreign.exists() && rig.at("opt/cni/bin/flannel").exists());
    assert_eq!(fs::read_dir(rig.at("opt/cni/bin")).unwrap().count(), 1);
    let again = uninstall(&rig.removal()).unwrap();
    assert_eq!(actions(&again), [(Action::Absent, "tartan-cni")]);
}

#[test]
fn attached_pods_keep_it() {
    let rig = Rig::new();
    install(&rig.plan()).unwrap();
    let run = cni_shim::RunDir::under(rig.root.path());
    run.make().unwrap();
    fs::write(run.attachments().join("c1:eth0.json"), "{").unwrap();
    let error = uninstall(&rig.removal()).unwrap_err();
    assert!(matches!(error, CniError::Attached { count: 1 }), "{error}");
    assert!(rig.at("opt/cni/bin/tartan-cni").exists());
    let forced = UninstallOptions {
        force: true,
        ..rig.removal()
    };
    assert_eq!(uninstall(&forced).unwrap().steps.len(), 2);
}

#[test]
fn records_that_cannot_be_counted_keep_it_too() {
    let rig = Rig::new();
    install(&rig.plan()).unwrap();
    let run = cni_shim::RunDir::under(rig.root.path());
    fs::create_dir_all(run.path()).unwrap();
    fs::write(run.attachments(), "no directory").unwrap();
    let error = uninstall(&rig.removal()).unwrap_err();
    assert!(matches!(error, CniError::Records { .. }), "{error}");
    assert!(error.to_string().contains("--force"));
    assert!(rig.at("opt/cni/bin/tartan-cni").exists());
    assert!(rig.at("etc/cni/net.d/10-tartan.conflist").exists());
}

#[test]
fn a_pod_that_comes_between_keeps_it_and_gets_its_configuration_back() {
    for plugin in [Plugin::AtWork, Plugin::Replaced, Plugin::Late] {
        a_pod_comes_while_it_is_uninstalled(plugin);
    }
}

/// The plugin that attaches it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Plugin {
    /// Runs already.
    AtWork,
    /// Runs, and is not the one that is installed any more.
    Replaced,
    /// Is started by a runtime that had read the configuration before.
    Late,
}

fn a_pod_comes_while_it_is_uninstalled(kind: Plugin) {
    let rig = Rig::new();
    install(&rig.plan()).unwrap();
    let run = cni_shim::RunDir::under(rig.root.path());
    run.make().unwrap();
    let (program, conf) = (
        rig.at("opt/cni/bin/tartan-cni"),
        rig.at("etc/cni/net.d/10-tartan.conflist"),
    );
    let before = fs::read(&conf).unwrap();
    // A runtime has read the configuration; the plugin that it started is at work, and attaches a pod.
    fs::remove_file(&program).unwrap();
    fs::copy("/bin/sleep", &program).unwrap();
    // A program that another test is just starting holds the copy open for writing until its exec.
    let to_start = program.clone();
    let mut tries = (0..500).map(move |_| {
        std::thread::sleep(Duration::from_millis(10));
        Command::new(&to_start).arg("100").spawn()
    });
    let busy = |started: &io::Result<_>| matches!(started, Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy);
    let mut start = move || tries.find(|started| !busy(started)).unwrap().unwrap();
    let mut plugin = (kind != Plugin::Late).then(&mut start);
    if kind == Plugin::Replaced {
        fs::remove_file(&program).unwrap();
        fs::copy("/bin/sleep", &program).unwrap();
    }
    let record = run.attachments().join("c1:eth0.json");
    let conf_now = conf.clone();
    let attaching = std::thread::spawn(move || {
        while conf_now.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut plugin = plugin.take().unwrap_or_else(start);
        if kind == Plugin::Late {
            std::thread::sleep(Duration::from_millis(100));
        }
        fs::write(record, "{").unwrap();
        plugin.kill().unwrap();
        plugin.wait().unwrap();
    });
    let refused = uninstall(&rig.removal());
    assert!(
        matches!(refused, Err(CniError::Attached { count: 1 })),
        "{kind:?}: {refused:?}"
    );
    attaching.join().unwrap();
    assert_eq!(fs::read(&conf).unwrap(), before);
    assert!(program.exists());
    assert_eq!(fs::read_dir(rig.at("etc/cni/net.d")).unwrap().count(), 1);
}

#[test]
fn a_removal_that_was_ended_in_the_middle_is_taken_up() {
    let rig = Rig::new();
    install(&rig.plan()).unwrap();
    let conf = rig.at("etc/cni/net.d/10-tartan.conflist");
    let aside = rig.at("etc/cni/net.d/10-tartan.conflist.uninstalled");
    // A pod is there: runtimes get their configuration back.
    fs::rename(&conf, &aside).unwrap();
    let run = cni_shim::RunDir::under(rig.root.path());
    run.make().unwrap();
    let record = run.attachments().join("c1:eth0.json");
    fs::write(&record, "{").unwrap();
    uninstall(&rig.removal()).unwrap_err();
    assert!(conf.exists() && !aside.exists());
    // None is there: nothing of ours stays.
    fs::rename(&conf, &aside).unwrap();
    fs::remove_file(&record).unwrap();
    uninstall(&rig.removal()).unwrap();
    assert!(!conf.exists() && !aside.exists());
}

#[test]
fn a_list_that_people_changed_is_set_aside_and_never_deleted() {
    let rig = Rig::new();
    install(&rig.plan()).unwrap();
    let edited =
        r#"{"cniVersion":"1.0.0","name":"mine","plugins":[{"type":"tartan-cni","mtu":1400}]}"#;
    for round in 0..2 {
        rig.conf("05-mine.conflist", edited);
        let dry = UninstallOptions {
            dry_run: true,
            ..rig.removal()
        };
        let planned = uninstall(&dry).unwrap();
        assert_eq!(planned.steps[0].action, Action::SetAside);
        assert_eq!(
            uninstall(&rig.removal()).unwrap().steps[0],
            planned.steps[0],
            "{round}"
        );
    }
    for name in [
        "05-mine.conflist.uninstalled",
        "05-mine.conflist.uninstalled.2",
    ] {
        let aside = rig.at("etc/cni/net.d").join(name);
        assert_eq!(fs::read_to_string(aside).unwrap(), edited);
    }
    assert_eq!(
        fs::read_dir(rig.at("etc/cni/net.d")).unwrap().count(),
        2,
        "the installed one is gone"
    );
    assert!(conf_dir::read(&rig.at("etc/cni/net.d")).unwrap().is_empty());
}
