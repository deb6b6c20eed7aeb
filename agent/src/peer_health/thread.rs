//! The thread that asks: takes tables, hears answers, sends what is due, and tells peers what their paths carry.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use dataplane::families::PublicAddresses;
use dataplane::mtu::min_inner;
use dataplane::now::Now;
use dataplane::peers::Peer;
use dataplane::probe::{
    self, Hearing, KERNEL_PATH, Kind, Message, QUESTION, Undelivered, WANTS_REPORT,
};
use dataplane::snapshot::Snapshot;
use encap::Family;
use rustix::io::Errno;
use tracing::debug;

use super::node_report::OwnReport;
use super::path::{Ask, Obstacle, Signs};
use super::question::{Asked, NotSent};
use super::table::{Seen, Target};
use super::{Adopt, Following, Shared, lock};

/// The thread's state.
pub(super) struct Prober {
    shared: Arc<Shared>,
    hearing: Hearing,
    tables: Option<Adopt>,
    sockets: Vec<probe::Prober>,
    nonces: Nonces,
    judged: Now,
    /// When sockets were opened last.
    opened: Now,
    /// When a probe was sent last: its answer is there soon.
    asked: Now,
}

/// Numbers that cannot be guessed and do not return: a keyed hash of a count.
struct Nonces {
    key: RandomState,
    count: u64,
}

impl Prober {
    pub(super) fn new(shared: Arc<Shared>, hearing: Hearing) -> Prober {
        Prober {
            shared,
            hearing,
            tables: None,
            sockets: Vec::new(),
            nonces: Nonces {
                key: RandomState::new(),
                count: 0,
            },
            judged: Now::default(),
            opened: Now::default(),
            asked: Now::default(),
        }
    }

    /// Runs until the service ends.
    pub(super) fn run(mut self) {
        while !self.shared.is_stopped.load(Relaxed) {
            self.adopt();
            self.hear();
            self.hear_reports();
            self.take_errors();
            self.ask();
            self.put_questions();
            self.judge();
            self.reopen_sockets();
            std::thread::park_timeout(self.pause());
        }
    }

    /// Takes new tables.
    fn adopt(&mut self) {
        let Some(next) = lock(&self.shared.next).take() else {
            return;
        };
        if self
            .tables
            .as_ref()
            .is_none_or(|tables| tables.following.bound != next.following.bound)
            || self.sockets.is_empty()
        {
            self.sockets.clear();
            self.open_sockets(next.following.bound);
        }
        let targets = targets(&next);
        let now = self.shared.clock.now();
        lock(&self.shared.table).follow(targets, now);
        self.tables = Some(next);
    }

    /// Tries again, every [`REOPEN_EVERY`], where a family has no socket.
    fn reopen_sockets(&mut self) {
        let now = self.shared.clock.now();
        let bound = self.tables.as_ref().map(|tables| tables.following.bound);
        let missing = bound.filter(|bound| {
            self.shared.is_on
                && bound.iter().count() > self.sockets.len()
                && now.since(self.opened) >= REOPEN_EVERY
        });
        if let Some(bound) = missing {
            self.open_sockets(bound);
        }
    }

    /// Opens those that are missing. The others stay as they are: what the kernel has to say of their probes waits in them.
    fn open_sockets(&mut self, bound: PublicAddresses) {
        self.opened = self.shared.clock.now();
        let mut refused = None;
        if self.shared.is_on {
            let open: Vec<Family> = self.sockets.iter().map(probe::Prober::family).collect();
            for local in bound
                .iter()
                .filter(|local| !open.contains(&Family::of(*local)))
            {
                match probe::Prober::new(local) {
                    Ok(socket) => self.sockets.push(socket),
                    Err(error) => refused = Some(format!("{local}: {error}")),
                }
            }
        }
        *lock(&self.shared.refused) = refused;
    }

    /// Takes what the workers heard.
    fn hear(&mut self) {
        let mut wanted = Vec::new();
        let mut table = lock(&self.shared.table);
        for heard in self.hearing.heard() {
            let Some(address) = heard.peer.of(heard.family) else {
                continue;
            };
            let (at, message) = (heard.at, heard.message);
            match message.kind {
                Kind::Request => {
                    let unheard = message.heard.map(|ms| Duration::from_millis(ms.into()));
                    table.on(address, at, |path| path.asked(unheard, at));
                    if message.wants_report() && wanted.len() < REPORTS {
                        wanted.push((address, message, heard.length));
                    }
                }
                // They have a ring of their own.
                Kind::Report => {}
                Kind::Answer => {
                    let is_its = |of: IpAddr| heard.peer.contains(of);
                    if lock(&self.shared.questions).answer(&message, at, is_its) {
                        continue;
                    }
                    let answer = table.answer(address, message.nonce, at);
                    let Some(answer) = answer else {
                        continue;
                    };
                    if let Some(peer) = self
                        .tables
                        .as_ref()
                        .and_then(|tables| peer(&tables.snapshot, address))
                    {
                        peer.note_answer(at);
                        learn(peer, address, answer.learned, at, &table);
                    }
                }
            }
        }
        drop(table);
        self.report(&wanted);
    }

