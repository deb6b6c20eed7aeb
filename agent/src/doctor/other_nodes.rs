//! What the other nodes say is wrong with them: asked of the service, which asks them by probes.
//!
//! A node tells codes and subjects of its problems, not more; sentence, evidence and remedy are had by `tartan doctor` there.

use super::examination::Examination;
use crate::api::client::{ClientError, call};
use crate::api::wire::{PeerReport, Request};
use crate::peer_health::question::MOST_REPORTS;

/// Which other nodes are asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OtherNodes {
    /// None.
    #[default]
    None,
    /// All that are known.
    All,
    /// Those with these names.
    Named(Vec<String>),
}

/// Asks them. `None` where none is to be asked.
///
/// # Errors
/// Why they cannot be asked, in words.
pub(super) fn ask(e: &Examination, which: &OtherNodes) -> Option<Result<Vec<PeerReport>, String>> {
    let names: Vec<String> = match (which, &e.peers) {
        (OtherNodes::None, _) => return None,
        (_, None) => {
            return Some(Err(
                "only a running agent can ask them: start it, or run `tartan doctor` on each"
                    .to_owned(),
            ));
        }
        (OtherNodes::All, Some(peers)) => {
            peers.peers.iter().map(|peer| peer.name.clone()).collect()
        }
        (OtherNodes::Named(names), _) => names.clone(),
    };
    let mut reports = Vec::new();
    for some in names.chunks(MOST_REPORTS) {
        match ask_some(e, some) {
            Ok(more) => reports.extend(more),
            Err(error) => return Some(Err(crate::causes::causes(&error))),
        }
    }
    Some(Ok(reports))
}

fn ask_some(e: &Examination, names: &[String]) -> Result<Vec<PeerReport>, ClientError> {
    let peers = names.to_vec();
    let answer = call(&e.socket, &Request::Reports { peers })?;
    serde_json::from_value(answer).map_err(ClientError::Answer)
}
