//! Interfaces with a queue discipline that others gave them.

use std::collections::HashSet;

use futures_util::TryStreamExt;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage};

use crate::host::Host;
use crate::host::error::HostError;

impl Host {
    /// Indices of the interfaces with a queue discipline at the root other than `noqueue`, or with one of kind `ingress`:
    /// a limit may be there, as the `bandwidth` plugin sets one (tbf at the root of the host's end for what the pod
    /// receives, `ingress` with a redirection for what it sends). What is redirected from another interface passes neither.
    ///
    /// # Errors
    /// The kernel's refusal to list.
    pub async fn interfaces_with_disciplines(&self) -> Result<HashSet<u32>, HostError> {
        let failed =
            |source| HostError::netlink("list", "the queueing disciplines of interfaces", source);
        let mut found = HashSet::new();
        let mut answer = Box::pin(self.netlink.handle.qdisc().get().execute());
        while let Some(message) = answer.try_next().await.map_err(failed)? {
            found.extend(disciplined(&message));
        }
        Ok(found)
    }
}

/// The interface of a queue discipline that may limit what passes.
fn disciplined(message: &TcMessage) -> Option<u32> {
    let kind = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            TcAttribute::Kind(kind) => Some(kind.as_str()),
            _ => None,
        });
    let is_at_root = message.header.parent == TcHandle::ROOT;
    let may_limit = kind == Some("ingress") || (is_at_root && kind != Some("noqueue"));
    may_limit
        .then(|| u32::try_from(message.header.index).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(parent: TcHandle, kind: &str) -> TcMessage {
        let mut message = TcMessage::with_index(7);
        message.header.parent = parent;
        message.attributes = vec![TcAttribute::Kind(kind.to_owned())];
        message
    }

    #[test]
    fn a_discipline_of_others_counts_and_what_every_veth_has_does_not() {
        for kind in ["tbf", "fq_codel", "htb", "netem"] {
            assert_eq!(
                disciplined(&listed(TcHandle::ROOT, kind)),
                Some(7),
                "{kind}"
            );
        }
        assert_eq!(disciplined(&listed(TcHandle::ROOT, "noqueue")), None);
        // Both hang from the same place.
        assert_eq!(disciplined(&listed(TcHandle::CLSACT, "ingress")), Some(7));
        assert_eq!(disciplined(&listed(TcHandle::CLSACT, "clsact")), None);
        let child = TcHandle { major: 1, minor: 1 };
        assert_eq!(disciplined(&listed(child, "pfifo")), None);
    }
}
