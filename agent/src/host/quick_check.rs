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

impl Host {
    /// Whether everything that no watch reports is as [`apply`](Host::apply) and
    /// [`apply_firewall_and_subnet_env`](Host::apply_firewall_and_subnet_env) last left it with this `desired`, and they
    /// left nothing undone. If not, the caller has to call them.
    pub fn passes_quick_check(&self, desired: &HostState) -> bool {
        self.unreported.is_empty()
            && self.record.write_error().is_none()
            && self.firewall.is_applied()
            && self.subnet_file == FileState::of(&desired.subnet_file)
            && self.has_settings(desired)
    }

    /// Settings of our device, and those of uplinks that have to learn from routers in spite of forwarding.
    fn has_settings(&self, desired: &HostState) -> bool {
        let Some(device) = Interface::parse(&desired.device) else {
            return false;
        };
        let v6 = desired.has_v6();
        let learns = |uplink: &Setting| uplink.read().is_ok_and(|value| value != Some(1));
        let mut settings = self.record.changes().iter().map(|change| &change.setting);
        sysctls::has_device_settings(&device, v6).unwrap_or(false)
            && settings.all(|setting| match setting {
                uplink @ Setting::AcceptRa(_) => !v6 || learns(uplink),
                // Announced.
                Setting::Forward4 | Setting::Forward6 | Setting::ProxyArp(_) => true,
            })
    }
}
