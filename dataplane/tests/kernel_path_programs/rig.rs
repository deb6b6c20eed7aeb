//! The object in the kernel, its tables as a test wants them, and one run of a program.

use std::collections::BTreeMap;

use aya::maps::lpm_trie::Key;
use aya::maps::{Array, HashMap, LpmTrie, MapData, PerCpuArray, ProgramArray, RingBuf};
use aya::programs::{SchedClassifier, SocketFilter, TcAttachType, TestRun, TestRunOptions, tc};
use aya::{Ebpf, EbpfLoader};
use rustix::time::{ClockId, clock_gettime};

use crate::packets::*;

/// `TC_ACT_UNSPEC`: passed on.
pub const PASSED: i32 = -1;
/// `TC_ACT_SHOT`.
pub const DROPPED: i32 = 2;
/// `TC_ACT_REDIRECT`.
pub const REDIRECTED: i32 = 7;

/// Flags of the settings.
pub const ON: u32 = 1;
pub const FLOWS: u32 = 2;
pub const BULK_TCP_PASSES: u32 = 8;
pub const TO_PRIVATE_PORT: u32 = 4;

/// Bits of `local`.
pub const SOURCE: u32 = 1;
pub const DESTINATION: u32 = 2;
pub const OURS_BIT: u32 = 4;

pub const MARK: u32 = 0x1234;
pub const EPOCH: u32 = 9;
pub const POD_GENERATION: u32 = 5;
pub const NO_NAMESPACE: u32 = u32::MAX;
pub const PEER_GENERATION: u32 = 6;
pub const MTU: u16 = 1400;
pub const INNER_MTU: u16 = 1450;
pub const FLOW_AFTER: u16 = 4;
/// Loopback, on which the kernel runs a program.
pub const DEVICE: u32 = 1;

/// Number of node 2 among the peers.
pub const PEER_NUMBER: u32 = 1;

/// What a run did.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    pub action: i32,
    pub packet: Vec<u8>,
    pub mark: u32,
    /// Names of the reasons counted in `passes`.
    pub passes: Vec<&'static str>,
    /// What was added to `counters`, by place.
    pub counted: BTreeMap<u32, u64>,
}

/// Settings that a test changes.
#[derive(Clone, Copy)]
pub struct Settings {
    pub flags: u32,
    /// Nanoseconds from now; negative where it has ended.
    pub lease: i64,
    pub epoch: u32,
    pub oldest_epoch: u32,
    /// That of a TAP.
    pub tunnel_mac: [u8; 6],
    /// Numbers of the underlay and the tunnel device.
    pub devices: [u32; 2],
    pub mark: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            flags: ON,
            lease: 60_000_000_000,
            epoch: EPOCH,
            oldest_epoch: EPOCH,
            tunnel_mac: [0; 6],
            devices: [70, 71],
            mark: MARK,
        }
    }
}

/// An entry of `flows_out` or `flows_in` that a test changes.
#[derive(Clone, Copy)]
pub struct Flow {
    /// Nanoseconds from now.
    pub until: i64,
    /// When a program carried a packet of it last, the same.
    pub last_seen: i64,
    pub epoch: u32,
    pub peer: u32,
    pub peer_generation: u32,
    pub pod_generation: u32,
    pub ifindex: u32,
    pub flags: u32,
    pub header: [u8; OUTER],
}

impl Default for Flow {
    fn default() -> Flow {
        Flow {
            until: 60_000_000_000,
            last_seen: 0,
            epoch: EPOCH,
            peer: PEER_NUMBER,
            peer_generation: PEER_GENERATION,
            pod_generation: POD_GENERATION,
            ifindex: DEVICE,
            flags: 0,
            header: [0; OUTER],
        }
    }
}

/// The programs, loaded, and their tables.
pub struct Rig {
    object: Ebpf,
    passes: PerCpuArray<MapData, u64>,
    counters: PerCpuArray<MapData, u64>,
    pub events: RingBuf<MapData>,
    /// Runs gro_in behind a program that attaches what a VXLAN device attaches.
    device: Option<Ebpf>,
}

