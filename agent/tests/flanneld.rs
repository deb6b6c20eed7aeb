//! The program under the name `flanneld`, as a service manager that started flanneld meets it.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::os::unix::fs::symlink;
use std::process::Command;

/// Runs a link named flanneld below an empty root; its exit code, and what it wrote to standard error.
fn flanneld(words: &[&str], variables: &[(&str, &str)]) -> (i32, String) {
    let named = [&[("TARTAN_NODE_NAME", "node1")], variables].concat();
    unnamed(words, &named)
}

/// The same where nothing says the node's name.
fn unnamed(words: &[&str], variables: &[(&str, &str)]) -> (i32, String) {
    let root = tempfile::tempdir().unwrap();
    let link = root.path().join("flanneld");
    symlink(env!("CARGO_BIN_EXE_tartan"), &link).unwrap();
    let done = Command::new(&link)
        .args(words)
        .env_clear()
        .env("TARTAN_ROOT", root.path())
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    assert_eq!(done.stdout, b"", "everything goes to standard error");
    let text = String::from_utf8(done.stderr).unwrap();
    (done.status.code().unwrap(), text)
}

#[test]
fn help_and_version_end_with_0() {
    for word in ["-h", "--help", "-help"] {
        let (code, text) = flanneld(&[word], &[]);
        assert_eq!(code, 0, "{text}");
        assert!(text.starts_with("Usage: flanneld [OPTION]...\n"), "{text}");
        for flag in [
            "\n  -ip-masq\n    \t",
            "\n  -kube-subnet-mgr\n",
            "\n  -iface value\n",
            "\n  -healthz-port int\n",
            "(default 60)\n",
            "(default \"/run/flannel/subnet.env\")\n",
        ] {
            assert!(text.contains(flag), "{flag:?}: {text}");
        }
    }
    let (code, text) = flanneld(&["--version"], &[]);
    assert_eq!(
        (code, text),
        (0, format!("tartan {}\n", env!("CARGO_PKG_VERSION")))
    );
}

#[test]
fn a_wrong_command_line_ends_with_2_and_usage() {
    for (words, first) in [
        (&["--nosuch"][..], "flag provided but not defined: -nosuch"),
        (
            &["-ip-masq=yes"],
            "invalid boolean value \"yes\" for -ip-masq: parse error",
        ),
        (&["-v"], "flag needs an argument: -v"),
    ] {
        let (code, text) = flanneld(words, &[]);
        assert_eq!(code, 2, "{text}");
        assert_eq!(text.lines().next(), Some(first));
        assert!(text.contains("\nUsage: flanneld"), "{text}");
    }
}

#[test]
fn a_value_that_cannot_be_used_ends_with_1_and_the_remedy() {
    for (words, variables, part) in [
        (
            &["-subnet-lease-renew-margin=1440"][..],
            &[][..],
            "use 1 to 1439",
        ),
        (
            &[],
            &[("FLANNELD_SUBNET_LEASE_RENEW_MARGIN", "0")],
            "use 1 to 1439",
        ),
        (&["--iface-regex=("], &[], "is not a regular expression"),
        (
            &["-etcd-certfile=/c"],
            &[],
            "etcd-certfile needs etcd-keyfile",
        ),
        (&[], &[("FLANNELD_ETCD_PREFIX", "/")], "etcd-prefix"),
        (
            &[],
            &[("TARTAN_WORKRES", "2")],
            "did you mean TARTAN_WORKERS",
        ),
    ] {
        let (code, text) = flanneld(words, variables);
        assert_eq!(code, 1, "{text}");
        assert!(text.contains(part), "{part}: {text}");
        assert!(!text.contains("Usage"), "{text}");
    }
}

/// A flag on the command line counts before its variable, whose value is not even looked at.
#[test]
fn a_variable_counts_where_the_flag_is_missing() {
    let variable = [("FLANNELD_HEALTHZ_PORT", "70000")];
    let (code, text) = flanneld(&[], &variable);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("healthz-port is 70000"), "{text}");
    let (code, text) = flanneld(&["-healthz-port=70001"], &variable);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("healthz-port is 70001"), "{text}");
    // A value that is none of the flag's is passed over, and not shown: it may be a secret.
    let ignored = [("FLANNELD_IP_MASQ", "hunter2")];
    let (_, text) = flanneld(&["-public-ip=x"], &ignored);
    assert!(!text.contains("hunter2"), "{text}");
}

/// In Kubernetes the name of the node is that of a Node: the host's name may be another.
#[test]
fn in_kubernetes_the_node_must_be_known() {
    let (code, text) = unnamed(&["-kube-subnet-mgr"], &[]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("set the variable NODE_NAME"), "{text}");
    let pod = [("POD_NAME", "p/../q"), ("POD_NAMESPACE", "kube-flannel")];
    let (code, text) = unnamed(&["-kube-subnet-mgr"], &pod);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("\"p/../q\" is no name of a pod"), "{text}");
}
