//! Every number that bounds something in the packet engine.

use std::time::Duration;

/// Bytes of one buffer: the largest IP packet or UDP payload the kernel can hand over.
pub const FRAME: usize = 65_536;

/// Packets read from the device in one step: as many small ones as leave as one message.
pub const OUTBOUND_PACKETS: usize = GSO_SEGMENTS;

/// From this many packets of a step on, the one that fills a GSO batch is its last: the batch leaves as one message, and
/// the next step begins another. Of UDP with 1,400 bytes 45 packets fill a batch, and the rest of 64 would leave as a
/// batch of 19; of 64 bytes 63 do, and one would leave alone. Below it a step goes on, as where one super-packet fills a
/// batch.
pub const FULL_GSO_BATCH_ENDS_FROM: usize = OUTBOUND_PACKETS / 2;

/// How long a worker pauses for packets that come in small batches, as network cards moderate interrupts. At the rates
/// at which a pause pays, a few dozen packets come in this time; the device's queue holds about a thousand.
pub const MODERATION_PAUSE: Duration = Duration::from_micros(50);
/// Packets of a batch from which on the worker pauses; fewer may be requests that wait for a reply.
pub const MODERATION_PACKETS: usize = 4;
/// Bytes of a batch up to which the worker pauses; a single GSO batch of a TCP stream has more.
pub const MODERATION_BYTES: usize = FRAME / 2;
/// Batches in a row that must have gone one way alone before.
pub const MODERATION_STEPS: u32 = 8;
/// The longest gap between two of them: a little longer than another busy thread keeps a worker from its core, measured
/// 9 ms. Several threads keep it as many times longer, and the count starts anew.
pub const MODERATION_MEMORY: Duration = Duration::from_millis(10);

/// Bytes read from the device in one step. A step may exceed it by one packet.
///
/// What one step reads is copied to a socket and from there to the receiver: measured, a step of 512 KB falls out of
/// the processor's cache on the way.
pub const OUTBOUND_BYTES: usize = 256 * 1024;

/// Wire packets from which on a step reads no more from the device: a super-packet may have thousands.
pub const OUTBOUND_SEGMENTS: usize = 1_024;
/// Packets that a step drops, at most, because their pods are over their shares: about as long a work as forwarding
/// [`OUTBOUND_PACKETS`].
pub const OVER_SHARE_PACKETS: usize = 256;

/// Small wire packets of a source in one round, a burst of which a worker forwards within about a millisecond
/// ([`crate::fair_shares`]).
pub const QUANTUM_PACKETS: usize = 2_048;
/// Bytes of a source in one round: more than the windows of a few TCP flows let wait.
pub const QUANTUM_BYTES: usize = 32 << 20;
/// Wire packets below this size, in bytes, on average in a super-packet, count as packets.
pub const SMALL_PACKET: usize = 512;
/// The longest round, for a worker that never finds its sources empty.
pub const ROUND: Duration = Duration::from_millis(20);
/// In the second half of a round the quantum of small packets is so many times smaller.
pub const LATE_SHARE: usize = 8;
/// A source is the only one when no other was seen for so long: a flow of some packets a second is no flow to wait for it.
pub const ALONE_AFTER: Duration = Duration::from_secs(1);
/// Quanta of the only source: more than TCP lets wait, and work of a few milliseconds for a worker.
pub const ALONE_QUANTA: u32 = 8;
/// Sources that have a quantum of their own in one round; beyond it, some share one.
pub const FAIR_SOURCES: usize = 1_024;
/// Places of the table that a source can have.
pub const FAIR_PROBES: usize = 8;

/// Buffers received from each socket in one step.
pub const INBOUND_BUFFERS: usize = 16;

/// Bytes received from each socket in one step, if its buffers are as full as those of the step before; eight full
/// ones always. See [`OUTBOUND_BYTES`].
pub const INBOUND_BYTES: usize = 8 * FRAME;