impl Rig {
    /// The tables of the cluster in [`packets`](crate::packets), switched on.
    pub fn new() -> Rig {
        let mut object = EbpfLoader::new()
            .load(include_bytes!("../../bpf/kernel_path.o"))
            .unwrap();
        for name in PROGRAMS {
            program(&mut object, name)
                .load()
                .unwrap_or_else(|error| panic!("the verifier refuses {name}: {error:?}"));
        }
        filter(&mut object).load().unwrap();
        let mut rig = Rig {
            passes: PerCpuArray::try_from(object.take_map("passes").unwrap()).unwrap(),
            counters: PerCpuArray::try_from(object.take_map("counters").unwrap()).unwrap(),
            events: RingBuf::try_from(object.take_map("events").unwrap()).unwrap(),
            object,
            device: None,
        };
        rig.settings(Settings::default());
        for (prefix, length, peer) in [
            ([10, 244, 2, 0], 24, PEER_NUMBER),
            ([10, 244, 3, 0], 24, 2),
            ([10, 244, 4, 0], 24, 3),
            ([10, 244, 5, 0], 24, 0),
        ] {
            rig.prefix("fib", prefix, length, peer);
        }
        for (prefix, length, bits) in [
            ([10, 244, 1, 0], 24, OURS_BIT),
            ([8, 0, 1, 0], 24, OURS_BIT),
            ([10, 244, 1, 0], 32, SOURCE | DESTINATION | OURS_BIT),
            ([10, 244, 1, 2], 32, SOURCE | DESTINATION | OURS_BIT),
            (POD, 32, SOURCE | DESTINATION | OURS_BIT),
            (OURS, 32, SOURCE | OURS_BIT),
            ([203, 0, 113, 0], 24, SOURCE),
        ] {
            rig.prefix("local", prefix, length, bits);
        }
        rig.peer(PEER_NUMBER, PEER, 3, PEER_VTEP);
        rig.peer(2, PEER_OF_USER_SPACE, 0, [2, 0, 0, 0, 0, 0x0c]);
        rig.peer(3, PEER_WITH_OUR_MAC, 2, OUR_VTEP);
        rig.pod(POD, DEVICE);
        rig
    }

    pub fn settings(&mut self, settings: Settings) {
        let Settings {
            flags,
            lease,
            epoch,
            oldest_epoch,
            tunnel_mac,
            devices: [underlay, tunnel],
            mark,
        } = settings;
        let mut entry = Entry::default();
        entry.u32(flags).u32(epoch);
        entry.u64(monotonic().wrapping_add_signed(lease));
        entry.u32(underlay).u32(tunnel).put(&OURS).u16(INNER_MTU);
        entry.put(&VXLAN_PORT.to_be_bytes());
        entry.put(&PRIVATE_PORT.to_be_bytes());
        entry.u16(32_768).u16(28_000).u16(FLOW_AFTER).u32(mark);
        entry.put(&(VNI << 8).to_be_bytes());
        entry.put(&UNDERLAY_MAC).put(&OUR_VTEP).put(&tunnel_mac);
        entry.u16(0).u32(oldest_epoch).u64(0);
        let mut table =
            Array::<_, [u8; 80]>::try_from(self.object.map_mut("settings").unwrap()).unwrap();
        table.set(0, entry.bytes::<80>(), 0).unwrap();
    }

    pub fn prefix(&mut self, table: &str, prefix: [u8; 4], length: u32, value: u32) {
        let mut table =
            LpmTrie::<_, [u8; 4], u32>::try_from(self.object.map_mut(table).unwrap()).unwrap();
        table.insert(&Key::new(length, prefix), value, 0).unwrap();
    }

    pub fn peer(&mut self, number: u32, address: [u8; 4], flags: u32, vtep: [u8; 6]) {
        self.peer_of(number, address, flags, vtep, PEER_GENERATION);
    }

    pub fn peer_of(
        &mut self,
        number: u32,
        address: [u8; 4],
        flags: u32,
        vtep: [u8; 6],
        generation: u32,
    ) {
        let mut entry = Entry::default();
        entry.put(&address).u32(flags).u32(generation).u16(MTU);
        entry.put(&vtep).put(&NEXT_HOP);
        let mut table =
            Array::<_, [u8; 28]>::try_from(self.object.map_mut("peers").unwrap()).unwrap();
        table.set(number, entry.bytes::<28>(), 0).unwrap();
    }

