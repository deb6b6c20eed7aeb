//! The interface that carries the overlay: there, up, wide enough, and with the node's address.

use super::examination::Examination;
use super::finding::Check;

pub(super) fn check(e: &Examination) -> Check {
    let mut check = Check::new("underlay");
    match (&e.status, &e.dry_start) {
        (Ok(status), _) => {
            let second = status
                .public_ipv6
                .map_or_else(String::new, |v6| format!(" and {v6}"));
            check.fact(format!(
                "{}{second} on {}, MTU {}; {} carries {} bytes",
                status.public_ip,
                status.underlay,
                status.underlay_mtu,
                status.device,
                status.device_mtu
            ));
        }
        (Err(_), Some(dry)) => match &dry.model {
            Some(model) => {
                let underlay = &model.known.facts.underlay;
                check.fact(format!(
                    "a start would use {} on {}, MTU {}",
                    model.known.bound, underlay.name, underlay.mtu
                ));
            }
            None => check.unknown("which address the node would have"),
        },
        (Err(_), None) => check.unknown("which address the node would have"),
    }
    if let Err(error) = &e.picture {
        check.unknown(format!("interfaces and addresses: {error}"));
    }
    e.board.deal(&mut check);
    check.done()
}
