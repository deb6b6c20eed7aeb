//! Whether a packet filter cuts pods off from each other.

use super::examination::Examination;
use super::finding::{Check, Finding};
use crate::problems::Severity;

pub(super) fn check(e: &Examination) -> Check {
    let mut check = Check::new("firewall");
    e.board.deal(&mut check);
    match &e.firewall {
        Ok(survey) => {
            for rule in &survey.cutting {
                check.find(
                    Finding::new("firewall-cuts-pods-off", rule.clone(), Severity::Error)
                        .says(format!("{rule} drops what pods send each other, and no rule of Tartan stands before it"))
                        .shown_by("read from nf_tables now")
                        .remedied_by(match e.status {
                            Ok(_) => "see what keeps Tartan from it in the log; a firewall that reloads all the time is one reason",
                            Err(_) => "start the agent, which puts accept rules before it; or run `tartan doctor --fix`",
                        }),
                );
            }
            if survey.cutting.is_empty() {
                check.fact("no rule or policy of nf_tables cuts pods off from each other");
            }
            if e.status.is_ok() && survey.own_table {
                check.fact("the table inet tartan is there");
            }
            if let Some(legacy) = &survey.legacy {
                check.unknown(legacy.clone());
            }
        }
        Err(error) => check.unknown(crate::causes::causes(error)),
    }
    check.done()
}
