//! What becomes of an upgrade, said to the command that asked for it: a line of JSON for each step, on its connection.
//!
//! The connection outlives the service that took the request, and the keeper's own program. A caller that is gone or does not
//! read is not waited for: the upgrade goes on, and the log has it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::SendFlags;
use serde::{Deserialize, Serialize};
use tracing::debug;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum Step {
    /// The program has told its version, and is started beside the service that runs.
    Starting {
        /// The program.
        program: String,
        /// Its version.
        version: String,
    },
    /// It has read what it starts from. The service that runs is told to pause.
    Ready,
    /// It forwards.
    Forwarding {
        /// How long no service read packets, in microseconds.
        pause_us: u64,
    },
    /// The last line.
    Ended(Ended),
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// What it came to.
    pub outcome: Outcome,
    /// The version before.
    pub from: String,
    /// The version of the program that was to come, as far as it has told that.
    pub to: Option<String>,
    /// How long no service read packets, in microseconds, where one was told to pause.
    pub pause_us: Option<u64>,
    /// The keeper, too, is of the new program.
    pub keeper: bool,
    /// Why not all of it was done, with the remedy.
    pub reason: Option<String>,
}

impl Ended {
    /// Of a request that is refused before anything is known of the program.
    pub(super) fn unchanged(reason: String) -> Ended {
        Ended {
            outcome: Outcome::Unchanged,
            from: String::new(),
            to: None,
            pause_us: None,
            keeper: false,
            reason: Some(reason),
        }
    }
}

/// What an upgrade came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The new service forwards.
    Upgraded,
    /// The service that runs was not touched, or is asked to stop.
    Unchanged,
    /// The service that ran had paused, and forwards again.
    Returned,
    /// The service that ran is gone, and one is started as after any death.
    Restarted,
}

/// The connection of the command.
#[derive(Debug)]
pub struct Progress(Option<OwnedFd>);

impl Progress {
    /// On this connection, if there is one.
    pub fn new(connection: Option<OwnedFd>) -> Progress {
        Progress(connection)
    }

    /// Says it, if it can be said at once.
    pub fn say(&self, step: &Step) {
        let Some(connection) = &self.0 else {
            return;
        };
        let Ok(mut line) = serde_json::to_vec(step) else {
            return;
        };
        line.push(b'\n');
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if let Err(error) = rustix::net::send(connection, &line, flags) {
            debug!(%error, "the command that asked for the upgrade does not listen");
        }
    }

    /// The connection, for the program that is executed in this one's place.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }
}
