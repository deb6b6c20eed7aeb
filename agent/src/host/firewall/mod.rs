//! Theory of operation
//!
//! The node's packet filter: a table of our own, `inet tartan`, with the rules of [`masquerade`], [`source_check`] and
//! [`encapsulation`], and accept rules in chains of other programs. An accept in our own table would not override a
//! drop in another: a packet passes every chain of a hook. So our table has no forward chain, and
//! our accept rules stand in those chains of other tables on that hook that
//! would cut pods off ([`foreign_chain`]), marked by their comment. Rules of
//! iptables-legacy, which the kernel keeps elsewhere, are not read ([`legacy`]).
//!
//! State: the number of the rules' generation at which nothing differed.
//! While the kernel gives the same number, nothing has changed and a call
//! costs one request. Otherwise chains are listed, and the
//! rules of our own chains, of forward chains and of chains that these send all
//! pod packets to; never all rules of a node.
//!
//! Our own table is replaced as a whole in one batch, so packets meet the old
//! rules or the new ones. Where only elements of its sets differ, those are
//! added and deleted in place: of 5,000 nodes one that moved costs one element. Each foreign chain is a batch of its own: one that
//! cannot be changed does not hold up the others, and is named in the error.
//! Where another program keeps putting its rules in front of ours, ours are
//! moved twice a second at most.
//!
//! Not checked: rules for some packets only, of an interface or a port.

mod chain_walk;
mod encapsulation;
mod foreign_chain;
mod legacy;
mod masquerade;
pub(super) mod nft;
mod own_table;
mod packet_walk;
mod pod_drops;
pub(super) mod pod_routes;
mod service;
mod source_check;
mod survey;

pub(super) use packet_walk::{Addresses, judge};
pub use packet_walk::{FilterVerdict, NamedRule};
pub use pod_drops::PodDrops;
pub(super) use pod_drops::pod_drops;
pub use service::ServiceFate;
pub(super) use service::{ServicePacket, translate};
pub use survey::FirewallSurvey;
pub(super) use survey::{survey, survey_since};

use std::mem;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use rustix::io::Errno;
use tracing::info;

use super::Host;
use super::change::Change;
use super::error::HostError;
use super::host_state::HostState;
use foreign_chain::{ForeignChain, is_foreign};
use legacy::LegacyTables;
use masquerade::FirewallRules;
use nft::set::{self, Set, SetContent};
use nft::{BaseChain, BatchStep, FoundRule, INET, IPV4, IPV6, NftError, NftTable, Rule, Socket};
use own_table::{COMMENT, TABLE, is_in_own_table, is_own};

/// What is kept between calls.
#[derive(Debug, Default)]
pub(super) struct Firewall {
    socket: Option<Socket>,
    /// The generation at which nothing differed, and the rules wanted then.
    applied: Option<(u32, FirewallRules)>,
    /// The time of the last write, and the rules wanted then.
    last_write: Option<(Instant, FirewallRules)>,
    /// Tables of iptables-legacy, as last logged.
    legacy: LegacyTables,
    /// Rules for pods whose routes are lost.
    pods: pod_routes::Applied,
}

impl Host {
    /// Applies `desired` to the node's packet filter: the source check of pods,
    /// masquerade, and forwarding of pod traffic. Returns what had to be
    /// changed. Call it like [`apply`](Host::apply), and after it: nothing there
    /// depends on this.
    ///
    /// # Errors
    /// [`HostError::Rules`]: no nf_tables in this kernel, or its refusal of a
    /// step; [`HostError::CutOff`]. Steps after that one have been tried too.
    /// [`HostError::RulesBesideLegacy`]: one of these, where tables of
    /// iptables-legacy exist.
    pub async fn apply_firewall(&mut self, desired: &HostState) -> Result<Vec<Change>, HostError> {
        let wanted = FirewallRules::of(desired);
        let mut changes = Vec::new();
        let mut result = self.firewall.apply(&wanted, &mut changes).await;
        for _ in 1..ATTEMPTS {
            if !is_interrupted(&result) {
                break;
            }
            result = self.firewall.apply(&wanted, &mut changes).await;
        }
        self.unreported.append(&mut changes);
        if result.is_err() {
            // Answers on their way in the old socket are of no use, and the
            // next call is to read everything again.
            self.firewall = Firewall {
                legacy: mem::take(&mut self.firewall.legacy),
                ..Firewall::default()
            };
        }
        self.firewall.look_for_legacy_tables();
        match result {
            Ok(()) => Ok(mem::take(&mut self.unreported)),
            Err(problem) if self.firewall.legacy.is_empty() => Err(problem),
            Err(problem) => Err(HostError::RulesBesideLegacy {
                problem: Box::new(problem),
                legacy: self.firewall.legacy.to_string(),
            }),
        }
    }
}

impl Firewall {
    /// Whether the last call left nothing to do. The kernel announces changes of nf_tables; they are not looked for here.
    pub(super) fn is_applied(&self) -> bool {
        self.applied.is_some()
    }

