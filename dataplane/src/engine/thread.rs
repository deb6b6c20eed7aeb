//! One worker as a thread, and the poll it sleeps in.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use rustix::thread::set_current_timer_slack;

use super::confinement::Confinement;
#[cfg(feature = "faults")]
use super::escape;
use super::moderation::Moderation;
use super::spin::Spin;
use super::{Shared, WorkerSetup};
use crate::capture::CapturePoint;
use crate::counters::Counters;
use crate::device::Device;
use crate::device::tunnel::Tunnel;
use crate::heavy_flows::FlowTable;
use crate::inbound::Refused;
use crate::limits::{DRAIN, EVENTS, PARKED, TICK};
use crate::now::Now;
use crate::probe::HeardRing;
use crate::publication::Adopted;
use crate::sent::SentDatagrams;
use crate::steer::Steering;
use crate::underlay::socket::Sockets;
use crate::underlay::{Port, TxSlot};
use crate::worker::{Next, Source, Worker};

pub(super) struct Thread {
    pub(super) handle: JoinHandle<()>,
    pub(super) waker: Arc<Waker>,
    pub(super) refused: Arc<ArrayQueue<Refused>>,
    pub(super) heard: Arc<HeardRing>,
    pub(super) flows: Arc<FlowTable>,
    pub(super) capture: Arc<CapturePoint>,
    /// The kernel refused to pin the worker to its core.
    pub(super) unpinned: Arc<AtomicBool>,
    /// Why the worker is not confined.
    pub(super) unconfined: Arc<OnceLock<String>>,
    /// Of the worker's poll.
    registry: Registry,
    /// Sockets that the worker adopts at its next wake-up, in place of its own.
    pending_sockets: Arc<ArrayQueue<Sockets>>,
}

