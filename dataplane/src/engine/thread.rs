//! One worker as a thread, and the poll it sleeps in.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::Cache;
use crossbeam_queue::ArrayQueue;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token, Waker};

use super::{Seat, Shared};
use crate::counters::Counters;
use crate::device::plain::Plain;
use crate::inbound::RefusedSource;
use crate::limits::{EVENTS, TICK};
use crate::underlay::socket::Sockets;
use crate::underlay::{Exit, Port, Underlay};
use crate::worker::{Next, Source, Worker};

pub(super) struct Thread {
    pub(super) handle: JoinHandle<()>,
    waker: Waker,
    pub(super) refused: Arc<ArrayQueue<RefusedSource>>,
    /// Of the worker's poll.
    registry: Registry,
    /// Sockets that the worker is to take at its next wake-up, in the place of those it has.
    arrival: Arc<ArrayQueue<Sockets>>,
}

impl Thread {
    pub(super) fn start(
        index: usize,
        seat: Seat,
        counters: &Counters,
        shared: &Arc<Shared>,
    ) -> io::Result<Thread> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let worker = Worker::new(seat.device, seat.underlay, counters, index);
        for (token, source) in SOURCES {
            if let Some(descriptor) = worker.descriptor(source) {
                poll.registry()
                    .register(&mut SourceFd(&descriptor), token, Interest::READABLE)?;
            }
        }
        let refused = worker.refused();
        let registry = poll.registry().try_clone()?;
        let arrival = Arc::new(ArrayQueue::new(1));
        let arriving = Arc::clone(&arrival);
        let shared = Arc::clone(shared);
        let run = move || {
            if let Some(id) = seat.core {
                core_affinity::set_for_current(core_affinity::CoreId { id });
            }
            Loop {
                worker,
                poll,
                shared,
                arrival: arriving,
                watched: Vec::with_capacity(Exit::COUNT),
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
            registry,
            arrival,
        })
    }

    /// Has the worker's poll watch further sockets: the worker cannot fail to take them then. Until it does, their
    /// wake-ups only make it read those that it has.
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

    /// Hands over sockets that are watched. Others that the worker has not taken yet give way.
    pub(super) fn reseat(&self, sockets: Sockets) {
        if let Some(overtaken) = self.arrival.force_push(sockets) {
            unwatch(&self.registry, &overtaken);
        }
        self.wake();
    }

    pub(super) fn wake(&self) {
        // A waker fails only if its poll is gone, and then so is the worker.
        let _ = self.waker.wake();
    }
}

/// A closed descriptor leaves a poll only with its last duplicate, and the keeper has one.
fn unwatch(registry: &Registry, sockets: &Sockets) {
    for (_, descriptor) in descriptors(sockets) {
        // Refused only for what is not watched.
        let _ = registry.deregister(&mut SourceFd(&descriptor));
    }
}

fn descriptors(sockets: &Sockets) -> impl Iterator<Item = (Token, RawFd)> {
    SOURCES.iter().filter_map(|(token, source)| match source {
        Source::Port(port) => Some((*token, sockets.descriptor(*port)?)),
        Source::Device | Source::Reports(_) => None,
    })
}

/// A worker and the poll it sleeps in.
struct Loop {
    worker: Worker<Plain, Sockets>,
    poll: Poll,
    shared: Arc<Shared>,
    arrival: Arc<ArrayQueue<Sockets>>,
    /// Descriptors for which the poll also wakes when they take more.
    watched: Vec<RawFd>,
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
            let of_event = |(token, _): &&(Token, Source)| *token == event.token();
            let Some((_, source)) = SOURCES.iter().find(of_event) else {
                continue;
            };
            self.worker.wake(*source);
            if let (Source::Port(port), true) = (source, event.is_error()) {
                self.worker.wake(Source::Reports(*port));
            }
        }
        if events.iter().any(|event| event.token() == WAKER) {
            self.move_in();
        }
    }

    /// Takes sockets that have come, if any have, and closes the old ones.
    fn move_in(&mut self) {
        if let Some(sockets) = self.arrival.pop() {
            self.watch_room(false);
            let old = self.worker.reseat(sockets);
            unwatch(self.poll.registry(), &old);
        }
    }

    /// Asks for writability only while something is held: otherwise every datagram sent would wake the worker.
    fn watch_room(&mut self, held: bool) {
        if !held {
            while let Some(descriptor) = self.watched.pop() {
                self.register(descriptor, false);
            }
            return;
        }
        for descriptor in self.worker.room_descriptors() {
            if !self.watched.contains(&descriptor) {
                self.watched.push(descriptor);
                self.register(descriptor, true);
            }
        }
    }

    /// Refused only for lack of memory; then the hold ends by its time.
    fn register(&self, descriptor: RawFd, watch_room: bool) {
        let registry = self.poll.registry();
        let mut source = SourceFd(&descriptor);
        let receives = SOURCES
            .iter()
            .find(|(_, source)| self.worker.descriptor(*source) == Some(descriptor));
        let _ = match (receives, watch_room) {
            (Some((token, _)), true) => {
                registry.reregister(&mut source, *token, Interest::READABLE | Interest::WRITABLE)
            }
            (Some((token, _)), false) => {
                registry.reregister(&mut source, *token, Interest::READABLE)
            }
            (None, true) => registry.register(&mut source, ROOM, Interest::WRITABLE),
            (None, false) => registry.deregister(&mut source),
        };
    }
}

const WAKER: Token = Token(0);
/// Transmit sockets that take more; which one does not matter.
const ROOM: Token = Token(usize::MAX - 1);
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
