//! The tables' entries as the programs read them: each structure equals that of its name in `dataplane/bpf/tables.h`, to
//! the byte. Padding is explicit, so that every byte of an entry is written.

use std::mem::offset_of;
use std::net::Ipv4Addr;

/// `settings.flags`: the programs act.
pub(crate) const ON: u32 = 1;
/// `settings.flags`: flows pass between pod and underlay.
pub(crate) const FLOWS: u32 = 2;
/// `settings.flags`: what no table knows goes to the private port.
pub(crate) const PRIVATE_PORT: u32 = 4;
/// `settings.flags`: TCP super-packets to peers are user space's.
pub(crate) const BULK_TCP_PASSES: u32 = 8;

/// `peer.flags`: the programs may send to it.
pub(crate) const PEER_SEND: u32 = 1;
/// `peer.flags`: the programs may receive from it.
pub(crate) const PEER_RECEIVE: u32 = 2;

/// Value of `local`: may be an inner source of what leaves.
pub(crate) const LOCAL_SOURCE: u32 = 1;
/// Value of `local`: may be an inner destination of what arrives.
pub(crate) const LOCAL_DESTINATION: u32 = 2;
/// Value of `local`: no peer's source, and never encapsulated as a destination.
pub(crate) const LOCAL_OURS: u32 = 4;

/// Bits that `settings.mark` may have.
pub(crate) const MARK_BITS: u32 = 0x3f7f;

/// `pod.namespace`: not known.
pub(crate) const NO_NAMESPACE: u32 = 0xffff_ffff;

/// `flow.flags`: the program may decapsulate TCP super-packets itself.
pub(crate) const FLOW_DIRECT_TCP: u32 = 1;

/// Bytes in front of an inner packet.
pub(crate) const OUTER_BYTES: usize = 64;

/// Words of one direction in `counters`.
pub(crate) const DIRECTION_WORDS: u32 = 64;
/// Place of the packets sent in the first, the outbound, direction.
pub(crate) const SENT: u32 = 2;

/// `event.kind`.
pub(crate) const EVENT_FLOW_OUT: u32 = 1;
/// `event.kind`.
pub(crate) const EVENT_FLOW_IN: u32 = 2;
/// `event.kind`.
pub(crate) const EVENT_PATH_REPORT: u32 = 3;
/// `event.kind`.
pub(crate) const EVENT_FLOW_IN_SOCKET: u32 = 4;

/// An address as it stands in a packet.
pub(crate) const fn be(address: Ipv4Addr) -> u32 {
    u32::from_ne_bytes(address.octets())
}

/// The address that [`be`] was made of.
pub(crate) const fn address(be: u32) -> Ipv4Addr {
    let [a, b, c, d] = be.to_ne_bytes();
    Ipv4Addr::new(a, b, c, d)
}

/// Entry 0 of `settings`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Settings {
    pub(crate) flags: u32,
    pub(crate) epoch: u32,
    pub(crate) lease_end: u64,
    pub(crate) underlay_ifindex: u32,
    pub(crate) tunnel_ifindex: u32,
    pub(crate) local: u32,
    pub(crate) inner_mtu: u16,
    pub(crate) vxlan_port: u16,
    pub(crate) private_port: u16,
    pub(crate) source_port_base: u16,
    pub(crate) source_port_count: u16,
    pub(crate) flow_after: u16,
    pub(crate) mark: u32,
    pub(crate) vni: u32,
    pub(crate) underlay_mac: [u8; 6],
    pub(crate) vtep: [u8; 6],
    pub(crate) tunnel_mac: [u8; 6],
    pub(crate) pad: u16,
    pub(crate) oldest_epoch: u32,
    pub(crate) rules_generation: u32,
    pub(crate) unused: u32,
}

/// An entry of `peers`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Peer {
    pub(crate) address: u32,
    pub(crate) flags: u32,
    pub(crate) generation: u32,
    pub(crate) mtu: u16,
    pub(crate) vtep: [u8; 6],
    pub(crate) next_hop: [u8; 6],
    pub(crate) pad: u16,
}

/// An entry of `pods`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Pod {
    pub(crate) ifindex: u32,
    pub(crate) namespace: u32,
    pub(crate) generation: u32,
    pub(crate) number: u32,
    pub(crate) pod_mac: [u8; 6],
    pub(crate) host_mac: [u8; 6],
}

/// Key of `flows_out` and `flows_in`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct FlowKey {
    pub(crate) source: u32,
    pub(crate) destination: u32,
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
    pub(crate) protocol: u8,
    pub(crate) pad: [u8; 3],
}

/// An entry of `flows_out` and `flows_in`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Flow {
    pub(crate) until: u64,
    pub(crate) probed: u64,
    pub(crate) last_seen: u64,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) epoch: u32,
    pub(crate) peer: u32,
    pub(crate) peer_generation: u32,
    pub(crate) pod_generation: u32,
    pub(crate) ifindex: u32,
    pub(crate) pod: u32,
    pub(crate) flags: u32,
    pub(crate) header: [u8; OUTER_BYTES],
    pub(crate) probing: u32,
}

