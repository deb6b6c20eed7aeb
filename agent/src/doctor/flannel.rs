//! What flannel left on the node, and a flanneld that still runs.

use super::configuration::list;
use super::examination::Examination;
use super::finding::{Check, Finding};
use crate::problems::Severity;

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
    if let Ok(survey) = &e.firewall
        && e.flanneld.is_none()
        && !survey.flannels.is_empty()
    {
        check.find(
            Finding::new("flannel-rules-left", "", Severity::Warning)
                .says(format!(
                    "flannel's rules are still in the packet filter ({}), and no flanneld runs: they masquerade and accept by the networks of a configuration that may be old",
                    list(&survey.flannels)
                ))
                .shown_by("read from nf_tables now")
                .remedied_by("take them out as docs/migrate.md says for flannel's chains, or reboot the node"),
        );
    }
    check.done()
}
