//! IPsec policies of the host (xfrm, ip-xfrm(8)): what its stack encrypts and demands to be encrypted. Packets that
//! programs carry skip them.
//!
//! A kernel that does not know NETLINK_XFRM counts as one without policies. Policies that a process sets for a socket of its
//! own concern no packet of a pod. The default that `ip xfrm policy setdefault` sets is not looked at.

use std::io;

use netlink_packet_core::NLM_F_REQUEST;
use rtnetlink::sys::Socket;
use rtnetlink::sys::protocols::NETLINK_XFRM;
use rustix::io::Errno;

use super::HostError;

/// Whether the host of the calling thread has a policy: for what it sends, receives or forwards.
///
/// # Errors
/// The kernel's refusal to tell. A kernel without xfrm has none.
pub fn has_ipsec_policies() -> Result<bool, HostError> {
    ask().map_err(|source| HostError::Ipsec { source })
}

fn ask() -> io::Result<bool> {
    let socket = match Socket::new(NETLINK_XFRM) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::PROTONOSUPPORT) => {
            return Ok(false);
        }
        opened => opened?,
    };
    socket.send(&request(), 0)?;
    let mut answer = Vec::with_capacity(LARGEST);
    // The kernel has answered before it returns from the request.
    socket.recv(&mut answer, libc::MSG_DONTWAIT)?;
    policies(&answer).map(|count| count > 0)
}

/// `XFRM_MSG_GETSPDINFO`, with no flags.
fn request() -> [u8; HEADER + FLAGS] {
    let mut message = [0; HEADER + FLAGS];
    let length = (HEADER + FLAGS) as u32;
    let parts = [
        &length.to_ne_bytes()[..],
        &GETSPDINFO.to_ne_bytes(),
        &NLM_F_REQUEST.to_ne_bytes(),
    ];
    for (place, byte) in message.iter_mut().zip(parts.concat()) {
        *place = byte;
    }
    message
}

/// How many policies the answer counts (`struct xfrmu_spdinfo`): in, out and forward. Behind them stand those of sockets.
fn policies(answer: &[u8]) -> io::Result<u64> {
    let nonsense = || io::Error::from(io::ErrorKind::InvalidData);
    let (header, message, _) = cni_shim::nlmsg::split(answer).ok_or_else(nonsense)?;
    let body = message.get(HEADER..).unwrap_or_default();
    if header.kind == NLMSG_ERROR {
        let code = body.first_chunk().map(|code| i32::from_ne_bytes(*code));
        let errno = code.ok_or_else(nonsense)?.saturating_neg();
        return Err(io::Error::from_raw_os_error(errno));
    }
    let attributes = body.get(FLAGS..).ok_or_else(nonsense)?;
    let mut found = cni_shim::nlmsg::attributes(attributes);
    let (_, counts) = found
        .find(|(kind, _)| *kind == XFRMA_SPD_INFO)
        .ok_or_else(nonsense)?;
    let (words, _) = counts.as_chunks();
    let words = words.iter().take(DIRECTIONS);
    Ok(words.map(|word| u64::from(u32::from_ne_bytes(*word))).sum())
}

/// `XFRM_MSG_GETSPDINFO` and `XFRMA_SPD_INFO` of linux/xfrm.h.
const GETSPDINFO: u16 = 0x25;
const XFRMA_SPD_INFO: u16 = 1;
const NLMSG_ERROR: u16 = 2;
/// Bytes of `struct nlmsghdr`, and of the flags behind it.
const HEADER: usize = 16;
const FLAGS: usize = 4;
/// Policies in, out and forward.
const DIRECTIONS: usize = 3;
/// Bytes of the longest answer, by far.
const LARGEST: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(kind: u16, body: &[u8]) -> Vec<u8> {
        let length = (HEADER + body.len()) as u32;
        let header = [
            &length.to_ne_bytes()[..],
            &kind.to_ne_bytes(),
            &[0; 2 + 4 + 4],
        ];
        [&header.concat()[..], body].concat()
    }

    fn counts(of: [u32; 6]) -> Vec<u8> {
        let words: Vec<u8> = of.into_iter().flat_map(u32::to_ne_bytes).collect();
        let mut body = vec![0; FLAGS];
        cni_shim::nlmsg::append_attribute(&mut body, XFRMA_SPD_INFO, &words);
        answer(GETSPDINFO - 1, &body)
    }

    #[test]
    fn policies_of_every_direction_count_and_those_of_sockets_do_not() {
        assert_eq!(policies(&counts([0; 6])).unwrap(), 0);
        assert_eq!(policies(&counts([1, 2, 4, 0, 0, 0])).unwrap(), 7);
        assert_eq!(policies(&counts([0, 0, 0, 1, 1, 1])).unwrap(), 0);
        assert_eq!(
            policies(&counts([u32::MAX; 6])).unwrap(),
            3 * u64::from(u32::MAX)
        );
    }

    #[test]
    fn a_refusal_is_an_error() {
        let refused = answer(NLMSG_ERROR, &(-libc::EPERM).to_ne_bytes());
        let error = policies(&refused).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        for bytes in [
            &[][..],
            &refused[..10],
            &answer(GETSPDINFO - 1, &[0; FLAGS]),
        ] {
            assert_eq!(
                policies(bytes).unwrap_err().kind(),
                io::ErrorKind::InvalidData
            );
        }
    }
}
