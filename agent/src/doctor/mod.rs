//! `tartan doctor`: what is wrong with this node, with evidence, remedy and reference, whether the service runs or not.
//!
//! Theory of operation. A fact has one judge. While the service answers, its [board](crate::problems) is that judge: every
//! problem on it is a finding here. While it does not, the same code is run on what a start would go by (`dry_start`):
//! configuration, list of nodes or last good state, and the kernel's own lists. Only what the service does not look at is
//! judged here, one file a check: the TUN device file, settings of other programs that need not be wrong for every node
//! (`settings`, `bridges`), what flannel left in the packet filter, checksums, the clock.
//!
//! All checks are run, in the order in which packets and operators depend on them. Each says what it saw (`facts`), so that
//! a healthy node is seen to have been looked at. Nothing is changed, unless repairs are asked for (`repair`); nothing is
//! executed. It takes about a second, for which it watches counters.
//!
//! What lies between nodes shows here by the problems that the service posts of its peers. The other nodes are asked what is
//! wrong with them where that is wanted (`other_nodes`): they name it, and evidence is had there.

mod agent;
mod board;
mod bridges;
mod checksums;
mod clock;
mod configuration;
mod dry_start;
mod examination;
mod finding;
mod firewall;
mod flannel;
mod kernel_path;
mod other_nodes;
mod others;
mod peers;
mod pods;
mod ports;
mod reference;
mod registry;
mod repair;
mod settings;
mod tun;
mod underlay;

use serde::Serialize;

use crate::api::wire::PeerReport;
use crate::config::RunArgs;
use examination::Examination;

pub use agent::NOT_RUNNING as AGENT_NOT_RUNNING;
pub use finding::{Check, Finding};
pub use other_nodes::OtherNodes;

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Diagnosis {
    /// The node's name, where it is known.
    pub node: Option<String>,
    /// Version of this program.
    pub version: String,
    /// Whether the agent answers.
    pub answers: bool,
    /// Every check, in order.
    pub checks: Vec<Check>,
    /// What was repaired, and what was not and why; nothing where no repair was asked for.
    pub repairs: Vec<String>,
    /// What the other nodes say is wrong with them; absent where they were not asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub others: Option<Vec<PeerReport>>,
    /// Why the other nodes could not be asked; absent where they were or were not to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub others_not_asked: Option<String>,
}

impl Diagnosis {
    /// How many findings there are on this node.
    pub fn findings(&self) -> usize {
        self.checks.iter().map(|check| check.findings.len()).sum()
    }

    /// How many problems the other nodes that were asked have.
    pub fn problems_elsewhere(&self) -> usize {
        let others = self.others.iter().flatten();
        others.map(|other| other.problem_count as usize).sum()
    }
}

/// Examines the node that `args` describe, in the calling thread's network namespace. With `repairs` it then repairs what
/// is Tartan's, and examines again. `others` are asked last.
///
/// # Panics
/// Outside a tokio runtime with I/O and time enabled.
pub async fn diagnose(args: &RunArgs, repairs: bool, others: &OtherNodes) -> Diagnosis {
    let examination = Examination::begin(args).await;
    if !repairs {
        return conclude(examination, Vec::new(), others).await;
    }
    let done = repair::repair(&examination).await;
    conclude(Examination::begin(args).await, done, others).await
}

async fn conclude(
    examination: Examination,
    repairs: Vec<String>,
    others: &OtherNodes,
) -> Diagnosis {
    let e = &examination;
    let checks = vec![
        agent::check(e),
        configuration::check(e),
        registry::check(e),
        tun::check(e),
        underlay::check(e),
        ports::check(e),
        settings::check(e),
        firewall::check(e),
        pods::check(e),
        bridges::check(e),
        flannel::check(e),
        kernel_path::check(e),
        peers::check(e),
        checksums::check(e).await,
        clock::check(e),
        others::check(e),
    ];
    let (others, others_not_asked) = match other_nodes::ask(e, others) {
        None => (None, None),
        Some(Ok(reports)) => (Some(reports), None),
        Some(Err(reason)) => (None, Some(reason)),
    };
    Diagnosis {
        node: e.node(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        answers: e.status.is_ok(),
        checks,
        repairs,
        others,
        others_not_asked,
    }
}
