//! Whether the files can be used. While the service answers it is their judge; else what a start would read counts.

use super::examination::Examination;
use super::finding::{Check, Finding};
use crate::check;
use crate::problems::Severity;

pub(super) fn check(e: &Examination) -> Check {
    let mut check = Check::new("configuration");
    match (&e.status, &e.configuration) {
        (Ok(status), _) => check.fact(format!(
            "in force: node {}, subnets {}, cluster {}",
            status.node,
            list(&status.subnets),
            list(&status.cluster)
        )),
        (Err(_), Ok(configuration)) => {
            let file = configuration.file.path();
            check.fact(match file.exists() {
                true => format!("{} can be used", file.display()),
                false => format!("{} is not there: every key has its default", file.display()),
            });
            let verdict = check::check(&e.args, &[]).unwrap_or_default();
            for note in verdict.notes {
                check.fact(note.sentence);
            }
        }
        (Err(_), Err(unusable)) => check.find(
            Finding::new("configuration-fault", "", Severity::Error)
                .says(format!("no start can use the configuration: {unusable}"))
                .remedied_by("correct what the sentence names; `tartan check` judges the files"),
        ),
    }
    e.board.deal(&mut check);
    check.done()
}

pub(super) fn list<T: ToString>(items: &[T]) -> String {
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    match items.is_empty() {
        true => "none".to_owned(),
        false => items.join(", "),
    }
}
