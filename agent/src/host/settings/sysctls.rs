//! Kernel settings under `/proc/sys/net`, as the calling thread's network
//! namespace sees them.
//!
//! Settings of our own device end with it and are simply set. A [`Setting`]
//! outlives us: its former value goes on record, so that a clean-up can restore
//! it.

use cni_shim::pod_link::{SETTINGS4, SETTINGS6, WITHOUT6};
use netlink_packet_route::link::{Inet6DevConf, InetDevConf};

use super::record::{RecordedChange, SettingsRecord};
use super::setting::{CONF4, CONF6, Interface, Setting, dotted, read, root, write};
use crate::host::change::{Change, SettingChange};
use crate::host::error::HostError;
use crate::host::net::dev_conf::{DevConf, value4, value6};

/// Gives the device the settings of a tunnel's end. Settings of IPv6 are left
/// out where the kernel has none.
pub(in crate::host) fn set_device_settings(
    device: &Interface,
    ipv6: bool,
) -> Result<Vec<SettingChange>, HostError> {
    set_all(of_device(device, ipv6))
}

/// Gives the host's end of a pod the settings that the plugin gave it.
pub(in crate::host) fn set_pod_settings(
    end: &Interface,
    ipv6: bool,
) -> Result<Vec<SettingChange>, HostError> {
    let name = end.name();
    let v4 = SETTINGS4.map(|set| (format!("{CONF4}{name}/{}", set.name), i32::from(set.value)));
    let v6 = if ipv6 { &SETTINGS6[..] } else { &[WITHOUT6] };
    let v6 = v6
        .iter()
        .map(|set| (format!("{CONF6}{name}/{}", set.name), i32::from(set.value)));
    set_all(v4.into_iter().chain(v6))
}

/// Switches IPv6 off on a device of ours that carries none.
pub(in crate::host) fn disable_ipv6(device: &Interface) -> Result<(), HostError> {
    let path = format!("{CONF6}{}/{}", device.name(), WITHOUT6.name);
    set_all([(path, i32::from(WITHOUT6.value))].into_iter()).map(drop)
}

fn set_all(wanted: impl Iterator<Item = (String, i32)>) -> Result<Vec<SettingChange>, HostError> {
    let mut altered = Vec::new();
    for (path, value) in wanted {
        let Some(found) = read(&path)? else { continue };
        if found != value {
            write(&path, value)?;
            altered.push(SettingChange {
                key: dotted(&path),
                found,
                set: value,
            });
        }
    }
    Ok(altered)
}

/// Whether a device has them, by what the kernel lists with it.
pub(in crate::host) fn has_device_settings(conf: DevConf<'_>, ipv6: bool) -> bool {
    let has4 = |conf: &InetDevConf| {
        let mut settings = DEVICE4.iter();
        settings.all(|(key, value)| value4(conf, key) == *value)
    };
    let has6 = |conf: &Inet6DevConf| device6(ipv6).all(|(key, value)| value6(conf, key) == value);
    conf.v4.is_none_or(has4) && conf.v6.is_none_or(has6)
}

/// The settings of a tunnel's end, by path. Those of IPv6 are not there where the kernel has none.
fn of_device(device: &Interface, ipv6: bool) -> impl Iterator<Item = (String, i32)> {
    let name = device.name();
    let v6 = device6(ipv6);
    let v4 = DEVICE4
        .iter()
        .map(move |(key, value)| (format!("{CONF4}{name}/{key}"), *value));
    v4.chain(v6.map(move |(key, value)| (format!("{CONF6}{name}/{key}"), value)))
}

fn device6(ipv6: bool) -> impl Iterator<Item = (&'static str, i32)> {
    let enable = ipv6.then_some(("disable_ipv6", 0));
    DEVICE6.iter().copied().chain(enable)
}

/// Lets the device leave the groups of IPv6 routers, which the kernel joins and leaves with the device's
/// `forwarding`, and only while it may send multicast. Returns the value that it had.
pub(in crate::host) fn leave_routers_groups(device: &Interface) -> Result<Option<i32>, HostError> {
    let path = forwarding6(device);
    let found = read(&path)?;
    if found.is_some_and(|found| found != 0) {
        write(&path, 0)?;
    }
    Ok(found)
}

