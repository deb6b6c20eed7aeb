//! Tables, chains and rules of nf_tables, which iptables-nft uses as well.
//!
//! In a table of others the CNI's chains go, and every rule that leads to one of them, bears a comment of the CNI's or is,
//! word for word, one that it writes into `FORWARD`. A chain with a hook is never deleted: in a table of others it is theirs.

use std::collections::BTreeSet;

use super::catalogue::{Catalogue, matching, reason};
use super::{Leftover, LeftoverError, LeftoverKind, Thing, refused};
use crate::host::firewall::nft::{
    self, BatchStep, ChainPlace, FoundRule, INET, IPV4, IPV6, NftError, Socket,
};

/// What of the CNI's is in a table of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chains {
    pub(super) family: u8,
    pub(super) table: String,
}

/// The same as it was read.
struct Read {
    chains: Vec<ChainPlace>,
    /// Rules in chains of others, with what each was known by.
    rules: Vec<(ChainPlace, FoundRule, String)>,
}

pub(super) async fn find(catalogue: &Catalogue) -> Result<Vec<Leftover>, LeftoverError> {
    match read_all(catalogue).await {
        // No nf_tables, no rules.
        Err(NftError::Unsupported) => Ok(Vec::new()),
        read => read.map_err(|source| refused("read the nft tables".to_owned(), source)),
    }
}

async fn read_all(catalogue: &Catalogue) -> Result<Vec<Leftover>, NftError> {
    let mut socket = Socket::open()?;
    let mut found = Vec::new();
    let mut own = BTreeSet::new();
    for table in socket.tables().await? {
        let known = catalogue
            .tables
            .iter()
            .find(|(family, name, _)| (*family, *name) == (table.family, table.name.as_str()));
        if let Some((family, name, source)) = known {
            own.insert((table.family, table.name.clone()));
            found.push(Leftover {
                kind: LeftoverKind::Table,
                place: in_words(*family, name),
                why: reason("the name", name, source),
                effect: "the table goes with all its chains".to_owned(),
                rules: Vec::new(),
                kept: None,
                thing: Thing::Table {
                    family: *family,
                    name: table.name,
                },
            });
        }
    }
    let all = socket.chains().await?;
    let tables: BTreeSet<(u8, String)> = all
        .iter()
        .map(|chain| (chain.family, chain.table.clone()))
        .filter(|table| !own.contains(table))
        .collect();
    for (family, table) in tables {
        let read = read_table(&mut socket, catalogue, family, &table, &all).await?;
        let names: Vec<&str> = read
            .chains
            .iter()
            .map(|chain| chain.name.as_str())
            .collect();
        let rules = read.rules.iter().map(|(place, rule, by)| {
            let words = rule.iptables_words();
            let words = words.map(|words| format!(" {words}")).unwrap_or_default();
            (
                format!("{}{words} handle {}", place.name, rule.handle()),
                by.clone(),
            )
        });
        let rules: Vec<(String, String)> = rules.collect();
        let chains = Chains {
            family,
            table: table.clone(),
        };
        let place = in_words(family, &table);
        found.extend(of_table(
            catalogue,
            place,
            &names,
            &rules,
            Thing::Chains(chains),
        ));
    }
    Ok(found)
}

/// One leftover for all chains and rules of a table, if there are any.
pub(super) fn of_table(
    catalogue: &Catalogue,
    table: String,
    chains: &[&str],
    rules: &[(String, String)],
    thing: Thing,
) -> Option<Leftover> {
    if chains.is_empty() && rules.is_empty() {
        return None;
    }
    let known = chains
        .iter()
        .find_map(|name| matching(catalogue.chains, name));
    let why = match known {
        Some(named) => reason("chains named", named.name, named.source),
        None => format!(
            "rules with {}",
            rules.first().map(|(_, by)| by.as_str()).unwrap_or_default()
        ),
    };
    let names = match chains {
        [] => "no chain".to_owned(),
        _ if chains.len() > SHOWN => {
            let shown = chains.get(..SHOWN).unwrap_or_default().join(", ");
            format!("{shown} and {} more", chains.len() - SHOWN)
        }
        _ => chains.join(", "),
    };
    Some(Leftover {
        kind: LeftoverKind::Chains,
        place: format!("{table}: {names}"),
        why,
        effect: format!(
            "{} chain(s) go, and {} rule(s) in chains of others",
            chains.len(),
            rules.len()
        ),
        rules: rules
            .iter()
            .map(|(rule, by)| format!("{rule}: {by}"))
            .collect(),
        kept: None,
        thing,
    })
}

