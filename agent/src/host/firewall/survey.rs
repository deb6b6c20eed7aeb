//! Reads the packet filter without changing it: whether it cuts pods off, what flannel left in it, and whether kube-proxy
//! uses it.
//!
//! Theory of operation. Whether pods are cut off is decided by the code that would correct it ([`ForeignChain`]). Chains of
//! other programs are known by their names alone: of flannel `FLANNEL-POSTRTG` and `FLANNEL-FWD`
//! (`pkg/trafficmngr/iptables/iptables.go`) and the tables `flannel-ipv4` and `flannel-ipv6`
//! (`pkg/trafficmngr/nftables/nftables.go`); of kube-proxy `KUBE-SERVICES` and the table `kube-proxy`. A chain that no base
//! chain leads to sees no packet, and is not reported.

use ipnet::IpNet;

use super::foreign_chain::{ForeignChain, is_foreign};
use super::legacy::LegacyTables;
use super::nft::{BaseChain, IPV4, IPV6, NftError, Socket};
use super::own_table::is_own;
use super::read_error;
use crate::host::error::HostError;

/// What the packet filter holds, as far as it concerns pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FirewallSurvey {
    /// Rules and policies that cut pods off from each other, in words.
    pub cutting: Vec<String>,
    /// Chains and tables of flannel's that packets pass, as nft names them.
    pub flannels: Vec<String>,
    /// kube-proxy translates Services here.
    pub kube_proxy: bool,
    /// The table `inet tartan` is there.
    pub own_table: bool,
    /// Tables of iptables-legacy, which are not read, in a sentence.
    pub legacy: Option<String>,
}

/// Surveys the calling thread's network namespace.
///
/// # Errors
/// [`HostError::Rules`]: nf_tables cannot be read.
pub(in crate::host) async fn survey(cluster: &[IpNet]) -> Result<FirewallSurvey, HostError> {
    let read = read(cluster).await;
    let mut found = match read {
        // No nf_tables, no rules.
        Err(NftError::Unsupported) => FirewallSurvey::default(),
        read => read.map_err(read_error)?,
    };
    let legacy = LegacyTables::read();
    found.legacy = (!legacy.is_empty()).then(|| legacy.to_string());
    Ok(found)
}

/// The same with the generation of the rules, where that is another than `since`.
///
/// # Errors
/// As [`survey`].
pub(in crate::host) async fn survey_since(
    cluster: &[IpNet],
    since: Option<u32>,
) -> Result<Option<(u32, FirewallSurvey)>, HostError> {
    // Read before the rules: a change in between is found at the next call.
    let generation = match generation().await {
        Err(NftError::Unsupported) => NO_RULES,
        read => read.map_err(read_error)?,
    };
    match since == Some(generation) {
        true => Ok(None),
        false => Ok(Some((generation, survey(cluster).await?))),
    }
}

async fn generation() -> Result<u32, NftError> {
    Socket::open()?.generation().await
}

async fn read(cluster: &[IpNet]) -> Result<FirewallSurvey, NftError> {
    let mut socket = Socket::open()?;
    let tables = socket.tables().await?;
    let chains = socket.base_chains().await?;
    let mut found = FirewallSurvey {
        own_table: tables.iter().any(is_own),
        ..FirewallSurvey::default()
    };
    for table in tables.iter().filter(|table| !table.dormant) {
        match &table.name[..] {
            "flannel-ipv4" | "flannel-ipv6" => found.flannels.push(format!("table {}", table.name)),
            "kube-proxy" => found.kube_proxy = true,
            _ => {}
        }
    }
    for chain in &chains {
        if is_foreign(chain) {
            let networks: Vec<IpNet> = cluster
                .iter()
                .filter(|network| sees(chain, network))
                .copied()
                .collect();
            let owned = tables.iter().any(|table| table.owned && chain.is_in(table));
            match ForeignChain::read(&mut socket, chain, owned, &networks).await {
                Ok(read) => found.cutting.extend(read.cuts_off(&networks)),
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        if let "nat" | "filter" = &chain.kind[..] {
            named_chains(&mut socket, chain, &mut found).await?;
        }
    }
    found.flannels.sort_unstable();
    found.flannels.dedup();
    Ok(found)
}

/// The chains of flannel and kube-proxy that a base chain leads to.
async fn named_chains(
    socket: &mut Socket,
    chain: &BaseChain,
    found: &mut FirewallSurvey,
) -> Result<(), NftError> {
    let rules = match socket.rules(chain).await {
        Err(error) if is_gone(&error) => return Ok(()),
        rules => rules?,
    };
    for rule in rules {
        match rule.parsed(chain.family).leads_to() {
            Some(name @ ("FLANNEL-POSTRTG" | "FLANNEL-FWD")) => {
                found.flannels.push(chain.sibling(name));
            }
            Some("KUBE-SERVICES") => found.kube_proxy = true,
            _ => {}
        }
    }
    Ok(())
}

/// Whether the chain sees packets of the network's family.
fn sees(chain: &BaseChain, network: &IpNet) -> bool {
    match network {
        IpNet::V4(_) => chain.family != IPV6,
        IpNet::V6(_) => chain.family != IPV4,
    }
}

/// The generation of a kernel that has no nf_tables; it has no first one of that number.
const NO_RULES: u32 = 0;

/// Gone since chains were listed.
fn is_gone(error: &NftError) -> bool {
    matches!(error, NftError::Refused { source } if *source == rustix::io::Errno::NOENT)
}