/// Inner packets of one batch that are gathered into super-packets before any of them is written: as many as its
/// buffers can hold (`UDP_GRO_CNT_MAX`).
pub const COALESCED_PACKETS: u16 = INBOUND_BUFFERS as u16 * 64;
/// Packets, super-packets and single ones, that they may become before they are written.
pub const COALESCED_CHAINS: u16 = 256;

/// Shares that wait for a worker, from each of the others, at most.
pub const INBOX: usize = 4;
/// Batches of a worker that others can have borrowed at the same time, at most. Each has as many buffers as one receive
/// call fills; the kernel provides their memory, 1 MiB, when they are first filled.
pub const STEERED_BATCHES: usize = 32;

/// Batches of each of `workers` workers: as many as each of the others keeps if it stalls, those in its inbox and the
/// one that it was delivering, and three more; [`STEERED_BATCHES`] at most. So up to six other workers can stall at the
/// same time without effect on the rest.
pub const fn steered_batches(workers: usize) -> usize {
    let batches = (INBOX + 1) * workers.saturating_sub(1) + 3;
    if batches < STEERED_BATCHES {
        batches
    } else {
        STEERED_BATCHES
    }
}

/// Datagrams of one share at most: all that the buffers of a batch can hold (`UDP_MAX_SEGMENTS` since Linux 6.9).
pub const SHARE: usize = INBOUND_BUFFERS * 128;

/// How long an unsent tail is held for a full socket before it is dropped as `UnderlayFull`.
pub const HOLD: Duration = Duration::from_millis(10);

/// How long datagrams for a worker whose inbox is full stay in the socket before they are dropped as `RingFull`. The
/// scheduler keeps a worker from its core for about 9 ms for each other busy thread; datagrams of a much longer time at
/// 3 Gb/s do not fit [`RECEIVE_BUFFER`], and then flows of other workers lose packets in the kernel. The wait for each
/// worker is independent: if several stall, their inboxes fill one after the other, and the times add up.
pub const FULL_INBOX_WAIT: Duration = Duration::from_millis(25);

/// A sleeping worker wakes this often to show that it is alive.
pub const TICK: Duration = Duration::from_millis(500);

/// A worker that shuts down checks this often whether all have left.
pub const DRAIN: Duration = Duration::from_millis(1);

/// A worker that may not read any more looks this often whether it may again.
pub const PARKED: Duration = Duration::from_millis(1);

/// How long a learned path MTU is believed (RFC 1191 section 6.3), unless it is shown to be wrong before.
pub const PATH_MTU_LIFE: Duration = Duration::from_secs(600);

/// A router's report counts only if a second one about another datagram follows within this time. Linux reports every
/// datagram (`icmpv4_mask_allow`), other routers about two a second; a TCP sender without an answer sends again within a
/// few seconds.
pub const REPORT_CONFIRMED_WITHIN: Duration = Duration::from_secs(10);

/// What routers reported of a path is tried after this time for the first time, and each time after twice as long ...
pub const FIRST_PATH_TRIAL: Duration = Duration::from_secs(10);
/// ... but at least this often, so that a path that stays narrow is confirmed before it is forgotten.
pub const PATH_TRIAL_AT_LEAST_EVERY: Duration = Duration::from_secs(320);
/// A trial that no router answers in this time shows that the path carries more: as long as a report takes at most, and
/// a few times as long as a worker sleeps ([`TICK`]).
pub const PATH_TRIAL_WAIT: Duration = Duration::from_secs(2);

/// Bytes of an inner packet that a report must quote: IP and TCP headers, or what an application put in front of its
/// data. With the headers in front of it a router quotes it that quotes 128 bytes (RFC 4884) or all that an ICMP error
/// holds (RFC 1812, RFC 4443).
pub const INNER_START: usize = 64;
/// Datagrams of each message that a report may quote: the first. Most messages have no more. Of the others a router that
/// reports anything at all reports the first ones too.
pub const REMEMBERED_OF_MESSAGE: usize = 4;
/// Datagrams that a worker remembers of all sources, 8 bytes each: of full messages those of 100 ms at 10 Gb/s.
pub const REMEMBERED_DATAGRAMS: usize = 8_192;
/// Datagrams that it remembers of one inner source beside a flood of another, in as much memory again: of full messages
/// those of 80 ms at 100 Mb/s. Of 128 sources one shares them with a given flood.
pub const REMEMBERED_OF_SOURCE: usize = 64;
/// How long it remembers them at most; a report comes within a round trip.
pub const REMEMBERED_FOR: Duration = Duration::from_secs(4);

