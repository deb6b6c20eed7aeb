//! Our accept rules in chains of other tables.

use rustix::io::Errno;

use super::change::Change;
use super::error::HostError;
use super::firewall::{COMMENT, is_in_own_table};
use super::nft::{self, BaseChain, FoundRule, INET, IPV4, IPV6, NftError, Rule, Socket};

/// Sees that a chain of another table begins with the rules wanted and has no
/// other rule of ours.
pub(super) async fn let_through(
    socket: &mut Socket,
    chain: &BaseChain,
    wanted: &[Rule],
) -> Result<Option<Change>, HostError> {
    let failed = |source| HostError::Rules {
        doing: format!("change the chain {chain}, which decides on forwarded packets"),
        source,
    };
    let found = socket.rules(chain).await.map_err(failed)?;
    let ours: Vec<&FoundRule> = found.iter().filter(|rule| is_ours(rule)).collect();
    let alike =
        |(rule, found): (&Rule, &FoundRule)| is_ours(found) && found.says(rule, chain.family);
    if ours.len() == wanted.len() && wanted.iter().zip(&found).all(alike) {
        return Ok(None);
    }
    let mut steps: Vec<_> = ours
        .iter()
        .map(|rule| nft::delete_rule(chain, rule))
        .collect();
    let anew = wanted.iter().rev();
    steps.extend(anew.map(|rule| nft::insert(chain, rule, COMMENT)));
    match socket.commit(&steps).await {
        // The chain or a rule has gone meanwhile: the generation is another
        // then, and the next call looks again.
        Err(NftError::Refused { source }) if source == Errno::NOENT => return Ok(None),
        done => done.map_err(failed)?,
    }
    Ok(Some(if wanted.is_empty() {
        Change::AcceptRemoved(chain.to_string())
    } else {
        Change::AcceptPlaced(chain.to_string())
    }))
}

/// Another table's chain that decides on forwarded IP packets.
pub(super) fn is_foreign(chain: &BaseChain) -> bool {
    chain.hook == nft::FORWARD
        && chain.kind == "filter"
        && [INET, IPV4, IPV6].contains(&chain.family)
        && !is_in_own_table(chain)
}

fn is_ours(rule: &FoundRule) -> bool {
    rule.comment.as_deref() == Some(COMMENT)
}
