//! The workers as threads: started, told to go, given snapshots, watched and stopped.
//!
//! Theory of operation: [`Engine::start`] makes one thread per seat; each pins itself, registers its descriptors with a
//! poll of its own, and waits. Nothing is read before [`Engine::go`], so that two services never read one descriptor.
//! [`Engine::publish`] builds a snapshot beside the old one, swaps a pointer and wakes the workers; each adopts it
//! before its next step. Control never waits for a worker, a worker never waits for control.

use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Cache};
use crossbeam_queue::ArrayQueue;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};

use crate::counters::Counters;
use crate::device::plain::Plain;
use crate::inbound::RefusedSource;
use crate::limits::{EVENTS, TICK};
use crate::now::Now;
use crate::snapshot::Snapshot;
use crate::spec::Spec;
use crate::underlay::Port;
use crate::underlay::socket::Sockets;
use crate::worker::{Next, Source, Worker};

/// What one worker owns, and the core it is pinned to.
pub struct Seat {
    /// Its queue of the tunnel device.
    pub device: Plain,
    /// Its sockets.
    pub underlay: Sockets,
    /// The core, by the kernel's number; `None` leaves the choice to the scheduler.
    pub core: Option<usize>,
}

/// Running workers.
pub struct Engine {
    shared: Arc<Shared>,
    counters: Counters,
    threads: Vec<Thread>,
}

/// What a worker saw and control should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// An outer source that no peer has, speaking for an inner source that one does. `underlay-sources` of that peer
    /// would accept it.
    RefusedSource {
        /// The outer source.
        outer: IpAddr,
        /// The inner source.
        inner: IpAddr,
        /// The name of the peer that owns the inner source.
        owner: Option<String>,
    },
}

/// Why the workers cannot start.
#[derive(Debug)]
pub enum EngineError {
    /// The counters page was made for another number of workers.
    Counters {
        /// Seats given.
        seats: usize,
        /// Workers of the page.
        page: usize,
    },
    /// No poll, waker or thread to be had.
    Kernel(io::Error),
}

struct Shared {
    snapshot: ArcSwap<Snapshot>,
    go: AtomicBool,
    stop: AtomicBool,
    device_lost: AtomicBool,
    /// The origin of this engine's time.
    start: Instant,
}

struct Thread {
    handle: JoinHandle<()>,
    waker: Arc<Waker>,
    refused: Arc<ArrayQueue<RefusedSource>>,
}

impl Engine {
    /// Starts one thread per seat with the snapshot of `spec`. Nothing is read before [`Engine::go`].
    ///
    /// # Errors
    /// See [`EngineError`].
    pub fn start(seats: Vec<Seat>, counters: Counters, spec: &Spec) -> Result<Engine, EngineError> {
        if seats.len() != counters.workers() {
            return Err(EngineError::Counters {
                seats: seats.len(),
                page: counters.workers(),
            });
        }
        let shared = Arc::new(Shared {
            snapshot: ArcSwap::from_pointee(Snapshot::new(spec, None)),
            go: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            device_lost: AtomicBool::new(false),
            start: Instant::now(),
        });
        let mut engine = Engine {
            shared,
            counters,
            threads: Vec::with_capacity(seats.len()),
        };
        for (index, seat) in seats.into_iter().enumerate() {
            match Thread::start(index, seat, &engine.counters, &engine.shared) {
                Ok(thread) => engine.threads.push(thread),
                Err(error) => {
                    // Those already started would sit on their queues and sockets for ever.
                    engine.stop();
                    return Err(EngineError::Kernel(error));
                }
            }
        }
        Ok(engine)
    }

    /// Lets the workers read.
    pub fn go(&self) {
        self.shared.go.store(true, Ordering::Release);
        self.wake();
    }

    /// Builds the snapshot of `spec` and hands it to the workers.
    pub fn publish(&self, spec: &Spec) {
        let next = Snapshot::new(spec, Some(&self.shared.snapshot.load()));
        self.shared.snapshot.store(Arc::new(next));
        self.wake();
    }

    /// The snapshot published last.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.shared.snapshot.load_full()
    }

    /// Whether every worker forwards by a snapshot at least as new as `version`.
    pub fn adopted(&self, version: u64) -> bool {
        self.counters
            .read()
            .workers
            .iter()
            .all(|worker| worker.snapshot >= version)
    }

    /// Whether the tunnel device was deleted under a worker. Nothing but opening it anew helps.
    pub fn device_lost(&self) -> bool {
        self.shared.device_lost.load(Ordering::Relaxed)
    }

    /// What the workers noticed since the last call; at most a few hundred, the rest is forgotten.
    pub fn notices(&self) -> Vec<Notice> {
        let snapshot = self.snapshot();
        let owner = |inner| {
            let id = snapshot.fib.lookup(inner)?;
            Some(snapshot.peers.peer(id)?.name.clone())
        };
        let seen = self
            .threads
            .iter()
            .flat_map(|thread| std::iter::from_fn(|| thread.refused.pop()));
        seen.map(|RefusedSource { outer, inner }| Notice::RefusedSource {
            outer,
            inner,
            owner: owner(inner),
        })
        .collect()
    }

    /// The time that the workers reckon by.
    pub fn now(&self) -> Now {
        self.shared.now()
    }

    /// Ends the workers: they read no more, send what they hold or drop it after its time, and return.
    pub fn stop(self) {
        self.shared.stop.store(true, Ordering::Release);
        self.wake();
        for thread in self.threads {
            // A worker that panicked has aborted the process already.
            let _ = thread.handle.join();
        }
    }

    fn wake(&self) {
        for thread in &self.threads {
            // A waker fails only if its poll is gone, and then so is the worker.
            let _ = thread.waker.wake();
        }
    }
}

