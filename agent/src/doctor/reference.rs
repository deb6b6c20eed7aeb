//! Where to read more of a finding. A public thread is named only where it is about that very fault.

/// The page for a code, and the thread.
pub(super) fn of(code: &str) -> Vec<String> {
    let (page, thread) = match code {
        "agent-not-running" => ("docs/operate.md#restart-stop-crash", None),
        "configuration-fault" => ("docs/configure.md", None),
        "tun-missing" | "tun-no-module" | "tun-no-capability" => ("docs/install.md", None),
        "tun-denied" => (
            "docs/install.md",
            Some("https://github.com/opencontainers/runc/pull/4555"),
        ),
        "forwarding-off" => ("docs/operate.md#what-tartan-changes-on-a-host", None),
        "reverse-path-filter" => ("docs/3am.md#one-direction-is-dead", None),
        "bridge-netfilter-off" => (
            "docs/services.md",
            Some("https://github.com/flannel-io/flannel/issues/2166"),
        ),
        "flannel-rules-left" => ("docs/migrate.md#flannels-iptables-chains", None),
        "flannel-left-over" | "flanneld-running" => ("docs/migrate.md", None),
        "checksum-errors" => (
            "docs/3am.md#small-packets-pass-large-ones-do-not",
            Some("https://github.com/flannel-io/flannel/issues/1279"),
        ),
        "peer-narrow" => ("docs/3am.md#small-packets-pass-large-ones-do-not", None),
        "peer-one-way" => ("docs/3am.md#one-direction-is-dead", None),
        "peer-silent" | "peer-refused" | "peer-unreachable" | "peer-other-vni"
        | "peer-wrong-mac" | "vtep-mac-changed" => {
            ("docs/3am.md#two-nodes-do-not-reach-each-other", None)
        }
        "clock-set-back" => ("docs/3am.md#the-registry", None),
        "firewall-cuts-pods-off" | "firewall-refused" => {
            ("docs/operate.md#masquerade-and-firewalls", None)
        }
        "pods-stranded" | "pod-link" => ("docs/operate.md#tartan-pods", None),
        "registry-lost" | "leases-refused" | "lease-refused" => {
            ("docs/operate.md#when-the-registry-fails", None)
        }
        "kernel-path-off" => ("docs/configure.md#kernel-path", None),
        _ => ("docs/problems.md#all-problems", None),
    };
    [Some(page), thread]
        .into_iter()
        .flatten()
        .map(str::to_owned)
        .collect()
}

/// Whether the code is one of the doctor's own, which no service posts.
#[cfg(test)]
pub(super) fn is_own(code: &str) -> bool {
    OWN.contains(&code)
}

/// As `docs/problems.md` lists them.
#[cfg(test)]
const OWN: [&str; 7] = [
    "agent-not-running",
    "configuration-fault",
    "tun-missing",
    "tun-denied",
    "tun-no-module",
    "tun-no-capability",
    "forwarding-off",
];
