//! A clean-up leaves the node as it was, whatever became of the agent, and
//! keeps what is not ours.

use std::fs;
use std::os::unix::net::UnixListener;

use cni_shim::RunDir;
use tartan::host::{Host, Outcome, Traces, cleanup};

use crate::namespace::Namespace;
use crate::text;
use crate::{apply, dual, v4};

fn traces(namespace: &Namespace) -> Traces {
    Traces {
        device: "tartan0".to_owned(),
        run_dir: RunDir::under(namespace.root()),
        state_dir: namespace.state_dir(),
        subnet_file: namespace.root().join("run/flannel/subnet.env"),
        pins: dataplane::kernel_path::Pins::below(namespace.root()),
        for_flannel: false,
    }
}

pub(crate) fn clean(namespace: &Namespace) -> Vec<Outcome> {
    let traces = traces(namespace);
    namespace.inside(|| async move { cleanup(&traces).await })
}

/// Every outcome must be a removal; returns them in words.
fn removed(outcomes: &[Outcome]) -> Vec<String> {
    outcomes
        .iter()
        .map(|outcome| {
            assert!(matches!(outcome, Outcome::Removed(_)), "{outcome}");
            outcome.to_string()
        })
        .collect()
}

#[test]
fn a_node_set_up_and_cleaned_is_as_before() {
    let namespace = Namespace::new();
    namespace.ip("-6 address add 2001:db8::1/64 dev eth0 nodad");
    namespace.ip("-6 route add default via 2001:db8::ff dev eth0");
    let before = namespace.census();
    namespace.ip("tuntap add tartan0 mode tun");
    apply(&namespace, &dual()).unwrap();
    assert_eq!(namespace.setting("net/ipv6/conf/eth0/accept_ra"), "2");
    assert!(namespace.state_dir().join("host.json").exists());

    let words = removed(&clean(&namespace)).join("\n");
    namespace.census().must_be(&before, "after the clean-up");
    assert!(!namespace.state_dir().exists());
    assert!(words.contains("the device tartan0"), "{words}");
    assert!(words.contains("unreachable fd00:244::/48"), "{words}");
    assert!(words.contains("net.ipv6.conf.eth0.accept_ra"), "{words}");
    assert_eq!(
        clean(&namespace).len(),
        0,
        "a second clean-up finds nothing"
    );
}

#[test]
fn a_crashed_agent_is_cleaned_up_after() {
    let namespace = Namespace::new();
    let before = namespace.census();
    namespace.ip("tuntap add tartan0 mode tun");
    apply(&namespace, &dual()).unwrap();
    // SIGKILL closes the descriptors, and the TUN is gone with them.
    namespace.ip("link delete tartan0");
    let run = RunDir::under(namespace.root());
    run.make().unwrap();
    drop(UnixListener::bind(run.socket()).unwrap());
    fs::write(run.node(), "{}").unwrap();
    fs::write(run.path().join("lock"), "").unwrap();
    fs::write(run.attachments().join(".lock"), "").unwrap();
    fs::write(namespace.state_dir().join(".host.json.new"), "half").unwrap();
    assert_ne!(namespace.census(), before);

    removed(&clean(&namespace));
    namespace.census().must_be(&before, "after the clean-up");
    assert!(!run.path().exists());
}

#[test]
fn a_device_that_an_agent_left_under_another_name_goes_too() {
    let namespace = Namespace::new();
    namespace.ip("tuntap add tartan0 mode tun");
    apply(&namespace, &v4()).unwrap();
    for name in ["tartan7", "other7"] {
        namespace.ip(&format!("tuntap add {name} mode tun multi_queue user 7"));
    }
    namespace.shell("ip link set tartan7 alias 'Tartan overlay'");
    let state = namespace.state_dir();
    namespace.inside(|| async move {
        let host = Host::open(&state).await.unwrap();
        let idle = host.idle_devices_beside("tartan0").await.unwrap();
        let [idle] = &idle[..] else {
            panic!("{idle:?}");
        };
        assert_eq!(idle.name(), "tartan7");
        assert!(
            idle.has_queues && idle.is_given_away && !idle.is_tap,
            "{idle:?}"
        );
        let idle = host.idle_device("tartan0").await.unwrap();
        assert!(!idle.has_queues && !idle.is_given_away, "{idle:?}");
        assert!(host.idle_device("other7").await.is_none());
        assert!(host.name_taken("other7").await.is_some());
        assert!(host.name_taken("tartan0").await.is_none());
    });
    let words = removed(&clean(&namespace)).join("\n");
    assert!(words.contains("the device tartan7"), "{words}");
    let left = namespace.ip("link show");
    assert!(
        left.contains("other7") && !left.contains("tartan"),
        "{left}"
    );
}

