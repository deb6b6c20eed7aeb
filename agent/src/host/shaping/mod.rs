//! Limits of pods' traffic, as token buckets of the kernel's.
//!
//! ```text
//!   to the pod     root of its host's end, ttX:   tbf
//!   from the pod   ingress of ttX: u32, everything, mirred redirect to tlX (ifb), whose root is   tbf
//! ```
//!
//! Whatever way a packet takes, to or from a pod of this node, another node or the outside, it passes the host's end. A
//! bucket delays before it drops, so TCP fills the rate. Packets come out of `tlX` as if they had come from `ttX`: the
//! check of sources sees nothing else. All of it is the kernel's: it outlasts the agent, and goes with the pod, except
//! `tlX`, which the plugin removes with the pod; the agent removes one that was left over.

mod bucket;
mod redirect;

use cni_shim::{Attachment, RateLimit};
use futures_util::StreamExt;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use rtnetlink::Handle;

use super::Host;
use super::change::Change;
use super::error::HostError;
use super::net::links;
use super::net::pod_links::{PodLink, PodLinks, remove_orphaned_limiter};
use bucket::{Bucket, Buckets};

impl Host {
    /// Sets the limits of all attachments, and removes limiters of pods that are gone. Returns what had to be
    /// changed, and the first refusal of the kernel, which keeps nothing else from being changed.
    pub async fn shape(
        &self,
        attachments: &[Attachment],
        links: &PodLinks,
    ) -> (Vec<Change>, Option<HostError>) {
        let (mut changes, unremoved) = self.remove_limiters(links).await;
        let (shaped, unshaped) = self.apply_limits(attachments, links).await;
        changes.extend(shaped);
        (changes, unremoved.or(unshaped))
    }

    /// Sets the limits of those attachments whose host's end exists. Returns the same as
    /// [`shape`](Host::shape).
    pub async fn apply_limits(
        &self,
        attachments: &[Attachment],
        links: &PodLinks,
    ) -> (Vec<Change>, Option<HostError>) {
        let mut limited: Vec<(&Attachment, &PodLink)> = Vec::new();
        for attachment in attachments {
            if let Some((_, end)) = links
                .end_of(attachment)
                .filter(|(name, _)| *name == attachment.host_ifname)
                && attachment.bandwidth.is_some()
            {
                limited.push((attachment, end));
            }
        }
        let mut changes = Vec::new();
        let mut first = None;
        if limited.is_empty() {
            return (changes, first);
        }
        let buckets = match Buckets::list(&self.netlink.handle).await {
            Ok(buckets) => buckets,
            Err(error) => return (changes, Some(error)),
        };
        for (attachment, end) in limited {
            if let Err(error) = self
                .shape_one(attachment, end, links, &buckets, &mut changes)
                .await
            {
                first.get_or_insert(error);
            }
        }
        (changes, first)
    }

    async fn shape_one(
        &self,
        attachment: &Attachment,
        end: &PodLink,
        links: &PodLinks,
        buckets: &Buckets,
        changes: &mut Vec<Change>,
    ) -> Result<(), HostError> {
        let limits = attachment.bandwidth.unwrap_or_default();
        let limited = |way, limit: RateLimit| Change::Limited {
            host_ifname: attachment.host_ifname.clone(),
            way,
            rate: limit.rate,
        };
        if let Some(limit) = limits.ingress {
            let bucket = Bucket::of(limit, end.mtu);
            if !buckets.has(end.index, bucket) {
                self.set_bucket(end.index, &attachment.host_ifname, bucket)
                    .await?;
                changes.push(limited("to", limit));
            }
        }
        if let Some(limit) = limits.egress {
            let name = attachment.limiter_ifname();
            let bucket = Bucket::of(limit, end.mtu);
            let limiter = match links.limiter(&name) {
                Some(limiter) if limiter.up => limiter.index,
                _ => self.make_limiter(&name, end.mtu).await?,
            };
            let shaped = buckets.has(limiter, bucket);
            if !shaped {
                self.set_bucket(limiter, &name, bucket).await?;
            }
            if !shaped
                || !self
                    .is_redirected(end.index, &attachment.host_ifname, limiter)
                    .await?
            {
                self.redirect(end.index, &attachment.host_ifname, limiter)
                    .await?;
                changes.push(limited("from", limit));
            }
        }
        Ok(())
    }

    async fn remove_limiters(&self, links: &PodLinks) -> (Vec<Change>, Option<HostError>) {
        let mut changes = Vec::new();
        let mut first = None;
        for name in links.limiters() {
            match remove_orphaned_limiter(&self.netlink.handle, name, links).await {
                Ok(true) => changes.push(Change::LimiterRemoved(name.clone())),
                Ok(false) => {}
                Err(error) => {
                    first.get_or_insert(error);
                }
            }
        }
        (changes, first)
    }

    /// Makes the device, or brings it up; returns its index.
    async fn make_limiter(&self, name: &str, mtu: u32) -> Result<u32, HostError> {
        let handle = &self.netlink.handle;
        let mut message = LinkMessage::default();
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Ifb)]),
        ];
        let make = RouteNetlinkMessage::NewLink(message);
        send_request(handle, make, NLM_F_CREATE)
            .await
            .map_err(|source| HostError::shaping("make", name, "ifb", source))?;
        let made = links::named(handle, name).await?;
        made.map(|link| link.index)
            .ok_or_else(|| HostError::NoDevice {
                name: name.to_owned(),
            })
    }

    async fn set_bucket(&self, index: u32, name: &str, bucket: Bucket) -> Result<(), HostError> {
        let message = bucket.message(index)?;
        let set = RouteNetlinkMessage::NewQueueDiscipline(message);
        send_request(&self.netlink.handle, set, NLM_F_CREATE | NLM_F_REPLACE)
            .await
            .map_err(|source| HostError::shaping("limit", name, "sch_tbf", source))
    }
}

pub(in crate::host) async fn send_request(
    handle: &Handle,
    message: RouteNetlinkMessage,
    flags: u16,
) -> Result<(), rtnetlink::Error> {
    let mut request = NetlinkMessage::from(message);
    request.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
    let mut answers = handle.clone().request(request)?;
    while let Some(answer) = answers.next().await {
        if let NetlinkPayload::Error(error) = answer.payload
            && error.code.is_some()
        {
            return Err(rtnetlink::Error::NetlinkError(error));
        }
    }
    Ok(())
}

/// The kernel gives out indices of 31 bits, but takes them in messages of buckets as signed.
pub(in crate::host) fn signed(index: u32) -> Result<i32, HostError> {
    i32::try_from(index).map_err(|_| HostError::NoDevice {
        name: format!("of index {index}"),
    })
}
