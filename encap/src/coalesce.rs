//! Coalesces wire packets into super-packets, the reverse of [`segment`](crate::segment).
//!
//! Theory of operation: the cost of a write to the device is per packet, not per byte. So what one receive batch
//! delivered is pushed in, in order, and comes out again at the end of the batch as few packets as can be: *chains*
//! of packets that differ only in what segmentation writes anew. Nothing waits beyond the batch. Payload is never
//! copied; a chain is `[header of our making][payload where it lies]…`, and a packet that stayed alone goes out as it
//! came.
//!
//! What may join is decided as in the kernel (`tcp_gro_receive`, `udp_gro_receive`) and in wireguard-go: whole TCP and
//! UDP packets without IP options or extension headers, all header bytes equal but for lengths, checksums, IPv4
//! identification, TCP sequence number and PSH; the sequence number continues; identifications count up unless
//! routers may not fragment; no payload is longer than the first and only the last is shorter; at most 64 packets and
//! 65,535 bytes. The transport checksum must be known to be right, or be unfinished in all packets of the chain: the
//! kernel gives each segment a good one.
//!
//! Order: chains come out in the order in which they began. A packet that cannot join *seals* its flow's chain, so
//! that nothing passes it: SYN, FIN, RST, URG, CWR, a lost or repeated segment, a checksum that fails, a fragment
//! (which seals all chains between its two addresses). One packet may be passed by later data of its flow: a pure
//! acknowledgment that says nothing new.
//!
//! All memory is taken by [`Coalescer::new`]. When it is full, [`Coalescer::push`] says so, and the caller drains.

mod candidate;
mod chain;
mod flows;

use crate::field;
use crate::inner::{Fragment, Inner};
use crate::offload::{Offload, Unfinished};
use crate::transport::ChecksumState;
use candidate::Candidate;
use chain::{Chain, Growth};
use flows::{Flow, FlowSlot, Flows};

/// The bytes of a packet in a numbered frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameSlice {
    /// Number of the buffer.
    pub frame: u16,
    /// Bytes.
    pub len: u16,
    /// Offset of the first byte in the buffer.
    pub start: u32,
}

/// There is no room for another packet: drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Coalesces the packets of one batch.
pub struct Coalescer {
    /// In the order in which they began.
    chains: Vec<Chain>,
    /// Every packet taken.
    links: Vec<Link>,
    /// The latest chain of each flow that has one.
    flows: Flows,
    /// The chain that took a packet last: the next packet is mostly of the same flow.
    latest: usize,
    most_packets: usize,
    most_chains: usize,
}

/// A packet for the device: a super-packet, or one packet as it came.
pub struct Packet<'a> {
    /// Goes in front of [`Packet::pieces`]; empty for a packet as it came.
    pub header: &'a [u8],
    /// What is left undone.
    pub offload: Offload,
    /// Its owner, as given to [`Coalescer::push`].
    pub owner: u32,
    /// Wire packets in it.
    pub count: usize,
    /// Bytes of these, each with its own header.
    pub bytes: usize,
    first: u16,
    links: &'a [Link],
}

/// A packet taken.
#[derive(Clone, Copy)]
struct Link {
    place: FrameSlice,
    /// The number of the next one in its chain, or [`END`].
    next: u16,
}

impl Coalescer {
    /// Room for `packets` packets in `chains` chains.
    pub fn new(packets: u16, chains: u16) -> Coalescer {
        Coalescer {
            chains: Vec::with_capacity(chains.into()),
            links: Vec::with_capacity(packets.into()),
            flows: Flows::new(chains.into()),
            latest: 0,
            most_packets: usize::from(packets),
            most_chains: usize::from(chains),
        }
    }

