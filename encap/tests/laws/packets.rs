//! Generated packets, built by `etherparse` and so independent of the code under test.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{
    Icmpv4Type, Icmpv6Type, IpAuthHeader, IpDscp, IpEcn, IpFragOffset, IpHeaders, IpNumber,
    Ipv4Header, Ipv4Options, Ipv6Extensions, Ipv6FragmentHeader, Ipv6Header, Ipv6RawExtHeader,
    Ipv6RoutingExtensions, PacketBuilder, TcpHeader,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// A packet and what its maker knows of it.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) bytes: Vec<u8>,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) ecn: u8,
    pub(crate) protocol: u8,
    /// Bytes of IP header, options and extension headers.
    pub(crate) transport: usize,
    /// Bytes of all headers.
    pub(crate) header: usize,
    pub(crate) ports: Option<(u16, u16)>,
}

impl Made {
    pub(crate) fn payload(&self) -> &[u8] {
        &self.bytes[self.header..]
    }

    pub(crate) fn is_v4(&self) -> bool {
        self.source.is_ipv4()
    }
}

/// Any packet of up to 3 KB.
pub(crate) fn any_packet() -> impl Strategy<Value = Made> {
    prop_oneof![tcp(3_000), udp(3_000), echo(3_000)]
}

/// TCP with any flags but SYN and RST, and options.
pub(crate) fn tcp(most: usize) -> impl Strategy<Value = Made> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let fields = (any::<(u16, u16, u32, u32, u16)>(), flags, 0..=10usize);
    (ip(), fields, payload(most)).prop_map(|(ip, (fields, flags, words), payload)| {
        let (source, destination, sequence, acknowledgment, window) = fields;
        let mut tcp = TcpHeader::new(source, destination, sequence, window);
        tcp.acknowledgment_number = acknowledgment;
        tcp.ack = true;
        (tcp.fin, tcp.psh, tcp.cwr, tcp.ece) = flags;
        tcp.set_options_raw(&[1, 1, 1, 1].repeat(words)).unwrap();
        let header = tcp.header_len();
        let mut bytes = Vec::new();
        PacketBuilder::ip(ip.clone())
            .tcp_header(tcp)
            .write_to_vec(&mut bytes, &payload)
            .unwrap();
        made(
            ip,
            bytes,
            payload.len(),
            header,
            6,
            Some((source, destination)),
        )
    })
}

pub(crate) fn udp(most: usize) -> impl Strategy<Value = Made> {
    (ip(), any::<(u16, u16)>(), payload(most)).prop_map(|(ip, ports, payload)| {
        let mut bytes = Vec::new();
        PacketBuilder::ip(ip.clone())
            .udp(ports.0, ports.1)
            .write_to_vec(&mut bytes, &payload)
            .unwrap();
        made(ip, bytes, payload.len(), 8, 17, Some(ports))
    })
}

pub(crate) fn echo(most: usize) -> impl Strategy<Value = Made> {
    (ip(), any::<(u16, u16)>(), payload(most)).prop_map(|(ip, (id, seq), payload)| {
        let echo = etherparse::IcmpEchoHeader { id, seq };
        let step = PacketBuilder::ip(ip.clone());
        let mut bytes = Vec::new();
        let protocol = if ip.ipv4().is_some() {
            step.icmpv4(Icmpv4Type::EchoRequest(echo))
                .write_to_vec(&mut bytes, &payload)
                .unwrap();
            1
        } else {
            step.icmpv6(Icmpv6Type::EchoRequest(echo))
                .write_to_vec(&mut bytes, &payload)
                .unwrap();
            58
        };
        made(ip, bytes, payload.len(), 8, protocol, None)
    })
}

fn made(
    ip: IpHeaders,
    bytes: Vec<u8>,
    payload: usize,
    transport: usize,
    protocol: u8,
    ports: Option<(u16, u16)>,
) -> Made {
    let (source, destination, ecn) = match &ip {
        IpHeaders::Ipv4(ip, _) => (
            Ipv4Addr::from(ip.source).into(),
            Ipv4Addr::from(ip.destination).into(),
            ip.ecn.value(),
        ),
        IpHeaders::Ipv6(ip, _) => (
            Ipv6Addr::from(ip.source).into(),
            Ipv6Addr::from(ip.destination).into(),
            ip.traffic_class & 3,
        ),
    };
    let header = bytes.len() - payload;
    Made {
        bytes,
        source,
        destination,
        ecn,
        protocol,
        transport: header - transport,
        header,
        ports,
    }
}

