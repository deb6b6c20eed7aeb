//! Who wrote this node's key: nodes that are given one public address by mistake have one key, and none would notice.
//!
//! ```text
//! <prefix>/tartan/owners/10.244.1.0-24     {"node":"n1"}
//! ```
//!
//! It is beside flannel's keys, which do not say it, and flannel does not read it. It hangs on the same etcd lease as the
//! key that it belongs to, so it ends with it; one that hangs on another is left over from an earlier owner. A user that may
//! not write it goes on without.

use cni_shim::Json;
use dataplane::families::PublicAddresses;
use tracing::warn;

use super::super::foreign_text::excerpt;
use super::session::{Condition, Failure, Session};
use super::table::{Table, Written};

/// What is known of the owner of this node's key.
#[derive(Debug, Default)]
pub(super) struct Owner {
    state: State,
    /// That it cannot be read or written was said.
    is_said: bool,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Unknown,
    Ours,
    /// etcd does not let it be known.
    Denied,
    /// Another node of this name.
    Other(String),
}

impl Owner {
    /// It is read again at the next occasion.
    pub(super) fn forget(&mut self) {
        self.state = State::Unknown;
    }

    /// The name of another owner, as it was read last.
    pub(super) fn other(&self) -> Option<&str> {
        match &self.state {
            State::Other(name) => Some(name),
            State::Unknown | State::Ours | State::Denied => None,
        }
    }

    /// Whether `node` owns the key whose owner is told at `key` and which hangs on the etcd lease `lease`; says so there
    /// where no node does. Without `lease` nothing is written, and the node named there is the owner: the key was overwritten
    /// with text that is no lease. Returns the name of another owner.
    ///
    /// # Errors
    /// The session is lost.
    pub(super) async fn check(
        &mut self,
        session: &mut Session,
        key: &[u8],
        lease: Option<i64>,
        node: &str,
    ) -> Result<Option<&str>, Failure> {
        if let State::Unknown = self.state {
            match find(session, key, lease, node).await {
                Ok(state) => self.state = state,
                Err(Failure::Denied(reason)) => {
                    self.state = State::Denied;
                    if !std::mem::replace(&mut self.is_said, true) {
                        let key = Table::place(key);
                        warn!(%key, reason, "this node cannot say that its lease is its own, so another node with the same public address is not noticed");
                    }
                }
                Err(lost) => return Err(lost),
            }
        }
        Ok(self.other())
    }
}

async fn find(
    session: &mut Session,
    key: &[u8],
    lease: Option<i64>,
    node: &str,
) -> Result<State, Failure> {
    let found = session.get(key).await?.found;
    let name = found.as_ref().and_then(name_in);
    let is_of_this_key = found
        .as_ref()
        .is_some_and(|found| lease.is_none_or(|lease| found.lease == lease));
    match name {
        Some(name) if name == node && is_of_this_key => return Ok(State::Ours),
        Some(name) if name != node && is_of_this_key => {
            return Ok(State::Other(excerpt(&name, LONGEST_NAME)));
        }
        _ => {}
    }
    let Some(lease) = lease else {
        return Ok(State::Unknown);
    };
    let condition = match &found {
        Some(found) => Condition::Unchanged(found.mod_revision),
        None => Condition::Absent,
    };
    let name = Json::Text(node.to_owned());
    let value = Json::Object(vec![(NODE.to_owned(), name)]).to_string();
    // Who is faster is read at the next occasion.
    match session.put(key, &value, lease, condition).await? {
        Some(_) => Ok(State::Ours),
        None => Ok(State::Unknown),
    }
}

fn name_in(written: &Written) -> Option<String> {
    if written.value.len() > MOST_BYTES {
        return None;
    }
    let value = Json::parse(&written.value).ok()?;
    Some(value.text_of(NODE).ok()??.to_owned())
}

/// One sentence for the operator.
pub(super) fn conflict(
    node: &str,
    other: &str,
    lease: &str,
    public: PublicAddresses,
    owner: &[u8],
) -> String {
    let owner = String::from_utf8_lossy(owner);
    format!(
        "the nodes {node} and {other} claim one lease, {lease} (public address {public}): give each node a public address of its own (--public-ip or --iface); if {other} no longer exists, delete the key that names it (etcdctl del '{owner}')"
    )
}

const NODE: &str = "node";
const MOST_BYTES: usize = 4096;
/// Octets of a node's name, as of a DNS name.
const LONGEST_NAME: usize = 253;
