//! `tartan adopt`: what became of the list that was held back.

use super::table::printable;
use crate::api::wire::Adopted;

pub(super) fn render(answer: &Adopted) -> String {
    let Adopted {
        adopted,
        nodes,
        lost,
    } = answer;
    if !adopted {
        return format!("no list is held back; the list in force has {nodes} node(s)\n");
    }
    let lost = printable(&lost.join(", "));
    format!("adopted the list of {nodes} node(s), which lacks: {lost}\n")
}
