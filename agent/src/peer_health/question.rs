//! Questions to peers: what would become of this packet at your end (`tartan trace`), and what is wrong with you (`tartan
//! doctor --all`)?
//!
//! Theory of operation. A caller puts a question into [`Questions`] and waits; the thread that probes sends it, up to
//! [`TRIES`] times with a new nonce each, and gives the caller the answer. Where a packet's own size is asked about, a
//! second request as large as that packet's datagram goes beside the small one, so that an answer to it proves that the
//! size passes. What is wrong with a node comes as a report behind its answer ([`node_report`](super::node_report)). A question
//! is over after [`PATIENCE`], answered or not. It says nothing about the path's state: what a path carries and whether it
//! lives is for its own probes.

use std::net::IpAddr;
use std::time::Duration;

use dataplane::now::Now;
use dataplane::probe::{HeardReport, Message, Question, Verdict};
use tokio::sync::oneshot;

use super::node_report::NodeReport;
use super::{PeerHealthView, lock};

/// What a peer is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// What would become of a packet.
    Packet(Question),
    /// What is wrong with its node.
    Report,
}

/// What a peer has said to a question, and what that shows of the way there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerSays {
    /// What it says; none where no answer came, or one of a version that does not know the question.
    pub verdict: Option<Verdict>,
    /// What is wrong with its node; none where that was not asked, or nothing came of it, as from a version that does not know
    /// the question.
    pub report: Option<NodeReport>,
    /// An answer came.
    pub is_answered: bool,
    /// Until the first answer.
    pub round_trip: Option<Duration>,
    /// Whether a datagram of the packet's size arrived; `None` where that was not tried.
    pub size_passed: Option<bool>,
    /// Why nothing was sent.
    pub not_sent: Option<NotSent>,
}

/// Why a question was not sent, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// This node's kernel refuses what is sent there.
    Refused(String),
    /// The prober itself has not what it needs: that says nothing about the way to the peer.
    NotAsked(&'static str),
}

/// A question that is put.
#[derive(Debug)]
pub(super) struct Pending {
    /// The peer's address.
    pub(super) address: IpAddr,
    pub(super) asked: Asked,
    /// Bytes of outer packet that the packet makes, where that is to be tried.
    pub(super) size: Option<u16>,
    says: PeerSays,
    /// Of requests that are not answered: the nonce, when it was sent, and whether it had the packet's size.
    open: Vec<(u64, Now, bool)>,
    began: Option<Now>,
    next: Now,
    reply: Option<oneshot::Sender<PeerSays>>,
}

/// Questions that wait for an answer.
#[derive(Debug, Default)]
pub(super) struct Questions(pub(super) Vec<Pending>);

/// What is to be sent of a question: a small request, and one of this size.
pub(super) struct Due {
    pub(super) small: bool,
    pub(super) size: Option<u16>,
}

impl PeerHealthView {
    /// Asks the peer with that address, and waits a second and a half at most. `size`: the bytes of outer packet that are
    /// to be tried, too.
    ///
    /// # Errors
    /// Why it cannot be asked, in words.
    pub async fn ask(
        &self,
        address: IpAddr,
        question: Question,
        size: Option<u16>,
    ) -> Result<PeerSays, String> {
        self.put(Pending::new(address, Asked::Packet(question), size))
            .await
    }

    /// Asks the peer with that address what is wrong with its node, and waits a second and a half at most.
    ///
    /// # Errors
    /// Why it cannot be asked, in words.
    pub async fn ask_for_report(&self, address: IpAddr) -> Result<PeerSays, String> {
        self.put(Pending::new(address, Asked::Report, None)).await
    }

    async fn put(
        &self,
        (pending, answered): (Pending, oneshot::Receiver<PeerSays>),
    ) -> Result<PeerSays, String> {
        if !self.0.is_on {
            return Err("probes are switched off (`probe = false`)".to_owned());
        }
        {
            let mut questions = lock(&self.0.questions);
            if questions.0.len() >= MOST_QUESTIONS {
                return Err(
                    "as many questions as there can be wait for answers; try again".to_owned(),
                );
            }
            questions.0.push(pending);
        }
        self.0.wake();
        match tokio::time::timeout(PATIENCE + THREAD_LATE, answered).await {
            Ok(Ok(says)) => Ok(says),
            _ => Err("the thread that probes does not answer; see the agent's log".to_owned()),
        }
    }
}

impl Questions {
    /// Whether any waits.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes an answer, if it is one to a question. `of`: the peer has that address.
    pub(super) fn answer(
        &mut self,
        message: &Message,
        at: Now,
        of: impl Fn(IpAddr) -> bool,
    ) -> bool {
        match self.asker(message, of) {
            Some(pending) => {
                pending.answer(message, at);
                true
            }
            None => false,
        }
    }