/// What a rule in a chain of others is known by, given where it leads, its comment, and its words if it is in `FORWARD` of
/// IPv4's table `filter`.
pub(super) fn known_by(
    catalogue: &Catalogue,
    leads_to: Option<&str>,
    comment: Option<&str>,
    forward_words: Option<&str>,
) -> Option<String> {
    if let Some(chain) = leads_to.filter(|name| matching(catalogue.chains, name).is_some()) {
        return Some(format!("a jump to {chain}"));
    }
    if let Some(named) = comment.and_then(|words| matching(catalogue.comments, words)) {
        return Some(reason("the comment", named.name, named.source));
    }
    let words = forward_words?;
    let (rule, source) = catalogue
        .forward_rules
        .iter()
        .find(|(rule, _)| *rule == words)?;
    Some(reason("the rule", rule, source))
}

async fn read_table(
    socket: &mut Socket,
    catalogue: &Catalogue,
    family: u8,
    table: &str,
    all: &[ChainPlace],
) -> Result<Read, NftError> {
    let hooked: BTreeSet<String> = socket
        .base_chains()
        .await?
        .into_iter()
        .filter(|chain| chain.family == family && chain.table == table)
        .map(|chain| chain.name)
        .collect();
    let here = all
        .iter()
        .filter(|chain| chain.family == family && chain.table == table);
    let (chains, others): (Vec<&ChainPlace>, Vec<&ChainPlace>) = here.partition(|chain| {
        matching(catalogue.chains, &chain.name).is_some() && !hooked.contains(&chain.name)
    });
    let mut rules = Vec::new();
    for place in others {
        let found = match socket.rules_at(place).await {
            // Gone since chains were listed.
            Err(error) if is_gone(&error) => continue,
            found => found?,
        };
        for rule in found {
            let parsed = rule.parsed(family);
            let words = rule.words();
            let is_forward = (family, table, place.name.as_str()) == (IPV4, "filter", "FORWARD");
            let forward = rule.iptables_words().filter(|_| is_forward);
            let known = known_by(
                catalogue,
                parsed.leads_to(),
                words.as_deref(),
                forward.as_deref(),
            );
            rules.extend(known.map(|by| (place.clone(), rule, by)));
        }
    }
    Ok(Read {
        chains: chains.into_iter().cloned().collect(),
        rules,
    })
}

/// Deletes a table. One that is gone already is no error.
pub(super) async fn remove_table(family: u8, name: &str) -> Result<(), LeftoverError> {
    let done = async {
        Socket::open()?
            .commit(&[nft::delete_table(family, name)])
            .await
    };
    match done.await {
        Err(error) if is_gone(&error) => Ok(()),
        done => done.map_err(|source| {
            refused(
                format!("delete the nft table {}", in_words(family, name)),
                source,
            )
        }),
    }
}

/// Removes the chains and rules that are there now, all in one transaction.
pub(super) async fn remove(catalogue: &Catalogue, chains: &Chains) -> Result<(), LeftoverError> {
    let mut last = Ok(());
    // Other programs may change the table in between.
    for _ in 0..ATTEMPTS {
        last = try_remove(catalogue, chains).await;
        if last.is_ok() {
            return Ok(());
        }
    }
    let doing = format!(
        "remove {}'s chains from {}",
        catalogue.project,
        in_words(chains.family, &chains.table)
    );
    last.map_err(|source| refused(doing, source))
}

async fn try_remove(catalogue: &Catalogue, chains: &Chains) -> Result<(), NftError> {
    let mut socket = Socket::open()?;
    let all = socket.chains().await?;
    let read = read_table(&mut socket, catalogue, chains.family, &chains.table, &all).await?;
    let mut steps: Vec<BatchStep> = Vec::new();
    steps.extend(
        read.rules
            .iter()
            .map(|(place, rule, _)| nft::delete_rule_at(place, rule)),
    );
    steps.extend(read.chains.iter().map(nft::flush_chain));
    steps.extend(read.chains.iter().map(nft::delete_chain));
    match steps.is_empty() {
        true => Ok(()),
        false => socket.commit(&steps).await,
    }
}

/// As nft names it.
fn in_words(family: u8, table: &str) -> String {
    let family = match family {
        INET => "inet",
        IPV4 => "ip",
        IPV6 => "ip6",
        _ => "other",
    };
    format!("{family} {table}")
}

fn is_gone(error: &NftError) -> bool {
    matches!(error, NftError::Refused { source } if *source == rustix::io::Errno::NOENT)
}

/// Chains named in a table's line.
const SHOWN: usize = 4;
const ATTEMPTS: usize = 3;
