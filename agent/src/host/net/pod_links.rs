//! The host's ends of pods, and what shapes their traffic, as the kernel lists them.

use std::collections::BTreeMap;

use cni_shim::Attachment;
use cni_shim::attachment::{HOST_IFNAME_PREFIX, LIMITER_IFNAME_PREFIX};
use cni_shim::pod_end::{self, SeenInterface};
use cni_shim::pod_link::{SETTINGS4, SETTINGS6, WITHOUT6};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use rtnetlink::Handle;
use rustix::io::Errno;

use super::dev_conf::{DevConf, value4, value6};
use super::links::{self, Link, LinkKind, LinkStats};
use crate::host::Host;
use crate::host::error::{HostError, errno};

/// Interfaces that are pods' ends and limiters by kind and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodLinks {
    ends: BTreeMap<String, PodLink>,
    limiters: BTreeMap<String, PodLink>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) struct PodLink {
    pub(in crate::host) index: u32,
    /// Number of the namespace that the other end is in; `None` where the kernel does not tell.
    pub(in crate::host) namespace: Option<u32>,
    pub(in crate::host) mtu: u32,
    pub(in crate::host) up: bool,
    pub(in crate::host) stats: LinkStats,
    pub(in crate::host) alias: String,
    pub(in crate::host) mac: Vec<u8>,
    pub(in crate::host) settings: PodSettings,
}

/// Settings of a host's end, in the order of [`SETTINGS4`] and [`SETTINGS6`]; none where the kernel reports none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::host) struct PodSettings {
    v4: Option<[i32; SETTINGS4.len()]>,
    v6: Option<[i32; SETTINGS6.len()]>,
}

impl PodSettings {
    /// Whether they are as the plugin makes them.
    pub(in crate::host) fn are_of_a_pod(&self, speaks_v6: bool) -> bool {
        let v6 = |v6: [i32; SETTINGS6.len()]| {
            let mut found = SETTINGS6.into_iter().zip(v6);
            if speaks_v6 {
                found.all(|(setting, value)| value == i32::from(setting.value))
            } else {
                found.all(|(setting, value)| {
                    setting.name != WITHOUT6.name || value == i32::from(WITHOUT6.value)
                })
            }
        };
        self.v4
            .is_none_or(|v4| v4 == SETTINGS4.map(|setting| i32::from(setting.value)))
            && self.v6.is_none_or(v6)
    }

    fn of(message: &LinkMessage) -> PodSettings {
        let DevConf { v4, v6 } = DevConf::of(message);
        PodSettings {
            v4: v4.map(|conf| SETTINGS4.map(|setting| value4(conf, setting.name))),
            v6: v6.map(|conf| SETTINGS6.map(|setting| value6(conf, setting.name))),
        }
    }
}

impl PodLink {
    /// What decides whose it is.
    pub(in crate::host) fn seen<'a>(&'a self, name: &'a str) -> SeenInterface<'a> {
        SeenInterface {
            name,
            kind: pod_end::VETH,
            alias: &self.alias,
            mac: &self.mac,
        }
    }
}

impl PodLinks {
    /// Those among all interfaces.
    pub(in crate::host) fn of(messages: &[LinkMessage]) -> PodLinks {
        let mut found = PodLinks::default();
        for message in messages {
            found.take(message);
        }
        found
    }

    /// Whether there is a host's end of that name. A veth ends with the namespace of its other end, so there is none
    /// once the pod's namespace is gone.
    pub fn has(&self, host_ifname: &str) -> bool {
        self.ends.contains_key(host_ifname)
    }

    /// What the kernel counts on an attachment's end: `rx` came from the pod, `tx` went to it.
    pub fn stats(&self, attachment: &Attachment) -> Option<LinkStats> {
        self.end_of(attachment).map(|(_, end)| end.stats)
    }

    pub(in crate::host) fn ends(&self) -> impl Iterator<Item = (&str, &PodLink)> {
        self.ends.iter().map(|(name, end)| (&**name, end))
    }

    pub(in crate::host) fn named_end(&self, name: &str) -> Option<(&str, &PodLink)> {
        self.ends
            .get_key_value(name)
            .map(|(name, end)| (&**name, end))
    }

    pub(in crate::host) fn end(&self, host_ifname: &str) -> Option<&PodLink> {
        self.ends.get(host_ifname)
    }

    pub(in crate::host) fn limiter(&self, name: &str) -> Option<&PodLink> {
        self.limiters.get(name)
    }

    pub(in crate::host) fn limiters(&self) -> impl Iterator<Item = &String> {
        self.limiters.keys()
    }

