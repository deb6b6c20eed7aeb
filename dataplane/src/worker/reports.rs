//! When a worker looks for reports of datagrams that it sent.
//!
//! Theory of operation: VXLAN leaves through sockets that receive nothing but reports. A poll would tell of those at
//! once, but the kernel asks whoever polls a socket about every datagram that leaves it (`sock_wfree`,
//! `ep_poll_callback`), and a train is many. So nobody polls them. A report comes a while after its datagram, and matters
//! to the next one: before it reads from the device, a worker looks at the ports that it has sent through since it looked
//! last, if that was [`REPORTS`] ago. One that sends nothing more looks when it shows that it is alive.

use crate::limits::REPORTS;
use crate::now::Now;
use crate::underlay::Port;

/// What was sent since reports were looked for.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// By [`Port::index`].
    sent: [bool; Port::ALL.len()],
    looked: Now,
}

impl Reports {
    /// Something was sent through `port`.
    pub(super) fn sent(&mut self, port: Port) {
        if let Some(sent) = self.sent.get_mut(port.index()) {
            *sent = true;
        }
    }

    /// The ports to look at `now`, by [`Port::index`].
    pub(super) fn due(&mut self, now: Now) -> [bool; Port::ALL.len()] {
        if now.since(self.looked) < REPORTS {
            return Default::default();
        }
        self.looked = now;
        std::mem::take(&mut self.sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_through_is_looked_at_once_a_while() {
        let [first, second, ..] = Port::ALL;
        let later = |times| Now(0).after(REPORTS * times);
        let mut reports = Reports::default();
        assert_eq!(reports.due(later(1)), [false; 4]);
        reports.sent(second);
        assert_eq!(reports.due(later(1)), [false; 4]);
        assert_eq!(reports.due(later(2)), [false, true, false, false]);
        assert_eq!(reports.due(later(3)), [false; 4]);
        reports.sent(first);
        reports.sent(second);
        assert_eq!(reports.due(later(4)), [true, true, false, false]);
    }
}
