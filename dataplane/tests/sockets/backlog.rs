//! What waits in a socket while its worker is busy elsewhere.
//!
//! A socket that is not read until it is empty reports no further event once its buffer is full. A worker once slept for
//! ever, because it took a batch that had as many buffers as it asked for, but not the most possible, for the last.

use dataplane::limits::INBOUND_BUFFERS;
use encap::{Family, Format};

use crate::rig::Rig;

#[test]
fn a_socket_is_read_until_it_is_empty() {
    for format in [Format::Vxlan, Format::Udp] {
        let mut rig = Rig::new(format, Family::V4, 1500);
        // After large ones fewer are asked for, after small ones more: every length of batch, in both directions.
        let lengths = [60_000, 60_000, 100, 30_000, 45_000, 100];
        let backlog: Vec<Vec<u8>> = lengths
            .iter()
            .flat_map(|length| std::iter::repeat_n(vec![0xff; *length], 2 * INBOUND_BUFFERS))
            .collect();
        let flow = rig.receive(format, &backlog);
        assert_eq!(flow.received, backlog.len() as u64, "{format:?}");
        assert_eq!(flow.dropped(), flow.received, "garbage, all of it");
    }
}