    /// Sorts one interface in, if it is a pod's.
    fn take(&mut self, message: &LinkMessage) {
        let Link {
            index,
            name,
            kind: LinkKind::Other(kind),
            mtu,
            up,
            alias,
            ..
        } = links::parse(message)
        else {
            return;
        };
        let link = PodLink {
            index,
            namespace: namespace(message),
            mtu,
            up,
            stats: links::parse_stats(message),
            alias,
            mac: hardware_address(message),
            settings: PodSettings::of(message),
        };
        if kind == pod_end::VETH && pod_end::has_form(&name) {
            self.ends.insert(name, link);
        } else if is_limiter(&name) && kind == LIMITER_KIND {
            self.limiters.insert(name, link);
        }
    }
}

fn namespace(message: &LinkMessage) -> Option<u32> {
    let mut attributes = message.attributes.iter();
    attributes.find_map(|attribute| match attribute {
        // Negative where the namespace has no number (NETNSA_NSID_NOT_ASSIGNED).
        LinkAttribute::LinkNetNsId(number) => u32::try_from(*number).ok(),
        _ => None,
    })
}

fn hardware_address(message: &LinkMessage) -> Vec<u8> {
    let mut attributes = message.attributes.iter();
    let found = attributes.find_map(|attribute| match attribute {
        LinkAttribute::Address(bytes) => Some(bytes.clone()),
        _ => None,
    });
    found.unwrap_or_default()
}

/// Whether a name has the form that the plugin gives a limiter; other names with that prefix are not ours.
fn is_limiter(name: &str) -> bool {
    let digits = name.strip_prefix(LIMITER_IFNAME_PREFIX);
    let is_digit = |digit: u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit);
    digits.is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(is_digit))
}

impl Host {
    /// Lists them.
    ///
    /// # Errors
    /// The kernel's refusal to list.
    pub async fn pod_links(&self) -> Result<PodLinks, HostError> {
        list(&self.netlink.handle).await
    }

    /// Lists them, and among them the end of that name, if it is there: while interfaces come and go the kernel may leave
    /// one out of each list (`NLM_F_DUMP_INTR`), and never out of an answer about it alone.
    ///
    /// # Errors
    /// The kernel's refusal to list.
    pub async fn pod_links_with(&self, host_ifname: &str) -> Result<PodLinks, HostError> {
        let mut listed = list(&self.netlink.handle).await?;
        if !listed.has(host_ifname)
            && let Some(end) = links::message(&self.netlink.handle, host_ifname).await?
        {
            listed.take(&end);
        }
        Ok(listed)
    }
}

/// Lists them.
pub(in crate::host) async fn list(handle: &Handle) -> Result<PodLinks, HostError> {
    Ok(PodLinks::of(&links::messages(handle).await?))
}

/// Removes a listed limiter unless its pod exists, in the list or by now: one may have been attached since. A pod whose
/// limiter is gone loses its packets. Returns whether it was removed.
pub(in crate::host) async fn remove_orphaned_limiter(
    handle: &Handle,
    name: &str,
    listed: &PodLinks,
) -> Result<bool, HostError> {
    let digits = name.strip_prefix(LIMITER_IFNAME_PREFIX).unwrap_or(name);
    let end = format!("{HOST_IFNAME_PREFIX}{digits}");
    if listed.has(&end) || links::named(handle, &end).await?.is_some() {
        return Ok(false);
    }
    let limiter = links::named(handle, name).await?;
    let is_limiter = |link: &Link| link.kind == LinkKind::Other(LIMITER_KIND.to_owned());
    let Some(limiter) = limiter.filter(is_limiter) else {
        return Ok(false);
    };
    match handle.link().del(limiter.index).execute().await {
        Err(error) if errno(&error) == Some(Errno::NODEV) => Ok(false),
        done => {
            done.map_err(|source| HostError::netlink("delete", name, source))?;
            Ok(true)
        }
    }
}

/// The kernel's kind of an intermediate functional block: packets sent into it come out where they came from.
const LIMITER_KIND: &str = "ifb";

/// Digits of a limiter's name behind its prefix, as of an end's (`cni-shim/src/link_name.rs`).
const DIGITS: usize = 10;

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::{Inet6DevConf, InetDevConf};

    use super::*;
    use crate::host::net::dev_conf::UNREAD;

    #[test]
    fn every_setting_that_the_plugin_makes_is_read() {
        let (v4, v6) = (InetDevConf::default(), Inet6DevConf::default());
        for setting in SETTINGS4 {
            assert_ne!(value4(&v4, setting.name), UNREAD, "{}", setting.name);
        }
        for setting in SETTINGS6 {
            assert_ne!(value6(&v6, setting.name), UNREAD, "{}", setting.name);
        }
    }
}
