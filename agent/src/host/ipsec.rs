//! IPsec policies of the host (xfrm, ip-xfrm(8)): what its stack encrypts and demands to be encrypted. Packets that
//! programs carry skip them.
//!
//! The default action is for packets without a policy (`ip xfrm policy setdefault`, since Linux 5.15). A kernel that does
//! not know NETLINK_XFRM counts as one without policies. Policies that a process sets for a socket of its own concern no
//! packet of a pod.

use std::io;

use netlink_packet_core::NLM_F_REQUEST;
use rtnetlink::sys::Socket;
use rtnetlink::sys::protocols::NETLINK_XFRM;
use rustix::io::Errno;

use super::HostError;

/// What a host's stack does by IPsec to the packets that it sends, receives or forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpsecRules {
    /// There are policies.
    Policies,
    /// There is no policy, and the default action is to block, in one direction at least.
    BlockByDefault,
}

/// The IPsec rules of the host of the calling thread; `None` where it has no policy and accepts by default.
///
/// # Errors
/// The kernel's refusal to tell. A kernel without xfrm has no rules.
pub fn read_ipsec_rules() -> Result<Option<IpsecRules>, HostError> {
    ask().map_err(|source| HostError::Ipsec { source })
}

fn ask() -> io::Result<Option<IpsecRules>> {
    let socket = match Socket::new(NETLINK_XFRM) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::PROTONOSUPPORT) => {
            return Ok(None);
        }
        opened => opened?,
    };
    let counted = exchange(&socket, GETSPDINFO, FLAGS)?;
    if policies(&counted)? > 0 {
        return Ok(Some(IpsecRules::Policies));
    }
    let blocks = blocks_by_default(&exchange(&socket, GETDEFAULT, DEFAULTS)?);
    Ok(false_if_unsupported(blocks)?.then_some(IpsecRules::BlockByDefault))
}

/// A kernel before 5.15 knows no default action: it accepts.
fn false_if_unsupported(blocks: io::Result<bool>) -> io::Result<bool> {
    match blocks {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(false),
        blocks => blocks,
    }
}

/// The answer to a request of this kind, whose body is `body` zeros.
fn exchange(socket: &Socket, kind: u16, body: usize) -> io::Result<Vec<u8>> {
    socket.send(&request(kind, body), 0)?;
    let mut answer = Vec::with_capacity(LARGEST);
    loop {
        // The kernel has answered before it returns from the request.
        let (_, sender) = socket.recv_from(&mut answer, libc::MSG_DONTWAIT)?;
        // Port 0 is the kernel; messages of other processes are ignored.
        if sender.port_number() == 0 {
            return Ok(answer);
        }
        answer.clear();
    }
}

fn request(kind: u16, body: usize) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER + body);
    message.extend(((HEADER + body) as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.resize(HEADER + body, 0);
    message
}

/// How many policies the answer counts (`struct xfrmu_spdinfo`): in, out and forward. Behind them stand those of sockets.
fn policies(answer: &[u8]) -> io::Result<u64> {
    let attributes = body(answer, NEWSPDINFO)?
        .get(FLAGS..)
        .ok_or_else(nonsense)?;
    let mut found = cni_shim::nlmsg::attributes(attributes);
    let (_, counts) = found
        .find(|(kind, _)| *kind == XFRMA_SPD_INFO)
        .ok_or_else(nonsense)?;
    let (words, _) = counts.as_chunks();
    let words = words.iter().take(DIRECTIONS);
    Ok(words.map(|word| u64::from(u32::from_ne_bytes(*word))).sum())
}

/// Whether the default action is to block, in any direction (`struct xfrm_userpolicy_default`).
fn blocks_by_default(answer: &[u8]) -> io::Result<bool> {
    let defaults = body(answer, GETDEFAULT)?
        .get(..DEFAULTS)
        .ok_or_else(nonsense)?;
    Ok(defaults.contains(&USERPOLICY_BLOCK))
}

/// What stands behind the header of an answer of this kind, or the error that it is.
fn body(answer: &[u8], kind: u16) -> io::Result<&[u8]> {
    let (header, message, _) = cni_shim::nlmsg::split(answer).ok_or_else(nonsense)?;
    let body = message.get(HEADER..).unwrap_or_default();
    if header.kind == kind {
        return Ok(body);
    }
    if header.kind != NLMSG_ERROR {
        return Err(nonsense());
    }
    let code = body.first_chunk().map(|code| i32::from_ne_bytes(*code));
    let errno = code.ok_or_else(nonsense)?.saturating_neg();
    Err(io::Error::from_raw_os_error(errno))
}

fn nonsense() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// `XFRM_MSG_NEWSPDINFO`, which answers `XFRM_MSG_GETSPDINFO`, `XFRM_MSG_GETDEFAULT`, which is its own answer,
/// `XFRMA_SPD_INFO` and `XFRM_USERPOLICY_BLOCK` of linux/xfrm.h.
const NEWSPDINFO: u16 = 0x24;
const GETSPDINFO: u16 = 0x25;
const GETDEFAULT: u16 = 0x28;
const XFRMA_SPD_INFO: u16 = 1;
const USERPOLICY_BLOCK: u8 = 1;
const NLMSG_ERROR: u16 = 2;
/// Bytes of `struct nlmsghdr`, and what stands behind it: flags, or `struct xfrm_userpolicy_default`.
const HEADER: usize = 16;
const FLAGS: usize = 4;
const DEFAULTS: usize = 3;
/// Counts of policies in, out and forward.
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
        answer(NEWSPDINFO, &body)
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
    fn a_default_to_block_in_any_direction_is_seen() {
        let asked =
            |defaults: [u8; DEFAULTS]| blocks_by_default(&answer(GETDEFAULT, &defaults)).unwrap();
        // Not set, and accept.
        assert!(!asked([0; DEFAULTS]));
        assert!(!asked([2; DEFAULTS]));
        for direction in 0..DEFAULTS {
            let mut defaults = [2; DEFAULTS];
            defaults[direction] = USERPOLICY_BLOCK;
            assert!(asked(defaults), "{direction}");
        }
    }

    #[test]
    fn a_kernel_that_knows_no_default_action_accepts() {
        let unknown = answer(NLMSG_ERROR, &(-libc::EINVAL).to_ne_bytes());
        assert!(!false_if_unsupported(blocks_by_default(&unknown)).unwrap());
        let refused = answer(NLMSG_ERROR, &(-libc::EPERM).to_ne_bytes());
        assert!(false_if_unsupported(blocks_by_default(&refused)).is_err());
    }

    #[test]
    fn a_refusal_is_an_error() {
        let refused = answer(NLMSG_ERROR, &(-libc::EPERM).to_ne_bytes());
        for error in [
            policies(&refused).unwrap_err(),
            blocks_by_default(&refused).unwrap_err(),
        ] {
            assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        }
        for bytes in [&[][..], &refused[..10], &answer(NEWSPDINFO, &[0; FLAGS])] {
            assert_eq!(
                policies(bytes).unwrap_err().kind(),
                io::ErrorKind::InvalidData
            );
        }
        for bytes in [
            &[][..],
            &answer(GETDEFAULT, &[2; DEFAULTS - 1]),
            &answer(NEWSPDINFO, &[2; DEFAULTS]),
        ] {
            assert_eq!(
                blocks_by_default(bytes).unwrap_err().kind(),
                io::ErrorKind::InvalidData
            );
        }
    }
}