/// Gives the device's `forwarding` for IPv6 back the value it had.
pub(in crate::host) fn restore_forwarding(
    device: &Interface,
    value: Option<i32>,
) -> Result<(), HostError> {
    match value {
        Some(value) if value != 0 => write(&forwarding6(device), value),
        _ => Ok(()),
    }
}

fn forwarding6(device: &Interface) -> String {
    format!("{CONF6}{}/forwarding", device.name())
}

/// Gives a setting of the node a value, after its value before is on record.
/// A setting the kernel does not have is left out.
pub(in crate::host) fn set_recorded(
    setting: &Setting,
    value: i32,
    record: &mut SettingsRecord,
) -> Result<Option<SettingChange>, HostError> {
    let Some(found) = setting.read()? else {
        return Ok(None);
    };
    if found == value {
        return Ok(None);
    }
    // On record first: a crash in between leaves a note of a change that was
    // not made, which a clean-up sees and leaves alone.
    record.add(setting, found, value);
    setting.write(value)?;
    Ok(Some(SettingChange {
        key: setting.to_string(),
        found,
        set: value,
    }))
}

/// Restores the former values of the settings on record that are not wanted any more.
pub(in crate::host) fn restore_unwanted(
    is_unwanted: impl Fn(&Setting) -> bool,
    record: &mut SettingsRecord,
) -> Result<Vec<Change>, HostError> {
    let made = record.changes().iter();
    let unwanted: Vec<_> = made
        .filter(|made| is_unwanted(&made.setting))
        .cloned()
        .collect();
    let mut changes = Vec::new();
    for made in unwanted {
        changes.extend(restore_recorded(&made, record)?.map(Change::Setting));
    }
    Ok(changes)
}

/// Restores the former value of a setting on record, unless another process has changed it since or its interface is gone.
fn restore_recorded(
    made: &RecordedChange,
    record: &mut SettingsRecord,
) -> Result<Option<SettingChange>, HostError> {
    let is_ours = made.setting.read()? == Some(made.wrote);
    if is_ours {
        made.setting.write(made.found)?;
    }
    // Off the record last: a crash in between leaves an entry for a change that is undone, which is harmless.
    record.remove(&made.setting);
    Ok(is_ours.then(|| SettingChange {
        key: made.setting.to_string(),
        found: made.wrote,
        set: made.found,
    }))
}

/// Whether the kernel has IPv6 at all.
pub(in crate::host) fn has_ipv6() -> bool {
    root().join("net/ipv6/conf").exists()
}

/// IPv4 settings of our device.
const DEVICE4: [(&str, i32); 5] = [
    // Strict (1) would drop what a peer sends from its node address.
    ("rp_filter", 2),
    // ICMP errors we write carry our own tunnel address as source.
    ("accept_local", 1),
    ("send_redirects", 0),
    ("accept_redirects", 0),
    WITHOUT_CARRIER,
];

/// IPv6 settings of our device: it is no link to configure oneself on.
const DEVICE6: [(&str, i32); 5] = [
    // MLDv2 announces even that a group is left which it never announced
    // (net/ipv6/mcast.c, igmp6_leave_group); see leave_routers_groups.
    ("force_mld_version", 1),
    ("accept_ra", 0),
    ("accept_redirects", 0),
    // IN6_ADDR_GEN_MODE_NONE: no link-local address.
    ("addr_gen_mode", 1),
    WITHOUT_CARRIER,
];

/// While no process holds the device, its routes do not count and the `unreachable` ones answer.
const WITHOUT_CARRIER: (&str, i32) = ("ignore_routes_with_linkdown", 1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::net::dev_conf::UNREAD;

    #[test]
    fn every_setting_of_a_device_is_read_from_the_list_of_interfaces() {
        let (v4, v6) = (InetDevConf::default(), Inet6DevConf::default());
        for (name, _) in DEVICE4 {
            assert_ne!(value4(&v4, name), UNREAD, "{name}");
        }
        for (name, _) in device6(true) {
            assert_ne!(value6(&v6, name), UNREAD, "{name}");
        }
    }
}
