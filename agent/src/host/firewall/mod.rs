//! Theory of operation
//!
//! The node's packet filter: a table of our own, `inet tartan`, with the rules
//! of [`masquerade`] and [`source_check`], and accept rules in chains of other
//! programs. An accept in our own table would not override a drop in another:
//! a packet passes every chain of a hook. So our table has no forward chain, and
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
//! rules or the new ones. Each foreign chain is a batch of its own: one that
//! cannot be changed does not hold up the others, and is named in the error.
//! Where another program keeps putting its rules in front of ours, ours are
//! moved twice a second at most.
//!
//! Not checked: rules for some packets only, of an interface or a port.

mod chain_walk;
mod foreign_chain;
mod legacy;
mod masquerade;
pub(super) mod nft;
mod own_table;
pub(super) mod pod_routes;
mod source_check;

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
use nft::{BaseChain, FoundRule, INET, IPV4, IPV6, NftError, NftTable, Rule, Socket};
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

/// How many packets of pods were dropped for a forged source since our table
/// was last written; `None` while it is not there.
///
/// # Errors
/// [`HostError::Rules`]: nf_tables cannot be read.
pub(super) async fn forged_sources() -> Result<Option<u64>, HostError> {
    let mut socket = Socket::open().map_err(read_error)?;
    let chains = socket.base_chains().await.map_err(read_error)?;
    let is_check = |chain: &&BaseChain| is_in_own_table(chain) && chain.hook == nft::PREROUTING;
    let Some(chain) = chains.iter().find(is_check) else {
        return Ok(None);
    };
    let rules = socket.rules(chain).await.map_err(read_error)?;
    let drop = source_check::drop();
    let counting = rules.iter().find(|rule| rule.matches(&drop, INET));
    Ok(counting.and_then(FoundRule::packets))
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
        write_own(socket, &own).await?;
        changes.push(Change::TableWritten(format!("inet {TABLE}")));
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
    let prerouting = chain("prerouting", "filter", nft::PREROUTING, libc::NF_IP_PRI_RAW);
    let postrouting = chain(
        "postrouting",
        "nat",
        nft::POSTROUTING,
        libc::NF_IP_PRI_NAT_SRC,
    );
    let mut chains = vec![(prerouting, &wanted.prerouting[..])];
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
async fn write_own(socket: &mut Socket, own: &[(BaseChain, &[Rule])]) -> Result<(), HostError> {
    // Made first, so that there is one to delete.
    let mut steps = vec![
        nft::add_table(INET, TABLE),
        nft::delete_table(INET, TABLE),
        nft::add_table(INET, TABLE),
    ];
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
    if tables.iter().any(is_own) {
        let what = format!("the nft table inet {TABLE}");
        let gone = socket.commit(&[nft::delete_table(INET, TABLE)]).await;
        let gone = gone.map_err(|source| HostError::Rules {
            doing: format!("delete {what}"),
            source,
        });
        outcomes.push((what, gone));
    }
    if tables.iter().any(pod_routes::is_own) {
        let what = format!("the nft table inet {}", pod_routes::TABLE);
        let step = nft::delete_table(INET, pod_routes::TABLE);
        let gone = socket.commit(&[step]).await;
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

/// How often the rules are read again when another process changes them meanwhile.
const ATTEMPTS: usize = 3;
/// Least time between two writings of the same rules.
const LEAST_WRITE_INTERVAL: Duration = Duration::from_millis(500);
