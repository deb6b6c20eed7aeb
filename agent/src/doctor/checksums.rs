//! Datagrams that arrive with a wrong checksum: the sign of a sender, or a network card on the way, whose checksum offload is
//! broken. The kernel counts them for the whole network namespace; which peer sent them it does not say.
//!
//! Judged by what arrives while this runs, so that it is gone when its cause is. A VXLAN device of the kernel sends IPv4
//! without a checksum: such a peer cannot be seen here.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::examination::Examination;
use super::finding::{Check, Finding};
use crate::config::text_file;
use crate::problems::Severity;

/// What the kernel has counted, of IPv4 and IPv6 together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChecksumErrors {
    wrong: u64,
    received: u64,
}

impl ChecksumErrors {
    /// Reads the counters of this thread's network namespace.
    pub(super) fn read() -> io::Result<ChecksumErrors> {
        let read = |path: &str| text_file::read(Path::new(path), LONGEST).map_err(io::Error::other);
        let v4 = read("/proc/thread-self/net/snmp")?;
        // The kernel may run without IPv6.
        let v6 = read("/proc/thread-self/net/snmp6").unwrap_or_default();
        Ok(ChecksumErrors::parse(&v4, &v6))
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

pub(super) async fn check(e: &Examination) -> Check {
    let mut check = Check::new("checksums");
    let (begun, before) = &e.checksum_errors;
    tokio::time::sleep_until((*begun + WATCHED).into()).await;
    let now = ChecksumErrors::read();
    let (Ok(before), Ok(now)) = (before, now) else {
        check.unknown("the kernel's counters of UDP cannot be read");
        return check.done();
    };
    let (wrong, received) = (
        now.wrong.saturating_sub(before.wrong),
        now.received.saturating_sub(before.received),
    );
    let lasted = Instant::now().duration_since(*begun).as_millis();
    check.fact(format!(
        "{wrong} datagrams with a wrong checksum and {received} others within {lasted} ms; {} since boot",
        now.wrong
    ));
    if wrong > 0 {
        check.find(
            Finding::new("checksum-errors", "", Severity::Warning)
                .says(format!(
                    "datagrams arrive with a wrong checksum and are dropped by the kernel ({wrong} within {lasted} ms): a sender's or a network card's checksum offload is broken"
                ))
                .remedied_by(
                    "find the sender (`tcpdump -vv udp` shows `bad udp cksum`), and switch the offload off there: `ethtool -K eth0 tx-checksum-ip-generic off`, on a flannel node for flannel.1 too",
                ),
        );
    }
    check.done()
}

/// How long the counters are watched.
const WATCHED: Duration = Duration::from_secs(1);
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

    proptest! {
        #[test]
        fn any_text_ends(v4 in any::<String>(), v6 in any::<String>()) {
            ChecksumErrors::parse(&v4, &v6);
        }
    }
}
