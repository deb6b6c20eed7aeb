//! One TCP connection that carries known bytes both ways.

use std::net::IpAddr;

use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp;

use super::pod::Pod;

/// A connection, its bytes, and how far they got.
pub struct Transfer {
    ends: [End; 2],
}

struct End {
    /// Index of its pod.
    pod: usize,
    socket: SocketHandle,
    /// What it sends.
    bytes: Vec<u8>,
    sent: usize,
    received: usize,
}

impl Transfer {
    /// Connects pod number `from` to pod number `to`, over IPv6 or IPv4. Each end sends `bytes` bytes made of `seed`.
    pub fn start(
        pods: &mut [Pod],
        (from, to): (usize, usize),
        v6: bool,
        port: u16,
        (bytes, seed): (usize, u64),
    ) -> Transfer {
        let mut random = fastrand::Rng::with_seed(seed);
        let address: IpAddr = pods[to].addresses[usize::from(v6)];
        let server = pods[to].listen(port);
        let client = pods[from].connect(port, (address, port));
        let ends = [(from, client), (to, server)].map(|(pod, socket)| {
            let mut end = End {
                pod,
                socket,
                bytes: vec![0; bytes],
                sent: 0,
                received: 0,
            };
            random.fill(&mut end.bytes);
            end
        });
        Transfer { ends }
    }

    /// Moves bytes between the sockets and the test, and returns whether anything happened.
    pub fn pump(&mut self, pods: &mut [Pod]) -> bool {
        let [client, server] = &mut self.ends;
        // Both, whatever the first says.
        let moved = client.pump(&server.bytes, pods);
        server.pump(&client.bytes, pods) || moved
    }

    /// Whether both ends have every byte of the other.
    pub fn is_complete(&self) -> bool {
        let [client, server] = &self.ends;
        client.received == server.bytes.len() && server.received == client.bytes.len()
    }

    /// Ends the connection on both sides at once. Not by FIN: `smoltcp` does not always send a lost one again.
    pub fn abort(&mut self, pods: &mut [Pod]) {
        for end in &self.ends {
            pods[end.pod].socket::<tcp::Socket>(end.socket).abort();
        }
    }

    /// Its progress, for the messages of tests.
    pub fn progress(&self, pods: &[Pod]) -> String {
        let of = |end: &End| {
            let state = pods[end.pod].peek::<tcp::Socket>(end.socket).state();
            format!(
                "{} {state} sent {} received {}",
                end.pod, end.sent, end.received
            )
        };
        format!("{} / {}", of(&self.ends[0]), of(&self.ends[1]))
    }
}

impl End {
    fn pump(&mut self, expected: &[u8], pods: &mut [Pod]) -> bool {
        let socket = pods[self.pod].peek::<tcp::Socket>(self.socket);
        let rest = &self.bytes[self.sent..];
        if !(socket.can_recv() || (socket.can_send() && !rest.is_empty())) {
            return false;
        }
        let socket = pods[self.pod].socket::<tcp::Socket>(self.socket);
        if socket.can_send() {
            self.sent += socket.send_slice(rest).unwrap();
        }
        while socket.can_recv() {
            self.received += socket
                .recv(|bytes| {
                    let end = self.received + bytes.len();
                    assert!(
                        expected.get(self.received..end) == Some(bytes),
                        "other bytes than were sent arrive at {}..{end}",
                        self.received
                    );
                    (bytes.len(), bytes.len())
                })
                .unwrap();
        }
        true
    }
}