    /// Takes a report, if it is one that a question wants.
    pub(super) fn report(&mut self, heard: &HeardReport) {
        let is_its = |of| heard.peer.contains(of);
        if let Some(pending) = self.asker(&heard.message, is_its)
            && pending.asked == Asked::Report
        {
            pending.says.report = Some(NodeReport::read(heard));
        }
    }

    /// The question to which a message belongs that comes from a peer with such an address.
    fn asker(&mut self, message: &Message, of: impl Fn(IpAddr) -> bool) -> Option<&mut Pending> {
        let is_open = |pending: &&mut Pending| {
            let mut open = pending.open.iter();
            open.any(|(nonce, ..)| *nonce == message.nonce)
        };
        let found = self.0.iter_mut().find(is_open);
        found.filter(|pending| of(pending.address))
    }

    /// Ends what is answered or has waited long enough.
    pub(super) fn settle(&mut self, now: Now) {
        self.0.retain_mut(|pending| {
            let is_over = pending.is_whole()
                || pending
                    .began
                    .is_some_and(|began| now.since(began) >= PATIENCE)
                || pending
                    .reply
                    .as_ref()
                    .is_none_or(oneshot::Sender::is_closed);
            if is_over && let Some(reply) = pending.reply.take() {
                // The caller may have gone.
                let _ = reply.send(pending.says.clone());
            }
            !is_over
        });
    }
}

impl Pending {
    /// A question that is not put yet, and where what comes of it is told.
    fn new(
        address: IpAddr,
        asked: Asked,
        size: Option<u16>,
    ) -> (Pending, oneshot::Receiver<PeerSays>) {
        let (reply, answered) = oneshot::channel();
        let says = PeerSays {
            size_passed: size.map(|_| false),
            ..PeerSays::default()
        };
        let pending = Pending {
            address,
            asked,
            size,
            says,
            open: Vec::new(),
            began: None,
            next: Now::default(),
            reply: Some(reply),
        };
        (pending, answered)
    }

    /// Whether what the small request is to bring has come.
    fn is_told(&self) -> bool {
        match self.asked {
            Asked::Packet(_) => self.says.is_answered,
            Asked::Report => self.says.report.is_some(),
        }
    }

    fn is_whole(&self) -> bool {
        let says = &self.says;
        let is_size_known = says.size_passed != Some(false) || self.size.is_none();
        says.not_sent.is_some() || (self.is_told() && is_size_known)
    }

    /// What is to be sent now.
    pub(super) fn due(&mut self, now: Now) -> Option<Due> {
        let began = *self.began.get_or_insert(now);
        if now < self.next || now.since(began) >= PATIENCE {
            return None;
        }
        self.next = now.after(PATIENCE / TRIES);
        Some(Due {
            small: !self.is_told(),
            size: self.size.filter(|_| self.says.size_passed == Some(false)),
        })
    }

    /// Notes a request that was sent.
    pub(super) fn note_sent(&mut self, nonce: u64, is_full: bool, now: Now) {
        self.open.push((nonce, now, is_full));
    }

    /// Notes that a request was not sent; the small one's reason is told.
    pub(super) fn note_not_sent(&mut self, reason: NotSent, is_full: bool) {
        if is_full {
            // It is not tried again.
            self.size = None;
        } else {
            self.says.not_sent = Some(reason);
        }
    }

    fn answer(&mut self, message: &Message, at: Now) {
        let Some(place) = self
            .open
            .iter()
            .position(|(nonce, ..)| *nonce == message.nonce)
        else {
            return;
        };
        let (_, sent, is_full) = match self.asked {
            Asked::Packet(_) => self.open.swap_remove(place),
            // The report is still to come, and may have come before.
            Asked::Report => match self.open.get(place) {
                Some(open) => *open,
                None => return,
            },
        };
        let says = &mut self.says;
        says.is_answered = true;
        says.verdict = says.verdict.or(message.verdict);
        says.round_trip.get_or_insert(at.since(sent));
        if is_full {
            says.size_passed = Some(true);
        }
    }
}

/// How often a question is sent.
const TRIES: u32 = 3;
/// How long an answer is waited for, from the first request on.
const PATIENCE: Duration = Duration::from_millis(1_000);
/// The thread takes a question within a turn.
const THREAD_LATE: Duration = Duration::from_millis(500);
/// Questions at a time: those of one call for reports, and some traces beside.
const MOST_QUESTIONS: usize = MOST_REPORTS + 32;
/// Peers that one call may ask for reports.
pub const MOST_REPORTS: usize = 128;