    pub fn pod(&mut self, address: [u8; 4], ifindex: u32) {
        self.pod_in(address, ifindex, NO_NAMESPACE);
    }

    /// A pod of which the number of its namespace is known.
    pub fn pod_in(&mut self, address: [u8; 4], ifindex: u32, namespace: u32) {
        let mut entry = Entry::default();
        entry.u32(ifindex).u32(namespace).u32(POD_GENERATION).u32(1);
        entry.put(&POD_MAC).put(&HOST_MAC);
        let mut table =
            HashMap::<_, [u8; 4], [u8; 28]>::try_from(self.object.map_mut("pods").unwrap())
                .unwrap();
        table.insert(address, entry.bytes::<28>(), 0).unwrap();
    }

    pub fn flow(&mut self, table: &str, key: [u8; 16], flow: Flow) {
        let mut entry = Entry::default();
        let now = monotonic();
        entry.u64(now.wrapping_add_signed(flow.until));
        entry.u64(0).u64(now.wrapping_add_signed(flow.last_seen));
        entry.u64(0).u64(0);
        entry
            .u32(flow.epoch)
            .u32(flow.peer)
            .u32(flow.peer_generation);
        entry
            .u32(flow.pod_generation)
            .u32(flow.ifindex)
            .u32(1)
            .u32(flow.flags);
        entry.put(&flow.header).u32(0);
        self.flows(table)
            .insert(key, entry.bytes::<FLOW>(), 0)
            .unwrap();
    }

    pub fn end_flow(&mut self, table: &str, key: [u8; 16]) {
        self.flows(table).remove(&key).unwrap();
    }

    /// The entry, if there is one: its packets and bytes.
    pub fn flow_counts(&mut self, table: &str, key: [u8; 16]) -> Option<(u64, u64)> {
        let entry = self.flows(table).get(&key, 0).ok()?;
        let word = |at: usize| u64::from_ne_bytes(entry[at..at + 8].try_into().unwrap());
        Some((word(24), word(32)))
    }

    fn flows(&mut self, table: &str) -> HashMap<&mut MapData, [u8; 16], [u8; FLOW]> {
        HashMap::try_from(self.object.map_mut(table).unwrap()).unwrap()
    }

    /// Of `peer_counts` or `pod_counts`: sent packets and bytes, received packets and bytes.
    pub fn traffic(&mut self, table: &str, number: u32) -> [u64; 4] {
        let table =
            PerCpuArray::<_, [u64; 4]>::try_from(self.object.map_mut(table).unwrap()).unwrap();
        let values = table.get(&number, 0).unwrap();
        std::array::from_fn(|word| values.iter().map(|value| value[word]).sum())
    }

    /// Every event posted since the last time: kind, peer, epoch, MTU, and the flow's key.
    pub fn posted(&mut self) -> Vec<(u32, u32, u32, u32, [u8; 16])> {
        let mut posted = vec![];
        while let Some(event) = self.events.next() {
            let word = |at: usize| u32::from_ne_bytes(event[at..at + 4].try_into().unwrap());
            let key = event[16..32].try_into().unwrap();
            posted.push((word(0), word(4), word(8), word(12), key));
        }
        posted
    }

    /// Attaches a program to a device of the caller's namespace.
    pub fn attach(&mut self, name: &str, device: &str, side: TcAttachType) {
        // Kernels before 6.6 need it.
        let _ = tc::qdisc_add_clsact(device);
        program(&mut self.object, name)
            .attach(device, side)
            .unwrap();
    }

    /// What was counted and passed on so far.
    pub fn totals(&self) -> (BTreeMap<u32, u64>, Vec<&'static str>) {
        let counters = sums(&self.counters);
        let passes = sums(&self.passes);
        let zeros = vec![0; counters.len().max(passes.len())];
        let reasons = changes(&zeros, &passes);
        (
            changes(&zeros, &counters),
            reasons
                .keys()
                .map(|reason| PASSES[*reason as usize])
                .collect(),
        )
    }

    /// Runs a program on `packet`, and says all that it did.
    pub fn run(&mut self, name: &str, packet: &[u8], ctx: Context) -> Outcome {
        self.observe(|rig| run(program(&mut rig.object, name), packet, ctx))
    }

