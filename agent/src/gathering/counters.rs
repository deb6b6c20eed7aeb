//! How many packets have come in by each interface, of all with one question to the kernel (rtnetlink(7), `RTM_GETSTATS`,
//! Linux 4.7). Where a node has hundreds of pods, to open and read a file of sysfs for each would take a core's tenth part.

use std::collections::HashMap;
use std::io;

use cni_shim::nlmsg::{self, HEADER, NLMSG_ERROR};
use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE};
use rtnetlink::sys::Socket;
use rtnetlink::sys::protocols::NETLINK_ROUTE;

/// A socket to ask by. Its network namespace is that of the thread that opened it.
pub(super) struct Counters {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Counters {
    /// # Errors
    /// As of socket(2).
    pub(super) fn open() -> io::Result<Counters> {
        Ok(Counters {
            socket: Socket::new(NETLINK_ROUTE)?,
            sequence: 0,
            buffer: Vec::with_capacity(DATAGRAM),
        })
    }

    /// The packets that have come in so far, by the interface's index; what one end of a veth has sent comes in by the other.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(super) fn received(&mut self) -> io::Result<HashMap<u32, u64>> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.send(&request(self.sequence), 0)?;
        let mut found = HashMap::new();
        loop {
            self.buffer.clear();
            // Without a wait: the kernel writes the next part of its answer while this one is read (netlink_recvmsg).
            self.socket.recv(&mut self.buffer, libc::MSG_DONTWAIT)?;
            if is_last(&self.buffer, self.sequence, &mut found)? {
                return Ok(found);
            }
        }
    }
}

/// The question for `struct rtnl_link_stats64` of every interface.
fn request(sequence: u32) -> Vec<u8> {
    let length = (HEADER + MESSAGE) as u32;
    let mut request = Vec::with_capacity(HEADER + MESSAGE);
    request.extend(length.to_ne_bytes());
    request.extend(RTM_GETSTATS.to_ne_bytes());
    request.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    request.extend(sequence.to_ne_bytes());
    // The sender's port, which the kernel knows; then family and index of `struct if_stats_msg`, which are none.
    request.extend([0; 4 + 8]);
    request.extend((1_u32 << (IFLA_STATS_LINK_64 - 1)).to_ne_bytes());
    request
}

/// Takes what a datagram of the answer says into `found`; whether it is the last one.
fn is_last(datagram: &[u8], sequence: u32, found: &mut HashMap<u32, u64>) -> io::Result<bool> {
    let mut rest = datagram;
    while let Some((header, message, after)) = nlmsg::split(rest) {
        rest = after;
        if header.sequence != sequence {
            continue;
        }
        let body = message.get(HEADER..).unwrap_or_default();
        match header.kind {
            RTM_NEWSTATS => found.extend(packets(body)),
            // Both begin with an error as a negative number; 0: all was said.
            NLMSG_DONE | NLMSG_ERROR => {
                let code = body
                    .first_chunk()
                    .map_or(0, |code| i32::from_ne_bytes(*code));
                return match code {
                    0 => Ok(true),
                    code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
                };
            }
            _ => {}
        }
    }
    Ok(false)
}

/// The interface that a message is about, and what has come in by it.
fn packets(body: &[u8]) -> Option<(u32, u64)> {
    let index = body.get(INDEX..)?.first_chunk()?;
    let mut attributes = nlmsg::attributes(body.get(MESSAGE..)?);
    let (_, counters) = attributes.find(|(kind, _)| *kind == IFLA_STATS_LINK_64)?;
    // The first of them is rx_packets.
    let packets = counters.first_chunk()?;
    Some((u32::from_ne_bytes(*index), u64::from_ne_bytes(*packets)))
}

// linux/rtnetlink.h and linux/if_link.h.
const RTM_NEWSTATS: u16 = 92;
const RTM_GETSTATS: u16 = 94;
const IFLA_STATS_LINK_64: u16 = 1;
/// Bytes of `struct if_stats_msg`, and where its index stands.
const MESSAGE: usize = 12;
const INDEX: usize = 4;
/// Bytes of the kernel's longest part of an answer (netlink_dump).
const DATAGRAM: usize = 32 * 1024;

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_interface_is_counted_as_sysfs_counts_it() {
        let mut counters = Counters::open().unwrap();
        let number = |file: &str| -> u64 {
            let text = fs::read_to_string(format!("/sys/class/net/lo/{file}")).unwrap();
            text.trim().parse().unwrap()
        };
        let index = u32::try_from(number("ifindex")).unwrap();
        for _ in 0..2 {
            // Other programs send meanwhile.
            let before = number("statistics/rx_packets");
            let found = counters.received().unwrap()[&index];
            assert!((before..=number("statistics/rx_packets")).contains(&found));
        }
    }

    #[test]
    fn a_refusal_is_an_error_and_another_question_s_answer_is_none() {
        let answer = |kind: u16, sequence: u32, code: i32| {
            let mut bytes = 20_u32.to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend([0; 2]);
            bytes.extend(sequence.to_ne_bytes());
            bytes.extend([0; 4]);
            bytes.extend(code.to_ne_bytes());
            bytes
        };
        let mut found = HashMap::new();
        for kind in [NLMSG_DONE, NLMSG_ERROR] {
            let refused = is_last(&answer(kind, 7, -libc::EPERM), 7, &mut found);
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EPERM));
            assert!(!is_last(&answer(kind, 6, -libc::EPERM), 7, &mut found).unwrap());
        }
        assert!(is_last(&answer(NLMSG_DONE, 7, 0), 7, &mut found).unwrap());
        assert!(found.is_empty());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in prop::sample::select(vec![RTM_NEWSTATS, NLMSG_DONE, NLMSG_ERROR])) {
            let mut message = ((16 + bytes.len()) as u32).to_ne_bytes().to_vec();
            message.extend(kind.to_ne_bytes());
            message.extend([0; 10]);
            message.extend(&bytes);
            let _ = is_last(&message, 0, &mut HashMap::new());
            let _ = is_last(&bytes, 0, &mut HashMap::new());
        }
    }
}