impl Thread {
    pub(super) fn start(
        (index, steering, sent): (usize, Option<Steering>, SentDatagrams),
        setup: WorkerSetup,
        confinement: Option<Confinement>,
        counters: &Counters,
        shared: &Arc<Shared>,
    ) -> io::Result<Thread> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let device = setup.device.descriptor().map(|queue| (DEVICE, queue));
        for (token, descriptor) in descriptors(&setup.underlay).chain(device) {
            poll.registry()
                .register(&mut SourceFd(&descriptor), token, Interest::READABLE)?;
        }
        let mut worker = Worker::new(setup.device, setup.underlay, counters, index, sent);
        if let Some(steering) = steering {
            steering.set_waker(Arc::clone(&waker));
            worker = worker.with_steering(steering);
        }
        let (refused, flows) = (worker.refused(), worker.flows());
        let (heard, capture) = (worker.heard_ring(), worker.capture_point());
        let registry = poll.registry().try_clone()?;
        let pending_sockets = Arc::new(ArrayQueue::new(1));
        let pending = Arc::clone(&pending_sockets);
        let (started, shared) = (shared, Arc::clone(shared));
        let unpinned = Arc::new(AtomicBool::new(false));
        let refused_core = Arc::clone(&unpinned);
        let unconfined = Arc::new(OnceLock::new());
        let refusal = Arc::clone(&unconfined);
        let run = move || {
            if let Some(id) = setup.core {
                let pinned = core_affinity::set_for_current(core_affinity::CoreId { id });
                refused_core.store(!pinned, Ordering::Relaxed);
            }
            // Sleeps of a few microseconds are to last that long, not up to 50 more (prctl(2)).
            let _ = set_current_timer_slack(NonZeroU64::new(1));
            let confined = confinement.map_or_else(unknown_machine, |limits| limits.apply());
            #[cfg(feature = "faults")]
            let confined = confined.and_then(|()| escape::try_where_asked());
            if let Err(error) = confined {
                // Set by this thread alone.
                let _ = refusal.set(error.to_string());
            }
            Loop {
                worker,
                poll,
                shared,
                pending_sockets: pending,
                watched: Vec::with_capacity(TxSlot::COUNT),
                moderation: Moderation::default(),
                spin: Spin::new(setup.spin),
                gap: None,
            }
            .run();
        };
        started.senders.join();
        let spawned = std::thread::Builder::new()
            .name(format!("worker-{index}"))
            .spawn(run);
        let handle = spawned.inspect_err(|_| started.senders.leave())?;
        Ok(Thread {
            handle,
            waker,
            refused,
            heard,
            flows,
            capture,
            unpinned,
            unconfined,
            registry,
            pending_sockets,
        })
    }

    /// Adds sockets to the worker's poll, so that adopting them cannot fail. Until the worker adopts them, their events
    /// only make it read the sockets that it has.
    pub(super) fn watch(&self, sockets: &Sockets) -> io::Result<()> {
        for (token, descriptor) in descriptors(sockets) {
            let mut source = SourceFd(&descriptor);
            let watched = self
                .registry
                .register(&mut source, token, Interest::READABLE);
            if let Err(error) = watched {
                unwatch(&self.registry, sockets);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Undoes [`Thread::watch`].
    pub(super) fn unwatch(&self, sockets: &Sockets) {
        unwatch(&self.registry, sockets);
    }

    /// Hands over sockets that are watched. They replace earlier ones that the worker has not adopted yet.
    pub(super) fn rebind(&self, sockets: Sockets) {
        if let Some(overtaken) = self.pending_sockets.force_push(sockets) {
            unwatch(&self.registry, &overtaken);
        }
        self.wake();
    }

    pub(super) fn wake(&self) {
        // A waker fails only if its poll is gone, and then so is the worker.
        let _ = self.waker.wake();
    }
}

fn unknown_machine() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// A closed descriptor leaves a poll only with its last duplicate, and the keeper has one.
fn unwatch(registry: &Registry, sockets: &Sockets) {
    for (_, descriptor) in descriptors(sockets) {
        // Refused only for what is not watched.
        let _ = registry.deregister(&mut SourceFd(&descriptor));
    }
}

/// The descriptors to read. Workers check the error queues of other sockets themselves (`worker::error_reports`).
fn descriptors(sockets: &Sockets) -> impl Iterator<Item = (Token, RawFd)> {
    let all = sockets.descriptors();
    all.map(|(port, descriptor)| (token(port), descriptor))
}

/// A worker and the poll it sleeps in.
struct Loop {
    worker: Worker<Tunnel, Sockets>,
    poll: Poll,
    shared: Arc<Shared>,
    pending_sockets: Arc<ArrayQueue<Sockets>>,
    /// Full sockets, for which the poll also waits until they are writable.
    watched: Vec<(Port, RawFd)>,
    moderation: Moderation,
    spin: Spin,
    /// The latest gap, until it is seen what has ended it.
    gap: Option<Duration>,
}

impl Loop {
    /// Waits for *go*, forwards until *stop* or until that is taken back, and so on; returns at *stop*.
    fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut snapshot = shared.publication.adopt();
        let mut events = Events::with_capacity(EVENTS);
        while !shared.may_read() && !shared.is_stopped() {
            self.sleep(&mut events, TICK);
        }
        loop {
            let resumed = shared.resumed.load(Ordering::Acquire);
            self.forward(&mut snapshot, &mut events);
            self.finish(&mut snapshot, &mut events);
            if shared.is_stopped() {
                return;
            }
            shared.parked.fetch_add(1, Ordering::Release);
            while shared.resumed.load(Ordering::Acquire) == resumed {
                if shared.is_stopped() {
                    return;
                }
                // Not in the poll: what arrives wakes the service that reads it now, and not this one.
                std::thread::sleep(PARKED);
            }
            self.worker.wake_all();
        }
    }

    /// Forwards for as long as it may read.
    fn forward(&mut self, snapshot: &mut Adopted<'_>, events: &mut Events) {
        let shared = Arc::clone(&self.shared);
        let (mut before, mut idle) = (self.shared.now(), Duration::ZERO);
        while shared.may_read() && !shared.is_stopped() {
            let now = self.shared.now();
            let busy = now.since(before).saturating_sub(idle);
            self.worker.account_time(busy, idle);
            before = now;
            let next = self.worker.step(snapshot.load(), now);
            if self.worker.device_lost() {
                shared.device_lost.store(true, Ordering::Relaxed);
            }
            if let Some(gap) = self.gap.take() {
                self.spin.learn(gap, self.worker.latest());
            }
            self.watch_room(matches!(next, Next::Held(_)));
            let pause = self.moderation.learn(self.worker.latest(), now);
            idle = match next {
                Next::Now => {
                    self.sleep(events, Duration::ZERO);
                    Duration::ZERO
                }
                Next::Held(left) => {
                    let start = self.shared.now();
                    self.rest(events, left);
                    self.shared.now().since(start)
                }
                Next::Idle => self.idle(events, pause),
            }
        }
    }

    /// Reads no more, and delivers or drops what it and the others have read, until nothing is left between them.
    fn finish(&mut self, snapshot: &mut Adopted<'_>, events: &mut Events) {
        self.shared.senders.leave();
        loop {
            // Read this before the drain: then the drain finds all that the others pushed.
            let all_left = self.shared.senders.are_gone();
            let rest = self.worker.drain(snapshot.load(), self.shared.now());
            if all_left && !rest {
                return;
            }
            self.sleep(events, DRAIN);
        }
    }

    /// Waits for work: pauses while packets gather, busy-polls while gaps are short, then sleeps. Returns how long.
    fn idle(&mut self, events: &mut Events, pause: Duration) -> Duration {
        let mut paused = Duration::ZERO;
        if !pause.is_zero() {
            let start = self.shared.now();
            std::thread::sleep(pause);
            paused = self.shared.now().since(start);
        }
        let start = self.shared.now();
        if !self.busy_poll(events, start) {
            self.rest(events, TICK);
        }
        let gap = self.shared.now().since(start);
        self.gap = Some(gap);
        paused + gap
    }

    /// Polls without sleeping, since `start`. Returns whether there is work.
    fn busy_poll(&mut self, events: &mut Events, start: Now) -> bool {
        let time = self.spin.time();
        while self.shared.now().since(start) < time {
            if self.worker.has_shares() || self.sleep(events, Duration::ZERO) {
                return true;
            }
            // Let other threads of this core run, perhaps the pod whose reply is awaited.
            std::thread::yield_now();
        }
        false
    }

    /// Sleeps, unless another worker pushed something at the last moment.
    fn rest(&mut self, events: &mut Events, timeout: Duration) {
        let timeout = if self.worker.may_sleep() {
            timeout
        } else {
            Duration::ZERO
        };
        self.sleep(events, timeout);
        self.worker.mark_awake();
    }

    /// Waits for an event for at most `timeout`. Returns whether there was one.
    fn sleep(&mut self, events: &mut Events, timeout: Duration) -> bool {
        // An interrupted poll is an early wake-up; it returns no events.
        if self.poll.poll(events, Some(timeout)).is_err() {
            return false;
        }
        for event in events.iter() {
            if event.token() == DEVICE {
                self.worker.wake(Source::Device);
            }
            if let Some(port) = port(event.token()) {
                self.worker.wake(Source::Port(port));
                if event.is_error() {
                    self.worker.wake(Source::ErrorQueue(port));
                }
            }
        }
        if events.iter().any(|event| event.token() == WAKER) {
            self.adopt_sockets();
        }
        !events.is_empty()
    }

    /// Adopts pending sockets, if there are any, and closes the old ones.
    fn adopt_sockets(&mut self) {
        if let Some(sockets) = self.pending_sockets.pop() {
            self.watch_room(false);
            let old = self.worker.rebind(sockets);
            unwatch(self.poll.registry(), &old);
        }
    }

    /// Asks for writability only while something is held: otherwise every datagram sent would wake the worker.
    fn watch_room(&mut self, held: bool) {
        if !held {
            while let Some(socket) = self.watched.pop() {
                self.watch(socket, false);
            }
            return;
        }
        for socket in self.worker.full_sockets() {
            if !self.watched.contains(&socket) {
                self.watched.push(socket);
                self.watch(socket, true);
            }
        }
    }

    /// Sets whether the poll also waits until the socket is writable. Refused only for lack of memory; then the hold ends
    /// by time.
    fn watch(&self, (port, descriptor): (Port, RawFd), room: bool) {
        let mut source = SourceFd(&descriptor);
        let registry = self.poll.registry();
        let is_read = self.worker.descriptor(Source::Port(port)) == Some(descriptor);
        let (token, both) = (token(port), Interest::READABLE | Interest::WRITABLE);
        let _ = match (is_read, room) {
            (true, true) => registry.reregister(&mut source, token, both),
            (true, false) => registry.reregister(&mut source, token, Interest::READABLE),
            (false, true) => registry.register(&mut source, token, Interest::WRITABLE),
            (false, false) => registry.deregister(&mut source),
        };
    }
}

const WAKER: Token = Token(0);
const DEVICE: Token = Token(1);
const FIRST_PORT: usize = 2;

/// The sockets of a port share a token.
const fn token(port: Port) -> Token {
    Token(FIRST_PORT + port.index())
}

fn port(token: Token) -> Option<Port> {
    let index = token.0.checked_sub(FIRST_PORT)?;
    Port::ALL.get(index).copied()
}
