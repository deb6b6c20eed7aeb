//! A pod whose route is gone for a moment is no forger. The check of sources ([`super::source_check`]) asks the pod's route;
//! while another program has taken that away, what the pod says as itself would count as forged. These rules see packets
//! before the check does, and drop and count those apart:
//!
//! ```text
//! prerouting   not from a pod's interface                          return
//!              source routed back there                            return
//!              from ttXXXXXXXXXX, source 10.244.1.2                drop
//!              …one for each address that a pod may send from
//! ```
//!
//! Only packets of pods without a way back meet more than the first two rules. The rules stand in a table of their own, and are
//! added and deleted one by one as pods come and go, so that counters of those that stay go on. Each is known by its comment.
//! Without pods there is no table.

use std::collections::HashMap;

use cni_shim::attachment::HOST_IFNAME_PREFIX;
use ipnet::IpNet;

use super::nft::{
    self, BaseChain, FoundRule, INET, InterfaceName, NftError, NftTable, PacketTerm, Rule, Socket,
    Term, Verdict,
};
use super::{Host, HostError, read_error};
use crate::host::change::Change;

/// What a pod's interface may send from: its name and the prefixes.
pub(in crate::host) type PodSources = (String, Vec<IpNet>);

/// What is kept between calls: the generation of rules at which nothing differed, and for whom.
pub(super) type Applied = Option<(u32, Vec<PodSources>)>;

impl Host {
    /// Brings the rules to those pods. Returns whether the table had to be made anew although it was there before.
    ///
    /// # Errors
    /// [`HostError::Rules`].
    pub(in crate::host) async fn apply_pod_rules(
        &mut self,
        pods: Vec<PodSources>,
    ) -> Result<Vec<Change>, HostError> {
        let generation = self.firewall.generation().await.map_err(read_error)?;
        if self.firewall.pods.as_ref() == Some(&(generation, pods.clone())) {
            return Ok(Vec::new());
        }
        let was_applied = self
            .firewall
            .pods
            .take()
            .is_some_and(|(_, before)| before == pods);
        let Some(socket) = &mut self.firewall.socket else {
            return Ok(Vec::new());
        };
        let steps = steps(socket, &pods).await.map_err(read_error)?;
        if steps.is_empty() {
            self.firewall.pods = Some((generation, pods));
            return Ok(Vec::new());
        }
        let done = socket.commit(&steps).await;
        if done.is_err() {
            // Answers on their way in the old socket are of no use.
            self.firewall.socket = None;
        }
        done.map_err(|source| HostError::Rules {
            doing: format!("write the nft table inet {TABLE}"),
            source,
        })?;
        let change = Change::TableWritten(format!("inet {TABLE}"));
        // The next call finds the new generation, and nothing that differs.
        self.firewall.pods = Some((generation, pods));
        Ok(if was_applied {
            vec![change]
        } else {
            Vec::new()
        })
    }
}

/// How many packets of pods were dropped while their own route was missing; `None` while no rule counts them.
///
/// # Errors
/// [`HostError::Rules`].
pub(in crate::host) async fn lost_routes() -> Result<Option<u64>, HostError> {
    let mut socket = Socket::open().map_err(read_error)?;
    let chains = socket.base_chains().await.map_err(read_error)?;
    let chain = chain();
    if !chains.contains(&chain) {
        return Ok(None);
    }
    let rules = socket.rules(&chain).await.map_err(read_error)?;
    // Also of a table that an earlier program wrote.
    let is_of_pod =
        |rule: &&FoundRule| !matches!(&rule.comment, Some(comment) if comment.starts_with(OF_HEAD));
    let drops = rules.iter().filter(is_of_pod);
    Ok(Some(drops.filter_map(FoundRule::packets).sum()))
}

/// Whether the table is this one.
pub(super) fn is_own(table: &NftTable) -> bool {
    table.family == INET && table.name == TABLE
}

/// What brings the kernel's rules to those of `pods`.
async fn steps(socket: &mut Socket, pods: &[PodSources]) -> Result<Vec<nft::BatchStep>, NftError> {
    let mut wanted: HashMap<String, Rule> = HashMap::new();
    for (name, prefixes) in pods {
        let Some(interface) = InterfaceName::new(name) else {
            continue;
        };
        for prefix in prefixes {
            let terms = vec![Term::FromInterface(interface), Term::From(*prefix)];
            let verdict = Verdict::Drop;
            wanted.insert(format!("{name} {prefix}"), Rule { terms, verdict });
        }
    }
    let chain = chain();
    let tables = socket.tables().await?;
    let found = tables.iter().find(|table| is_own(table));
    if wanted.is_empty() {
        return Ok(found
            .map(|_| nft::delete_table(INET, TABLE))
            .into_iter()
            .collect());
    }
    let is_there = found.is_some_and(|table| !table.dormant);
    let is_whole = is_there && socket.base_chains().await?.contains(&chain);
    let found = if is_whole {
        socket.rules(&chain).await?
    } else {
        Vec::new()
    };
    let head = head();
    let is_headed = found.len() >= head.len()
        && found
            .iter()
            .zip(&head)
            .all(|(found, (rule, _))| found.matches(rule, INET));
    let mut steps = Vec::new();
    if !is_headed {
        // Made first, so that there is one to delete.
        steps.push(nft::add_table(INET, TABLE));
        steps.push(nft::delete_table(INET, TABLE));
        steps.push(nft::add_table(INET, TABLE));
        steps.push(nft::add_chain(&chain));
        for (rule, comment) in &head {
            steps.push(nft::append(&chain, rule, comment));
        }
    }
    for rule in found.iter().skip(head.len()).filter(|_| is_headed) {
        let named = rule
            .comment
            .as_ref()
            .and_then(|comment| wanted.get(comment));
        match (
            &rule.comment,
            named.is_some_and(|wanted| rule.matches(wanted, INET)),
        ) {
            (Some(comment), true) => drop(wanted.remove(comment)),
            _ => steps.push(nft::delete_rule(&chain, rule)),
        }
    }
    let missing = wanted.iter();
    steps.extend(missing.map(|(comment, rule)| nft::append(&chain, rule, comment)));
    Ok(steps)
}

/// The rules by which packets pass, each with its comment.
fn head() -> [(Rule, &'static str); 2] {
    let passes = |terms| Rule {
        terms,
        verdict: Verdict::Return,
    };
    let elsewhere = Term::Packet(PacketTerm::NotFromInterfaces(HOST_IFNAME_PREFIX));
    [
        (passes(vec![elsewhere]), "tartan: from no pod"),
        (passes(vec![Term::RoutedBack]), "tartan: routed back"),
    ]
}

fn chain() -> BaseChain {
    BaseChain {
        family: INET,
        table: TABLE.to_owned(),
        name: "prerouting".to_owned(),
        kind: "filter".to_owned(),
        hook: nft::PREROUTING,
        // In front of the check of sources.
        priority: libc::NF_IP_PRI_RAW - 1,
        drops: false,
    }
}

/// The table's name, in the family `inet`.
pub(super) const TABLE: &str = "tartan-pods";
/// How comments of the head begin, and those of pods' rules, which begin with an interface, do not.
const OF_HEAD: &str = "tartan: ";
