//! Flow → the chain that its next packet may join.

use std::net::IpAddr;

use crate::inner::{Fragment, Inner};

/// One direction of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    protocol: u8,
    ports: (u16, u16),
}

impl Flow {
    /// The flow of a whole packet that has ports.
    pub(super) fn of(inner: &Inner) -> Option<Flow> {
        Some(Flow {
            source: inner.source,
            destination: inner.destination,
            protocol: inner.protocol,
            ports: inner.ports.filter(|_| inner.fragment == Fragment::Whole)?,
        })
    }
}

/// An open-addressed table of chain numbers. It never fills: it has twice as many slots as there can be chains.
pub(super) struct Flows {
    slots: Box<[u16]>,
}

/// The outcome of a search.
pub(super) enum FlowSlot {
    /// The flow's latest chain, and its slot.
    Chain(u16, usize),
    /// The flow is new; this slot is free.
    Vacant(usize),
}

impl Flows {
    /// Room for `flows` flows.
    pub(super) fn new(flows: usize) -> Flows {
        Flows {
            slots: vec![FREE; (2 * flows).next_power_of_two()].into_boxed_slice(),
        }
    }

    /// Searches from the place that `hash` names; `is` returns whether a chain is of the flow sought.
    pub(super) fn find(&self, hash: u32, is: impl Fn(u16) -> bool) -> FlowSlot {
        let mask = self.slots.len() - 1;
        let start = hash as usize & mask;
        for step in 0..self.slots.len() {
            let slot = (start + step) & mask;
            match self.slots.get(slot).copied().unwrap_or(FREE) {
                FREE => return FlowSlot::Vacant(slot),
                chain if is(chain) => return FlowSlot::Chain(chain, slot),
                _ => {}
            }
        }
        FlowSlot::Vacant(start)
    }

    /// Puts `chain` into `slot`.
    pub(super) fn set(&mut self, slot: usize, chain: u16) {
        if let Some(place) = self.slots.get_mut(slot) {
            *place = chain;
        }
    }

    /// Empties `slot`.
    pub(super) fn free(&mut self, slot: usize) {
        self.set(slot, FREE);
    }
}

/// No chain.
const FREE: u16 = u16::MAX;
