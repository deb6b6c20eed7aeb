//! Offloads of the device and the sockets, as the workers use them.

use dataplane::counters::{OffloadsInUse, Totals};

/// Offloads that every worker uses.
pub fn in_use(totals: &Totals) -> Vec<String> {
    let by_name = |in_use: &OffloadsInUse| {
        [
            ("checksum", in_use.device.checksum),
            ("tcp", in_use.device.tcp),
            ("udp", in_use.device.udp),
            ("send", in_use.gso_sends),
        ]
    };
    let of_each = || totals.of_running().map(|w| by_name(&w.offloads));
    let names = by_name(&OffloadsInUse::default()).map(|(name, _)| name);
    let everywhere = |name: &&str| of_each().all(|used| used.contains(&(*name, true)));
    names
        .into_iter()
        .filter(everywhere)
        .map(String::from)
        .collect()
}

/// How often an offload was given up.
pub fn given_up(totals: &Totals) -> u64 {
    totals.workers.iter().map(|worker| worker.given_up).sum()
}