impl Shared {
    fn now(&self) -> Now {
        Now(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Thread {
    fn start(
        index: usize,
        seat: Seat,
        counters: &Counters,
        shared: &Arc<Shared>,
    ) -> io::Result<Thread> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let worker = Worker::new(seat.device, seat.underlay, counters, index);
        for (token, source) in SOURCES {
            if let Some(descriptor) = worker.descriptor(source) {
                poll.registry()
                    .register(&mut SourceFd(&descriptor), token, Interest::READABLE)?;
            }
        }
        let refused = worker.refused();
        let shared = Arc::clone(shared);
        let run = move || {
            if let Some(id) = seat.core {
                core_affinity::set_for_current(core_affinity::CoreId { id });
            }
            Loop {
                worker,
                poll,
                shared,
                watching_room: false,
            }
            .run();
        };
        let handle = std::thread::Builder::new()
            .name(format!("worker-{index}"))
            .spawn(run)?;
        Ok(Thread {
            handle,
            waker,
            refused,
        })
    }
}

/// A worker and the poll it sleeps in.
struct Loop {
    worker: Worker<Plain, Sockets>,
    poll: Poll,
    shared: Arc<Shared>,
    /// The poll also wakes when a port takes more.
    watching_room: bool,
}

impl Loop {
    fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut snapshot = Cache::new(&shared.snapshot);
        let mut events = Events::with_capacity(EVENTS);
        while !shared.go.load(Ordering::Acquire) && !shared.stop.load(Ordering::Acquire) {
            self.sleep(&mut events, TICK);
        }
        while !shared.stop.load(Ordering::Acquire) {
            let next = self.worker.step(snapshot.load(), self.shared.now());
            if self.worker.device_lost() {
                shared.device_lost.store(true, Ordering::Relaxed);
            }
            self.watch_room(matches!(next, Next::Held(_)));
            let timeout = match next {
                Next::Now => Duration::ZERO,
                Next::Held(left) => left,
                Next::Idle => TICK,
            };
            self.sleep(&mut events, timeout);
        }
        while self.worker.drain(snapshot.load(), self.shared.now()) {
            self.sleep(&mut events, Duration::from_millis(1));
        }
    }

    fn sleep(&mut self, events: &mut Events, timeout: Duration) {
        // An interrupted poll is an early wake-up; it returns no events.
        if self.poll.poll(events, Some(timeout)).is_err() {
            return;
        }
        for event in events.iter() {
            if let Some((_, source)) = SOURCES.iter().find(|(token, _)| *token == event.token()) {
                self.worker.wake(*source);
            }
        }
    }

    /// Asks for writability only while something is held: otherwise every datagram sent would wake the worker.
    fn watch_room(&mut self, held: bool) {
        if held == self.watching_room {
            return;
        }
        self.watching_room = held;
        let interest = if held {
            Interest::READABLE | Interest::WRITABLE
        } else {
            Interest::READABLE
        };
        for (token, source) in SOURCES
            .iter()
            .filter(|(_, source)| matches!(source, Source::Port(_)))
        {
            if let Some(descriptor) = self.worker.descriptor(*source) {
                // Refused only for lack of memory; then the hold ends by its time.
                let _ = self.poll.registry().reregister(
                    &mut SourceFd(&descriptor as &RawFd),
                    *token,
                    interest,
                );
            }
        }
    }
}

impl std::fmt::Display for EngineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EngineError::Counters { seats, page } => {
                write!(
                    f,
                    "{seats} workers cannot count on a page made for {page}: stop the agent and start it anew"
                )
            }
            EngineError::Kernel(error) => {
                write!(f, "the kernel refuses a worker its poll or thread: {error}")
            }
        }
    }
}

impl std::error::Error for EngineError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            EngineError::Kernel(error) => Some(error),
            EngineError::Counters { .. } => None,
        }
    }
}

const WAKER: Token = Token(0);
const SOURCES: [(Token, Source); 1 + Port::ALL.len()] = {
    let [a, b, c, d] = Port::ALL;
    [
        (Token(1), Source::Device),
        (Token(2), Source::Port(a)),
        (Token(3), Source::Port(b)),
        (Token(4), Source::Port(c)),
        (Token(5), Source::Port(d)),
    ]
};
