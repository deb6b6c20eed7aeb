//! Limits of pods' traffic, as token buckets of the kernel's.
//!
//! ```text
//!   to the pod     root of its host's end, ttX:   tbf
//!   from the pod   ingress of ttX: u32, everything, mirred redirect to tlX (ifb), whose root is   tbf
//! ```
//!
//! Whatever way a packet takes, to or from a pod of this node, another node or the outside, it passes the host's end. A
//! bucket delays before it drops, so TCP fills the rate. Packets come out of `tlX` as if they had come from `ttX`: the
//! check of sources sees nothing else. All of it is the kernel's: it outlasts the agent, and goes with the pod, but for
//! `tlX`, which whoever removes the pod removes too, and the agent where nobody did.

use cni_shim::{Attachment, RateLimit};
use futures_util::{StreamExt, TryStreamExt};
use netlink_packet_core::{
    DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage,
    NetlinkPayload, Nla,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::tc::{
    TcActionAttribute, TcActionMirrorOption, TcActionOption, TcAttribute, TcFilterU32Option,
    TcHandle, TcMessage, TcOption,
};
use rtnetlink::Handle;
use rustix::io::Errno;

use super::Host;
use super::change::Change;
use super::error::{HostError, errno};
use super::links;
use super::pod_links::{PodLink, PodLinks};

impl Host {
    /// Puts the limits of all attachments in force, and removes what shaped a pod that is gone. Returns what had to be
    /// changed.
    ///
    /// # Errors
    /// The first refusal of the kernel; what can be in force is.
    pub async fn shape(
        &self,
        attachments: &[Attachment],
        links: &PodLinks,
    ) -> Result<Vec<Change>, HostError> {
        let mut changes = self.remove_limiters(links).await?;
        changes.extend(self.shape_these(attachments, links).await?);
        Ok(changes)
    }

    /// Puts the limits of these attachments in force, of those whose host's end is there.
    ///
    /// # Errors
    /// As [`shape`](Host::shape).
    pub async fn shape_these(
        &self,
        attachments: &[Attachment],
        links: &PodLinks,
    ) -> Result<Vec<Change>, HostError> {
        let mut limited = attachments
            .iter()
            .filter(|a| a.bandwidth.is_some())
            .filter_map(|a| Some((a, links.end(&a.host_ifname)?)))
            .peekable();
        let mut changes = Vec::new();
        if limited.peek().is_none() {
            return Ok(changes);
        }
        let queues = Queues::list(&self.netlink.handle).await?;
        let mut first = None;
        for (attachment, end) in limited {
            if let Err(error) = self
                .shape_one(attachment, end, links, &queues, &mut changes)
                .await
            {
                first.get_or_insert(error);
            }
        }
        first.map_or(Ok(changes), Err)
    }

    async fn shape_one(
        &self,
        attachment: &Attachment,
        end: &PodLink,
        links: &PodLinks,
        queues: &Queues,
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
            if !queues.has(end.index, bucket) {
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
            let shaped = queues.has(limiter, bucket);
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

    /// Only where the pod's end is gone: to what leads to a limiter that is not there, packets are lost.
    async fn remove_limiters(&self, links: &PodLinks) -> Result<Vec<Change>, HostError> {
        let mut changes = Vec::new();
        for (name, limiter) in links.limiters() {
            if links.is_limiter_of_nobody(name) {
                let deleted = self
                    .netlink
                    .handle
                    .link()
                    .del(limiter.index)
                    .execute()
                    .await;
                match deleted {
                    Err(error) if errno(&error) == Some(Errno::NODEV) => {}
                    done => {
                        done.map_err(|source| HostError::netlink("delete", name, source))?;
                        changes.push(Change::LimiterRemoved(name.clone()));
                    }
                }
            }
        }
        Ok(changes)
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
        tell(handle, make, NLM_F_CREATE)
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
        tell(&self.netlink.handle, set, NLM_F_CREATE | NLM_F_REPLACE)
            .await
            .map_err(|source| HostError::shaping("limit", name, "sch_tbf", source))
    }

    /// Whether everything that comes from the pod goes to the limiter.
    async fn is_redirected(&self, end: u32, name: &str, limiter: u32) -> Result<bool, HostError> {
        let handle = &self.netlink.handle;
        let mut filters = Box::pin(
            handle
                .traffic_filter(signed(end)?)
                .get()
                .ingress()
                .execute(),
        );
        let mut found = false;
        loop {
            match filters.try_next().await {
                Ok(Some(filter)) => found |= leads_to(&filter, limiter),
                Ok(None) => return Ok(found),
                // Without the ingress queue there is nothing to list.
                Err(error) if matches!(errno(&error), Some(Errno::INVAL | Errno::NOENT)) => {
                    return Ok(false);
                }
                Err(source) => return Err(HostError::netlink("list the filters of", name, source)),
            }
        }
    }

    async fn redirect(&self, end: u32, name: &str, limiter: u32) -> Result<(), HostError> {
        let handle = &self.netlink.handle;
        let index = signed(end)?;
        let mut queue = TcMessage::with_index(index);
        queue.header.parent = TcHandle::INGRESS;
        queue.header.handle = TcHandle::from(INGRESS);
        // Whatever filters are there lead elsewhere. There may be none, and no queue.
        let _ = tell(handle, RouteNetlinkMessage::DelQueueDiscipline(queue), 0).await;
        let made = handle.qdisc().add(index).ingress().execute().await;
        made.map_err(|source| HostError::shaping("limit", name, "sch_ingress", source))?;
        let filter = handle
            .traffic_filter(index)
            .add()
            .parent(INGRESS)
            .protocol(EVERY_PROTOCOL.to_be())
            .redirect(limiter)
            .map_err(|source| HostError::netlink("limit", name, source))?;
        let filtered = filter.execute().await;
        filtered.map_err(|source| HostError::shaping("limit", name, "cls_u32 act_mirred", source))
    }
}

/// A token bucket, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bucket {
    /// Per second.
    rate: u64,
    /// What may pass at once.
    burst: u32,
    /// What may wait.
    queue: u32,
}

impl Bucket {
    /// The bucket of a limit on an interface with this MTU. A burst that the runtime did not name, or named larger than
    /// anyone means, is a fiftieth of a second.
    fn of(limit: RateLimit, mtu: u32) -> Bucket {
        let rate = (limit.rate / 8).max(1);
        let named = (1..UNNAMED_BURST).contains(&limit.burst);
        let burst = if named { limit.burst / 8 } else { rate / 50 };
        let least = u64::from(mtu) + ETHERNET_HEADER;
        let burst = cut(burst.max(if named { least } else { least.max(LEAST_BURST) }));
        let queue = cut(u64::from(burst) + (rate / 40).max(LEAST_QUEUE));
        Bucket { rate, burst, queue }
    }

    /// As `tc qdisc replace dev INDEX root handle 1: tbf rate R burst B limit Q`.
    fn message(self, index: u32) -> Result<TcMessage, HostError> {
        // struct tc_tbf_qopt: two struct tc_ratespec, limit, buffer, mtu.
        let mut parameters = Vec::with_capacity(36);
        parameters.extend([0, LINKLAYER_ETHERNET, 0, 0, 0, 0, 0, 0]);
        parameters.extend(cut(self.rate).to_ne_bytes());
        parameters.extend([0; 12]);
        parameters.extend(self.queue.to_ne_bytes());
        parameters.extend([0; 8]);
        let option = |kind, value| TcOption::Other(DefaultNla::new(kind, value));
        let mut message = TcMessage::with_index(signed(index)?);
        message.header.parent = TcHandle::ROOT;
        message.header.handle = TcHandle { major: 1, minor: 0 };
        message.attributes = vec![
            TcAttribute::Kind(TBF.to_owned()),
            TcAttribute::Options(vec![
                option(TCA_TBF_PARMS, parameters),
                option(TCA_TBF_RATE64, self.rate.to_ne_bytes().to_vec()),
                option(TCA_TBF_BURST, self.burst.to_ne_bytes().to_vec()),
            ]),
        ];
        Ok(message)
    }
}

/// The buckets at the roots of interfaces.
#[derive(Debug, Default)]
struct Queues(Vec<(i32, Told)>);

/// What the kernel tells of a bucket, exactly; of the burst it tells a rounded time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    rate: u64,
    queue: u32,
}

impl Queues {
    async fn list(handle: &Handle) -> Result<Queues, HostError> {
        let mut found = Queues::default();
        let mut answer = Box::pin(handle.qdisc().get().execute());
        let failed = |source| HostError::netlink("list", "the queues of interfaces", source);
        while let Some(message) = answer.try_next().await.map_err(failed)? {
            if message.header.parent == TcHandle::ROOT {
                found
                    .0
                    .extend(told(&message).map(|told| (message.header.index, told)));
            }
        }
        Ok(found)
    }

    fn has(&self, index: u32, bucket: Bucket) -> bool {
        let wanted = Told {
            rate: bucket.rate,
            queue: bucket.queue,
        };
        let is_it = |(at, told): &(i32, Told)| u32::try_from(*at) == Ok(index) && *told == wanted;
        self.0.iter().any(is_it)
    }
}

/// The bucket that a message tells of, if it tells of one.
fn told(message: &TcMessage) -> Option<Told> {
    let mut is_bucket = false;
    let mut options = Vec::new();
    for attribute in &message.attributes {
        match attribute {
            TcAttribute::Kind(kind) => is_bucket = kind == TBF,
            // Of a kind that the parser does not know, all options are one.
            TcAttribute::Options(all) => {
                for option in all {
                    options.resize(option.value_len(), 0);
                    option.emit_value(&mut options);
                }
            }
            _ => {}
        }
    }
    let mut found = None;
    let mut large = None;
    let mut rest = options.as_slice();
    while let Some(([l0, l1, k0, k1], _)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_ne_bytes([*l0, *l1]));
        let value = rest.get(4..length)?;
        match u16::from_ne_bytes([*k0, *k1]) {
            TCA_TBF_PARMS => {
                let word = |at: usize| Some(u32::from_ne_bytes(*value.get(at..)?.first_chunk()?));
                found = Some((word(8)?, word(24)?));
            }
            TCA_TBF_RATE64 => large = value.first_chunk().map(|rate| u64::from_ne_bytes(*rate)),
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    let (rate, queue) = found.filter(|_| is_bucket)?;
    let rate = large.unwrap_or(u64::from(rate));
    Some(Told { rate, queue })
}

/// Whether a filter redirects to the interface.
fn leads_to(filter: &TcMessage, index: u32) -> bool {
    let options = filter
        .attributes
        .iter()
        .filter_map(|attribute| match attribute {
            TcAttribute::Options(options) => Some(options),
            _ => None,
        });
    let actions = options.flatten().filter_map(|option| match option {
        TcOption::U32(TcFilterU32Option::Action(actions)) => Some(actions),
        _ => None,
    });
    let attributes = actions.flatten().flat_map(|action| &action.attributes);
    let parameters = attributes.filter_map(|attribute| match attribute {
        TcActionAttribute::Options(options) => Some(options),
        _ => None,
    });
    parameters.flatten().any(|option| {
        matches!(option, TcActionOption::Mirror(TcActionMirrorOption::Parms(mirror)) if mirror.ifindex == index)
    })
}

async fn tell(
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

/// The kernel gives out indices of 31 bits, but takes them in messages of queues as signed.
fn signed(index: u32) -> Result<i32, HostError> {
    i32::try_from(index).map_err(|_| HostError::NoDevice {
        name: format!("of index {index}"),
    })
}

fn cut(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

const TBF: &str = "tbf";
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
/// `TC_LINKLAYER_ETHERNET`: the kernel asks for no table of rates then.
const LINKLAYER_ETHERNET: u8 = 1;
/// `ffff:`, the ingress queue.
const INGRESS: u32 = 0xffff_0000;
/// `ETH_P_ALL`.
const EVERY_PROTOCOL: u16 = 3;

/// Runtimes give 2^31-1 or 2^32-1 bits where nobody named a burst.
const UNNAMED_BURST: u64 = i32::MAX as u64;
/// Bytes of a burst that nobody named, at least.
const LEAST_BURST: u64 = 8 * 1024;
/// Bytes that may wait beside a burst, at least: a super-packet, which is cut before it waits, or TCP loses the end of
/// each. Above 21 Mbit/s it is what passes in 25 ms, as with the reference plugin.
const LEAST_QUEUE: u64 = 64 * 1024;
const ETHERNET_HEADER: u64 = 14;

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(rate: u64, burst: u64, mtu: u32) -> Bucket {
        Bucket::of(RateLimit { rate, burst }, mtu)
    }

    #[test]
    fn a_burst_that_nobody_named_is_short() {
        for unnamed in [0, u64::from(u32::MAX), i32::MAX as u64] {
            assert_eq!(
                bucket(100_000_000, unnamed, 1450),
                Bucket {
                    rate: 12_500_000,
                    burst: 250_000,
                    queue: 562_500
                }
            );
            assert_eq!(bucket(1_000_000, unnamed, 1450).burst, 8192);
        }
    }

    #[test]
    fn a_burst_that_was_named_is_kept_but_one_packet_always_passes() {
        assert_eq!(bucket(1_000_000, 800_000, 1450).burst, 100_000);
        assert_eq!(bucket(1_000_000, 8, 1450).burst, 1464);
        assert_eq!(bucket(1_000_000, 0, 9000).burst, 9014);
        assert_eq!(bucket(1, 1, 1450).rate, 1);
        assert_eq!(bucket(u64::MAX, 0, 1450).queue, u32::MAX);
    }

    #[test]
    fn any_options_are_understood_or_none_at_all() {
        for length in 0..64 {
            let mut message = TcMessage::with_index(1);
            let bytes = (0..length).map(|n| (n * 7 % 5) as u8).collect();
            message.attributes = vec![
                TcAttribute::Kind(TBF.to_owned()),
                TcAttribute::Options(vec![TcOption::Other(DefaultNla::new(2, bytes))]),
            ];
            told(&message);
        }
    }
}
