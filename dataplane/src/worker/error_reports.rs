//! When a worker looks for reports of datagrams that it sent.
//!
//! Theory of operation: VXLAN leaves through sockets that receive nothing but reports. A poll would tell of those at
//! once, but the kernel asks whoever polls a socket about every datagram that leaves it (`sock_wfree`,
//! `ep_poll_callback`), and a train is many. So nobody polls them. A report comes a round trip after its datagram, and
//! matters to the next one: before it reads from the device, a worker looks at the ports that it has sent through, every
//! [`ERROR_QUEUE_CHECK`] until [`ERROR_QUEUE_CHECKED_FOR`] after the latest datagram, and then once more. It wakes for none of this; one that
//! sleeps looks when it shows that it is alive.

use crate::limits::{ERROR_QUEUE_CHECK, ERROR_QUEUE_CHECKED_FOR};
use crate::now::Now;
use crate::underlay::Port;

/// What reports may still come of.
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

    /// The ports to look at `now`, by [`Port::index`].
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
    fn what_was_sent_through_is_looked_at_for_a_while() {
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
