//! The problems that the service reports, or that a start would meet, dealt out to the checks that they belong to.

use std::time::SystemTime;

use super::finding::{Check, Finding};
use crate::api::wire;
use crate::problems::Problem;

/// Findings of the one judge.
#[derive(Debug, Default)]
pub(super) struct Board {
    findings: Vec<Finding>,
}

impl Board {
    /// Takes what the service reports.
    pub(super) fn report(&mut self, problems: &[wire::Problem], now: SystemTime) {
        let problems = problems.iter();
        self.findings
            .extend(problems.map(|problem| Finding::on_board(problem, now)));
    }

    /// Takes what a start would meet.
    pub(super) fn foresee(&mut self, problems: &[Problem]) {
        self.findings.extend(problems.iter().map(Finding::at_start));
    }

    /// Gives a check what belongs to it.
    pub(super) fn deal(&self, check: &mut Check) {
        for finding in &self.findings {
            if home(&finding.code) == check.check {
                check.find(finding.clone());
            }
        }
    }
}

/// The check that a code belongs to. One that is not listed shows under the last check.
fn home(code: &str) -> &'static str {
    match code {
        "api-socket" | "api-thread" | "locks-removed" | "state-not-saved" | "workers-behind"
        | "health-port" | "metrics-port" | "other-namespace" => "agent",
        "net-conf-refused"
        | "net-conf-missing"
        | "configuration-refused"
        | "cores-unusable"
        | "workers-not-confined"
        | "workers-not-pinned"
        | "unused-address"
        | "node-file"
        | "device-name" => "configuration",
        "leases-refused"
        | "registry-lost"
        | "lease-refused"
        | "list-shrinks"
        | "family-without-subnets" => "registry",
        "device-missing"
        | "device-not-a-tun"
        | "device-in-use"
        | "netlink-unavailable"
        | "not-permitted" => "tun",
        "interface-not-found"
        | "underlay-address-missing"
        | "underlay-down"
        | "underlay-interface-missing"
        | "underlay-narrow"
        | "underlay-below-mtu"
        | "underlay-move-refused"
        | "mtu-below-ipv6" => "underlay",
        "underlay-port-taken" | "underlay-socket-refused" => "ports",
        "setting-unreadable"
        | "setting-unwritable"
        | "settings-record-unwritable"
        | "settings-record-unreadable"
        | "proc-unreadable"
        | "no-ipv6"
        | "direct-routing-filtered"
        | "reverse-path-filter" => "settings",
        "firewall-refused" | "firewall-cuts-pods-off" => "firewall",
        "pod-upkeep"
        | "pod-link"
        | "pods-stranded"
        | "record-refused"
        | "no-shaper"
        | "subnet-file-unwritable" => "pods",
        "mixed-pods" | "bridge-other-subnet" | "bridge-netfilter-off" => "bridges",
        "checksum-errors" => "checksums",
        "clock-set-back" => "clock",
        "flanneld-running"
        | "flannel-left-over"
        | "flannel-rules-left"
        | "direct-routing"
        | "network-routed-elsewhere"
        | "route-bypasses" => "flannel",
        "kernel-path-off" | "kernel-path-qdisc" | "kernel-path-port" => "kernel-path",
        "peers-unreachable" | "vtep-mac-changed" => "peers",
        // Of this node's peers, also those that are added.
        code if code.starts_with("peer-") => "peers",
        _ => "others",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_documented_code_has_a_check_of_its_own() {
        let page = include_str!("../../../docs/problems.md");
        let codes = page
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
            .map(|(code, _)| code)
            .filter(|code| code.contains('-'));
        let codes: Vec<&str> = codes.collect();
        assert!(codes.len() > 60, "{}", codes.len());
        // What a kernel refuses, and a file that cannot be removed, may be anything.
        let elsewhere: Vec<&&str> = codes
            .iter()
            .filter(|code| home(code) == "others" && !super::super::reference::is_own(code))
            .collect();
        assert_eq!(
            elsewhere,
            [&"kernel-refused", &"file-not-removed", &"more-of-a-kind"]
        );
    }
}
