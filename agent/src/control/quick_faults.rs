//! What a quick check of the control loop found, and whether it is news.

use crate::host::QuickFault;

/// What is not as it should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QuickFaults {
    /// Of the host.
    pub(crate) host: Vec<QuickFault>,
    /// The API sockets.
    pub(crate) api: bool,
    /// The links of pods.
    pub(crate) pods: bool,
}

impl QuickFaults {
    /// Whether anything was found of another kind than in `known`.
    pub(crate) fn exceed(&self, known: &QuickFaults) -> bool {
        self.host.iter().any(|fault| !known.host.contains(fault))
            || self.api && !known.api
            || self.pods && !known.pods
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_that_stays_hides_no_other() {
        let firewall = QuickFaults {
            host: vec![QuickFault::Firewall],
            ..QuickFaults::default()
        };
        let none = QuickFaults::default();
        assert!(firewall.exceed(&none));
        assert!(!firewall.exceed(&firewall) && !none.exceed(&firewall));
        let host = vec![QuickFault::Firewall, QuickFault::Device];
        let others = [
            QuickFaults {
                host,
                ..none.clone()
            },
            QuickFaults {
                api: true,
                ..firewall.clone()
            },
            QuickFaults {
                pods: true,
                ..firewall.clone()
            },
        ];
        assert!(others.iter().all(|found| found.exceed(&firewall)));
    }
}
