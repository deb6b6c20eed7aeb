//! A pod: a `smoltcp` stack with one address per family on a point-to-point link.

use std::collections::VecDeque;
use std::net::IpAddr;

use dataplane::now::Now;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::socket::{AnySocket, tcp, udp};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr, IpEndpoint};

use super::plan;

/// A pod and its link.
pub struct Pod {
    /// The number of its node, from 1.
    pub node: u8,
    /// Its addresses, IPv4 and IPv6.
    pub addresses: [IpAddr; 2],
    stack: Interface,
    sockets: SocketSet<'static>,
    link: Link,
    /// Its sockets or its inbox changed since it last polled.
    woken: bool,
    due: Option<Now>,
}

impl Pod {
    /// Pod `n` (from 0) of node `node`.
    pub fn new(node: u8, n: u8, seed: u64) -> Pod {
        let mut link = Link::default();
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut stack = Interface::new(config, &mut link, Instant::ZERO);
        let addresses = [plan::pod(node, n), plan::pod6(node, n)];
        stack.update_ip_addrs(|list| {
            // The whole cluster is on the link, so the stack needs no route.
            list.push(IpCidr::new(addresses[0].into(), 16)).unwrap();
            list.push(IpCidr::new(addresses[1].into(), 56)).unwrap();
        });
        Pod {
            node,
            addresses,
            stack,
            sockets: SocketSet::new(vec![]),
            link,
            woken: false,
            due: None,
        }
    }

    /// A socket that waits for a connection to `port`.
    pub fn listen(&mut self, port: u16) -> SocketHandle {
        let mut socket = tcp_socket();
        socket.listen(port).unwrap();
        self.sockets.add(socket)
    }

    /// A socket that connects from port `from`.
    pub fn connect(&mut self, from: u16, to: (IpAddr, u16)) -> SocketHandle {
        let mut socket = tcp_socket();
        let remote: IpEndpoint = (IpAddress::from(to.0), to.1).into();
        socket.connect(self.stack.context(), remote, from).unwrap();
        self.woken = true;
        self.sockets.add(socket)
    }

    /// A UDP socket on `port` with room for `datagrams` each way.
    pub fn bind(&mut self, port: u16, datagrams: usize) -> SocketHandle {
        let buffer = || {
            let metadata = vec![udp::PacketMetadata::EMPTY; datagrams];
            udp::PacketBuffer::new(metadata, vec![0; datagrams * usize::from(plan::MTU)])
        };
        let mut socket = udp::Socket::new(buffer(), buffer());
        socket.bind(port).unwrap();
        self.sockets.add(socket)
    }

    /// A socket, to be used: the stack will be polled afterwards.
    pub fn socket<T: AnySocket<'static>>(&mut self, handle: SocketHandle) -> &mut T {
        self.woken = true;
        self.sockets.get_mut(handle)
    }

    /// A socket, to be looked at.
    pub fn peek<T: AnySocket<'static>>(&self, handle: SocketHandle) -> &T {
        self.sockets.get(handle)
    }

    /// Whether it has something to do at `now`.
    pub fn is_due(&self, now: Now) -> bool {
        self.woken || self.due.is_some_and(|due| due <= now)
    }

    /// When it wants to be polled, if nothing happens before.
    pub fn due(&self) -> Option<Now> {
        self.due
    }

    /// A packet reaches it.
    pub fn receive(&mut self, packet: Vec<u8>) {
        self.link.inbox.push_back(packet);
        self.woken = true;
    }

    /// Runs the stack and returns what it sends.
    pub fn poll(&mut self, now: Now) -> Vec<Vec<u8>> {
        self.woken = false;
        self.stack
            .poll(instant(now), &mut self.link, &mut self.sockets);
        self.due = self
            .stack
            .poll_at(instant(now), &self.sockets)
            // The stack counts microseconds, and may ask for a moment that has passed.
            .map(|at| Now((at.total_micros() as u64 * 1000).max(now.0 + 1000)));
        std::mem::take(&mut self.link.outbox)
    }
}

fn instant(now: Now) -> Instant {
    Instant::from_micros((now.0 / 1000) as i64)
}

fn tcp_socket() -> tcp::Socket<'static> {
    let buffer = || tcp::SocketBuffer::new(vec![0; WINDOW]);
    tcp::Socket::new(buffer(), buffer())
}

/// Bytes of a TCP socket's buffers: some windows per transfer, and not so much that a loss costs all of it.
const WINDOW: usize = 48 * 1024;

/// Packets on their way to and from a stack.
#[derive(Default)]
struct Link {
    inbox: VecDeque<Vec<u8>>,
    outbox: Vec<Vec<u8>>,
}

struct Received(Vec<u8>);
struct Sending<'a>(&'a mut Vec<Vec<u8>>);

impl phy::Device for Link {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sending<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Received, Sending<'_>)> {
        let packet = self.inbox.pop_front()?;
        Some((Received(packet), Sending(&mut self.outbox)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Sending<'_>> {
        Some(Sending(&mut self.outbox))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = plan::MTU.into();
        capabilities.checksum = ChecksumCapabilities::default();
        capabilities
    }
}

impl phy::RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl phy::TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let mut packet = vec![0; length];
        let result = f(&mut packet);
        self.0.push(packet);
        result
    }
}
