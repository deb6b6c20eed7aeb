//! What one packet costs in the engine, without the kernel.
#![allow(missing_docs, reason = "criterion's macros make the functions")]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a bench that cannot be set up should fail loudly"
)]

mod fib;
mod publication;
mod ring;
mod step;
mod workers;

use std::time::Duration;

use benches::packets::Shape;
use criterion::{Criterion, criterion_group, criterion_main};
use encap::protocol::{TCP, UDP};

/// Datagrams one by one, datagrams in GSO batches, and what a TCP stream becomes.
const SHAPES: [Shape; 5] = [
    Shape::new("udp 64 B", UDP, 1, 64),
    Shape::new("udp 1400 B", UDP, 1, 1_400),
    Shape::new("udp 64 x 64 B", UDP, 64, 64),
    Shape::new("udp 44 x 1400 B", UDP, 44, 1_400),
    Shape::new("tcp 44 x 1398 B", TCP, 44, 1_398),
];

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(WARM_UP).measurement_time(MEASURED).sample_size(SAMPLES);
    targets =
        fib::lookup,
        fib::build,
        publication::publish,
        publication::free,
        ring::hand_off,
        step::outbound,
        step::inbound,
        step::watched,
        step::captured,
        workers::outbound,
        workers::inbound
}
criterion_main!(benches);

// All of a file's benches take two minutes at most; medians repeat within a few per cent.
const WARM_UP: Duration = Duration::from_millis(300);
const MEASURED: Duration = Duration::from_millis(1_000);
const SAMPLES: usize = 30;
