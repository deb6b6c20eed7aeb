//! The quick check, between two full checks, of what changes without a netlink announcement.
//!
//! No [`watch()`](super::watch()) reports changes of most settings under `/proc/sys` or of files; and an accept rule that
//! another program has just removed is put back only after a pause
//! ([`firewall`](super::firewall)).
//!
//! Settings of interfaces are read from one list of them, of our device alone where no pod is ours ([`QuickLinks`]). To open, read and close the files of our device
//! alone was a quarter of what the control loop of an idle node did.

use super::Host;
use super::error::HostError;
use super::host_state::HostState;
use super::net::dev_conf::DevConf;
use super::net::links;
use super::net::pod_links::PodLinks;
use super::settings::setting::Setting;
use super::settings::sysctls;
use crate::file_state::FileState;

/// What a list of all interfaces shows of that.
#[derive(Debug)]
pub struct QuickLinks {
    has_device_settings: bool,
    pub(super) pods: PodLinks,
}

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
    /// Lists the interfaces for a quick check; where there are no `pods` of ours to check, our device alone.
    ///
    /// # Errors
    /// The kernel's refusal to list.
    pub async fn quick_links(
        &self,
        desired: &HostState,
        pods: bool,
    ) -> Result<QuickLinks, HostError> {
        let handle = &self.netlink.handle;
        let messages = match pods {
            true => links::messages_without_counters(handle).await?,
            false => links::message(handle, &desired.device)
                .await?
                .into_iter()
                .collect(),
        };
        let mut all = messages.iter();
        let device = all.find(|message| links::name(message) == Some(&desired.device));
        let has_settings =
            |device| sysctls::has_device_settings(DevConf::of(device), desired.has_v6());
        Ok(QuickLinks {
            // That the device is gone is announced.
            has_device_settings: device.is_none_or(has_settings),
            pods: PodLinks::of(&messages),
        })
    }

    /// What of all that no watch reports is not as [`apply`](Host::apply) and
    /// [`apply_firewall_and_subnet_env`](Host::apply_firewall_and_subnet_env) last left it with this `desired`, or was left
    /// undone by them. The caller has to call them. `links`: as just listed; `None` where the kernel refused.
    pub fn quick_faults(&self, desired: &HostState, links: Option<&QuickLinks>) -> Vec<QuickFault> {
        let has_device_settings = links.is_some_and(|links| links.has_device_settings);
        let has_subnet_file = self.subnet_file == FileState::of(&desired.subnet_file);
        let checks = [
            (self.unreported.is_empty(), QuickFault::Unreported),
            (self.record.write_error().is_none(), QuickFault::Record),
            (self.firewall.is_applied(), QuickFault::Firewall),
            (has_subnet_file, QuickFault::SubnetFile),
            (has_device_settings, QuickFault::Device),
            (self.has_uplink_settings(desired), QuickFault::Uplinks),
        ];
        let failed = checks.into_iter().filter(|(passes, _)| !passes);
        failed.map(|(_, fault)| fault).collect()
    }

    /// Whether there is no quick fault.
    pub async fn passes_quick_check(&self, desired: &HostState) -> bool {
        let links = self.quick_links(desired, false).await.ok();
        self.quick_faults(desired, links.as_ref()).is_empty()
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
