//! One dataplane between two memories, with its doors watched.

use std::io;

use dataplane::counters::{Counters, WorkerTotals};
use dataplane::device::{self, Device, Offload, Read};
use dataplane::limits::FRAME;
use dataplane::now::Now;
use dataplane::peers::{Peer, PeerTraffic};
use dataplane::snapshot::Snapshot;
use dataplane::spec::Spec;
use dataplane::underlay::Port;
use dataplane::underlay::memory::{Datagram, Memory};
use dataplane::worker::{Next, Source, Worker};
use encap::Format;

use super::oracle::{Outside, audit};

/// A node: its worker, what it is told, and what went through its doors.
pub struct Node {
    /// The worker, to break its memories.
    pub worker: Worker<device::memory::Memory, Memory>,
    /// What it is told.
    pub spec: Spec,
    /// What went through its doors.
    pub outside: Outside,
    snapshot: Snapshot,
    counters: Counters,
    /// When what it holds is to be looked at again.
    deadline: Option<Now>,
    /// Something came to one of its doors.
    woken: bool,
}

impl Node {
    /// A node at rest.
    pub fn new(spec: Spec) -> Node {
        let counters = Counters::create(1).unwrap();
        Node {
            worker: worker(&spec, &counters),
            outside: Outside::default(),
            snapshot: Snapshot::new(&spec, None),
            spec,
            counters,
            deadline: None,
            woken: false,
        }
    }

    /// A pod sends `packet`.
    pub fn push(&mut self, packet: Vec<u8>) {
        self.outside.pushed += 1;
        self.worker.device_mut().to_worker.push_back(packet);
        self.worker.wake(Source::Device);
        self.woken = true;
    }

    /// A pod sends something that the device hands over as a super-packet of `weight` wire packets.
    pub fn push_as(&mut self, offload: Offload, packet: Vec<u8>, weight: u64) {
        self.outside.pushed += weight;
        self.worker.device_mut().push(offload, packet);
        self.worker.wake(Source::Device);
        self.woken = true;
    }

    /// The network hands over `datagram`, which carries `weight` inner packets.
    pub fn hand(&mut self, datagram: Datagram, weight: u64) {
        self.outside.handed += weight;
        let port = Port::towards(datagram.to.ip(), datagram.format);
        self.worker.underlay_mut().to_worker.push_back(datagram);
        self.worker.wake(Source::Port(port));
        self.woken = true;
    }

    /// Changes what it is told, and has it adopt that.
    pub fn tell(&mut self, change: impl FnOnce(&mut Spec)) {
        change(&mut self.spec);
        self.spec.version += 1;
        self.snapshot = Snapshot::new(&self.spec, Some(&self.snapshot));
        self.worker.underlay_mut().public = self.spec.node.public;
        self.woken = true;
    }

    /// Its underlay takes so many more datagrams; `None` is without bound.
    pub fn give_room(&mut self, room: Option<usize>) {
        self.worker.underlay_mut().room = room;
        self.woken = true;
    }

    /// Whether it has something to do at `now`.
    pub fn is_due(&self, now: Now) -> bool {
        self.woken || self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// When it wants to be looked at, if nothing comes to its doors before.
    pub fn deadline(&self) -> Option<Now> {
        self.deadline
    }

    /// Steps until it rests.
    pub fn turn(&mut self, now: Now) {
        self.woken = false;
        for _ in 0..MOST_STEPS {
            match self.worker.step(&self.snapshot, now) {
                Next::Now => {}
                Next::Held(left) => {
                    self.deadline = Some(now.after(left));
                    return;
                }
                Next::Idle => {
                    self.deadline = None;
                    return;
                }
            }
        }
        panic!("the worker never rests");
    }

    /// What the underlay took since it was last asked.
    pub fn take_sent(&mut self) -> Vec<Datagram> {
        let sent: Vec<_> = self.worker.underlay_mut().sent.drain(..).collect();
        self.outside.sent += sent.len() as u64;
        sent
    }

    /// What the device got since it was last asked.
    pub fn take_delivered(&mut self) -> Vec<Vec<u8>> {
        let delivered: Vec<_> = self.worker.device_mut().delivered.drain(..).collect();
        self.outside.delivered += delivered.len() as u64;
        delivered
    }

    /// Steps until it rests and returns what the underlay took and what the device got.
    pub fn run(&mut self, now: Now) -> (Vec<Datagram>, Vec<Vec<u8>>) {
        self.turn(now);
        (self.take_sent(), self.take_delivered())
    }

    /// Its counters.
    pub fn totals(&self) -> WorkerTotals {
        self.counters.read().workers[0]
    }

    /// Sends what it holds and reads nothing, as before a stop. Returns whether it holds something still.
    pub fn drain(&mut self, now: Now) -> bool {
        self.worker.drain(&self.snapshot, now)
    }

    /// Packets to and from each peer, as people are shown them.
    pub fn traffic(&self) -> impl Iterator<Item = PeerTraffic> {
        self.snapshot.peers.iter().map(Peer::traffic)
    }

    /// What breaks the law at this quiet moment.
    pub fn audit(&mut self) -> Vec<String> {
        let mut outside = self.outside;
        // What waits in front of the device was not taken yet.
        outside.pushed -= self.worker.device_mut().waiting() as u64;
        audit(&self.totals(), &outside)
    }

    /// Kills it and starts its successor on the same counters, as the keeper does. Returns what was booked as lost.
    pub fn restart(&mut self) -> u64 {
        // What it had given away is not lost with it.
        self.take_sent();
        self.take_delivered();
        let descriptor = self.counters.descriptor().try_clone_to_owned().unwrap();
        self.counters = Counters::adopt(descriptor).unwrap();
        self.worker = worker(&self.spec, &self.counters);
        self.deadline = None;
        self.counters.book_lost()
    }

    /// The worker dies while it writes the packet of `datagram` to the device.
    pub fn die_delivering(&mut self, datagram: Datagram) {
        self.outside.handed += 1;
        let mut underlay = Memory::new(self.spec.node.public);
        underlay.to_worker.push_back(datagram);
        let mut worker = Worker::new(Deadly, underlay, &self.counters, 0);
        let step = std::panic::AssertUnwindSafe(|| worker.step(&self.snapshot, Now(0)));
        assert!(std::panic::catch_unwind(step).is_err());
    }
}

fn worker(spec: &Spec, counters: &Counters) -> Worker<device::memory::Memory, Memory> {
    let underlay = Memory::new(spec.node.public);
    let mut device = device::memory::Memory::default();
    device.offloads = crate::with_offloads();
    Worker::new(device, underlay, counters, 0)
}

/// A device whose writer does not survive.
struct Deadly;

impl Device for Deadly {
    fn read(&mut self, _frame: &mut [u8; FRAME]) -> io::Result<Read> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn write(&mut self, _: Offload, _parts: &[io::IoSlice<'_>]) -> io::Result<()> {
        // Not `panic!`: nobody is to read about a death that is part of the test.
        std::panic::resume_unwind(Box::new("killed"))
    }

    fn descriptor(&self) -> Option<std::os::fd::RawFd> {
        None
    }
}

/// Steps after which a worker is taken to be spinning: far more than any test's queues need.
const MOST_STEPS: usize = 100_000;

/// The port that a format is sent to.
pub fn port(format: Format) -> u16 {
    match format {
        Format::Udp => 8285,
        Format::Vxlan => 8472,
    }
}
