//! Theory of operation
//!
//! Flows that leave the host's stack out: installed, prolonged and revoked by a thread of their own.
//!
//! ```text
//!   programs ── ring of events ──▶ flow thread ──▶ flows_out, flows_in
//!   (behind the host's stack)        │    ▲
//!                 connection tracking ◀┘    └── nf_tables, routes, rules, links, forgotten connections
//! ```
//!
//! A *flow* is one direction of a TCP or UDP connection between a pod of this node and one of a peer. Its packets take
//! the way through the host's stack until a program *behind* that stack (at the egress of the tunnel device, or of the
//! pod's host end) has seen enough of them, and proposes it. So each proposal is a proof: rules and routes of the host,
//! as they were a moment ago, let packets of this flow pass. The thread judges it ([`policy`]) by the published tables
//! and by what connection tracking knows ([`conntrack`]), and writes it into the table; from then on the programs carry
//! it from pod to underlay and back. The proposal is the only source: nothing is installed from memory.
//!
//! **Limits.** An entry holds for [`LIFETIME`](policy::LIFETIME) at most. Half of it before, the programs send one packet
//! a second of the flow through the stack; that prolongs what connection tracking remembers, and proposes the flow again
//! unless its packets come 2 s apart or more.
//! So whatever rule is not announced takes effect within that time, and where no service lives the entries end.
//! Judgements are bounded by a [`budget`], entries by the tables' size (the one not used for longest goes); the thread
//! keeps no state for each flow.
//!
//! **Revocation** ([`revoke`]): all flows by the next epoch, one pod's by its generation, one connection's by removal;
//! each is a write or two in the kernel's tables, done by this thread as soon as it reads the announcement. Every
//! judgement carries the epoch of its proposal, and is void in another: what was announced after the packets passed
//! voids it, whichever of the two this thread reads first. Peers that go or change, and pods without an interface of their
//! own, are the control loop's (`follow`).
//!
//! **Start.** What changed while no thread watched is not announced later. The kernel numbers each change of nf_tables, and the
//! tables keep the number of the last one that a thread followed: where it is another at a start, all flows end. Else a
//! service that starts goes on with the flows of the one before it, for it may be killed before they are installed anew: it
//! begins an epoch beside theirs, in which one packet a second of each passes the host's stack to propose it. Those that no
//! packet has proposed within 3 s end, whatever changed.
//!
//! **Order.** A flow that changes to the short path may have a packet on the long one (a queue of the tunnel device, of
//! the pod's interface): it can arrive behind one that was sent after it. That is the one exception from the law that a
//! flow never reorders; it happens once for each flow [`installed`](FlowTotals::installed), and TCP notices a few
//! segments out of order at most. In the other direction nothing overtakes, because the long path is the slower.

mod budget;
pub mod conntrack;
pub(crate) mod control;
mod counts;
mod facts;
pub mod policy;
mod refusal;
pub mod revoke;
mod thread;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread::JoinHandle;

use dataplane::kernel_path::{Event, FlowTable, KernelPathError};
use dataplane::landlock::Renounced;
use dataplane::priority;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use tokio::sync::{mpsc, watch};
use tracing::{error, info};

use crate::causes::causes;
use crate::confinement::renounce_files;

pub use counts::{FlowCounts, FlowTotals};
pub use facts::{FlowFacts, FlowPod};
pub use refusal::Refusal;
pub use revoke::Cause;

/// Why flows cannot be judged or watched. Nothing is installed then, and the programs carry what they carry without
/// flows.
#[derive(Debug, thiserror::Error)]
pub enum FlowError {
    /// No socket of netlink for a part of the kernel.
    #[error("no netlink socket for {what}: run as root or with CAP_NET_ADMIN")]
    Netlink {
        /// Which part.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A table or the ring of events refuses.
    #[error("the tables of the kernel path fail")]
    Tables {
        /// What it said.
        #[from]
        source: KernelPathError,
    },
    /// The kernel has no thread or descriptor left.
    #[error("the kernel has no thread or descriptor for the flow thread")]
    Thread {
        /// What the kernel said.
        source: io::Error,
    },
}

/// What ends the flow thread's wait.
struct Wake {
    /// An eventfd, readable until the thread has read it.
    event: OwnedFd,
    /// The thread is to end.
    is_stopped: AtomicBool,
}

impl Wake {
    fn new() -> rustix::io::Result<Wake> {
        Ok(Wake {
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_stopped: AtomicBool::new(false),
        })
    }

    fn wake(&self) {
        // An eventfd takes a number this small at any time (eventfd(2)).
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    fn stop(&self) {
        self.is_stopped.store(true, Release);
        self.wake();
    }

    /// Takes what woke the thread. Returns whether that is to end.
    fn take(&self) -> bool {
        // Whatever it reads, another wake makes it readable again.
        let _ = rustix::io::read(&self.event, &mut [0; size_of::<u64>()]);
        self.is_stopped.load(Acquire)
    }
}

/// The flow thread, as the control loop holds it. It ends when this is dropped.
pub struct FlowService {
    wake: Arc<Wake>,
    thread: Option<JoinHandle<()>>,
    counts: Arc<FlowCounts>,
}

impl FlowService {
    /// Starts the thread in the calling thread's network namespace, which goes on with the flows of a service before it for
    /// 3 s at most, or not at all: of what changed before, nothing is announced to it. It goes by the latest `facts`, and
    /// ends when their sender is dropped. The ring of events has one reader: whatever event is no proposal goes to `others`,
    /// and is dropped while that is full.
    ///
    /// # Errors
    /// [`FlowError`]; then nothing was started.
    pub fn start(
        table: FlowTable,
        facts: watch::Receiver<Arc<FlowFacts>>,
        others: mpsc::Sender<Event>,
    ) -> Result<FlowService, FlowError> {
        let none = |source: rustix::io::Errno| FlowError::Thread {
            source: source.into(),
        };
        let wake = Arc::new(Wake::new().map_err(none)?);
        let counts = Arc::new(FlowCounts::default());
        let work = thread::Work::begin(table, facts, others, Arc::clone(&counts))?;
        let woken = Arc::clone(&wake);
        let run = move || {
            renounce_files(Renounced::Changes);
            // Workers and pods use all cores; a revocation must not wait for them. What the thread does is bounded.
            if let Err(refusal) = priority::become_urgent() {
                info!(
                    "the flow thread shares cores with all others ({refusal}): flows are revoked later under load"
                );
            }
            if let Err(failure) = work.run(&woken) {
                error!("the flow thread ends: {}", causes(&failure));
            }
        };
        let builder = std::thread::Builder::new().name("flows".to_owned());
        let thread = builder.spawn(run);
        let thread = thread.map_err(|source| FlowError::Thread { source })?;
        Ok(FlowService {
            wake,
            thread: Some(thread),
            counts,
        })
    }

    /// Has the thread look at once whether programs follow flows, and by which facts.
    pub fn wake(&self) {
        self.wake.wake();
    }

    /// What it counts; the same for as long as the thread lives and after.
    pub fn counts(&self) -> Arc<FlowCounts> {
        Arc::clone(&self.counts)
    }

    /// Whether the thread judges and watches. Once it does not, flows must be switched off: they would end by themselves
    /// after [`LIFETIME`](policy::LIFETIME), and no change of the host's rules would end them before.
    pub fn is_running(&self) -> bool {
        self.thread
            .as_ref()
            .is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for FlowService {
    fn drop(&mut self) {
        self.wake.stop();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has ended the process.
            let _ = thread.join();
        }
    }
}
