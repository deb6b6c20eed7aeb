//! The protocols between workers, tried in every order in which two or three threads can run them.
//!
//! The sources under test are those of the engine, word for word; only what they are made of is loom's. loom does not
//! see into crossbeam's rings, mio's wakers or arc-swap's pointers, so simple ones stand in for them here.
//!
//! `MODELS_PREEMPTIONS` bounds how often a thread is interrupted at will (without it, [`PREEMPTIONS`]); more finds more
//! and takes longer.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, unreachable_pub)]

mod pool_model;
mod shutdown;
mod snapshot;
mod wakeup_model;

#[path = "../../src/steer/pool.rs"]
pub(crate) mod pool;
#[path = "../../src/publication/retired.rs"]
pub(crate) mod retired;
#[path = "../../src/steer/senders.rs"]
pub(crate) mod senders;
#[path = "../../src/steer/wakeup.rs"]
pub(crate) mod wakeup;

/// What the sources are made of in place of the engine's own.
mod sync;

/// Tries `model` in every order.
fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    let bound = std::env::var("MODELS_PREEMPTIONS").ok();
    builder.preemption_bound = Some(bound.map_or(PREEMPTIONS, |bound| bound.parse().unwrap()));
    builder.check(model);
}

const PREEMPTIONS: usize = 3;
