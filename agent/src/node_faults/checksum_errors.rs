//! Datagrams that arrive with a wrong checksum: the sign of a sender, or a network card on the way, whose checksum offload is
//! broken. The kernel counts them for the whole network namespace; which peer sent them it does not say.
//!
//! Judged by what arrives between two looks, so that it is gone when its cause is. A VXLAN device of the kernel sends IPv4
//! without a checksum: such a peer cannot be seen here.

use std::io;
use std::path::Path;

use crate::config::text_file;
use crate::problems::Problem;

/// What the kernel has counted, of IPv4 and IPv6 together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChecksumErrors {
    /// Datagrams that were dropped for a wrong checksum.
    pub wrong: u64,
    /// Datagrams that were delivered.
    pub received: u64,
}

impl ChecksumErrors {
    /// Reads the counters of this thread's network namespace.
    ///
    /// # Errors
    /// What proc(5) gives.
    pub fn read() -> io::Result<ChecksumErrors> {
        let read = |path: &str| text_file::read(Path::new(path), LONGEST).map_err(io::Error::other);
        let v4 = read("/proc/thread-self/net/snmp")?;
        // The kernel may run without IPv6.
        let v6 = read("/proc/thread-self/net/snmp6").unwrap_or_default();
        Ok(ChecksumErrors::parse(&v4, &v6))
    }

    /// What was counted since `before`.
    pub fn since(self, before: ChecksumErrors) -> ChecksumErrors {
        ChecksumErrors {
            wrong: self.wrong.saturating_sub(before.wrong),
            received: self.received.saturating_sub(before.received),
        }
    }

    fn parse(v4: &str, v6: &str) -> ChecksumErrors {
        let mut udp = v4.lines().filter_map(|line| line.strip_prefix("Udp: "));
        let (names, values) = (
            udp.next().unwrap_or_default(),
            udp.next().unwrap_or_default(),
        );
        let of_v4 = |name: &str| {
            let mut pairs = names.split_whitespace().zip(values.split_whitespace());
            let value = pairs.find(|(found, _)| *found == name);
            value.and_then(|(_, value)| value.parse::<u64>().ok())
        };
        let of_v6 = |name: &str| {
            v6.lines()
                .filter_map(|line| line.split_once(char::is_whitespace))
                .find(|(found, _)| *found == name)
                .and_then(|(_, value)| value.trim().parse::<u64>().ok())
        };
        let sum = |a: Option<u64>, b: Option<u64>| {
            a.unwrap_or_default().saturating_add(b.unwrap_or_default())
        };
        ChecksumErrors {
            wrong: sum(of_v4("InCsumErrors"), of_v6("Udp6InCsumErrors")),
            received: sum(of_v4("InDatagrams"), of_v6("Udp6InDatagrams")),
        }
    }
}

/// Judges what was counted between two looks. One or two may be a stray of anyone, to any port of this node.
pub fn judge(before: ChecksumErrors, now: ChecksumErrors) -> Option<Problem> {
    (now.since(before).wrong >= LEAST).then_some(Problem::ChecksumErrors)
}

/// As few as one flow makes whose packets are sent again and again.
const LEAST: u64 = 3;

/// Of the files of proc(5) that are read here, in bytes.
const LONGEST: u64 = 256 * 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn counters_of_both_families_are_added() {
        let v4 = "Ip: Forwarding\nIp: 1\nUdp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors\nUdp: 10 1 2 3 4 5 6\nUdpLite: InDatagrams\nUdpLite: 0\n";
        let v6 = "Ip6InReceives 5\nUdp6InDatagrams                 \t20\nUdp6InCsumErrors\t1\n";
        let read = ChecksumErrors::parse(v4, v6);
        assert_eq!((read.wrong, read.received), (7, 30));
        assert_eq!(ChecksumErrors::parse("", ""), ChecksumErrors::default());
    }

    #[test]
    fn what_grew_between_two_looks_is_judged() {
        let counted = |wrong| ChecksumErrors {
            wrong,
            received: 100,
        };
        assert!(judge(counted(7), counted(10)).is_some());
        assert_eq!(judge(counted(8), counted(8)), None);
        // Regression: one stray datagram was a problem.
        assert_eq!(judge(counted(7), counted(9)), None);
        // A namespace that is new counts from the beginning.
        assert_eq!(judge(counted(8), counted(0)), None);
    }

    proptest! {
        #[test]
        fn any_text_ends(v4 in any::<String>(), v6 in any::<String>()) {
            ChecksumErrors::parse(&v4, &v6);
        }
    }
}
