//! One dataplane between a device and an underlay of memory; the test counts what enters and leaves.

use std::io;
use std::time::Duration;

use dataplane::capture::{Capture, CaptureFilter, Captures, Stages};
use dataplane::counters::{Counters, Flow, Totals, WorkerTotals};
use dataplane::device::memory::queue;
use dataplane::device::{self, Device, Offload, Read};
use dataplane::drop_counts::{DropCounts, Dropped};
use dataplane::drops::Direction;
use dataplane::limits::FRAME;
use dataplane::now::Now;
use dataplane::peers::{Peer, PeerTraffic};
use dataplane::probe::{Heard, HeardReport, Kind};
use dataplane::sent::SentDatagrams;
use dataplane::snapshot::Snapshot;
use dataplane::spec::Spec;
use dataplane::steer::Steering;
use dataplane::underlay::Port;
use dataplane::underlay::memory::{Datagram, Memory, member};
use dataplane::worker::{Next, Source, Worker};
use encap::{Family, Format, Mac};

use super::oracle::{Outside, audit};
use super::packets::is_probe;

/// A node: its workers, its spec, and the packets that entered and left it.
pub struct Node {
    /// The first worker, to break its memories.
    pub worker: MemoryWorker,
    /// Further workers, where a run has several.
    others: Vec<MemoryWorker>,
    /// Its spec.
    pub spec: Spec,
    /// The packets that entered and left it.
    pub outside: Outside,
    /// What captures all that it does, of the workers that were and those that are.
    pub captures: Vec<Capture>,
    /// Bytes of each packet that they take, if there are any.
    snap_length: Option<usize>,
    snapshot: Snapshot,
    counters: Counters,
    /// Probes that control was told of and no test has asked for.
    heard: Vec<Heard>,
    reports: Vec<HeardReport>,
    /// The time at which held datagrams are to be tried again.
    deadline: Option<Now>,
    /// A packet or a change has come in.
    woken: bool,
}

/// The Ethernet address of a node's device, where it is a TAP.
pub const TAP: Mac = Mac([0x0a, 0x74, 10, 244, 1, 0]);

/// A worker between two memories.
pub type MemoryWorker = Worker<device::memory::Memory, Memory>;

impl Node {
    /// A node at rest, with as many workers as the run has.
    pub fn new(spec: Spec) -> Node {
        Node::with_workers(spec, crate::workers())
    }

    /// A node at rest with `count` workers.
    pub fn with_workers(spec: Spec, count: usize) -> Node {
        let counters = Counters::create(count.max(MOST_WORKERS)).unwrap();
        let (worker, others) = workers(&spec, &counters, count);
        Node {
            worker,
            others,
            outside: Outside::default(),
            snapshot: Snapshot::new(&spec, None),
            captures: vec![],
            snap_length: None,
            spec,
            counters,
            heard: vec![],
            reports: vec![],
            deadline: None,
            woken: false,
        }
    }

    /// A pod sends `packet`.
    pub fn push(&mut self, packet: Vec<u8>) {
        self.outside.pushed += 1;
        let worker = self.worker_at(queue(&packet, self.count()));
        worker.device_mut().to_worker.push_back(packet);
        worker.wake(Source::Device);
        self.woken = true;
    }

    /// The kernel hands over an Ethernet frame. The device is a TAP from then on.
    pub fn push_frame(&mut self, frame: Vec<u8>) {
        self.outside.pushed += 1;
        let device = self.worker.device_mut();
        device.mac = Some(TAP);
        device.frames.push_back(frame);
        self.worker.wake(Source::Device);
        self.woken = true;
    }

    /// A pod sends something that the device hands over as a super-packet of `weight` wire packets.
    pub fn push_as(&mut self, offload: Offload, packet: Vec<u8>, weight: u64) {
        self.outside.pushed += weight;
        let worker = self.worker_at(queue(&packet, self.count()));
        worker.device_mut().push(offload, packet);
        worker.wake(Source::Device);
        self.woken = true;
    }

    /// The network hands over `datagram`, which carries `weight` inner packets.
    pub fn hand(&mut self, datagram: Datagram, weight: u64) {
        self.outside.handed += weight;
        let port = Port::towards(datagram.to.ip(), datagram.format);
        let worker = self.worker_at(member(&datagram, self.count()));
        worker.underlay_mut().to_worker.push_back(datagram);
        worker.wake(Source::Port(port));
        self.woken = true;
    }