    /// Takes the reports of peers.
    fn hear_reports(&mut self) {
        let mut questions = lock(&self.shared.questions);
        for heard in self.hearing.reports() {
            questions.report(&heard);
        }
    }

    /// Tells those that want to know what is wrong with this node.
    fn report(&self, wanted: &[(IpAddr, Message, u32)]) {
        if wanted.is_empty() {
            return;
        }
        let own = OwnReport::of(&lock(&self.shared.problems));
        for (address, request, length) in wanted {
            let family = Family::of(*address);
            let socket = self.sockets.iter().find(|socket| socket.family() == family);
            let tables = self.tables.as_ref();
            let peer = tables.and_then(|tables| peer(&tables.snapshot, *address));
            let Some((socket, peer)) = socket.zip(peer) else {
                continue;
            };
            let report = request.report(own.problems);
            // It is asked for again where it is lost.
            let _ = socket.tell(peer, &report, &own.text, *length);
        }
    }

    /// Takes what came back of probes that did not arrive.
    fn take_errors(&mut self) {
        let now = self.shared.clock.now();
        let mut table = lock(&self.shared.table);
        for undelivered in self.sockets.iter().flat_map(probe::Prober::undelivered) {
            let address = undelivered.to.ip();
            let is_seen = |nonce| {
                table
                    .slot_of(address)
                    .is_some_and(|slot| slot.path.has_open(nonce))
            };
            let seen = undelivered.nonce.filter(|nonce| is_seen(*nonce));
            match (undelivered.mtu, seen) {
                (Some(_), Some(nonce)) => {
                    // Only that this size does not pass: how much does is found out, not believed.
                    let learned = table.on(address, now, |path| path.refuse_size(nonce, now));
                    self.learn(address, learned.flatten(), now, &table);
                }
                (Some(_), None) => {}
                (None, _) => table.fail(address, obstacle(&undelivered), seen.is_some(), now),
            }
        }
    }

    /// Sends what is due.
    fn ask(&mut self) {
        let now = self.shared.clock.now();
        let (mut asks, mut learned) = (Vec::new(), Vec::new());
        self.look(now);
        lock(&self.shared.table).turn(now, &mut asks, &mut learned);
        let shared = Arc::clone(&self.shared);
        let mut table = lock(&shared.table);
        for (address, mtu) in learned {
            self.learn(address, Some(mtu), now, &table);
        }
        for (index, ask) in asks {
            let Some(address) = table.slots().get(index).map(|slot| slot.target.address) else {
                continue;
            };
            self.send(address, ask, &mut table);
        }
    }

    /// Looks whether packets of pods have ceased to flow.
    fn look(&self, now: Now) {
        let Some(tables) = &self.tables else { return };
        let sent = |target: &Target| {
            let peer = peer(&tables.snapshot, target.address);
            peer.map_or(0, |peer| peer.traffic().sent_bytes)
        };
        lock(&self.shared.table).look(now, sent);
    }

    fn send(&mut self, address: IpAddr, ask: Ask, table: &mut super::Table) {
        let Some(tables) = &self.tables else { return };
        let family = Family::of(address);
        let socket = self.sockets.iter().find(|socket| socket.family() == family);
        let Some((socket, peer)) = socket.zip(peer(&tables.snapshot, address)) else {
            return;
        };
        let now = self.shared.clock.now();
        let request = request(peer, self.nonces.next(), &tables.following, now);
        let sent = socket.send(peer, &request, ask.size);
        let refused = sent.err();
        let errno = refused.as_ref().and_then(Errno::from_io_error);
        // A full queue of this node is no word on the path: what it did not take is not lost on the way.
        if let Some(Errno::AGAIN | Errno::NOBUFS) = errno {
            return;
        }
        self.asked = now;
        table.note_sent(address, request.nonce, ask, now);
        let Some(error) = refused else { return };
        match errno {
            Some(Errno::MSGSIZE) => {
                let learned = table.on(address, now, |path| path.refuse_size(request.nonce, now));
                learn(peer, address, learned.flatten(), now, table);
            }
            Some(Errno::CONNREFUSED) => table.fail(address, Obstacle::Refused, false, now),
            _ => table.fail(
                address,
                Obstacle::Unreachable(own_error(&error).into()),
                true,
                now,
            ),
        }
    }

