//! The sockets that there can be, and their names in the keeper's table.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use dataplane::families::PerFamily;
use dataplane::limits::TRANSMIT_SOCKETS;
use dataplane::underlay;
use dataplane::underlay::socket::SocketSpec;
use encap::{Family, Format};

use crate::config::Backend;

/// The UDP ports at which this node receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceivePorts {
    udp: u16,
    vxlan: PerFamily<u16>,
}

impl ReceivePorts {
    /// Those of the formats, to which peers send.
    pub(crate) fn of(backend: &Backend) -> ReceivePorts {
        ReceivePorts {
            udp: backend.udp_port(),
            vxlan: PerFamily::each(|_| backend.vxlan_port()),
        }
    }

    /// The same, and VXLAN over IPv4 at `private`: the kernel path hands over there what came to the format's port.
    pub(crate) fn with_private(self, private: Option<u16>) -> ReceivePorts {
        let v4 = private.unwrap_or(self.vxlan.v4);
        let vxlan = PerFamily { v4, ..self.vxlan };
        ReceivePorts { vxlan, ..self }
    }

    fn of_port(self, port: underlay::Port) -> u16 {
        match (port.format, port.family) {
            (Format::Udp, _) => self.udp,
            (Format::Vxlan, Family::V4) => self.vxlan.v4,
            (Format::Vxlan, Family::V6) => self.vxlan.v6,
        }
    }
}

/// One of the sockets that there can be: the one of a port that receives, or one of those that send beside it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketSlot {
    port: underlay::Port,
    pub(crate) worker: usize,
    lane: Option<usize>,
}

/// The same slot of every worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotGroup {
    pub(crate) port: underlay::Port,
    lane: Option<usize>,
}

/// Every slot that a worker has.
pub(crate) fn slots() -> impl Iterator<Item = SlotGroup> {
    // The `udp` format first, as ever: where it cannot be had, that is what the status says.
    let ports = underlay::Port::ALL.into_iter().rev();
    ports.flat_map(|port| {
        let lanes = match port.format {
            Format::Udp => 0,
            Format::Vxlan => TRANSMIT_SOCKETS,
        };
        let transmit = (0..lanes).map(Some);
        let all = [None].into_iter().chain(transmit);
        all.map(move |lane| SlotGroup { port, lane })
    })
}

impl SlotGroup {
    pub(crate) fn slots(self, workers: usize) -> impl Iterator<Item = SocketSlot> {
        let SlotGroup { port, lane } = self;
        (0..workers).map(move |worker| SocketSlot { port, worker, lane })
    }

    /// What its sockets are bound to at `address`.
    pub(crate) fn spec(self, address: IpAddr, ports: ReceivePorts) -> SocketSpec {
        SocketSpec {
            address,
            port: match self.lane {
                Some(_) => 0,
                None => ports.of_port(self.port),
            },
            format: self.port.format,
            lane: self.lane,
        }
    }
}

impl SocketSlot {
    pub(crate) fn of(spec: &SocketSpec, worker: usize) -> SocketSlot {
        SocketSlot {
            port: spec.underlay_port(),
            worker,
            lane: spec.lane,
        }
    }

    /// Whether it receives VXLAN over IPv4, at the format's port or at the kernel path's.
    pub(crate) fn may_be_private(self) -> bool {
        self.lane.is_none() && (self.port.format, self.port.family) == (Format::Vxlan, Family::V4)
    }

    /// Its name in the keeper's table.
    pub(crate) fn name(self) -> String {
        let SocketSlot { port, worker, lane } = self;
        let family = match port.family {
            Family::V4 => "v4",
            Family::V6 => "v6",
        };
        let format = port.format;
        match lane {
            None => format!("receive-{format}-{family}-{worker}"),
            Some(lane) => format!("transmit-{format}-{family}-{worker}-{lane}"),
        }
    }

    /// What an inherited socket is bound to, if that can be the node's own of this slot when it receives at `ports`.
    pub(crate) fn bound(self, socket: impl AsFd, ports: ReceivePorts) -> Option<SocketSpec> {
        let found = rustix::net::getsockname(socket).map_err(io::Error::from);
        let found = SocketAddr::try_from(found.ok()?).ok()?;
        let SocketSlot { port, lane, .. } = self;
        let spec = SlotGroup { port, lane }.spec(found.ip(), ports);
        let right = found.port() == spec.port || lane.is_some();
        let right = right && spec.underlay_port() == port;
        (right && !found.ip().is_unspecified()).then_some(spec)
    }
}