fn ip() -> impl Strategy<Value = IpHeaders> {
    prop_oneof![v4(), v6()]
}

fn v4() -> impl Strategy<Value = IpHeaders> {
    (any::<(u32, u32, u16, u8, bool, u8)>(), v4_options()).prop_map(|(fields, options)| {
        let (source, destination, identification, tos, dont_fragment, ttl) = fields;
        let ip = Ipv4Header {
            dscp: IpDscp::try_new(tos >> 2).unwrap(),
            ecn: IpEcn::try_new(tos & 3).unwrap(),
            identification,
            dont_fragment,
            time_to_live: ttl,
            source: unicast_v4(source).octets(),
            destination: unicast_v4(destination).octets(),
            options,
            ..Ipv4Header::default()
        };
        IpHeaders::Ipv4(ip, Default::default())
    })
}

/// An address that an ICMP error may be sent to: 1.0.0.0 to 126.255.255.255.
pub(crate) fn unicast_v4(bits: u32) -> Ipv4Addr {
    let [first, b, c, d] = bits.to_be_bytes();
    Ipv4Addr::new(first % 126 + 1, b, c, d)
}

/// An address in 2000::/3.
pub(crate) fn unicast_v6(bits: u128) -> Ipv6Addr {
    Ipv6Addr::from(bits >> 3 | 1 << 125)
}

/// Well-formed options, some to be copied into all fragments and some not, padded to words.
fn v4_options() -> impl Strategy<Value = Ipv4Options> {
    let option = prop_oneof![
        Just(vec![1]),
        Just(vec![148, 4, 0, 0]),
        Just(vec![7, 7, 4, 0, 0, 0, 0]),
        Just(vec![68, 8, 5, 0, 9, 9, 9, 9]),
        Just(vec![130, 11, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ];
    vec(option, 0..4).prop_map(|options| {
        let mut bytes = options.concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.truncate(40);
        Ipv4Options::try_from(bytes.as_slice()).unwrap()
    })
}

fn v6() -> impl Strategy<Value = IpHeaders> {
    (any::<(u128, u128, u8, u32, u8)>(), v6_extensions()).prop_map(|(fields, extensions)| {
        let (source, destination, traffic_class, label, hop_limit) = fields;
        let ip = Ipv6Header {
            traffic_class,
            flow_label: (label & 0xf_ffff).try_into().unwrap(),
            hop_limit,
            source: unicast_v6(source).octets(),
            destination: unicast_v6(destination).octets(),
            ..Ipv6Header::default()
        };
        IpHeaders::Ipv6(ip, extensions)
    })
}

/// Mostly none, as in life.
fn v6_extensions() -> impl Strategy<Value = Ipv6Extensions> {
    let some = (
        option::of(raw()),
        option::of(raw()),
        option::of(raw()),
        any::<(bool, bool)>(),
        option::of(0..4usize),
    );
    let some = some.prop_map(
        |(hop_by_hop_options, destination_options, routing, (fragment, last), auth)| {
            Ipv6Extensions {
                hop_by_hop_options,
                destination_options: destination_options.clone(),
                // Etherparse writes a final options header only behind a routing header.
                routing: routing.map(|mut routing| {
                    let mut payload = routing.payload().to_vec();
                    payload[1] = 0;
                    routing.set_payload(&payload).unwrap();
                    Ipv6RoutingExtensions {
                        routing,
                        final_destination_options: destination_options.filter(|_| last),
                    }
                }),
                fragment: fragment
                    .then(|| Ipv6FragmentHeader::new(IpNumber(0), IpFragOffset::ZERO, false, 7)),
                auth: auth.map(|words| {
                    IpAuthHeader::new(IpNumber(0), 1, 2, &vec![0; words * 4]).unwrap()
                }),
            }
        },
    );
    prop_oneof![3 => Just(Ipv6Extensions::default()), 1 => some]
}

fn raw() -> impl Strategy<Value = Ipv6RawExtHeader> {
    (0..3usize, any::<u8>()).prop_map(|(units, byte)| {
        Ipv6RawExtHeader::new_raw(IpNumber(0), &vec![byte; 6 + units * 8]).unwrap()
    })
}

/// Payload of every length up to `most`, odd ones and long runs of equal bytes included.
fn payload(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => vec(any::<u8>(), 0..=most.min(3_000)),
        1 => (any::<u8>(), 0..=most).prop_map(|(byte, len)| vec![byte; len]),
        1 => (any::<u8>(), 0..=most).prop_map(|(byte, len)| (0..len).map(|i| byte.wrapping_mul(i as u8)).collect()),
    ]
}