#[test]
fn a_setting_that_another_process_changed_since_is_kept() {
    let namespace = Namespace::with_tun();
    apply(&namespace, &v4()).unwrap();
    namespace.set("net/ipv4/ip_forward", "2");
    let outcomes = clean(&namespace);
    let kept: Vec<String> = outcomes
        .iter()
        .filter(|outcome| matches!(outcome, Outcome::Kept { .. }))
        .map(ToString::to_string)
        .collect();
    // The kernel keeps any number in ip_forward.
    assert_eq!(namespace.setting("net/ipv4/ip_forward"), "2");
    assert_eq!(
        kept,
        ["kept the change of net.ipv4.ip_forward to 1: another process has set it to 2 since"]
    );
}

#[test]
fn a_setting_that_was_right_before_us_is_not_touched() {
    let namespace = Namespace::with_tun();
    namespace.set("net/ipv4/ip_forward", "1");
    apply(&namespace, &v4()).unwrap();
    removed(&clean(&namespace));
    assert_eq!(namespace.setting("net/ipv4/ip_forward"), "1");
}

#[test]
fn a_setting_put_back_by_hand_is_no_trace() {
    let namespace = Namespace::with_tun();
    apply(&namespace, &v4()).unwrap();
    namespace.set("net/ipv4/ip_forward", "0");
    let words = removed(&clean(&namespace)).join("\n");
    assert!(!words.contains("ip_forward"), "{words}");
    assert_eq!(namespace.setting("net/ipv4/ip_forward"), "0");
}

#[test]
fn a_record_of_another_boot_changes_nothing() {
    let namespace = Namespace::with_tun();
    apply(&namespace, &v4()).unwrap();
    let path = namespace.state_dir().join("host.json");
    let text = fs::read_to_string(&path).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    fs::write(&path, text.replace(boot.trim(), "an-earlier-boot")).unwrap();
    let outcomes = clean(&namespace);
    assert_eq!(namespace.setting("net/ipv4/ip_forward"), "1");
    assert!(
        outcomes
            .iter()
            .any(|outcome| outcome.to_string().contains("before a reboot")),
        "{outcomes:?}"
    );
}

