//! The host's ends of pods, and what shapes their traffic, as the kernel lists them.

use std::collections::BTreeMap;

use cni_shim::attachment::{HOST_IFNAME_PREFIX, LIMITER_IFNAME_PREFIX};
use netlink_packet_route::link::LinkMessage;
use rtnetlink::Handle;
use rustix::io::Errno;

use super::links::{self, Link, LinkKind, LinkStats};
use crate::host::Host;
use crate::host::error::{HostError, errno};

/// Interfaces whose names are those of pods' ends and limiters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodLinks {
    ends: BTreeMap<String, PodLink>,
    limiters: BTreeMap<String, PodLink>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) struct PodLink {
    pub(in crate::host) index: u32,
    pub(in crate::host) mtu: u32,
    pub(in crate::host) up: bool,
    pub(in crate::host) stats: LinkStats,
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

    /// What the kernel counts on a host's end: `rx` came from the pod, `tx` went to it.
    pub fn stats(&self, host_ifname: &str) -> Option<LinkStats> {
        self.ends.get(host_ifname).map(|end| end.stats)
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
            ..
        } = links::parse(message)
        else {
            return;
        };
        let link = PodLink {
            index,
            mtu,
            up,
            stats: links::parse_stats(message),
        };
        if name.starts_with(HOST_IFNAME_PREFIX) {
            self.ends.insert(name, link);
        } else if is_limiter(&name) && kind == LIMITER_KIND {
            self.limiters.insert(name, link);
        }
    }
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
