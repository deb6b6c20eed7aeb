//! The sockets that there can be, and their names in the keeper's table.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use dataplane::limits::TRANSMIT_SOCKETS;
use dataplane::underlay;
use dataplane::underlay::socket::SocketSpec;
use encap::{Family, Format};

use crate::config::Backend;

/// One of the sockets that there can be: the one of a port that receives, or one of those that send beside it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    port: underlay::Port,
    pub(crate) worker: usize,
    lane: Option<usize>,
}

/// A place that each worker has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) port: underlay::Port,
    lane: Option<usize>,
}

/// Every place that a worker has.
pub(crate) fn places() -> impl Iterator<Item = Group> {
    // The `udp` format first, as ever: where it cannot be had, that is what the status says.
    let ports = underlay::Port::ALL.into_iter().rev();
    ports.flat_map(|port| {
        let lanes = match port.format {
            Format::Udp => 0,
            Format::Vxlan => TRANSMIT_SOCKETS,
        };
        let transmit = (0..lanes).map(Some);
        let all = [None].into_iter().chain(transmit);
        all.map(move |lane| Group { port, lane })
    })
}

impl Group {
    pub(crate) fn places(self, workers: usize) -> impl Iterator<Item = Place> {
        let Group { port, lane } = self;
        (0..workers).map(move |worker| Place { port, worker, lane })
    }

    /// What its sockets are bound to at `address`.
    pub(crate) fn spec(self, address: IpAddr, backend: &Backend) -> SocketSpec {
        SocketSpec {
            address,
            port: match (self.lane, self.port.format) {
                (Some(_), _) => 0,
                (None, Format::Udp) => backend.udp_port(),
                (None, Format::Vxlan) => backend.vxlan_port(),
            },
            format: self.port.format,
            lane: self.lane,
        }
    }
}

impl Place {
    pub(crate) fn of(spec: &SocketSpec, worker: usize) -> Place {
        Place {
            port: spec.underlay_port(),
            worker,
            lane: spec.lane,
        }
    }

    /// Its name in the keeper's table.
    pub(crate) fn name(self) -> String {
        let Place { port, worker, lane } = self;
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

    /// What an inherited socket is bound to, if that can be the node's own of this place.
    pub(crate) fn bound(self, socket: &OwnedFd, backend: &Backend) -> Option<SocketSpec> {
        let found = rustix::net::getsockname(socket).map_err(io::Error::from);
        let found = SocketAddr::try_from(found.ok()?).ok()?;
        let Place { port, lane, .. } = self;
        let spec = Group { port, lane }.spec(found.ip(), backend);
        let right = found.port() == spec.port || lane.is_some();
        let right = right && spec.underlay_port() == port;
        (right && !found.ip().is_unspecified()).then_some(spec)
    }
}