    /// Sends the questions that are due, and ends those that are over.
    fn put_questions(&mut self) {
        let now = self.shared.clock.now();
        let mut questions = lock(&self.shared.questions);
        for pending in &mut questions.0 {
            let Some(due) = pending.due(now) else {
                continue;
            };
            let sizes = [due.small.then_some(None), due.size.map(Some)];
            for size in sizes.into_iter().flatten() {
                let nonce = self.nonces.next();
                pending.note_sent(nonce, size.is_some(), now);
                if let Err(reason) = self.put(pending.address, nonce, &pending.asked, size, now) {
                    pending.note_not_sent(reason, size.is_some());
                }
            }
            self.asked = now;
        }
        questions.settle(now);
    }

    fn put(
        &self,
        address: IpAddr,
        nonce: u64,
        asked: &Asked,
        size: Option<u16>,
        now: Now,
    ) -> Result<(), NotSent> {
        let tables = self.tables.as_ref();
        let peer = tables.and_then(|tables| peer(&tables.snapshot, address));
        let family = Family::of(address);
        let socket = self.sockets.iter().find(|socket| socket.family() == family);
        let Some(tables) = tables else {
            return Err(NotSent::NotAsked("probes have not begun yet"));
        };
        let Some(peer) = peer else {
            return Err(NotSent::NotAsked("its address is no longer in the tables"));
        };
        let Some(socket) = socket else {
            return Err(NotSent::NotAsked("this node has no socket to ask it by"));
        };
        let mut request = request(peer, nonce, &tables.following, now);
        let sent = match asked {
            Asked::Packet(question) => {
                request.flags |= QUESTION;
                socket.ask(peer, &request, question, size)
            }
            Asked::Report => {
                request.flags |= WANTS_REPORT;
                socket.send(peer, &request, Some(REPORT_REQUEST))
            }
        };
        let Err(error) = sent else {
            return Ok(());
        };
        match Errno::from_io_error(&error) {
            // What a full queue loses is sent again; a refusal is of an earlier request's host.
            Some(Errno::AGAIN | Errno::NOBUFS | Errno::CONNREFUSED) => Ok(()),
            Some(_) => Err(NotSent::Refused(own_error(&error))),
            None => Err(NotSent::NotAsked("the socket does not take it")),
        }
    }

    fn learn(&self, address: IpAddr, mtu: Option<u16>, now: Now, table: &super::Table) {
        let tables = self.tables.as_ref();
        if let Some(peer) = tables.and_then(|tables| peer(&tables.snapshot, address)) {
            learn(peer, address, mtu, now, table);
        }
    }

    /// Judges the paths whose turn it is, once a second.
    fn judge(&mut self) {
        let now = self.shared.clock.now();
        let Some(tables) = self
            .tables
            .as_ref()
            .filter(|_| now.since(self.judged) >= JUDGE_EVERY)
        else {
            return;
        };
        self.judged = now;
        let mut table = lock(&self.shared.table);
        let changed = table.judge(now, |target| seen(peer(&tables.snapshot, target.address)));
        for slot in changed
            .into_iter()
            .filter_map(|index| table.slots().get(index))
        {
            let (state, _) = slot.path.state();
            debug!(
                "{} at {}: {} {state}",
                slot.target.name,
                slot.target.address,
                state.name()
            );
        }
    }

    /// How long nothing is to be done.
    fn pause(&self) -> Duration {
        let now = self.shared.clock.now();
        let mut table = lock(&self.shared.table);
        let due = table.wake().map_or(LONGEST, |wake| wake.since(now));
        let is_asked = !lock(&self.shared.questions).is_empty();
        // A command waits for the answer to a question.
        let tick = if is_asked { SOON } else { table.tick() };
        let answers = match table.awaits() || is_asked {
            true if now.since(self.asked) < tick * 4 => tick,
            true => tick * 4,
            false => LONGEST,
        };
        let look = table.look_due().map_or(LONGEST, |look| look.since(now));
        due.min(answers).min(look).clamp(tick, LONGEST)
    }
}

impl Nonces {
    fn next(&mut self) -> u64 {
        self.count = self.count.wrapping_add(1);
        self.key.hash_one(self.count)
    }
}

