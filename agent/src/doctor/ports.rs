//! The UDP ports of the overlay: had by the agent, or free for it.

use super::examination::Examination;
use super::finding::Check;

pub(super) fn check(e: &Examination) -> Check {
    let mut check = Check::new("ports");
    e.board.deal(&mut check);
    match (&e.status, &e.dry_start) {
        (Ok(status), _) if check.findings.is_empty() => check.fact(format!(
            "the agent receives the formats udp and vxlan at {}",
            status.public_ip
        )),
        (Err(_), Some(dry)) => match &dry.model {
            Some(model) => {
                let backend = &model.known.net_conf.backend;
                check.fact(format!(
                    "{} needs UDP {} and {}",
                    model.known.bound,
                    backend.vxlan_port(),
                    backend.udp_port()
                ));
            }
            None => check.unknown("which ports the node would need"),
        },
        (Err(_), None) => check.unknown("which ports the node would need"),
        (Ok(_), _) => {}
    }
    check.done()
}
