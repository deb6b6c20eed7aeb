//! When a worker reads the error queues of the sockets that it sent through.
//!
//! Theory of operation: VXLAN leaves through sockets that receive nothing but error reports. A poll would announce
//! those at once, but the kernel calls the poll of a socket for every datagram that leaves it (`sock_wfree`,
//! `ep_poll_callback`), and a GSO batch is many. So workers do not poll them. A report comes a round trip after its
//! datagram and concerns the next one: before it reads from the device, a worker checks the ports that it sent through, every
//! [`ERROR_QUEUE_CHECK`] until [`ERROR_QUEUE_CHECKED_FOR`] after the latest datagram, and then once more. It does not wake for this;
//! a sleeping worker checks at its next tick.

use crate::limits::{ERROR_QUEUE_CHECK, ERROR_QUEUE_CHECKED_FOR};
use crate::now::Now;
use crate::underlay::Port;

/// Which ports may still get reports.
#[derive(Debug, Default)]
pub(super) struct ErrorReports {
    /// When the latest datagram was sent that may be reported, by [`Port::index`].
    sent: [Option<Now>; Port::ALL.len()],
    last_check: Now,
}

impl ErrorReports {
    /// Something was sent through `port`.
    pub(super) fn sent(&mut self, port: Port, now: Now) {
        if let Some(sent) = self.sent.get_mut(port.index()) {
            *sent = Some(now);
        }
    }

    /// The ports whose error queue is to be read `now`, by [`Port::index`].
    pub(super) fn due(&mut self, now: Now) -> [bool; Port::ALL.len()] {
        if now.since(self.last_check) < ERROR_QUEUE_CHECK {
            return Default::default();
        }
        self.last_check = now;
        let due = self.sent.map(|sent| sent.is_some());
        for sent in &mut self.sent {
            *sent = sent.filter(|sent| now.since(*sent) < ERROR_QUEUE_CHECKED_FOR);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_checked_for_a_while_after_a_send() {
        let [first, second, ..] = Port::ALL;
        let later = |times| Now(0).after(ERROR_QUEUE_CHECK * times);
        let mut reports = ErrorReports::default();
        assert_eq!(reports.due(later(1)), [false; 4]);
        reports.sent(second, later(1));
        assert_eq!(reports.due(later(1)), [false; 4]);
        assert_eq!(reports.due(later(2)), [false, true, false, false]);
        // A report takes its time.
        assert_eq!(reports.due(later(22)), [false, true, false, false]);
        reports.sent(first, later(22));
        assert_eq!(reports.due(later(22)), [false; 4]);
        assert_eq!(reports.due(later(23)), [true, true, false, false]);
        // One last time, however late.
        let last = later(1).after(ERROR_QUEUE_CHECKED_FOR);
        assert_eq!(reports.due(last), [true, true, false, false]);
        assert_eq!(
            reports.due(last.after(ERROR_QUEUE_CHECK)),
            [true, false, false, false]
        );
        let late = last.after(ERROR_QUEUE_CHECKED_FOR);
        assert_eq!(reports.due(late), [true, false, false, false]);
        assert_eq!(reports.due(late.after(ERROR_QUEUE_CHECK)), [false; 4]);
    }
}