/// What a peer is asked.
fn request(peer: &Peer, nonce: u64, following: &Following, now: Now) -> Message {
    let heard = peer.last_answer().map(|at| now.since(at).as_millis());
    Message {
        kind: Kind::Request,
        nonce,
        clock: now.0,
        length: 0,
        heard: heard.and_then(|heard| u32::try_from(heard).ok()),
        inner_mtu: following.device_mtu.into(),
        flags: if following.is_kernel_path {
            KERNEL_PATH
        } else {
            0
        },
        verdict: None,
    }
}

/// Every path that packets take.
fn targets(tables: &Adopt) -> Vec<Target> {
    let mut targets = Vec::new();
    for peer in tables.snapshot.cluster.peers.iter() {
        let of = peer.underlays().count() as u32;
        for family in peer.underlays() {
            let Some((to, own_end)) = peer.destination(family) else {
                continue;
            };
            let overhead = peer.format.overhead(family);
            // As in `Peer::learn_path`: no path is learned to carry less.
            let floor = min_inner(family).saturating_add(overhead);
            let ceiling = tables
                .following
                .device_mtu
                .saturating_add(overhead)
                .min(own_end);
            targets.push(Target {
                name: peer.name.as_str().into(),
                address: to.ip(),
                of,
                bounds: (floor, ceiling),
            });
        }
    }
    targets
}

fn peer(snapshot: &Snapshot, address: IpAddr) -> Option<&Peer> {
    Some(snapshot.cluster.peers.by_source(address)?.1)
}

fn seen(peer: Option<&Peer>) -> Seen {
    let Some(peer) = peer else {
        return Seen::default();
    };
    let traffic = peer.traffic();
    Seen {
        signs: Signs {
            heard: peer.last_heard(),
            other_mac: peer
                .other_mac(Family::V4)
                .or_else(|| peer.other_mac(Family::V6)),
            other_station: peer.other_station(),
            other_vni: peer.other_vni(),
        },
        packets: traffic.sent_packets.wrapping_add(traffic.received_packets),
    }
}

/// Tells a peer's path what it carries, where that is news or to be renewed. Where all that pods send passes, it is not
/// told to be narrower than it is.
fn learn(peer: &Peer, address: IpAddr, mtu: Option<u16>, now: Now, table: &super::Table) {
    let family = Family::of(address);
    let (Some(mtu), Some((_, own_end))) = (mtu, peer.destination(family)) else {
        return;
    };
    let ceiling = table
        .slot_of(address)
        .map_or(own_end, |slot| slot.path.search.ceiling());
    let known = peer.path_mtu(family, now);
    let is_news = match mtu >= ceiling {
        true => known.is_some_and(|known| known < ceiling),
        false => true,
    };
    if is_news {
        let mtu = if mtu >= ceiling { own_end } else { mtu };
        peer.learn_path(family, mtu, now);
    }
}

fn obstacle(undelivered: &Undelivered) -> Obstacle {
    match undelivered.reason() {
        "port unreachable" => Obstacle::Refused,
        _ => Obstacle::Unreachable(undelivered.to_string().into()),
    }
}

/// What our own kernel says of a probe, in words.
fn own_error(error: &io::Error) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::PERM) => "a firewall of this node drops what is sent there (EPERM)".to_owned(),
        Some(Errno::NETUNREACH) => "this node has no route there (ENETUNREACH)".to_owned(),
        Some(Errno::HOSTUNREACH) => {
            "its host does not answer on the link, or this node's route rejects it (EHOSTUNREACH)"
                .to_owned()
        }
        Some(Errno::ACCESS) => "this node's route prohibits it (EACCES)".to_owned(),
        Some(Errno::INVAL) => "this node's route discards it (EINVAL)".to_owned(),
        _ => error.to_string(),
    }
}

/// Bytes of outer packet of a request that wants a report, which bound the report. Every IPv4 host takes as much in one piece or
/// several (RFC 791 section 3.1), and no path is used that carries less.
const REPORT_REQUEST: u16 = 576;
/// Reports that are told in a turn; what is not told is asked for again.
const REPORTS: usize = 256;
const JUDGE_EVERY: Duration = Duration::from_secs(1);
/// What refuses a socket (descriptors, memory, an address that has not come yet) may pass.
const REOPEN_EVERY: Duration = Duration::from_secs(1);
/// An answer on a local network is there within this; a worker keeps what it heard.
const SOON: Duration = Duration::from_millis(20);
/// What peers asked and answered waits in the ring meanwhile; what this node wants of the thread wakes it. Four of these
/// pauses and that for an answer fill the time between two probes, so that none more is cut short by the next probe. A peer
/// that asks for a report three times in a second gets it after the third time too.
const LONGEST: Duration = Duration::from_millis(307);
