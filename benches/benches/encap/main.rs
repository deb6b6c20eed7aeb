//! What one packet costs in `encap`: one core, no system call.
#![allow(missing_docs, reason = "criterion's macros make the functions")]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a bench that cannot be set up should fail loudly"
)]

mod checksum;
mod coalesce;
mod headers;
mod segment;

use std::time::Duration;

use benches::packets::Shape;
use criterion::{Criterion, criterion_group, criterion_main};
use encap::protocol::{TCP, UDP};

/// Runs of one flow: what `gso_max_segs` lets pods send, half a congestion window, and datagrams long and short.
const SHAPES: [Shape; 4] = [
    Shape::new("tcp 44 x 1398", TCP, 44, 1_398),
    Shape::new("tcp 12 x 1398", TCP, 12, 1_398),
    Shape::new("udp 44 x 1422", UDP, 44, 1_422),
    Shape::new("udp 64 x 64", UDP, 64, 64),
];

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(WARM_UP).measurement_time(MEASURED).sample_size(SAMPLES);
    targets =
        headers::push,
        headers::pull,
        headers::inner,
        checksum::sum,
        checksum::transport,
        segment::segment,
        coalesce::coalesce
}
criterion_main!(benches);

// All of a file's benches take two minutes at most; medians repeat within a few per cent.
const WARM_UP: Duration = Duration::from_millis(300);
const MEASURED: Duration = Duration::from_millis(1_000);
const SAMPLES: usize = 30;
