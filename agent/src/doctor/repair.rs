//! `--fix`: repairs what is Tartan's, as the service itself would, and says what is left alone and why.
//!
//! While the service runs it repairs within a second whatever it may, so that nothing is left for this. While none runs,
//! the settings and accept rules are put right by which pods of this node reach each other; the overlay needs the agent.
//! What is changed goes on the same record as the service's changes, so `tartan cleanup` takes it back.

use crate::causes::causes;
use crate::control::model::Model;
use crate::host::{Change, Host};
use crate::keeper::LOCK_FILE;
use crate::keeper::lock::{Lock, LockError};
use crate::service::take_service_lock;

use super::examination::Examination;

/// Repairs, and says what became of it, a line each.
pub(super) async fn repair(e: &Examination) -> Vec<String> {
    let model = match (&e.status, &e.dry_start) {
        (Ok(_), _) => {
            return vec![
                "left alone: the agent runs, and repairs what is its own within a second; what is found below is not".to_owned(),
            ];
        }
        (Err(_), Some(dry)) => dry.model.as_ref(),
        (Err(_), None) => None,
    };
    let Some(model) = model else {
        return vec![
            "left alone: without configuration and list of nodes nothing tells what this node needs"
                .to_owned(),
        ];
    };
    // No agent starts meanwhile.
    let locks = lock(model);
    if let Err(error) = &locks {
        return vec![format!("left alone: {}", causes(error))];
    }
    let mut lines = restored(model).await;
    if lines.is_empty() {
        lines.push("nothing of Tartan's needed repair".to_owned());
    }
    lines
}

async fn restored(model: &Model) -> Vec<String> {
    let mut host = match Host::open(&model.known.config.state_dir()).await {
        Ok(host) => host,
        Err(error) => return vec![format!("failed: {}", causes(&error))],
    };
    let desired = &model.desired.host;
    let mut lines = Vec::new();
    let mut note = |done: Result<Vec<Change>, _>| match done {
        Ok(changes) => lines.extend(changes.iter().map(|change| format!("repaired: {change}"))),
        Err(error) => lines.push(format!("failed: {}", causes(&error))),
    };
    note(host.restore_forwarding(desired).await);
    note(host.apply_firewall(desired).await);
    lines
}

fn lock(model: &Model) -> Result<(Lock, Lock), LockError> {
    let run_dir = model.known.config.run_dir();
    let keeper = Lock::take(&run_dir.path().join(LOCK_FILE))?;
    Ok((keeper, take_service_lock(run_dir.path())?))
}