    /// How many workers it has.
    fn count(&self) -> usize {
        1 + self.others.len()
    }

    /// Worker number `index`.
    pub fn worker_at(&mut self, index: usize) -> &mut MemoryWorker {
        self.workers().nth(index).unwrap()
    }

    /// All workers.
    fn workers(&mut self) -> impl Iterator<Item = &mut MemoryWorker> {
        std::iter::once(&mut self.worker).chain(&mut self.others)
    }

    /// Changes its spec, and has it adopt the new snapshot.
    pub fn configure(&mut self, change: impl FnOnce(&mut Spec)) {
        change(&mut self.spec);
        self.spec.version += 1;
        self.snapshot = Snapshot::new(&self.spec, Some(&self.snapshot));
        let public = self.spec.cluster.node.public;
        self.workers()
            .for_each(|worker| worker.underlay_mut().public = public);
        self.woken = true;
    }

    /// Its underlay takes so many more datagrams; `None` is without bound.
    pub fn give_room(&mut self, room: Option<usize>) {
        self.workers()
            .for_each(|worker| worker.underlay_mut().room = room);
        self.woken = true;
    }

    /// Whether it has something to do at `now`.
    pub fn is_due(&self, now: Now) -> bool {
        self.woken || self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// The time of its next step, if nothing comes in before.
    pub fn deadline(&self) -> Option<Now> {
        self.deadline
    }

    /// Steps until it rests.
    pub fn turn(&mut self, now: Now) {
        self.woken = false;
        for _ in 0..MOST_STEPS {
            if let Some(rest) = self.step_all(now) {
                self.deadline = rest.map(|left| now.after(left));
                return;
            }
        }
        panic!("the workers never rest");
    }

    /// One step of each worker. When all may sleep then, for how long at most.
    fn step_all(&mut self, now: Now) -> Option<Option<Duration>> {
        let (mut busy, mut left) = (false, None);
        for index in 0..self.count() {
            match self.step(index, now) {
                Next::Now => busy = true,
                Next::Held(held) => left = Some(left.map_or(held, |left| held.min(left))),
                Next::Idle => {}
            }
        }
        // A worker that stepped first may have got shares from the others since.
        for worker in self.workers() {
            busy |= !worker.may_sleep();
            worker.mark_awake();
        }
        (!busy).then_some(left)
    }

    /// One step of worker number `index`.
    pub fn step(&mut self, index: usize, now: Now) -> Next {
        let Node {
            worker,
            others,
            snapshot,
            ..
        } = self;
        let mut workers = std::iter::once(worker).chain(others);
        workers.nth(index).unwrap().step(snapshot, now)
    }

    /// Has its workers capture everything, and those that take their place.
    pub fn capture(&mut self, snap_length: usize) {
        let points: Vec<_> = self
            .workers()
            .map(|worker| worker.capture_point())
            .collect();
        let filter = CaptureFilter {
            snap_length,
            ..CaptureFilter::all(Stages::ALL)
        };
        let capture = Captures::of_points(points).start(filter).unwrap();
        self.captures.push(capture);
        self.snap_length = Some(snap_length);
    }

    /// What the underlay took since it was last asked.
    pub fn take_sent(&mut self) -> Vec<Datagram> {
        let workers = self.workers();
        let sent: Vec<_> = workers
            .flat_map(|worker| worker.underlay_mut().sent.drain(..))
            .collect();
        let answers = sent.iter().filter(|datagram| is_probe(datagram)).count() as u64;
        self.outside.sent += sent.len() as u64 - answers;
        self.outside.probes += answers;
        sent
    }

    /// The probes that control was told of since it was last asked.
    pub fn take_heard(&mut self) -> Vec<Heard> {
        let mut heard = Vec::new();
        self.workers()
            .for_each(|worker| heard.extend(worker.heard()));
        let answers = heard
            .iter()
            .filter(|heard| heard.message.kind == Kind::Answer);
        self.outside.probes += answers.count() as u64;
        let before = self.reports.len();
        let mut reports = std::mem::take(&mut self.reports);
        self.workers()
            .for_each(|worker| reports.extend(worker.reports()));
        self.outside.probes += (reports.len() - before) as u64;
        self.reports = reports;
        self.heard.append(&mut heard);
        std::mem::take(&mut self.heard)
    }

    /// The reports that control was given since it was last asked.
    pub fn take_reports(&mut self) -> Vec<HeardReport> {
        self.heard = self.take_heard();
        std::mem::take(&mut self.reports)
    }

    /// What the device got since it was last asked.
    pub fn take_delivered(&mut self) -> Vec<Vec<u8>> {
        let workers = self.workers();
        let delivered: Vec<_> = workers
            .flat_map(|worker| {
                let device = worker.device_mut();
                device.delivered.drain(..).chain(device.arp.drain(..))
            })
            .collect();
        self.outside.delivered += delivered.len() as u64;
        delivered
    }

    /// Steps until it rests and returns what the underlay took and what the device got.
    pub fn run(&mut self, now: Now) -> (Vec<Datagram>, Vec<Vec<u8>>) {
        self.turn(now);
        (self.take_sent(), self.take_delivered())
    }

    /// The counters of all its workers together.
    pub fn totals(&self) -> WorkerTotals {
        let workers = self.counters.read().workers.into_iter();
        workers
            .reduce(|sum, worker| WorkerTotals {
                outbound: add(&sum.outbound, &worker.outbound),
                inbound: add(&sum.inbound, &worker.inbound),
                ..sum
            })
            .unwrap()
    }

    /// The counters of each.
    pub fn counters(&self) -> Totals {
        self.counters.read()
    }

    /// Sends what it holds and reads nothing, as before a stop. Returns whether it holds something still.
    pub fn drain(&mut self, now: Now) -> bool {
        let Node {
            worker,
            others,
            snapshot,
            ..
        } = self;
        let workers = std::iter::once(worker).chain(others);
        // All, whatever the first says.
        let rest = workers.map(|worker| worker.drain(snapshot, now));
        rest.filter(|rest| *rest).count() > 0
    }

    /// Packets to and from each peer, as `tartan` shows them.
    pub fn traffic(&self) -> impl Iterator<Item = PeerTraffic> {
        self.snapshot.cluster.peers.iter().map(Peer::traffic)
    }

    /// The packets of each peer that were refused for what they are.
    pub fn refused(&self) -> impl Iterator<Item = u64> {
        self.snapshot.cluster.peers.iter().map(Peer::refused)
    }

    /// The drops of each peer, and of each pod.
    pub fn dropped(&self) -> [Vec<Dropped>; 2] {
        let peers = self.snapshot.cluster.peers.iter();
        let peers = peers.map(|peer| peer.drops().read()).collect();
        let local = &self.spec.local;
        let mut pods: Vec<&DropCounts> = Vec::new();
        for address in &local.attachments {
            let counts = self.snapshot.pods.drops(*address).unwrap();
            // One pod has several addresses.
            if !pods.iter().any(|known| std::ptr::eq(*known, counts)) {
                pods.push(counts);
            }
        }
        [peers, pods.into_iter().map(DropCounts::read).collect()]
    }

    /// Where more is dropped of all peers, or of all pods, than was dropped at all.
    fn overcounted(&self) -> Vec<String> {
        let totals = self.totals();
        let mut broken = Vec::new();
        for (of, dropped) in ["peers", "pods"].into_iter().zip(self.dropped()) {
            for (direction, reason, sum) in sum(&dropped).each() {
                let flow = match direction {
                    Direction::Outbound => &totals.outbound,
                    Direction::Inbound => &totals.inbound,
                };
                let total = flow.drops_of(reason);
                if sum > total {
                    broken.push(format!(
                        "{of} have {sum} drops {direction:?} {reason:?} of {total}"
                    ));
                }
            }
        }
        broken
    }

    /// What it knows of the path to each address of a peer.
    pub fn path_mtus_of(&self, peer: u8) -> [Option<u16>; 2] {
        [Family::V4, Family::V6].map(|family| self.peer(peer).path_mtu(family, Now(0)))
    }

    /// What it knows of node `peer`.
    pub fn peer(&self, peer: u8) -> &Peer {
        let name = format!("node{peer}");
        let mut peers = self.snapshot.cluster.peers.iter();
        peers.find(|peer| peer.name == name).unwrap()
    }

    /// What breaks the law at this quiet moment.
    pub fn audit(&mut self) -> Vec<String> {
        self.heard = self.take_heard();
        let mut outside = self.outside;
        // What waits in front of the device was not taken yet.
        let waiting = self.workers().map(|worker| worker.device_mut().waiting());
        outside.pushed -= waiting.sum::<usize>() as u64;
        let mut broken = audit(&self.totals(), &outside);
        broken.extend(self.overcounted());
        let counters = self.counters();
        if counters.in_rings > 0 {
            broken.push(format!("{} packets lie between workers", counters.in_rings));
        }
        for (index, worker) in counters.workers.iter().enumerate() {
            let law = [&worker.outbound, &worker.inbound].map(Flow::balance);
            if law != [0, 0] {
                broken.push(format!("worker {index} is off by {law:?}"));
            }
        }
        broken
    }

    /// Kills it and starts its successor on the same counters, as the keeper does. Returns what was booked as lost.
    pub fn restart(&mut self) -> u64 {
        let descriptor = self.counters.descriptor().try_clone_to_owned().unwrap();
        self.counters = Counters::adopt(descriptor).unwrap();
        self.regroup(self.count());
        self.deadline = None;
        self.counters.book_lost()
    }

    /// Goes on with `count` new workers on the same counters.
    pub fn regroup(&mut self, count: usize) {
        // What the old ones had given away is not lost with them.
        self.heard = self.take_heard();
        self.take_sent();
        self.take_delivered();
        (self.worker, self.others) = workers(&self.spec, &self.counters, count);
        if let Some(snap_length) = self.snap_length {
            self.capture(snap_length);
        }
    }

    /// The worker dies while it writes the packet of `datagram` to the device.
    pub fn die_delivering(&mut self, datagram: Datagram) {
        self.outside.handed += 1;
        let mut underlay = Memory::new(self.spec.cluster.node.public);
        underlay.to_worker.push_back(datagram);
        let mut worker = Worker::new(Deadly, underlay, &self.counters, 0, remembered(1).remove(0));
        let step = std::panic::AssertUnwindSafe(|| worker.step(&self.snapshot, Now(0)));
        assert!(std::panic::catch_unwind(step).is_err());
    }
}

/// The workers of a node, the first of them apart.
fn workers(spec: &Spec, counters: &Counters, count: usize) -> (MemoryWorker, Vec<MemoryWorker>) {
    let mut sent = remembered(count).into_iter();
    let mut worker = |index: usize| {
        let mut underlay = Memory::new(spec.cluster.node.public);
        if count > 1 {
            // Each has transmit sockets of its own.
            underlay.first_port = Some(50_000 + 100 * index as u16);
        }
        let mut device = device::memory::Memory::default();
        device.offloads = crate::with_offloads();
        Worker::new(device, underlay, counters, index, sent.next().unwrap())
    };
    if count == 1 {
        return (worker(0), vec![]);
    }
    let group = Steering::group(count).into_iter().enumerate();
    let mut all = group.map(|(index, steering)| worker(index).with_steering(steering));
    (all.next().unwrap(), all.collect())
}

/// What each of `count` workers remembers of what it sent.
fn remembered(count: usize) -> Vec<SentDatagrams> {
    SentDatagrams::group(count, 0x5eed)
}

/// The sum of two workers' counters of one direction.
fn add(one: &Flow, two: &Flow) -> Flow {
    Flow {
        received: one.received + two.received,
        originated: one.originated + two.originated,
        sent: one.sent + two.sent,
        delivered: one.delivered + two.delivered,
        probes: one.probes + two.probes,
        held: one.held + two.held,
        drops: std::array::from_fn(|reason| one.drops[reason] + two.drops[reason]),
    }
}

/// The drops of all together.
pub fn sum(dropped: &[Dropped]) -> Dropped {
    let mut sum = Dropped::NONE;
    for (direction, reason, count) in dropped.iter().flat_map(Dropped::each) {
        match direction {
            Direction::Outbound => sum.outbound[reason as usize] += count,
            Direction::Inbound => sum.inbound[reason as usize] += count,
        }
    }
    sum
}

/// A device whose writer does not survive.
struct Deadly;

impl Device for Deadly {
    fn read(&mut self, _frame: &mut [u8; FRAME]) -> io::Result<Read> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn write(&mut self, _: Offload, _parts: &[io::IoSlice<'_>]) -> io::Result<()> {
        // Not `panic!`: the message of a death that is part of the test would confuse.
        std::panic::resume_unwind(Box::new("killed"))
    }

    fn descriptor(&self) -> Option<std::os::fd::RawFd> {
        None
    }
}

/// Workers that the counters of a node have room for.
const MOST_WORKERS: usize = 4;

/// Steps after which a worker is taken to be spinning: far more than any test's queues need.
const MOST_STEPS: usize = 100_000;

/// The port that a format is sent to.
pub fn port(format: Format) -> u16 {
    match format {
        Format::Udp => 8285,
        Format::Vxlan => 8472,
    }
}
