//! What is wrong with the node, in words with the remedy: the first lines of `tartan status`.

use super::adoption::ADOPTION_PATIENCE;
use super::control::Control;
use super::node::Known;
use crate::attachments::pod_name;
use crate::causes::causes;
use crate::host::Bypass;

impl Control {
    pub(super) fn problems(&self) -> Vec<String> {
        let known = &self.node.known;
        let net_conf = self.node.cached.net_conf.iter().map(|reason| {
            format!("the net-conf is refused and the one from cache stays in force: {reason}")
        });
        let leases = self.node.refused_leases.iter().map(|reason| {
            let in_force = match self.node.cached.leases {
                Some(_) => "leases from cache stay",
                None => "the old one stays",
            };
            format!("the list of nodes is refused and {in_force} in force: {reason}")
        });
        let records = self.node.refused_records.iter().map(|refused| {
            format!(
                "the attachment record {} is refused: {}",
                refused.file, refused.reason
            )
        });
        // The route to a stranded pod goes with the pod.
        let leads_to_stranded = |bypass: &&Bypass| {
            let mut stranded = known.stranded();
            stranded.any(|pod| bypass.device.as_deref() == Some(&*pod.host_ifname))
        };
        let bypassing = known.facts.bypassing.iter();
        let bypassing = bypassing.filter(|bypass| !leads_to_stranded(bypass));
        let mut problems: Vec<String> = net_conf
            .chain(leases)
            .chain(self.stale())
            .chain(self.api_problem.clone())
            .chain(self.state_problem.clone())
            .chain(self.host.unrecorded().map(|error| causes(error)))
            .chain(self.host_problem.clone())
            .chain(self.node_file_problem.clone())
            .chain(stranded(known))
            .chain(bypassing.map(Bypass::to_string))
            .chain(records)
            .collect();
        let more = problems.len().saturating_sub(PROBLEMS);
        problems.truncate(PROBLEMS);
        if more > 0 {
            problems.push(format!(
                "and {more} more; see `tartan pods` and `tartan routes`"
            ));
        }
        problems
    }

    fn stale(&self) -> Option<String> {
        let version = self.node.desired.spec.version;
        let late = self.published.elapsed() > ADOPTION_PATIENCE && !self.engine.adopted(version);
        late.then(|| {
            format!("a worker does not take the tables of version {version}; see the agent's log")
        })
    }
}

/// One sentence for all of them: a change of subnets strands every pod of the node.
fn stranded(known: &Known) -> Option<String> {
    let pods: Vec<String> = known
        .stranded()
        .map(|pod| pod_name(pod).unwrap_or_else(|| format!("container {}", pod.container)))
        .collect();
    let (shown, more) = pods.split_at(pods.len().min(STRANDED_PODS));
    let more = match more.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!shown.is_empty()).then(|| {
        format!(
            "stranded pods, with addresses in no subnet of this node: {}{more}; delete and recreate them, see `tartan pods`",
            shown.join(", ")
        )
    })
}

/// A node with thousands of garbled records still has a status of one screen.
const PROBLEMS: usize = 20;
const STRANDED_PODS: usize = 3;