    /// Runs a program, and says only what became of the packet.
    pub fn quick(&mut self, name: &str, packet: &[u8]) -> (i32, Vec<u8>) {
        let (action, bytes, _) = run(program(&mut self.object, name), packet, Context::default());
        (action, bytes)
    }

    /// Whether the filter lets a message of netlink through, and whole.
    pub fn is_announced(&mut self, message: &[u8]) -> bool {
        // The kernel takes what it runs a filter on for a frame, whose Ethernet header the filter does not see.
        let frame = [&[0; 14], message].concat();
        let options = TestRunOptions {
            data_in: Some(&frame),
            ..TestRunOptions::default()
        };
        let result = filter(&mut self.object).test_run(options).unwrap();
        let taken = result.return_value as usize;
        assert!(taken == 0 || taken == message.len(), "{taken} bytes");
        taken != 0
    }

    /// Runs gro_in on a frame that a VXLAN device has taken out of a datagram, with our mark.
    pub fn run_behind_device(&mut self, remote: Remote, packet: &[u8]) -> Outcome {
        if self.device.is_none() {
            let mut device = Ebpf::load(include_bytes!("tunnel_key.o")).unwrap();
            for remote in [Remote::Peer, Remote::Other, Remote::OtherVni] {
                program(&mut device, remote.program()).load().unwrap();
            }
            let target = program(&mut self.object, "gro_in").fd().unwrap();
            let mut next = ProgramArray::try_from(device.map_mut("next").unwrap()).unwrap();
            next.set(0, target, 0).unwrap();
            self.device = Some(device);
        }
        let ctx = Context {
            mark: MARK,
            ..Context::default()
        };
        self.observe(|rig| {
            let device = rig.device.as_mut().unwrap();
            run(program(device, remote.program()), packet, ctx)
        })
    }

    fn observe(&mut self, run: impl FnOnce(&mut Rig) -> (i32, Vec<u8>, u32)) -> Outcome {
        let (passes, counters) = (sums(&self.passes), sums(&self.counters));
        let (action, packet, mark) = run(self);
        let passes = changes(&passes, &sums(&self.passes));
        Outcome {
            action,
            packet,
            mark,
            passes: passes
                .keys()
                .map(|reason| PASSES[*reason as usize])
                .collect(),
            counted: changes(&counters, &sums(&self.counters)),
        }
    }
}

/// Where the VXLAN device says that a frame comes from.
#[derive(Clone, Copy)]
pub enum Remote {
    Peer,
    Other,
    OtherVni,
}

impl Remote {
    fn program(self) -> &'static str {
        match self {
            Remote::Peer => "from_peer",
            Remote::Other => "from_other",
            Remote::OtherVni => "of_other_vni",
        }
    }
}

/// What of `struct __sk_buff` a test sets.
#[derive(Clone, Copy, Default)]
pub struct Context {
    pub mark: u32,
    pub gso_size: u32,
    pub gso_segs: u32,
}

/// Nanoseconds of CLOCK_MONOTONIC, as the programs see it.
pub fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The key of a flow as the packet has it.
pub fn key(inner: &Inner) -> [u8; 16] {
    let (protocol, source, destination) = match inner.transport {
        Transport::Tcp(source, destination, _) => (6, source, destination),
        Transport::Udp(source, destination) => (17, source, destination),
        Transport::Icmp => (1, 0, 0),
    };
    let mut entry = Entry::default();
    entry.put(&inner.source).put(&inner.destination);
    entry
        .put(&source.to_be_bytes())
        .put(&destination.to_be_bytes())
        .put(&[protocol]);
    entry.bytes()
}

fn program<'a>(object: &'a mut Ebpf, name: &str) -> &'a mut SchedClassifier {
    object.program_mut(name).unwrap().try_into().unwrap()
}

fn filter(object: &mut Ebpf) -> &mut SocketFilter {
    let filter = object.program_mut("forgotten");
    filter.unwrap().try_into().unwrap()
}

