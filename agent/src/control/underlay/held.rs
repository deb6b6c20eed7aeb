//! Whether the sockets of the keeper's table are those that a service needs.

use dataplane::families::PublicAddresses;
use encap::Family;

use super::slot::{ReceivePorts, slots};
use crate::control::model::Known;
use crate::keeper::descriptors::Descriptors;

/// Why a service with so many workers would open or close a socket.
pub(crate) fn differs(table: &Descriptors, known: &Known, workers: usize) -> Option<String> {
    let formats = ReceivePorts::of(&known.net_conf.backend);
    let private = formats.with_private(Some(known.config.kernel_path_port));
    let mut addresses = Vec::new();
    for slot in slots().flat_map(|group| group.slots(workers)) {
        let Some(socket) = table.peek(&slot.name()) else {
            continue;
        };
        let bound = slot.bound(socket, formats);
        let bound = bound.or_else(|| {
            slot.bound(socket, private)
                .filter(|_| slot.may_be_private())
        });
        match bound {
            Some(spec) => addresses.push(spec.address),
            None => return Some(format!("{} is bound to something else", slot.name())),
        }
    }
    // Its own port is what the kernel path moves, and it has moved it by the next try.
    if table
        .names()
        .any(|name| name.starts_with(super::sockets::NEXT))
    {
        return Some("the service that runs is about to move to another port".to_owned());
    }
    let bound = PublicAddresses::collect(addresses.iter().copied());
    // Where the registry has not said yet which address it wants, sockets that work stay.
    let is_same = known.is_announced() || bound == Some(known.wanted());
    if !is_same {
        return Some("the service that runs has another address than it should".to_owned());
    }
    let counted = [Family::V4, Family::V6].into_iter().find(|family| {
        let of_family = addresses
            .iter()
            .filter(|it| Family::of(**it) == *family)
            .count();
        let slots = slots().filter(|group| group.port.family == *family).count();
        of_family != 0 && of_family != slots * workers
    });
    counted.map(|_| "the service that runs has another number of sockets".to_owned())
}
