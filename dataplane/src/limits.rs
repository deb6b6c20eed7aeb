//! Every number that bounds something in the packet engine.

use std::time::Duration;

/// Bytes of one buffer: the largest IP packet or UDP payload the kernel can hand over.
pub const FRAME: usize = 65_536;

/// Packets read from the device in one step: as many small ones as leave as one message.
pub const OUTBOUND_PACKETS: usize = TRAIN_LENGTH;

/// From this many packets of a step on, the one that fills a train is its last: it leaves as one message, and what would
/// begin another train comes with the next step. Of UDP with 1,400 bytes 45 fill a train, and the rest of 64 would leave
/// as a train of 19; of 64 bytes 63 do, and one would leave alone. Below it a step goes on, as where one super-packet
/// fills a train.
pub const FULL_TRAIN_ENDS_FROM: usize = OUTBOUND_PACKETS / 2;

/// How long packets that come in small batches are left to gather, as network cards moderate their interrupts. A few
/// dozen of them come in this time at the rates at which it pays; the device's queue takes some thousand.
pub const GATHER: Duration = Duration::from_micros(50);
/// Batches of so many packets and more gather; a smaller one may be somebody's question.
pub const GATHER_PACKETS: usize = 4;
/// Batches of more bytes are large enough: a single train of a TCP stream is.
pub const GATHER_BYTES: usize = FRAME / 2;
/// So many batches must have gone one way alone before.
pub const GATHER_STEPS: u32 = 8;
/// And no two of them so long apart: a little longer than one program that computes on the core keeps a worker from it,
/// measured 9 ms. Several keep it longer, as many times as they are, and what was learned is forgotten.
pub const GATHER_MEMORY: Duration = Duration::from_millis(10);

/// Bytes read from the device in one step. A step may exceed it by one packet.
///
/// What one step reads is copied to a socket and from there to the receiver: measured, a step of 512 KB falls out of
/// the processor's cache on the way.
pub const OUTBOUND_BYTES: usize = 256 * 1024;

/// Buffers received from each socket in one step.
pub const INBOUND_BUFFERS: usize = 16;

/// Bytes received from each socket in one step, if its buffers are as full as those of the step before; eight full
/// ones always. See [`OUTBOUND_BYTES`].
pub const INBOUND_BYTES: usize = 8 * FRAME;

/// Inner packets of one batch that are gathered into super-packets before any of them is written: as many as its
/// buffers can hold (`UDP_GRO_CNT_MAX`).
pub const GATHERED: u16 = INBOUND_BUFFERS as u16 * 64;
/// Packets, super-packets and single ones, that they may become before they are written.
pub const GATHERED_CHAINS: u16 = 256;

/// Shares that wait for a worker, from each of the others, at most.
pub const INBOX: usize = 4;
/// Batches of a worker that can be with others at the same time, where flows are steered, at most. Each has as many
/// buffers as one receive call fills; the kernel gives their memory, 1 MiB, when they are filled first.
pub const STEERED_BATCHES: usize = 32;

/// Batches of each of `workers` workers: as many as each of the others keeps if it stands still, those in its inbox and
/// the one that it was at, and three to go on with; [`STEERED_BATCHES`] at most. So others may stand still, six of them
/// at once, and take nothing from who moves.
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

/// How long what came for a worker whose inbox is full stays in the socket before it is dropped as `RingFull`. A scheduler
/// keeps a worker from its core for about 9 ms for each program that computes there; what comes in much more than this at
/// 3 Gb/s does not fit [`RECEIVE_BUFFER`], and then flows of others lose packets in the kernel. Each worker is waited for by
/// itself: of several that stand still the inboxes fill one after the other, and the times add up.
pub const PATIENCE: Duration = Duration::from_millis(25);

/// A sleeping worker wakes this often to show that it is alive.
pub const TICK: Duration = Duration::from_millis(500);

/// A worker that ends looks this often whether it can go.
pub const DRAIN: Duration = Duration::from_millis(1);

/// How long a learned path MTU is believed (RFC 1191 section 6.3).
pub const PATH_MTU_LIFE: Duration = Duration::from_secs(600);

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

/// How often a worker that sends looks for reports of what it sent, where no error told of them.
pub const REPORTS: Duration = Duration::from_millis(1);
/// And how long after the latest datagram. A router's report comes within a round trip; a worker that sleeps wakes in this
/// time ([`TICK`]).
pub const REPORTS_AWAITED: Duration = Duration::from_secs(1);

/// Reports read from a socket's error queue at a time.
pub const ERRORS: usize = 64;

/// How often in a row a send or receive is repeated because it met the error of an earlier datagram. Beyond it, as
/// under a storm of forged ICMP, the socket counts as full and is tried again a moment later.
pub const ERROR_ROUNDS: usize = 8;

/// Messages of one `sendmmsg` at most.
pub const SEND_MESSAGES: usize = 64;

/// Pieces of all messages of one `sendmmsg` at most; a message has two for each datagram.
pub const SEND_PIECES: usize = 2_048;

/// Datagrams that leave as one message at most (`UDP_MAX_SEGMENTS` before Linux 6.9), also as many as a receiver puts
/// together again (`UDP_GRO_CNT_MAX`).
pub const TRAIN_LENGTH: usize = 64;

/// Bytes of UDP payload that leave as one message over IPv4 at most: what an IP packet holds.
pub const TRAIN_BYTES_V4: usize = 65_535 - 20 - 8;
/// See [`TRAIN_BYTES_V4`]. The IPv6 header is counted too, as devices count it in what they cut (`gso_max_size`).
pub const TRAIN_BYTES_V6: usize = 65_535 - 40 - 8;

/// Trains that a datagram is compared with, the latest first, before it begins one of its own.
pub const TRAINS_SEARCHED: usize = 8;

/// Transmit sockets of a worker for each VXLAN port. A flow keeps to one of them, so its outer source port is constant,
/// and different flows spread over the paths and receive queues of the underlay.
pub const TRANSMIT_SOCKETS: usize = 4;

/// Control bytes of one received message: room for the segment size, the traffic class, and an error with the address
/// of who reports it.
pub const CONTROL: usize = 128;

/// Bytes kept of a quoted datagram: both headers and the addresses behind them.
pub const QUOTE: usize = 96;

/// An offload is given up after so many proofs against it ...
pub const PROOFS: u32 = 3;
/// ... within so long ...
pub const PROOF_TIME: Duration = Duration::from_secs(1);
/// ... and tried again after so long.
pub const PROBATION: Duration = Duration::from_secs(60);

/// Pieces of one packet written to the device: a header and the payloads of a chain.
pub const PIECES: usize = 1 + 64;

/// Events that one poll returns.
pub const EVENTS: usize = 8;
