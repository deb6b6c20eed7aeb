//! What a request may ask beside "are you there": what would become of an inner packet. And what the answer says.
//!
//! ```text
//! behind the message of a request with the flag QUESTION:
//!  0 u8 version 1 | 1 u8 family, 4 or 6 | 2 u8 protocol | 3 u8 zero
//!  4 u16 source port | 6 u16 destination port | 8 u16 bytes of the packet | 10 u16 zero
//! 12 the source address, 16 bytes, of IPv4 the first 4   | 28 the destination, as the source
//! in the first four bytes at offset 40 of an answer:
//!  0 u8 fate, 0 = none is told | 1 u8 zero | 2 u16 the largest packet that the answerer sends back, bytes
//! ```
//!
//! A node that does not know questions answers the request as any other, and its answer tells no fate. A question makes a
//! request longer, and its answer not.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Family;
use crate::field;

/// An inner packet that is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Its source.
    pub source: IpAddr,
    /// Its destination, of the same family.
    pub destination: IpAddr,
    /// IANA protocol number.
    pub protocol: u8,
    /// Source and destination port; 0 where the protocol has none.
    pub ports: (u16, u16),
    /// Bytes of the packet, its IP header included.
    pub size: u16,
}

/// What an answer says of the packet that was asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What would become of it.
    pub fate: Fate,
    /// The largest inner packet of its family that the answerer sends the other way in one piece, bytes; 0 where it does
    /// not say.
    pub mtu_back: u16,
}

/// What would become of a packet at the node that is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// Delivered: the destination is an attachment of Tartan's own plugin.
    Pod,
    /// Delivered: the node's kernel has the destination on another device, as another plugin's pods are.
    KernelRoute,
    /// Delivered: the destination is the node's own tunnel address.
    Tunnel,
    /// Dropped: the source is not one of the asking node's.
    NotPeersSource,
    /// Dropped: the destination lies in the node's subnet, and no pod has it.
    NoSuchPod,
    /// Dropped: the destination is none of the node's.
    NotOurs,
    /// Dropped: the node takes no IPv6 in the `udp` format.
    Ipv6InUdp,
    /// The node does not understand the question.
    NotUnderstood,
    /// A fate that a later version of the format has.
    Other(u8),
}

impl Question {
    /// The question at the start of `bytes`, which stand behind the message of a request; `None` where there is none that
    /// this version understands.
    pub fn parse(bytes: &[u8]) -> Option<Question> {
        let bytes: &[u8; QUESTION_BYTES] = bytes.first_chunk()?;
        let [VERSION, family, protocol, ..] = *bytes else {
            return None;
        };
        let word = |at| field::bytes::<2>(bytes, at).map(u16::from_be_bytes);
        let address = |at| match family {
            4 => field::bytes::<4>(bytes, at).map(|bytes| IpAddr::from(Ipv4Addr::from(bytes))),
            6 => field::bytes::<16>(bytes, at).map(|bytes| IpAddr::from(Ipv6Addr::from(bytes))),
            _ => None,
        };
        Some(Question {
            source: address(SOURCE)?,
            destination: address(DESTINATION)?,
            protocol,
            ports: (word(SOURCE_PORT)?, word(DESTINATION_PORT)?),
            size: word(SIZE)?,
        })
    }

    /// The question as bytes.
    pub fn emit(&self) -> [u8; QUESTION_BYTES] {
        let mut bytes = [0; QUESTION_BYTES];
        let family = match self.family() {
            Family::V4 => 4,
            Family::V6 => 6,
        };
        // All of it lies inside: the offsets are constants.
        let _ = field::put(&mut bytes, 0, [VERSION, family, self.protocol]);
        let _ = field::put(&mut bytes, SOURCE_PORT, self.ports.0.to_be_bytes());
        let _ = field::put(&mut bytes, DESTINATION_PORT, self.ports.1.to_be_bytes());
        let _ = field::put(&mut bytes, SIZE, self.size.to_be_bytes());
        for (at, address) in [(SOURCE, self.source), (DESTINATION, self.destination)] {
            let _ = match address {
                IpAddr::V4(v4) => field::put(&mut bytes, at, v4.octets()),
                IpAddr::V6(v6) => field::put(&mut bytes, at, v6.octets()),
            };
        }
        bytes
    }

    /// The family of the packet.
    pub fn family(&self) -> Family {
        Family::of(self.source)
    }
}

impl Verdict {
    pub(super) fn parse(bytes: [u8; 4]) -> Option<Verdict> {
        let [fate, _, high, low] = bytes;
        Some(Verdict {
            fate: Fate::numbered(fate)?,
            mtu_back: u16::from_be_bytes([high, low]),
        })
    }