fn run(program: &SchedClassifier, packet: &[u8], context: Context) -> (i32, Vec<u8>, u32) {
    let mut ctx = [0; SK_BUFF];
    ctx[MARK_AT..MARK_AT + 4].copy_from_slice(&context.mark.to_ne_bytes());
    ctx[GSO_SIZE_AT..GSO_SIZE_AT + 4].copy_from_slice(&context.gso_size.to_ne_bytes());
    ctx[GSO_SEGS_AT..GSO_SEGS_AT + 4].copy_from_slice(&context.gso_segs.to_ne_bytes());
    let mut ctx_out = [0; SK_BUFF];
    let mut data_out = vec![0; packet.len() + 256];
    let result = program
        .test_run(TestRunOptions {
            data_in: Some(packet),
            data_out: Some(&mut data_out),
            ctx_in: Some(&ctx),
            ctx_out: Some(&mut ctx_out),
            ..TestRunOptions::default()
        })
        .unwrap();
    data_out.truncate(result.data_size_out as usize);
    let mark = ctx_out[MARK_AT..MARK_AT + 4].try_into().unwrap();
    (
        result.return_value as i32,
        data_out,
        u32::from_ne_bytes(mark),
    )
}

fn sums(table: &PerCpuArray<MapData, u64>) -> Vec<u64> {
    let sum = |place| table.get(&place, 0).unwrap().iter().sum();
    (0..table.len()).map(sum).collect()
}

fn changes(before: &[u64], after: &[u64]) -> BTreeMap<u32, u64> {
    let pairs = before.iter().zip(after).enumerate();
    pairs
        .filter(|(_, (before, after))| before != after)
        .map(|(place, (before, after))| (place as u32, after - before))
        .collect()
}

/// Bytes of a table's entry.
#[derive(Default)]
struct Entry(Vec<u8>);

impl Entry {
    fn put(&mut self, bytes: &[u8]) -> &mut Entry {
        self.0.extend(bytes);
        self
    }

    fn u16(&mut self, value: u16) -> &mut Entry {
        self.put(&value.to_ne_bytes())
    }

    fn u32(&mut self, value: u32) -> &mut Entry {
        self.put(&value.to_ne_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Entry {
        self.put(&value.to_ne_bytes())
    }

    /// The entry, padded with zeros.
    fn bytes<const N: usize>(&self) -> [u8; N] {
        assert!(self.0.len() <= N && self.0.len() + 8 > N);
        std::array::from_fn(|at| self.0.get(at).copied().unwrap_or(0))
    }
}

const PROGRAMS: [&str; 6] = [
    "pod_in",
    "pod_out",
    "tunnel_out",
    "tunnel_out_ether",
    "underlay_in",
    "gro_in",
];

/// The reasons of `dataplane/bpf/reasons.h`, in their order.
pub const PASSES: [&str; 27] = [
    "Off",
    "Lease",
    "NotIpv4",
    "Malformed",
    "Options",
    "Fragment",
    "Checksum",
    "SuperPacket",
    "NotUnicast",
    "Source",
    "Local",
    "NoPeer",
    "Peer",
    "TooBig",
    "Vxlan",
    "Mac",
    "Congestion",
    "NotPeersSource",
    "NotOurs",
    "NoFlow",
    "StaleFlow",
    "FlowEnds",
    "Probe",
    "WrongPod",
    "Ttl",
    "Refused",
    "BulkTcp",
];

/// The kernel runs no program on less than an Ethernet and an IPv4 header.
pub const SHORTEST: usize = 34;

/// Bytes of `struct flow`.
const FLOW: usize = 136;
/// Bytes of `struct __sk_buff`, and offsets in it.
const SK_BUFF: usize = 192;
const MARK_AT: usize = 8;
const GSO_SEGS_AT: usize = 164;
const GSO_SIZE_AT: usize = 176;

/// Places in `counters`.
pub const RECEIVED: u32 = 0;
pub const SENT: u32 = 2;
pub const DELIVERED: u32 = 3;
pub const DROPS: u32 = 8;
pub const INBOUND: u32 = 64;

/// What a packet adds that is sent.
pub fn sent() -> BTreeMap<u32, u64> {
    BTreeMap::from([(RECEIVED, 1), (SENT, 1)])
}

/// What a packet adds that is delivered.
pub fn delivered() -> BTreeMap<u32, u64> {
    BTreeMap::from([(INBOUND + RECEIVED, 1), (INBOUND + DELIVERED, 1)])
}
