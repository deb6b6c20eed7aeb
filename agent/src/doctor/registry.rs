//! Where the leases come from, and what is refused of them: duplicate subnets, a node without a subnet, a list that loses
//! most nodes.

use super::examination::Examination;
use super::finding::Check;

pub(super) fn check(e: &Examination) -> Check {
    let mut check = Check::new("registry");
    match (&e.status, &e.dry_start) {
        (Ok(status), _) => {
            let answers = match status.registry_answers {
                true => "answers",
                false => "does not answer",
            };
            let cached = match status.registry_cached {
                true => ", from the last good state",
                false => "",
            };
            check.fact(format!(
                "{} {answers}; the list in force is {} s old{cached}, {} other nodes",
                status.registry, status.registry_age, status.peers
            ));
            if let Some(refused) = &status.registry_last_refused {
                check.fact(format!(
                    "refused last, {} s ago: {}",
                    refused.age, refused.reason
                ));
            }
        }
        (Err(_), Some(dry)) => {
            for source in &dry.sources {
                check.fact(format!("a start would go by: {source}"));
            }
            if let Some(why) = &dry.undecided {
                check.unknown(format!("what a start would decide: {why}"));
            }
        }
        (Err(_), None) => check.unknown("the configuration does not say which it is"),
    }
    e.board.deal(&mut check);
    check.done()
}
