//! Problems that the kernel causes: what [`HostError`] is for an operator.

use super::{Severity, remedy};
use crate::causes::causes;
use crate::host::HostError;

/// A refusal of the kernel, or something of another program in its tables, as a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostProblem {
    /// The stable name.
    pub code: &'static str,
    /// The interface, setting, prefix or file that it concerns.
    pub subject: String,
    /// What is wrong.
    pub sentence: String,
    /// What to do.
    pub remedy: String,
    /// How bad it is.
    pub severity: Severity,
    /// Whether it keeps a service from starting that takes over from no other.
    pub ends_first_start: bool,
}

impl HostProblem {
    /// The error as a problem.
    pub fn of(error: &HostError) -> HostProblem {
        let (code, subject) = identity(error);
        HostProblem {
            code,
            subject,
            sentence: causes(error),
            remedy: remedy::of_host(error),
            severity: match error {
                HostError::WriteRecord { .. } | HostError::ReadRecord { .. } => Severity::Warning,
                _ => Severity::Error,
            },
            ends_first_start: ends_first_start(error),
        }
    }
}

/// The code, and what it concerns.
fn identity(error: &HostError) -> (&'static str, String) {
    let path = |path: &std::path::Path| path.display().to_string();
    match error {
        HostError::Socket { .. } => ("netlink-unavailable", String::new()),
        HostError::NotPermitted { subject, .. } => ("not-permitted", subject.clone()),
        HostError::Netlink { subject, .. } => ("kernel-refused", subject.clone()),
        HostError::NoShaper { subject, .. } => ("no-shaper", subject.clone()),
        HostError::ForeignQdisc { device } => ("kernel-path-qdisc", device.clone()),
        HostError::VxlanPort { device, .. } => ("kernel-path-port", device.clone()),
        HostError::DeviceName { name } => ("device-name", name.clone()),
        HostError::Ipsec { .. } => ("kernel-refused", "IPsec policies".to_owned()),
        HostError::NoDevice { name } => ("device-missing", name.clone()),
        HostError::ForeignDevice { name, .. } => ("device-not-a-tun", name.clone()),
        HostError::DeviceInUse { name } => ("device-in-use", name.clone()),
        HostError::NetworkHeld { prefix, .. } => ("network-routed-elsewhere", prefix.to_string()),
        HostError::MtuBelowIpv6 { device, .. } => ("mtu-below-ipv6", device.clone()),
        HostError::NoIpv6 => ("no-ipv6", String::new()),
        HostError::NoUnderlay { address, .. } => {
            ("underlay-interface-missing", address.to_string())
        }
        HostError::ReadSetting { key, .. } => ("setting-unreadable", key.clone()),
        HostError::WriteSetting { key, .. } => ("setting-unwritable", key.clone()),
        HostError::Identity { path, .. } => ("proc-unreadable", (*path).to_owned()),
        HostError::WriteRecord { path: file, .. } => ("settings-record-unwritable", path(file)),
        HostError::ReadRecord { path: file, .. } => ("settings-record-unreadable", path(file)),
        HostError::Rules { .. } => ("firewall-refused", String::new()),
        HostError::CutOff { rule, .. } => ("firewall-cuts-pods-off", rule.clone()),
        HostError::RulesBesideLegacy { problem, .. } => identity(problem),
        HostError::WriteSubnetFile { path: file, .. } => ("subnet-file-unwritable", path(file)),
        HostError::OtherNamespace { namespace, .. } => ("other-namespace", namespace.clone()),
        HostError::RemoveFile { path: file, .. } => ("file-not-removed", path(file)),
    }
}

/// What forwarding between pods does not depend on ends no start.
fn ends_first_start(error: &HostError) -> bool {
    !matches!(
        error,
        HostError::NoShaper { .. }
            | HostError::ForeignQdisc { .. }
            | HostError::VxlanPort { .. }
            | HostError::Ipsec { .. }
            | HostError::Rules { .. }
            | HostError::CutOff { .. }
            | HostError::RulesBesideLegacy { .. }
            | HostError::WriteSubnetFile { .. }
            | HostError::WriteRecord { .. }
            | HostError::ReadRecord { .. }
    )
}