#[cfg(test)]
mod tests {
    use dataplane::families::PublicAddresses;
    use dataplane::probe::{Fate, Kind};

    use super::*;

    const PEER: [u8; 4] = [192, 0, 2, 2];

    fn put(
        questions: &mut Questions,
        asked: Asked,
        size: Option<u16>,
    ) -> oneshot::Receiver<PeerSays> {
        let (pending, answered) = Pending::new(PEER.into(), asked, size);
        questions.0.push(pending);
        answered
    }

    fn packet() -> Asked {
        Asked::Packet(Question {
            source: [10, 244, 1, 2].into(),
            destination: [10, 244, 2, 2].into(),
            protocol: 1,
            ports: (0, 0),
            size: 84,
        })
    }

    fn answer(nonce: u64) -> Message {
        Message {
            kind: Kind::Answer,
            nonce,
            clock: 0,
            length: 0,
            heard: None,
            inner_mtu: 1450,
            flags: 0,
            verdict: Some(Verdict {
                fate: Fate::Pod,
                mtu_back: 1450,
            }),
        }
    }

    #[test]
    fn an_answer_of_that_peer_with_that_nonce_ends_a_question() {
        let mut questions = Questions::default();
        let mut answered = put(&mut questions, packet(), None);
        let now = Now(1_000_000_000);
        assert!(
            questions.0[0]
                .due(now)
                .is_some_and(|due| due.small && due.size.is_none())
        );
        assert!(questions.0[0].due(now).is_none());
        questions.0[0].note_sent(7, false, now);
        let later = now.after(Duration::from_millis(3));
        assert!(!questions.answer(&answer(8), later, |_| true));
        assert!(!questions.answer(&answer(7), later, |_| false));
        questions.settle(later);
        assert!(answered.try_recv().is_err());
        assert!(questions.answer(&answer(7), later, |_| true));
        questions.settle(later);
        let says = answered.try_recv().unwrap();
        assert_eq!(says.verdict, answer(7).verdict);
        assert_eq!(says.round_trip, Some(Duration::from_millis(3)));
        assert!(questions.is_empty());
    }

    #[test]
    fn a_size_that_does_not_arrive_ends_the_question_after_a_second() {
        let mut questions = Questions::default();
        let mut answered = put(&mut questions, packet(), Some(1500));
        let now = Now(1_000_000_000);
        let due = questions.0[0].due(now).unwrap();
        assert_eq!((due.small, due.size), (true, Some(1500)));
        questions.0[0].note_sent(1, false, now);
        questions.0[0].note_sent(2, true, now);
        assert!(questions.answer(&answer(1), now, |_| true));
        questions.settle(now);
        // Only the size is tried again.
        let due = questions.0[0]
            .due(now.after(Duration::from_millis(400)))
            .unwrap();
        assert_eq!((due.small, due.size), (false, Some(1500)));
        questions.settle(now.after(PATIENCE));
        let says = answered.try_recv().unwrap();
        assert_eq!((says.is_answered, says.size_passed), (true, Some(false)));
    }

    /// By the nonce of a request to that very peer, whichever comes first; the answer alone is not the end.
    #[test]
    fn a_report_ends_the_question_for_it() {
        let mut questions = Questions::default();
        let mut answered = put(&mut questions, Asked::Report, None);
        let mut of_packet = put(&mut questions, packet(), None);
        let now = Now(1_000_000_000);
        for (pending, nonce) in questions.0.iter_mut().zip([7, 8]) {
            assert!(pending.due(now).is_some());
            pending.note_sent(nonce, false, now);
        }
        let report = |peer: [u8; 4], nonce, text: &[u8]| {
            let message = answer(nonce).report(3);
            HeardReport::new(
                PublicAddresses::V4(peer.into()),
                message,
                &[&message.emit(), text].concat(),
            )
        };
        let text = b"error device-missing flannel.1\n";
        assert!(questions.answer(&answer(7), now, |_| true));
        // Of another peer, of no request, and of one that wants none.
        questions.report(&report([192, 0, 2, 3], 7, text));
        questions.report(&report(PEER, 9, text));
        questions.report(&report(PEER, 8, text));
        questions.settle(now);
        assert!(answered.try_recv().is_err() && of_packet.try_recv().is_err());
        let again = now.after(PATIENCE / TRIES);
        assert!(questions.0[0].due(again).is_some_and(|due| due.small));
        questions.report(&report(PEER, 7, text));
        questions.settle(again);
        let says = answered.try_recv().unwrap();
        assert!(says.is_answered);
        let report = says.report.unwrap();
        assert_eq!((report.problems, report.named.len()), (3, 1));
        assert_eq!(report.named[0].code, "device-missing");
        assert!(of_packet.try_recv().is_err());
    }
}
