//! Expressions of tcpdump's language, as much of it as says something of an IP packet.
//!
//! An expression is evaluated on the inner packet; where none can be read, on the outer one. `docs/operate.md` lists what
//! is understood; of the rest the error says so.

mod parse;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use dataplane::capture::Record;
use ipnet::IpNet;

use super::packet::Packet;
use super::pcapng::outer_packet;
use crate::api::wire::CaptureStart;

/// Whether a packet is to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expression {
    /// Of any packet.
    True,
    Not(Box<Expression>),
    And(Box<Expression>, Box<Expression>),
    Or(Box<Expression>, Box<Expression>),
    Version(u8),
    Protocol(u8),
    Host(End, IpAddr),
    Net(End, IpNet),
    /// From one to the other, inclusive.
    Ports(End, u16, u16),
    /// Of the whole packet, bytes.
    AtMost(u64),
    AtLeast(u64),
}

/// Which end of a packet is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Source,
    Destination,
    Either,
    Both,
}

impl Expression {
    /// # Errors
    /// A sentence that names what is not understood.
    pub(super) fn parse(text: &str) -> Result<Expression, String> {
        parse::parse(text)
    }

    /// Whether it is true of the record's packet.
    pub(super) fn holds(&self, record: &Record<'_>, start: &CaptureStart) -> bool {
        if *self == Expression::True {
            return true;
        }
        if let Some(packet) = Packet::read(record.inner()).filter(|_| !record.is_not_ip) {
            let length = u64::from(record.length).saturating_sub(record.outer as u64);
            return self.is_true_of(Some(&packet), length);
        }
        let outer = outer_packet(record, start);
        let packet = outer.as_ref().and_then(|header| Packet::read(header));
        self.is_true_of(packet.as_ref(), record.length.into())
    }

    fn is_true_of(&self, packet: Option<&Packet>, length: u64) -> bool {
        match self {
            Expression::True => true,
            Expression::Not(other) => !other.is_true_of(packet, length),
            Expression::And(one, other) => {
                one.is_true_of(packet, length) && other.is_true_of(packet, length)
            }
            Expression::Or(one, other) => {
                one.is_true_of(packet, length) || other.is_true_of(packet, length)
            }
            Expression::AtMost(bytes) => length <= *bytes,
            Expression::AtLeast(bytes) => length >= *bytes,
            Expression::Version(version) => packet.is_some_and(|packet| {
                let is_v4 = packet.source.is_ipv4();
                is_v4 == (*version == 4)
            }),
            Expression::Protocol(protocol) => {
                packet.is_some_and(|packet| packet.protocol == *protocol)
            }
            Expression::Host(end, address) => packet.is_some_and(|packet| {
                let is_it = |other: IpAddr| other == *address;
                end.choose(is_it(packet.source), is_it(packet.destination))
            }),
            Expression::Net(end, net) => packet.is_some_and(|packet| {
                let holds = |address: IpAddr| net.contains(&address);
                end.choose(holds(packet.source), holds(packet.destination))
            }),
            Expression::Ports(end, from, to) => {
                let ports = packet.and_then(|packet| packet.ports);
                ports.is_some_and(|(source, destination)| {
                    let is_within = |port: u16| (*from..=*to).contains(&port);
                    end.choose(is_within(source), is_within(destination))
                })
            }
        }
    }
}

impl End {
    fn choose(self, source: bool, destination: bool) -> bool {
        match self {
            End::Source => source,
            End::Destination => destination,
            End::Either => source || destination,
            End::Both => source && destination,
        }
    }
}