    pub(super) fn emit(self) -> [u8; 4] {
        let [high, low] = self.mtu_back.to_be_bytes();
        [self.fate.number(), 0, high, low]
    }
}

impl Fate {
    /// Its number in an answer, never 0 but for an `Other` that is made so.
    pub const fn number(self) -> u8 {
        match self {
            Fate::Pod => 1,
            Fate::KernelRoute => 2,
            Fate::Tunnel => 3,
            Fate::NotPeersSource => 16,
            Fate::NoSuchPod => 17,
            Fate::NotOurs => 18,
            Fate::Ipv6InUdp => 19,
            Fate::NotUnderstood => 32,
            Fate::Other(number) => number,
        }
    }

    /// The fate of that number; `None` of 0.
    pub const fn numbered(number: u8) -> Option<Fate> {
        Some(match number {
            0 => return None,
            1 => Fate::Pod,
            2 => Fate::KernelRoute,
            3 => Fate::Tunnel,
            16 => Fate::NotPeersSource,
            17 => Fate::NoSuchPod,
            18 => Fate::NotOurs,
            19 => Fate::Ipv6InUdp,
            32 => Fate::NotUnderstood,
            other => Fate::Other(other),
        })
    }

    /// Whether the packet would be delivered; `None` where that is not said.
    pub const fn is_delivered(self) -> Option<bool> {
        match self {
            Fate::Pod | Fate::KernelRoute | Fate::Tunnel => Some(true),
            Fate::NotPeersSource | Fate::NoSuchPod | Fate::NotOurs | Fate::Ipv6InUdp => Some(false),
            Fate::NotUnderstood | Fate::Other(_) => None,
        }
    }
}

/// Bytes of a question.
pub const QUESTION_BYTES: usize = 44;

const VERSION: u8 = 1;
const SOURCE_PORT: usize = 4;
const DESTINATION_PORT: usize = 6;
const SIZE: usize = 8;
const SOURCE: usize = 12;
const DESTINATION: usize = 28;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn addresses() -> impl Strategy<Value = (IpAddr, IpAddr)> {
        prop_oneof![
            any::<[[u8; 4]; 2]>().prop_map(|[a, b]| (a.into(), b.into())),
            any::<[[u8; 16]; 2]>().prop_map(|[a, b]| (a.into(), b.into())),
        ]
    }

    proptest! {
        #[test]
        fn a_question_is_read_as_it_was_asked(
            (source, destination) in addresses(),
            protocol: u8, ports: (u16, u16), size: u16, behind in 0..9usize,
        ) {
            let question = Question { source, destination, protocol, ports, size };
            let mut bytes = question.emit().to_vec();
            bytes.resize(QUESTION_BYTES + behind, 0);
            prop_assert_eq!(Question::parse(&bytes), Some(question));
            prop_assert_eq!(Question::parse(&bytes[..QUESTION_BYTES - 1]), None);
        }

        #[test]
        fn any_bytes_are_a_question_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Some(question) = Question::parse(&bytes) {
                prop_assert!(bytes.len() >= QUESTION_BYTES && bytes[0] == VERSION);
                prop_assert_eq!(question.source.is_ipv4(), question.destination.is_ipv4());
            }
        }

        #[test]
        fn a_verdict_is_read_as_it_was_given(bytes: [u8; 4]) {
            let verdict = Verdict::parse(bytes);
            prop_assert_eq!(verdict.is_none(), bytes[0] == 0);
            if let Some(verdict) = verdict {
                prop_assert_eq!(Verdict::parse(verdict.emit()), Some(verdict));
                prop_assert_eq!(verdict.fate.number(), bytes[0]);
            }
        }
    }

    /// The layout is a promise to other versions.
    #[test]
    fn byte_for_byte() {
        let question = Question {
            source: [10, 244, 1, 2].into(),
            destination: [10, 244, 2, 3].into(),
            protocol: 6,
            ports: (0x1234, 80),
            size: 1450,
        };
        let mut expected = vec![1, 4, 6, 0, 0x12, 0x34, 0, 80, 5, 0xaa, 0, 0, 10, 244, 1, 2];
        expected.resize(28, 0);
        expected.extend([10, 244, 2, 3]);
        expected.resize(QUESTION_BYTES, 0);
        assert_eq!(question.emit().to_vec(), expected);
        let verdict = Verdict {
            fate: Fate::NoSuchPod,
            mtu_back: 1450,
        };
        assert_eq!(verdict.emit(), [17, 0, 5, 0xaa]);
    }
}