    /// Whether nothing was taken since it was drained.
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty()
    }

    /// Takes the packet at `place`, whose bytes are `packet`, which `inner` describes. `verdict` is what
    /// [`checksum_state`](crate::transport::checksum_state) says of it. Packets of different `owner`s never join.
    ///
    /// # Errors
    /// [`Full`], and the packet was not taken.
    pub fn push(
        &mut self,
        packet: &[u8],
        inner: &Inner,
        verdict: ChecksumState,
        place: FrameSlice,
        owner: u32,
    ) -> Result<(), Full> {
        let link = self.link(place)?;
        let Some(candidate) = Candidate::parse(packet, inner, verdict) else {
            self.seal(inner);
            self.begin(Chain::alone(unfinished(verdict), inner.len, link, owner));
            return Ok(());
        };
        if candidate.payload == 0 {
            self.seal_unless(inner, |chain| chain.says_as_much(&candidate));
            self.begin(Chain::alone(unfinished(verdict), inner.len, link, owner));
            return Ok(());
        }
        // Runs of one flow need no search.
        if !self.join(self.latest, &candidate, link, owner) {
            self.join_flow(inner, &candidate, unfinished(verdict), link, owner);
        }
        Ok(())
    }

    /// Takes a super-packet as it is, with `offload` left to do: `count` wire packets of `bytes` bytes in all.
    ///
    /// # Errors
    /// [`Full`], and the packet was not taken.
    pub fn pass(
        &mut self,
        inner: &Inner,
        offload: Offload,
        (count, bytes): (usize, usize),
        place: FrameSlice,
        owner: u32,
    ) -> Result<(), Full> {
        let link = self.link(place)?;
        self.seal(inner);
        self.begin(Chain {
            count,
            ..Chain::alone(offload, bytes, link, owner)
        });
        Ok(())
    }

    /// Passes all packets to `each`, in order, and empties the coalescer.
    pub fn drain(&mut self, mut each: impl FnMut(Packet<'_>)) {
        for chain in &mut self.chains {
            if let Some(slot) = chain.slot {
                self.flows.free(slot);
            }
            let joined = chain.first != chain.last;
            let mut packet = Packet {
                header: &[],
                offload: chain.offload,
                owner: chain.owner,
                count: chain.count,
                bytes: chain.bytes,
                first: chain.first,
                links: &self.links,
            };
            if let Some((header, offload)) = chain.header() {
                (packet.header, packet.offload) = (header, offload);
            }
            debug_assert!(!joined || !packet.header.is_empty());
            each(packet);
        }
        self.chains.clear();
        self.links.clear();
        self.latest = 0;
    }

    /// Makes room for a packet, and for a chain of it.
    fn link(&mut self, place: FrameSlice) -> Result<u16, Full> {
        if self.links.len() >= self.most_packets || self.chains.len() >= self.most_chains {
            return Err(Full);
        }
        let number = field::length(self.links.len()).ok_or(Full)?;
        self.links.push(Link { place, next: END });
        Ok(number)
    }

    /// Appends `link` to chain number `chain`, if `candidate` fits there.
    fn join(&mut self, chain: usize, candidate: &Candidate<'_>, link: u16, owner: u32) -> bool {
        let Some(chain) = self.chains.get_mut(chain) else {
            return false;
        };
        let joined = chain.join(candidate, owner);
        if joined {
            if let Some(last) = self.links.get_mut(usize::from(chain.last)) {
                last.next = link;
            }
            chain.last = link;
        }
        joined
    }

    /// Appends `link` to the latest chain of its flow, or begins the flow's next one with it: then nothing finds the
    /// one before any more.
    fn join_flow(
        &mut self,
        inner: &Inner,
        candidate: &Candidate<'_>,
        offload: Offload,
        link: u16,
        owner: u32,
    ) {
        let mut chain = Chain::alone(offload, inner.len, link, owner);
        let Some(flow) = Flow::of(inner) else {
            return self.begin(chain);
        };
        let slot = match self.find(&flow, inner) {
            FlowSlot::Vacant(slot) => slot,
            FlowSlot::Chain(number, slot) => {
                let number = usize::from(number);
                if self.join(number, candidate, link, owner) {
                    self.latest = number;
                    return;
                }
                slot
            }
        };
        chain.growth = Growth::new(flow, candidate);
        chain.slot = Some(slot);
        self.latest = self.chains.len();
        if let Some(number) = field::length(self.latest) {
            self.flows.set(slot, number);
        }
        self.begin(chain);
    }

    fn begin(&mut self, chain: Chain) {
        self.chains.push(chain);
    }

    /// Seals the chains of `inner`'s flow, so that no later packet passes it.
    fn seal(&mut self, inner: &Inner) {
        if inner.fragment == Fragment::Whole {
            return self.seal_unless(inner, |_| false);
        }
        // Any flow between the two may be the fragment's.
        for chain in &mut self.chains {
            if chain.is_between(inner.source, inner.destination) {
                chain.seal();
            }
        }
    }

    fn seal_unless(&mut self, inner: &Inner, harmless: impl Fn(&Chain) -> bool) {
        let Some(flow) = Flow::of(inner) else { return };
        let FlowSlot::Chain(number, _) = self.find(&flow, inner) else {
            return;
        };
        if let Some(chain) = self.chains.get_mut(usize::from(number))
            && !harmless(chain)
        {
            chain.seal();
        }
    }

    fn find(&self, flow: &Flow, inner: &Inner) -> FlowSlot {
        self.flows.find(inner.flow_hash(), |number| {
            let chain = self.chains.get(usize::from(number));
            chain.is_some_and(|chain| chain.is_of(flow))
        })
    }
}

impl Packet<'_> {
    /// Where the payloads lie that follow the header, in order; for a packet as it came, all of it.
    pub fn pieces(&self) -> impl Iterator<Item = FrameSlice> + Clone {
        let header = self.header.len();
        self.packets().map(move |place| FrameSlice {
            frame: place.frame,
            len: place.len.saturating_sub(header as u16),
            start: place.start.saturating_add(header as u32),
        })
    }

    /// Where the packets lie that it is made of, each with the header that it came with.
    pub fn packets(&self) -> impl Iterator<Item = FrameSlice> + Clone {
        let mut next = self.first;
        std::iter::from_fn(move || {
            let link = self.links.get(usize::from(next))?;
            next = link.next;
            Some(link.place)
        })
    }
}

/// What a packet with this verdict leaves undone.
fn unfinished(verdict: ChecksumState) -> Offload {
    let ChecksumState::Partial { start, offset } = verdict else {
        return Offload::NONE;
    };
    let numbers = field::length(start).zip(field::length(offset));
    Offload {
        checksum: numbers.map(|(start, offset)| Unfinished { start, offset }),
        cut: None,
    }
}

/// No link.
const END: u16 = u16::MAX;
