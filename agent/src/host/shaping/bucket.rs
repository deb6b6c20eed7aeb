//! The token bucket of one direction: its parameters for a limit, and the buckets that the kernel lists.

use cni_shim::RateLimit;
use futures_util::TryStreamExt;
use netlink_packet_core::{DefaultNla, Nla};
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption};
use rtnetlink::Handle;

use super::signed;
use crate::host::error::HostError;

/// A token bucket, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bucket {
    /// Per second.
    rate: u64,
    /// What may pass at once.
    burst: u32,
    /// What may wait.
    queue: u32,
}

impl Bucket {
    /// The bucket of a limit on an interface with this MTU. Without a burst, or with one as large as
    /// runtimes give where none was configured, it is what passes in a fiftieth of a second.
    pub(super) fn of(limit: RateLimit, mtu: u32) -> Bucket {
        let rate = (limit.rate / 8).max(1);
        let named = (1..UNNAMED_BURST).contains(&limit.burst);
        let burst = if named { limit.burst / 8 } else { rate / 50 };
        let least = u64::from(mtu) + ETHERNET_HEADER;
        let burst = to_u32(burst.max(if named { least } else { least.max(LEAST_BURST) }));
        let queue = to_u32(u64::from(burst) + (rate / 40).max(LEAST_QUEUE));
        Bucket { rate, burst, queue }
    }

    /// As `tc qdisc replace dev INDEX root handle 1: tbf rate R burst B limit Q`.
    pub(super) fn message(self, index: u32) -> Result<TcMessage, HostError> {
        // struct tc_tbf_qopt: two struct tc_ratespec, limit, buffer, mtu.
        let mut parameters = Vec::with_capacity(36);
        parameters.extend([0, LINKLAYER_ETHERNET, 0, 0, 0, 0, 0, 0]);
        parameters.extend(to_u32(self.rate).to_ne_bytes());
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
pub(super) struct Buckets(Vec<(i32, ListedBucket)>);

/// The exact parameters that the kernel lists of a bucket; it lists the burst as a rounded time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ListedBucket {
    rate: u64,
    queue: u32,
}

impl Buckets {
    pub(super) async fn list(handle: &Handle) -> Result<Buckets, HostError> {
        let mut found = Buckets::default();
        let mut answer = Box::pin(handle.qdisc().get().execute());
        let failed = |source| HostError::netlink("list", "the buckets of interfaces", source);
        while let Some(message) = answer.try_next().await.map_err(failed)? {
            if message.header.parent == TcHandle::ROOT {
                found
                    .0
                    .extend(parse_bucket(&message).map(|listed| (message.header.index, listed)));
            }
        }
        Ok(found)
    }

    pub(super) fn has(&self, index: u32, bucket: Bucket) -> bool {
        let wanted = ListedBucket {
            rate: bucket.rate,
            queue: bucket.queue,
        };
        let is_it = |(at, listed): &(i32, ListedBucket)| {
            u32::try_from(*at) == Ok(index) && *listed == wanted
        };
        self.0.iter().any(is_it)
    }
}

/// The bucket that a message describes, if it describes one.
fn parse_bucket(message: &TcMessage) -> Option<ListedBucket> {
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
    Some(ListedBucket { rate, queue })
}

fn to_u32(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

const TBF: &str = "tbf";
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
/// `TC_LINKLAYER_ETHERNET`: the kernel asks for no table of rates then.
const LINKLAYER_ETHERNET: u8 = 1;
/// Runtimes give 2^31-1 or 2^32-1 bits where no burst was configured.
const UNNAMED_BURST: u64 = i32::MAX as u64;
/// Least burst where none was configured, in bytes.
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
            parse_bucket(&message);
        }
    }
}