    /// Logs the tables of iptables-legacy when they are others than before.
    fn look_for_legacy_tables(&mut self) {
        let found = LegacyTables::read();
        if found != self.legacy && !found.is_empty() {
            info!("{found}");
        }
        self.legacy = found;
    }

    async fn apply(
        &mut self,
        wanted: &FirewallRules,
        changes: &mut Vec<Change>,
    ) -> Result<(), HostError> {
        let generation = self.generation().await.map_err(read_error)?;
        let applied = self.applied.as_ref();
        if applied.is_some_and(|(number, with)| *number == generation && with == wanted) {
            return Ok(());
        }
        let last_write = self.last_write.as_ref();
        if last_write
            .is_some_and(|(when, what)| when.elapsed() < LEAST_WRITE_INTERVAL && what == wanted)
        {
            return Ok(());
        }
        let Some(socket) = &mut self.socket else {
            return Ok(());
        };
        let before = changes.len();
        let result = repair(socket, wanted, changes).await;
        if changes.len() > before {
            self.last_write = Some((Instant::now(), wanted.clone()));
            self.applied = None;
        } else if result.is_ok() {
            self.applied = Some((generation, wanted.clone()));
        }
        result
    }

    async fn generation(&mut self) -> Result<u32, NftError> {
        let socket = match &mut self.socket {
            Some(socket) => socket,
            none => none.insert(Socket::open()?),
        };
        socket.generation().await
    }
}

/// Reads, and writes what differs. Every chain is tried; the first error is returned.
async fn repair(
    socket: &mut Socket,
    wanted: &FirewallRules,
    changes: &mut Vec<Change>,
) -> Result<(), HostError> {
    let tables = socket.tables().await.map_err(read_error)?;
    let chains = socket.base_chains().await.map_err(read_error)?;
    let own = own_chains(wanted);
    if !own_table_matches(socket, &tables, &chains, &own)
        .await
        .map_err(read_error)?
    {
        write_own(socket, &own, &wanted.encapsulation.sets).await?;
        changes.push(Change::TableWritten(format!("inet {TABLE}")));
    } else {
        for set in &wanted.encapsulation.sets {
            changes.extend(follow(socket, set).await?);
        }
    }
    let mut first_error = None;
    for chain in chains.iter().filter(|chain| is_foreign(chain)) {
        let owned = tables.iter().any(|table| table.owned && chain.is_in(table));
        let networks = wanted.networks(chain.family != IPV6, chain.family != IPV4);
        match let_through(socket, chain, owned, &networks).await {
            Ok(change) => changes.extend(change),
            Err(error) => {
                first_error.get_or_insert(error);
            }
        }
    }
    first_error.map_or(Ok(()), Err)
}

async fn let_through(
    socket: &mut Socket,
    chain: &BaseChain,
    owned: bool,
    networks: &[IpNet],
) -> Result<Option<Change>, HostError> {
    let other = match ForeignChain::read(socket, chain, owned, networks).await {
        // Gone since chains were listed.
        Err(NftError::Refused { source }) if source == Errno::NOENT => return Ok(None),
        read => read.map_err(read_error)?,
    };
    other.let_through(socket, networks).await
}

/// Our chains and their rules.
fn own_chains(wanted: &FirewallRules) -> Vec<(BaseChain, &[Rule])> {
    let chain = |name: &str, kind: &str, hook, priority| BaseChain {
        family: INET,
        table: TABLE.to_owned(),
        name: name.to_owned(),
        kind: kind.to_owned(),
        hook,
        priority,
        drops: false,
    };
    let filter = |name, hook, priority| chain(name, "filter", hook, priority);
    let source_check = filter(SOURCE_CHECK, nft::PREROUTING, libc::NF_IP_PRI_RAW);
    let tracking = filter(TRACKING, nft::PREROUTING, libc::NF_IP_PRI_RAW);
    // Behind the translation of destinations, and of sources.
    let guard = filter(GUARD, nft::PREROUTING, libc::NF_IP_PRI_NAT_DST + 10);
    let translated = filter(TRANSLATED, nft::POSTROUTING, libc::NF_IP_PRI_NAT_SRC + 10);
    let postrouting = chain(
        "postrouting",
        "nat",
        nft::POSTROUTING,
        libc::NF_IP_PRI_NAT_SRC,
    );
    let encapsulation = &wanted.encapsulation;
    let mut chains = vec![
        (source_check, &wanted.prerouting[..]),
        (tracking, &encapsulation.tracking[..]),
        (guard, &encapsulation.guard[..]),
        (translated, &encapsulation.translated[..]),
    ];
    if !wanted.postrouting.is_empty() {
        chains.push((postrouting, &wanted.postrouting[..]));
    }
    chains
}

