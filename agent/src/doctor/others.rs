//! What is wrong and belongs to no other check.

use super::examination::Examination;
use super::finding::Check;

pub(super) fn check(e: &Examination) -> Check {
    let mut check = Check::new("others");
    e.board.deal(&mut check);
    if check.findings.is_empty() {
        check.fact("nothing else is reported");
    }
    check.done()
}
