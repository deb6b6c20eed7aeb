//! The last good state while the service runs: when what it stands in for is taken back, and when it is written.

use tracing::{info, warn};

use crate::causes::causes;
use crate::config::NetConf;
use crate::control::event_loop::{Control, Restart};
use crate::registry::Update;
use crate::takeover::sources::no_net_conf;

impl Control {
    /// Where the net-conf in force is the last good state's: whether the file can be used again. One that
    /// differs decides sockets and tables, so it is taken by a new start, and only by one that would succeed.
    pub(crate) fn reread_net_conf(&mut self) -> Result<(), Restart> {
        if self.node.cached.net_conf.is_none() {
            return Ok(());
        }
        let known = &mut self.node.known;
        self.node.cached.net_conf = match NetConf::load(&known.config.net_conf) {
            Err(error) => Some(causes(&no_net_conf(&known.config, error))),
            Ok((net_conf, text)) if net_conf == known.net_conf => {
                info!("the net-conf can be read again");
                known.net_conf_text = text;
                None
            }
            Ok((net_conf, _)) => match self.registry.read_with(&net_conf) {
                Update::Leases(_) => {
                    return Err(Restart(
                        "the net-conf can be read again, and differs".to_owned(),
                    ));
                }
                Update::Refused { place, reason } => Some(format!(
                    "it differs from the one in force, and the list of nodes cannot be used with it: {place}: {reason}"
                )),
            },
        };
        Ok(())
    }

    /// Keeps what a start without the registry begins from. What a disk refuses is tried again at the next turn.
    pub(crate) fn save(&mut self) {
        if self.saved {
            return;
        }
        let problem = self.node.save().err().map(|error| causes(&error));
        self.saved = problem.is_none();
        if let Some(problem) = &problem
            && self.state_problem.is_none()
        {
            warn!("{problem}");
        }
        self.state_problem = problem;
    }
}
