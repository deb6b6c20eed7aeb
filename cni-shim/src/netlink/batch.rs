//! Several changes in one datagram: the kernel is asked, and waited for, once.

use cni_shim::nlmsg::kernel_words;
use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use rustix::io::Errno;

use super::{Error, Netlink, parse, split};

/// One change of several.
#[derive(Debug)]
pub(crate) struct ChangeRequest {
    /// Completes "the kernel refused to …".
    pub(crate) doing: &'static str,
    /// What is to be changed.
    pub(crate) message: RouteNetlinkMessage,
    /// Beside NLM_F_REQUEST.
    pub(crate) flags: u16,
    /// Which refusals are none.
    pub(crate) tolerance: Tolerance,
}

/// Which refusals of a change are no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tolerance {
    /// None.
    Nothing,
    /// That something is there already.
    Existing,
    /// Any: the pod works without it.
    Anything,
}

impl Netlink {
    /// Makes changes in their order and waits for the last. The kernel goes on after one that it refuses, so on error
    /// any may have been made. Says of each whether it was made: false where it was refused and that is tolerated.
    ///
    /// # Errors
    /// The first refusal, and whatever keeps the answers from us.
    pub(crate) fn change_all(&mut self, changes: Vec<ChangeRequest>) -> Result<Vec<bool>, Error> {
        let first = self.sequence.wrapping_add(1);
        let Some(last) = changes.len().checked_sub(1) else {
            return Ok(Vec::new());
        };
        let mut datagram = Vec::new();
        let mut outcomes = Vec::with_capacity(changes.len());
        for (place, change) in changes.into_iter().enumerate() {
            // Each is answered where it fails, the last in any case.
            let answered = if place == last { NLM_F_ACK } else { 0 };
            let flags = NLM_F_REQUEST | answered | change.flags;
            self.append(&mut datagram, change.message, flags);
            outcomes.push((change.doing, change.tolerance, None));
        }
        let doing = outcomes.last().map_or("", |(doing, ..)| *doing);
        self.send(doing, &datagram)?;
        while !self.note_answers(doing, first, &mut outcomes)? {}
        let made = |(_, tolerance, refusal): Outcome| match (refusal, tolerance) {
            (None, _) => Ok(true),
            (Some(_), Tolerance::Anything) => Ok(false),
            (Some(error), Tolerance::Existing) if error.is(Errno::EXIST) => Ok(false),
            (Some(error), _) => Err(error),
        };
        outcomes.into_iter().map(made).collect()
    }

    /// Reads one datagram of answers; whether the last change's was among them.
    fn note_answers(
        &mut self,
        doing: &'static str,
        first: u32,
        outcomes: &mut [Outcome],
    ) -> Result<bool, Error> {
        let length = self.receive(doing)?;
        let mut rest = self.buffer.get(..length).unwrap_or_default();
        while !rest.is_empty() {
            let (header, one, tail) = split(doing, rest)?;
            rest = tail;
            let place = header.sequence.wrapping_sub(first) as usize;
            let last = header.sequence == self.sequence;
            let Some((doing, _, refusal)) = outcomes.get_mut(place) else {
                continue;
            };
            if let NetlinkPayload::Error(answer) = parse(doing, one)? {
                if answer.code.is_some() {
                    *refusal = Some(Error::Refused {
                        doing,
                        detail: kernel_words(one),
                        source: answer.to_io(),
                    });
                }
                if last {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// A change that was asked for: what completes "the kernel refused to …", what is tolerated, and the refusal.
type Outcome = (&'static str, Tolerance, Option<Error>);