/// Whether our table is there and holds what it should.
async fn own_table_matches(
    socket: &mut Socket,
    tables: &[NftTable],
    found: &[BaseChain],
    own: &[(BaseChain, &[Rule])],
) -> Result<bool, NftError> {
    let is_active = |table: &NftTable| is_own(table) && !table.dormant;
    let ours = found.iter().filter(|chain| is_in_own_table(chain));
    if !tables.iter().any(is_active) || ours.count() != own.len() {
        return Ok(false);
    }
    for (chain, rules) in own {
        if !found.contains(chain) {
            return Ok(false);
        }
        let found = socket.rules(chain).await?;
        let alike = |(rule, found): (&Rule, &FoundRule)| found.matches(rule, INET);
        if found.len() != rules.len() || !rules.iter().zip(&found).all(alike) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The table anew, in one batch.
async fn write_own(
    socket: &mut Socket,
    own: &[(BaseChain, &[Rule])],
    sets: &[Set],
) -> Result<(), HostError> {
    // Made first, so that there is one to delete.
    let mut steps = vec![
        nft::add_table(INET, TABLE),
        nft::delete_table(INET, TABLE),
        nft::add_table(INET, TABLE),
    ];
    for (set, number) in sets.iter().zip(1..) {
        steps.extend(set::add_set(TABLE, set, number));
    }
    for (chain, rules) in own {
        steps.push(nft::add_chain(chain));
        steps.extend(rules.iter().map(|rule| nft::append(chain, rule, COMMENT)));
    }
    let done = socket.commit(&steps).await.map_err(|error| match error {
        // Nothing that the batch names can be missing but the kernel's own
        // support: the nat chain type, or masq.
        NftError::Refused { source } if source == Errno::NOENT => NftError::Unsupported,
        error => error,
    });
    done.map_err(|source| HostError::Rules {
        doing: format!("write the nft table inet {TABLE}"),
        source,
    })
}

/// Changes the elements of a set that differ.
async fn follow(socket: &mut Socket, set: &Set) -> Result<Option<Change>, HostError> {
    let SetContent::Fixed(wanted) = &set.content else {
        return Ok(None);
    };
    let found = socket.elements(TABLE, set.name).await.map_err(read_error)?;
    let gone: Vec<_> = found.difference(wanted).collect();
    let new: Vec<_> = wanted.difference(&found).collect();
    let mut steps: Vec<BatchStep> = set::add_elements(TABLE, set.name, new.iter().copied());
    steps.extend(set::delete_elements(TABLE, set.name, gone.iter().copied()));
    if steps.is_empty() {
        return Ok(None);
    }
    let done = socket.commit(&steps).await;
    done.map_err(|source| HostError::Rules {
        doing: format!("change the nft set {} of inet {TABLE}", set.name),
        source,
    })?;
    Ok(Some(Change::SetChanged {
        set: format!("inet {TABLE} {}", set.name),
        added: new.len(),
        removed: gone.len(),
    }))
}

/// Takes away our table and our rules in chains of others. Each with what
/// became of it; nothing where there is no trace.
pub(super) async fn clear() -> Vec<(String, Result<(), HostError>)> {
    let mut socket = match Socket::open() {
        // No nf_tables, no rules.
        Err(NftError::Unsupported) => return Vec::new(),
        Err(error) => return vec![("the nft rules".to_owned(), Err(read_error(error)))],
        Ok(socket) => socket,
    };
    let read = async { Ok((socket.tables().await?, socket.base_chains().await?)) };
    let (tables, chains) = match read.await {
        Err(NftError::Unsupported) => return Vec::new(),
        Err(error) => return vec![("the nft rules".to_owned(), Err(read_error(error)))],
        Ok(read) => read,
    };
    let mut outcomes = Vec::new();
    let own_tables = [
        (TABLE, tables.iter().any(is_own)),
        (pod_routes::TABLE, tables.iter().any(pod_routes::is_own)),
    ];
    for (name, _) in own_tables.into_iter().filter(|(_, there)| *there) {
        let what = format!("the nft table inet {name}");
        let gone = socket.commit(&[nft::delete_table(INET, name)]).await;
        let gone = gone.map_err(|source| HostError::Rules {
            doing: format!("delete {what}"),
            source,
        });
        outcomes.push((what, gone));
    }
    for chain in chains.iter().filter(|chain| is_foreign(chain)) {
        let Some(gone) = ForeignChain::clear(&mut socket, chain).await else {
            continue;
        };
        let what = format!("the accept rules in the chain {chain}");
        let gone = gone.map_err(|source| HostError::Rules {
            doing: format!("remove {what}"),
            source,
        });
        outcomes.push((what, gone));
    }
    outcomes
}

fn read_error(source: NftError) -> HostError {
    HostError::Rules {
        doing: "read the nft rules".to_owned(),
        source,
    }
}

fn is_interrupted(result: &Result<(), HostError>) -> bool {
    matches!(
        result,
        Err(HostError::Rules {
            source: NftError::Interrupted,
            ..
        })
    )
}

// The names of our chains. `postrouting` masquerades.
const SOURCE_CHECK: &str = "prerouting";
const TRACKING: &str = "tracking";
const GUARD: &str = "guard";
const TRANSLATED: &str = "translated";
/// How often the rules are read again when another process changes them meanwhile.
const ATTEMPTS: usize = 3;
/// Least time between two writings of the same rules.
const LEAST_WRITE_INTERVAL: Duration = Duration::from_millis(500);
