//! `tartan adopt`: what became of the list that was held back.

use super::table::printable;
use super::view::total;
use crate::api::wire::Adopted;

pub(super) fn render(answer: &Adopted) -> String {
    let Adopted {
        adopted,
        nodes,
        lost,
    } = answer;
    let nodes = total(*nodes, *nodes, "node", "nodes");
    if !adopted {
        return format!("no list is held back; the list in force has {nodes}\n");
    }
    let lost = printable(&lost.join(", "));
    format!("adopted the list of {nodes}, which lacks: {lost}\n")
}