/// No path MTU makes inner IPv4 packets smaller than this (RFC 791).
pub const MIN_INNER_V4: u16 = 576;

/// No path MTU makes inner IPv6 packets smaller than this (RFC 8200 section 5).
pub const MIN_INNER_V6: u16 = 1280;

/// ICMP errors a single source can draw at once, and the time until it has one more.
pub const ICMP_BURST: u32 = 32;
/// See [`ICMP_BURST`].
pub const ICMP_EVERY: Duration = Duration::from_millis(10);
/// Sources whose ICMP errors are bounded apart from each other; beyond it they share by hash.
pub const ICMP_SOURCES: usize = 256;

/// Probes of a peer that are answered or heard at once; a search for the path MTU sends a dozen ...
pub const PROBE_BURST: u32 = 64;
/// ... and the time until it has one more.
pub const PROBE_EVERY: Duration = Duration::from_micros(62_500);
/// Sets of buckets for outer addresses ([`crate::probe`]). Of 5,000 peers that send a request and an answer a second, about
/// five probes a second draw from a bucket, which gives sixteen.
pub const PROBE_SETS: usize = 128;
/// Buckets of a set, for outer ports.
pub const PROBE_PORTS: usize = 16;
/// Answers to the requests of one batch, at most.
pub const ANSWERS: usize = 64;
/// Probes that wait for control, of each worker: those of 5,000 peers in 400 ms.
pub const HEARD_PROBES: usize = 4_096;
/// Reports of peers that wait for control, of each worker.
pub const HEARD_REPORTS: usize = 64;

/// How long flows are counted after a watcher asked for them ([`crate::heavy_flows`]).
pub const HEAVY_FLOWS_WATCH: Duration = Duration::from_secs(10);
/// The time in which what a flow carried counts half as much for its place: a power of two in nanoseconds, 1.07 s.
pub const HEAVY_FLOWS_HALF_LIFE: Duration = Duration::from_nanos(1 << 30);

/// Captures of packets that run at a time ([`crate::capture`]).
pub const CAPTURES: usize = 4;
/// Bytes of a capture's ring, of each worker: 13,000 packets with 256 bytes of each.
pub const CAPTURE_RING: usize = 4 << 20;
/// The same where more than [`CAPTURE_SMALL`] bytes of a packet are captured: 250 of the largest.
pub const CAPTURE_RING_LARGE: usize = 16 << 20;
/// See [`CAPTURE_RING_LARGE`].
pub const CAPTURE_SMALL: usize = 2_048;
/// Drops of one direction and reason that each worker gives a sampled capture, beside the first one of each sender ...
pub const CAPTURE_SAMPLES: u32 = 4;
/// ... within so long.
pub const CAPTURE_SAMPLE_TIME: Duration = Duration::from_millis(100);

/// Notices to control that wait to be read; further ones are forgotten, their packets are counted all the same.
pub const NOTICES: usize = 256;

/// Slots of the direct route table (4 bytes each); a cluster that needs more falls back to longest-prefix match.
pub const DIRECT_SLOTS: u32 = 1 << 20;
/// Slots of that table for each route, on average: sixteen routes pay for 65,536 slots, and fewer are found by
/// longest-prefix match in as many steps as their number has bits.
pub const DIRECT_SLOTS_PER_ROUTE: u32 = 1 << 12;

/// Workers that a counters page has room for.
pub const MAX_WORKERS: usize = 64;