#[test]
fn a_record_that_lies_is_refused_and_kept_and_the_rest_still_cleaned() {
    let namespace = Namespace::with_tun();
    apply(&namespace, &v4()).unwrap();
    let path = namespace.state_dir().join("host.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("net/ipv4/ip_forward", "kernel/panic")).unwrap();
    let outcomes = clean(&namespace);
    let failed: Vec<String> = outcomes
        .iter()
        .filter(|outcome| matches!(outcome, Outcome::Failed { .. }))
        .map(ToString::to_string)
        .collect();
    assert_eq!(failed.len(), 1, "{outcomes:?}");
    assert!(failed[0].contains("kernel/panic"), "{failed:?}");
    assert!(
        namespace
            .list("link show")
            .iter()
            .all(|link| link["ifname"] != "tartan0")
    );
    assert!(namespace.ip("route show proto 116").is_empty());
    assert!(path.exists(), "what it says must not be forgotten");
}

#[test]
fn a_setting_that_cannot_be_put_back_stays_on_record() {
    let namespace = Namespace::with_tun();
    apply(&namespace, &v4()).unwrap();
    let path = namespace.state_dir().join("host.json");
    let text = fs::read_to_string(&path).unwrap();
    let (code, said) = namespace.clean_with_read_only_settings();
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("failed on the change of net.ipv4.ip_forward"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    removed(&clean(&namespace));
    assert_eq!(namespace.setting("net/ipv4/ip_forward"), "0");
    assert!(!namespace.state_dir().exists());
}

#[test]
fn in_another_namespace_nothing_is_touched() {
    let namespace = Namespace::with_tun();
    apply(&namespace, &v4()).unwrap();
    let other = Namespace::with_tun();
    apply(&other, &v4()).unwrap();
    let (before, others) = (namespace.census(), other.census());
    let traces = traces(&namespace);
    let outcomes = other.inside(|| async move { cleanup(&traces).await });
    assert!(
        matches!(&outcomes[..], [Outcome::Failed { error, .. }] if error.to_string().contains("net:[")),
        "{outcomes:?}"
    );
    namespace.census().must_be(&before, "from elsewhere");
    other.census().must_be(&others, "from elsewhere");
    removed(&clean(&namespace));
    assert_eq!(namespace.setting("net/ipv4/ip_forward"), "0");
}

#[test]
fn an_agent_started_over_a_broken_record_reports_it_and_goes_on() {
    let namespace = Namespace::with_tun();
    fs::create_dir_all(namespace.state_dir()).unwrap();
    fs::write(namespace.state_dir().join("host.json"), "{").unwrap();
    let changes = apply(&namespace, &v4()).unwrap();
    assert!(
        changes[0]
            .to_string()
            .contains("started a new record of changed settings"),
        "{changes:?}"
    );
    removed(&clean(&namespace));
    assert_eq!(namespace.setting("net/ipv4/ip_forward"), "0");
}

#[test]
fn what_is_not_ours_stays() {
    let namespace = Namespace::with_tun();
    namespace.ip("route add 10.244.1.7/32 dev eth0 proto 116");
    namespace.ip("route add unreachable 10.66.0.0/16");
    let run = RunDir::under(namespace.root());
    run.make().unwrap();
    let record = run.attachments().join("c1:eth0.json");
    fs::write(&record, "{}").unwrap();
    let before = namespace.census();
    let words: Vec<String> = clean(&namespace).iter().map(ToString::to_string).collect();
    namespace.census().must_be(&before, "after the clean-up");
    assert_eq!(words.len(), 2, "{words:?}");
    assert!(words[0].contains("kept the device tartan0"), "{words:?}");
    assert!(
        words[1].contains("kept 1 attachment record(s)"),
        "{words:?}"
    );
}

#[test]
fn a_trace_that_cannot_be_removed_is_named_and_the_rest_goes() {
    let namespace = Namespace::with_tun();
    apply(&namespace, &v4()).unwrap();
    let run = RunDir::under(namespace.root());
    fs::create_dir_all(run.path().parent().unwrap()).unwrap();
    fs::write(run.path(), "a file where a directory should be").unwrap();
    let outcomes = clean(&namespace);
    let failed: Vec<String> = outcomes
        .iter()
        .filter_map(|outcome| match outcome {
            Outcome::Failed { error, .. } => Some(text(error)),
            _ => None,
        })
        .collect();
    // The run directory, and the attachments below it.
    assert_eq!(failed.len(), 2, "{outcomes:?}");
    for sentence in &failed {
        assert!(sentence.contains("remove it by hand"), "{sentence}");
    }
    assert_eq!(namespace.setting("net/ipv4/ip_forward"), "0");
    assert!(!namespace.state_dir().exists());
}

#[test]
fn a_link_in_the_place_of_a_directory_is_not_followed() {
    let namespace = Namespace::new();
    let elsewhere = namespace.root().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join(".hidden"), "another's").unwrap();
    fs::write(elsewhere.join("file"), "another's").unwrap();
    let run = RunDir::under(namespace.root());
    let attachments = run.attachments();
    let state = namespace.state_dir();
    for link in [run.path(), attachments.as_path(), state.as_path()] {
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(&elsewhere, link).unwrap();
        let words: Vec<String> = clean(&namespace).iter().map(Outcome::to_string).collect();
        let kept = format!("kept {}: it is a symbolic link", link.display());
        let records = format!("attachment record(s) in {}", link.display());
        let says = |word: &String| word.starts_with(&kept) || word.contains(&records);
        assert!(words.iter().any(says), "{words:?}");
        for file in [".hidden", "file"] {
            assert!(elsewhere.join(file).exists(), "{} {file}", link.display());
        }
        fs::remove_file(link).unwrap();
        if link == run.path() {
            run.make().unwrap();
            fs::remove_dir(&attachments).unwrap();
        }
    }
}
