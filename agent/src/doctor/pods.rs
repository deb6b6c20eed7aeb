//! The pods of this node: their records, links and limits.

use super::examination::Examination;
use super::finding::Check;

pub(super) fn check(e: &Examination) -> Check {
    let mut check = Check::new("pods");
    match (&e.status, &e.dry_start) {
        (Ok(status), _) => {
            check.fact(format!(
                "{} attached, {} of them stranded, {} reclaimed",
                status.attachments, status.stranded, status.reclaimed
            ));
            if let Some(refused) = &status.gathering.refused {
                check.fact(format!("not gathered everywhere: {refused}"));
            }
        }
        (Err(_), Some(dry)) => match &dry.model {
            Some(model) => check.fact(format!("{} records of pods", model.records.adopted().len())),
            None => check.unknown("records of pods are judged by the node's subnets"),
        },
        (Err(_), None) => check.unknown("records of pods are judged by the node's subnets"),
    }
    e.board.deal(&mut check);
    check.done()
}
