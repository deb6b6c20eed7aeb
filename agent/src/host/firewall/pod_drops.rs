//! What our rules dropped of pods, and of what is forwarded to encapsulation ports, by the counters of the rules.

use super::nft::{Action, FoundRule, INET, Socket};
use super::own_table::is_in_own_table;
use super::{GUARD, SOURCE_CHECK, TRANSLATED, read_error};
use crate::host::error::HostError;

/// Packets dropped by our rules since our table was last written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodDrops {
    /// Packets of pods whose source was not the pod's.
    pub forged_sources: u64,
    /// Packets from pods, or forwarded for containers and other hosts, to an encapsulation port of a node; and pods'
    /// ICMP errors to a node that say "too large".
    pub forged_encapsulation: u64,
}

/// The counters of our rules; `None` while our table is not there.
///
/// # Errors
/// [`HostError::Rules`]: nf_tables cannot be read.
pub(in crate::host) async fn pod_drops() -> Result<Option<PodDrops>, HostError> {
    let mut socket = Socket::open().map_err(read_error)?;
    let chains = socket.base_chains().await.map_err(read_error)?;
    let mut drops = None;
    for chain in chains.iter().filter(|chain| is_in_own_table(chain)) {
        let rules = socket.rules(chain).await.map_err(read_error)?;
        let dropping = rules
            .iter()
            .filter(|rule| matches!(rule.parsed(INET).action, Action::Drop(_)));
        let count: u64 = dropping.filter_map(FoundRule::packets).sum();
        let drops = drops.get_or_insert(PodDrops::default());
        match chain.name.as_str() {
            SOURCE_CHECK => drops.forged_sources += count,
            GUARD | TRANSLATED => drops.forged_encapsulation += count,
            _ => {}
        }
    }
    Ok(drops)
}