/// An entry of `peer_counts` and `pod_counts`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Counts {
    pub(crate) sent_packets: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) received_packets: u64,
    pub(crate) received_bytes: u64,
}

/// A record of `events`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Event {
    pub(crate) kind: u32,
    pub(crate) peer: u32,
    pub(crate) epoch: u32,
    pub(crate) mtu: u32,
    pub(crate) flow: FlowKey,
}

impl Event {
    /// The record that `bytes` are, if they are as many as it has.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Event> {
        let bytes: &[u8; size_of::<Event>()] = bytes.try_into().ok()?;
        let (words, flow) = bytes.split_first_chunk::<{ offset_of!(Event, flow) }>()?;
        let word = |place: usize| {
            let word = words.get(4 * place..)?.first_chunk()?;
            Some(u32::from_ne_bytes(*word))
        };
        let &[s0, s1, s2, s3, d0, d1, d2, d3, p0, p1, q0, q1, protocol, ..] = flow else {
            return None;
        };
        Some(Event {
            kind: word(0)?,
            peer: word(1)?,
            epoch: word(2)?,
            mtu: word(3)?,
            flow: FlowKey {
                source: u32::from_ne_bytes([s0, s1, s2, s3]),
                destination: u32::from_ne_bytes([d0, d1, d2, d3]),
                source_port: u16::from_ne_bytes([p0, p1]),
                destination_port: u16::from_ne_bytes([q0, q1]),
                protocol,
                pad: [0; 3],
            },
        })
    }
}

/// States a structure's size and where each field begins, in order, and that no byte lies between two of them. Its name
/// in `tables.h` stands beside it, for the test.
macro_rules! layout {
    ($($of:ident $name:literal $size:literal { $($field:ident: $type:ty = $offset:literal),+ })+) => {
        $(const _: () = {
            assert!(size_of::<$of>() == $size);
            let mut end = 0;
            $(
                assert!(offset_of!($of, $field) == $offset && end == $offset);
                end += size_of::<$type>();
            )+
            assert!(end == $size);
        };)+

        /// Name, size, and the names and offsets of the fields of each structure.
        #[cfg(test)]
        const STRUCTURES: &[(&str, usize, &[(&str, usize)])] = &[
            $(($name, $size, &[$((stringify!($field), $offset)),+])),+
        ];
    };
}

