//! A registry on another host, reached over the network.
//!
//! Theory of operation. It is served by a thread of its own with its own event loop, so that neither a long answer nor a
//! slow name lookup keeps the control loop waiting. The thread of a kind gets a [`Seat`]: it reads there what this node
//! announces, and reports updates. The control loop has the other end, a [`RemoteRegistry`]. The thread ends when that is
//! dropped.
//!
//! A thread reports [`Update::Settings`] first, then waits for the first announcement, makes this node's own record what
//! was announced, and reports the leases. It goes on for ever: whatever fails is reported (as [`Update::Contact`] or
//! [`Update::Refused`]) and tried again, with pauses that grow.

use std::thread;

use dataplane::landlock::Renounced;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, watch};

use super::announcement::Announcement;
use super::place::RegistryPlace;
use super::{RegistryError, Update};
use crate::confinement::renounce_files;

/// The control loop's end.
#[derive(Debug)]
pub struct RemoteRegistry {
    /// What it reads, for `tartan status`.
    description: String,
    place: RegistryPlace,
    updates: mpsc::Receiver<Update>,
    announced: watch::Sender<Option<Announcement>>,
    reread: mpsc::Sender<()>,
    /// The end of its thread was reported.
    ended: bool,
}

/// What a registry's thread works with.
#[derive(Debug)]
pub(super) struct Seat {
    updates: mpsc::Sender<Update>,
    announced: watch::Receiver<Option<Announcement>>,
    reread: mpsc::Receiver<()>,
}

/// The other end is gone: the thread is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended;

impl Seat {
    /// Reports an update. Waits while the control loop is far behind.
    ///
    /// # Errors
    /// [`Ended`].
    pub(super) async fn report(&self, update: Update) -> Result<(), Ended> {
        self.updates.send(update).await.map_err(|_| Ended)
    }

    /// The latest announcement, the first one waited for.
    ///
    /// # Errors
    /// [`Ended`].
    pub(super) async fn announcement(&mut self) -> Result<Announcement, Ended> {
        loop {
            if let Some(announced) = self.announced.borrow_and_update().clone() {
                return Ok(announced);
            }
            self.announced.changed().await.map_err(|_| Ended)?;
        }
    }

    /// Waits until another announcement is made, or the operator asks to read everything again. Dropping the future loses
    /// nothing.
    ///
    /// # Errors
    /// [`Ended`].
    pub(super) async fn asked(&mut self) -> Result<Asked, Ended> {
        tokio::select! {
            changed = self.announced.changed() => changed.map(|()| Asked::Announcement).map_err(|_| Ended),
            asked = self.reread.recv() => asked.map(|()| Asked::Reread).ok_or(Ended),
        }
    }
}

/// What the control loop asks of a registry's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// This node announces something else of itself.
    Announcement,
    /// Everything is to be read again.
    Reread,
}

impl RemoteRegistry {
    /// Starts the thread. `serve` gets the seat and runs in the thread's event loop.
    ///
    /// # Errors
    /// The kernel gives no thread.
    pub(super) fn start<F, S>(
        description: String,
        place: RegistryPlace,
        serve: F,
    ) -> Result<RemoteRegistry, RegistryError>
    where
        F: FnOnce(Seat) -> S + Send + 'static,
        S: Future<Output = Ended>,
    {
        let (update, updates) = mpsc::channel(UPDATES);
        let (announced, announcement) = watch::channel(None);
        let (reread, asked) = mpsc::channel(1);
        let seat = Seat {
            updates: update,
            announced: announcement,
            reread: asked,
        };
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(RegistryError::Thread)?;
        thread::Builder::new()
            .name("registry".to_owned())
            .spawn(move || {
                renounce_files(Renounced::Changes);
                runtime.block_on(serve(seat));
            })
            .map_err(RegistryError::Thread)?;
        Ok(RemoteRegistry {
            description,
            place,
            updates,
            announced,
            reread,
            ended: false,
        })
    }

    /// Waits for the next update. Dropping the future before it is ready loses nothing.
    pub async fn next(&mut self) -> Update {
        match self.updates.recv().await {
            Some(update) => update,
            // Its thread has panicked. Tartan's own programs end with it, and the keeper starts a new service.
            None if !self.ended => {
                self.ended = true;
                Update::Contact(super::Contact::Lost {
                    reason: "its thread has ended by a fault of Tartan's: restart the agent and report its log"
                        .to_owned(),
                })
            }
            None => std::future::pending().await,
        }
    }

    /// Makes this node's record what is announced. Without effect where it is already.
    pub fn announce(&self, announcement: Announcement) {
        self.announced.send_if_modified(|announced| {
            let differs = announced.as_ref() != Some(&announcement);
            *announced = Some(announcement);
            differs
        });
    }

    /// Has everything read again.
    pub fn reread(&self) {
        // One that waits is enough.
        let _ = self.reread.try_send(());
    }

    /// The registry's content as a whole.
    pub fn place(&self) -> RegistryPlace {
        self.place.clone()
    }

    /// The kind and what it reads.
    pub fn describe(&self) -> &str {
        &self.description
    }
}

/// The control loop takes them faster than any registry gives them.
const UPDATES: usize = 16;
