//! What flannel left on the node, and a flanneld that still runs.

use super::configuration::list;
use super::examination::Examination;
use super::finding::{Check, Finding};
use crate::node_faults::flannel_rules;

pub(super) fn check(e: &Examination) -> Check {
    let mut check = Check::new("flannel");
    e.board.deal(&mut check);
    match &e.flanneld {
        // Where it is at odds with this node's configuration, that is on the board.
        Some(flanneld) => check.fact(format!("flannel's daemon runs here: {flanneld}")),
        None => {
            check.fact("no flanneld runs in this network namespace, as far as this process sees")
        }
    }
    if let Ok(survey) = &e.firewall {
        if !survey.flannels.is_empty() {
            check.fact(format!(
                "flannel's rules in nf_tables: {}",
                list(&survey.flannels)
            ));
        }
        if e.status.is_err()
            && let Some(problem) = flannel_rules::judge(&survey.flannels, || e.flanneld.is_some())
        {
            check.find(Finding::at_start(&problem));
        }
    }
    check.done()
}