layout! {
    Settings "settings" 80 {
        flags: u32 = 0, epoch: u32 = 4, lease_end: u64 = 8, underlay_ifindex: u32 = 16, tunnel_ifindex: u32 = 20,
        local: u32 = 24, inner_mtu: u16 = 28, vxlan_port: u16 = 30, private_port: u16 = 32,
        source_port_base: u16 = 34, source_port_count: u16 = 36, flow_after: u16 = 38, mark: u32 = 40, vni: u32 = 44,
        underlay_mac: [u8; 6] = 48, vtep: [u8; 6] = 54, tunnel_mac: [u8; 6] = 60, pad: u16 = 66,
        oldest_epoch: u32 = 68, rules_generation: u32 = 72, unused: u32 = 76
    }
    Peer "peer" 28 {
        address: u32 = 0, flags: u32 = 4, generation: u32 = 8, mtu: u16 = 12, vtep: [u8; 6] = 14,
        next_hop: [u8; 6] = 20, pad: u16 = 26
    }
    Pod "pod" 28 {
        ifindex: u32 = 0, namespace: u32 = 4, generation: u32 = 8, number: u32 = 12, pod_mac: [u8; 6] = 16,
        host_mac: [u8; 6] = 22
    }
    FlowKey "flow_key" 16 {
        source: u32 = 0, destination: u32 = 4, source_port: u16 = 8, destination_port: u16 = 10, protocol: u8 = 12,
        pad: [u8; 3] = 13
    }
    Flow "flow" 136 {
        until: u64 = 0, probed: u64 = 8, last_seen: u64 = 16, packets: u64 = 24, bytes: u64 = 32, epoch: u32 = 40,
        peer: u32 = 44, peer_generation: u32 = 48, pod_generation: u32 = 52, ifindex: u32 = 56, pod: u32 = 60,
        flags: u32 = 64, header: [u8; OUTER_BYTES] = 68, probing: u32 = 132
    }
    Counts "traffic" 32 {
        sent_packets: u64 = 0, sent_bytes: u64 = 8, received_packets: u64 = 16, received_bytes: u64 = 24
    }
    Event "event" 32 { kind: u32 = 0, peer: u32 = 4, epoch: u32 = 8, mtu: u32 = 12, flow: FlowKey = 16 }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const HEADER: &str = include_str!("../../bpf/tables.h");

    /// Size and alignment of a type of `tables.h`.
    fn type_of(name: &str) -> (usize, usize) {
        match name {
            "__u8" => (1, 1),
            "__u16" | "__be16" => (2, 2),
            "__u32" | "__be32" => (4, 4),
            "__u64" => (8, 8),
            "struct flow_key" => (16, 4),
            other => panic!("{other}"),
        }
    }

    /// A structure as a C compiler lays it out: its size, and the names and offsets of its fields.
    fn structure(name: &str) -> (usize, Vec<(String, usize)>) {
        let start = format!("\nstruct {name} {{\n");
        let (_, rest) = HEADER.split_once(&start).unwrap();
        let (body, _) = rest.split_once("\n};").unwrap();
        let (mut end, mut align) = (0usize, 1);
        let mut fields = vec![];
        let lines = body.lines().map(str::trim);
        for line in lines
            .filter_map(|line| line.strip_suffix(';'))
            .filter(|line| !line.starts_with('*'))
        {
            let (of, field) = line.rsplit_once(' ').unwrap();
            let (size, needs) = type_of(of);
            let (field, count) = match field.split_once('[') {
                Some((field, "OUTER_BYTES]")) => (field, OUTER_BYTES),
                Some((field, count)) => (field, count.trim_end_matches(']').parse().unwrap()),
                None => (field, 1),
            };
            end = end.next_multiple_of(needs);
            fields.push((field.to_owned(), end));
            end += size * count;
            align = align.max(needs);
        }
        (end.next_multiple_of(align), fields)
    }

    #[test]
    fn structures_are_those_of_the_programs() {
        for (name, size, ours) in STRUCTURES {
            let ours: Vec<_> = ours
                .iter()
                .map(|(field, offset)| ((*field).to_owned(), *offset))
                .collect();
            assert_eq!(structure(name), (*size, ours), "struct {name}");
        }
    }

    #[test]
    fn constants_are_those_of_the_programs() {
        let equations = HEADER
            .lines()
            .filter_map(|line| line.trim().strip_suffix(',')?.split_once(" = "));
        let mut theirs: HashMap<&str, u32> = equations
            .filter_map(|(name, value)| Some((name, value.parse().ok()?)))
            .collect();
        theirs.extend(HEADER.lines().filter_map(|line| {
            let (name, value) = line.strip_prefix("#define ")?.split_once(' ')?;
            let value = match value.strip_prefix("0x") {
                Some(hex) => u32::from_str_radix(hex, 16).ok()?,
                None => value.parse().ok()?,
            };
            Some((name, value))
        }));
        let ours = [
            ("KERNEL_PATH_ON", ON),
            ("KERNEL_PATH_FLOWS", FLOWS),
            ("KERNEL_PATH_PRIVATE_PORT", PRIVATE_PORT),
            ("KERNEL_PATH_BULK_TCP_PASSES", BULK_TCP_PASSES),
            ("PEER_SEND", PEER_SEND),
            ("PEER_RECEIVE", PEER_RECEIVE),
            ("LOCAL_SOURCE", LOCAL_SOURCE),
            ("LOCAL_DESTINATION", LOCAL_DESTINATION),
            ("LOCAL_OURS", LOCAL_OURS),
            ("NO_NAMESPACE", NO_NAMESPACE),
            ("FLOW_DIRECT_TCP", FLOW_DIRECT_TCP),
            ("MARK_BITS", MARK_BITS),
            ("OUTER_BYTES", OUTER_BYTES as u32),
            ("EVENT_FLOW_OUT", EVENT_FLOW_OUT),
            ("EVENT_FLOW_IN", EVENT_FLOW_IN),
            ("EVENT_PATH_REPORT", EVENT_PATH_REPORT),
            ("EVENT_FLOW_IN_SOCKET", EVENT_FLOW_IN_SOCKET),
            ("DIRECTION_WORDS", DIRECTION_WORDS),
            ("SENT", SENT),
        ];
        for (name, value) in ours {
            assert_eq!(theirs.get(name), Some(&value), "{name}");
        }
        // The places of `counters` are those of a worker's words.
        let flow = crate::counters::Flow::of_words(|place| place as u64);
        let ours = [
            ("RECEIVED", flow.received),
            ("SENT", flow.sent),
            ("DELIVERED", flow.delivered),
            ("DROPS", flow.drops[0]),
        ];
        for (name, place) in ours {
            assert_eq!(
                theirs.get(name).copied().map(u64::from),
                Some(place),
                "{name}"
            );
        }
    }

    #[test]
    fn an_event_is_read_as_it_was_written() {
        let words = [
            2u32,
            7,
            9,
            1400,
            be([10, 0, 0, 1].into()),
            be([10, 0, 0, 2].into()),
        ];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend([0x12, 0x34, 0x56, 0x78, 6, 0, 0, 0]);
        let event = Event::parse(&bytes).unwrap();
        assert_eq!(
            (event.kind, event.peer, event.epoch, event.mtu),
            (2, 7, 9, 1400)
        );
        let flow = event.flow;
        assert_eq!(
            (address(flow.source), address(flow.destination)),
            ([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
        );
        assert_eq!(
            (
                flow.source_port.to_ne_bytes(),
                flow.destination_port.to_ne_bytes()
            ),
            ([0x12, 0x34], [0x56, 0x78])
        );
        assert_eq!(flow.protocol, 6);
        assert_eq!(Event::parse(&bytes[1..]), None);
    }
}
