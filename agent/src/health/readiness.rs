//! What keeps a node from being ready.

use crate::problems::{Problem, Severity};

/// A line for each problem by which pods of this node are cut off, or cannot be attached. A registry that is lost or a peer
/// at odds with this node is none: the node carries its packets as before.
pub(super) fn reasons<'a>(problems: impl Iterator<Item = &'a Problem>) -> Vec<String> {
    problems
        .filter(|problem| cuts_pods_off(problem))
        .map(|problem| problem.to_string().replace('\n', " "))
        .collect()
}

fn cuts_pods_off(problem: &Problem) -> bool {
    match problem {
        Problem::WorkersBehind { .. }
        | Problem::UnderlaySocket { .. }
        | Problem::UnderlayMove { .. }
        | Problem::UnderlayDown(_)
        | Problem::NodeFile { .. }
        // It takes device, port and lease away.
        | Problem::FlanneldRunning(_)
        | Problem::ApiThread { .. } => true,
        // Among them: subnet.env is not written, a rule of another program cuts pods off, the device or a route is missing.
        Problem::Host(problem) => {
            problem.severity == Severity::Error && !OF_ONE_POD.contains(&problem.code)
        }
        _ => false,
    }
}

/// Codes of the kernel's refusals that concern single pods.
const OF_ONE_POD: [&str; 1] = ["no-shaper"];
