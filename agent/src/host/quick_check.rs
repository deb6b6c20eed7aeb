//! What changes without an announcement, looked at between two readings of everything.
//!
//! No [`watch()`](super::watch()) tells of most settings under `/proc/sys`, of files, and of iptables-legacy; and an
//! accept rule that somebody else took out a moment ago is put back only after a pause
//! ([`firewall`](super::firewall)).

use super::Host;
use super::host_state::HostState;
use super::settings::setting::{Interface, Setting};
use super::settings::sysctls;
use crate::file_state::FileState;

impl Host {
    /// Whether all that no watch tells of is as the last [`apply`](Host::apply) and [`apply_beside`](Host::apply_beside)
    /// with this `desired` left it, and they left nothing undone. If not, they are to be called.
    pub fn is_undisturbed(&mut self, desired: &HostState) -> bool {
        self.untold.is_empty()
            && self.record.unwritten().is_none()
            && self.firewall.is_undisturbed(&desired.cluster_routes)
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
