//! The interface of an attachment on the host, found by what it is ([`pod_end`]) and not by what a record says alone.

use cni_shim::attachment;
use cni_shim::pod_end::{self, SeenInterface};
use cni_shim::protocol::AttachmentKey;

use crate::netlink::{Error, Link, Netlink};
use crate::removal;

/// The ends of `key`, usually one: the interface `named` if that is it, or else whichever is. Of one without an alias the
/// name counts, as ADD derives it from `key` and one of `networks`.
pub(crate) fn find(
    host: &mut Netlink,
    key: &AttachmentKey,
    networks: &[&str],
    named: Option<&str>,
) -> Result<Vec<Link>, Error> {
    if let Some(name) = named.filter(|name| pod_end::has_form(name)) {
        match host.link(name)? {
            Some(link) if is_end(&link, key, networks) => return Ok(vec![link]),
            // The record names what only this attachment's ADD makes, and it is gone.
            None if networks
                .iter()
                .any(|of| pod_end::is_named_for(name, key, of)) =>
            {
                return Ok(Vec::new());
            }
            _ => {}
        }
    }
    let mut links = host.links()?;
    links.retain(|link| is_end(link, key, networks));
    Ok(links)
}

/// Whether an interface is the end of `key`.
pub(crate) fn is_end(link: &Link, key: &AttachmentKey, networks: &[&str]) -> bool {
    pod_end::is_end(link.seen(), key, networks)
}

/// Removes what shapes the traffic of an end of that name. Where that is no name of an end's, or what is found no limiter,
/// nothing is removed.
pub(crate) fn remove_limiter(host: &mut Netlink, end: &str) -> Result<(), crate::error::Error> {
    if !pod_end::has_form(end) {
        return Ok(());
    }
    match host.link(&attachment::limiter_ifname(end))? {
        Some(limiter) if limiter.kind == LIMITER => removal::remove(host, &limiter),
        _ => Ok(()),
    }
}

/// Removes them and their limiters, at once.
pub(crate) fn remove_at_once(host: &mut Netlink, ends: &[Link]) -> Result<(), Error> {
    for end in ends {
        host.remove_link(end.index)?;
        let limiter = host.link(&attachment::limiter_ifname(&end.name))?;
        if let Some(limiter) = limiter.filter(|link| link.kind == LIMITER) {
            host.remove_link(limiter.index)?;
        }
    }
    Ok(())
}

impl Link {
    /// What decides whose it is.
    pub(crate) fn seen(&self) -> SeenInterface<'_> {
        SeenInterface {
            name: &self.name,
            kind: &self.kind,
            alias: &self.alias,
            mac: &self.mac,
        }
    }
}

/// The kernel's word for an intermediate functional block.
const LIMITER: &str = "ifb";