/// Receive and send buffer asked of the kernel for each underlay socket, bytes.
pub const RECEIVE_BUFFER: i32 = 8 << 20;
/// See [`RECEIVE_BUFFER`]. Small enough that a full one drains within milliseconds.
pub const SEND_BUFFER: i32 = 2 << 20;

/// How often a worker that sends checks its error queues, where no error announced a report.
pub const ERROR_QUEUE_CHECK: Duration = Duration::from_millis(1);
/// For how long after the latest datagram it checks them. A router's report comes within a round trip; a worker that sleeps wakes in this
/// time ([`TICK`]).
pub const ERROR_QUEUE_CHECKED_FOR: Duration = Duration::from_secs(1);

/// Reports read from a socket's error queue at a time.
pub const ERROR_REPORTS: usize = 64;

/// How often in a row a send or receive is repeated because it returned the error of an earlier datagram. Beyond it, as
/// under a storm of forged ICMP, the socket counts as full and is tried again a moment later.
pub const ERROR_ROUNDS: usize = 8;

/// Messages of one `sendmmsg` at most.
pub const SEND_MESSAGES: usize = 64;

/// Pieces of all messages of one `sendmmsg` at most; a message has two for each datagram.
pub const SEND_PIECES: usize = 2_048;

/// Datagrams that leave as one message at most (`UDP_MAX_SEGMENTS` before Linux 6.9), also as many as a receiver puts
/// together again (`UDP_GRO_CNT_MAX`).
pub const GSO_SEGMENTS: usize = 64;

/// Bytes of UDP payload that leave as one message over IPv4 at most: what an IP packet holds.
pub const GSO_BYTES_V4: usize = 65_535 - 20 - 8;
/// See [`GSO_BYTES_V4`]. The IPv6 header is counted too, as devices count it in what they cut (`gso_max_size`).
pub const GSO_BYTES_V6: usize = 65_535 - 40 - 8;

/// GSO batches, the latest first, that a datagram may join before it begins a new one.
pub const GSO_BATCHES_SEARCHED: usize = 8;

/// Transmit sockets of a worker for each VXLAN port. A flow keeps to one of them, so its outer source port is constant,
/// and different flows spread over the paths and receive queues of the underlay.
pub const TRANSMIT_SOCKETS: usize = 4;

/// Control bytes of one received message: room for the segment size, the traffic class, and an error with the address
/// of its reporter.
pub const CONTROL: usize = 128;

/// Bytes kept of a quoted datagram: the VXLAN and Ethernet headers, and more than [`INNER_START`] bytes behind them.
pub const QUOTE: usize = 96;

/// An offload is given up after so many failures ...
pub const OFFLOAD_FAILURES: u32 = 3;
/// ... within so long ...
pub const OFFLOAD_FAILURE_TIME: Duration = Duration::from_secs(1);
/// ... and tried again after so long.
pub const PROBATION: Duration = Duration::from_secs(60);

/// Pieces of one packet written to the device: a header and the payloads of a chain.
pub const PIECES: usize = 1 + 64;

/// Events that one poll returns.
pub const EVENTS: usize = 8;

/// How long the programs of the kernel path act without a service that moves their lease on.
pub const KERNEL_PATH_LEASE: Duration = Duration::from_secs(60);
/// How long a request that says whether its sender's kernel path is in use counts: four times the pause between two requests to
/// a peer that never answers, and six times that of one among 5,000 peers.
pub const KERNEL_PATH_ANNOUNCED_FOR: Duration = Duration::from_secs(120);
/// Packets of a flow through the host's stack after which it is proposed for the kernel path.
pub const KERNEL_PATH_FLOW_AFTER: u16 = 32;
/// Outer source ports of the kernel path begin here ...
pub const KERNEL_PATH_SOURCE_PORTS_FROM: u16 = 32_768;
/// ... and are so many: Linux's default range of local ports, from which its own VXLAN device takes them too.
pub const KERNEL_PATH_SOURCE_PORTS: u16 = 28_232;
