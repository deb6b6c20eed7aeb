//! The quick check, between two full checks, of what changes without a netlink announcement.
//!
//! No [`watch()`](super::watch()) reports changes of most settings under `/proc/sys` or of files; and an accept rule that
//! another program has just removed is put back only after a pause
//! ([`firewall`](super::firewall)).

use super::Host;
use super::host_state::HostState;
use super::settings::setting::{Interface, Setting};
use super::settings::sysctls;
use crate::file_state::FileState;

/// What the quick check finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuickFault {
    /// Changes were made and not returned yet.
    Unreported,
    /// The record of changed settings is not written.
    Record,
    /// The packet filter is not as desired.
    Firewall,
    /// `subnet.env` is another file than was written.
    SubnetFile,
    /// Settings of our device.
    Device,
    /// Settings of uplinks that have to learn from routers in spite of forwarding.
    Uplinks,
}

impl Host {
    /// What of all that no watch reports is not as [`apply`](Host::apply) and
    /// [`apply_firewall_and_subnet_env`](Host::apply_firewall_and_subnet_env) last left it with this `desired`, or was left
    /// undone by them. The caller has to call them.
    pub fn quick_faults(&self, desired: &HostState) -> Vec<QuickFault> {
        let has_subnet_file = self.subnet_file == FileState::of(&desired.subnet_file);
        let checks = [
            (self.unreported.is_empty(), QuickFault::Unreported),
            (self.record.write_error().is_none(), QuickFault::Record),
            (self.firewall.is_applied(), QuickFault::Firewall),
            (has_subnet_file, QuickFault::SubnetFile),
            (has_device_settings(desired), QuickFault::Device),
            (self.has_uplink_settings(desired), QuickFault::Uplinks),
        ];
        let failed = checks.into_iter().filter(|(passes, _)| !passes);
        failed.map(|(_, fault)| fault).collect()
    }

    /// Whether there is no quick fault.
    pub fn passes_quick_check(&self, desired: &HostState) -> bool {
        self.quick_faults(desired).is_empty()
    }

    fn has_uplink_settings(&self, desired: &HostState) -> bool {
        let v6 = desired.has_v6();
        let learns = |uplink: &Setting| uplink.read().is_ok_and(|value| value != Some(1));
        let mut settings = self.record.changes().iter().map(|change| &change.setting);
        settings.all(|setting| match setting {
            uplink @ Setting::AcceptRa(_) => !v6 || learns(uplink),
            // Announced.
            Setting::Forward4
            | Setting::Forward6
            | Setting::ProxyArp(_)
            | Setting::Gro(_)
            | Setting::UdpGroForwarding(_) => true,
        })
    }
}

fn has_device_settings(desired: &HostState) -> bool {
    let device = Interface::parse(&desired.device);
    device.is_some_and(|device| {
        sysctls::has_device_settings(&device, desired.has_v6()).unwrap_or(false)
    })
}
