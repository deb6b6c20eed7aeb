//! What the programs report.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};

use aya::maps::{Map, MapData, MapError, RingBuf};

use super::flows::{FlowKey, FlowTable};
use super::layout::{
    self, EVENT_FLOW_IN, EVENT_FLOW_IN_SOCKET, EVENT_FLOW_OUT, EVENT_PATH_REPORT, address,
};
use super::{KernelPathError, object};
use crate::drops::Direction;

/// What a program reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A flow has passed enough packets of the present epoch through the host's stack to be judged, or is to be judged
    /// anew.
    Flow {
        /// Which way its packets go.
        direction: Direction,
        /// The flow.
        key: FlowKey,
        /// Public address of the peer at its other end; `None` if the peer has gone meanwhile.
        peer: Option<Ipv4Addr>,
        /// The epoch in which the packets passed.
        epoch: u32,
        /// An inbound TCP connection that ends at a socket of the pod: the pod does not forward it.
        ends_at_socket: bool,
    },
    /// A router reports that the path to this underlay address takes less than we send. Not proved: any host that knows
    /// addresses and ports can send such a report.
    PathReport {
        /// Where the datagram went that the report quotes.
        peer: Ipv4Addr,
        /// The largest outer packet that the router passes on, bytes; 0 if it does not say.
        mtu: u16,
    },
}

/// The ring of [`Event`]s. One reader at a time: what one has read another does not see. The descriptor is readable when
/// there is an event.
pub struct EventReader {
    ring: RingBuf<MapData>,
    flows: FlowTable,
}

impl EventReader {
    pub(super) fn open(
        flows: FlowTable,
        descriptor: BorrowedFd<'_>,
    ) -> Result<EventReader, KernelPathError> {
        let duplicate = object::duplicate(object::EVENTS, descriptor)?;
        let open = || -> Result<RingBuf<MapData>, MapError> {
            RingBuf::try_from(Map::from_map_data(MapData::from_fd(duplicate)?)?)
        };
        let ring = open().map_err(|error| KernelPathError::table("map", object::EVENTS, error))?;
        Ok(EventReader { ring, flows })
    }

    /// The next event, if there is one.
    #[allow(clippy::should_implement_trait)] // `None` is not the end.
    pub fn next(&mut self) -> Option<Event> {
        loop {
            let record = layout::Event::parse(&self.ring.next()?);
            // What this service does not know it skips.
            if let Some(event) = record.and_then(|record| self.event(&record)) {
                return Some(event);
            }
        }
    }

    fn event(&self, record: &layout::Event) -> Option<Event> {
        let direction = match record.kind {
            EVENT_FLOW_OUT => Direction::Outbound,
            EVENT_FLOW_IN | EVENT_FLOW_IN_SOCKET => Direction::Inbound,
            EVENT_PATH_REPORT => {
                return Some(Event::PathReport {
                    peer: address(record.flow.destination),
                    mtu: u16::try_from(record.mtu).unwrap_or(u16::MAX),
                });
            }
            _ => return None,
        };
        Some(Event::Flow {
            direction,
            key: FlowKey::from(record.flow),
            peer: self.flows.peer_address(record.peer),
            epoch: record.epoch,
            ends_at_socket: record.kind == EVENT_FLOW_IN_SOCKET,
        })
    }
}

impl AsFd for EventReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}
